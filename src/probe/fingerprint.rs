//! The fingerprint: what must match for a calibration to be reused.
//!
//! In: [`Hardware`]. Out: 16 hex digits, and the components in readable form.
//! Invariant: the same machine started again, or another of the same make with the same limits, has the same
//! fingerprint; nothing that names a machine or a person goes in.

use sha2::{Digest, Sha256};

use super::hardware::{Hardware, Topology};
use crate::base::CpuSet;

/// The components, in order, each with what it is:
///
/// - `class`, `arch`, `model`: another processor runs at another speed.
/// - `kinds`: for each kind of core the allowed cores and threads, its ISA and its caches: kernels and thread counts
///   were measured on exactly these.
/// - `nodes`, `l3`: allowed cores per NUMA node and per level 3 cache: memory bandwidth and pinning depend on them.
/// - `quota`: CPU time in hundredths of a CPU: a lower quota throttles.
/// - `memory`: total or limit, whichever is less, as a half power of two: kernels differ by a few MiB in what they
///   keep for themselves, so the exact number must not matter.
///
/// Not in it: exact RAM, host names, serial numbers, kernel ids of CPUs, clocks, temperature, free memory, GPUs
/// (a calibration measures this engine on the processor).
#[must_use]
pub fn components(hardware: &Hardware) -> Vec<(&'static str, String)> {
    let topology = &hardware.topology;
    let allowed = &hardware.cpus.allowed;
    let kinds: Vec<String> = topology
        .kinds
        .iter()
        .map(|kind| {
            let cpus = kind.cpus.intersection(allowed);
            format!(
                "{} {}c{}t l2[{}] {}",
                kind.name,
                topology.cores_within(&cpus).len(),
                cpus.len(),
                sizes(topology, 2, &cpus),
                kind.isa.join("+")
            )
        })
        .collect();
    let nodes: Vec<String> = topology
        .nodes
        .iter()
        .filter(|node| node.allowed)
        .map(|node| {
            topology
                .cores_within(&node.cpus.intersection(allowed))
                .len()
                .to_string()
        })
        .collect();
    vec![
        ("class", hardware.class.as_str().to_owned()),
        ("arch", hardware.arch.clone()),
        ("model", hardware.cpu_model.clone().unwrap_or_default()),
        ("kinds", kinds.join("; ")),
        ("nodes", nodes.join(",")),
        ("l3", sizes(topology, 3, allowed)),
        (
            "quota",
            hardware
                .quota
                .cpus
                .map_or_else(|| "none".to_owned(), |cpus| format!("{cpus:.2}")),
        ),
        (
            "memory",
            bucket(
                hardware
                    .memory
                    .limit_bytes
                    .unwrap_or(hardware.memory.total_bytes)
                    .0,
            ),
        ),
    ]
}

/// The fingerprint of a machine.
#[must_use]
pub fn fingerprint(hardware: &Hardware) -> String {
    let mut digest = Sha256::new();
    for (name, value) in components(hardware) {
        digest.update(name.as_bytes());
        digest.update([0]);
        digest.update(value.as_bytes());
        digest.update([0]);
    }
    let mut head = [0u8; 8];
    head.copy_from_slice(&digest.finalize()[..8]);
    format!("{:016x}", u64::from_be_bytes(head))
}

/// `count x size / sharing CPUs` of the caches of a level that `cpus` use, in a fixed order.
fn sizes(topology: &Topology, level: u8, cpus: &CpuSet) -> String {
    let mut found: Vec<(u64, usize)> = topology
        .caches
        .iter()
        .filter(|cache| cache.level == level)
        .map(|cache| {
            (
                cache.size_bytes.map_or(0, |bytes| bytes.0),
                cache.cpus.intersection(cpus).len(),
            )
        })
        .filter(|(_, sharing)| *sharing > 0)
        .collect();
    found.sort_unstable();
    let mut text: Vec<String> = Vec::new();
    for group in found.chunk_by(|a, b| a == b) {
        text.push(format!("{}x{}/{}", group.len(), group[0].0, group[0].1));
    }
    text.join(",")
}

/// Half powers of two of a GiB, so that usual sizes (8, 12, 16, 24, 32 GiB) less what a kernel reserves fall in the
/// middle of a bucket.
fn bucket(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1u32 << 30);
    format!("2^({}/2)GiB", (gib.max(1e-3).log2() * 2.0).round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_sizes_and_their_reserves_share_a_bucket() {
        for gib in [4u64, 8, 12, 16, 24, 32, 48, 64, 96, 128] {
            let full = bucket(gib << 30);
            for percent in [94, 97, 99] {
                assert_eq!(
                    bucket((gib << 30) * percent / 100),
                    full,
                    "{gib} GiB at {percent} %"
                );
            }
        }
        assert_ne!(bucket(8 << 30), bucket(12 << 30));
        assert_eq!(bucket(0), bucket(1));
    }
}
