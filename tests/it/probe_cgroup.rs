//! The probe inside real control groups: a CPU quota of half a CPU and of one and a half, a cpuset of one CPU, a
//! memory limit, and limits on a parent. What the program says there is held against `nproc`, `lscpu`, `lstopo`,
//! `free` and the limits themselves.
//!
//! Needs writable v1 controllers (`cpu`, `cpuset`, `memory`) or a v2 tree with them, usually only root has either;
//! elsewhere each part is skipped aloud.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const BASE: &str = "/sys/fs/cgroup";

/// A group made for one test. Removed when dropped, so also after a failed assertion.
struct Group(PathBuf);

impl Group {
    fn new(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// A group below this one.
    fn inner(&self, name: &str) -> io::Result<Self> {
        Self::new(self.0.join(name))
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.0.join(file), value)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets go of a group a moment after its last process has ended.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
        eprintln!("the control group {} could not be removed", self.0.display());
    }
}

/// A new group for a controller: where v1 has it mounted, else in the v2 tree. Whether it is v2 comes with it.
fn group(controller: &str, test: &str) -> io::Result<(Group, bool)> {
    let name = format!("edge-deploy-{test}-{}", std::process::id());
    let v1 = Path::new(BASE).join(controller);
    if v1.join("cgroup.procs").exists() {
        return Ok((Group::new(v1.join(name))?, false));
    }
    let controllers = fs::read_to_string(Path::new(BASE).join("cgroup.subtree_control"))?;
    if !controllers.split_whitespace().any(|word| word == controller) {
        let what = format!("controller `{controller}` is not enabled in {BASE}/cgroup.subtree_control");
        return Err(io::Error::other(what));
    }
    Ok((Group::new(Path::new(BASE).join(name))?, true))
}

/// Runs a command line in the groups and gives its output.
fn inside(groups: &[&Group], command: &str) -> String {
    let mut script = String::from("set -e\n");
    for group in groups {
        // Writing to a String cannot fail.
        let _ = writeln!(script, "echo $$ > '{}/cgroup.procs'", group.0.display());
    }
    let output = Command::new("sh")
        .args(["-c", &(script + "exec " + command)])
        .env("LC_ALL", "C")
        .env_remove("OMP_NUM_THREADS")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The facts as the program sees them in the groups.
fn facts(groups: &[&Group]) -> Value {
    let text = inside(
        groups,
        &format!("'{}' probe --json", env!("CARGO_BIN_EXE_edge-deploy")),
    );
    serde_json::from_str::<Value>(&text).unwrap()["facts"].take()
}

/// Output of a tool in the groups, if it is installed.
fn tool(groups: &[&Group], command: &str) -> Option<String> {
    let name = command.split(' ').next().unwrap();
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name} >/dev/null")])
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        skipped!("SKIPPED a part: `{name}` is not here");
        return None;
    }
    Some(inside(groups, command))
}

/// What every usual tool says of the CPUs and the memory there.
fn same_as_tools(groups: &[&Group], facts: &Value, quota: bool) {
    // Releases from 9.8 on round a v2 quota up; affinity and cpuset are in all of them.
    if let Some(text) = tool(groups, "nproc").filter(|_| !quota) {
        assert_eq!(facts["logical_cpus_allowed"], text.trim().parse::<u64>().unwrap());
    }
    if let Some(text) = tool(groups, "lscpu -p=cpu") {
        let online = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(facts["logical_cpus_online"], online);
    }
    if let Some(text) = tool(groups, "lstopo-no-graphics --of console --only pu") {
        assert_eq!(facts["logical_cpus_allowed"], text.lines().count());
    }
    if let Some(text) = tool(groups, "lstopo-no-graphics --of console --only core") {
        assert_eq!(facts["cores_allowed"], text.lines().count());
    }
    if let Some(text) = tool(groups, "free -b") {
        let row = text.lines().find(|line| line.starts_with("Mem:")).unwrap();
        let total: u64 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_eq!(facts["mem_total"], total);
    }
}

/// Unwraps, or says what is skipped and why.
fn or_skip<T>(test: &str, made: io::Result<T>) -> Option<T> {
    made.map_err(|error| skipped!("SKIPPED {test}: no control group can be made here: {error}"))
        .ok()
}

fn set_quota(group: &Group, v2: bool, quota_us: u64) -> io::Result<()> {
    if v2 {
        group.set("cpu.max", &format!("{quota_us} 100000"))
    } else {
        group.set("cpu.cfs_period_us", "100000")?;
        group.set("cpu.cfs_quota_us", &quota_us.to_string())
    }
}

fn quota_file(group: &Group, v2: bool) -> String {
    let name = if v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
    group.0.join(name).to_string_lossy().into_owned()
}

#[test]
fn half_a_cpu_and_one_and_a_half() {
    let test = "half_a_cpu_and_one_and_a_half";
    let Some((group, v2)) = or_skip(test, group("cpu", "quota")) else {
        return;
    };
    let outside = facts(&[]);
    let allowed = outside["logical_cpus_allowed"].as_f64().unwrap();
    for (quota_us, cpus) in [(50_000, 0.5), (150_000, 1.5)] {
        if or_skip(test, set_quota(&group, v2, quota_us)).is_none() {
            return;
        }
        let facts = facts(&[&group]);
        assert_eq!(facts["cpu_quota"], cpus);
        assert_eq!(facts["cpu_quota_source"], quota_file(&group, v2));
        // A quota is time: the CPUs stay the same.
        for key in [
            "allowed_cpus",
            "cores_allowed",
            "logical_cpus_online",
            "mem_total",
        ] {
            assert_eq!(facts[key], outside[key], "{key}");
        }
        let warned = facts["warnings"].to_string().contains(&quota_file(&group, v2));
        assert_eq!(warned, cpus < allowed, "{}", facts["warnings"]);
        same_as_tools(&[&group], &facts, true);
    }
}

#[test]
fn a_quota_on_the_parent_binds() {
    let test = "a_quota_on_the_parent_binds";
    let Some((outer, v2)) = or_skip(test, group("cpu", "parent")) else {
        return;
    };
    if v2 && or_skip(test, outer.set("cgroup.subtree_control", "+cpu")).is_none() {
        return;
    }
    let Some(inner) = or_skip(test, outer.inner("inner")) else {
        return;
    };
    if or_skip(test, set_quota(&outer, v2, 50_000)).is_none() {
        return;
    }
    let facts = facts(&[&inner]);
    assert_eq!(facts["cpu_quota"], 0.5);
    assert_eq!(facts["cpu_quota_source"], quota_file(&outer, v2));
}

#[test]
fn a_cpuset_of_one_cpu() {
    let test = "a_cpuset_of_one_cpu";
    let Some((group, _)) = or_skip(test, group("cpuset", "cpuset")) else {
        return;
    };
    let outside = facts(&[]);
    let allowed: edge_deploy::base::CpuSet = outside["allowed_cpus"].as_str().unwrap().parse().unwrap();
    let last = allowed.last().unwrap().to_string();
    let made = group
        .set("cpuset.cpus", &last)
        .and_then(|()| group.set("cpuset.mems", outside["allowed_mems"].as_str().unwrap()));
    if or_skip(test, made).is_none() {
        return;
    }
    let facts = facts(&[&group]);
    assert_eq!(facts["allowed_cpus"], last);
    assert_eq!(facts["logical_cpus_allowed"], 1);
    assert_eq!(facts["cores_allowed"], 1);
    assert_eq!(facts["packages"], 1);
    assert_eq!(facts["online_cpus"], outside["online_cpus"]);
    assert_eq!(facts["cores"], outside["cores"]);
    assert_ne!(allowed.len() > 1, facts["fingerprint"] == outside["fingerprint"]);
    same_as_tools(&[&group], &facts, false);
}

#[test]
fn a_memory_limit_and_one_on_the_parent() {
    const OUTER: u64 = 512 << 20;
    const INNER: u64 = 256 << 20;
    let test = "a_memory_limit_and_one_on_the_parent";
    let Some((outer, v2)) = or_skip(test, group("memory", "memory")) else {
        return;
    };
    let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
    if or_skip(test, outer.set(file, &OUTER.to_string())).is_none() {
        return;
    }
    if v2 && or_skip(test, outer.set("cgroup.subtree_control", "+memory")).is_none() {
        return;
    }
    let Some(inner) = or_skip(test, outer.inner("inner")) else {
        return;
    };
    let source = |group: &Group| group.0.join(file).to_string_lossy().into_owned();
    // The inner group states no limit of its own.
    let open = facts(&[&inner]);
    assert_eq!(open["mem_limit"], OUTER);
    let stated = [
        source(&outer),
        inner.0.join("memory.stat").to_string_lossy().into_owned(),
    ];
    assert!(
        stated
            .iter()
            .any(|source| open["mem_limit_source"] == source.as_str()),
        "{}",
        open["mem_limit_source"]
    );
    let available = open["mem_available"].as_u64().unwrap();
    // Less what the probing process itself uses.
    assert!((OUTER * 3 / 4..=OUTER).contains(&available), "{available}");
    same_as_tools(&[&inner], &open, false);
    // A tighter limit of its own binds instead, and so does a tighter one above it.
    inner.set(file, &INNER.to_string()).unwrap();
    let tight = facts(&[&inner]);
    assert_eq!(
        (tight["mem_limit"].as_u64(), tight["mem_limit_source"].as_str()),
        (Some(INNER), Some(source(&inner).as_str()))
    );
    assert!(tight["mem_available"].as_u64().unwrap() <= INNER);
    let warnings = tight["warnings"].to_string();
    assert!(
        warnings.contains("memory is limited to") && warnings.contains(&source(&inner)),
        "{warnings}"
    );
}

#[test]
fn everything_at_once() {
    let test = "everything_at_once";
    let made = group("cpu", "all-cpu")
        .and_then(|cpu| Ok((cpu, group("cpuset", "all-set")?, group("memory", "all-mem")?)));
    let Some(((cpu, v2), (set, set_v2), (memory, memory_v2))) = or_skip(test, made) else {
        return;
    };
    if v2 || set_v2 || memory_v2 {
        skipped!("SKIPPED {test}: one v2 group cannot be three groups; the other tests cover v2");
        return;
    }
    let outside = facts(&[]);
    let first = outside["allowed_cpus"]
        .as_str()
        .unwrap()
        .parse::<edge_deploy::base::CpuSet>()
        .unwrap()
        .first()
        .unwrap();
    let limits = set_quota(&cpu, v2, 150_000)
        .and_then(|()| set.set("cpuset.cpus", &first.to_string()))
        .and_then(|()| set.set("cpuset.mems", outside["allowed_mems"].as_str().unwrap()))
        .and_then(|()| memory.set("memory.limit_in_bytes", "536870912"));
    if or_skip(test, limits).is_none() {
        return;
    }
    let groups = [&cpu, &set, &memory];
    let facts = facts(&groups);
    assert_eq!(facts["cpu_quota"], 1.5);
    assert_eq!(facts["allowed_cpus"], first.to_string());
    assert_eq!(facts["mem_limit"], 536_870_912u64);
    // 1.5 CPUs of time on one CPU limit nothing, so nothing is said of it.
    assert!(
        !facts["warnings"].to_string().contains("CPUs of time"),
        "{}",
        facts["warnings"]
    );
    same_as_tools(&groups, &facts, true);
}
