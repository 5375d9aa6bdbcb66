//! What users of other programs reported about memory, fit and configuration, as cases of our own.
//!
//! The cases are data under `tests/fixtures/reports`; a last test checks that no report is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use edge_deploy::base::{Bytes, CpuSet, KeyPath, Problems, Severity};
use edge_deploy::config::{self, Layered, Sources};
use edge_deploy::derive::{DECODER, Options, derive_with};
use edge_deploy::model::ModelCard;
use edge_deploy::model::card::{AttentionKind, LayerSpec, RopeSpec};
use edge_deploy::plan::Plan;
use edge_deploy::probe::hardware::NumaNode;
use edge_deploy::probe::{self, Hardware, Root};
use serde_json::Value;

use crate::support::{cards, shared};

/// Reports that a test elsewhere covers: report, file, name of the test.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "microsoft/WSL#13142",
        "tests/it/user_reports.rs",
        "virtual_machines_are_told_where_their_memory_is_set",
    ),
    (
        "microsoft/WSL#7851",
        "tests/it/user_reports.rs",
        "virtual_machines_are_told_where_their_memory_is_set",
    ),
    (
        "docker/for-win#13939",
        "tests/it/user_reports.rs",
        "virtual_machines_are_told_where_their_memory_is_set",
    ),
    (
        "b4rtaz/distributed-llama#59",
        "tests/it/user_reports.rs",
        "no_memory_is_locked",
    ),
    (
        "ggml-org/llama.cpp#28326",
        "tests/it/cli/serving.rs",
        "a_server_offers_itself_when_memory_runs_out",
    ),
    (
        "ollama/ollama#16830",
        "tests/it/server/limits.rs",
        "hostile_requests_get_error_bodies_and_the_server_goes_on",
    ),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn cases(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixtures().join("reports").join(file)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn name(case: &Value) -> String {
    format!("{} ({})", case["about"].as_str().unwrap(), case["reports"])
}

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// A machine of four cores with these files.
fn write_machine(root: &Path, files: &Value) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let cpu = |at: usize| format!("processor\t: {at}\nmodel name\t: Test\nflags\t\t: fpu avx2 fma f16c\n\n");
    write("proc/cpuinfo", &(0..4).map(cpu).collect::<String>());
    for set in ["online", "possible", "present"] {
        write(&format!("sys/devices/system/cpu/{set}"), "0-3\n");
    }
    write("proc/self/status", "Cpus_allowed_list:\t0-3\n");
    let mounts = match files["cgroup"].as_str() {
        Some("v1") => "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
        _ => "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    };
    write("proc/mounts", mounts);
    for (path, text) in files.as_object().unwrap() {
        if path != "cgroup" {
            write(path, text.as_str().unwrap());
        }
    }
}

fn probed(root: &Path) -> Hardware {
    let root = Root::snapshot(root).unwrap_or_else(|problem| panic!("{problem}"));
    probe::probe(&root).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn what_may_be_used_is_what_the_kernel_would_give() {
    for case in cases("memory.json") {
        let name = name(&case);
        let folder = tempfile::tempdir().unwrap();
        write_machine(folder.path(), &case["files"]);
        let hardware = probed(folder.path());
        let available = hardware.memory.available_bytes.0;
        let bound = |key: &str| case[key].as_u64().unwrap();
        assert!(
            (bound("available_min")..=bound("available_max")).contains(&available),
            "{name}: {available}"
        );
        for (key, fits) in [("plans_weights_mib", true), ("refuses_weights_mib", false)] {
            if let Some(mib) = case[key].as_u64() {
                let card = sized(mib << 20, &case["model"]);
                let plan = planned(&hardware, &card, &Value::Null, Options::default());
                assert_eq!(plan.is_ok(), fits, "{name}");
            }
        }
        if let Some(then) = case.get("then") {
            for (path, text) in then.as_object().unwrap() {
                fs::write(folder.path().join(path), text.as_str().unwrap()).unwrap();
            }
            let again = probed(folder.path()).memory.available_bytes.0;
            assert_eq!(Some(again), case["then_available"].as_u64(), "{name}");
        }
    }
}

/// A card with the facts of a case; where it has none, of a small model.
fn sized(weights: u64, model: &Value) -> ModelCard {
    let mut card = cards::card("qwen3");
    let number = |key: &str, usual: usize| model[key].as_u64().map_or(usual, |n| n as usize);
    let spec = &mut card.decoder;
    spec.kv_heads = number("kv_heads", 8);
    spec.head_dim = number("head_dim", 128);
    spec.value_dim = spec.head_dim;
    let layer = LayerSpec {
        attention: AttentionKind::Full,
        rope: RopeSpec {
            dims: spec.head_dim,
            ..spec.layers[0].rope.clone()
        },
    };
    spec.layers = vec![layer; number("layers", 4)];
    if let Some(window) = model["window"].as_u64() {
        for (at, layer) in spec.layers.iter_mut().enumerate() {
            if (at + 1) % 6 != 0 {
                layer.attention = AttentionKind::Sliding {
                    window: window as usize,
                };
            }
        }
    }
    card.context_train = number("context_train", 4096) as u64;
    let one = &mut card.tensors[0];
    let row = one.shape[1] / 32 * 34;
    one.shape[0] = weights / row / 16 * 16;
    one.bytes = Bytes(one.shape[0] * row);
    card.tensors.truncate(1);
    card.file_bytes = card.tensors[0].bytes;
    card
}

fn planned(hardware: &Hardware, card: &ModelCard, set: &Value, options: Options) -> Result<Plan, Problems> {
    let pairs = set.as_object().into_iter().flatten();
    let sources = Sources {
        class: Some(hardware.class.as_str().to_owned()),
        set: pairs
            .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
        ..Sources::default()
    };
    derive_with(hardware, card, &config::load(&sources)?, options).map(Plan::settle)
}

/// A machine of 16 cores with so much memory, all of it available unless the case says otherwise.
fn machine(case: &Value) -> Hardware {
    let folder = tempfile::tempdir().unwrap();
    let files = serde_json::json!({"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n"});
    write_machine(folder.path(), &files);
    let mut hardware = probed(folder.path());
    let gib = |key: &str| {
        case[key]
            .as_f64()
            .map(|gib| Bytes((gib * f64::from(1 << 30)) as u64))
    };
    let total = gib("memory_gib").unwrap();
    hardware.memory.total_bytes = total;
    hardware.memory.available_bytes = gib("available_gib").unwrap_or(total);
    hardware.memory.system_available_bytes = Some(hardware.memory.available_bytes);
    if let Some(nodes) = case["nodes"].as_u64() {
        let cores: Vec<CpuSet> = (0..32).map(|cpu| CpuSet::range(cpu, cpu)).collect();
        let core = hardware.topology.cores[0].clone();
        hardware.topology.cores = cores
            .iter()
            .map(|cpus| edge_deploy::probe::hardware::Core {
                cpus: cpus.clone(),
                ..core.clone()
            })
            .collect();
        let all = CpuSet::range(0, 31);
        hardware.topology.kinds[0].cpus = all.clone();
        hardware.cpus.online = all.clone();
        hardware.cpus.allowed = all;
        let share = 32 / nodes as u32;
        hardware.topology.nodes = (0..nodes as u32)
            .map(|id| NumaNode {
                id,
                cpus: CpuSet::range(id * share, (id + 1) * share - 1),
                total_bytes: Some(Bytes(total.0 / nodes)),
                available_bytes: Some(Bytes(total.0 / nodes)),
                allowed: true,
            })
            .collect();
    }
    hardware
}

fn contains(name: &str, text: &str, words: &Value) {
    for word in texts(words) {
        assert!(text.contains(word), "{name}: `{word}` is not in:\n{text}");
    }
}

#[test]
fn models_fit_or_are_refused_with_what_would_fit() {
    for case in cases("fit.json") {
        let name = name(&case);
        let hardware = machine(&case);
        let weights = case["model"]["weights_gib"].as_f64().unwrap() * f64::from(1 << 30);
        let card = sized(weights as u64, &case["model"]);
        let options = Options {
            force: case["force"] == true,
            credit: Bytes((case["credit_gib"].as_f64().unwrap_or(0.0) * f64::from(1 << 30)) as u64),
        };
        let plan = planned(&hardware, &card, &case["set"], options);
        if let Some(code) = case["refused"].as_str() {
            let Problems(problems) = plan.expect_err(&name);
            let problem = &problems[0];
            assert_eq!(problem.code.as_str(), code, "{name}: {problem}");
            contains(&name, &problem.what, &case["what_contains"]);
            contains(&name, &problem.why, &case["why_contains"]);
            contains(&name, &problem.remedy, &case["remedy_contains"]);
            let details = problem.details.as_ref().unwrap();
            for key in texts(&case["details"]) {
                assert!(!details[key].is_null(), "{name}: {key} in {details}");
            }
            continue;
        }
        let plan = plan.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        fits(&name, &case, &plan);
    }
}

fn fits(name: &str, case: &Value, plan: &Plan) {
    let stage = &plan.stages[DECODER];
    let at_least = |key: &str, value: u64| {
        assert!(
            case[key].as_u64().is_none_or(|least| value >= least),
            "{name}: {key}, {value}"
        );
    };
    let at_most = |key: &str, value: u64| {
        assert!(
            case[key].as_u64().is_none_or(|most| value <= most),
            "{name}: {key}, {value}"
        );
    };
    let exactly = |key: &str, value: u64| {
        assert!(
            case[key].as_u64().is_none_or(|wanted| value == wanted),
            "{name}: {key}, {value}"
        );
    };
    at_least("context_min", stage.context as u64);
    at_most("context_max", stage.context as u64);
    exactly("kv_bytes", stage.kv_bytes.0);
    at_most("kv_max", stage.kv_bytes.0);
    exactly("reserve_bytes", plan.memory.reserve_bytes.0);
    exactly("available_bytes", plan.memory.available_bytes.0);
    at_most("peak_max", plan.memory.peak_bytes.0);
    let because = |key: &str| plan.explain(&format!("stages.decoder.{key}")).unwrap().clone();
    contains(name, &because("kv_bytes").because, &case["kv_because_contains"]);
    for (key, knob) in [("bounded_by", "context"), ("bounded_cpus_by", "cpus")] {
        if let Some(by) = case[key].as_str() {
            let bound = because(knob).bounded_by.unwrap_or_default();
            assert!(bound.contains(by), "{name}: {knob} bounded by `{bound}`");
        }
    }
    if let Some(code) = case["warning"].as_str() {
        let warning = plan.warnings.iter().find(|warning| warning.code.as_str() == code);
        let warning = warning.unwrap_or_else(|| panic!("{name}: {:?}", plan.warnings));
        assert_eq!(warning.severity, Severity::Warning, "{name}");
        contains(name, &warning.to_string(), &case["warning_contains"]);
    }
    if case["sums_add_up"] == true {
        let anonymous = plan
            .memory
            .items
            .iter()
            .filter(|item| item.anonymous && item.steady);
        let sum: u64 = anonymous.map(|item| item.bytes.0).sum();
        assert_eq!(sum, plan.memory.steady_bytes.0, "{name}");
    }
    let memory = &plan.memory;
    let inside = memory.peak_bytes.0 + memory.reserve_bytes.0 <= memory.available_bytes.0;
    assert!(inside || case["force"] == true, "{name}: {memory:?}");
}

fn configured(case: &Value, folder: &Path) -> Result<Layered, Problems> {
    let pairs = |key: &str| -> Vec<(String, String)> {
        let pairs = case[key].as_object().into_iter().flatten();
        pairs
            .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
            .collect()
    };
    let user_file = case["yaml"].as_str().map(|text| {
        let file = folder.join("case.yaml");
        fs::write(&file, text).unwrap();
        file
    });
    config::load(&Sources {
        user_file,
        env: pairs("env"),
        set: pairs("set"),
        ..Sources::default()
    })
}

#[test]
fn what_is_written_is_read_exactly_or_refused() {
    for case in cases("config.json") {
        let name = name(&case);
        let folder = tempfile::tempdir().unwrap();
        let loaded = configured(&case, folder.path());
        if let Some(code) = case["refused"].as_str() {
            let problems = loaded.expect_err(&name);
            let first = &problems.0[0];
            assert_eq!(first.code.as_str(), code, "{name}: {problems}");
            let place = first.place.as_ref().unwrap();
            if let Some(line) = case["line"].as_u64() {
                assert_eq!(place.line.map(u64::from), Some(line), "{name}: {problems}");
            }
            assert!(
                place.line.is_some() && place.column.is_some() && place.snippet.is_some(),
                "{name}"
            );
            if let Some(count) = case["problems"].as_u64() {
                assert_eq!(problems.0.len() as u64, count, "{name}: {problems}");
            }
            contains(&name, &problems.to_string(), &case["contains"]);
            continue;
        }
        let layered = loaded.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        for (key, value) in case["values"].as_object().into_iter().flatten() {
            let pin = layered.pin::<Value>(key).unwrap();
            let pin = pin.unwrap_or_else(|| panic!("{name}: `{key}` is not set"));
            assert_eq!(pin.value, *value, "{name}: {key}");
        }
        for key in texts(&case["absent"]) {
            assert!(layered.pin::<Value>(key).unwrap().is_none(), "{name}: {key}");
            assert!(
                layered.provenance.contains_key(&KeyPath::new(key)),
                "{name}: {key}"
            );
        }
        if let Some(code) = case["warning"].as_str() {
            assert!(
                layered
                    .warnings
                    .iter()
                    .any(|warning| warning.code.as_str() == code),
                "{name}"
            );
        }
    }
}

/// Everything the probe says about a machine.
fn told(hardware: &Hardware) -> String {
    let lines: Vec<String> = hardware.warnings.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn virtual_machines_are_told_where_their_memory_is_set() {
    let machines = fixtures().join("machines");
    for (machine, words) in [
        ("E-wsl2-no-caches", ["WSL", ".wslconfig"]),
        ("B-docker-desktop", ["Docker Desktop", "memory"]),
    ] {
        let hardware = probed(&machines.join(machine).join("fsroot"));
        let text = told(&hardware);
        for word in words {
            assert!(text.contains(word), "{machine}: `{word}` is not in:\n{text}");
        }
        assert!(!text.contains("buy"), "{text}");
    }
    let hardware = probed(&machines.join("E-wsl2-no-caches/fsroot"));
    let text = told(&hardware);
    assert!(text.contains("UTF-8"), "the encoding of that file: {text}");
}

#[test]
fn no_memory_is_locked() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut read = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let text = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                !text.contains("mlock"),
                "{} locks memory: check RLIMIT_MEMLOCK first",
                path.display()
            );
            read += 1;
        }
    }
    assert!(read > 100, "{read}");
}

#[test]
fn no_report_about_memory_fit_or_configuration_is_left_out() {
    let mut covered: BTreeSet<String> = BTreeSet::new();
    for file in ["memory.json", "fit.json", "config.json"] {
        for case in cases(file) {
            covered.extend(texts(&case["reports"]).into_iter().map(str::to_owned));
        }
    }
    for (report, file, test) in ELSEWHERE {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        assert!(
            text.contains(&format!("fn {test}(")),
            "{report}: no test {test} in {file}"
        );
        covered.insert((*report).to_owned());
    }
    assert_eq!(covered.len(), 55, "every report of the three groups, once");
    let test = "no_report_about_memory_fit_or_configuration_is_left_out";
    let Some(list) = shared(test, "spec/user-reports.md") else {
        return;
    };
    let text = fs::read_to_string(list).unwrap();
    let mut group = ' ';
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            group = heading.chars().next().unwrap_or(' ');
        }
        let report = line.strip_prefix("| [").and_then(|rest| rest.split(']').next());
        if let (true, Some(report)) = (matches!(group, 'B' | 'C' | 'I'), report) {
            assert!(covered.contains(report), "{report} has no case");
        }
    }
}
