//! Worker threads: how many, on which CPUs, pinned or not.
//!
//! In: the machine's CPUs, kinds, quota and environment; policy; pins. Out: count, CPU list and pinning.
//! Invariant: every CPU is online and allowed; a derived count never exceeds the quota; without a pin on `cpus` the
//! list has exactly `threads` CPUs and worker i belongs on the i-th.

pub use super::cores::usable;
use super::cores::{Pool, cores_word};
use super::decision::{Decision, Pin};
use crate::base::{Code, CpuSet, Problem, Severity};
use crate::config::Policy;
use crate::probe::Hardware;
use crate::probe::hardware::{Confidence, Environment, NumaNode};

/// What somebody set about threads.
#[derive(Clone, Debug, Default)]
pub struct ThreadPins {
    /// Count of workers.
    pub threads: Option<Pin<usize>>,
    /// CPUs they may run on.
    pub cpus: Option<Pin<CpuSet>>,
    /// Whether each is pinned.
    pub pin: Option<Pin<bool>>,
    /// Whether those that are not pinned stay within `cpus`.
    pub confine: Option<Pin<bool>>,
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

/// Chooses workers for a stage that has the machine to itself, on `node` only where one is given.
pub fn choose(
    hardware: &Hardware,
    policy: &Policy,
    pins: &ThreadPins,
    node: Option<&NumaNode>,
) -> Result<Threads, Vec<Problem>> {
    let usable = usable(hardware).map_err(|problem| vec![problem])?;
    let pool = Pool::of(hardware, &usable, node);
    let whole = whole(hardware, &pool, &usable, policy, pins);
    choose_from(hardware, &pool, pins, &usable, whole, policy.io_cpus)
}

/// Chooses workers out of a pool. `derived` is the count where nobody set one.
pub(super) fn choose_from(
    hardware: &Hardware,
    pool: &Pool,
    pins: &ThreadPins,
    usable: &CpuSet,
    derived: Decision<usize>,
    spare: usize,
) -> Result<Threads, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let quota = QuotaBound::of(hardware);
    if let Some(problem) = pins.cpus.as_ref().and_then(|pin| cpus_fault(hardware, pin)) {
        problems.push(problem);
    }
    let room = pins.cpus.as_ref().map_or(usable, |pin| &pin.value);
    if let Some(pin) = &pins.threads {
        match count_fault(pin, room, pins, quota.as_ref()) {
            // With unusable CPUs a count against them says nothing more.
            Some((_, true)) if !problems.is_empty() => {}
            Some((problem, false)) if pins.force => warnings.push(Problem {
                severity: Severity::Warning,
                code: Code::HardwareLimit,
                ..problem
            }),
            Some((problem, _)) => problems.push(problem),
            None => {}
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let (threads, cpus) = match (&pins.cpus, &pins.threads) {
        (Some(cpus), threads) => {
            let threads = match threads {
                Some(threads) => Decision::pinned(threads, format!("set by {}", threads.layer)),
                None => bounded_count(
                    cpus.value.len(),
                    &format!("one worker for each CPU that `{}` names", cpus.key),
                    &bounds(None, pins, quota.as_ref()),
                ),
            };
            (threads, Decision::pinned(cpus, format!("set by {}", cpus.layer)))
        }
        (None, Some(threads)) => {
            let (cpus, siblings) = pool.place(threads.value, 0);
            let because = if siblings > 0 {
                format!(
                    "{} workers on {} physical {}: {siblings} of them share a core with another",
                    threads.value,
                    pool.all_cores(),
                    cores_word(pool.all_cores())
                )
            } else {
                "one physical core for each worker".to_owned()
            };
            (
                Decision::pinned(threads, format!("set by {}", threads.layer)),
                Decision::derived(cpus, "threads.place", because),
            )
        }
        (None, None) => {
            let cpus = placed(hardware, pool, derived.value, spare);
            (derived, cpus)
        }
    };
    let pin = pinning(
        hardware,
        pins.pin.as_ref(),
        &threads,
        &cpus,
        quota.as_ref(),
        &mut warnings,
    );
    let confine = match (&pins.confine, &pins.cpus) {
        (Some(pin), _) => Decision::pinned(pin, format!("set by {}", pin.layer)),
        (None, Some(pin)) => {
            Decision::derived(true, "threads.confine", format!("`{}` names the CPUs", pin.key))
        }
        (None, None) => Decision::derived(
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

/// A warning where less than one CPU of time is allowed.
#[must_use]
pub fn starved(hardware: &Hardware) -> Option<Problem> {
    let quota = QuotaBound::of(hardware).filter(|quota| quota.cpus < 1.0)?;
    Some(
        Problem::warning(
            Code::HardwareLimit,
            format!(
                "only {} CPU of time is allowed ({}); one worker runs and is paused in every period",
                quota.cpus, quota.source
            ),
            "raise the CPU limit of the container to at least 1",
        )
        .why("answers will be slow and uneven"),
    )
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

/// The count for the whole machine: one for each chosen core, bounded, less what is left to the system.
pub(super) fn whole(
    hardware: &Hardware,
    pool: &Pool,
    usable: &CpuSet,
    policy: &Policy,
    pins: &ThreadPins,
) -> Decision<usize> {
    let quota = QuotaBound::of(hardware);
    let mut threads = bounded_count(
        pool.cores(),
        &format!("{}; one worker for each", pool.because),
        &bounds(Some(policy), pins, quota.as_ref()),
    );
    // Cores of other NUMA nodes are free for the system too.
    let cores = Pool::of(hardware, usable, None).all_cores();
    let free = cores - threads.value.min(cores);
    if cores >= policy.io_cpus_from && free < policy.io_cpus {
        let left = (policy.io_cpus - free).min(threads.value - 1);
        threads.value -= left;
        threads.because = format!(
            "{}, less {left} left to the server and the system (`policy.io_cpus`)",
            threads.because
        );
    }
    threads
}

/// One CPU of each core taken.
fn placed(hardware: &Hardware, pool: &Pool, threads: usize, spare: usize) -> Decision<CpuSet> {
    let (cpus, siblings) = pool.place(threads, spare);
    let idle = if siblings > 0 {
        ", and siblings of some"
    } else if hardware.topology.smt {
        ", siblings left idle"
    } else {
        ""
    };
    let isolated = hardware.cpus.allowed.intersection(&hardware.cpus.isolated);
    let isolated = if isolated.is_empty() || !isolated.intersection(&cpus).is_empty() {
        String::new()
    } else {
        format!("; CPUs {isolated} are isolated and left out, the key can name them")
    };
    let caches = one_cache(hardware, &cpus);
    let because = format!("one CPU of each chosen physical core{idle}{caches}{isolated}");
    Decision::derived(cpus, "threads.place", because)
}

/// Says that workers share a cache where the machine has several.
fn one_cache(hardware: &Hardware, cpus: &CpuSet) -> &'static str {
    let mut caches = hardware.topology.caches.iter().filter(|cache| cache.level == 3);
    let several = caches.clone().count() > 1;
    if several && caches.any(|cache| cpus.is_subset(&cache.cpus)) {
        ", all of one L3 cache"
    } else {
        ""
    }
}

/// Why CPUs cannot be used: not online, or not allowed.
fn cpus_fault(hardware: &Hardware, pin: &Pin<CpuSet>) -> Option<Problem> {
    let refuse =
        |what: String, remedy: String| Some(Problem::new(Code::PinUnmet, what, remedy).at(pin.place.clone()));
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
                "{} names {} {offline}, which {} not online (online: {})",
                pin.named(),
                cpus_word(&offline),
                are(&offline),
                hardware.cpus.online
            ),
            format!("use CPUs out of {allowed}, or bring them online"),
        );
    }
    let forbidden = pin.value.difference(&allowed);
    if !forbidden.is_empty() {
        return refuse(
            format!(
                "{} names {} {forbidden}, which this process may not use (allowed: {allowed})",
                pin.named(),
                cpus_word(&forbidden)
            ),
            format!(
                "use CPUs out of {allowed}, or change the affinity or cpuset this process is started with"
            ),
        );
    }
    None
}

fn cpus_word(cpus: &CpuSet) -> &'static str {
    if cpus.len() == 1 { "CPU" } else { "CPUs" }
}

fn are(cpus: &CpuSet) -> &'static str {
    if cpus.len() == 1 { "is" } else { "are" }
}

/// Why a count cannot be met, and whether that is for certain (`true`) or only costs speed (`false`).
fn count_fault(
    pin: &Pin<usize>,
    cpus: &CpuSet,
    pins: &ThreadPins,
    quota: Option<&QuotaBound>,
) -> Option<(Problem, bool)> {
    let workers = if pin.value == 1 { "worker" } else { "workers" };
    let asks = format!("{} asks for {} {workers}", pin.named(), pin.value);
    let refuse = |code, what: String, why: &str, remedy: String| {
        Problem::new(code, what, remedy).why(why).at(pin.place.clone())
    };
    if pin.value == 0 {
        let remedy = "use at least 1".to_owned();
        return Some((
            refuse(Code::BadValue, asks, "nothing would compute", remedy),
            true,
        ));
    }
    if pin.value > cpus.len() {
        let what = if cpus.len() == 1 {
            format!("{asks}, but only CPU {cpus} may be used")
        } else {
            format!("{asks}, but only {} CPUs may be used ({cpus})", cpus.len())
        };
        let why = "workers wait for each other at every step; two on one CPU stop all of them";
        let remedy = format!("use at most {}, or remove the key", cpus.len());
        return Some((refuse(Code::PinUnmet, what, why, remedy), true));
    }
    if let Some(limit) = &pins.max_threads
        && pin.value > limit.value
    {
        let what = format!("{asks}, but {} allows {}", limit.named(), limit.value);
        let remedy = format!("use at most {}, or raise the limit", limit.value);
        let why = "a pin above a limit contradicts it";
        return Some((refuse(Code::PinUnmet, what, why, remedy), true));
    }
    if let Some(quota) = quota
        && pin.value > quota.whole
    {
        let what = format!("{asks}, but the {} carries {}", quota.named(), quota.whole);
        let why = "with more workers than CPU time the kernel pauses all of them in every period; answers can be ten times slower";
        let mut remedy = format!("use at most {}, or raise the CPU limit", quota.whole);
        if !pins.force {
            remedy.push_str("; `--force` goes on all the same");
        }
        return Some((refuse(Code::PinUnmet, what, why, remedy), false));
    }
    None
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
