//! Limits of this process: how readily the kernel kills it, open files, locked memory.
//!
//! In: plain numbers. Out: what the kernel accepted.
//! Invariant: raising never lowers; a refusal is reported to the caller.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::base::{Code, Problem};

/// Sets how readily the kernel's out-of-memory killer picks this process: −1000 (never) to 1000 (first).
///
/// # Errors
/// `hardware_limit` when the kernel refuses; lowering the value needs a privilege.
pub fn set_oom_score_adj(score: i32) -> Result<(), Problem> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string()).map_err(|error| {
        Problem::new(
            Code::HardwareLimit,
            format!("cannot set oom_score_adj to {score}: {error}"),
            "use a value at or above the current one, or run with CAP_SYS_RESOURCE",
        )
    })
}

/// Raises the soft limit of open files to the hard limit; returns the limit now in force (`None` = unlimited).
///
/// # Errors
/// `hardware_limit` when the kernel refuses.
pub fn raise_open_files() -> Result<Option<u64>, Problem> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(current);
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        Problem::new(
            Code::HardwareLimit,
            format!("cannot raise the limit of open files from {current:?} to {maximum:?}: {error}"),
            "raise it with `ulimit -n` before starting",
        )
    })?;
    Ok(getrlimit(Resource::Nofile).current)
}

/// The most bytes of address space this process may map; `None` = unlimited.
#[must_use]
pub fn address_space_bytes() -> Option<u64> {
    getrlimit(Resource::As).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_read_and_raised() {
        let raised = raise_open_files().unwrap();
        assert_eq!(raised, getrlimit(Resource::Nofile).maximum);
        assert!(address_space_bytes().is_none_or(|bytes| bytes > 0));
        assert_eq!(set_oom_score_adj(5000).unwrap_err().code, Code::HardwareLimit);
    }
}
