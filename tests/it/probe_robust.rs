//! The probe's other promises: captures replay, nothing private is in them, saved machines are checked, and the live
//! machine agrees with the usual tools.

use std::fs;
use std::path::Path;
use std::process::Command;

use edge_deploy::probe::{self, Hardware, Root, doctor, report};
use serde_json::Value;

use crate::probe::machines;
use crate::probe_damaged::{Tree, read_tree, write_tree};
#[cfg(feature = "hwloc")]
use crate::support::shared;

fn probe_at(folder: &Path) -> (Root, Hardware) {
    let root = Root::snapshot(folder).unwrap();
    let hardware = probe::probe(&root).unwrap_or_else(|problem| panic!("{}: {problem}", folder.display()));
    (root, hardware)
}

#[test]
fn a_capture_of_every_fixture_gives_the_same_facts() {
    // Names of control groups are replaced in the capture: how deep a file lies, and its name, must stay.
    let group = regex::Regex::new(r#"/sys/fs/cgroup(?:/[^/\s)\"]+)+"#).unwrap();
    for (name, folder) in machines("a_capture_of_every_fixture_gives_the_same_facts") {
        let (root, hardware) = probe_at(&folder);
        let dir = tempfile::tempdir().unwrap();
        let count = doctor::capture(&root, dir.path()).unwrap();
        assert!(count > 3, "{name}: only {count} files");
        let (_, again) = probe_at(dir.path());
        let facts = |hardware: &Hardware| {
            let text = probe::facts(hardware).to_string();
            let depth_and_file = |found: &regex::Captures<'_>| {
                let parts: Vec<&str> = found[0].split('/').collect();
                format!("{} {}", parts.len(), parts[parts.len() - 1])
            };
            group.replace_all(&text, depth_and_file).into_owned()
        };
        assert_eq!(facts(&again), facts(&hardware), "{name}");
        assert!(
            doctor::capture(&root, dir.path()).is_err(),
            "a folder in use must be refused"
        );
        let page = report::page(&hardware);
        assert!(
            page.contains("memory") && page.contains("cpus"),
            "{name}:\n{page}"
        );
    }
}

#[test]
fn private_data_stays_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut tree = Tree::new();
    let mut put = |path: &str, text: &str| {
        tree.insert(path.to_owned(), text.as_bytes().to_vec());
    };
    put(
        "proc/cpuinfo",
        "processor : 0\nmodel name : X\nflags : lm avx2\nSerial : 10000000SECRET1\nprocessor 0: version = FF,  identification = SECRETa,  machine = 2964\n",
    );
    put("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
    put(
        "proc/version",
        "Linux version 6.1 (SECRET2@SECRET3.example) (gcc 12) #1 SMP\n",
    );
    put(
        "proc/self/status",
        "Name: SECRET4\nUid: 1000\nCpus_allowed_list: 0\nMems_allowed_list: 0\n",
    );
    put(
        "proc/self/cgroup",
        "0::/user.slice/user-1000.slice/app-SECRET5.scope\n",
    );
    put(
        "proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/SECRET6 rw\n2 1 0:1 / /home/SECRET7 rw - nfs SECRET8:/x rw\n3 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    put(
        "sys/fs/cgroup/user.slice/user-1000.slice/app-SECRET5.scope/memory.max",
        "268435456\n",
    );
    put("etc/hosts", "127.0.0.1 localhost SECRET9\n");
    put("sys/devices/system/cpu/online", "0\n");
    write_tree(dir.path(), &tree);
    let (root, hardware) = probe_at(dir.path());
    assert!(
        hardware.memory.limit_source.as_ref().unwrap().contains("SECRET5"),
        "the limit must be seen"
    );
    let text = doctor::report(&root, &hardware);
    let at = text.find("SECRET");
    assert_eq!(at, None, "{}", &text[at.unwrap_or(0).saturating_sub(200)..]);
    assert!(text.contains("memory.max") && text.contains("268435456"));
    let target = tempfile::tempdir().unwrap();
    doctor::capture(&root, target.path()).unwrap();
    for (path, bytes) in read_tree(target.path()) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            !path.contains("SECRET") && !text.contains("SECRET"),
            "{path}: {text}"
        );
    }
    let (_, again) = probe_at(target.path());
    assert_eq!(again.memory.limit_bytes, hardware.memory.limit_bytes);
}

#[test]
fn saved_machines_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.json");
    let load = |text: &str| {
        fs::write(&file, text).unwrap();
        Hardware::load(&file)
    };
    for text in ["", "[]", "{}", "not json", "{\"schema\": 1}"] {
        assert!(load(text).is_err(), "{text}");
    }
    assert!(Hardware::load(&dir.path().join("none")).is_err());
    let hardware = probe::probe(&Root::live()).unwrap();
    hardware.save(&file).unwrap();
    let good: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(load(&good.to_string()).is_ok());
    let broken = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        load(&bad.to_string()).is_err()
    };
    assert!(broken("/schema", 99.into()));
    assert!(broken("/cpus/allowed", "".into()));
    assert!(broken("/cpus/allowed", "4000".into()));
    assert!(broken("/topology/cores/0/kind", 7.into()));
    assert!(broken("/quota/cpus", (-1.0).into()));
    assert!(broken("/memory/available_bytes", u64::MAX.into()));
}

/// Output of a tool, if it is installed.
fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_live_machine_agrees_with_the_usual_tools() {
    let hardware = probe::probe(&Root::live()).unwrap();
    let facts = probe::facts(&hardware);
    let skip = |name: &str| skipped!("SKIPPED a part: `{name}` is not here");
    match tool("nproc", &[]) {
        // nproc rounds a quota up; without one it is the allowed CPUs.
        Some(text) if hardware.quota.cpus.is_none() => {
            assert_eq!(facts["logical_cpus_allowed"], text.trim().parse::<u64>().unwrap());
        }
        _ => skip("nproc"),
    }
    match tool("lscpu", &["-p=cpu,core,socket,node"]) {
        Some(text) => {
            let rows: Vec<Vec<&str>> = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.split(',').collect())
                .collect();
            let distinct = |column: usize| {
                let mut values: Vec<&str> = rows
                    .iter()
                    .map(|row| row[column])
                    .filter(|v| !v.is_empty())
                    .collect();
                values.sort_unstable();
                values.dedup();
                values.len()
            };
            assert_eq!(facts["logical_cpus_online"], rows.len());
            assert_eq!(facts["cores"], distinct(1));
            if hardware.cpus.allowed == hardware.cpus.online {
                assert_eq!(facts["packages"], distinct(2));
                assert_eq!(facts["numa_nodes"], distinct(3).max(1));
            }
        }
        None => skip("lscpu"),
    }
    match tool("free", &["-b"]) {
        Some(text) => {
            let row: Vec<&str> = text
                .lines()
                .find(|line| line.starts_with("Mem:"))
                .unwrap()
                .split_whitespace()
                .collect();
            assert_eq!(facts["mem_total"], row[1].parse::<u64>().unwrap());
            if facts["mem_available_source"] == "MemAvailable" {
                // Memory moves between two readings.
                let (ours, theirs) = (
                    facts["mem_available"].as_f64().unwrap(),
                    row[6].parse::<f64>().unwrap(),
                );
                assert!(
                    (ours - theirs).abs() < theirs * 0.2 + 256e6,
                    "{ours} and {theirs}"
                );
            }
        }
        None => skip("free"),
    }
    match tool("lstopo-no-graphics", &["--of", "console", "--only", "core"]) {
        Some(text) => assert_eq!(facts["cores_allowed"], text.lines().count()),
        None => skip("lstopo-no-graphics"),
    }
}

/// Not a test of its own: what the next one runs in a child process, because hwloc takes its snapshot folder and
/// its plugin folder from the environment.
#[cfg(feature = "hwloc")]
#[test]
#[ignore = "run by `hwloc_agrees_on_snapshots` with its environment"]
fn hwloc_child() {
    use edge_deploy::probe::topology::TopologySource as _;
    let reader = edge_deploy::probe::topology_hwloc::HwlocReader::new().expect("the plugin folder is set");
    let topology = reader.topology().unwrap();
    let loaded = fs::read_to_string("/proc/self/maps").unwrap();
    for library in [
        "hwloc_opencl",
        "hwloc_gl",
        "hwloc_pci",
        "libOpenCL",
        "libpciaccess",
        "libXNVCtrl",
    ] {
        assert!(!loaded.contains(library), "{library} was loaded");
    }
    println!("TOPOLOGY {}", serde_json::to_string(&topology).unwrap());
}

#[cfg(feature = "hwloc")]
#[test]
fn hwloc_agrees_on_snapshots() {
    use edge_deploy::probe::topology_hwloc::{HwlocReader, NO_PLUGINS, differences};
    assert!(
        HwlocReader::new().is_none(),
        "without the plugin folder set, hwloc must not be asked"
    );
    let Some(folder) = shared("hwloc_agrees_on_snapshots", "hwloc/linux") else {
        return;
    };
    let mut faults = Vec::new();
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.ends_with(".tar.bz2") && !name.starts_with("allowed-"))
        .collect();
    names.sort();
    assert!(names.len() >= 38, "only {} snapshots were found", names.len());
    for name in &names {
        let (_dir, top) = crate::probe::unpack(&folder.join(name));
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "probe_robust::hwloc_child", "--ignored", "--nocapture"])
            .env("HWLOC_PLUGINS_PATH", NO_PLUGINS)
            .env("HWLOC_FSROOT", &top)
            .env("HWLOC_COMPONENTS", "linux,stop")
            .env("HWLOC_DUMPED_HWDATA_DIR", "/var/run/hwloc")
            .env("HWLOC_HIDE_ERRORS", "2")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // The test harness may print before it on the same line.
        let json = text
            .lines()
            .find_map(|line| Some(line.split_once("TOPOLOGY ")?.1))
            .unwrap();
        let theirs = serde_json::from_str(json).unwrap();
        let (_, hardware) = probe_at(&top);
        faults.extend(
            differences(&hardware, &theirs)
                .into_iter()
                .map(|fault| format!("{name}: {fault}")),
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn limits_of_parents_and_memory_nodes_bind() {
    let dir = tempfile::tempdir().unwrap();
    let mut tree = Tree::new();
    let mut put = |path: &str, text: &str| {
        tree.insert(path.to_owned(), text.as_bytes().to_vec());
    };
    put(
        "proc/meminfo",
        "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n",
    );
    put(
        "proc/self/status",
        "Cpus_allowed_list: 0-3\nMems_allowed_list: 0-1\n",
    );
    put("proc/self/cgroup", "0::/job.slice/unit.scope\n");
    put("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    // The leaf states nothing of the CPU and a wide memory limit; the parent is tighter in both.
    put("sys/fs/cgroup/job.slice/unit.scope/memory.max", "8589934592\n");
    put("sys/fs/cgroup/job.slice/unit.scope/memory.current", "0\n");
    put("sys/fs/cgroup/job.slice/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/job.slice/memory.max", "4294967296\n");
    put("sys/fs/cgroup/job.slice/memory.high", "3221225472\n");
    put("sys/fs/cgroup/job.slice/memory.current", "1073741824\n");
    put(
        "sys/fs/cgroup/job.slice/memory.stat",
        "inactive_file 536870912\nactive_file 0\n",
    );
    put("sys/fs/cgroup/cpuset.mems.effective", "1\n");
    put("sys/devices/system/cpu/online", "0-3\n");
    for (node, cpus) in [(0, "0-3"), (1, "")] {
        let folder = format!("sys/devices/system/node/node{node}");
        put(&format!("{folder}/cpulist"), &format!("{cpus}\n"));
        let info = format!("Node {node} MemTotal: 8388608 kB\nNode {node} MemFree: 1048576 kB\n");
        put(&format!("{folder}/meminfo"), &info);
    }
    write_tree(dir.path(), &tree);
    let (_, hardware) = probe_at(dir.path());
    assert_eq!(hardware.quota.cpus, Some(1.5));
    assert_eq!(
        hardware.quota.source.as_deref(),
        Some("/sys/fs/cgroup/job.slice/cpu.max")
    );
    assert_eq!(hardware.memory.limit_bytes.unwrap().0, 4 << 30);
    assert_eq!(
        hardware.memory.limit_source.as_deref(),
        Some("/sys/fs/cgroup/job.slice/memory.max")
    );
    assert_eq!(hardware.memory.soft_limit_bytes.unwrap().0, 3 << 30);
    // Node 1 alone is allowed and has 1 GiB free, less than high − current + cache = 2.5 GiB.
    assert_eq!(hardware.memory.allowed_nodes.to_string(), "1");
    assert_eq!(hardware.memory.available_bytes.0, 1 << 30);
    let facts = probe::facts(&hardware);
    assert_eq!(facts["memory_only_nodes"], "1");
    // Without the memory-node restriction the soft limit binds.
    tree.insert(
        "sys/fs/cgroup/cpuset.mems.effective".to_owned(),
        b"0-1\n".to_vec(),
    );
    write_tree(dir.path(), &tree);
    let (_, hardware) = probe_at(dir.path());
    assert_eq!(hardware.memory.available_bytes.0, (5 << 30) / 2);
    assert!(
        hardware
            .memory
            .available_source
            .ends_with("job.slice/memory.high")
    );
    // A meminfo of absurd numbers is no machine.
    tree.insert(
        "proc/meminfo".to_owned(),
        b"MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n".to_vec(),
    );
    write_tree(dir.path(), &tree);
    let (_, hardware) = probe_at(dir.path());
    assert_eq!(hardware.memory.total_bytes.0, 16 << 30, "the nodes' sum is used");
}
