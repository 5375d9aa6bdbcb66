//! The cache folder: where fetched files lie, how a complete one is told from a damaged one, and who may write.
//!
//! In: `EDGE_DEPLOY_CACHE_DIR` or the user's cache folder. Out: paths, a lock per target, free-space checks.
//! Invariant: a target is trusted only with a marker that matches its size, its time and the wanted digest.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Progress, file_problem};
use crate::base::{Bytes, Code, Problem, env_vars};

/// Kept free on the disk beyond what a fetch needs, so that logs and other programs can still write.
const SPARE_BYTES: u64 = 64 << 20;

/// The cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The folder the environment names, else the user's own cache folder.
    pub fn open() -> Result<Self, Problem> {
        if let Some(folder) = env_vars::get(env_vars::CACHE_DIR) {
            return Ok(Self::at(folder));
        }
        dirs::cache_dir()
            .map(|folder| Self::at(folder.join("edge-deploy")))
            .ok_or_else(|| {
                Problem::new(
                    Code::FileAccess,
                    "there is no home folder to keep models in",
                    "set EDGE_DEPLOY_CACHE_DIR to a folder with room for them",
                )
            })
    }

    /// A given folder. It is made when first written to.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where complete models lie.
    #[must_use]
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// Where packages lie until their model is taken out of them.
    #[must_use]
    pub fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }
}

/// Makes `folder` and its parents.
pub fn make_folder(folder: &Path) -> Result<(), Problem> {
    fs::create_dir_all(folder).map_err(|error| file_problem("make the folder", folder, &error))
}

/// Whether `existing` is a folder that this user may write to.
pub fn require_folder(existing: &Path) -> Result<(), Problem> {
    use rustix::fs::{Access, access};
    let problem = |error: &std::io::Error| file_problem("use as the cache folder", existing, error);
    if !existing.is_dir() {
        return Err(problem(&std::io::Error::from(std::io::ErrorKind::NotADirectory)));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| problem(&error.into()))
}

/// `path` with `suffix` behind its whole name.
#[must_use]
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// What was true of a file when its digest was last checked.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Marker {
    bytes: u64,
    sha256: String,
    modified_ns: u64,
}

fn marker_path(target: &Path) -> PathBuf {
    beside(target, ".verified")
}

fn modified_ns(meta: &fs::Metadata) -> u64 {
    meta.modified()
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Whether `target` is complete: right size, and either a marker that still fits or, read once, the right digest.
/// A digest that fits leaves a marker, so that the next start reads nothing.
#[must_use]
pub fn verified(target: &Path, bytes: u64, sha256: &str) -> bool {
    let Ok(meta) = fs::metadata(target) else {
        return false;
    };
    if !meta.is_file() || meta.len() != bytes {
        return false;
    }
    let wanted = Marker {
        bytes,
        sha256: sha256.to_owned(),
        modified_ns: modified_ns(&meta),
    };
    let marked = fs::read(marker_path(target))
        .ok()
        .and_then(|text| serde_json::from_slice::<Marker>(&text).ok());
    if marked.as_ref() == Some(&wanted) {
        return true;
    }
    if !sha256_of(target).is_ok_and(|found| found == sha256) {
        return false;
    }
    // Only a saving of time: without it the digest is computed again at the next start.
    if let Err(error) = mark(target, sha256) {
        tracing::debug!(%error, "no marker written");
    }
    true
}

/// Notes that `target` has just been checked against `sha256`.
pub fn mark(target: &Path, sha256: &str) -> Result<(), Problem> {
    let path = marker_path(target);
    let meta = fs::metadata(target).map_err(|error| file_problem("read", target, &error))?;
    let marker = Marker {
        bytes: meta.len(),
        sha256: sha256.to_owned(),
        modified_ns: modified_ns(&meta),
    };
    let text = serde_json::to_vec(&marker)
        .map_err(|error| file_problem("write", &path, &std::io::Error::other(error)))?;
    fs::write(&path, text).map_err(|error| file_problem("write", &path, &error))
}

/// The SHA-256 of a file, as lower-case hex.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..read]);
    }
}

/// Bytes as lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Puts a finished file under its final name, so that a crash leaves either the old state or the whole file.
pub fn publish(partial: &Path, target: &Path) -> Result<(), Problem> {
    let sync = || -> std::io::Result<()> {
        File::open(partial)?.sync_all()?;
        fs::rename(partial, target)?;
        if let Some(folder) = target.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    sync().map_err(|error| file_problem("finish", target, &error))
}

/// Refuses when the disk under `folder` has no room for `needed` more bytes.
pub fn require_space(folder: &Path, needed: u64) -> Result<(), Problem> {
    let free = rustix::fs::statvfs(folder)
        .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
        .map_err(|error| file_problem("read the free space of", folder, &error.into()))?;
    space_problem(folder, needed, free).map_or(Ok(()), Err)
}

/// The refusal for `needed` bytes with `free` bytes left, if they do not fit.
#[must_use]
pub fn space_problem(folder: &Path, needed: u64, free: u64) -> Option<Problem> {
    let wanted = needed.saturating_add(SPARE_BYTES);
    (free < wanted).then(|| {
        Problem::new(
            Code::DiskFull,
            format!(
                "the download needs {} in {} and only {} are free",
                Bytes(needed),
                folder.display(),
                Bytes(free)
            ),
            format!(
                "free {} there, or set EDGE_DEPLOY_CACHE_DIR to a folder on a larger disk",
                Bytes(wanted - free)
            ),
        )
        .why("nothing was downloaded: it would have stopped part way")
        .with(serde_json::json!({"needed_bytes": needed, "free_bytes": free, "spare_bytes": SPARE_BYTES}))
    })
}

/// Held while one process writes a target; released when dropped or when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Waits until this process alone may write `target`.
pub fn lock(target: &Path, progress: &mut dyn Progress) -> Result<Lock, Problem> {
    let path = beside(target, ".lock");
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    let problem = |error: &std::io::Error| file_problem("lock", &path, error);
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| problem(&error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            progress.step(&format!(
                "waiting: another process is fetching {}",
                target.display()
            ));
            file.lock().map_err(|error| problem(&error))?;
        }
        Err(fs::TryLockError::Error(error)) => return Err(problem(&error)),
    }
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn only_the_right_bytes_are_verified() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        assert!(!verified(&target, 3, ABC));
        fs::write(&target, "abd").unwrap();
        assert!(!verified(&target, 3, ABC), "wrong bytes of the right length");
        fs::write(&target, "abc").unwrap();
        assert!(!verified(&target, 4, ABC), "wrong length");
        assert!(verified(&target, 3, ABC));
        assert!(marker_path(&target).exists());
        assert!(verified(&target, 3, ABC), "by the marker");
        assert!(!verified(&target, 3, &"0".repeat(64)), "another digest is wanted");
    }

    #[test]
    fn space_is_refused_with_the_numbers() {
        let folder = Path::new("/cache");
        assert!(space_problem(folder, 100, 100 + SPARE_BYTES).is_none());
        let problem = space_problem(folder, 100 << 20, 99 << 20).unwrap();
        assert_eq!(problem.code, Code::DiskFull);
        assert!(
            problem.what.contains("100.0 MiB") && problem.what.contains("99.0 MiB"),
            "{problem}"
        );
        assert!(space_problem(folder, u64::MAX, u64::MAX - 1).is_some());
        let here = tempfile::tempdir().unwrap();
        assert!(require_space(here.path(), 1).is_ok());
        assert_eq!(
            require_space(here.path(), u64::MAX / 2).unwrap_err().code,
            Code::DiskFull
        );
    }

    #[test]
    fn a_lock_keeps_the_second_writer_out() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("deep/m.gguf");
        let held = lock(&target, &mut super::super::Silent).unwrap();
        let other = File::open(beside(&target, ".lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
        drop(held);
        assert!(other.try_lock().is_ok());
    }
}
