//! What the probe reads: single texts, and small machines made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

use edge_deploy::base::CpuSet;
use edge_deploy::probe::cgroup::Cgroups;
use edge_deploy::probe::cpuid::Recorded;
use edge_deploy::probe::cpuinfo::CpuInfo;
use edge_deploy::probe::root::{parse_cpu_list, parse_cpu_mask};
use edge_deploy::probe::topology_cpuid::CpuidReader;
use edge_deploy::probe::{Hardware, Root, doctor, facts, memory_budget, nvidia, probe, report, storage};

use super::{choice, folder, said};

/// One text as one of the probe's own formats, by the first byte.
pub fn text(bytes: &[u8]) {
    let (which, rest) = choice(bytes, 6);
    let text = String::from_utf8_lossy(rest);
    match which {
        0 => cpu_sets(&text),
        1 => cpuinfo(&text),
        2 => {
            for name in memory_budget::fields(&text).keys() {
                assert_eq!(name.trim(), name);
                assert!(text.lines().any(|line| line.contains(name.as_str())));
            }
        }
        3 => cgroups(&text),
        4 => cpuid(&text),
        _ => {
            let rows = nvidia::parse_rows(&text);
            assert!(rows.len() <= 64 && rows.iter().all(|row| row.memory.is_some() || row.unified));
        }
    }
}

/// A list or mask is a set that writes and reads back the same, or nothing.
fn cpu_sets(text: &str) {
    for set in [parse_cpu_list(text), parse_cpu_mask(text)].into_iter().flatten() {
        assert!(set.last().is_none_or(|last| last <= CpuSet::MAX_ID));
        assert_eq!(parse_cpu_list(&set.to_string()).as_ref(), Some(&set));
    }
}

fn cpuinfo(text: &str) {
    let info = CpuInfo::parse(text);
    assert!(info.cpus.keys().all(|&cpu| cpu <= CpuSet::MAX_ID));
    for &cpu in info.cpus.keys() {
        assert!(
            info.field(cpu, "model name")
                .is_none_or(|name| !name.contains('\n'))
        );
    }
    let _ = (info.model_name(), info.arch());
}

/// `/proc/self/cgroup`, `mountinfo` and `mounts`, cut at NUL bytes: a chain ends, names no folder twice, and climbs
/// out of a mount by no `..` that the mount table did not have.
fn cgroups(text: &str) {
    let mut parts = text.splitn(3, '\0');
    let mut next = || parts.next().unwrap_or_default();
    let (own, mountinfo, mounts) = (next(), next(), next());
    let groups = Cgroups::parse(own, mountinfo, mounts);
    let climbs = |path: &str| path.split(['/', ' ']).any(|part| part == "..");
    let tables_climb = [mountinfo, mounts]
        .iter()
        .any(|table| climbs(table) || table.contains('\\'));
    for controller in ["cpu", "cpuset", "memory"] {
        let chain = groups.chain(controller);
        for (index, group) in chain.iter().enumerate() {
            assert!(!chain[..index].contains(group));
            assert!(tables_climb || !climbs(&group.path));
        }
    }
}

/// One dump for each of four CPUs, cut at NUL bytes: every CPU is in exactly one core.
fn cpuid(text: &str) {
    let dumps: BTreeMap<u32, Recorded> = (0..).zip(text.split('\0').take(4).map(Recorded::parse)).collect();
    let (topology, kinds) = CpuidReader::new(&dumps).read();
    let mut seen = CpuSet::new();
    for core in &topology.cores {
        assert!(seen.intersection(&core.cpus).is_empty());
        seen = seen.union(&core.cpus);
    }
    assert_eq!(seen, dumps.keys().copied().collect());
    for (name, cpus) in kinds.unwrap_or_default() {
        assert!(!name.is_empty() && cpus.is_subset(&seen));
    }
}

/// Files that make up the machine when the input says nothing of them.
const BASE: [(&str, &str); 4] = [
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0-1\n"),
    ("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n"),
    (
        "proc/self/status",
        "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n",
    ),
];
/// Largest number of files taken from one input.
const MAX_FILES: usize = 48;

/// A machine: files cut at NUL bytes, each a path on its first line and its content below. It is probed twice with
/// the same result, shown, saved, and captured without anything private being read outside its folder.
pub fn machine(bytes: &[u8]) {
    let folder = folder();
    let at = folder.path();
    for (path, content) in BASE {
        put(at, path, content.as_bytes());
    }
    for part in bytes.split(|&byte| byte == 0).take(MAX_FILES) {
        let end = part.iter().position(|&byte| byte == b'\n').unwrap_or(part.len());
        if let Ok(path) = std::str::from_utf8(&part[..end]) {
            put(at, path, part.get(end + 1..).unwrap_or_default());
        }
    }
    let root = Root::snapshot(at).expect("proc and sys are there");
    let hardware = match probe(&root) {
        Ok(hardware) => hardware,
        Err(problem) => return said(&problem),
    };
    sound(&hardware);
    let _ = storage::of(&root, Path::new("/srv/models/m.gguf"));
    assert!(!doctor::report(&root, &hardware).is_empty());
    let again = probe(&Root::snapshot(at).expect("it is still there")).expect("it was read before");
    assert_eq!(facts(&again), facts(&hardware));
    let saved = serde_json::to_vec(&hardware).expect("a machine can be written");
    let mut loaded = Hardware::parse(&saved).unwrap_or_else(|problem| panic!("{problem}"));
    // A quota such as 1.99984001… may come back with another last digit.
    assert_eq!(loaded.quota.cpus.is_some(), hardware.quota.cpus.is_some());
    loaded.quota.cpus = hardware.quota.cpus;
    assert_eq!(facts(&loaded), facts(&hardware));
}

/// Writes a file inside the folder; a path that leaves it, or cannot be one, is left out.
fn put(folder: &Path, path: &str, content: &[u8]) {
    let path = Path::new(path.trim_start_matches('/'));
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || path.components().count() > 12 {
        return;
    }
    let path = folder.join(path);
    let made = path
        .parent()
        .is_none_or(|parent| fs::create_dir_all(parent).is_ok());
    // A name with a NUL, too long a name, or a folder in its place: such a file is not part of this machine.
    let _ = made && fs::write(path, content).is_ok();
}

fn sound(hardware: &Hardware) {
    let cpus = &hardware.cpus;
    assert!(!cpus.allowed.is_empty() && cpus.allowed.is_subset(&cpus.online));
    assert!(
        hardware
            .quota
            .cpus
            .is_none_or(|quota| quota > 0.0 && quota.is_finite())
    );
    let topology = &hardware.topology;
    let mut seen = CpuSet::new();
    for core in &topology.cores {
        assert!(seen.intersection(&core.cpus).is_empty(), "a CPU is in two cores");
        assert!(core.kind < topology.kinds.len());
        seen = seen.union(&core.cpus);
    }
    assert_eq!(seen, cpus.online);
    let mut of_kinds = CpuSet::new();
    for kind in &topology.kinds {
        assert!(
            of_kinds.intersection(&kind.cpus).is_empty(),
            "a CPU is of two kinds"
        );
        of_kinds = of_kinds.union(&kind.cpus);
    }
    assert_eq!(of_kinds, cpus.online);
    assert!(
        hardware.memory.available_bytes <= hardware.memory.total_bytes || hardware.memory.total_bytes.0 == 0
    );
    assert!(
        hardware
            .accelerators
            .iter()
            .all(|a| a.usable != a.reason.is_some())
    );
    assert!(!report::page(hardware).is_empty());
    hardware.warnings.iter().for_each(said);
}
