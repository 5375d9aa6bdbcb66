//! The profiles and class files shipped inside the program.
//!
//! In: the folders `profiles/` and `hardware/` at build time. Out: tables of name and text.
//! Invariant: the tables equal the folders (a test compares them), so a forgotten file is noticed.

macro_rules! table {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../", $folder, "/", $name, ".yaml"))),)+]
    };
}

/// Profiles by name.
pub const PROFILES: &[(&str, &str)] = table!("profiles": "gemma3", "llama", "qwen3", "qwen3_tts", "spark2_5");

/// Class files by name.
pub const HARDWARE: &[(&str, &str)] =
    table!("hardware": "arm64_cpu", "cuda_discrete", "jetson", "npu_phone", "x86_cpu");

/// Policy below every class file.
pub const POLICY: &str = include_str!("policy.yaml");
