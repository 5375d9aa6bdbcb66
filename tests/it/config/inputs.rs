//! The shared inputs T35 to T43: each expectation of their `expect.json`, literally.

use std::path::Path;
use std::process::Command;

use edge_deploy::base::{Bytes, Code, Dtype, Problems};
use edge_deploy::config::{self, Device, Layered, Sources};

use super::{load_text, refusal};
use crate::support::shared;

fn load(folder: &Path) -> Result<Layered, Problems> {
    config::load(&Sources {
        user_file: Some(folder.join("input.yaml")),
        ..Sources::default()
    })
}

fn expectation(folder: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("expect.json")).unwrap()).unwrap()
}

fn contains_all(text: &str, words: &serde_json::Value) {
    for word in words.as_array().unwrap() {
        assert!(text.contains(word.as_str().unwrap()), "{word} is not in:\n{text}");
    }
}

#[test]
fn t35_text_that_looks_like_other_kinds_stays_text() {
    let Some(folder) = shared("t35", "fixtures/T35-yaml-norway") else {
        return;
    };
    let expected = expectation(&folder);
    let model = load(&folder).unwrap().profile.model;
    assert_eq!(serde_json::json!(model.languages), expected["languages"]);
    assert_eq!(
        serde_json::json!(model.default_language),
        expected["default_language"]
    );
    assert_eq!(serde_json::json!(model.revision), expected["revision"]);
    assert_eq!(serde_json::json!(model.version), expected["version"]);
}

#[test]
fn t36_a_repeated_key_is_refused_at_its_second_line() {
    let Some(folder) = shared("t36", "fixtures/T36-yaml-duplicate-key") else {
        return;
    };
    let problems = load(&folder).unwrap_err();
    let problem = &problems.0[0];
    assert_eq!(problem.code, Code::YamlDuplicateKey);
    assert_eq!(problem.place.as_ref().unwrap().line, Some(5));
    contains_all(&problem.to_string(), &expectation(&folder)["message_contains"]);
}

#[test]
fn t37_a_byte_order_mark_and_windows_line_ends_are_fine() {
    let Some(folder) = shared("t37", "fixtures/T37-yaml-bom-crlf") else {
        return;
    };
    let profile = load(&folder).unwrap().profile;
    assert_eq!(
        serde_json::json!(profile.stages["talker"].threads),
        expectation(&folder)["threads"]
    );
    assert_eq!(profile.model.name.as_deref(), Some("demo"));
}

#[test]
fn t38_a_tab_is_named_with_its_line() {
    let Some(folder) = shared("t38", "fixtures/T38-yaml-tab") else {
        return;
    };
    contains_all(&refusal(load(&folder)), &expectation(&folder)["message_contains"]);
}

#[test]
fn t39_numbers_are_exact_or_refused() {
    let Some(folder) = shared("t39", "fixtures/T39-yaml-numbers") else {
        return;
    };
    let problems = load(&folder).unwrap_err();
    let octal = problems
        .0
        .iter()
        .find(|p| p.what.contains("stages.talker.threads"))
        .unwrap();
    assert!(
        octal.what.contains("line 7") && octal.what.contains("ambiguous"),
        "{octal}"
    );
    let text = std::fs::read_to_string(folder.join("input.yaml"))
        .unwrap()
        .replace("010", "8");
    // `4_096` is refused with a clear error; without it everything is exact.
    let problems = load_text(&text).unwrap_err();
    assert_eq!(problems.0.len(), 1, "{problems}");
    assert!(
        problems.0[0].what.contains('_') && problems.0[0].remedy.contains("`4096`"),
        "{problems}"
    );
    let limits = load_text(&text.replace("4_096", "4096")).unwrap().profile.limits;
    assert_eq!(limits.request_timeout_s, Some(1000));
    assert_eq!(limits.kv_cache_bytes, Some(Bytes(4_294_967_296)));
    assert_eq!(limits.max_context, Some(4096));
}

#[test]
fn t41_merge_keys_are_applied() {
    let Some(folder) = shared("t41", "fixtures/T41-yaml-merge-keys") else {
        return;
    };
    let stages = load(&folder).unwrap().profile.stages;
    assert_eq!(
        (stages["talker"].threads, stages["talker"].dtype),
        (Some(6), Some(Dtype::F32))
    );
    assert_eq!(
        (stages["code2wav"].threads, stages["code2wav"].device),
        (Some(4), Some(Device::Gpu))
    );
}

#[test]
fn t42_all_unknown_keys_are_reported_with_what_was_meant() {
    let Some(folder) = shared("t42", "fixtures/T42-yaml-unknown-key") else {
        return;
    };
    let words = &expectation(&folder)["message_contains"];
    let problems = load(&folder).unwrap_err();
    assert_eq!(problems.0.len(), 2);
    assert!(problems.0.iter().all(|problem| problem.code == Code::UnknownKey));
    contains_all(&problems.to_string(), words);
    let lenient = config::load(&Sources {
        user_file: Some(folder.join("input.yaml")),
        lenient: true,
        ..Sources::default()
    })
    .unwrap();
    assert_eq!(lenient.warnings.len(), 2);
    contains_all(&Problems(lenient.warnings).to_string(), words);
}

/// Peak resident memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn t43_an_alias_bomb_is_refused_without_being_written_out() {
    const CHILD: &str = "EDGE_DEPLOY_TEST_ALIAS_BOMB";
    let Some(folder) = shared("t43", "fixtures/T43-yaml-alias-bomb") else {
        return;
    };
    if std::env::var_os(CHILD).is_some() {
        let before = peak_bytes();
        assert!(refusal(load(&folder)).contains("written out"));
        let most = expectation(&folder)["max_rss_growth_bytes"].as_u64().unwrap();
        assert!(peak_bytes() - before < most);
        return;
    }
    // Memory is measured in a process that does nothing else.
    let name = "config::inputs::t43_an_alias_bomb_is_refused_without_being_written_out";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
