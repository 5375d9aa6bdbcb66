//! The way back to whoever asked: at most one last event, and one for certain.
//!
//! In: events. Out: the same on the caller's channel. Invariant: dropped without a last event, it says that the
//! engine failed; so no request can end in silence, whatever thread dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::{SpeechEvent, SpeechUsage};
use crate::base::{Code, Problem};
use crate::engine::speech::SpeechEnd;

/// A place among the requests in flight, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// A place, if fewer than `most` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < most).then_some(n + 1)
            })
            .ok()
            .map(|_| Self(Arc::clone(taken)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One request's way back.
#[derive(Debug)]
pub(super) struct Reply {
    events: UnboundedSender<SpeechEvent>,
    cancel: Arc<AtomicBool>,
    pub(super) submitted: Instant,
    pub(super) deadline: Option<Instant>,
    ended: bool,
    _seat: Seat,
}

impl Reply {
    pub(super) fn new(
        events: UnboundedSender<SpeechEvent>,
        cancel: Arc<AtomicBool>,
        submitted: Instant,
        deadline: Option<Instant>,
        seat: Seat,
    ) -> Self {
        Self {
            events,
            cancel,
            submitted,
            deadline,
            ended: false,
            _seat: seat,
        }
    }

    /// Whether the caller has left or cancelled.
    pub(super) fn abandoned(&self) -> bool {
        self.cancel.load(Ordering::Relaxed) || self.events.is_closed()
    }

    /// The flag that ends the request everywhere.
    pub(super) fn cancel_flag(&self) -> &Arc<AtomicBool> {
        &self.cancel
    }

    pub(super) fn audio(&self, samples: Vec<f32>, frames: usize) {
        // A caller who has left is noticed by `abandoned`.
        let _ = self.events.send(SpeechEvent::Audio { samples, frames });
    }

    pub(super) fn done(mut self, end: SpeechEnd, usage: SpeechUsage) {
        self.ended = true;
        let _ = self.events.send(SpeechEvent::Done { end, usage });
    }

    pub(super) fn fail(mut self, problem: Problem) {
        self.ended = true;
        let _ = self.events.send(SpeechEvent::Failed(problem));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.events.send(SpeechEvent::Failed(failed(
                "it ended before this request was done",
            )));
        }
    }
}

/// A part of the engine failed.
pub(super) fn failed(what: &str) -> Problem {
    Problem::new(
        Code::StageFailed,
        format!("the speech engine failed while it worked on this request: {what}"),
        "send the request again; if it fails again, report it with the log",
    )
}

/// The text of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without text")
}
