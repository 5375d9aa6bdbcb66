//! Which cores are of the same kind, and how sure that is.
//!
//! In: hybrid PMU lists, MIDR, caches, capacities and frequencies of the online CPUs. Out: [`CoreKind`]s, most
//! capable first, and a [`Confidence`].
//! Invariant: a spread of turbo clocks is never a kind: favoured cores and firmware noise are one kind.

use std::collections::BTreeMap;

use super::cpuinfo::{CpuInfo, arm_part};
use super::hardware::{Confidence, CoreKind, Topology};
use super::isa;
use super::root::Root;
use crate::base::{Code, CpuSet, Problem};

const CPU_DIR: &str = "/sys/devices/system/cpu";

/// Groups with different caches are kinds if clocks or capacities also lie this far apart (favoured cores and
/// stacked-cache chips differ by at most 9 %).
const WITH_CACHES: f64 = 1.10;
/// Capacities of one kind lie within this (a Grace chip's cores range over 3 %).
const CAPACITY: f64 = 1.15;
/// Clocks alone separate kinds only by this much between neighbours (P and E cores differ by 25 % and more).
const CLOCK: f64 = 1.20;

/// What the readers know of one CPU.
#[derive(Clone, Debug, Default)]
struct Traits {
    /// Implementer and part number of the Arm main ID register.
    midr: Option<(u32, u32)>,
    capacity: Option<u64>,
    base_khz: Option<u64>,
    max_khz: Option<u64>,
    cppc: Option<u64>,
}

/// One part of a split.
#[derive(Clone, Debug)]
struct Part {
    cpus: CpuSet,
    /// A name that the evidence itself gives.
    name: Option<&'static str>,
    /// Order given by the evidence; larger is more capable.
    rank: u32,
}

impl Part {
    fn of(cpus: CpuSet) -> Self {
        Self {
            cpus,
            name: None,
            rank: 1,
        }
    }
}

/// Fills `topology.kinds`, each core's kind and the confidence. `hidden` says that a hypervisor may show uniform
/// CPUs on a mixed processor; `by_cpuid` are kinds that CPUID itself states, most capable first.
pub fn classify(
    root: &Root,
    info: &CpuInfo,
    topology: &mut Topology,
    online: &CpuSet,
    hidden: bool,
    by_cpuid: Option<Vec<(&'static str, CpuSet)>>,
) {
    let folders = root.numbered(CPU_DIR, "cpu");
    let in_sysfs = |cpu: u32| folders.is_empty() || folders.contains(cpu);
    let traits: BTreeMap<u32, Traits> = online
        .iter()
        .map(|cpu| (cpu, read_traits(root, info, cpu, in_sysfs(cpu))))
        .collect();
    let stated = by_cpuid.map(|kinds| {
        let count = kinds.len() as u32;
        let part = |(index, (name, cpus)): (usize, (&'static str, CpuSet))| Part {
            cpus,
            name: Some(name),
            rank: count - index as u32,
        };
        (
            kinds.into_iter().enumerate().map(part).collect(),
            "cpuid",
            Confidence::High,
        )
    });
    let (mut parts, evidence, confidence) = stated
        .or_else(|| hybrid_pmu(root, topology, online).map(|parts| (parts, "hybrid_pmu", Confidence::High)))
        .or_else(|| by_midr(&traits).map(|parts| (parts, "midr", Confidence::High)))
        .or_else(|| {
            (!hidden)
                .then(|| by_caches(topology, &traits))?
                .map(|parts| (parts, "cache", Confidence::Medium))
        })
        .or_else(|| (!hidden).then(|| by_capacity_and_clock(&traits))?)
        .unwrap_or_else(|| {
            let sure = if hidden {
                Confidence::Low
            } else {
                Confidence::Medium
            };
            // A kernel with one core PMU and no hybrid ones has looked at the processor itself.
            let sure = if !hidden && root.exists("/sys/devices/cpu/type") {
                Confidence::High
            } else {
                sure
            };
            (vec![Part::of(online.clone())], "none", sure)
        });
    parts.retain(|part| !part.cpus.is_empty());
    parts.sort_by_key(|part| std::cmp::Reverse((part.rank, ability(&traits, topology, &part.cpus))));
    let arm = matches!(info.arch(), Some("aarch64" | "arm"));
    let names = names(&parts, arm);
    topology.kinds = parts
        .iter()
        .zip(names)
        .map(|(part, name)| CoreKind {
            name,
            cpus: part.cpus.clone(),
            isa: isa::common(info, &part.cpus),
            max_khz: part.cpus.iter().filter_map(|cpu| traits.get(&cpu)?.max_khz).max(),
            evidence: evidence.to_owned(),
        })
        .collect();
    topology.kinds_confidence = confidence;
    for core in &mut topology.cores {
        let first = core.cpus.first();
        core.kind = topology
            .kinds
            .iter()
            .position(|kind| first.is_some_and(|cpu| kind.cpus.contains(cpu)))
            .unwrap_or(0);
    }
}

/// What a person should know of kinds that may be hidden. Only said for WSL2: its hosts are mostly hybrid desktops
/// and notebooks, while the usual virtual machine runs on a server with one kind.
pub fn explain(topology: &Topology, wsl2: bool, warnings: &mut Vec<Problem>) {
    if wsl2 && topology.kinds.len() == 1 && topology.kinds_confidence == Confidence::Low {
        warnings.push(
            Problem::warning(
                Code::HardwareUnsure,
                "WSL2's hypervisor shows all CPUs alike, so P and E cores cannot be told apart here",
                "let the calibration choose the number of threads, or serve from Windows or Linux directly",
            )
            .why("threads pinned to CPU numbers could land on slow cores, so they are better left unpinned"),
        );
    }
}

fn read_traits(root: &Root, info: &CpuInfo, cpu: u32, in_sysfs: bool) -> Traits {
    let file = |name: &str| format!("{CPU_DIR}/cpu{cpu}/{name}");
    let positive = |name: &str| root.number::<u64>(&file(name)).filter(|&value| value > 0);
    let listed = || arm_part(info.cpus.get(&cpu)?);
    if !in_sysfs {
        return Traits {
            midr: listed(),
            ..Traits::default()
        };
    }
    let register = root
        .line(&file("regs/identification/midr_el1"))
        .and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok())
        .map(|midr| ((midr >> 24 & 0xff) as u32, (midr >> 4 & 0xfff) as u32));
    Traits {
        midr: register.or_else(listed),
        capacity: positive("cpu_capacity"),
        base_khz: positive("cpufreq/base_frequency"),
        max_khz: positive("cpufreq/cpuinfo_max_freq"),
        cppc: positive("acpi_cppc/highest_perf"),
    }
}

/// Intel's kernel driver has one PMU per core type.
fn hybrid_pmu(root: &Root, topology: &Topology, online: &CpuSet) -> Option<Vec<Part>> {
    let list = |name: &str| {
        let set = root
            .cpu_list(&format!("/sys/devices/{name}/cpus"))?
            .intersection(online);
        (!set.is_empty()).then_some(set)
    };
    let (core, atom) = (list("cpu_core"), list("cpu_atom"));
    let low = list("cpu_lowpower");
    if core.is_none() && atom.is_none() {
        return None;
    }
    let mut parts = Vec::new();
    let mut left = online.clone();
    let mut add = |cpus: Option<CpuSet>, name, rank| {
        let Some(cpus) = cpus else { return };
        let cpus = cpus.intersection(&left);
        left = left.difference(&cpus);
        parts.push(Part {
            cpus,
            name: Some(name),
            rank,
        });
    };
    // Low-power E cores share the E cores' PMU but sit on another die, outside the L3 that the P cores use.
    let outside = atom.as_ref().zip(core.as_ref()).and_then(|(atom, core)| {
        let mut reached = CpuSet::new();
        for cache in topology.caches.iter().filter(|cache| cache.level == 3) {
            if cache.cpus.iter().any(|cpu| core.contains(cpu)) {
                reached = reached.union(&cache.cpus);
            }
        }
        let outside = atom.difference(&reached);
        (!reached.is_empty() && !outside.is_empty() && outside != *atom).then_some(outside)
    });
    add(core, "P", 4);
    add(low.or(outside), "LP-E", 2);
    add(atom, "E", 3);
    if !left.is_empty() {
        parts.push(Part {
            cpus: left,
            name: None,
            rank: 1,
        });
    }
    Some(parts)
}

/// Arm cores of one part number are one kind, whatever their clocks. Needs the register of every CPU.
fn by_midr(traits: &BTreeMap<u32, Traits>) -> Option<Vec<Part>> {
    let mut parts: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
    for (&cpu, known) in traits {
        parts.entry(known.midr?).or_default().insert(cpu);
    }
    (!parts.is_empty()).then(|| {
        parts
            .into_iter()
            .map(|(midr, cpus)| Part {
                cpus,
                name: None,
                rank: arm_rank(midr),
            })
            .collect()
    })
}

/// Only the order of kinds where capacity and clock are unknown: little 1, usual 2, prime 3. Arm's own part
/// numbers (Cortex-A35/53/55/510/520, X1–X925) and Apple's, whose even numbers are efficiency cores.
fn arm_rank((implementer, part): (u32, u32)) -> u32 {
    match (implementer, part) {
        (0x41, 0xd03 | 0xd04 | 0xd05 | 0xd46 | 0xd80) => 1,
        (0x41, 0xd44 | 0xd48 | 0xd4e | 0xd82 | 0xd85) => 3,
        (0x61, part) if part % 2 == 0 => 1,
        _ => 2,
    }
}

/// How many cores share a level 2 cache, its size, and the level 3 size: what differs between kinds by design.
type Signature = (usize, u64, u64);

fn by_caches(topology: &Topology, traits: &BTreeMap<u32, Traits>) -> Option<Vec<Part>> {
    let cache_of = |level: u8, cpu: u32| {
        topology
            .caches
            .iter()
            .find(|cache| cache.level == level && cache.cpus.contains(cpu))
    };
    let mut groups: BTreeMap<Signature, CpuSet> = BTreeMap::new();
    let mut known: BTreeMap<u32, Signature> = BTreeMap::new();
    for core in &topology.cores {
        let first = core.cpus.first()?;
        // A CPU without a stated level 2 cache leaves the whole question open.
        let second = cache_of(2, first)?;
        let signature = if let Some(same) = second.cpus.first().and_then(|cpu| known.get(&cpu)) {
            *same
        } else {
            let sharing = topology.cores_within(&second.cpus).len();
            let size =
                |cache: Option<&super::hardware::Cache>| cache.and_then(|c| c.size_bytes).map_or(0, |b| b.0);
            let signature = (sharing, size(Some(second)), size(cache_of(3, first)));
            known.extend(second.cpus.iter().map(|cpu| (cpu, signature)));
            signature
        };
        let group = groups.entry(signature).or_default();
        *group = group.union(&core.cpus);
    }
    if groups.len() < 2 {
        return None;
    }
    // Groups that no clock or capacity tells apart are one kind: a disabled core or a stacked cache is not a kind.
    let mut parts: Vec<CpuSet> = Vec::new();
    for (_, cpus) in groups {
        match parts.iter_mut().find(|part| !apart(traits, part, &cpus)) {
            Some(part) => *part = part.union(&cpus),
            None => parts.push(cpus),
        }
    }
    (parts.len() > 1).then(|| parts.into_iter().map(Part::of).collect())
}

/// Whether some stated clock or capacity separates two groups completely.
fn apart(traits: &BTreeMap<u32, Traits>, a: &CpuSet, b: &CpuSet) -> bool {
    let pick: [fn(&Traits) -> Option<u64>; 4] = [|t| t.base_khz, |t| t.max_khz, |t| t.capacity, |t| t.cppc];
    pick.iter().any(|pick| {
        let range = |cpus: &CpuSet| {
            let values: Option<Vec<u64>> = cpus.iter().map(|cpu| pick(traits.get(&cpu)?)).collect();
            let values = values?;
            Some((*values.iter().min()?, *values.iter().max()?))
        };
        let (Some((a_min, a_max)), Some((b_min, b_max))) = (range(a), range(b)) else {
            return false;
        };
        let above = |low: u64, high: u64| low as f64 >= high as f64 * WITH_CACHES;
        above(a_min, b_max) || above(b_min, a_max)
    })
}

/// The common refinement of capacity clusters and, within them, clock clusters.
fn by_capacity_and_clock(traits: &BTreeMap<u32, Traits>) -> Option<(Vec<Part>, &'static str, Confidence)> {
    let all: CpuSet = traits.keys().copied().collect();
    let by_capacity = clusters(traits, &all, |t| t.capacity, CAPACITY);
    let mut parts = Vec::new();
    for group in &by_capacity {
        for group in clusters(traits, group, |t| t.base_khz, CLOCK) {
            parts.extend(clusters(traits, &group, |t| t.max_khz, CLOCK));
        }
    }
    if parts.len() < 2 {
        return None;
    }
    let (evidence, confidence) = if by_capacity.len() > 1 {
        ("capacity", Confidence::Medium)
    } else {
        ("frequency", Confidence::Low)
    };
    Some((parts.into_iter().map(Part::of).collect(), evidence, confidence))
}

/// Splits where sorted neighbours lie further apart than `tolerance`. One group if any CPU lacks the value.
fn clusters(
    traits: &BTreeMap<u32, Traits>,
    cpus: &CpuSet,
    value: fn(&Traits) -> Option<u64>,
    tolerance: f64,
) -> Vec<CpuSet> {
    let values: Option<Vec<(u64, u32)>> = cpus
        .iter()
        .map(|cpu| Some((value(traits.get(&cpu)?)?, cpu)))
        .collect();
    let Some(mut values) = values else {
        return vec![cpus.clone()];
    };
    values.sort_unstable();
    let mut groups: Vec<CpuSet> = Vec::new();
    let mut last = 0u64;
    for (value, cpu) in values {
        match groups.last_mut() {
            Some(group) if (value as f64) < last as f64 * tolerance => group.insert(cpu),
            _ => groups.push(CpuSet::range(cpu, cpu)),
        }
        last = value;
    }
    groups
}

/// What orders kinds of equal rank: capacity, then preferred performance, clocks, and cache per CPU.
fn ability(traits: &BTreeMap<u32, Traits>, topology: &Topology, cpus: &CpuSet) -> [u64; 5] {
    let most = |pick: fn(&Traits) -> Option<u64>| {
        cpus.iter()
            .filter_map(|cpu| pick(traits.get(&cpu)?))
            .max()
            .unwrap_or(0)
    };
    let cache = topology
        .caches
        .iter()
        .filter(|cache| cache.cpus.iter().any(|cpu| cpus.contains(cpu)))
        .filter_map(|cache| Some(cache.size_bytes?.0 / cache.cpus.len().max(1) as u64))
        .max();
    [
        most(|t| t.capacity),
        most(|t| t.cppc),
        most(|t| t.max_khz),
        most(|t| t.base_khz),
        cache.unwrap_or(0),
    ]
}

fn names(parts: &[Part], arm: bool) -> Vec<String> {
    let count = parts.len();
    parts
        .iter()
        .enumerate()
        .map(|(index, part)| match part.name {
            Some(name) => name.to_owned(),
            None if count == 1 => "all".to_owned(),
            None if arm && index == 0 => "big".to_owned(),
            None if arm && index + 1 == count => "little".to_owned(),
            None if arm && count == 3 => "mid".to_owned(),
            None if arm => format!("mid{index}"),
            None if index == 0 => "P".to_owned(),
            None if index == 1 => "E".to_owned(),
            None => format!("E{index}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(values: &[(u32, u64)]) -> BTreeMap<u32, Traits> {
        values
            .iter()
            .map(|&(cpu, max_khz)| {
                (
                    cpu,
                    Traits {
                        max_khz: Some(max_khz),
                        ..Traits::default()
                    },
                )
            })
            .collect()
    }

    #[test]
    fn turbo_spread_is_one_kind_and_a_gap_is_two() {
        let spread = traits(&[
            (0, 5_352_000),
            (1, 5_517_000),
            (2, 5_677_000),
            (3, 5_837_000),
            (4, 6_001_000),
            (5, 6_321_000),
        ]);
        assert!(by_capacity_and_clock(&spread).is_none());
        let gap = traits(&[(0, 4_900_000), (1, 4_700_000), (2, 3_500_000), (3, 3_500_000)]);
        let (parts, evidence, confidence) = by_capacity_and_clock(&gap).unwrap();
        assert_eq!(
            (parts.len(), evidence, confidence),
            (2, "frequency", Confidence::Low)
        );
        // One CPU without cpufreq leaves the question open.
        let mut partial = gap;
        partial.insert(4, Traits::default());
        assert!(by_capacity_and_clock(&partial).is_none());
    }

    #[test]
    fn arm_parts_decide_whatever_the_clock() {
        let known = |part, max_khz| Traits {
            midr: Some((0x41, part)),
            max_khz: Some(max_khz),
            ..Traits::default()
        };
        let chip: BTreeMap<u32, Traits> = [
            (0, known(0xd87, 2_808_000)),
            (1, known(0xd85, 3_900_000)),
            (2, known(0xd85, 3_000_000)),
        ]
        .into();
        let parts = by_midr(&chip).unwrap();
        assert_eq!(parts.len(), 2);
        let mut unknown = chip;
        unknown.insert(3, Traits::default());
        assert!(by_midr(&unknown).is_none());
    }

    #[test]
    fn names_follow_the_order() {
        let parts = |n: usize| {
            (0..n)
                .map(|i| Part::of(CpuSet::range(i as u32, i as u32)))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&parts(1), true), ["all"]);
        assert_eq!(names(&parts(2), true), ["big", "little"]);
        assert_eq!(names(&parts(3), true), ["big", "mid", "little"]);
        assert_eq!(names(&parts(2), false), ["P", "E"]);
    }
}
