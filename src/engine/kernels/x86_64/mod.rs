//! Tables for x86-64.
//!
//! In: what the CPU says of itself. Out: the tables it can run.
//! Invariant: `tables` gives only tables whose every feature was detected on this machine.

#![allow(
    clippy::wildcard_imports,
    reason = "the intrinsics' own names say where they come from"
)]
#![allow(clippy::cast_ptr_alignment, reason = "read with unaligned loads")]
#![allow(
    clippy::needless_range_loop,
    reason = "the same index counts registers and memory"
)]

mod avx2;
mod avx512_bf16;
mod avx512_vnni;
mod avx_vnni;
mod ymm;

use super::Kernels;

/// Tables beyond scalar that this CPU can run, lowest first.
pub(super) fn tables() -> impl Iterator<Item = Kernels> {
    [
        avx2::table(),
        avx_vnni::table(),
        avx512_vnni::table(),
        avx512_bf16::table(),
    ]
    .into_iter()
    .flatten()
}
