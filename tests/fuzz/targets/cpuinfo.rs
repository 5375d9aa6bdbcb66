//! Any text as `/proc/cpuinfo`: CPU numbers stay in range, and features come only from our own names.
//!
//! In: bytes. Out: nothing. Invariant: what all CPUs have, each of them has.

#![no_main]

use edge_deploy::base::CpuSet;
use edge_deploy::probe::cpuinfo::CpuInfo;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let info = CpuInfo::parse(&String::from_utf8_lossy(bytes));
    assert!(info.cpus.keys().all(|&cpu| cpu <= CpuSet::MAX_ID));
    for &cpu in info.cpus.keys() {
        if let Some(model) = info.field(cpu, "model name") {
            assert!(!model.contains('\n'));
        }
    }
    let _ = info.model_name();
    let _ = info.arch();
});
