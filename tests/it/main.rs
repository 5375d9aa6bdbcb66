//! The one integration binary: whole-program tests, by room.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a failed unwrap is a failed test; a skipped test says so"
)]

/// Says on the terminal that a test, or part of one, is skipped. The test runner keeps what `eprintln!` says of a test
/// that passes; this is shown all the same.
macro_rules! skipped {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        // A test is not less skipped where nobody can be told.
        let _ = writeln!(std::io::stderr().lock(), $($part)*);
    }};
}

mod architecture;
mod cli;
mod config;
mod engine;
mod fetch;
mod flips;
mod fuzz;
mod golden_plans;
mod memory;
mod model;
mod plan;
mod probe;
#[cfg(target_os = "linux")]
mod probe_cgroup;
mod probe_damaged;
mod probe_nvml;
mod probe_robust;
mod probe_variations;
mod server;
mod support;
mod text;
mod user_reports;
