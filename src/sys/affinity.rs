//! Which CPUs a thread may run on: set it, ask the kernel what it really is.
//!
//! In: a `CpuSet` of kernel ids. Out: the kernel's answer, read back from `/proc`.
//! Invariant: nothing is assumed to have worked; a refused pin is an error, never ignored.

use crate::base::{Code, CpuSet, Problem};

/// Allows the calling thread to run on `cpus` only.
///
/// # Errors
/// `pin_failed` when the set is empty, holds an id the kernel cannot address, or the kernel refuses.
pub fn pin_current_thread(cpus: &CpuSet) -> Result<(), Problem> {
    let failed = |reason: String| {
        Problem::new(
            Code::PinFailed,
            format!("cannot run a thread on CPUs `{cpus}`: {reason}"),
            "choose CPUs this process may use (`edge-deploy probe` lists them)",
        )
    };
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter() {
        let index = cpu as usize;
        if index >= rustix::thread::CpuSet::MAX_CPU {
            return Err(failed(format!(
                "CPU {cpu} is beyond the {} that can be addressed",
                rustix::thread::CpuSet::MAX_CPU
            )));
        }
        set.set(index);
    }
    if cpus.is_empty() {
        return Err(failed("the set is empty".to_owned()));
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| failed(error.to_string()))
}

/// The kernel's id of the calling thread.
#[must_use]
pub fn current_thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The CPUs a thread of this process may run on, from `/proc/self/task/<tid>/status`.
///
/// # Errors
/// `probe_failed` when the thread is gone or the file cannot be read.
pub fn allowed_cpus(thread: i32) -> Result<CpuSet, Problem> {
    let path = format!("/proc/self/task/{thread}/status");
    let failed = |reason: String| {
        Problem::new(
            Code::ProbeFailed,
            format!("cannot read {path}: {reason}"),
            "check that /proc is mounted",
        )
    };
    let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .ok_or_else(|| failed("it has no Cpus_allowed_list".to_owned()))?;
    list.trim().parse().map_err(|error| failed(format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_back_from_the_kernel() {
        std::thread::spawn(|| {
            let before = allowed_cpus(current_thread_id()).unwrap();
            let one: CpuSet = before.last().into_iter().collect();
            pin_current_thread(&one).unwrap();
            assert_eq!(allowed_cpus(current_thread_id()).unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn impossible_pins_are_refused() {
        for text in ["", "60000"] {
            let cpus: CpuSet = text.parse().unwrap();
            assert_eq!(pin_current_thread(&cpus).unwrap_err().code, Code::PinFailed);
        }
        assert_eq!(allowed_cpus(-5).unwrap_err().code, Code::ProbeFailed);
    }
}
