//! Benches on a running engine, through the same handle a server uses.
//!
//! In: an engine's [`crate::engine::handle::Handle`] and what to measure. Out: rates with their spread, as text or JSON.
//! Invariant: arms alternate within one run; a rate is never reported without minimum and maximum.

pub mod generation;

pub use generation::{GenerationSpec, Report, generation};
