//! The probe: files and CPUID in, `Hardware` out.
//!
//! In: a [`Root`] ("/" or a captured machine). Out: [`Hardware`], serialisable, able to replace probing.
//! Invariant: never guesses: what cannot be known is absent and said in `warnings`; never runs the engine.

pub mod hardware;

pub use hardware::Hardware;
