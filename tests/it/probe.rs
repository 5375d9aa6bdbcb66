//! The probe against captured machines: every fixture, every topology snapshot, every CPUID dump.

use std::fs;
use std::path::{Path, PathBuf};

use edge_deploy::base::CpuSet;
use edge_deploy::probe::{self, Hardware, Root};
use serde_json::Value;

use crate::support::shared;

fn probe_at(dir: &Path) -> Hardware {
    let root = Root::snapshot(dir).unwrap();
    probe::probe(&root).unwrap_or_else(|problem| panic!("{}: {problem}", dir.display()))
}

/// Keys of expect.json that later rooms answer, and prose.
const NOT_FACTS: &[&str] = &[
    "id",
    "title",
    "source",
    "note",
    "must_not",
    "decode_threads",
    "fit",
    "pin_must_be_subset_of",
];

/// Faults of `facts` against an expected file, one line each.
fn compare(facts: &Value, expected: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for (key, want) in expected.as_object().unwrap() {
        if NOT_FACTS.contains(&key.as_str()) {
            continue;
        }
        let mut check = |name: &str, ok: bool| {
            if !ok {
                faults.push(format!("{key}: expected {want}, facts say {}", facts[name]));
            }
        };
        if key == "warning_contains" {
            let text = facts["warnings"].to_string();
            check("warnings", text.contains(want.as_str().unwrap()));
        } else if let Some(name) = key.strip_suffix("_not_contains") {
            let has = facts[name].as_array().unwrap();
            check(
                name,
                want.as_array().unwrap().iter().all(|item| !has.contains(item)),
            );
        } else if let Some(name) = key.strip_suffix("_contains") {
            let has = facts[name].as_array().unwrap();
            check(
                name,
                want.as_array().unwrap().iter().all(|item| has.contains(item)),
            );
        } else if let Some(name) = key.strip_suffix("_min") {
            check(
                name,
                facts[name].as_array().unwrap().len() as u64 >= want.as_u64().unwrap(),
            );
        } else if let Some(name) = key.strip_suffix("_max") {
            check(
                name,
                facts[name].as_array().unwrap().len() as u64 <= want.as_u64().unwrap(),
            );
        } else {
            check(key, facts.get(key).is_some_and(|have| holds(have, want)));
        }
    }
    faults
}

/// Whether a fact is as expected: `{min, max}` is a range, lists match item by item, objects by the keys expected.
fn holds(have: &Value, want: &Value) -> bool {
    match want {
        Value::Object(range) if range.contains_key("min") || range.contains_key("max") => {
            let Some(have) = have.as_f64() else { return false };
            range.get("min").is_none_or(|min| have >= min.as_f64().unwrap())
                && range.get("max").is_none_or(|max| have <= max.as_f64().unwrap())
        }
        Value::Object(keys) => keys
            .iter()
            .all(|(key, want)| have.get(key).is_some_and(|have| holds(have, want))),
        Value::Array(items) => have.as_array().is_some_and(|have| {
            have.len() == items.len() && have.iter().zip(items).all(|(have, want)| holds(have, want))
        }),
        Value::Number(number) => have.as_f64().is_some() && have.as_f64() == number.as_f64(),
        _ => have == want,
    }
}

/// Machine fixtures: our own, and the shared ones where they are. Name and root folder, in order.
pub fn machines(test: &str) -> Vec<(String, PathBuf)> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/machines");
    let mut found = machines_in(&ours);
    found.extend(
        shared(test, "fixtures")
            .into_iter()
            .flat_map(|folder| machines_in(&folder)),
    );
    found
}

fn machines_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("fsroot").is_dir())
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                path.join("fsroot"),
            )
        })
        .collect();
    found.sort();
    found
}

#[test]
fn every_machine_fixture_holds() {
    let mut faults = Vec::new();
    let mut environments = std::collections::BTreeSet::new();
    let all = machines("every_machine_fixture_holds");
    for (name, folder) in &all {
        let expected = folder.parent().unwrap().join("expect.json");
        let expected: Value = serde_json::from_slice(&fs::read(expected).unwrap()).unwrap();
        let facts = probe::facts(&probe_at(folder));
        environments.extend(expected["environment"].as_str().map(str::to_owned));
        faults.extend(
            compare(&facts, &expected)
                .into_iter()
                .map(|fault| format!("{name}: {fault}")),
        );
        for key in [
            "logical_cpus_allowed",
            "cores_allowed",
            "allowed_cpus",
            "online_cpus",
            "allowed_mems",
        ] {
            if facts.get(key).is_none_or(Value::is_null) {
                faults.push(format!("{name}: `{key}` is missing"));
            }
        }
    }
    assert!(all.len() >= 20, "only {} machine fixtures were found", all.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for environment in [
        "bare",
        "vm",
        "docker",
        "podman",
        "kubernetes",
        "lxc",
        "wsl2",
        "gvisor",
        "termux",
        "jetson",
    ] {
        assert!(
            environments.contains(environment),
            "no fixture is of {environment}"
        );
    }
}

#[test]
fn the_comparison_can_fail() {
    let facts = serde_json::json!({"cores": 4, "isa": ["neon"], "gpu": [{"name": "x", "unified_memory": true}], "warnings": []});
    let faults = |expected: Value| compare(&facts, &expected).len();
    assert_eq!(
        faults(serde_json::json!({"cores": 4, "isa_contains": ["neon"]})),
        0
    );
    assert_eq!(faults(serde_json::json!({"cores": 5})), 1);
    assert_eq!(faults(serde_json::json!({"cores": {"min": 5}})), 1);
    assert_eq!(
        faults(serde_json::json!({"isa_not_contains": ["neon"], "isa_contains": ["sve"]})),
        2
    );
    assert_eq!(
        faults(serde_json::json!({"gpu": [{"name": "y"}], "warning_contains": "z", "absent": null})),
        3
    );
}

/// Unpacks a snapshot and gives the folder that holds `proc` and `sys`.
pub fn unpack(archive: &Path) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("tar")
        .args([
            // Thousands of memory-block links that nothing reads would take most of the time.
            "--exclude=*/node/node*/memory[0-9]*",
            "-xjf",
            &archive.to_string_lossy(),
            "-C",
            &dir.path().to_string_lossy(),
        ])
        .status()
        .unwrap();
    assert!(status.success(), "{} could not be unpacked", archive.display());
    let mut top = dir.path().to_path_buf();
    while !["proc", "sys", "cpuid", "pu0"]
        .iter()
        .any(|name| top.join(name).exists())
    {
        let mut entries: Vec<_> = fs::read_dir(&top)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(entries.len(), 1, "{} has an unknown layout", archive.display());
        top = entries.remove(0);
    }
    if top.join("fsroot").is_dir() {
        top = top.join("fsroot");
    }
    (dir, top)
}

fn set(value: &Value) -> CpuSet {
    value.as_str().unwrap().parse().unwrap()
}

#[test]
fn every_linux_snapshot_has_the_expected_counts() {
    let test = "every_linux_snapshot_has_the_expected_counts";
    let Some(folder) = shared(test, "hwloc") else {
        return;
    };
    let expected: Value =
        serde_json::from_slice(&fs::read(folder.join("linux-expected.json")).unwrap()).unwrap();
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, entry) in expected
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != "_meta")
    {
        let archive = ["tar.bz2", "fsroot.tar.bz2"]
            .map(|end| folder.join("linux").join(format!("{name}.{end}")))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{name} is not there"));
        count += 1;
        let (_dir, top) = unpack(&archive);
        let facts = probe::facts(&probe_at(&top));
        let want = &entry["summary"];
        let mut check = |what: &str, have: &Value, want: &Value| {
            if have != want {
                faults.push(format!("{name}: {what} is {have}, expected {want}"));
            }
        };
        check(
            "logical CPUs",
            &facts["logical_cpus_allowed"],
            &want["logical_cpus"],
        );
        check("allowed CPUs", &facts["allowed_cpus"], &want["cpu_os_indexes"]);
        if name == "allowed-test1" {
            check("memory nodes", &facts["allowed_mems"], &Value::from("1-2"));
            continue;
        }
        if want["cores"] != 0 {
            check("cores", &facts["cores_allowed"], &want["cores"]);
        }
        for key in ["packages", "numa_nodes", "l3_count", "dies"] {
            check(key, &facts[key], &want[key]);
        }
        check(
            "node memory",
            &sorted(&facts["numa_memory_bytes"]),
            &sorted(&want["numa_memory_bytes"]),
        );
        if let Some(hidden) = want["hidden_pus"].as_object() {
            check("hidden CPUs", &facts["hidden_cpus"], &hidden["cpus"]);
            check("hidden CPUs", &facts["hidden_cpus_count"], &hidden["count"]);
        }
        let kinds = want["cpu_kinds"].as_array().unwrap();
        if !kinds.is_empty() {
            check(
                "kinds",
                &facts["cpu_kinds"].as_array().unwrap().len().into(),
                &kinds.len().into(),
            );
            for kind in kinds {
                let cpus = set(&kind["cpus"]);
                let ours = facts["cpu_kinds"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|kind| set(&kind["cpus"]));
                // hwloc leaves CPUs without a stated clock out of any kind; ours always cover all.
                let found = ours
                    .into_iter()
                    .any(|ours| cpus == ours || kinds.len() == 1 && cpus.is_subset(&ours));
                check("a kind", &Value::from(found), &Value::from(true));
            }
        }
    }
    assert!(count >= 39, "only {count} snapshots were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn sorted(value: &Value) -> Value {
    let mut pairs: Vec<_> = value
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    pairs.sort_by_key(|(key, _)| key.parse::<u32>().unwrap());
    pairs.into_iter().collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn every_cpuid_dump_has_the_expected_counts() {
    let test = "every_cpuid_dump_has_the_expected_counts";
    let Some(folder) = shared(test, "hwloc") else {
        return;
    };
    let expected: Value =
        serde_json::from_slice(&fs::read(folder.join("x86-expected.json")).unwrap()).unwrap();
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, entry) in expected
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != "_meta")
    {
        let (_dir, top) = unpack(&folder.join("x86").join(format!("{name}.tar.bz2")));
        count += 1;
        let facts = probe::facts(&probe_at(&top));
        let want = &entry["expected"];
        let mut check = |what: &str, have: &Value, want: &Value| {
            if have != want {
                faults.push(format!("{name}: {what} is {have}, expected {want}"));
            }
        };
        check("logical CPUs", &facts["logical_cpus_online"], &want["pus"]);
        for key in ["cores", "packages", "dies", "numa_nodes", "l3_count"] {
            check(key, &facts[key], &want[key]);
        }
        check("l2_count", &facts["l2_count"], &entry["l2_count"]);
        let kinds = entry["cpu_kinds"].as_array().unwrap();
        let ours = facts["cpu_kinds"].as_array().unwrap();
        check("kinds", &ours.len().into(), &kinds.len().max(1).into());
        for (ours, want) in ours.iter().zip(kinds) {
            check("the CPUs of a kind", &ours["cpus"], &want["cpus"]);
        }
    }
    assert!(count >= 31, "only {count} dumps were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
