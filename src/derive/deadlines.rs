//! Deadlines: one for each phase, each measured from that phase's own start.
//!
//! In: bytes to read, policy, pins. Out: load, warm-up and shutdown deadlines.
//! Invariant: a download never counts into the load deadline; a pinned deadline is kept as it is.

use super::decision::{Decision, Pin, pin_or};
use crate::base::{Bytes, Millis};
use crate::config::Policy;

/// What somebody set about deadlines.
#[derive(Clone, Debug, Default)]
pub struct DeadlinePins {
    /// Reading and preparing weights.
    pub load: Option<Pin<Millis>>,
    /// First tokens after loading.
    pub warmup: Option<Pin<Millis>>,
    /// Finishing what runs.
    pub shutdown: Option<Pin<Millis>>,
}

/// The deadlines of the phases.
#[derive(Clone, Debug)]
pub struct DeadlineDraft {
    /// Reading and preparing weights.
    pub load: Decision<Millis>,
    /// First tokens after loading.
    pub warmup: Decision<Millis>,
    /// Finishing what runs.
    pub shutdown: Decision<Millis>,
}

/// Load time by a cost model, the others by policy.
#[must_use]
pub fn choose(file_bytes: Bytes, policy: &Policy, pins: &DeadlinePins) -> DeadlineDraft {
    let read = policy.read_bytes_per_s.0.max(1);
    let seconds = file_bytes.0 as f64 / read as f64 * policy.load_margin.max(1.0);
    let computed = Millis((seconds * 1000.0).ceil() as u64);
    let load = computed.max(policy.load_min_ms);
    let mut load = pin_or(
        pins.load.as_ref(),
        "deadline.load",
        load,
        format!(
            "{file_bytes} at {}/s × {} = {computed}, at least {}; a download does not count",
            policy.read_bytes_per_s, policy.load_margin, policy.load_min_ms
        ),
    );
    if pins.load.is_none() && computed < policy.load_min_ms {
        load = load.bounded(Some("`policy.load_min_ms`".to_owned()));
    }
    DeadlineDraft {
        load,
        warmup: pin_or(
            pins.warmup.as_ref(),
            "deadline.warmup",
            policy.warmup_ms,
            "`policy.warmup_ms`, from the end of loading",
        ),
        shutdown: pin_or(
            pins.shutdown.as_ref(),
            "deadline.shutdown",
            policy.shutdown_ms,
            "`policy.shutdown_ms`, from the request to stop",
        ),
    }
}
