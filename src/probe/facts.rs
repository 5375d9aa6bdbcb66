//! The `facts` object of `probe --json`: flat, stable names for scripts and for comparison with other tools.
//!
//! In: [`Hardware`]. Out: JSON. CPU sets are text such as `0-3,8`, memory is in bytes, unknown is `null`.
//! Invariant: `cores` and `logical_cpus_online` count what is online; packages, nodes and caches count what is
//! online and allowed; the `*_allowed` names are always present.

use serde_json::{Map, Value, json};

use super::hardware::{Accelerator, Hardware};
use super::topology::restrict;
use crate::base::{Bytes, CpuSet};

/// The object.
#[must_use]
pub fn facts(hardware: &Hardware) -> Value {
    let mut all = Map::new();
    for part in [
        cpus(hardware),
        shape(hardware),
        kinds(hardware),
        limits(hardware),
        rest(hardware),
    ] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}

fn cpus(hardware: &Hardware) -> Value {
    let cpus = &hardware.cpus;
    let hidden = cpus.present.difference(&cpus.allowed);
    json!({
        "logical_cpus_online": cpus.online.len(),
        "logical_cpus_allowed": cpus.allowed.len(),
        "online_cpus": cpus.online,
        "allowed_cpus": cpus.allowed,
        "possible_cpus": cpus.possible,
        "isolated_cpus": cpus.isolated,
        "hidden_cpus": hidden,
        "hidden_cpus_count": hidden.len(),
    })
}

fn shape(hardware: &Hardware) -> Value {
    let topology = &hardware.topology;
    let allowed = &hardware.cpus.allowed;
    // As lstopo: a package also counts if only its memory is ours.
    let has_memory_of_ours = |package: &CpuSet| {
        topology
            .nodes
            .iter()
            .any(|node| node.allowed && node.cpus.iter().any(|cpu| package.contains(cpu)))
    };
    let package_count = topology
        .packages
        .iter()
        .filter(|set| !set.intersection(allowed).is_empty() || has_memory_of_ours(set))
        .count();
    let packages = restrict(&topology.packages, allowed);
    let dies = restrict(&topology.dies, allowed);
    // A die that is a whole package is no level of its own.
    let dies = if dies.iter().all(|die| packages.contains(die)) {
        0
    } else {
        dies.len()
    };
    let nodes: Vec<_> = topology.nodes.iter().filter(|node| node.allowed).collect();
    let with_memory: Vec<_> = nodes
        .iter()
        .filter(|node| node.total_bytes.is_none_or(|bytes| bytes.0 > 0))
        .collect();
    let mut node_memory: Map<String, Value> = with_memory
        .iter()
        .map(|node| (node.id.to_string(), json!(node.total_bytes)))
        .collect();
    if topology.nodes.is_empty() {
        // A kernel without NUMA has one node that is the whole machine.
        node_memory.insert("0".to_owned(), json!(known(hardware.memory.total_bytes)));
    }
    let node_cpus: Map<String, Value> = nodes
        .iter()
        .map(|node| (node.id.to_string(), json!(node.cpus)))
        .collect();
    json!({
        "cores": topology.cores.len(),
        "cores_allowed": topology.cores_within(allowed).len(),
        "smt": topology.threads_per_core(&hardware.cpus.online),
        "packages": package_count,
        "dies": dies,
        "l2_count": topology.cache_groups(2, allowed).len(),
        "l3_count": topology.cache_groups(3, allowed).len(),
        "numa_nodes": if topology.nodes.is_empty() { 1 } else { with_memory.len() },
        "node_cpus": node_cpus,
        "numa_memory_bytes": node_memory,
        "cpu_only_nodes": ids(hardware, |cpus, memory| cpus && !memory),
        "memory_only_nodes": ids(hardware, |cpus, memory| !cpus && memory),
    })
}

fn ids(hardware: &Hardware, wanted: fn(bool, bool) -> bool) -> CpuSet {
    hardware
        .topology
        .nodes
        .iter()
        .filter(|node| {
            wanted(
                !node.cpus.is_empty(),
                node.total_bytes.is_none_or(|bytes| bytes.0 > 0),
            )
        })
        .map(|node| node.id)
        .collect()
}

fn kinds(hardware: &Hardware) -> Value {
    let topology = &hardware.topology;
    // Rank 0 is the least capable kind.
    let kinds: Vec<Value> = topology
        .kinds
        .iter()
        .rev()
        .enumerate()
        .map(|(rank, kind)| {
            json!({
                "rank": rank,
                "name": kind.name,
                "cpus": kind.cpus,
                "count": kind.cpus.len(),
                "cores": topology.cores_within(&kind.cpus).len(),
                "isa": kind.isa,
                "max_khz": kind.max_khz,
                "evidence": kind.evidence,
            })
        })
        .collect();
    let mut value = json!({
        "cpu_kinds": kinds,
        "kind_confidence": topology.kinds_confidence,
    });
    for (name, prefix) in [("P", "p"), ("E", "e"), ("LP-E", "lp_e")] {
        if let Some(kind) = topology.kinds.iter().find(|kind| kind.name == name) {
            value[format!("{prefix}_cpus")] = json!(kind.cpus);
            value[format!("{prefix}_cores")] = json!(topology.cores_within(&kind.cpus).len());
        }
    }
    value
}

fn limits(hardware: &Hardware) -> Value {
    let memory = &hardware.memory;
    json!({
        "cpu_quota": hardware.quota.cpus,
        "cpu_quota_source": hardware.quota.source,
        "mem_total": known(memory.total_bytes),
        "mem_available": known(memory.total_bytes).map(|_| memory.available_bytes),
        "mem_available_source": memory.available_source,
        "mem_limit": memory.limit_bytes,
        "mem_limit_source": memory.limit_source,
        "mem_soft_limit": memory.soft_limit_bytes,
        "allowed_mems": memory.allowed_nodes,
        "thp": memory.thp,
        "free_huge_pages": memory.free_huge_pages,
        "swap_total": memory.swap_total_bytes,
    })
}

fn rest(hardware: &Hardware) -> Value {
    let of_kind = |prefix: &str| -> Vec<&Accelerator> {
        hardware
            .accelerators
            .iter()
            .filter(|a| a.kind.starts_with(prefix))
            .collect()
    };
    let warnings: Vec<String> = hardware
        .warnings
        .iter()
        .map(|w| {
            [w.what.as_str(), w.why.as_str(), w.remedy.as_str()]
                .join(". ")
                .replace(". . ", ". ")
        })
        .collect();
    json!({
        "arch": hardware.arch,
        "cpu_model": hardware.cpu_model,
        "isa": hardware.isa,
        "sve_bytes": hardware.sve_bytes,
        "amx_permission": hardware.amx_permission,
        "environment": hardware.environment,
        "gpu": of_kind("gpu"),
        "npu": of_kind("npu"),
        "nvidia_smi_path": hardware.nvidia_smi_path,
        "governor": hardware.thermal.governor,
        "nr_throttled": hardware.thermal.nr_throttled,
        "class": hardware.class,
        "fingerprint": hardware.fingerprint,
        "warnings": warnings,
    })
}

/// Zero bytes of memory means that the amount is unknown.
fn known(bytes: Bytes) -> Option<Bytes> {
    (bytes.0 > 0).then_some(bytes)
}
