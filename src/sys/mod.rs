//! (room being built)
pub mod mapping;
