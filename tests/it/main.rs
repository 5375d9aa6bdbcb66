//! The one integration binary: whole-program tests, by room.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a failed unwrap is a failed test; a skipped test says so"
)]

mod architecture;
mod cli;
mod config;
mod engine;
mod fetch;
mod model;
mod plan;
mod probe;
#[cfg(target_os = "linux")]
mod probe_cgroup;
mod probe_damaged;
mod probe_robust;
mod server;
mod support;
mod text;
