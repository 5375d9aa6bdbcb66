//! Operating-system calls: memory regions, CPU affinity, limits, the fork-join primitive under worker teams, libraries
//! opened at run time.
//!
//! In: plain values. Out: safe functions and types that give what they took back on drop.
//! Invariant: all `unsafe` that is not SIMD stands in here, each block with the reason why it is sound.

pub mod affinity;
pub mod amx;
pub mod fork_join;
pub mod limits;
pub mod mapping;
pub mod memory;
pub mod nvml;
pub mod pages;
pub mod process_memory;
pub mod startup;
