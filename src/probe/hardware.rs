//! `Hardware`: what a machine is and what this process may use of it.
//!
//! In: filled by the readers of this room. Out: serialised by `probe --save`, read back by `--hardware`.
//! Invariant: CPU and node numbers are the kernel's own; a missing fact is `None`, never zero.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::{Bytes, Code, CpuSet, Place, Problem};

/// Version of the JSON form of [`Hardware`].
pub const SCHEMA: u32 = 1;

/// A machine as seen by this process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Version of this document, [`SCHEMA`].
    pub schema: u32,
    /// `live`, `snapshot:<dir>` or `file:<path>`.
    pub source: String,
    /// `x86_64`, `aarch64` or the kernel's own name.
    pub arch: String,
    /// The processor's marketing name, where the kernel gives one.
    pub cpu_model: Option<String>,
    /// CPU ids by state.
    pub cpus: Cpus,
    /// Cores, kinds, caches, packages and nodes.
    pub topology: Topology,
    /// ISA features every allowed CPU has, in our names (`avx2`, `avx512_vnni`, `neon`, `dotprod`, …), sorted.
    pub isa: Vec<String>,
    /// SVE vector length in bytes, where known.
    pub sve_bytes: Option<u32>,
    /// Whether the kernel lets this process use AMX: `granted`, `on_request` or `unsupported`; only known live.
    #[serde(default)]
    pub amx_permission: Option<String>,
    /// CPU time limit.
    pub quota: CpuQuota,
    /// Memory and its limits.
    pub memory: Memory,
    /// GPUs and NPUs, reachable or not.
    pub accelerators: Vec<Accelerator>,
    /// Where NVIDIA's tool lies, if anywhere.
    #[serde(default)]
    pub nvidia_smi_path: Option<String>,
    /// What this process runs inside.
    pub environment: Environment,
    /// Clock, governor and throttling state.
    pub thermal: Thermal,
    /// Kind of machine; selects `hardware/<class>.yaml`.
    pub class: HardwareClass,
    /// 16 hex digits of what must match for a calibration to be reused.
    pub fingerprint: String,
    /// What is limited, odd or unknown, with remedies.
    pub warnings: Vec<Problem>,
}

/// A saved machine is a few hundred KiB even with 1024 CPUs.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// What to do about a file that is no saved machine.
const SAVED_REMEDY: &str = "give a file that `edge-deploy probe --save FILE` of this version wrote";

impl Hardware {
    /// Reads a saved machine; it then replaces probing.
    ///
    /// # Errors
    /// `file_access` if it cannot be read; `probe_failed` if it is too large, not this JSON form, of another
    /// version, or contradicts itself.
    pub fn load(path: &Path) -> Result<Self, Problem> {
        use std::io::Read as _;
        let place = || Place::of(path.display().to_string());
        let unreadable = |error: std::io::Error| {
            let what = format!("the saved machine cannot be read: {error}");
            Problem::new(Code::FileAccess, what, SAVED_REMEDY).at(place())
        };
        let mut bytes = Vec::new();
        // A pipe would be waited for, and a device has no end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(unreadable(std::io::Error::other("it is not a regular file")));
        }
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        let mut hardware = Self::parse(&bytes).map_err(|problem| problem.at(place()))?;
        hardware.source = format!("file:{}", path.display());
        Ok(hardware)
    }

    /// Reads the JSON form from memory.
    ///
    /// # Errors
    /// `probe_failed` if it is too large, not this JSON form, of another version, or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let wrong = |what: String| Problem::new(Code::ProbeFailed, what, SAVED_REMEDY);
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(wrong(format!(
                "the saved machine is larger than {}",
                Bytes(MAX_FILE_BYTES)
            )));
        }
        let hardware: Self = serde_json::from_slice(bytes)
            .map_err(|error| wrong(format!("the saved machine is not in our form: {error}")))?;
        if hardware.schema != SCHEMA {
            return Err(wrong(format!(
                "the saved machine has schema {}, this version reads {SCHEMA}",
                hardware.schema
            )));
        }
        hardware.check().map_err(wrong)?;
        Ok(hardware)
    }

    /// Writes it for [`Hardware::load`].
    ///
    /// # Errors
    /// `file_access` if it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Problem> {
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Problem::new(
                Code::Internal,
                error.to_string(),
                "report this with the output of `doctor`",
            )
        })?;
        std::fs::write(path, text + "\n").map_err(|error| {
            let what = format!("the machine cannot be saved: {error}");
            Problem::new(
                Code::FileAccess,
                what,
                "choose a folder that exists and is writable",
            )
            .at(Place::of(path.display().to_string()))
        })
    }

    /// What later rooms rely on; a hand-written file may break it.
    fn check(&self) -> Result<(), String> {
        let topology = &self.topology;
        if self.cpus.allowed.is_empty() || !self.cpus.allowed.is_subset(&self.cpus.online) {
            return Err(format!(
                "the allowed CPUs `{}` are not a non-empty part of the online CPUs `{}`",
                self.cpus.allowed, self.cpus.online
            ));
        }
        if topology.cores.is_empty() || topology.kinds.is_empty() {
            return Err("there is no core or no kind of core".to_owned());
        }
        for core in &topology.cores {
            if core.kind >= topology.kinds.len() || core.package.is_some_and(|p| p >= topology.packages.len())
            {
                return Err(format!(
                    "the core with CPUs `{}` names a kind or package that is not listed",
                    core.cpus
                ));
            }
            if core.cpus.is_empty() || !core.cpus.is_subset(&self.cpus.online) {
                return Err(format!("the core with CPUs `{}` is not online", core.cpus));
            }
        }
        if self
            .quota
            .cpus
            .is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
        {
            return Err("the CPU quota is not a positive number".to_owned());
        }
        if self.memory.total_bytes.0 >= 1 << 60 || self.memory.available_bytes > self.memory.total_bytes {
            return Err("the available memory is more than the total, or the total is absurd".to_owned());
        }
        Ok(())
    }
}

/// CPU ids by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpus {
    /// Running now.
    pub online: CpuSet,
    /// Could ever exist.
    pub possible: CpuSet,
    /// Plugged in, online or not.
    #[serde(default)]
    pub present: CpuSet,
    /// This process may run on: online ∩ affinity ∩ cpuset.
    pub allowed: CpuSet,
    /// Kept free of the scheduler by `isolcpus`.
    pub isolated: CpuSet,
}

/// Cores and what they share. Everything here counts online CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Physical cores, by lowest CPU id.
    pub cores: Vec<Core>,
    /// Kinds of core, most capable first. At least one where there is a core.
    pub kinds: Vec<CoreKind>,
    /// How sure the split into kinds is.
    pub kinds_confidence: Confidence,
    /// Packages (sockets), online CPUs of each.
    pub packages: Vec<CpuSet>,
    /// Dies, online CPUs of each.
    pub dies: Vec<CpuSet>,
    /// Caches of level 2 and 3 and their sharing CPUs.
    pub caches: Vec<Cache>,
    /// NUMA nodes, including those without CPUs or without memory. Empty where the kernel shows none.
    pub nodes: Vec<NumaNode>,
    /// Whether any online core has more than one online CPU.
    pub smt: bool,
}

/// A physical core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// Its online CPUs (SMT siblings).
    pub cpus: CpuSet,
    /// Index into [`Topology::kinds`].
    pub kind: usize,
    /// Kernel NUMA node id.
    pub node: Option<u32>,
    /// Index into [`Topology::packages`].
    pub package: Option<usize>,
}

/// A kind of core (P, E, LP-E, big, little).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreKind {
    /// `P`, `E`, `LP-E`, `big`, `mid`, `little` or `all`.
    pub name: String,
    /// Online CPUs of this kind.
    pub cpus: CpuSet,
    /// ISA features of this kind, sorted.
    pub isa: Vec<String>,
    /// Highest clock in kHz, where known.
    pub max_khz: Option<u64>,
    /// What told the kinds apart: `hybrid_pmu`, `cpuid`, `midr`, `cache`, `capacity`, `frequency` or `none`.
    pub evidence: String,
}

/// How sure a fact is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Stated by the kernel or the processor.
    High,
    /// Follows from caches or capacities.
    Medium,
    /// Only a hint, or hidden by a hypervisor.
    #[default]
    Low,
}

/// A cache of level 2 or 3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// 2 or 3.
    pub level: u8,
    /// Size, where the kernel states one.
    pub size_bytes: Option<Bytes>,
    /// Online CPUs that share it.
    pub cpus: CpuSet,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Kernel node id.
    pub id: u32,
    /// Its online CPUs; empty for a memory-only node.
    pub cpus: CpuSet,
    /// Its memory, where known; 0 for a CPU-only node.
    pub total_bytes: Option<Bytes>,
    /// Its free memory plus file cache, where known.
    pub available_bytes: Option<Bytes>,
    /// Whether this process may allocate there.
    pub allowed: bool,
}

/// CPU time limit (cgroup v1 or v2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// CPUs' worth of time, such as 7.65; `None` without a limit.
    pub cpus: Option<f64>,
    /// The file that says so.
    pub source: Option<String>,
}

/// Memory and its limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// What the kernel has.
    pub total_bytes: Bytes,
    /// What may still be used: MemAvailable, and every limit less its use plus reclaimable file cache.
    pub available_bytes: Bytes,
    /// The same without the limits of control groups: what the machine itself has left. Absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_available_bytes: Option<Bytes>,
    /// The tightest hard limit below the total.
    pub limit_bytes: Option<Bytes>,
    /// The file that says so.
    pub limit_source: Option<String>,
    /// The tightest soft limit (`memory.high`, soft limit); above it the kernel slows us down.
    pub soft_limit_bytes: Option<Bytes>,
    /// What bounds `available_bytes`: a file name or `MemAvailable`.
    pub available_source: String,
    /// NUMA nodes we may allocate on.
    pub allowed_nodes: CpuSet,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Free 2 MiB hugetlb pages.
    pub free_huge_pages: Option<u64>,
    /// Swap in use or not.
    pub swap_total_bytes: Option<Bytes>,
}

/// A GPU or NPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accelerator {
    /// `gpu_discrete`, `gpu_integrated` or `npu`.
    pub kind: String,
    /// `nvidia`, `amd`, `intel`, `qualcomm`, …
    pub vendor: String,
    /// Name, where a driver gives one.
    pub name: Option<String>,
    /// Own memory or carve-out.
    pub vram_bytes: Option<Bytes>,
    /// Shares the system's memory.
    pub unified_memory: bool,
    /// Kernel driver.
    pub driver: Option<String>,
    /// Whether this process could compute on it.
    pub usable: bool,
    /// If not usable: what would have to change.
    pub reason: Option<String>,
    /// How it would be driven.
    pub route: Option<String>,
    /// The file or tool that showed it.
    pub source: String,
}

/// What the process runs inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is the environment's own")]
pub enum Environment {
    #[default]
    Bare,
    Vm,
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    Wsl2,
    Gvisor,
    Termux,
    Jetson,
}

/// Clock, governor and throttling state at probe time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thermal {
    /// cpufreq governor of the first allowed CPU.
    pub governor: Option<String>,
    /// Times the cgroup was throttled so far.
    pub nr_throttled: Option<u64>,
    /// Hottest thermal zone in millidegrees Celsius.
    pub max_millidegrees: Option<i64>,
    /// Sum of the cores' thermal throttle counts.
    pub throttle_count: Option<u64>,
}

/// Kind of machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HardwareClass {
    /// An x86-64 processor serves.
    #[default]
    X86Cpu,
    /// An Arm processor serves.
    Arm64Cpu,
    /// NVIDIA Tegra: one pool of memory.
    Jetson,
    /// An NVIDIA card with its own memory is usable.
    CudaDiscrete,
    /// A phone with an NPU; only by `--hardware`.
    NpuPhone,
}

impl HardwareClass {
    /// The name of `hardware/<class>.yaml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X86Cpu => "x86_cpu",
            Self::Arm64Cpu => "arm64_cpu",
            Self::Jetson => "jetson",
            Self::CudaDiscrete => "cuda_discrete",
            Self::NpuPhone => "npu_phone",
        }
    }
}
