//! Physical cores that workers may use, in the order in which they are taken.
//!
//! In: the machine's CPUs, kinds, caches, isolation; a NUMA node. Out: a pool of cores and CPU lists out of it.
//! Invariant: every CPU is online and allowed; cores that share an L3 cache stand together.

use crate::base::{Code, CpuSet, Problem};
use crate::probe::Hardware;
use crate::probe::hardware::{Confidence, CoreKind, NumaNode};

/// Cores of one kind that make a pool worth having alone. A slower kind in a pool that waits for its slowest member
/// costs more than it adds, except where the fast kind has only a core or two (phones with one or two big cores).
const KIND_IS_ENOUGH: usize = 4;

/// Online and allowed CPUs without isolated ones, unless the process was put on isolated ones only.
pub fn usable(hardware: &Hardware) -> Result<CpuSet, Problem> {
    let allowed = hardware.cpus.allowed.intersection(&hardware.cpus.online);
    if allowed.is_empty() {
        return Err(Problem::new(
            Code::ProbeFailed,
            format!(
                "no CPU is both online ({}) and allowed ({})",
                hardware.cpus.online, hardware.cpus.allowed
            ),
            "check the affinity and cpuset this process is started with",
        ));
    }
    let shared = allowed.difference(&hardware.cpus.isolated);
    // All of them isolated: somebody placed this process there on purpose.
    Ok(if shared.is_empty() { allowed } else { shared })
}

/// Physical cores that may be used, best first.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Each chosen core, in the order in which they are taken.
    chosen: Vec<Seat>,
    /// Usable cores of other kinds, in order of capability.
    others: Vec<Seat>,
    /// Why these.
    pub because: String,
}

/// A core's usable CPUs, the worker's first, and the L3 cache it belongs to.
#[derive(Clone, Debug)]
struct Seat {
    cpus: CpuSet,
    /// Its L3 cache, by lowest CPU; `None` where none is known.
    cache: Option<usize>,
}

impl Pool {
    /// The cores of `usable`, on `node` only where one is given.
    #[must_use]
    pub fn of(hardware: &Hardware, usable: &CpuSet, node: Option<&NumaNode>) -> Self {
        let topology = &hardware.topology;
        let usable = node.map_or_else(|| usable.clone(), |node| usable.intersection(&node.cpus));
        let mut cores: Vec<(usize, Seat)> = topology
            .cores
            .iter()
            .map(|core| (core.kind, core.cpus.intersection(&usable)))
            .filter(|(_, cpus)| !cpus.is_empty())
            .map(|(kind, cpus)| (kind, seat(hardware, cpus)))
            .collect();
        // A CPU that no core claims counts as a core of its own: the kernel may hide the topology.
        let mut seen = CpuSet::new();
        for (_, core) in &cores {
            seen = seen.union(&core.cpus);
        }
        let last_kind = topology.kinds.len().saturating_sub(1);
        cores.extend(
            usable
                .difference(&seen)
                .iter()
                .map(|cpu| (last_kind, seat(hardware, CpuSet::range(cpu, cpu)))),
        );
        let place = node.map_or_else(String::new, |node| format!(" of NUMA node {}", node.id));
        let mut kinds: Vec<usize> = cores.iter().map(|(kind, _)| *kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let total = cores.len();
        let counted = format!("{total} usable physical {}{place}", cores_word(total));
        if kinds.len() < 2 || topology.kinds_confidence == Confidence::Low {
            let unsure = if kinds.len() >= 2 {
                ", of kinds that cannot be told apart for certain, so none is preferred"
            } else {
                ""
            };
            cores.sort_by_key(|(_, core)| (core.cache, core.cpus.first()));
            return Self {
                chosen: cores.into_iter().map(|(_, core)| core).collect(),
                others: Vec::new(),
                because: format!("{counted}{unsure}"),
            };
        }
        cores.sort_by_key(|(kind, core)| (*kind, core.cache, core.cpus.first()));
        let mut taken = Vec::new();
        let mut count = 0;
        for &kind in &kinds {
            if count >= KIND_IS_ENOUGH {
                break;
            }
            taken.push(kind);
            count += cores.iter().filter(|(k, _)| *k == kind).count();
        }
        let name = |kind: usize| {
            topology
                .kinds
                .get(kind)
                .map_or_else(|| format!("kind {kind}"), |k: &CoreKind| k.name.clone())
        };
        let names: Vec<String> = taken.iter().map(|&k| name(k)).collect();
        let (chosen, others): (Vec<_>, Vec<_>) = cores.into_iter().partition(|(k, _)| taken.contains(k));
        let because = if others.is_empty() {
            format!("{counted}, of the kinds {}", names.join(" and "))
        } else {
            format!(
                "{} of {counted} are of kind {}; the others would hold the faster ones back",
                chosen.len(),
                names.join(" and ")
            )
        };
        Self {
            because,
            chosen: chosen.into_iter().map(|(_, core)| core).collect(),
            others: others.into_iter().map(|(_, core)| core).collect(),
        }
    }

    /// Chosen cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.chosen.len()
    }

    /// Chosen cores and those of other kinds.
    #[must_use]
    pub fn all_cores(&self) -> usize {
        self.chosen.len() + self.others.len()
    }

    /// Every CPU in it.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        (self.chosen.iter().chain(&self.others)).fold(CpuSet::new(), |all, core| all.union(&core.cpus))
    }

    /// The same with only the cores that own one of these CPUs.
    #[must_use]
    pub fn only(&self, cpus: &CpuSet) -> Self {
        self.without(&self.cpus().difference(&self.owners(cpus)))
    }

    /// Every CPU of the cores that own one of these CPUs.
    fn owners(&self, cpus: &CpuSet) -> CpuSet {
        (self.chosen.iter().chain(&self.others))
            .filter(|core| !core.cpus.intersection(cpus).is_empty())
            .fold(CpuSet::new(), |all, core| all.union(&core.cpus))
    }

    /// The same without cores that own one of these CPUs.
    #[must_use]
    pub fn without(&self, cpus: &CpuSet) -> Self {
        let keep = |cores: &[Seat]| {
            let free = cores
                .iter()
                .filter(|core| core.cpus.intersection(cpus).is_empty());
            free.cloned().collect()
        };
        Self {
            chosen: keep(&self.chosen),
            others: keep(&self.others),
            because: self.because.clone(),
        }
    }

    /// CPUs for `threads` workers, and how many of them share a core. `spare` cores at the front are left free where
    /// there are enough: the kernel handles most interrupts on the lowest CPUs. Workers of one cache stay together
    /// where a cache has cores for all of them.
    #[must_use]
    pub fn place(&self, threads: usize, spare: usize) -> (CpuSet, usize) {
        let mut order = self.in_order(threads, spare);
        order.extend(self.others.iter());
        let mut cpus = CpuSet::new();
        let mut siblings = 0;
        // First one CPU of every core, then the second of every core, and so on.
        for round in 0.. {
            let mut found = false;
            for core in &order {
                if let Some(cpu) = core.cpus.iter().nth(round) {
                    found = true;
                    if cpus.len() < threads {
                        cpus.insert(cpu);
                        siblings += usize::from(round > 0);
                    }
                }
            }
            if !found || cpus.len() >= threads {
                break;
            }
        }
        (cpus, siblings)
    }

    /// The chosen cores, those that `threads` workers should take first.
    fn in_order(&self, threads: usize, spare: usize) -> Vec<&Seat> {
        let skip = spare.min(self.chosen.len().saturating_sub(threads));
        let mut start = skip;
        if threads < self.chosen.len() {
            let runs = self.runs();
            let holds = |run: &&(usize, usize), spare: usize| run.1 >= threads + spare;
            let one_cache = runs.iter().find(|run| holds(run, spare)).map(|run| run.0 + spare);
            let one_cache = one_cache.or_else(|| {
                // Without room for the spare ones a later cache leaves the lowest CPUs free all the same.
                let whole = runs.iter().rev().find(|run| holds(run, 0));
                whole.map(|run| run.0)
            });
            start = one_cache.unwrap_or(skip);
        }
        let (before, after) = self.chosen.split_at(start.min(self.chosen.len()));
        after.iter().chain(before).collect()
    }

    /// Runs of chosen cores with one cache: where each starts, and how many it has.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (at, core) in self.chosen.iter().enumerate() {
            match runs.last_mut() {
                Some((start, count)) if self.chosen[*start].cache == core.cache => *count += 1,
                _ => runs.push((at, 1)),
            }
        }
        runs
    }
}

fn seat(hardware: &Hardware, cpus: CpuSet) -> Seat {
    let caches = hardware.topology.caches.iter();
    let cache = caches
        .filter(|cache| cache.level == 3)
        .filter(|cache| !cache.cpus.intersection(&cpus).is_empty())
        // Named by its lowest CPU, so that caches are taken in the order of their CPUs.
        .filter_map(|cache| cache.cpus.first())
        .min();
    Seat {
        cpus,
        cache: cache.map(|cpu| cpu as usize),
    }
}

/// `core` or `cores`.
#[must_use]
pub fn cores_word(count: usize) -> &'static str {
    if count == 1 { "core" } else { "cores" }
}
