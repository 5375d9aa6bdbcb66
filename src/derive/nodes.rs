//! NUMA: whether the workers stay on one node.
//!
//! In: nodes with their CPUs and memory, the workers wanted, the memory needed. Out: the node, or none with a reason.
//! Invariant: keyed on nodes, never on packages, so a virtual machine with a socket for each CPU is one machine.

use crate::base::{Bytes, CpuSet};
use crate::probe::Hardware;
use crate::probe::hardware::NumaNode;

/// Cores that a node needs to serve alone: with fewer, what the other nodes' cores and memory channels add is worth
/// more than what remote memory costs.
const NODE_IS_ENOUGH: usize = 8;

/// How many workers a node has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Somebody set the count: all of them, one on each core.
    Exactly(usize),
    /// Derived for the whole machine: fewer will do.
    Derived(usize),
}

/// The node to stay on, or why there is none to choose.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice<'a> {
    /// The machine has one node, or shows none.
    Single,
    /// Stay here.
    Node(&'a NumaNode, String),
    /// Use several nodes.
    All(String),
}

/// Chooses a node for the workers wanted, which need `peak` bytes beside `kept`, the share of memory that stays free.
#[must_use]
pub fn choose<'a>(
    hardware: &'a Hardware,
    usable: &CpuSet,
    wanted: Wanted,
    peak: Bytes,
    kept: f64,
) -> Choice<'a> {
    let needed = |free: Bytes| Bytes(peak.0.saturating_add(reserve(free, kept).0));
    let mut candidates: Vec<(usize, &NumaNode)> = hardware
        .topology
        .nodes
        .iter()
        .filter(|node| node.allowed)
        .map(|node| (cores_on(hardware, &node.cpus.intersection(usable)), node))
        .filter(|(cores, _)| *cores > 0)
        .collect();
    if candidates.len() < 2 {
        return Choice::Single;
    }
    candidates.sort_by_key(|(cores, node)| {
        (
            std::cmp::Reverse(*cores),
            std::cmp::Reverse(node.available_bytes),
            node.id,
        )
    });
    let wanted = match wanted {
        Wanted::Exactly(threads) => threads,
        Wanted::Derived(threads) => threads.min(NODE_IS_ENOUGH),
    };
    let most = candidates[0].0;
    if most < wanted {
        return Choice::All(format!(
            "no NUMA node has {wanted} usable cores (most: {most}), so the workers spread over {} nodes",
            candidates.len()
        ));
    }
    let fitting = candidates
        .iter()
        .filter(|(cores, _)| *cores >= wanted)
        .find(|(_, node)| node.available_bytes.is_none_or(|free| free >= needed(free)));
    match fitting {
        Some((cores, node)) => Choice::Node(
            node,
            match node.available_bytes {
                Some(free) => format!(
                    "NUMA node {} has {cores} usable cores and {free} free, enough for the {} needed; memory of other nodes is slower",
                    node.id,
                    needed(free)
                ),
                None => format!(
                    "NUMA node {} has {cores} usable cores; how much of its memory is free is not known",
                    node.id
                ),
            },
        ),
        None => Choice::All(format!(
            "no NUMA node with {wanted} usable cores has the {peak} needed and its share of what stays free, so the workers and the memory spread over {} nodes",
            candidates.len()
        )),
    }
}

/// What stays free of a node: its share.
#[must_use]
pub fn reserve(free: Bytes, kept: f64) -> Bytes {
    Bytes((free.0 as f64 * kept.clamp(0.0, 1.0)).ceil() as u64)
}

/// Physical cores with a CPU in the set; a CPU without a known core counts as one.
fn cores_on(hardware: &Hardware, cpus: &CpuSet) -> usize {
    let mut known = CpuSet::new();
    let mut cores = 0;
    for core in &hardware.topology.cores {
        if !core.cpus.intersection(cpus).is_empty() {
            cores += 1;
            known = known.union(&core.cpus);
        }
    }
    cores + cpus.difference(&known).len()
}
