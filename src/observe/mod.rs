//! What is happening: log lines.
//!
//! In: events of every room. Out: stderr. Invariant: watching never changes what runs.

pub mod logging;
