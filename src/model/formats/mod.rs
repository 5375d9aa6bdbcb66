//! Readers of the containers that models come in.
//!
//! In: bytes of a file. Out: headers as typed facts with offsets; data is never touched.
//! Invariant: no count or length is believed before it is compared with what the file can hold.

pub mod gguf;
pub mod gguf_header;
pub mod gguf_split;
pub mod gguf_value;
pub mod hf_config;
pub mod safetensors;
mod sniff;

use std::path::Path;

use crate::base::{Code, Place, Problem};

/// The last component of a path, for messages.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |n| n.to_string_lossy().into_owned(),
    )
}

/// The header contradicts itself or holds impossible numbers.
pub(crate) fn malformed(name: &str, what: impl std::fmt::Display) -> Problem {
    Problem::new(
        Code::ModelMalformed,
        format!("`{name}` is malformed: {what}"),
        "download or convert the model again; if that does not help, report it to whoever made the file",
    )
}

/// The file ends before its header says it should.
pub(crate) fn truncated(name: &str, what: impl std::fmt::Display) -> Problem {
    Problem::new(
        Code::ModelTruncated,
        format!("`{name}` is truncated: {what}"),
        "download the file again and compare its size with the one on the model's page",
    )
    .why("part of the weights is missing, as after an interrupted download")
}

/// A valid file of a kind we do not serve.
pub(crate) fn unsupported(name: &str, what: impl std::fmt::Display, remedy: impl Into<String>) -> Problem {
    Problem::new(
        Code::ModelUnsupported,
        format!("`{name}` is not supported: {what}"),
        remedy,
    )
}

/// A file that cannot be opened, read or mapped.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let place = Place::of(path.display().to_string());
    if error.kind() == std::io::ErrorKind::NotFound {
        return Problem::new(
            Code::ModelNotFound,
            format!("`{}` does not exist", path.display()),
            "check the path; a model is a GGUF file or a folder with config.json and safetensors",
        )
        .at(place);
    }
    Problem::new(
        Code::FileAccess,
        format!("`{}` cannot be read: {error}", path.display()),
        "check that it is a regular file and that this user may read it",
    )
    .at(place)
}

/// Lists names in a message, cut after a few: `a, b, c and 7 more`.
pub(crate) fn listing(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}
