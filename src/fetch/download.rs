//! One file over HTTP, resumable: `<name>.partial` and a note beside the target until it is whole.
//!
//! In: an address, a target, and what is known of the file (size, SHA-256). Out: the checked file under its name.
//! Invariant: bytes of two versions of a file are never joined (same SHA-256 wanted, or the same strong ETag).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::http::{Auth, Failure, Http, Reply, failed};
use super::{Progress, address, cache, file_problem};
use crate::base::{Code, Problem};

/// What to get and where to.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    /// From where.
    pub url: &'a str,
    /// Final name.
    pub target: &'a Path,
    /// Name in progress lines.
    pub label: &'a str,
    /// Size, where known before.
    pub bytes: Option<u64>,
    /// SHA-256 as lower-case hex, where known before.
    pub sha256: Option<&'a str>,
    /// Credentials.
    pub auth: Option<&'a Auth>,
}

/// What was got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// Size.
    pub bytes: u64,
    /// SHA-256 as lower-case hex.
    pub sha256: String,
}

/// The note beside a partial file: what it is a part of.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Note {
    url: String,
    etag: Option<String>,
    bytes: Option<u64>,
    sha256: Option<String>,
}

/// The partial file and its running digest.
struct Partial {
    file: File,
    hash: Sha256,
    len: u64,
}

/// Gets the file. The caller holds the target's lock.
pub fn download(http: &Http, want: &Want<'_>, progress: &mut dyn Progress) -> Result<Got, Problem> {
    if let Some(folder) = want.target.parent() {
        cache::make_folder(folder)?;
    }
    let mut tries = 0;
    let mut restarted = false;
    let mut best = 0;
    loop {
        match attempt(http, want, progress) {
            Ok(got) => {
                cache::publish(&cache::beside(want.target, ".partial"), want.target)?;
                remove(&note_path(want.target));
                return Ok(got);
            }
            // A digest that fails after joining two downloads deserves one clean try.
            Err(Outcome::WrongBytes {
                resumed: true,
                problem,
            }) if !restarted => {
                progress.step(&format!("{}: starting again from the beginning", want.label));
                tracing::warn!(%problem, "a resumed download did not fit together");
                restarted = true;
            }
            Err(Outcome::WrongBytes { problem, .. } | Outcome::Failed(Failure::Permanent(problem))) => {
                return Err(problem);
            }
            Err(Outcome::Failed(Failure::Transient(problem, wait))) => {
                // Only tries in a row that bring nothing count.
                let have = fs::metadata(cache::beside(want.target, ".partial")).map_or(0, |meta| meta.len());
                tries = if have > best { 1 } else { tries + 1 };
                best = best.max(have);
                if tries >= http.patience.attempts {
                    return Err(problem);
                }
                let wait = http.wait_before(tries, wait);
                progress.step(&format!(
                    "{}; trying again in {:.1} s",
                    problem.what,
                    wait.as_secs_f64()
                ));
                std::thread::sleep(wait);
            }
        }
    }
}

enum Outcome {
    Failed(Failure),
    WrongBytes { resumed: bool, problem: Problem },
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Problem> for Outcome {
    fn from(problem: Problem) -> Self {
        Self::Failed(Failure::Permanent(problem))
    }
}

fn attempt(http: &Http, want: &Want<'_>, progress: &mut dyn Progress) -> Result<Got, Outcome> {
    let (mut partial, etag) = open_partial(want)?;
    if partial.len > 0 && want.bytes == Some(partial.len) {
        // Everything had arrived before; only the check was left.
        return check(want, partial, true);
    }
    let mut headers = vec![("accept-encoding", "identity".to_owned())];
    if partial.len > 0 {
        headers.push(("range", format!("bytes={}-", partial.len)));
        if let Some(etag) = &etag {
            headers.push(("if-range", etag.clone()));
        }
    }
    let reply = match http.get(want.url, &headers, want.auth) {
        Ok(reply) => reply,
        // The partial file is longer than the whole: it belongs to another version.
        Err(Failure::Permanent(problem))
            if partial.len > 0 && super::http::status_of(&problem) == Some(416) =>
        {
            discard(want.target);
            return Err(Failure::Transient(problem, None).into());
        }
        Err(failure) => return Err(failure.into()),
    };
    let resumed = partial.len > 0 && reply.status == 206 && range_start(&reply) == Some(partial.len);
    if reply.status == 206 && !resumed {
        discard(want.target);
        return Err(Failure::Transient(
            failed(
                format!("{} answers with another range than asked for", want.label),
                "",
            ),
            None,
        )
        .into());
    }
    if partial.len > 0 && !resumed {
        progress.step(&format!(
            "{}: the server cannot resume; starting from the beginning",
            want.label
        ));
        partial = restart(want)?;
    }
    let total = total_size(&reply, &partial);
    if let (Some(said), Some(wanted)) = (total, want.bytes)
        && said != wanted
    {
        discard(want.target);
        return Err(Outcome::WrongBytes {
            resumed,
            problem: wrong_bytes(
                want,
                format!("{} is {said} B on the server; expected {wanted} B", want.label),
            ),
        });
    }
    let total = want.bytes.or(total);
    if partial.len == 0 {
        write_note(want, reply.header("etag"))?;
        if let (Some(total), Some(folder)) = (total, want.target.parent()) {
            cache::require_space(folder, total)?;
        }
    }
    receive(want, reply, &mut partial, total, progress)?;
    check(want, partial, resumed)
}

/// Reads the body to its end into the partial file.
fn receive(
    want: &Want<'_>,
    reply: Reply,
    partial: &mut Partial,
    total: Option<u64>,
    progress: &mut dyn Progress,
) -> Result<(), Outcome> {
    let path = cache::beside(want.target, ".partial");
    let mut body = reply.reader();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = body.read(&mut buffer).map_err(|error| {
            let what = match total {
                Some(total) => format!(
                    "{} broke off at {} of {total} B: {error}",
                    want.label, partial.len
                ),
                None => format!("{} broke off at {} B: {error}", want.label, partial.len),
            };
            Failure::Transient(failed(what, ""), None)
        })?;
        if read == 0 {
            break;
        }
        if total.is_some_and(|total| read as u64 > total.saturating_sub(partial.len)) {
            discard(want.target);
            return Err(Outcome::WrongBytes {
                resumed: false,
                problem: wrong_bytes(want, format!("{} is longer than it says", want.label)),
            });
        }
        partial
            .file
            .write_all(&buffer[..read])
            .map_err(|error| file_problem("write", &path, &error))?;
        partial.hash.update(&buffer[..read]);
        partial.len += read as u64;
        progress.bytes(want.label, partial.len, total);
    }
    if let Some(total) = total
        && partial.len < total
    {
        let what = format!("{} broke off at {} of {total} B", want.label, partial.len);
        return Err(Failure::Transient(failed(what, ""), None).into());
    }
    Ok(())
}

fn check(want: &Want<'_>, partial: Partial, resumed: bool) -> Result<Got, Outcome> {
    let sha256 = cache::hex(&partial.hash.finalize());
    if want.sha256.is_some_and(|wanted| wanted != sha256) {
        discard(want.target);
        return Err(Outcome::WrongBytes {
            resumed,
            problem: wrong_bytes(
                want,
                format!(
                    "{} arrived with SHA-256 {sha256}; expected {}",
                    want.label,
                    want.sha256.unwrap_or_default()
                ),
            ),
        });
    }
    Ok(Got {
        bytes: partial.len,
        sha256,
    })
}

fn wrong_bytes(want: &Want<'_>, what: String) -> Problem {
    Problem::new(
        Code::DigestMismatch,
        what,
        "run it again; if it stays so, a proxy or mirror changes files: use another source or `-m FILE`",
    )
    .why("a file with other bytes is damaged or not the one asked for; it was deleted")
    .at(crate::base::Place::of(address::without_credentials(want.url)))
}

/// The partial file with its digest so far, if it may be gone on with; else an empty one.
fn open_partial(want: &Want<'_>) -> Result<(Partial, Option<String>), Problem> {
    let path = cache::beside(want.target, ".partial");
    let note = fs::read(note_path(want.target))
        .ok()
        .and_then(|text| serde_json::from_slice::<Note>(&text).ok());
    let same = note.as_ref().is_some_and(|note| {
        let same_digest = want.sha256.is_some() && note.sha256.as_deref() == want.sha256;
        let same_version = note.url == address::without_credentials(want.url)
            && note.sha256.is_none()
            && want.sha256.is_none()
            && note.etag.is_some();
        note.bytes == want.bytes && (same_digest || same_version)
    });
    if !same || !path.exists() {
        return Ok((restart(want)?, None));
    }
    let problem = |error: &std::io::Error| file_problem("go on with", &path, error);
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .open(&path)
        .map_err(|error| problem(&error))?;
    let mut partial = Partial {
        hash: Sha256::new(),
        len: 0,
        file: file.try_clone().map_err(|error| problem(&error))?,
    };
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(|error| problem(&error))?;
        if read == 0 {
            break;
        }
        partial.hash.update(&buffer[..read]);
        partial.len += read as u64;
    }
    if want.bytes.is_some_and(|bytes| partial.len > bytes) {
        return Ok((restart(want)?, None));
    }
    Ok((partial, note.and_then(|note| note.etag)))
}

fn restart(want: &Want<'_>) -> Result<Partial, Problem> {
    let path = cache::beside(want.target, ".partial");
    let file = File::create(&path).map_err(|error| file_problem("write", &path, &error))?;
    Ok(Partial {
        file,
        hash: Sha256::new(),
        len: 0,
    })
}

fn write_note(want: &Want<'_>, etag: Option<&str>) -> Result<(), Problem> {
    let path = note_path(want.target);
    let note = Note {
        url: address::without_credentials(want.url),
        // A weak ETag does not promise the same bytes.
        etag: etag.filter(|etag| !etag.starts_with("W/")).map(str::to_owned),
        bytes: want.bytes,
        sha256: want.sha256.map(str::to_owned),
    };
    let text = serde_json::to_vec(&note)
        .map_err(|error| file_problem("write", &path, &std::io::Error::other(error)))?;
    fs::write(&path, text).map_err(|error| file_problem("write", &path, &error))
}

fn note_path(target: &Path) -> std::path::PathBuf {
    cache::beside(target, ".partial.json")
}

fn discard(target: &Path) {
    remove(&cache::beside(target, ".partial"));
    remove(&note_path(target));
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "could not be deleted");
    }
}

/// The first byte of a `Content-Range: bytes 5-9/10`.
fn range_start(reply: &Reply) -> Option<u64> {
    let range = reply.header("content-range")?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.trim().parse().ok()
}

/// Size of the whole file as the server states it.
fn total_size(reply: &Reply, partial: &Partial) -> Option<u64> {
    if reply.status == 206 {
        let range = reply.header("content-range")?;
        range.rsplit_once('/')?.1.trim().parse().ok()
    } else {
        reply
            .content_length()
            .and_then(|length| length.checked_add(partial.len))
    }
}
