//! A stage's worker team: a fixed number of threads that run one closure together.
//!
//! In: CPUs and a thread count from the plan. Out: [`Team::run`] and [`Team::for_each_chunk`]; thread ids to read back.
//! Invariant: worker 0 is the calling thread; results never depend on the number of workers; a panic is passed on.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;

use crate::base::{Code, CpuSet, Problem};
use crate::plan::StagePlan;
use crate::sys::{affinity, fork_join};

/// A team of worker threads. The thread that calls [`Self::run`] is worker 0.
#[derive(Debug)]
pub struct Team {
    inner: fork_join::ForkJoin,
    cpus: CpuSet,
    pin: bool,
    caller: AtomicI32,
    helpers: Vec<i32>,
}

impl Team {
    /// Starts `threads − 1` helpers on `cpus`: worker i on the i-th CPU when `pin`, else all on the whole set.
    /// An empty set leaves affinity alone.
    ///
    /// # Errors
    /// `bad_value` for no threads or more pinned threads than CPUs, `pin_failed` when the kernel refuses,
    /// `hardware_limit` when a thread cannot be started.
    pub fn new(name: &str, cpus: &CpuSet, threads: usize, pin: bool) -> Result<Self, Problem> {
        if threads == 0 {
            return Err(Problem::new(
                Code::BadValue,
                format!("team `{name}` would have no threads"),
                "give the stage at least one thread",
            ));
        }
        if pin && !cpus.is_empty() && threads > cpus.len() {
            return Err(Problem::new(
                Code::BadValue,
                format!(
                    "team `{name}` would pin {threads} threads to {} CPUs (`{cpus}`)",
                    cpus.len()
                ),
                "use at most one thread a CPU, or switch pinning off",
            ));
        }
        let (report, reports) = mpsc::channel();
        let places: Vec<CpuSet> = (0..threads).map(|worker| place(cpus, worker, pin)).collect();
        let inner = fork_join::ForkJoin::start(name, threads, move |worker| {
            let pinned = settle(&places[worker]);
            // The receiver waits below for every report, so it cannot be gone.
            let _ = report.send((worker, affinity::current_thread_id(), pinned));
        })
        .map_err(|error| {
            Problem::new(
                Code::HardwareLimit,
                format!("team `{name}`: cannot start {threads} threads: {error}"),
                "lower the stage's thread count or raise the process limit",
            )
        })?;
        let mut helpers = vec![0; threads - 1];
        for (worker, thread, pinned) in reports.iter().take(threads - 1) {
            pinned?;
            helpers[worker - 1] = thread;
        }
        Ok(Self {
            inner,
            cpus: cpus.clone(),
            pin,
            caller: AtomicI32::new(affinity::current_thread_id()),
            helpers,
        })
    }

    /// The team that a plan gives the stage `name`, with the calling thread as worker 0.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_plan(name: &str, plan: &StagePlan) -> Result<Self, Problem> {
        // Neither pinned nor confined: the kernel places the workers, which the team takes as an empty set.
        let cpus = if plan.pin || plan.confine {
            plan.cpus.clone()
        } else {
            CpuSet::new()
        };
        let team = Self::new(name, &cpus, plan.threads, plan.pin)?;
        team.adopt_current_thread()?;
        Ok(team)
    }

    /// A team of the calling thread alone; touches no affinity and no atomics.
    ///
    /// # Errors
    /// As [`Self::new`]; none in practice, as no thread is started.
    pub fn single() -> Result<Self, Problem> {
        Self::new("single", &CpuSet::new(), 1, false)
    }

    /// Makes the calling thread worker 0: gives it its place among the CPUs and reports its id from now on.
    ///
    /// # Errors
    /// `pin_failed` when the kernel refuses.
    pub fn adopt_current_thread(&self) -> Result<(), Problem> {
        settle(&place(&self.cpus, 0, self.pin))?;
        self.caller
            .store(affinity::current_thread_id(), Ordering::Relaxed);
        Ok(())
    }

    /// Workers, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.workers()
    }

    /// Kernel thread ids; worker 0 is the thread that adopted (else made) the team.
    #[must_use]
    pub fn worker_tids(&self) -> Vec<i32> {
        let caller = self.caller.load(Ordering::Relaxed);
        std::iter::once(caller)
            .chain(self.helpers.iter().copied())
            .collect()
    }

    /// CPUs each worker may run on, from the kernel, in worker order.
    ///
    /// # Errors
    /// `probe_failed` when `/proc` cannot be read.
    pub fn worker_cpus(&self) -> Result<Vec<CpuSet>, Problem> {
        self.worker_tids()
            .into_iter()
            .map(affinity::allowed_cpus)
            .collect()
    }

    /// Calls `job(worker)` once for each worker and waits for all. A nested call runs all shares on its own thread.
    ///
    /// # Panics
    /// Passes on a panic of any worker, after all have ended.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        self.inner.run(job);
    }

    /// Splits `out` into chunks of `chunk_len` (the last may be shorter) and calls `job(index, chunk)` for each, a
    /// contiguous run of chunks per worker.
    ///
    /// # Panics
    /// If `chunk_len` is zero, and as [`Self::run`].
    pub fn for_each_chunk<T: Send>(
        &self,
        out: &mut [T],
        chunk_len: usize,
        job: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        self.inner.for_each_piece(out, chunk_len, job);
    }
}

fn place(cpus: &CpuSet, worker: usize, pin: bool) -> CpuSet {
    if pin {
        cpus.iter().skip(worker).take(1).collect()
    } else {
        cpus.clone()
    }
}

fn settle(place: &CpuSet) -> Result<(), Problem> {
    if place.is_empty() {
        Ok(())
    } else {
        affinity::pin_current_thread(place)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_worker_runs_once_in_many_runs() {
        for threads in 1..=8 {
            let team = Team::new("count", &CpuSet::new(), threads, false).unwrap();
            assert_eq!(team.threads(), threads);
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..=300 {
                team.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new("panic", &CpuSet::new(), 4, false).unwrap();
        for guilty in 0..4 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|worker| assert!(worker != guilty, "worker {worker} fails"));
            }));
            let payload = caught.unwrap_err();
            let text = payload.downcast_ref::<String>().unwrap();
            assert!(text.contains(&format!("worker {guilty} fails")), "{text}");
        }
        let ran = AtomicUsize::new(0);
        team.run(&|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 4);
    }

    #[test]
    fn chunks_are_disjoint_and_complete() {
        for threads in 1..=5 {
            let team = Team::new("chunks", &CpuSet::new(), threads, false).unwrap();
            for (len, chunk) in [(0, 3), (1, 3), (10, 3), (1000, 7), (64, 64)] {
                let mut out = vec![0u32; len];
                team.for_each_chunk(&mut out, chunk, &|index, part| {
                    for (at, item) in part.iter_mut().enumerate() {
                        *item += (index * chunk + at) as u32 + 1;
                    }
                });
                assert!(out.iter().enumerate().all(|(at, &item)| item == at as u32 + 1));
            }
        }
    }

    #[test]
    fn a_nested_run_does_not_hang() {
        let team = Team::new("nested", &CpuSet::new(), 2, false).unwrap();
        let ran = AtomicUsize::new(0);
        team.run(&|_| {
            team.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(ran.into_inner(), 4);
    }

    #[test]
    fn pinned_workers_sit_where_the_plan_says() {
        std::thread::spawn(|| {
            let mine = affinity::allowed_cpus(affinity::current_thread_id()).unwrap();
            let threads = mine.len().min(2);
            let team = Team::new("pinned", &mine, threads, true).unwrap();
            team.adopt_current_thread().unwrap();
            let expected: Vec<CpuSet> = mine
                .iter()
                .take(threads)
                .map(|cpu| std::iter::once(cpu).collect())
                .collect();
            assert_eq!(team.worker_cpus().unwrap(), expected);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn impossible_teams_are_refused() {
        let one: CpuSet = "0".parse().unwrap();
        assert_eq!(
            Team::new("none", &one, 0, false).unwrap_err().code,
            Code::BadValue
        );
        assert_eq!(Team::new("many", &one, 2, true).unwrap_err().code, Code::BadValue);
        let absent: CpuSet = "1000".parse().unwrap();
        let alone: CpuSet = "1000-1001".parse().unwrap();
        assert!(Team::new("absent", &absent, 2, false).is_err());
        assert_eq!(
            Team::new("absent", &alone, 2, true).unwrap_err().code,
            Code::PinFailed
        );
    }
}
