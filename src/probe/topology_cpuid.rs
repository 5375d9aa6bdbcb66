//! Topology and core types by CPUID leaves, for recorded dumps.
//!
//! In: a reader per CPU. Out: [`Topology`] and the kinds that CPUID itself states.
//! Invariant: an invalid leaf (zeros although the maximum covers it, as hypervisors give) falls back to the next
//! older method: 0x80000026 or 0x1F, then 0xB, then the legacy counts.

use std::collections::BTreeMap;

use raw_cpuid::{CpuIdReader, CpuIdResult};

use super::cpuid::Recorded;
use super::hardware::{Cache, Core, Topology};
use super::topology::{TopologySource, agree};
use crate::base::{Bytes, CpuSet, Problem};

/// Reads a recorded machine.
#[derive(Debug)]
pub struct CpuidReader<'a> {
    cpus: &'a BTreeMap<u32, Recorded>,
}

/// A kind of core by its own statement, with its name.
type StatedKind = (&'static str, CpuSet);

/// Where one CPU stands.
#[derive(Clone, Debug, Default)]
struct Place {
    core: u32,
    package: u32,
    die: Option<u32>,
    caches: Vec<(u8, u32, Option<Bytes>)>,
    core_type: Option<CoreType>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoreType {
    Performance,
    Efficiency,
}

impl<'a> CpuidReader<'a> {
    /// A reader of these CPUs.
    #[must_use]
    pub fn new(cpus: &'a BTreeMap<u32, Recorded>) -> Self {
        Self { cpus }
    }

    /// The topology and, on hybrid processors, the kinds, most capable first.
    #[must_use]
    pub fn read(&self) -> (Topology, Option<Vec<StatedKind>>) {
        let online: CpuSet = self.cpus.keys().copied().collect();
        let places: BTreeMap<u32, Place> = self.cpus.iter().map(|(&cpu, dump)| (cpu, place(dump))).collect();
        let packages = groups(&places, |place| Some(place.package));
        let dies = groups(&places, |place| place.die.map(|die| (place.package, die)));
        let core_sets = groups(&places, |place| Some((place.package, place.core)));
        let mut caches = Vec::new();
        for level in [2u8, 3] {
            let cache = |place: &Place| place.caches.iter().find(|cache| cache.0 == level).copied();
            for cpus in groups(&places, |place| {
                cache(place).map(|cache| (place.package, cache.1))
            }) {
                let size_bytes = cpus.first().and_then(|cpu| cache(places.get(&cpu)?)?.2);
                caches.push(Cache {
                    level,
                    size_bytes,
                    cpus,
                });
            }
        }
        let topology = Topology {
            smt: core_sets.iter().any(|set| set.len() > 1),
            cores: core_sets
                .into_iter()
                .map(|cpus| Core {
                    package: cpus
                        .first()
                        .and_then(|cpu| packages.iter().position(|set| set.contains(cpu))),
                    cpus,
                    ..Core::default()
                })
                .collect(),
            packages,
            dies,
            caches,
            ..Topology::default()
        };
        let kinds = kinds(&places, &topology, &online);
        (topology, kinds)
    }
}

impl TopologySource for CpuidReader<'_> {
    fn name(&self) -> &'static str {
        "cpuid"
    }

    fn topology(&self) -> Result<Topology, Problem> {
        Ok(self.read().0)
    }
}

/// CPUs with the same key, by lowest CPU.
fn groups<K: Ord>(places: &BTreeMap<u32, Place>, key: impl Fn(&Place) -> Option<K>) -> Vec<CpuSet> {
    let mut sets: BTreeMap<K, CpuSet> = BTreeMap::new();
    for (&cpu, place) in places {
        if let Some(key) = key(place) {
            sets.entry(key).or_default().insert(cpu);
        }
    }
    let stated = sets
        .values()
        .flat_map(|set| set.iter().map(move |cpu| (cpu, set.clone())))
        .collect();
    agree(&stated, &places.keys().copied().collect()).groups
}

fn kinds(places: &BTreeMap<u32, Place>, topology: &Topology, online: &CpuSet) -> Option<Vec<StatedKind>> {
    let of = |wanted: CoreType| -> CpuSet {
        places
            .iter()
            .filter(|(_, place)| place.core_type == Some(wanted))
            .map(|(&cpu, _)| cpu)
            .collect()
    };
    let (fast, efficient) = (of(CoreType::Performance), of(CoreType::Efficiency));
    if fast.is_empty() || efficient.is_empty() || fast.union(&efficient) != *online {
        return None;
    }
    let reached = topology
        .caches
        .iter()
        .filter(|cache| cache.level == 3)
        .fold(CpuSet::new(), |all, cache| all.union(&cache.cpus));
    // Efficiency cores without the last-level cache sit on the low-power die.
    let low = efficient.difference(&reached);
    if reached.is_empty() || low == efficient {
        return Some(vec![("P", fast), ("E", efficient)]);
    }
    let kinds = vec![("P", fast), ("E", efficient.difference(&low)), ("LP-E", low)];
    Some(kinds.into_iter().filter(|(_, cpus)| !cpus.is_empty()).collect())
}

fn bits(value: u32, low: u32, count: u32) -> u32 {
    value >> low & ((1u64 << count) - 1) as u32
}

/// Bits needed to number `count` things.
fn width(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

/// A right shift that is 0 where the kernel would call it undefined.
fn above(id: u32, shift: u32) -> u32 {
    id.checked_shr(shift).unwrap_or(0)
}

fn place(dump: &Recorded) -> Place {
    let vendor = dump.cpuid2(0, 0);
    // "AuthenticAMD" and "HygonGenuine", by the first four letters.
    let amd = vendor.ebx == u32::from_le_bytes(*b"Auth") || vendor.ebx == u32::from_le_bytes(*b"Hygo");
    let mut place = if amd {
        let signature = dump.cpuid2(1, 0).eax;
        let family = bits(signature, 8, 4) + bits(signature, 20, 8);
        let model = bits(signature, 4, 4) | bits(signature, 16, 4) << 4;
        amd_place(dump, family, model)
    } else {
        intel_place(dump)
    };
    place.core_type = core_type(dump, amd);
    place
}

fn core_type(dump: &Recorded, amd: bool) -> Option<CoreType> {
    if amd {
        let core = dump.cpuid2(0x8000_0026, 0);
        // Bit 30: the topology is heterogeneous; EBX[31:28]: 0 performance, 1 efficiency.
        return (bits(core.eax, 30, 1) == 1).then(|| match bits(core.ebx, 28, 4) {
            0 => Some(CoreType::Performance),
            1 => Some(CoreType::Efficiency),
            _ => None,
        })?;
    }
    match bits(dump.cpuid2(0x1a, 0).eax, 24, 8) {
        0x40 => Some(CoreType::Performance),
        0x20 => Some(CoreType::Efficiency),
        _ => None,
    }
}

/// Levels of an extended topology leaf: (type, shift), and the x2APIC id. `None` if the leaf is invalid.
fn levels(dump: &Recorded, number: u32) -> Option<(Vec<(u32, u32)>, u32)> {
    let first = dump.cpuid2(number, 0);
    if bits(first.ebx, 0, 16) == 0 {
        return None;
    }
    let mut found = Vec::new();
    for sub in 0..8 {
        let level = dump.cpuid2(number, sub);
        let kind = bits(level.ecx, 8, 8);
        if kind == 0 {
            break;
        }
        found.push((kind, bits(level.eax, 0, 5)));
    }
    Some((found, first.edx))
}

/// Intel, Zhaoxin and others: leaf 0x1F, 0xB, or leaves 1 and 4.
fn intel_place(dump: &Recorded) -> Place {
    let mut place = Place::default();
    let apic;
    if let Some((levels, id)) = levels(dump, 0x1f).or_else(|| levels(dump, 0xb)) {
        apic = id;
        // A level's shift leads to the id of the next level up: 1 SMT, 2 core, …, 5 die.
        let shift = |kind: u32| levels.iter().find(|level| level.0 == kind).map(|level| level.1);
        place.core = above(apic, shift(1).unwrap_or(0));
        place.package = above(apic, levels.last().map_or(0, |level| level.1));
        let below_die = levels
            .iter()
            .rev()
            .find(|level| level.0 < 5)
            .map_or(0, |level| level.1);
        place.die = shift(5).map(|_| above(apic, below_die));
    } else {
        let basic = dump.cpuid2(1, 0);
        apic = bits(basic.ebx, 24, 8);
        let threads = if bits(basic.edx, 28, 1) == 1 {
            bits(basic.ebx, 16, 8).max(1)
        } else {
            1
        };
        let cores = bits(dump.cpuid2(4, 0).eax, 26, 6) + 1;
        place.core = above(apic, width(threads).saturating_sub(width(cores)));
        place.package = above(apic, width(threads));
    }
    for sub in 0..8 {
        let cache = dump.cpuid2(4, sub);
        let Some((level, sharing, size)) = cache_parameters(cache) else {
            break;
        };
        if let Some(level) = level {
            place
                .caches
                .push((level, above(apic, width(sharing)), Some(size)));
        }
    }
    place
}

/// Level (2 or 3, data or unified), sharing ids and size of a leaf 4 or 0x8000001D entry; `None` ends the list.
fn cache_parameters(cache: CpuIdResult) -> Option<(Option<u8>, u32, Bytes)> {
    let kind = bits(cache.eax, 0, 5);
    if kind == 0 {
        return None;
    }
    let level = bits(cache.eax, 5, 3) as u8;
    let wanted = kind != 2 && (2..=3).contains(&level);
    let field = |low, count| u64::from(bits(cache.ebx, low, count)) + 1;
    let lines = field(0, 12) * field(12, 10) * field(22, 10);
    let size = lines.saturating_mul(u64::from(cache.ecx) + 1);
    Some((wanted.then_some(level), bits(cache.eax, 14, 12) + 1, Bytes(size)))
}

/// AMD and Hygon.
fn amd_place(dump: &Recorded, family: u32, model: u32) -> Place {
    let mut place = Place::default();
    let size = dump.cpuid2(0x8000_0008, 0).ecx;
    // Older processors state only the number of cores, not the width of their ids.
    let id_width = match bits(size, 12, 4) {
        0 => width(bits(size, 0, 8) + 1),
        stated => stated,
    };
    // Topology extensions: leaves 0x8000001D and 0x8000001E.
    let extended = bits(dump.cpuid2(0x8000_0001, 0).ecx, 22, 1) == 1;
    let unit = dump.cpuid2(0x8000_001e, 0);
    let mut apic = if extended {
        unit.eax
    } else {
        bits(dump.cpuid2(1, 0).ebx, 24, 8)
    };
    // Family 15h counts cores per module there, later ones threads per core.
    let threads = if extended && family >= 0x17 {
        bits(unit.ebx, 8, 8) + 1
    } else {
        1
    };
    place.core = above(apic, width(threads));
    place.package = above(apic, id_width);
    if let Some((levels, id)) = levels(dump, 0x8000_0026) {
        apic = id;
        // Here a level's shift leads to its own id: 1 core, 2 complex, 3 die, 4 socket.
        let id = |kind: u32| {
            levels
                .iter()
                .find(|level| level.0 == kind)
                .map(|level| above(apic, level.1))
        };
        place.core = id(1).unwrap_or(apic);
        place.package = levels.last().map_or(0, |level| above(apic, level.1));
        place.die = id(3);
    } else if let Some((levels, id)) = levels(dump, 0xb) {
        apic = id;
        place.core = above(apic, levels.first().map_or(0, |level| level.1));
        place.package = above(apic, levels.last().map_or(0, |level| level.1));
    }
    // Ids of cores within a package, for caches that are shared by a number of cores that is no power of two.
    let within = |apic: u32| apic & ((1u64 << id_width) - 1) as u32;
    if extended {
        for sub in 0..8 {
            let Some((level, sharing, size)) = cache_parameters(dump.cpuid2(0x8000_001d, sub)) else {
                break;
            };
            let id = if family >= 0x17 || sharing.is_power_of_two() {
                above(apic, width(sharing))
            } else {
                within(apic) / sharing
            };
            place.caches.extend(level.map(|level| (level, id, Some(size))));
        }
    } else {
        let sizes = dump.cpuid2(0x8000_0006, 0);
        let second = u64::from(bits(sizes.ecx, 16, 16)) << 10;
        if second > 0 {
            place.caches.push((2, apic, Some(Bytes(second))));
        }
        // In units of 512 KiB for the whole package.
        let third = u64::from(bits(sizes.edx, 18, 14)) << 19;
        if third > 0 {
            // Magny-Cours has two chips in a package, each with half of the cores and of the cache.
            let halves = if family == 0x10 && model == 9 { 2 } else { 1 };
            let cores = bits(size, 0, 8) + 1;
            let id = within(apic) / (cores / halves).max(1);
            place.caches.push((3, id, Some(Bytes(third / u64::from(halves)))));
        }
    }
    place
}
