//! Recognises what was saved in place of a model: nothing, a Git LFS pointer, a web page, another container.
//!
//! In: the first bytes of a file. Out: a refusal that names what it is, or nothing.
//! Invariant: looks at no more than the first 512 bytes.

use crate::base::{Code, Problem};

/// Refuses a file that is recognisably not a model of kind `wanted` (`GGUF` or `safetensors`).
pub(crate) fn refuse_other_kinds(bytes: &[u8], name: &str, wanted: &str) -> Result<(), Problem> {
    let head = bytes.get(..512).unwrap_or(bytes);
    let refuse = |what: String, remedy: &str| Err(Problem::new(Code::ModelNotAModel, what, remedy));
    if head.is_empty() {
        return refuse(
            format!("`{name}` is empty (0 bytes)"),
            "download the file again; the last attempt wrote nothing",
        );
    }
    if head.starts_with(b"version https://git-lfs") {
        let size = lfs_size(head).map_or(String::new(), |size| format!(" for a file of {size} bytes"));
        return refuse(
            format!(
                "`{name}` is a Git LFS pointer{size}, not the model itself ({} bytes)",
                bytes.len()
            ),
            "run `git lfs pull` in the repository's folder, or download the file itself",
        );
    }
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        return refuse(
            format!("`{name}` is an HTML page, not a model"),
            "the server answered with a web page (an error, or a login); download from the file's direct address",
        );
    }
    if text.starts_with("<?xml") {
        return refuse(
            format!("`{name}` is an XML document, not a model"),
            "the server answered with an error document; download from the file's direct address",
        );
    }
    let other = match head {
        [b'P', b'K', 3, 4, ..] => Some("a ZIP archive, as PyTorch's `.bin` and `.pt` files are"),
        [0x1f, 0x8b, ..] => Some("a gzip archive"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("a zstd archive"),
        [b'G', b'G', b'U', b'F', ..] if wanted != "GGUF" => Some("a GGUF file"),
        [b'l', b'm', b'g', b'g', ..] | [b't' | b'f', b'j' | b'm', b'g', b'g', ..] => {
            Some("a GGML file of the time before GGUF")
        }
        _ if wanted == "GGUF" && looks_like_safetensors(bytes) => Some("a safetensors file"),
        _ => None,
    };
    match other {
        Some(kind) => refuse(
            format!("`{name}` is {kind}, not a {wanted} file"),
            "pass a GGUF file, or a folder with config.json and safetensors",
        ),
        None => Ok(()),
    }
}

/// The `size` line of an LFS pointer.
fn lfs_size(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("size "))?
        .parse()
        .ok()
}

/// A plausible header length followed by the start of a JSON object.
fn looks_like_safetensors(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, _, 0, 0, 0, 0, b'{', ..])
}
