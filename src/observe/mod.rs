//! What is happening: log lines, numbers for people and monitors.
//!
//! In: events and counts of every room, the control group's files. Out: stderr, pages, values.
//! Invariant: watching never changes what runs.

pub mod logging;
pub mod metrics;
pub mod throttling;
