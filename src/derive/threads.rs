//! Worker threads: how many, on which CPUs, pinned or not.
//!
//! In: the machine's CPUs, kinds, quota and environment; policy; pins. Out: count, CPU list and pinning.
//! Invariant: every CPU is online and allowed; a derived count never exceeds the quota; without a pin on `cpus` the
//! list has exactly `threads` CPUs and worker i belongs on the i-th.

use super::decision::{Decision, Pin};
use crate::base::{Code, CpuSet, Problem};
use crate::config::Policy;
use crate::probe::Hardware;
use crate::probe::hardware::{Confidence, CoreKind, Environment, NumaNode};

/// Cores of one kind that make a pool worth having alone. A slower kind in a pool that waits for its slowest member
/// costs more than it adds, except where the fast kind has only a core or two (phones with one or two big cores).
const KIND_IS_ENOUGH: usize = 4;

/// What somebody set about threads.
#[derive(Clone, Debug, Default)]
pub struct ThreadPins {
    /// Count of workers.
    pub threads: Option<Pin<usize>>,
    /// CPUs they may run on.
    pub cpus: Option<Pin<CpuSet>>,
    /// Whether each is pinned.
    pub pin: Option<Pin<bool>>,
    /// Upper bound for the count.
    pub max_threads: Option<Pin<usize>>,
    /// Go on where a pin goes beyond a limit that only costs speed.
    pub force: bool,
}

/// Workers of a stage.
#[derive(Clone, Debug)]
pub struct Threads {
    /// How many.
    pub threads: Decision<usize>,
    /// Where.
    pub cpus: Decision<CpuSet>,
    /// Pinned or placed by the kernel.
    pub pin: Decision<bool>,
    /// Whether unpinned workers stay within the CPUs.
    pub confine: Decision<bool>,
    /// What a person should know.
    pub warnings: Vec<Problem>,
}

/// Chooses workers, on `node` only where one is given.
pub fn choose(
    hardware: &Hardware,
    policy: &Policy,
    pins: &ThreadPins,
    node: Option<&NumaNode>,
) -> Result<Threads, Problem> {
    let usable = usable(hardware)?;
    let mut warnings = Vec::new();
    let quota = QuotaBound::of(hardware);
    if let Some(quota) = &quota
        && quota.cpus < 1.0
    {
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                format!(
                    "only {} CPU of time is allowed ({}); one worker runs and is paused in every period",
                    quota.cpus, quota.source
                ),
                "raise the CPU limit of the container to at least 1",
            )
            .why("answers will be slow and uneven"),
        );
    }
    let pool = Pool::of(hardware, &usable, node);
    let (threads, cpus) = match (&pins.cpus, &pins.threads) {
        (Some(cpus), threads) => {
            check_cpus(hardware, cpus)?;
            let threads = match threads {
                Some(threads) => {
                    check_count(threads, &cpus.value, pins, quota.as_ref(), &mut warnings)?;
                    Decision::pinned(threads, format!("set by {}", threads.layer))
                }
                None => bounded_count(
                    cpus.value.len(),
                    &format!("one worker for each CPU that `{}` names", cpus.key),
                    &bounds(None, pins, quota.as_ref()),
                ),
            };
            (threads, Decision::pinned(cpus, format!("set by {}", cpus.layer)))
        }
        (None, Some(threads)) => {
            check_count(threads, &usable, pins, quota.as_ref(), &mut warnings)?;
            let (cpus, siblings) = pool.place(threads.value, 0);
            let because = if siblings > 0 {
                format!(
                    "{} workers on {} physical cores: {siblings} of them share a core with another",
                    threads.value,
                    pool.all_cores()
                )
            } else {
                "one physical core for each worker".to_owned()
            };
            (
                Decision::pinned(threads, format!("set by {}", threads.layer)),
                Decision::derived(cpus, "threads.place", because),
            )
        }
        (None, None) => derived(hardware, &pool, policy, pins, quota.as_ref()),
    };
    let pin = pinning(
        hardware,
        pins.pin.as_ref(),
        &threads,
        &cpus,
        quota.as_ref(),
        &mut warnings,
    );
    let confine = match &pins.cpus {
        Some(pin) => Decision::derived(true, "threads.confine", format!("`{}` names the CPUs", pin.key)),
        None => Decision::derived(
            false,
            "threads.confine",
            "nobody named the CPUs, so workers that are not pinned may run on every allowed one",
        ),
    };
    Ok(Threads {
        threads,
        cpus,
        pin,
        confine,
        warnings,
    })
}

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

/// The CPU-time limit as a bound on workers that wait for each other.
struct QuotaBound {
    cpus: f64,
    /// Whole CPUs, at least 1: one worker too many gets the whole group paused.
    whole: usize,
    source: String,
}

impl QuotaBound {
    fn of(hardware: &Hardware) -> Option<Self> {
        let cpus = hardware
            .quota
            .cpus
            .filter(|cpus| cpus.is_finite() && *cpus > 0.0)?;
        Some(Self {
            cpus,
            whole: (cpus.floor() as usize).max(1),
            source: hardware
                .quota
                .source
                .clone()
                .unwrap_or_else(|| "a limit of unknown origin".to_owned()),
        })
    }

    fn named(&self) -> String {
        format!("CPU quota {} ({})", self.cpus, self.source)
    }
}

/// Physical cores that may be used, best first.
struct Pool {
    /// CPUs of each chosen core, the worker's first.
    chosen: Vec<CpuSet>,
    /// Usable cores of other kinds, in order of capability.
    others: Vec<CpuSet>,
    /// Why these.
    because: String,
}

impl Pool {
    fn of(hardware: &Hardware, usable: &CpuSet, node: Option<&NumaNode>) -> Self {
        let topology = &hardware.topology;
        let usable = node.map_or_else(|| usable.clone(), |node| usable.intersection(&node.cpus));
        let mut cores: Vec<(usize, CpuSet)> = topology
            .cores
            .iter()
            .map(|core| (core.kind, core.cpus.intersection(&usable)))
            .filter(|(_, cpus)| !cpus.is_empty())
            .collect();
        // A CPU that no core claims counts as a core of its own: the kernel may hide the topology.
        let mut seen = CpuSet::new();
        for (_, cpus) in &cores {
            seen = seen.union(cpus);
        }
        let last_kind = topology.kinds.len().saturating_sub(1);
        cores.extend(
            usable
                .difference(&seen)
                .iter()
                .map(|cpu| (last_kind, CpuSet::range(cpu, cpu))),
        );
        cores.sort_by_key(|(kind, cpus)| (*kind, cpus.first()));
        let place = node.map_or_else(String::new, |node| format!(" of NUMA node {}", node.id));
        let mut kinds: Vec<usize> = cores.iter().map(|(kind, _)| *kind).collect();
        kinds.dedup();
        let total = cores.len();
        if kinds.len() < 2 || topology.kinds_confidence == Confidence::Low {
            let unsure = if kinds.len() >= 2 {
                ", of kinds that cannot be told apart for certain, so none is preferred"
            } else {
                ""
            };
            cores.sort_by_key(|(_, cpus)| cpus.first());
            return Self {
                chosen: cores.into_iter().map(|(_, cpus)| cpus).collect(),
                others: Vec::new(),
                because: format!("{total} usable physical cores{place}{unsure}"),
            };
        }
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
        Self {
            because: format!(
                "{} of {total} usable physical cores{place} are of kind {}; the others would hold the faster ones back",
                chosen.len(),
                names.join(" and ")
            ),
            chosen: chosen.into_iter().map(|(_, cpus)| cpus).collect(),
            others: others.into_iter().map(|(_, cpus)| cpus).collect(),
        }
    }

    fn all_cores(&self) -> usize {
        self.chosen.len() + self.others.len()
    }

    /// CPUs for `threads` workers, and how many of them share a core. `spare` cores at the front are left free where
    /// there are enough: the kernel handles most interrupts on the lowest CPUs.
    fn place(&self, threads: usize, spare: usize) -> (CpuSet, usize) {
        let skip = spare.min(self.chosen.len().saturating_sub(threads));
        let mut order: Vec<&CpuSet> = self.chosen.iter().skip(skip).collect();
        order.extend(self.chosen.iter().take(skip));
        order.extend(self.others.iter());
        let mut cpus = CpuSet::new();
        let mut siblings = 0;
        // First one CPU of every core, then the second of every core, and so on.
        for round in 0.. {
            let mut found = false;
            for core in &order {
                if let Some(cpu) = core.iter().nth(round) {
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
}

/// An upper bound on the count and its name.
type Bound = (usize, String);

fn bounds(policy: Option<&Policy>, pins: &ThreadPins, quota: Option<&QuotaBound>) -> Vec<Bound> {
    let mut bounds = Vec::new();
    if let Some(quota) = quota {
        bounds.push((quota.whole, quota.named()));
    }
    if let Some(limit) = &pins.max_threads {
        bounds.push((limit.value.max(1), limit.named()));
    }
    if let Some(policy) = policy {
        bounds.push((policy.max_threads.max(1), "`policy.max_threads`".to_owned()));
    }
    bounds
}

fn bounded_count(count: usize, because: &str, bounds: &[Bound]) -> Decision<usize> {
    let tightest = bounds
        .iter()
        .filter(|(bound, _)| *bound < count)
        .min_by_key(|(bound, _)| *bound);
    match tightest {
        Some((bound, name)) => Decision::derived(
            *bound,
            "threads.count",
            format!("{because}; at most {bound} by {name}"),
        )
        .bounded(Some(name.clone())),
        None => Decision::derived(count.max(1), "threads.count", because),
    }
}

fn derived(
    hardware: &Hardware,
    pool: &Pool,
    policy: &Policy,
    pins: &ThreadPins,
    quota: Option<&QuotaBound>,
) -> (Decision<usize>, Decision<CpuSet>) {
    let cores = pool.chosen.len();
    let mut threads = bounded_count(
        cores,
        &format!("{}; one worker for each", pool.because),
        &bounds(Some(policy), pins, quota),
    );
    let free = pool.all_cores() - threads.value.min(pool.all_cores());
    if pool.all_cores() >= policy.io_cpus_from && free < policy.io_cpus {
        let left = (policy.io_cpus - free).min(threads.value - 1);
        threads.value -= left;
        threads.because = format!(
            "{}, less {left} left to the server and the system (`policy.io_cpus`)",
            threads.because
        );
    }
    let (cpus, _) = pool.place(threads.value, policy.io_cpus);
    let idle = if hardware.topology.smt {
        ", siblings left idle"
    } else {
        ""
    };
    let isolated = hardware.cpus.allowed.intersection(&hardware.cpus.isolated);
    let isolated = if isolated.is_empty() || !isolated.intersection(&cpus).is_empty() {
        String::new()
    } else {
        format!("; CPUs {isolated} are isolated and left out, `stages.decoder.cpus` can name them")
    };
    let because = format!("one CPU of each chosen physical core{idle}{isolated}");
    (threads, Decision::derived(cpus, "threads.place", because))
}

/// Refuses CPUs that are not online or not allowed.
fn check_cpus(hardware: &Hardware, pin: &Pin<CpuSet>) -> Result<(), Problem> {
    let refuse =
        |what: String, remedy: String| Err(Problem::new(Code::PinUnmet, what, remedy).at(pin.place.clone()));
    let allowed = hardware.cpus.allowed.intersection(&hardware.cpus.online);
    if pin.value.is_empty() {
        return refuse(
            format!("{} names no CPU", pin.named()),
            format!("name some of {allowed}, or remove the key"),
        );
    }
    let offline = pin.value.difference(&hardware.cpus.online);
    if !offline.is_empty() {
        return refuse(
            format!(
                "{} names CPUs {offline}, which are not online (online: {})",
                pin.named(),
                hardware.cpus.online
            ),
            format!("use CPUs out of {allowed}, or bring them online"),
        );
    }
    let forbidden = pin.value.difference(&allowed);
    if !forbidden.is_empty() {
        return refuse(
            format!(
                "{} names CPUs {forbidden}, which this process may not use (allowed: {allowed})",
                pin.named()
            ),
            format!(
                "use CPUs out of {allowed}, or change the affinity or cpuset this process is started with"
            ),
        );
    }
    Ok(())
}

/// Refuses a count that the CPUs, a limit or the quota cannot carry.
fn check_count(
    pin: &Pin<usize>,
    cpus: &CpuSet,
    pins: &ThreadPins,
    quota: Option<&QuotaBound>,
    warnings: &mut Vec<Problem>,
) -> Result<(), Problem> {
    let asks = format!("{} asks for {} workers", pin.named(), pin.value);
    let refuse = |code, what: String, why: &str, remedy: String| {
        Err(Problem::new(code, what, remedy).why(why).at(pin.place.clone()))
    };
    if pin.value == 0 {
        return refuse(
            Code::BadValue,
            asks,
            "nothing would compute",
            "use at least 1".to_owned(),
        );
    }
    if pin.value > cpus.len() {
        return refuse(
            Code::PinUnmet,
            format!("{asks}, but only {} CPUs may be used ({cpus})", cpus.len()),
            "workers wait for each other at every step; two on one CPU stop all of them",
            format!("use at most {}, or remove the key", cpus.len()),
        );
    }
    if let Some(limit) = &pins.max_threads
        && pin.value > limit.value
    {
        return refuse(
            Code::PinUnmet,
            format!("{asks}, but {} allows {}", limit.named(), limit.value),
            "a pin above a limit contradicts it",
            format!("use at most {}, or raise the limit", limit.value),
        );
    }
    if let Some(quota) = quota
        && pin.value > quota.whole
    {
        let what = format!("{asks}, but the {} carries {}", quota.named(), quota.whole);
        let why = "with more workers than CPU time the kernel pauses all of them in every period; answers can be ten times slower";
        if !pins.force {
            return refuse(
                Code::PinUnmet,
                what,
                why,
                format!(
                    "use at most {}, raise the CPU limit, or add `--force`",
                    quota.whole
                ),
            );
        }
        warnings.push(
            Problem::warning(Code::HardwareLimit, what, format!("use at most {}", quota.whole))
                .why(why)
                .at(pin.place.clone()),
        );
    }
    Ok(())
}

/// Whether each worker is bound to its CPU.
fn pinning(
    hardware: &Hardware,
    pin: Option<&Pin<bool>>,
    threads: &Decision<usize>,
    cpus: &Decision<CpuSet>,
    quota: Option<&QuotaBound>,
    warnings: &mut Vec<Problem>,
) -> Decision<bool> {
    let against = if matches!(hardware.environment, Environment::Wsl2 | Environment::Gvisor) {
        Some(
            "the hypervisor hides which CPU is which core, so binding could put two workers on one core"
                .to_owned(),
        )
    } else if hardware.topology.kinds_confidence == Confidence::Low {
        Some("which CPU is which kind of core is not known for certain, so binding could keep a worker on a slow one".to_owned())
    } else if cpus.value.len() > threads.value {
        Some(format!(
            "{} CPUs are named for {} workers; the kernel chooses among them",
            cpus.value.len(),
            threads.value
        ))
    } else if let Some(quota) = quota
        && quota.whole < hardware.cpus.allowed.len()
    {
        Some(format!(
            "the {} limits time, not CPUs: others with such a limit may sit on the same CPUs, so the kernel chooses",
            quota.named()
        ))
    } else {
        None
    };
    match (pin, against) {
        (Some(pin), against) => {
            if let (true, Some(reason)) = (pin.value, against) {
                warnings.push(
                    Problem::warning(
                        Code::HardwareUnsure,
                        format!("{} binds workers to CPUs, although {reason}", pin.named()),
                        "remove the key if answers are slower than without it",
                    )
                    .at(pin.place.clone()),
                );
            }
            Decision::pinned(pin, format!("set by {}", pin.layer))
        }
        (None, Some(reason)) => Decision::derived(false, "threads.pin", reason),
        (None, None) => Decision::derived(
            true,
            "threads.pin",
            "a worker that stays on its core keeps its caches and is never placed beside another",
        ),
    }
}

#[cfg(test)]
mod tests;
