//! Fork-join over a fixed set of threads: the unsafe core under [`crate::engine`]'s worker team.
//!
//! In: a closure that may borrow from the caller. Out: it has run once for each worker index, or a panic is passed on.
//! Invariant: `run` returns only after every share has ended, so the borrow outlives every use; and it never waits for
//! a helper that has not begun: on a busy machine the caller does that share itself.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Busy checks before a waiting thread starts to yield: about 50 µs, longer than the gap between two parallel
/// regions of a token, shorter than anything a person would notice on the power meter.
const SPINS: u32 = 1500;
/// Yields before it sleeps; a yield costs nothing where nobody else wants the CPU.
const YIELDS: u32 = 60;

/// Runs of pieces for each worker in [`ForkJoin::for_each_piece`].
const RUNS_EACH: usize = 4;

/// A closure of worker index, its lifetime erased.
type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Number of the current region; a change tells the helpers to start.
    epoch: AtomicU64,
    /// The closure of the current region. Written by the caller while no helper runs, read by helpers after they
    /// have seen the new epoch.
    job: UnsafeCell<Option<Job>>,
    /// Shares of the current region that have not ended, the caller's own not counted.
    pending: AtomicUsize,
    /// Per helper: the last region whose share somebody began. One less than the region's number means that the share
    /// is free; the helper or, once its own share is done, the caller takes it.
    claims: Vec<AtomicU64>,
    stop: AtomicBool,
    /// Per helper: it is (about to be) parked.
    asleep: Vec<AtomicBool>,
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync`; the epoch protocol above orders every access to it.
unsafe impl Sync for Shared {}
// SAFETY: the erased closure is `Sync` and is only used while its owner waits in `run`.
unsafe impl Send for Shared {}

/// Threads that run one closure together with the caller. With no helpers, `run` is a plain call.
pub struct ForkJoin {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

impl ForkJoin {
    /// Starts `workers − 1` helpers named `name-1`, `name-2`, …; each calls `enter(worker)` once before waiting.
    ///
    /// # Errors
    /// What the system said when a thread could not be started; threads already started are stopped.
    pub fn start(
        name: &str,
        workers: usize,
        enter: impl Fn(usize) + Send + Clone + 'static,
    ) -> std::io::Result<Self> {
        let helpers = workers.saturating_sub(1);
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            claims: (0..helpers).map(|_| AtomicU64::new(0)).collect(),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            caller_asleep: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut team = Self {
            shared,
            helpers: Vec::with_capacity(helpers),
            busy: AtomicBool::new(false),
        };
        for helper in 0..helpers {
            let shared = Arc::clone(&team.shared);
            let enter = enter.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{}", helper + 1))
                .spawn(move || {
                    enter(helper + 1);
                    help(&shared, helper);
                })?;
            team.helpers.push(thread);
        }
        Ok(team)
    }

    /// Workers, the caller included.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `job(share)` once for every share in `0..workers()` and returns when all are done. Share 0 runs on the
    /// calling thread and share i on helper i, unless that helper has not begun when the caller is free: then the
    /// caller takes it, so a helper without a CPU costs nothing. A call from inside a running job, or from a second thread at the same time, runs every worker's
    /// share on the calling thread.
    ///
    /// # Panics
    /// Passes on a panic of any share after all shares have ended.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.helpers.is_empty() {
            job(0);
            return;
        }
        if self.busy.swap(true, Ordering::Acquire) {
            (0..self.workers()).for_each(job);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. Helpers use the pointer only between claiming a share of this region and
        // their decrement of `pending`, and this function does not return before `pending` is zero.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `busy` makes us the only caller; all shares of the last region were claimed, and none is running
        // (pending is zero), so no helper reads `job` before it claims a share of the next region.
        unsafe { *shared.job.get() = Some(erased) };
        shared.pending.store(self.helpers.len(), Ordering::Relaxed);
        let region = shared.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake_helpers();
        let own = catch_unwind(AssertUnwindSafe(|| {
            job(0);
            for helper in 0..self.helpers.len() {
                if claim(shared, helper, region) {
                    // Counted down first: nobody else can run it, and a panic below must not leave us waiting.
                    shared.pending.fetch_sub(1, Ordering::SeqCst);
                    job(helper + 1);
                }
            }
        }));
        if own.is_err() {
            // Shares that the panic kept us from taking belong to nobody else if a helper has no CPU.
            for helper in 0..self.helpers.len() {
                if claim(shared, helper, region) {
                    shared.pending.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
        wait_for_helpers(shared);
        // SAFETY: no share is running and none is free; nobody reads `job` until the next region.
        unsafe { *shared.job.get() = None };
        let theirs = lock(&shared.panic).take();
        self.busy.store(false, Ordering::Release);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }

    /// Splits `items` into pieces of `piece` (the last may be shorter), gives workers contiguous runs of pieces in turn,
    /// and calls `job(piece index, piece)` for each.
    ///
    /// # Panics
    /// If `piece` is zero, and as [`Self::run`].
    pub fn for_each_piece<T: Send>(
        &self,
        items: &mut [T],
        piece: usize,
        job: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        assert!(piece > 0, "pieces of no items");
        let pieces = items.len().div_ceil(piece);
        let workers = self.workers();
        if workers == 1 || pieces <= 1 {
            for (index, part) in items.chunks_mut(piece).enumerate() {
                job(index, part);
            }
            return;
        }
        let base = Base(items.as_mut_ptr());
        let len = items.len();
        // Several runs a worker: one that loses its CPU holds up only a part of the rest.
        let runs = pieces.min(workers * RUNS_EACH);
        let next = AtomicUsize::new(0);
        self.run(&|_| {
            let base = &base;
            let turns =
                std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&run| run < runs);
            for index in turns.flat_map(|run| share(run, runs, pieces)) {
                let from = index * piece;
                let to = (from + piece).min(len);
                // SAFETY: `from..to` lies inside `items` (index < pieces); pieces do not overlap, each is in
                // one run, and `next` gives each run to one worker. `items` stays borrowed until `run` returns.
                let part = unsafe { std::slice::from_raw_parts_mut(base.0.add(from), to - from) };
                job(index, part);
            }
        });
    }

    fn wake_helpers(&self) {
        for (asleep, helper) in self.shared.asleep.iter().zip(&self.helpers) {
            if asleep.swap(false, Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
    }
}

/// The contiguous share number `worker` of `workers` shares of `0..count`; shares differ by at most one.
#[must_use]
pub fn share(worker: usize, workers: usize, count: usize) -> Range<usize> {
    let each = count / workers;
    let extra = count % workers;
    let start = worker * each + worker.min(extra);
    start..start + each + usize::from(worker < extra)
}

/// A pointer that worker closures may share; whoever uses it proves that parts are disjoint.
struct Base<T>(*mut T);
// SAFETY: used only in `for_each_piece`, which hands disjoint parts to workers and requires `T: Send`.
unsafe impl<T: Send> Sync for Base<T> {}

impl Drop for ForkJoin {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake_helpers();
        for helper in self.helpers.drain(..) {
            // A helper that panicked outside a job has nothing left to report to.
            let _ = helper.join();
        }
    }
}

impl std::fmt::Debug for ForkJoin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ForkJoin")
            .field("workers", &self.workers())
            .finish_non_exhaustive()
    }
}

fn help(shared: &Shared, helper: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_epoch(shared, helper, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !claim(shared, helper, seen) {
            continue;
        }
        // SAFETY: this share is ours and has not ended, so the caller is inside the region's `run`: it wrote `job`
        // before the region began and will not touch it until we decrement.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            // SAFETY: the caller is inside `run` and keeps the closure alive until `pending` is zero.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(helper + 1) }));
            if let Err(payload) = outcome {
                lock(&shared.panic).get_or_insert(payload);
            }
        }
        if shared.pending.fetch_sub(1, Ordering::SeqCst) == 1
            && shared.caller_asleep.load(Ordering::SeqCst)
            && let Some(caller) = lock(&shared.caller).as_ref()
        {
            caller.unpark();
        }
    }
}

/// Takes a helper's share of a region, unless somebody has.
fn claim(shared: &Shared, helper: usize, region: u64) -> bool {
    shared.claims[helper]
        .compare_exchange(region - 1, region, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

fn wait_for_epoch(shared: &Shared, helper: usize, seen: u64) -> u64 {
    let changed = || {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        (epoch != seen).then_some(epoch)
    };
    for _ in 0..SPINS {
        if let Some(epoch) = changed() {
            return epoch;
        }
        std::hint::spin_loop();
    }
    for _ in 0..YIELDS {
        if let Some(epoch) = changed() {
            return epoch;
        }
        std::thread::yield_now();
    }
    loop {
        // Announce, then look again: either we see the new epoch, or the caller sees the announcement.
        shared.asleep[helper].store(true, Ordering::SeqCst);
        if let Some(epoch) = changed() {
            shared.asleep[helper].store(false, Ordering::SeqCst);
            return epoch;
        }
        std::thread::park();
    }
}

fn wait_for_helpers(shared: &Shared) {
    let done = || shared.pending.load(Ordering::SeqCst) == 0;
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    for _ in 0..YIELDS {
        if done() {
            return;
        }
        std::thread::yield_now();
    }
    *lock(&shared.caller) = Some(std::thread::current());
    shared.caller_asleep.store(true, Ordering::SeqCst);
    while !done() {
        std::thread::park();
    }
    shared.caller_asleep.store(false, Ordering::SeqCst);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // The guarded values are plain slots, always whole; a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for workers in 1..9 {
            for count in [0, 1, 7, 8, 100] {
                let mut next = 0;
                for worker in 0..workers {
                    let share = share(worker, workers, count);
                    assert_eq!(share.start, next);
                    next = share.end;
                }
                assert_eq!(next, count);
            }
        }
    }

    #[test]
    fn a_helper_without_a_cpu_is_not_waited_for() {
        // The helper is held before its first region, as if the system gave it no CPU.
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let entry = Arc::clone(&gate);
        let team = ForkJoin::start("late", 2, move |_| drop(entry.lock())).unwrap();
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        for _ in 0..100 {
            team.run(&|worker| {
                counts[worker].fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(held);
        for _ in 0..100 {
            team.run(&|worker| {
                counts[worker].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 200));
    }

    #[test]
    fn helpers_wake_from_sleep() {
        let team = ForkJoin::start("sleepy", 3, |_| {}).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            team.run(&|worker| {
                // Long enough that the caller sleeps too.
                if worker == 2 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                sum.fetch_add(worker + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 5 * 6);
    }
}
