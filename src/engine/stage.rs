//! A stage: one network with its state, run by one leading thread.
//!
//! In: rows of a pass. Out: logits of the rows that asked. Invariant: a pass that fails or panics leaves the stage
//! usable for the next one; sequences that were in it have lost their state.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::nets::Row;
use crate::base::{Code, Problem};
use crate::plan::EffectiveStage;

/// Sizes that scheduling needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSizes {
    /// Length of a row of logits.
    pub vocab: usize,
    /// Tokens a sequence has room for.
    pub context: usize,
    /// Sequence slots.
    pub max_seqs: usize,
    /// Most prompt rows in one pass; decode rows come on top, one a sequence.
    pub prefill_batch: usize,
}

/// One network with its state.
pub trait Stage {
    /// Sizes that do not change.
    fn sizes(&self) -> StageSizes;

    /// Runs one pass. Returns one row of [`StageSizes::vocab`] logits for each row that asks, in row order.
    ///
    /// # Errors
    /// When the pass cannot be run; the sequences in it must be given up.
    fn pass(&mut self, rows: &[Row]) -> Result<&mut [f32], Problem>;

    /// What the stage really uses, read back now.
    ///
    /// # Errors
    /// When the operating system cannot be asked.
    fn effective(&self) -> Result<EffectiveStage, Problem>;
}

/// Runs a pass and turns a panic into a problem, so that only the requests in it are lost.
///
/// # Errors
/// The pass's own problem, or `stage_failed` with the panic's text.
pub fn guarded_pass<'s>(stage: &'s mut dyn Stage, rows: &[Row]) -> Result<&'s mut [f32], Problem> {
    catch_unwind(AssertUnwindSafe(once(|| stage.pass(rows)))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without text");
        tracing::error!(panic = text, rows = rows.len(), "a pass failed");
        Err(Problem::new(
            Code::StageFailed,
            format!("the engine failed while it worked on this request: {text}"),
            "send the request again; if it fails again, report it with the log",
        ))
    })
}

/// Tells the compiler that a closure is called once, so that it may give its borrow away.
fn once<R>(call: impl FnOnce() -> R) -> impl FnOnce() -> R {
    call
}
