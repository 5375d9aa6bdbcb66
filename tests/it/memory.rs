//! The memory ledger against reality: the cache's formula, what a running server really holds, and hard limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use edge_deploy::base::Bytes;
use edge_deploy::model::card::AttentionKind;
use edge_deploy::model::{inspect, kv};
use serde_json::{Value, json};

use crate::flips::program::{Home, Program};
use crate::support::model_file;
use crate::support::tiny::TinyModel;

/// Tokens are charged in blocks of 16, at 2 bytes for each element, with a quarter on top; a layer with a window needs
/// no more than it. Written apart from our own formula, to hold it against.
fn reference(context: u64, full_layers: u64, sliding_layers: u64, window: u64) -> u64 {
    let (kv_heads, head_dim, element) = (2, 256, 2);
    let tokens = context.next_multiple_of(16);
    let slots = full_layers * tokens + sliding_layers * tokens.min(window);
    slots * 2 * kv_heads * head_dim * element * 5 / 4
}

#[test]
fn the_cache_of_spark_is_what_the_ledger_says_to_the_byte_and_below_the_reference() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("spark.gguf");
    TinyModel::spark_geometry(3).gguf().write(&path);
    let spec = inspect(&path).unwrap().decoder;
    let full = spec
        .layers
        .iter()
        .filter(|layer| layer.attention == AttentionKind::Full)
        .count() as u64;
    let sliding = spec.layers.len() as u64 - full;
    assert_eq!((full, sliding, spec.kv_heads, spec.head_dim), (7, 21, 2, 256));
    let [short, long] = [
        (2048, 146_800_640, 64_225_280),
        (32_768, 2_348_810_240, 614_727_680),
    ]
    .map(|(context, flat, hybrid)| {
        assert_eq!(reference(context, full + sliding, 0, 0), flat);
        assert_eq!(reference(context, full, sliding, 512), hybrid);
        let home = Home::of(&path);
        let context_text = context.to_string();
        // The small weights are F32, for which an F32 cache would be derived.
        let set = [
            "--set",
            "stages.decoder.max_seqs=1",
            "--set",
            "stages.decoder.kv_dtype=f16",
        ];
        let args = [&["--port", "0", "--context", &context_text], &set[..]].concat();
        let mut command = home.command("auto", &args);
        let program = Program::run(home, command.arg("--strict"));
        let (plan, real) = (program.stage(), program.effective());
        let batch = plan["prefill_batch"].as_u64().unwrap() as usize;
        let formula = kv::kv_bytes(&spec, context as usize, 1, 2, batch).0;
        assert_eq!(plan["kv_bytes"], formula);
        assert_eq!(real["kv_bytes"], formula, "as allocated");
        assert!(formula <= hybrid, "{formula} of {hybrid}");
        let sparse = program.bytes_flagged("nh");
        assert_eq!(program.stop(), Some(0));
        (formula, sparse)
    });
    // What the kernel gave; stacks carry the mark too, the same ones in both.
    if let (Some(before), Some(after)) = (short.1, long.1) {
        assert_eq!(after - before, long.0 - short.0);
    }
}

/// RssAnon and RssFile of a process, in bytes.
fn resident(status: &str) -> BTreeMap<&str, u64> {
    let field = |line: &'_ str| -> Option<(&'static str, u64)> {
        let (name, value) = line.split_once(':')?;
        let name = ["RssAnon", "RssFile", "VmHWM"]
            .into_iter()
            .find(|known| *known == name)?;
        Some((
            name,
            value.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024,
        ))
    };
    status.lines().filter_map(field).collect()
}

/// Within 5 % or 32 MiB.
fn near(what: &str, predicted: u64, measured: u64) {
    let slack = (32 << 20).max(predicted / 20);
    assert!(
        measured.abs_diff(predicted) <= slack,
        "{what}: predicted {}, measured {}",
        Bytes(predicted),
        Bytes(measured)
    );
}

/// Fills the context of every sequence at once.
fn fill(program: &Program) {
    let stage = program.stage();
    let (context, seqs) = (
        stage["context"].as_u64().unwrap(),
        stage["max_seqs"].as_u64().unwrap(),
    );
    std::thread::scope(|scope| {
        for seq in 0..seqs {
            scope.spawn(move || {
                let prompt: Vec<u64> = (0..context - 2)
                    .map(|at| 20 + (at * 13 + seq * 7) % 200)
                    .collect();
                let bias = json!({"0": -100, "1": -100, "2": -100});
                let body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0, "logit_bias": bias});
                let response = program.call("POST", "/v1/completions", &body.to_string());
                assert_eq!(response.status, 200, "{}", response.text());
                assert_eq!(response.json()["usage"]["total_tokens"], context);
            });
        }
    });
}

/// Starts, fills and compares; the highest anonymous and mapped memory is sampled from the first moment on.
fn predicted_is_measured(model: &Path, context: usize, seqs: usize) {
    let home = Home::of(model);
    let (context, seqs) = (context.to_string(), format!("stages.decoder.max_seqs={seqs}"));
    let mut command = home.command("auto", &["--port", "0", "--context", &context, "--set", &seqs]);
    let program = Program::run(home, command.arg("--strict"));
    let ledger = program.said["plan"]["memory"].clone();
    let planned = |key: &str| ledger[key].as_u64().unwrap();
    let loaded = program.proc("status");
    let loaded = resident(&loaded);
    near("anonymous, loaded", planned("loaded_bytes"), loaded["RssAnon"]);
    near(
        "mapped, loaded",
        planned("mapped_steady_bytes"),
        loaded["RssFile"],
    );
    let (done, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(resident(&program.proc("status"))["RssAnon"], Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        fill(&program);
        done.store(true, Ordering::Relaxed);
    });
    let filled = program.proc("status");
    let filled = resident(&filled);
    near("anonymous, filled", planned("steady_bytes"), filled["RssAnon"]);
    near(
        "mapped, filled",
        planned("mapped_steady_bytes"),
        filled["RssFile"],
    );
    near(
        "anonymous, peak",
        planned("peak_bytes"),
        most.load(Ordering::Relaxed).max(loaded["RssAnon"]),
    );
    let together = planned("peak_bytes") + planned("mapped_bytes");
    assert!(
        filled["VmHWM"] <= together + (32 << 20).max(together / 20),
        "{filled:?} for {together}"
    );
    let effective = program.get("/v1/edge/effective");
    let kv = &effective["stages"]["decoder"]["kv_resident_bytes"];
    near(
        "cache",
        program.stage()["kv_bytes"].as_u64().unwrap(),
        kv.as_u64().unwrap(),
    );
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_small_model_takes_what_was_predicted() {
    let folder = tempfile::tempdir().unwrap();
    for family in ["llama", "gemma3"] {
        let path = TinyModel::new(family, 7).write_gguf(folder.path());
        predicted_is_measured(&path, 500, 3);
    }
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn smollm2_takes_what_was_predicted() {
    let Some(model) = model_file("memory::smollm2", SMOLLM2) else {
        return;
    };
    predicted_is_measured(&model, 256, 2);
}

/// A control group with a memory limit; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None`, said aloud, where none can be made.
    fn new(test: &str, name: &str, limit: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let v1 = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?;
            controllers
                .split(',')
                .any(|one| one == "memory")
                .then(|| path.to_owned())
        });
        let parent = v1.map(|path| format!("/sys/fs/cgroup/memory{path}"));
        let unique = format!("edge-deploy-{name}-{}", std::process::id());
        let made = parent
            .ok_or_else(|| "no version 1 memory controller".to_owned())
            .and_then(|parent| {
                let folder = PathBuf::from(parent).join(unique);
                std::fs::create_dir(&folder)
                    .and_then(|()| std::fs::write(folder.join("memory.limit_in_bytes"), limit.to_string()))
                    .map_err(|error| format!("{}: {error}", folder.display()))?;
                Ok(Self(folder))
            });
        match made {
            Ok(group) => Some(group),
            Err(why) => {
                skipped!("SKIPPED {test}: no control group with a memory limit can be made ({why})");
                None
            }
        }
    }

    /// The same command, run inside the group from its first instruction on.
    fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("/bin/sh");
        inside
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.0);
        inside.arg(command.get_program()).args(command.get_args());
        inside.env_clear();
        for (name, value) in command.get_envs() {
            inside.envs(value.map(|value| (name, value)));
        }
        inside
    }

    /// How often the kernel ended a process for want of memory.
    fn kills(&self) -> u64 {
        let text = std::fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can only be removed once its processes are gone, which takes the kernel a moment.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn under_a_hard_limit_it_runs_or_is_refused_and_is_never_killed() {
    let test = "memory::hard_limit";
    let Some(model) = model_file(test, SMOLLM2) else {
        return;
    };
    let args = ["--context", "256", "--set", "stages.decoder.max_seqs=1"];
    let (code, plan): (i32, Value) = Home::of(&model).json("plan", &args);
    assert_eq!(code, 0, "{plan}");
    let peak = plan["memory"]["peak_bytes"].as_u64().unwrap();

    let Some(enough) = Group::new(test, "enough", peak * 105 / 100) else {
        return;
    };
    let home = Home::of(&model);
    let command = home.command("auto", &[&["--port", "0", "--strict"], &args[..]].concat());
    let program = Program::run(home, &mut enough.enter(&command));
    fill(&program);
    assert_eq!(program.stop(), Some(0));
    assert_eq!(enough.kills(), 0);

    let Some(short) = Group::new(test, "short", peak * 85 / 100) else {
        return;
    };
    let home = Home::of(&model);
    let command = home.command("auto", &[&["--port", "0"], &args[..]].concat());
    let output = short.enter(&command).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let details = &said["error"]["details"];
    assert!(details["short_bytes"].as_u64() > Some(peak / 10), "{said}");
    assert_eq!(short.kills(), 0);
}
