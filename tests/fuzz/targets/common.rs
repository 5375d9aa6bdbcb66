//! What every fuzz target is: the body of the binary's own name.
//!
//! In: bytes. Out: nothing. Invariant: what runs here is what `tests/it/fuzz.rs` replays in the normal test run.

#[path = "../bodies/mod.rs"]
mod bodies;

/// The fuzzer's own hook ends the process at any panic. Panics of the tokenizer library are caught by us, so there it
/// must not; one that nobody catches still ends the process.
fn let_caught_panics_pass() {
    if NAME == "tokenizer_json" {
        std::panic::set_hook(Box::new(|_| {}));
    }
}

const NAME: &str = env!("CARGO_BIN_NAME");

libfuzzer_sys::fuzz_target!(init: let_caught_panics_pass(), |bytes: &[u8]| bodies::run(NAME, bytes));
