//! The class of a machine, which selects `hardware/<class>.yaml`.
//!
//! In: architecture, environment signs, accelerators. Out: [`HardwareClass`].
//! Invariant: a card that this process cannot use does not change the class; `npu_phone` is never detected, only
//! stated by `--hardware FILE`.

use super::hardware::{Accelerator, HardwareClass};

/// First rule that fits: Tegra or another NVIDIA processor with one pool of memory, a usable NVIDIA card, Arm, x86.
#[must_use]
pub fn class(arch: &str, tegra: bool, accelerators: &[Accelerator]) -> HardwareClass {
    let nvidia = |unified| {
        accelerators.iter().any(|a| {
            a.vendor == "nvidia" && a.kind.starts_with("gpu") && a.usable && a.unified_memory == unified
        })
    };
    if tegra || nvidia(true) {
        HardwareClass::Jetson
    } else if nvidia(false) {
        HardwareClass::CudaDiscrete
    } else if arch == "aarch64" || arch.starts_with("arm") {
        HardwareClass::Arm64Cpu
    } else {
        HardwareClass::X86Cpu
    }
}
