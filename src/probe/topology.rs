//! The neutral topology and who can read one.
//!
//! In: a source (sysfs, hwloc, CPUID). Out: [`Topology`] without kinds of cores; `kinds.rs` adds those.
//! Invariant: sets of CPUs that contradict each other are dropped and named, never half used.

use std::collections::BTreeMap;

pub use super::hardware::{Cache, Core, NumaNode, Topology};
use crate::base::{CpuSet, Problem};

/// A reader of cores, caches, packages and nodes.
pub trait TopologySource {
    /// `sysfs`, `hwloc` or `cpuid`.
    fn name(&self) -> &'static str;

    /// Reads the machine.
    ///
    /// # Errors
    /// A problem where this source cannot be used at all; single unknown facts are left out instead.
    fn topology(&self) -> Result<Topology, Problem>;
}

/// What the CPUs say they share, made consistent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Sets all of whose members agree, by lowest CPU.
    pub groups: Vec<CpuSet>,
    /// CPUs whose statement another CPU contradicts.
    pub disputed: CpuSet,
}

/// Groups CPUs by the sets they state. A set counts if no member states another one; a CPU that states nothing
/// does not object. A statement without the CPU itself (old Itanium kernels write empty masks) means the CPU alone.
#[must_use]
pub fn agree(stated: &BTreeMap<u32, CpuSet>, online: &CpuSet) -> Sharing {
    let clean: BTreeMap<u32, CpuSet> = stated
        .iter()
        .filter(|(cpu, _)| online.contains(**cpu))
        .map(|(&cpu, set)| {
            let set = set.intersection(online);
            (
                cpu,
                if set.contains(cpu) {
                    set
                } else {
                    CpuSet::range(cpu, cpu)
                },
            )
        })
        .collect();
    let mut result = Sharing::default();
    let mut done = CpuSet::new();
    for (&cpu, set) in &clean {
        if done.contains(cpu) {
            continue;
        }
        let agreed = set
            .iter()
            .all(|member| clean.get(&member).is_none_or(|theirs| theirs == set));
        // Members that state nothing could still be claimed by two sets.
        if agreed && set.intersection(&done).is_empty() {
            done = done.union(set);
            result.groups.push(set.clone());
        } else {
            result.disputed.insert(cpu);
        }
    }
    result.groups.sort_by_key(CpuSet::first);
    result
}

/// Sets restricted to `cpus`, empty ones dropped: what of them can be used.
#[must_use]
pub fn restrict(sets: &[CpuSet], cpus: &CpuSet) -> Vec<CpuSet> {
    sets.iter()
        .map(|set| set.intersection(cpus))
        .filter(|set| !set.is_empty())
        .collect()
}

impl Topology {
    /// Caches of `level` that some of `cpus` use, each restricted to them.
    #[must_use]
    pub fn cache_groups(&self, level: u8, cpus: &CpuSet) -> Vec<CpuSet> {
        let sets: Vec<CpuSet> = self
            .caches
            .iter()
            .filter(|cache| cache.level == level)
            .map(|cache| cache.cpus.clone())
            .collect();
        restrict(&sets, cpus)
    }

    /// Cores with at least one of `cpus`.
    #[must_use]
    pub fn cores_within(&self, cpus: &CpuSet) -> Vec<&Core> {
        self.cores
            .iter()
            .filter(|core| core.cpus.iter().any(|cpu| cpus.contains(cpu)))
            .collect()
    }

    /// Most CPUs on one core that `cpus` holds; 1 where there is no SMT.
    #[must_use]
    pub fn threads_per_core(&self, cpus: &CpuSet) -> usize {
        self.cores
            .iter()
            .map(|core| core.cpus.intersection(cpus).len())
            .max()
            .unwrap_or(0)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(sets: &[(u32, &str)]) -> BTreeMap<u32, CpuSet> {
        sets.iter()
            .map(|&(cpu, set)| (cpu, set.parse().unwrap()))
            .collect()
    }

    #[test]
    fn unanimous_sets_count_and_contradictions_do_not() {
        let online = CpuSet::range(0, 5);
        let fine = agree(&stated(&[(0, "0,3"), (3, "0,3"), (1, "1"), (2, "2")]), &online);
        assert_eq!(fine.groups.len(), 3);
        assert!(fine.disputed.is_empty());
        // CPU 2 claims 0 and 1, which say otherwise.
        let odd = agree(&stated(&[(0, "0-1"), (1, "0-1"), (2, "0-2")]), &online);
        assert_eq!((odd.groups.len(), odd.disputed.to_string().as_str()), (1, "2"));
        // Offline members vanish, empty masks mean the CPU alone, silent CPUs do not object.
        let sparse = agree(&stated(&[(0, "0-9"), (4, "")]), &CpuSet::range(0, 4));
        assert_eq!(sparse.groups.len(), 1);
        let alone = agree(&stated(&[(4, "")]), &online);
        assert_eq!(alone.groups, [CpuSet::range(4, 4)]);
    }
}
