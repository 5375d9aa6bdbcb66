//! Sets of GGUF files: `name-00001-of-00003.gguf` and its fellows.
//!
//! In: the path of any part, or of a single file. Out: every part opened, in order.
//! Invariant: no part is opened before all are known to be there; all that are missing or empty are named at once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::gguf::Gguf;
use super::{file_name, listing, malformed, unreadable};
use crate::base::{Code, Place, Problem};

/// A model's GGUF files, in order; metadata is that of the first.
#[derive(Clone, Debug)]
pub struct GgufSet {
    first: Gguf,
    rest: Vec<Gguf>,
}

/// `stem-00002-of-00003.gguf` taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// What stands before `-00002-of-00003.gguf`.
    pub stem: String,
    /// 1-based.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl PartName {
    /// Reads a file name; `None` if it does not have the form of a part.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let five_digits = |text: &str| -> Option<u32> {
            (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse().ok())
                .flatten()
        };
        let rest = name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then(|| Self {
            stem: stem.to_owned(),
            number,
            count,
        })
    }

    /// File name of another part of the same set.
    #[must_use]
    pub fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

impl GgufSet {
    /// Opens the set that `path` belongs to; `path` may be any part of it, or a single file.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let name = file_name(path);
        let Some(part) = PartName::parse(&name) else {
            return Self::open_single(path);
        };
        let paths = present_parts(path, &part)?;
        let first = Gguf::open(&path.with_file_name(part.sibling(1)))?;
        let rest = paths
            .iter()
            .skip(1)
            .map(|path| Gguf::open(path))
            .collect::<Result<_, _>>()?;
        let set = Self { first, rest };
        set.check_numbers(&part)?;
        set.check_tensors(&part)?;
        Ok(set)
    }

    fn open_single(path: &Path) -> Result<Self, Problem> {
        let file = Gguf::open(path)?;
        let name = file_name(path);
        let count = file.u64("split.count")?.unwrap_or(1);
        if count > 1 {
            let number = file.u64("split.no")?.unwrap_or(0).saturating_add(1);
            return Err(Problem::new(
                Code::ModelPartMissing,
                format!("`{name}` is part {number} of {count}, but its name does not say so"),
                format!(
                    "name the parts as they were published, such as `model-{number:05}-of-{count:05}.gguf`"
                ),
            )
            .why("the other parts are found by their names")
            .at(Place::of(path.display().to_string())));
        }
        Ok(Self {
            first: file,
            rest: Vec::new(),
        })
    }

    /// `split.no` and `split.count` of each part have to agree with its name.
    fn check_numbers(&self, part: &PartName) -> Result<(), Problem> {
        for (index, file) in self.parts().enumerate() {
            let (number, count) = (file.u64("split.no")?, file.u64("split.count")?);
            // A single file may carry a part's name without the keys; a set may not.
            if part.count == 1 && count.is_none_or(|n| n <= 1) {
                continue;
            }
            if number != Some(index as u64) || count != Some(part.count.into()) {
                let shown = |n: Option<u64>| n.map_or("nothing".to_owned(), |n| n.to_string());
                return Err(malformed(
                    &file_name(file.path()),
                    format!(
                        "by its name it is part {} of {}, but it says split.no = {} (counted from 0) and \
                         split.count = {}",
                        index + 1,
                        part.count,
                        shown(number),
                        shown(count)
                    ),
                )
                .at(Place::of(file.path().display().to_string())));
            }
        }
        Ok(())
    }

    /// No tensor twice, and as many as the first part promises.
    fn check_tensors(&self, part: &PartName) -> Result<(), Problem> {
        let mut seen = HashSet::new();
        for file in self.parts() {
            for tensor in &file.header().tensors {
                if !seen.insert(tensor.name.as_str()) {
                    return Err(malformed(
                        &file_name(file.path()),
                        format!("the tensor `{}` is also in an earlier part", tensor.name),
                    )
                    .at(Place::of(file.path().display().to_string())));
                }
            }
        }
        if let Some(promised) = self.first().u64("split.tensors.count")?
            && promised != seen.len() as u64
        {
            return Err(malformed(
                &part.sibling(1),
                format!(
                    "split.tensors.count promises {promised} tensors, the {} parts hold {}",
                    part.count,
                    seen.len()
                ),
            )
            .at(Place::of(self.first().path().display().to_string())));
        }
        Ok(())
    }

    /// The first part, which holds the metadata.
    #[must_use]
    pub fn first(&self) -> &Gguf {
        &self.first
    }

    /// Every part, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Gguf> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

/// Paths of all parts, or one problem that names every part missing or empty.
fn present_parts(path: &Path, part: &PartName) -> Result<Vec<PathBuf>, Problem> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut paths = Vec::new();
    let (mut missing, mut empty, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=part.count {
        let name = part.sibling(number);
        let sibling = folder.join(&name);
        match std::fs::metadata(&sibling) {
            Ok(facts) if facts.len() > 0 => {}
            Ok(_) => empty.push(format!("`{name}`")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing.push(format!("`{name}`")),
            Err(error) => return Err(unreadable(&sibling, &error)),
        }
        if empty.len() + missing.len() > all.len() {
            all.push(name);
        }
        paths.push(sibling);
    }
    if all.is_empty() {
        return Ok(paths);
    }
    let mut faults = Vec::new();
    if !missing.is_empty() {
        faults.push(format!("missing: {}", listing(&missing)));
    }
    if !empty.is_empty() {
        faults.push(format!("empty (0 bytes): {}", listing(&empty)));
    }
    let mut remedy = format!("put all {} parts in one folder", part.count);
    if part.number != 1 {
        remedy = format!("{remedy} and pass part 1, `{}`", part.sibling(1));
    }
    Err(Problem::new(
        Code::ModelPartMissing,
        format!(
            "the model `{}` has {} parts, of which {} cannot be used: {}",
            part.stem,
            part.count,
            all.len(),
            faults.join("; ")
        ),
        remedy,
    )
    .why("every part holds some of the weights; all are checked before any is loaded")
    .at(Place::of(path.display().to_string()))
    .with(serde_json::json!({ "parts": part.count, "unusable": all })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_taken_apart() {
        let part = PartName::parse("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!((part.stem.as_str(), part.number, part.count), ("a-b", 2, 3));
        assert_eq!(part.sibling(1), "a-b-00001-of-00003.gguf");
        for name in [
            "m.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.safetensors",
            "m-+0001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(name), None, "{name}");
        }
    }
}
