//! The program as people and scripts meet it: help, exit codes, JSON shapes, pipes, no network.

mod say;
mod serving;

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

use crate::support;

/// A home of its own and no way to the network: every proxy points at a closed port.
struct Sandbox(TempDir);

impl Sandbox {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("edge-deploy").unwrap();
        let home = self.path();
        command
            .env_clear()
            .env("HOME", home)
            .env("PATH", home.join("bin"))
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("http_proxy", "http://127.0.0.1:9")
            .env("https_proxy", "http://127.0.0.1:9")
            .args(args);
        command
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit code and JSON of a command that fails.
    fn refused(&self, args: &[&str]) -> (i32, Value) {
        let output = self.command(args).output().unwrap();
        let code = output.status.code().unwrap();
        assert_ne!(code, 0, "{args:?}");
        (code, serde_json::from_slice(&output.stdout).unwrap())
    }
}

/// The keys of an object, for comparing shapes without values.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn every_command_has_help() {
    let sandbox = Sandbox::new();
    for words in [
        "auto",
        "plan",
        "explain",
        "run",
        "probe",
        "profiles",
        "profiles list",
        "profiles show",
        "profiles eject",
        "profiles validate",
        "profiles schema",
        "pull",
        "doctor",
        "verify",
        "completions",
        "man",
    ] {
        let mut args: Vec<&str> = words.split(' ').collect();
        args.push("--help");
        let output = sandbox.command(&args).output().unwrap();
        assert!(output.status.success(), "{words}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: edge-deploy"), "{words}: {text}");
    }
    let version = sandbox.command(&["--version"]).output().unwrap();
    assert_eq!(
        String::from_utf8(version.stdout).unwrap().trim(),
        format!("edge-deploy {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn the_default_plan_needs_no_file_and_no_network() {
    let sandbox = Sandbox::new();
    let plan = sandbox.json(&["plan", "--json"]);
    for key in [
        "schema",
        "digest",
        "model",
        "stages",
        "server",
        "deadlines",
        "memory",
        "explanations",
    ] {
        assert!(keys(&plan).contains(&key), "{key}");
    }
    assert_eq!(plan["server"]["host"], "127.0.0.1");
    assert_eq!(plan["server"]["port"], 8080);
    // The digest covers every knob, not the memory that happens to be free.
    let dry = sandbox.json(&["auto", "--dry-run", "--json"]);
    assert_eq!(plan["digest"], dry["digest"]);
    assert!(
        !sandbox.path().join("cache").exists(),
        "planning leaves nothing behind"
    );
    let text = sandbox.command(&["plan"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for word in ["stage decoder", "threads", "memory", "server"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn flags_are_pins_and_explain_says_so() {
    let sandbox = Sandbox::new();
    let explained = sandbox.json(&["explain", "server.port", "--port", "9090", "--json"]);
    let port = &explained["server.port"];
    assert_eq!(port["value"], 9090);
    assert_eq!(port["origin"]["kind"], "pinned");
    assert_eq!(port["origin"]["layer"], "command line");
    let all = sandbox.json(&["explain", "--json"]);
    let stages = sandbox.json(&["explain", "stages.decoder", "--json"]);
    assert!(keys(&stages).len() > 5 && keys(&all).len() > keys(&stages).len());
    assert!(keys(&stages).iter().all(|key| key.starts_with("stages.decoder.")));
    let (code, error) = sandbox.refused(&["explain", "server.prot", "--json"]);
    assert_eq!((code, error["error"]["code"].as_str()), (3, Some("unknown_key")));
    assert!(error["error"]["remedy"].as_str().unwrap().contains("server.port"));
}

#[test]
fn two_plans_on_this_machine_differ_by_what_was_asked_alone() {
    let sandbox = Sandbox::new();
    let own = sandbox.path().join("own.yaml");
    fs::write(&own, "deadlines:\n  load_ms: 77min\n").unwrap();
    // Free memory changes from one reading to the next; a few rounds make it seen.
    for _ in 0..4 {
        let said = sandbox.json(&["plan", "--diff", own.to_str().unwrap(), "--json"]);
        let differences = said["differences"].as_array().unwrap();
        let changed: Vec<&str> = differences
            .iter()
            .filter_map(|difference| difference["key"].as_str())
            .collect();
        assert_eq!(changed, ["deadlines.load_ms"], "{said}");
    }
}

#[test]
fn a_variable_that_sets_nothing_is_said() {
    let sandbox = Sandbox::new();
    let told = |name: &str, value: &str| {
        let output = sandbox.command(&["plan"]).env(name, value).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = told("EDGE_DEPLOY_STAGES__DECODER__THREADS", "1");
    assert!(said.contains("EDGE_DEPLOY__STAGES__DECODER__THREADS"), "{said}");
    let said = told("EDGE_DEPLOY_PORT", "9");
    assert!(
        said.contains("no effect") && said.contains("EDGE_DEPLOY__SERVER__PORT"),
        "{said}"
    );
    for (name, value) in [("EDGE_DEPLOY_LOG", "warn"), ("EDGE_DEPLOY__SERVER__PORT", "9")] {
        let said = told(name, value);
        assert!(!said.contains("no effect"), "{name}: {said}");
    }
}

#[test]
fn a_context_of_zero_is_the_models_own_and_none_is_ever_shortened() {
    let sandbox = Sandbox::new();
    let small = sandbox.json(&["plan", "--context", "1000", "--json"]);
    assert_eq!(small["stages"]["decoder"]["context"], 1000);
    let own = sandbox.json(&["plan", "--context", "0", "--json"]);
    assert_eq!(own["stages"]["decoder"]["context"], 8192);
    let (code, error) = sandbox.refused(&["plan", "--context", "8193", "--json"]);
    assert_eq!(
        (code, error["error"]["code"].as_str()),
        (5, Some("context_too_long"))
    );
}

#[test]
fn an_api_key_is_required_but_never_shown() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&["plan", "--json"])
        .env("EDGE_DEPLOY_API_KEY", "hunter2-secret")
        .output()
        .unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["server"]["api_key_required"], true);
    assert!(!String::from_utf8(output.stdout).unwrap().contains("hunter2"));
    assert!(!String::from_utf8(output.stderr).unwrap().contains("hunter2"));
}

#[test]
fn wrong_flags_and_settings_have_their_exit_codes() {
    let sandbox = Sandbox::new();
    for (args, code) in [
        (vec!["plan", "--no-such-flag"], 2),
        (vec![], 2),
        (vec!["plan", "--set", "nonsense"], 3),
        (vec!["plan", "--set", "stages.decoder.thread=3"], 3),
        (vec!["plan", "--context", "many"], 3),
        (vec!["plan", "--profile", "no-such-profile"], 3),
        (vec!["plan", "-m", "no-such-model"], 4),
        (vec!["plan", "-m", "./no/such/file.gguf"], 4),
        (vec!["plan", "-m", "hf:not-a-model"], 4),
        (vec!["plan", "-m", "hf:some/model"], 4),
        (vec!["plan", "--context", "100000000"], 5),
        (vec!["plan", "--sysroot", "/no/such/folder"], 9),
        (vec!["plan", "--hardware", "/dev/zero"], 7),
        (vec!["plan", "--context", "1"], 3),
        (vec!["plan", "--set", "model.context=1"], 3),
        (vec!["plan", "--api-key", ""], 3),
        (vec!["plan", "--host", ""], 3),
        (vec!["plan", "--port", " "], 3),
        (vec!["pull", "./file"], 4),
        (vec!["--log", "not==a=filter", "plan"], 3),
    ] {
        let output = sandbox.command(&args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: results only on stdout");
        assert!(code == 2 || stderr.contains("  do: "), "{args:?}: {stderr}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_saved_machine_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let sandbox = Sandbox::new();
    let pipe = sandbox.path().join("pipe.json");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for command in ["plan", "probe"] {
        let output = sandbox
            .command(&[command, "--hardware", pipe.to_str().unwrap()])
            .timeout(std::time::Duration::from_mins(1))
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{command}: {stderr}");
        assert!(stderr.contains("not a regular file"), "{stderr}");
    }
}

#[test]
fn a_saved_machine_that_contradicts_itself_is_refused_by_plan_too() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("machine.json");
    let name = file.to_str().unwrap();
    assert!(
        sandbox
            .command(&["probe", "--save", name])
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut machine: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    machine["cpus"]["allowed"] = "9999".into();
    fs::write(&file, machine.to_string()).unwrap();
    let (code, error) = sandbox.refused(&["plan", "--hardware", name, "--json"]);
    assert_eq!(
        (code, error["error"]["code"].as_str()),
        (9, Some("probe_failed")),
        "{error}"
    );
    assert!(
        error["error"]["what"].as_str().unwrap().contains("allowed CPUs"),
        "{error}"
    );
}

#[test]
fn a_key_that_cannot_be_read_does_not_leave_the_server_open() {
    use std::os::unix::ffi::OsStrExt as _;
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&["plan", "--json"])
        .env("EDGE_DEPLOY_API_KEY", std::ffi::OsStr::from_bytes(b"\xff\xfe"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("EDGE_DEPLOY_API_KEY")
    );
}

#[test]
fn doctor_sees_a_cache_that_is_no_folder() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(&["doctor"])
        .env("EDGE_DEPLOY_CACHE_DIR", "/dev/null")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("could not use as the cache folder /dev/null"),
        "{text}"
    );
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn what_doctor_passes_on_names_nobody() {
    let sandbox = Sandbox::new();
    let home = sandbox.path().display().to_string();
    let index = "https://user:word@packages.private.example/simple";
    let run = |args: &[&str]| {
        let output = sandbox
            .command(args)
            .env("PIP_INDEX_URL", index)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // On the screen both are shown, without the password.
    let screen = run(&["doctor"]);
    assert!(
        screen.contains(&home) && screen.contains("packages.private.example"),
        "{screen}"
    );
    assert!(!screen.contains("word@"), "{screen}");
    for args in [&["doctor", "--report"], &["doctor", "--json"]] {
        let text = run(args);
        assert!(text.contains("~/"), "{text}");
        for private in [home.as_str(), "private.example", "word@"] {
            assert!(!text.contains(private), "{private} is in {args:?}: {text}");
        }
        // The program sets this one itself.
        assert!(!text.contains("HWLOC_PLUGINS_PATH"), "{text}");
    }
}

#[test]
fn doctor_reads_the_bytes_of_models_in_the_cache() {
    let sandbox = Sandbox::new();
    let models = sandbox.path().join("cache/edge-deploy/models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("SmolLM2-135M-Instruct.Q4_1.gguf"), "not these").unwrap();
    let output = sandbox.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("is damaged"), "{text}");
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn without_index_and_pip_a_pull_says_what_to_do() {
    let sandbox = Sandbox::new();
    let (code, error) = sandbox.refused(&["pull", "--json"]);
    assert_eq!(
        (code, error["error"]["code"].as_str()),
        (6, Some("download_failed"))
    );
    let remedy = error["error"]["remedy"].as_str().unwrap();
    for word in ["pip", "PIP_INDEX_URL", "-m FILE"] {
        assert!(remedy.contains(word), "{remedy}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let sandbox = Sandbox::new();
    let program = assert_cmd::cargo::cargo_bin("edge-deploy");
    let mut child = std::process::Command::new(program)
        .args(["completions", "bash"])
        .env("HOME", sandbox.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_saved_machine_can_be_planned_for() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("machine.json");
    let name = file.display().to_string();
    let probed = sandbox.json(&["probe", "--json", "--save", &name]);
    assert_eq!(keys(&probed), ["facts", "hardware"]);
    let again = sandbox.json(&["probe", "--json", "--hardware", &name]);
    assert_eq!(again["facts"], probed["facts"]);
    let plan = sandbox.json(&["plan", "--json", "--hardware", &name]);
    assert_eq!(plan["fingerprint"], probed["hardware"]["fingerprint"]);
    fs::write(&file, "{}").unwrap();
    let (code, _) = sandbox.refused(&["plan", "--json", "--hardware", &name]);
    assert_eq!(code, 9);
}

#[test]
fn a_captured_machine_probes_as_this_one() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path().join("captured").display().to_string();
    let report = sandbox.json(&["doctor", "--json", "--capture", &folder]);
    assert_eq!(
        keys(&report),
        [
            "version",
            "features",
            "environment",
            "facts",
            "checks",
            "raw_inputs"
        ]
    );
    let there = sandbox.json(&["probe", "--json", "--sysroot", &folder]);
    for fact in ["logical_cpus_online", "cores", "packages"] {
        assert_eq!(there["facts"][fact], report["facts"][fact], "{fact}");
    }
}

#[test]
fn a_machine_that_is_not_this_one_is_planned_for_but_not_run_on() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("other.json");
    let name = file.display().to_string();
    sandbox.json(&["probe", "--json", "--save", &name]);
    let mut other: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    other["isa"]
        .as_array_mut()
        .unwrap()
        .push("a_feature_of_tomorrow".into());
    fs::write(&file, other.to_string()).unwrap();
    sandbox.json(&["plan", "--json", "--hardware", &name]);
    let (code, error) = sandbox.refused(&["auto", "--json", "--port", "0", "--hardware", &name]);
    assert_eq!(code, 9);
    assert!(
        error["error"]["what"]
            .as_str()
            .unwrap()
            .contains("a_feature_of_tomorrow")
    );
}

#[test]
fn a_port_in_use_is_said_before_anything_is_loaded() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, error) = sandbox.refused(&["auto", "--json", "--port", &port]);
    assert_eq!(
        (code, error["error"]["code"].as_str()),
        (7, Some("address_in_use"))
    );
    assert!(error["error"]["remedy"].as_str().unwrap().contains("--port"));
}

#[test]
fn profiles_can_be_listed_copied_changed_and_checked() {
    let sandbox = Sandbox::new();
    let list = sandbox.json(&["profiles", "list", "--json"]);
    let names: Vec<&str> = list["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"llama"), "{names:?}");
    let ejected = sandbox.json(&["profiles", "eject", "llama", "--json"]);
    let path = PathBuf::from(ejected["path"].as_str().unwrap());
    assert!(path.starts_with(sandbox.path()));
    let name = path.display().to_string();
    assert_eq!(
        sandbox.json(&["profiles", "validate", &name, "--json"])["valid"],
        true
    );
    let (code, _) = sandbox.refused(&["profiles", "eject", "llama", "--json"]);
    assert_eq!(code, 7, "kept unless --force");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("stages:\n  decoder:\n    max_seqs: 2\n");
    fs::write(&path, &text).unwrap();
    let plan = sandbox.json(&["plan", "--json"]);
    assert_eq!(
        plan["stages"]["decoder"]["max_seqs"], 2,
        "the own file hides the built-in one"
    );
    text.push_str("    max_seq: 2\nstagse: 1\n");
    fs::write(&path, &text).unwrap();
    let (code, problems) = sandbox.refused(&["profiles", "validate", &name, "--json"]);
    assert_eq!(code, 3);
    assert_eq!(problems["problems"].as_array().unwrap().len(), 2, "all at once");
    assert!(problems["problems"][0]["place"]["line"].is_number());
}

#[test]
fn bad_model_files_are_refused_with_their_codes() {
    let test = "bad_model_files_are_refused_with_their_codes";
    let Some(root) = support::shared(test, "fixtures") else {
        return;
    };
    let sandbox = Sandbox::new();
    let cases = [
        ("T29-lfs-pointer/model.gguf", "model_not_a_model"),
        ("T29-lfs-pointer/model.safetensors", "model_not_a_model"),
        ("T30-safetensors-truncated/model.safetensors", "model_truncated"),
        (
            "T34-gguf-split-missing/m-00001-of-00003.gguf",
            "model_part_missing",
        ),
    ];
    for (file, wanted) in cases {
        let path = root.join(file).display().to_string();
        let (code, error) = sandbox.refused(&["plan", "--json", "-m", &path]);
        assert_eq!(
            (code, error["error"]["code"].as_str()),
            (4, Some(wanted)),
            "{file}: {error}"
        );
    }
    let mut seen = 0;
    for entry in fs::read_dir(root.join("T32-gguf-malformed")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let name = path.display().to_string();
            let (code, error) = sandbox.refused(&["plan", "--json", "-m", &name]);
            assert_eq!(code, 4, "{name}: {error}");
            assert!(!error["error"]["remedy"].as_str().unwrap().is_empty(), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen} malformed files");
}

#[test]
fn generated_files_are_current() {
    let output = Sandbox::new()
        .command(&["generate", "--check", "--root", env!("CARGO_MANIFEST_DIR")])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "run `cargo run -- generate`: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
