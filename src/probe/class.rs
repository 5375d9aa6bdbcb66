//! The class of a machine, which selects `hardware/<class>.yaml`.
//!
//! In: architecture, environment signs, accelerators. Out: [`HardwareClass`].
//! Invariant: a GPU that this process cannot use does not change the class; `npu_phone` is never detected, only
//! stated by `--hardware FILE`.
//!
//! What a class decides is how much memory to leave alone, how many threads, sequences and tokens to allow, and how fast
//! models are read. `jetson` is for Tegra boards: few cores, 4 to 64 GB, a small disk. GB10 ("DGX Spark") also shares
//! one memory between processor and GPU, but it is a computer with 20 large cores, 128 GB, a fast NVMe disk and the
//! same driver as a card, so it is `cuda_discrete`; that its GPU has no memory of its own is a fact of the GPU
//! (`unified_memory`), and no class ever adds a GPU's memory to the budget.

use super::hardware::{Accelerator, HardwareClass};

/// First rule that fits: Tegra by its device tree, a usable NVIDIA GPU under the usual driver, Arm, x86.
#[must_use]
pub fn class(arch: &str, tegra: bool, accelerators: &[Accelerator]) -> HardwareClass {
    let nvidia = accelerators
        .iter()
        .any(|a| a.vendor == "nvidia" && a.kind.starts_with("gpu") && a.usable);
    if tegra {
        HardwareClass::Jetson
    } else if nvidia {
        HardwareClass::CudaDiscrete
    } else if arch == "aarch64" || arch.starts_with("arm") {
        HardwareClass::Arm64Cpu
    } else {
        HardwareClass::X86Cpu
    }
}
