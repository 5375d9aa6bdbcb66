//! What this process runs inside, and the advice that follows from it.
//!
//! In: marker files, kernel names, cgroup paths, DMI. Out: [`Environment`] and the signs behind it.
//! Invariant: only files are looked at, so that a capture is classified like the machine it came from.

use super::cgroup::Cgroups;
use super::cpuinfo::CpuInfo;
use super::hardware::Environment;
use super::root::Root;
use crate::base::{Bytes, Code, Problem};

/// First line of the hosts file that the kubelet writes into every pod.
pub(super) const KUBELET_HOSTS: &str = "# Kubernetes-managed hosts file.";

/// What was found. Several can hold at once: a container in a virtual machine on a Jetson.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// A Windows Subsystem for Linux 2 kernel.
    pub wsl2: bool,
    /// The first Windows Subsystem for Linux: Linux system calls answered by Windows, without a Linux kernel.
    pub wsl1: bool,
    /// A Docker Desktop virtual machine's kernel.
    pub docker_desktop: bool,
    /// A hypervisor is below us.
    pub hypervisor: bool,
    /// An NVIDIA Tegra system-on-chip.
    pub tegra: bool,
    /// An Android kernel or Termux.
    pub android: bool,
    /// gVisor's kernel.
    pub gvisor: bool,
    /// The innermost container, if any.
    pub container: Option<Environment>,
}

impl Signs {
    /// Looks for them.
    #[must_use]
    pub fn read(root: &Root, info: &CpuInfo, groups: &Cgroups) -> Self {
        let release = root
            .line("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .to_lowercase();
        let version = root.line("/proc/version").unwrap_or_default();
        let kernel = format!("{release} {}", version.to_lowercase());
        // gVisor's fixed banner; newer releases also put their name into the version.
        let gvisor = kernel.contains("gvisor") || version.contains("Sun Jan 10 15:06:54 PST 2016");
        let wsl2 = kernel.contains("microsoft-standard") || kernel.contains("wsl2");
        Self {
            wsl2,
            // `4.4.0-19041-Microsoft`; WSL2 writes it small.
            wsl1: !wsl2 && version.contains("-Microsoft"),
            docker_desktop: kernel.contains("linuxkit") || kernel.contains("docker-desktop"),
            hypervisor: wsl2 || hypervisor(root, info),
            tegra: tegra(root),
            android: kernel.contains("android")
                || root.exists("/data/data/com.termux")
                || root.exists("/system/build.prop"),
            gvisor,
            container: container(root, groups),
        }
    }

    /// One word for all of it: the innermost layer that changes what we may use.
    #[must_use]
    pub fn environment(self) -> Environment {
        if self.gvisor {
            return Environment::Gvisor;
        }
        if let Some(container) = self.container {
            return container;
        }
        if self.wsl2 {
            Environment::Wsl2
        } else if self.android {
            Environment::Termux
        } else if self.tegra {
            Environment::Jetson
        } else if self.hypervisor {
            Environment::Vm
        } else {
            Environment::Bare
        }
    }

    /// Whether the kinds of cores may be hidden from us.
    #[must_use]
    pub fn hides_core_kinds(self) -> bool {
        self.hypervisor || self.gvisor || self.docker_desktop
    }

    /// What a person should know about this environment.
    pub fn explain(self, total: Bytes, warnings: &mut Vec<Problem>) {
        if self.wsl2 {
            warnings.push(
                Problem::warning(
                    Code::HardwareLimit,
                    format!("WSL2 gives this virtual machine {total}, by default half of the computer's memory"),
                    "raise `memory=` under `[wsl2]` in %UserProfile%\\.wslconfig (saved as UTF-8 without BOM), then run `wsl --shutdown`",
                )
                .why("the rest of the memory belongs to Windows; more RAM in the computer is not needed for more here"),
            );
        }
        if self.wsl1 {
            warnings.push(
                Problem::warning(
                    Code::HardwareUnsure,
                    "this is WSL1, which has no Linux kernel of its own",
                    "run `wsl --set-version <distribution> 2` in Windows",
                )
                .why("it shows few facts about the processor and runs threads and file mappings slowly"),
            );
        }
        if self.docker_desktop {
            warnings.push(
                Problem::warning(
                    Code::HardwareLimit,
                    format!("Docker Desktop gives its virtual machine {total}"),
                    "raise the memory under Settings > Resources in Docker Desktop",
                )
                .why("the container sees the virtual machine, not the computer"),
            );
        }
        if self.gvisor {
            warnings.push(
                Problem::warning(
                    Code::HardwareUnsure,
                    "gVisor shows no limits and few facts about the processor",
                    "pass the threads and memory you were given with `--set`, or a saved machine with `--hardware FILE`",
                )
                .why("the sandbox may enforce limits that no file in it states"),
            );
        }
    }
}

fn hypervisor(root: &Root, info: &CpuInfo) -> bool {
    let flagged = info
        .any("flags")
        .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    if flagged
        || root.exists("/sys/hypervisor/type")
        || root.exists("/proc/device-tree/hypervisor/compatible")
    {
        return true;
    }
    let dmi = ["sys_vendor", "product_name"].map(|name| {
        root.line(&format!("/sys/class/dmi/id/{name}"))
            .unwrap_or_default()
    });
    const MAKERS: [&str; 9] = [
        "QEMU",
        "KVM",
        "VMware",
        "VirtualBox",
        "Virtual Machine",
        "Xen",
        "Bochs",
        "Parallels",
        "Google Compute Engine",
    ];
    let [vendor, product] = &dmi;
    // Every EC2 machine names Amazon; those without a hypervisor are called `….metal`.
    vendor == "Amazon EC2" && !product.contains("metal")
        || dmi
            .iter()
            .any(|text| MAKERS.iter().any(|maker| text.contains(maker)))
}

fn tegra(root: &Root) -> bool {
    root.exists("/etc/nv_tegra_release")
        || [
            "/proc/device-tree/compatible",
            "/sys/firmware/devicetree/base/compatible",
        ]
        .iter()
        .any(|path| root.read(path).is_some_and(|text| text.contains("tegra")))
        || root
            .line("/proc/device-tree/model")
            .is_some_and(|model| model.contains("Jetson"))
}

fn container(root: &Root, groups: &Cgroups) -> Option<Environment> {
    let in_path = |words: &[&str]| {
        groups
            .paths
            .iter()
            .any(|path| words.iter().any(|word| path.contains(word)))
    };
    if root.exists("/var/run/secrets/kubernetes.io")
        || root.exists("/run/secrets/kubernetes.io")
        || in_path(&["kubepods"])
        // A pod may have neither a service account nor a group path that it can see.
        || root.line("/etc/hosts").is_some_and(|line| line == KUBELET_HOSTS)
    {
        return Some(Environment::Kubernetes);
    }
    let manager = root.line("/run/systemd/container").unwrap_or_default();
    if root.exists("/run/.containerenv") || manager == "podman" || in_path(&["/libpod"]) {
        return Some(Environment::Podman);
    }
    if root.exists("/.dockerenv")
        || manager == "docker"
        || in_path(&["/docker/", "/docker-", "docker.service/"])
    {
        return Some(Environment::Docker);
    }
    let lxcfs = || {
        root.read("/proc/mounts")
            .is_some_and(|text| text.lines().any(|line| line.starts_with("lxcfs /proc/")))
    };
    if manager.starts_with("lxc")
        || root.exists("/dev/lxd/sock")
        || in_path(&["/lxc/", "/lxc.payload"])
        || lxcfs()
    {
        return Some(Environment::Lxc);
    }
    None
}
