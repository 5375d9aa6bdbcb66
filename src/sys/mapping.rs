//! Read-only mappings of model files.
//!
//! In: a path. Out: its bytes, paged in on first touch, and a way to give pages back.
//! Invariant: the mapping is shared and never written. If another process cuts the file short while it is mapped,
//! touching the lost pages ends this process with SIGBUS; no check made beforehand can rule that out, so model files
//! are to be replaced (written beside and renamed), never rewritten in place.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// A file mapped read-only.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    len: usize,
}

impl Mapping {
    /// Maps the regular file at `path`. Anything else (folder, pipe, device) is refused before it is opened, since
    /// opening a pipe would wait for a writer.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let len = usize::try_from(size)
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "larger than the address space"))?;
        // SAFETY: the mapping is read-only and private to `Mapping`, which only lends `&[u8]`. The bytes may change
        // if the file is written meanwhile; they are only ever read as plain numbers, and every length read from
        // them is checked before use. A file cut short raises SIGBUS, as the module head says.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map, len })
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.get(..self.len).unwrap_or(&[])
    }

    /// Size of the file when it was mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the resident pages of `range` back to the system. Reading them again is allowed and pages them in
    /// anew. A range outside the file is cut to it.
    pub fn release(&self, range: Range<usize>) -> io::Result<()> {
        let start = range.start.min(self.len);
        let end = range.end.min(self.len);
        if start >= end {
            return Ok(());
        }
        // SAFETY: MADV_DONTNEED on a shared, read-only file mapping loses nothing: later reads come from the file
        // again, with the same bytes. The range lies inside the mapping.
        unsafe {
            self.map
                .unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_after_release() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, vec![7u8; 20_000]).unwrap();
        let mapping = Mapping::open(&path).unwrap();
        assert!(mapping.bytes().iter().all(|&b| b == 7));
        mapping.release(5_000..usize::MAX).unwrap();
        mapping.release(30_000..40_000).unwrap();
        assert!(mapping.bytes().iter().all(|&b| b == 7));
        assert_eq!(mapping.len(), 20_000);
    }

    #[test]
    fn folders_and_missing_files_are_refused_and_empty_files_map() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            Mapping::open(folder.path()).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let path = folder.path().join("none");
        assert_eq!(Mapping::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"").unwrap();
        assert!(Mapping::open(&path).unwrap().is_empty());
    }
}
