//! Bodies of the fuzz targets, shared by the fuzzer and by the test that replays the kept inputs.
//!
//! In: any bytes. Out: nothing. Invariant: a body fails only by panicking: on a broken promise of the code it calls, or
//! on a panic inside it. Hangs and memory are for the fuzzer's own limits.

mod documents;
mod models;
mod probing;
mod texts;
mod web;
mod words;

use edge_deploy::base::Problem;

/// One target's body.
type Body = fn(&[u8]);

/// Every target, by the name of its binary.
pub const ALL: &[(&str, Body)] = &[
    ("documents", documents::saved),
    ("fetch", web::fetched),
    ("gguf", models::gguf),
    ("gguf_model", models::gguf_model),
    ("machine", probing::machine),
    ("model_folder", models::model_folder),
    ("probe_text", probing::text),
    ("request", web::request),
    ("safetensors", models::safetensors),
    ("settings", words::settings),
    ("template", texts::template),
    ("tokenizer_json", texts::tokenizer_json),
    ("yaml", documents::yaml),
];

/// Runs one body.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, body) = ALL
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("there is no fuzz target {name}"));
    body(bytes);
}

/// A refusal says what was seen and what to do.
fn said(problem: &Problem) {
    assert!(
        !problem.what.is_empty() && !problem.remedy.is_empty(),
        "{problem}"
    );
}

/// The first byte as a choice among `count`, and the rest. Digits choose by their value, so that kept inputs can be
/// written by hand.
fn choice(bytes: &[u8], count: u8) -> (u8, &[u8]) {
    match bytes.split_first() {
        Some((first, rest)) => (first.wrapping_sub(b'0') % count, rest),
        None => (0, bytes),
    }
}

/// A folder of its own for one run, removed at its end.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}
