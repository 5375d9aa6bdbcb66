//! Parts of networks that are more than one kernel call.
//!
//! In: positions, rows. Out: what the networks in `nets/` put together. Invariant: safe code over `kernels`.

pub mod conv;
pub mod norm;
pub mod rope;
