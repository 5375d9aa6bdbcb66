//! Any bytes as a saved machine: what is accepted can be shown, stated as facts and saved again.
//!
//! In: bytes. Out: nothing. Invariant: an accepted machine has a core, a kind and an allowed CPU that is online.

#![no_main]

use edge_deploy::probe::{Hardware, facts, report};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let hardware = match Hardware::parse(bytes) {
        Ok(hardware) => hardware,
        Err(problem) => return assert!(!problem.remedy.is_empty()),
    };
    assert!(!hardware.topology.cores.is_empty() && !hardware.topology.kinds.is_empty());
    assert!(!hardware.cpus.allowed.is_empty() && hardware.cpus.allowed.is_subset(&hardware.cpus.online));
    assert!(!report::page(&hardware).is_empty());
    assert!(facts(&hardware).is_object());
    let again = serde_json::to_vec(&hardware).expect("what was read can be written");
    assert!(Hardware::parse(&again).is_ok());
});
