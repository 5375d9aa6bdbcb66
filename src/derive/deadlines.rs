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

/// Each phase by its own cost: loading reads the files and lays the weights out; the first token reads every weight
/// once more. All times the margin, and never below the policy's least.
#[must_use]
pub fn choose(file_bytes: Bytes, held_bytes: Bytes, policy: &Policy, pins: &DeadlinePins) -> DeadlineDraft {
    let margin = policy.load_margin.max(1.0);
    let seconds = |bytes: Bytes, rate: Bytes| bytes.0 as f64 / rate.0.max(1) as f64;
    // Whole seconds: a deadline is no measurement.
    let millis = |seconds: f64| Millis(((seconds * margin).ceil() as u64).saturating_mul(1000));
    let read = seconds(file_bytes, policy.read_bytes_per_s);
    let layout = seconds(held_bytes, policy.pack_bytes_per_s);
    let load = millis(read + layout);
    let pass = seconds(held_bytes, policy.pack_bytes_per_s);
    let warmup = millis(pass);
    DeadlineDraft {
        load: at_least(
            pins.load.as_ref(),
            "deadline.load",
            load,
            (policy.load_min_ms, "load_min_ms"),
            format!(
                "reading {file_bytes} at {}/s and laying out {held_bytes} at {}/s, × {margin} = {load}; a download does not count",
                policy.read_bytes_per_s, policy.pack_bytes_per_s
            ),
        ),
        warmup: at_least(
            pins.warmup.as_ref(),
            "deadline.warmup",
            warmup,
            (policy.warmup_ms, "warmup_ms"),
            format!(
                "one pass over {held_bytes} at {}/s, × {margin} = {warmup}, from the end of loading",
                policy.pack_bytes_per_s
            ),
        ),
        shutdown: pin_or(
            pins.shutdown.as_ref(),
            "deadline.shutdown",
            policy.shutdown_ms,
            "`policy.shutdown_ms`, from the request to stop",
        ),
    }
}

/// A computed deadline that is not below the policy's least.
fn at_least(
    pin: Option<&Pin<Millis>>,
    rule: &str,
    computed: Millis,
    (least, key): (Millis, &str),
    because: String,
) -> Decision<Millis> {
    let decision = pin_or(
        pin,
        rule,
        computed.max(least),
        format!("{because}; at least {least}"),
    );
    if pin.is_none() && computed < least {
        return decision.bounded(Some(format!("`policy.{key}`")));
    }
    decision
}
