//! Opened weights: tensors by name, as views into mapped files.
//!
//! In: a card whose files are on disk. Out: type, shape and bytes of each tensor; GGUF metadata for the tokenizer.
//! Invariant: the files are the ones the card describes: headers are read again on opening and must agree. A file
//! that another process cuts short afterwards ends this process with SIGBUS (see `sys::mapping`); replace model
//! files, never rewrite them in place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::card::{ModelCard, ModelFormat, TensorType};
use super::formats::file_name;
use super::formats::gguf::Gguf;
use super::formats::gguf_split::GgufSet;
use super::{gguf_card, safetensors_card};
use crate::base::{Code, Place, Problem};
use crate::sys::mapping::Mapping;

/// Opened weights. Cheap to clone: mappings are shared.
#[derive(Clone, Debug)]
pub struct Weights {
    maps: Vec<Arc<Mapping>>,
    tensors: HashMap<String, Located>,
    gguf: Option<Gguf>,
    files: Vec<PathBuf>,
    chat_template: Option<String>,
}

/// Where a tensor lies.
#[derive(Clone, Debug)]
struct Located {
    file: usize,
    dtype: TensorType,
    shape: Vec<u64>,
    range: std::ops::Range<usize>,
}

/// One tensor that stays in its mapped file.
#[derive(Clone, Debug)]
pub struct MappedTensor {
    map: Arc<Mapping>,
    dtype: TensorType,
    range: std::ops::Range<usize>,
}

impl MappedTensor {
    /// Element or block type.
    #[must_use]
    pub fn dtype(&self) -> TensorType {
        self.dtype
    }

    /// The data as stored.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes().get(self.range.clone()).unwrap_or(&[])
    }
}

/// One tensor in its file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element or block type.
    pub dtype: TensorType,
    /// Outermost dimension first.
    pub shape: &'a [u64],
    /// The data as stored, little-endian. Alignment is that of the file: do not assume more than one byte.
    pub bytes: &'a [u8],
}

impl Weights {
    /// Maps the card's files and checks that they are still what the card says.
    pub fn open(card: &ModelCard) -> Result<Self, Problem> {
        let Some(first) = card.files.first() else {
            return Err(Problem::new(
                Code::ModelNotFound,
                format!("the files of `{}` are not on this machine", card.name),
                "fetch the model first, or pass its path",
            ));
        };
        let (maps, now, gguf): (Vec<Arc<Mapping>>, _, _) = match card.format {
            ModelFormat::Gguf => {
                let set = GgufSet::open(first)?;
                let maps = set.parts().map(|part| Arc::clone(part.mapping())).collect();
                (maps, gguf_card::card(&set)?, Some(set.first().clone()))
            }
            ModelFormat::Safetensors => {
                let folder = first.parent().filter(|p| !p.as_os_str().is_empty());
                let (now, files) = safetensors_card::open(folder.unwrap_or(Path::new(".")))?;
                let maps = files.iter().map(|file| Arc::clone(file.mapping())).collect();
                (maps, now, None)
            }
        };
        let mapped: u64 = maps.iter().map(|map| map.len() as u64).sum();
        if mapped != card.file_bytes.0 {
            return Err(changed(
                card,
                format!(
                    "its files have {mapped} bytes, the plan was made for {}",
                    card.file_bytes.0
                ),
            ));
        }
        if now.tensors != card.tensors || now.decoder != card.decoder || now.speech != card.speech {
            return Err(changed(
                card,
                "its headers differ from those the plan was made for".to_owned(),
            ));
        }
        let mut tensors = HashMap::with_capacity(card.tensors.len());
        for fact in &card.tensors {
            let end = fact.offset.saturating_add(fact.bytes.0);
            let map = maps.get(fact.file);
            if map.is_none_or(|map| end > map.len() as u64) {
                return Err(changed(card, format!("`{}` lies outside its file", fact.name)));
            }
            tensors.insert(
                fact.name.clone(),
                Located {
                    file: fact.file,
                    dtype: fact.dtype,
                    shape: fact.shape.clone(),
                    // Inside a mapping, as just checked: both fit `usize`.
                    range: fact.offset as usize..end as usize,
                },
            );
        }
        Ok(Self {
            maps,
            tensors,
            gguf,
            files: now.files,
            chat_template: now.chat_template,
        })
    }

    /// The files that are mapped.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The chat template that the files hold, if they hold one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The tensor of this name in the file, or `None`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let located = self.tensors.get(name)?;
        Some(TensorView {
            dtype: located.dtype,
            shape: &located.shape,
            bytes: self.maps.get(located.file)?.bytes().get(located.range.clone())?,
        })
    }

    /// The tensor of this name, for reading rows of it as long as the result lives; `None` if there is none.
    #[must_use]
    pub fn mapped(&self, name: &str) -> Option<MappedTensor> {
        let located = self.tensors.get(name)?;
        Some(MappedTensor {
            map: Arc::clone(self.maps.get(located.file)?),
            dtype: located.dtype,
            range: located.range.clone(),
        })
    }

    /// Gives the resident pages of a tensor back to the system, after it was repacked. Reading it again is allowed.
    /// A name that does not exist does nothing.
    pub fn release(&self, name: &str) -> std::io::Result<()> {
        let Some(located) = self.tensors.get(name) else {
            return Ok(());
        };
        let Some(map) = self.maps.get(located.file) else {
            return Ok(());
        };
        map.release(located.range.clone())
    }

    /// Metadata of a GGUF model (of the first file of a set), for the tokenizer; `None` for safetensors.
    #[must_use]
    pub fn gguf_metadata(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }
}

fn changed(card: &ModelCard, what: String) -> Problem {
    let place = card
        .files
        .first()
        .map(|path| path.display().to_string())
        .unwrap_or_default();
    let name = card
        .files
        .first()
        .map_or_else(|| card.name.clone(), |path| file_name(path));
    Problem::new(
        Code::ModelMalformed,
        format!("`{name}` is no longer the file that was inspected: {what}"),
        "make the plan again, and do not write to model files while they are in use",
    )
    .at(Place::of(place))
}
