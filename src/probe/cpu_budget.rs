//! Which CPUs this process may use, and how much time on them.
//!
//! In: sysfs CPU lists, the affinity in `/proc/self/status`, cpuset and quota files. Out: [`Cpus`] and [`CpuQuota`].
//! Invariant: every division is by a checked number; a limit names the file that states it.

use super::cgroup::Cgroups;
use super::cpuinfo::CpuInfo;
use super::hardware::{CpuQuota, Cpus};
use super::root::{Root, parse_cpu_list};
use crate::base::{Code, CpuSet, Place, Problem};

const CPU_DIR: &str = "/sys/devices/system/cpu";

/// CPU ids by state. Fallbacks for `online`: the per-CPU folders, then `possible`, then the affinity, then
/// `/proc/cpuinfo` (Android and old kernels hide one or the other).
#[must_use]
pub fn cpus(root: &Root, info: &CpuInfo, groups: &Cgroups, warnings: &mut Vec<Problem>) -> Cpus {
    let list = |name: &str| {
        root.cpu_list(&format!("{CPU_DIR}/{name}"))
            .filter(|set| !set.is_empty())
    };
    let folders = root.numbered(CPU_DIR, "cpu");
    let switched_on = || -> CpuSet {
        let on = |cpu: &u32| root.number::<u32>(&format!("{CPU_DIR}/cpu{cpu}/online")) != Some(0);
        folders.iter().filter(on).collect()
    };
    let affinity = status_list(root, "Cpus_allowed_list").filter(|set| !set.is_empty());
    if affinity.is_none()
        && let Some(text) = status_field(root, "Cpus_allowed_list")
    {
        let path = "/proc/self/status";
        warnings.push(unread(
            path,
            "Cpus_allowed_list",
            &text,
            "it is taken as no restriction",
        ));
    }
    let cpuset = cpuset(
        root,
        groups,
        &[
            "cpuset.cpus.effective",
            "cpuset.effective_cpus",
            "cpuset.cpus",
            "cpus",
        ],
    );
    let counted: CpuSet = info.cpus.keys().copied().collect();
    let stated = list("online");
    let online = stated
        .clone()
        .or_else(|| Some(switched_on()).filter(|set| !set.is_empty()))
        .or_else(|| list("possible"))
        .or_else(|| affinity.clone())
        .or_else(|| Some(counted).filter(|set| !set.is_empty()))
        .or_else(|| cpuset.as_ref().map(|(set, _)| set.clone()))
        .unwrap_or_default();
    let mut possible = list("possible").unwrap_or_default().union(&online);
    // `present` and the folders matter only for what is hidden; `possible` may be far larger than the machine.
    if possible == online {
        possible = possible
            .union(&list("present").unwrap_or_default())
            .union(&folders);
    }
    let mut allowed = online.clone();
    let mut narrow = |limit: Option<&CpuSet>, source: &str| {
        let Some(limit) = limit else { return };
        let next = allowed.intersection(limit);
        if next.is_empty() && !allowed.is_empty() {
            warnings.push(
                Problem::warning(
                    Code::HardwareUnsure,
                    format!("{source} allows CPUs `{limit}`, none of which is online (`{allowed}`)"),
                    "the restriction is ignored; check the cpuset or affinity of this process",
                )
                .at(Place::of(source)),
            );
        } else {
            allowed = next;
        }
    };
    narrow(affinity.as_ref(), "/proc/self/status");
    if let Some((set, source)) = &cpuset {
        narrow(Some(set), source);
    }
    Cpus {
        isolated: list("isolated").unwrap_or_default(),
        present: list("present").unwrap_or_default().union(&folders).union(&online),
        online,
        possible,
        allowed,
    }
}

/// NUMA nodes this process may allocate on; `None` where nothing says so.
#[must_use]
pub fn allowed_nodes(root: &Root, groups: &Cgroups) -> Option<CpuSet> {
    let affinity = status_list(root, "Mems_allowed_list").filter(|set| !set.is_empty());
    let cpuset = cpuset(
        root,
        groups,
        &[
            "cpuset.mems.effective",
            "cpuset.effective_mems",
            "cpuset.mems",
            "mems",
        ],
    )
    .map(|(set, _)| set);
    match (affinity, cpuset) {
        (Some(a), Some(b)) => Some(a.intersection(&b))
            .filter(|both| !both.is_empty())
            .or(Some(a)),
        (a, b) => a.or(b),
    }
}

fn status_list(root: &Root, field: &str) -> Option<CpuSet> {
    parse_cpu_list(&status_field(root, field)?)
}

fn status_field(root: &Root, field: &str) -> Option<String> {
    let text = root.read("/proc/self/status")?;
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// That a file of the kernel holds something else than it should.
fn unread(path: &str, field: &str, text: &str, taken: &str) -> Problem {
    let shown: String = text.chars().take(40).collect();
    Problem::warning(
        Code::HardwareUnsure,
        format!("`{field}` in {path} is `{shown}`, which cannot be read; {taken}"),
        "check what this file comes from, a container's emulation or a damaged capture; pass the number of threads yourself if it is wrong",
    )
    .at(Place::of(path))
}

/// The nearest group that states a set, and the file. An empty file means "as the parent".
fn cpuset(root: &Root, groups: &Cgroups, names: &[&str]) -> Option<(CpuSet, String)> {
    for group in groups.chain("cpuset") {
        for name in names {
            let path = format!("{}/{name}", group.path);
            if let Some(set) = root.cpu_list(&path).filter(|set| !set.is_empty()) {
                return Some((set, path));
            }
        }
    }
    None
}

/// The tightest CPU time limit of our group and its ancestors.
#[must_use]
pub fn quota(root: &Root, groups: &Cgroups, warnings: &mut Vec<Problem>) -> CpuQuota {
    let mut tightest = CpuQuota::default();
    for group in groups.chain("cpu") {
        let Some((cpus, source)) = (if group.v2 {
            quota_v2(root, &group.path, warnings)
        } else {
            quota_v1(root, &group.path, warnings)
        }) else {
            continue;
        };
        if tightest.cpus.is_none_or(|known| cpus < known) {
            tightest = CpuQuota {
                cpus: Some(cpus),
                source: Some(source),
            };
        }
    }
    tightest
}

fn quota_v2(root: &Root, group: &str, warnings: &mut Vec<Problem>) -> Option<(f64, String)> {
    let path = format!("{group}/cpu.max");
    let line = root.line(&path)?;
    let mut words = line.split_whitespace();
    let quota = words.next().filter(|&word| word != "max")?.parse::<i64>();
    // The kernel's default period where the file gives only the quota.
    let period = words.next().map_or(Ok(100_000), str::parse::<i64>);
    let (Ok(quota), Ok(period)) = (quota, period) else {
        warnings.push(unread(&path, "cpu.max", &line, "it is taken as no limit"));
        return None;
    };
    cpus_of(quota, period, &path, &path, warnings)
}

fn quota_v1(root: &Root, group: &str, warnings: &mut Vec<Problem>) -> Option<(f64, String)> {
    let path = format!("{group}/cpu.cfs_quota_us");
    let period_path = format!("{group}/cpu.cfs_period_us");
    let mut number = |path: &str, name: &str| {
        let line = root.line(path)?;
        let number = line.parse::<i64>().ok();
        if number.is_none() {
            warnings.push(unread(path, name, &line, "it is taken as no limit"));
        }
        number
    };
    let quota = number(&path, "cpu.cfs_quota_us")?;
    if quota < 0 {
        return None;
    }
    let period = number(&period_path, "cpu.cfs_period_us")?;
    cpus_of(quota, period, &path, &period_path, warnings)
}

fn cpus_of(
    quota: i64,
    period: i64,
    path: &str,
    period_path: &str,
    warnings: &mut Vec<Problem>,
) -> Option<(f64, String)> {
    if period <= 0 || quota <= 0 {
        warnings.push(
            Problem::warning(
                Code::HardwareUnsure,
                format!("{period_path} states a period of {period} us with a quota of {quota} us; it is taken as no limit"),
                "set a CPU limit again in the container or service, or pass the number of threads yourself",
            )
            .at(Place::of(period_path)),
        );
        return None;
    }
    Some((quota as f64 / period as f64, path.to_owned()))
}

/// What a person should know about these limits.
pub fn explain(cpus: &Cpus, quota: &CpuQuota, warnings: &mut Vec<Problem>) {
    if let (Some(limit), Some(source)) = (quota.cpus, &quota.source)
        && limit < cpus.allowed.len() as f64
    {
        let count = if limit < 1.0 {
            format!("only {limit} CPU of time is allowed, less than one thread needs")
        } else {
            format!("{limit} CPUs of time are allowed on {} CPUs", cpus.allowed.len())
        };
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                format!("{count} ({source})"),
                "raise the CPU limit of the container or service (`--cpus`, `CPUQuota=`, `limits.cpu`) for more speed",
            )
            .why("more running threads than the quota has CPUs are stopped by the kernel for part of every period")
            .at(Place::of(source.clone())),
        );
    }
    let unused = cpus.isolated.difference(&cpus.allowed).intersection(&cpus.online);
    if !unused.is_empty() {
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                format!(
                    "CPUs {unused} are isolated and not in this process's set `{}`",
                    cpus.allowed
                ),
                "start with `taskset` or a cpuset that includes them if they are meant for this server",
            )
            .why("isolated CPUs are never used unless a process asks for them"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(files: &[(&str, &str)]) -> Vec<Problem> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::snapshot(dir.path()).unwrap();
        let groups = Cgroups::read(&root);
        let mut warnings = Vec::new();
        let _ = cpus(&root, &CpuInfo::default(), &groups, &mut warnings);
        let _ = quota(&root, &groups, &mut warnings);
        warnings
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_file() {
        let group = ("proc/self/cgroup", "0::/a\n");
        let status = |list: &'static str| ("proc/self/status", list);
        for (files, path) in [
            (
                [group, ("sys/fs/cgroup/a/cpu.max", "banana\n")],
                "/sys/fs/cgroup/a/cpu.max",
            ),
            (
                [group, ("sys/fs/cgroup/a/cpu.max", "1000 often\n")],
                "/sys/fs/cgroup/a/cpu.max",
            ),
            ([group, status("Cpus_allowed_list:\t\n")], "/proc/self/status"),
            ([group, status("Cpus_allowed_list:\tall\n")], "/proc/self/status"),
            (
                [
                    ("proc/self/cgroup", "3:cpu:/\n"),
                    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "lots\n"),
                ],
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
            ),
        ] {
            let warnings = warned(&files);
            assert_eq!(warnings.len(), 1, "{files:?}: {warnings:?}");
            assert_eq!(warnings[0].code, Code::HardwareUnsure);
            assert_eq!(warnings[0].place, Some(Place::of(path)));
        }
        for files in [
            [group, ("sys/fs/cgroup/a/cpu.max", "max 100000\n")],
            [group, status("Cpus_allowed_list:\t0-3\n")],
            [group, status("Name:\tx\n")],
        ] {
            assert!(warned(&files).is_empty(), "{files:?}");
        }
    }
}
