//! Keys that say something about the plan itself, and the memory that follows from the others.

use edge_deploy::base::Code;
use edge_deploy::plan::Plan;
use serde_json::{Value, json};

use super::program::{Home, Program};

fn planned(home: &Home, args: &[&str]) -> Value {
    let (code, plan) = home.json("plan", args);
    assert_eq!(code, 0, "{plan}");
    plan
}

pub fn documents_of_another_schema_or_digest_are_refused() {
    let plan = planned(&Home::new(), &[]);
    assert!(Plan::read(&plan.to_string()).is_ok());
    for (key, value) in [("schema", json!(999)), ("digest", json!("0000000000000000"))] {
        let mut changed = plan.clone();
        changed[key] = value;
        let problem = Plan::read(&changed.to_string()).unwrap_err();
        assert!(
            problem.code == Code::BadValue && problem.what.contains(key),
            "{problem}"
        );
    }
    let mut edited = plan;
    edited["server"]["port"] = json!(1);
    assert!(
        Plan::read(&edited.to_string())
            .unwrap_err()
            .what
            .contains("digest")
    );
}

pub fn profile_changes_only_what_it_says() {
    let home = Home::new();
    let file = home.path().join("mine.yaml");
    std::fs::write(&file, "extends: llama\nserver: {max_queue: 3}\n").unwrap();
    let [without, with] =
        [&[][..], &["--profile", file.to_str().unwrap()][..]].map(|args| planned(&home, args));
    assert_ne!(without["model"]["profile"], with["model"]["profile"]);
    let different: Vec<String> = edge_deploy::plan::knobs::keys(&without)
        .into_iter()
        .filter(|(key, value)| edge_deploy::plan::knobs::at(&with, key) != Some(*value))
        .map(|(key, _)| key)
        .filter(|key| !key.starts_with("memory."))
        .collect();
    assert_eq!(different, ["digest", "model.profile", "server.max_queue"]);
}

pub fn the_machine_is_named_as_probed() {
    let home = Home::new();
    let plan = planned(&home, &[]);
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("edge-deploy"))
        .args(["probe", "--json"])
        .env_clear()
        .env("HOME", home.path())
        .output()
        .unwrap();
    let probed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["hardware_class"], probed["hardware"]["class"]);
    assert_eq!(plan["fingerprint"], probed["hardware"]["fingerprint"]);
}

pub fn available_memory_bounds_the_plan() {
    let home = Home::new();
    let open = planned(&home, &[]);
    let (available, reserve) = (
        &open["memory"]["available_bytes"],
        &open["memory"]["reserve_bytes"],
    );
    assert!(reserve.as_u64().unwrap() > 0 && reserve.as_u64() < available.as_u64());
    let peak = open["memory"]["peak_bytes"].as_u64().unwrap();
    let limited = |bytes: u64| home.json("plan", &["--set", &format!("limits.memory_bytes={bytes}")]);
    let (code, plan) = limited(peak);
    assert_eq!(
        (code, plan["memory"]["available_bytes"].as_u64()),
        (0, Some(peak)),
        "{plan}"
    );
    let (code, refused) = limited(peak / 2);
    assert_eq!(
        code,
        i32::from(Code::MemoryShort.exit_code().number()),
        "{refused}"
    );
    assert_eq!(refused["error"]["code"], "memory_short");
}

pub fn memory_follows_context_and_sequences() {
    let sizes = [128, 512].map(|context: u64| {
        let program = Program::start(&[
            &format!("stages.decoder.context={context}"),
            "stages.decoder.max_seqs=2",
        ]);
        let ledger = program.said["plan"]["memory"].clone();
        let ledger = &ledger;
        // Every token of one sequence.
        let prompt: Vec<u64> = (0..context - 1).map(|at| 10 + at % 200).collect();
        let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
        assert_eq!(program.call("POST", "/v1/completions", &body).status, 200);
        let effective = program.get("/v1/edge/effective");
        let stage = &effective["stages"]["decoder"];
        let item = |list: &Value, name: &str| {
            let found = list.as_array().unwrap().iter().find(|item| item["name"] == name);
            found.unwrap_or_else(|| panic!("{name} in {list}"))["bytes"]
                .as_u64()
                .unwrap()
        };
        let (planned, real) = (&ledger["items"], &effective["memory"]["items"]);
        assert_eq!(item(planned, "kv"), stage["kv_bytes"].as_u64().unwrap());
        assert!(
            item(real, "kv") >= item(planned, "kv") / 2,
            "one of two sequences is full: {real}"
        );
        assert!(item(real, "weights") <= item(planned, "weights"));
        for name in ["activations", "rope", "tokenizer"] {
            assert!(
                item(real, name) > 0 && item(real, name) <= item(planned, name),
                "{name}: {real} {planned}"
            );
        }
        let bytes = |of: &Value, key: &str| of[key].as_u64().unwrap();
        let memory = &effective["memory"];
        for (real, planned) in [
            (bytes(memory, "anonymous_bytes"), bytes(ledger, "steady_bytes")),
            (bytes(memory, "file_bytes"), bytes(ledger, "mapped_bytes")),
            (
                bytes(memory, "peak_bytes"),
                bytes(ledger, "peak_bytes") + bytes(ledger, "mapped_bytes"),
            ),
        ] {
            let slack = (32 << 20).max(planned / 20);
            assert!(real <= planned + slack, "{real} for {planned}");
        }
        assert_eq!(program.stop(), Some(0));
        (item(planned, "kv"), item(real, "kv"))
    });
    assert_eq!(sizes[0].0 * 4, sizes[1].0);
    assert!(sizes[0].1 < sizes[1].1, "a longer context holds more: {sizes:?}");
}
