//! Facts about a model file or folder, read from headers only.
//!
//! In: a path. Out: [`ModelCard`] and, for the engine, [`weights::Weights`].
//! Invariant: nothing here allocates by a number read from a file before checking it against the file's size.

pub mod card;
pub mod kv;

pub use card::ModelCard;
