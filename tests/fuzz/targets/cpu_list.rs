//! Any text as a CPU list or a CPU mask: a set that writes and reads back the same, or nothing.
//!
//! In: bytes. Out: nothing. Invariant: no id above the largest; the text form is a fixed point.

#![no_main]

use edge_deploy::base::CpuSet;
use edge_deploy::probe::root::{parse_cpu_list, parse_cpu_mask};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for set in [parse_cpu_list(&text), parse_cpu_mask(&text)]
        .into_iter()
        .flatten()
    {
        assert!(set.last().is_none_or(|last| last <= CpuSet::MAX_ID));
        assert_eq!(parse_cpu_list(&set.to_string()).as_ref(), Some(&set));
    }
});
