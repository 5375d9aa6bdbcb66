//! Any text as `/proc/meminfo` or a node's meminfo: numbers or nothing.
//!
//! In: bytes. Out: nothing. Invariant: a name stands on a line of the text, without surrounding blanks.

#![no_main]

use edge_deploy::probe::memory_budget::fields;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for name in fields(&text).keys() {
        assert_eq!(name.trim(), name);
        assert!(text.lines().any(|line| line.contains(name.as_str())));
    }
});
