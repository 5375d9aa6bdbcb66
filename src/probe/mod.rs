//! The probe: files and CPUID in, `Hardware` out.
//!
//! In: a [`Root`] ("/" or a captured machine). Out: [`Hardware`], serialisable, able to replace probing.
//! Invariant: never guesses: what cannot be known is absent and said in `warnings`; never runs the engine.

mod accelerators;
pub mod cgroup;
mod class;
mod cpu_budget;
pub mod cpuid;
pub mod cpuinfo;
pub mod doctor;
mod environment;
mod facts;
pub mod fingerprint;
pub mod hardware;
mod isa;
mod kinds;
pub mod memory_budget;
pub mod nvidia;
pub mod report;
pub mod root;
pub mod storage;
mod thermal;
pub mod topology;
pub mod topology_cpuid;
#[cfg(feature = "hwloc")]
pub mod topology_hwloc;
pub mod topology_sysfs;

use std::collections::BTreeMap;

use cgroup::Cgroups;
use cpuid::Recorded;
use cpuinfo::CpuInfo;
use environment::Signs;
pub use facts::facts;
use hardware::Cpus;
pub use hardware::Hardware;
use raw_cpuid::CpuId;
pub use root::Root;
use topology_cpuid::CpuidReader;
use topology_sysfs::SysfsReader;

use crate::base::{Code, CpuSet, Problem};

/// Reads a machine.
///
/// # Errors
/// `probe_failed` where not even one CPU can be found.
pub fn probe(root: &Root) -> Result<Hardware, Problem> {
    let mut warnings = Vec::new();
    let info = CpuInfo::read(root);
    let groups = Cgroups::read(root);
    let signs = Signs::read(root, &info, &groups);
    let dumps = cpuid::recorded(root);
    let mut cpus = cpu_budget::cpus(root, &info, &groups, &mut warnings);
    if cpus.online.is_empty() {
        // A dump alone: it has nothing but the processors.
        let all: CpuSet = dumps.keys().copied().collect();
        cpus = Cpus {
            online: all.clone(),
            possible: all.clone(),
            present: all.clone(),
            allowed: all,
            ..cpus
        };
    }
    if cpus.online.is_empty() {
        return Err(no_cpus());
    }
    let quota = cpu_budget::quota(root, &groups, &mut warnings);
    let allowed_nodes = cpu_budget::allowed_nodes(root, &groups);
    let by_cpuid = (!dumps.is_empty()).then(|| CpuidReader::new(&dumps).read());
    let (mut topology, disputes) = SysfsReader::new(root, &cpus, allowed_nodes.clone()).read();
    let has_sysfs = root.exists("/sys/devices/system/cpu");
    let stated_kinds = by_cpuid.and_then(|(found, kinds)| {
        if !has_sysfs {
            topology = found;
        }
        kinds
    });
    warnings.extend(disputes);
    kinds::classify(
        root,
        &info,
        &mut topology,
        &cpus.online,
        signs.hides_core_kinds(),
        stated_kinds,
    );
    let allowed_nodes = allowed_nodes.unwrap_or_else(|| topology.nodes.iter().map(|node| node.id).collect());
    let memory = memory_budget::memory(root, &groups, &topology.nodes, allowed_nodes, &mut warnings);
    let accelerators = accelerators::inventory(root, signs);
    let thermal = thermal::read(root, &cpus, &groups);
    cpu_budget::explain(&cpus, &quota, &mut warnings);
    signs.explain(memory.total_bytes, &mut warnings);
    kinds::explain(&topology, signs.wsl2, &mut warnings);
    thermal::explain(&thermal, &mut warnings);
    let arch = arch(root, &info);
    let mut isa = isa_of(&info, &dumps, &cpus.allowed);
    if root.is_live() {
        isa::confirm(
            &mut isa,
            &isa::anywhere(&info),
            &isa::running_cpu(),
            &mut warnings,
        );
    }
    let has = |feature: &str| isa.iter().any(|name| name == feature);
    // The length that new processes get; the kernel limits it to what every core has.
    let sve_bytes = has("sve")
        .then(|| root.number("/proc/sys/abi/sve_default_vector_length"))
        .flatten();
    let amx_permission =
        (root.is_live() && has("amx_tile")).then(|| crate::sys::amx::state().as_str().to_owned());
    let mut hardware = Hardware {
        schema: hardware::SCHEMA,
        source: root.describe(),
        cpu_model: info.model_name(),
        isa,
        sve_bytes,
        amx_permission,
        quota,
        memory,
        nvidia_smi_path: nvidia::tool_path(root),
        environment: signs.environment(),
        thermal,
        class: class::class(&arch, signs.tegra, &accelerators),
        fingerprint: String::new(),
        accelerators,
        arch,
        cpus,
        topology,
        warnings,
    };
    hardware.fingerprint = fingerprint::fingerprint(&hardware);
    #[cfg(feature = "hwloc")]
    if root.is_live() {
        let mut doubts = Vec::new();
        topology_hwloc::second_opinion(&hardware, &mut doubts);
        hardware.warnings.extend(doubts);
    }
    Ok(hardware)
}

/// Features that every allowed CPU has, by `/proc/cpuinfo` or else by the recorded CPUID.
fn isa_of(info: &CpuInfo, dumps: &BTreeMap<u32, Recorded>, allowed: &CpuSet) -> Vec<String> {
    if !info.cpus.is_empty() {
        return isa::common(info, allowed);
    }
    isa::intersection(
        dumps
            .values()
            .map(|dump| isa::from_cpuid(&CpuId::with_cpuid_reader(dump.clone()))),
    )
}

fn no_cpus() -> Problem {
    Problem::new(
        Code::ProbeFailed,
        "no CPU could be found in /sys, /proc/self/status or /proc/cpuinfo",
        "check that /proc and /sys are mounted and readable, or pass a saved machine with `--hardware FILE`",
    )
    .why("without CPUs nothing can be planned")
}

/// The kernel's own name where it states one, else what `/proc/cpuinfo` looks like.
fn arch(root: &Root, info: &CpuInfo) -> String {
    let stated = root.line("/proc/sys/kernel/arch");
    let built_for = || root.is_live().then(|| std::env::consts::ARCH.to_owned());
    stated
        .or_else(|| info.arch().map(str::to_owned))
        .or_else(built_for)
        .unwrap_or_else(|| "unknown".to_owned())
}
