//! Our own topology reader: `/sys/devices/system/{cpu,node}`, always built, live or captured.
//!
//! In: a [`Root`] and the online CPUs. Out: [`Topology`] without kinds.
//! Invariant: cores are sibling masks, never `core_id` (it repeats on several machines) and never CPU 0's shape.

use std::collections::BTreeMap;

use super::hardware::{Cache, Core, Cpus, NumaNode, Topology};
use super::memory_budget::fields;
use super::root::Root;
use super::topology::{TopologySource, agree};
use crate::base::{Bytes, Code, CpuSet, Problem};

const CPU_DIR: &str = "/sys/devices/system/cpu";
const NODE_DIR: &str = "/sys/devices/system/node";

/// Reads sysfs.
#[derive(Debug)]
pub struct SysfsReader<'a> {
    root: &'a Root,
    cpus: &'a Cpus,
    allowed_nodes: Option<CpuSet>,
}

impl<'a> SysfsReader<'a> {
    /// A reader for these CPUs; `allowed_nodes` is `None` where nothing restricts memory nodes.
    #[must_use]
    pub fn new(root: &'a Root, cpus: &'a Cpus, allowed_nodes: Option<CpuSet>) -> Self {
        Self {
            root,
            cpus,
            allowed_nodes,
        }
    }

    /// The topology and what in sysfs contradicts itself.
    #[must_use]
    pub fn read(&self) -> (Topology, Vec<Problem>) {
        let mut disputes = Vec::new();
        let online = &self.cpus.online;
        let mut threads = BTreeMap::new();
        let mut core_ids: BTreeMap<u32, i64> = BTreeMap::new();
        let mut packages = BTreeMap::new();
        let mut dies = BTreeMap::new();
        let mut caches: BTreeMap<u8, BTreeMap<u32, (CpuSet, Option<Bytes>)>> = BTreeMap::new();
        // CPUs without a folder state nothing; an empty list may be a folder that cannot be listed (Android).
        let folders = self.root.numbered(CPU_DIR, "cpu");
        for cpu in online
            .iter()
            .filter(|&cpu| folders.is_empty() || folders.contains(cpu))
        {
            let folder = format!("{CPU_DIR}/cpu{cpu}/topology");
            // The newer name first; the older one means the same set.
            let put = |into: &mut BTreeMap<u32, CpuSet>, names: [&str; 2]| {
                let found = names.iter().find_map(|name| {
                    let file = format!("{folder}/{name}");
                    self.root.cpu_mask_or_list(&file, &format!("{file}_list"))
                });
                if let Some(set) = found {
                    into.insert(cpu, set);
                }
            };
            put(&mut threads, ["core_cpus", "thread_siblings"]);
            put(&mut packages, ["package_cpus", "core_siblings"]);
            // Kernels without die information write -1 and one die per CPU.
            if self
                .root
                .number::<i64>(&format!("{folder}/die_id"))
                .is_none_or(|id| id >= 0)
            {
                put(&mut dies, ["die_cpus", "die_cpus"]);
            }
            if let Some(id) = self.root.number::<i64>(&format!("{folder}/core_id")) {
                core_ids.insert(cpu, id);
            }
            for (level, mut shared, size) in self.caches_of(cpu) {
                // Old Itanium kernels write an empty mask for a cache of the core.
                if shared.is_empty() {
                    shared = threads.get(&cpu).cloned().unwrap_or_default();
                }
                caches
                    .entry(level)
                    .or_default()
                    .entry(cpu)
                    .or_insert((shared, size));
            }
        }
        let mut checked = |what: &str, stated: &BTreeMap<u32, CpuSet>| {
            let sharing = agree(stated, online);
            if !sharing.disputed.is_empty() {
                disputes.push(dispute(what, &sharing.disputed));
            }
            sharing.groups
        };
        let mut core_sets: Vec<CpuSet> = checked("cores", &threads)
            .iter()
            .flat_map(|set| split_by_id(set, &core_ids))
            .collect();
        let packages = checked("packages", &packages);
        let dies = checked("dies", &dies);
        let caches = caches
            .into_iter()
            .flat_map(|(level, stated)| {
                let sets = stated.iter().map(|(&cpu, (set, _))| (cpu, set.clone())).collect();
                let groups = checked(&format!("level {level} caches"), &sets);
                groups.into_iter().map(move |cpus| {
                    let size_bytes = cpus.iter().find_map(|cpu| stated.get(&cpu)?.1);
                    Cache {
                        level,
                        size_bytes,
                        cpus,
                    }
                })
            })
            .collect();
        // A CPU without (usable) sibling masks is a core of its own: 0 cores is never an answer.
        let grouped = core_sets.iter().fold(CpuSet::new(), |all, set| all.union(set));
        core_sets.extend(
            online
                .difference(&grouped)
                .iter()
                .map(|cpu| CpuSet::range(cpu, cpu)),
        );
        core_sets.sort_by_key(CpuSet::first);
        let nodes = self.nodes(&mut disputes);
        let topology = Topology {
            smt: core_sets.iter().any(|set| set.len() > 1),
            cores: core_sets
                .into_iter()
                .map(|cpus| Core {
                    node: cpus.first().and_then(|cpu| node_of(&nodes, cpu)),
                    package: cpus
                        .first()
                        .and_then(|cpu| packages.iter().position(|set| set.contains(cpu))),
                    kind: 0,
                    cpus,
                })
                .collect(),
            packages,
            dies,
            caches,
            nodes,
            ..Topology::default()
        };
        (topology, disputes)
    }

    /// Level, sharing CPUs and size of the unified or data caches of level 2 and 3.
    fn caches_of(&self, cpu: u32) -> Vec<(u8, CpuSet, Option<Bytes>)> {
        let folder = format!("{CPU_DIR}/cpu{cpu}/cache");
        let mut found = Vec::new();
        for index in self.root.numbered(&folder, "index").iter().take(16) {
            let file = |name: &str| format!("{folder}/index{index}/{name}");
            let level = self
                .root
                .number::<u8>(&file("level"))
                .filter(|level| (2..=3).contains(level));
            let Some(level) = level else { continue };
            if self
                .root
                .line(&file("type"))
                .is_some_and(|kind| kind == "Instruction")
            {
                continue;
            }
            let Some(shared) = self
                .root
                .cpu_mask_or_list(&file("shared_cpu_map"), &file("shared_cpu_list"))
            else {
                continue;
            };
            let size = self
                .root
                .line(&file("size"))
                .and_then(|text| text.parse::<Bytes>().ok());
            found.push((level, shared, size.filter(|size| size.0 > 0)));
        }
        found
    }

    fn nodes(&self, disputes: &mut Vec<Problem>) -> Vec<NumaNode> {
        let mut ids = self.root.numbered(NODE_DIR, "node");
        if let Some(online) = self
            .root
            .cpu_list(&format!("{NODE_DIR}/online"))
            .filter(|set| !set.is_empty())
        {
            ids = ids.intersection(&online);
        }
        let mut nodes: Vec<NumaNode> = Vec::new();
        for id in ids.iter() {
            let folder = format!("{NODE_DIR}/node{id}");
            let cpus = self
                .root
                .cpu_mask_or_list(&format!("{folder}/cpumap"), &format!("{folder}/cpulist"))
                .unwrap_or_default()
                .intersection(&self.cpus.online);
            // Some firmware lists every CPU on every node, which says nothing about locality; nodes may nest.
            let contradicts = |other: &NumaNode| {
                let both = cpus.intersection(&other.cpus);
                !both.is_empty() && (cpus == other.cpus || both != cpus && both != other.cpus)
            };
            if nodes.iter().any(contradicts) {
                disputes.push(dispute(&format!("NUMA node {id}"), &cpus));
                continue;
            }
            let info = fields(&self.root.read(&format!("{folder}/meminfo")).unwrap_or_default());
            let bytes = |name: &str| info.get(name).filter(|&&kib| kib < 1 << 50).map(|kib| kib * 1024);
            nodes.push(NumaNode {
                id,
                cpus,
                total_bytes: bytes("MemTotal").map(Bytes),
                available_bytes: bytes("MemFree").map(|free| {
                    let cache = ["Active(file)", "Inactive(file)", "SReclaimable"];
                    let cache = cache.iter().filter_map(|name| bytes(name));
                    Bytes(cache.fold(free, u64::saturating_add))
                }),
                allowed: self
                    .allowed_nodes
                    .as_ref()
                    .is_none_or(|allowed| allowed.contains(id)),
            });
        }
        nodes
    }
}

impl TopologySource for SysfsReader<'_> {
    fn name(&self) -> &'static str {
        "sysfs"
    }

    fn topology(&self) -> Result<Topology, Problem> {
        Ok(self.read().0)
    }
}

/// AMD's module chips list two cores as siblings, with different core numbers. Numbers only ever split a set,
/// because they repeat between clusters.
fn split_by_id(set: &CpuSet, ids: &BTreeMap<u32, i64>) -> Vec<CpuSet> {
    let mut parts: BTreeMap<Option<i64>, CpuSet> = BTreeMap::new();
    for cpu in set.iter() {
        parts.entry(ids.get(&cpu).copied()).or_default().insert(cpu);
    }
    parts.into_values().collect()
}

/// The smallest node with this CPU.
fn node_of(nodes: &[NumaNode], cpu: u32) -> Option<u32> {
    nodes
        .iter()
        .filter(|node| node.cpus.contains(cpu))
        .min_by_key(|node| node.cpus.len())
        .map(|node| node.id)
}

fn dispute(what: &str, cpus: &CpuSet) -> Problem {
    Problem::warning(
        Code::HardwareUnsure,
        format!(
            "the kernel's {what} contradict each other at CPUs {cpus}; the contradicting ones are ignored"
        ),
        "a firmware or hypervisor update may correct it; `explain` shows what the plan assumed",
    )
    .why("which cores share a cache or a node is not certain")
}
