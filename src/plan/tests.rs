//! Plan: settling, explanations, documents, readback.

use proptest::prelude::*;

use super::*;
use crate::base::Code;
use crate::config::{self, Sources};
use crate::derive::samples::random::{some_asked, some_machine, some_shape};
use crate::derive::samples::{Shape, card, pin, plain, policy, qwen_like};
use crate::derive::{Asked, DECODER, Options, decide};

fn planned(asked: &Asked) -> Plan {
    let draft = decide(
        &plain(8, Bytes::gib(16)),
        &card(&qwen_like()),
        asked,
        Options::default(),
    )
    .expect("a draft");
    Plan::settle(draft)
}

fn nothing() -> Asked {
    Asked::nothing(policy())
}

/// Dotted paths of every leaf; lists are leaves.
fn leaves(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(value, &path, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn every_key_of_the_plan_is_explained_with_its_own_value() {
    let plan = planned(&nothing());
    let document: serde_json::Value = serde_json::from_str(&plan.to_json().unwrap()).unwrap();
    let mut keys = Vec::new();
    for (section, value) in document.as_object().unwrap() {
        if !matches!(section.as_str(), "explanations" | "warnings") {
            leaves(value, section, &mut keys);
        }
    }
    assert!(keys.len() > 40, "{keys:?}");
    for key in &keys {
        let explanation = plan.explain(key).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(
            !explanation.because.is_empty() && !explanation.verify.is_empty(),
            "{key}"
        );
        let pointer = format!("/{}", key.replace('.', "/"));
        assert_eq!(Some(&explanation.value), document.pointer(&pointer), "{key}");
    }
    for key in plan.explanations.keys() {
        assert!(
            keys.iter().any(|known| known == key.as_str()),
            "`{key}` is explained but not planned"
        );
    }
    for item in &plan.memory.items {
        assert!(!item.because.is_empty(), "{}", item.name);
    }
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest() {
    let plan = planned(&nothing());
    for (asked, says) in [
        ("stages.decoder.treads", "stages.decoder.threads"),
        ("threads", "stages.decoder.threads"),
        ("contxt", "stages.decoder.context"),
        ("stages.decoder", "stages.decoder."),
        ("port", "server.port"),
    ] {
        let problem = plan.explain(asked).expect_err("no such key");
        assert!(
            problem.code == Code::UnknownKey && problem.remedy.contains(says),
            "{asked}: {problem}"
        );
    }
    assert!(plan.explain("").is_err() && plan.explain(&"x".repeat(100_000)).is_err());
}

#[test]
fn a_pin_is_explained_by_its_layer_and_place() {
    let mut asked = nothing();
    asked.decoder().context = Some(pin("model.context", 2048));
    let plan = planned(&asked);
    let explanation = plan.explain("stages.decoder.context").unwrap();
    let Origin::Pinned { layer, place } = &explanation.origin else {
        panic!("{explanation:?}")
    };
    assert_eq!(
        (layer.as_str(), place.source.as_str()),
        ("--set", "--set model.context")
    );
}

#[test]
fn documents_round_trip_and_an_edited_one_is_refused() {
    let plan = planned(&nothing());
    let mut without_card = plan.clone();
    without_card.model.card = None;
    for text in [plan.to_json().unwrap(), plan.to_yaml().unwrap()] {
        assert_eq!(Plan::read(&text).unwrap(), without_card);
    }
    let edited = plan
        .to_json()
        .unwrap()
        .replacen("\"max_seqs\": 4", "\"max_seqs\": 5", 1);
    assert!(Plan::read(&edited).unwrap_err().what.contains("digest"));
    let newer = plan
        .to_json()
        .unwrap()
        .replacen("\"schema\": 1", "\"schema\": 99", 1);
    assert!(Plan::read(&newer).unwrap_err().what.contains("schema 99"));
    for text in ["", "{", "null", "- 1", "a: b: c", "{\"schema\": 1}", "\u{0}"] {
        assert_eq!(Plan::read(text).unwrap_err().code, Code::BadValue, "{text:?}");
    }
}

#[test]
fn the_digest_is_over_knobs_alone() {
    let plan = planned(&nothing());
    assert!(plan.digest.len() == 16 && plan.digest.chars().all(|c| c.is_ascii_hexdigit()));
    let mut other = plan.clone();
    other.memory.available_bytes = Bytes(1);
    other.warnings.clear();
    other.explanations.clear();
    assert_eq!(other.computed_digest(), plan.digest);
    let mut asked = nothing();
    asked.decoder().prefill_batch = Some(pin("stages.decoder.prefill_batch", 255));
    assert_ne!(planned(&asked).digest, plan.digest);
    assert_eq!(
        planned(&nothing()).digest,
        plan.digest,
        "the same input, the same digest"
    );
}

#[test]
fn a_profile_made_of_a_plan_pins_its_values() {
    let mut asked = nothing();
    asked.decoder().max_seqs = Some(pin("stages.decoder.max_seqs", 2));
    asked.server.api_key = Some(pin("server.api_key", true));
    let plan = planned(&asked);
    let all: serde_json::Value = serde_yaml::from_str(&plan.to_profile_yaml(false).unwrap()).unwrap();
    assert_eq!(all["stages"]["decoder"]["context"], 8192);
    assert_eq!(all["sampling"]["temperature"], 0.7);
    assert!(all.get("memory").is_none() && all["server"].get("api_key_required").is_none());
    let read: crate::config::Profile =
        serde_json::from_value(all).expect("the profile language knows every key");
    assert_eq!(read.stages["decoder"].max_seqs, Some(2));
    let pinned: serde_json::Value = serde_yaml::from_str(&plan.to_profile_yaml(true).unwrap()).unwrap();
    assert_eq!(
        pinned,
        serde_json::json!({"stages": {"decoder": {"max_seqs": 2}}})
    );
}

#[test]
fn the_summary_shows_every_section_with_reasons() {
    let plan = planned(&nothing());
    let summary = plan.summary();
    let names: Vec<&str> = summary.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["model", "stage decoder", "memory", "server", "deadlines"]);
    for (section, lines) in &summary {
        for line in lines {
            assert!(
                !line.value.is_empty() && !line.because.is_empty(),
                "{section}.{}",
                line.key
            );
        }
    }
}

#[test]
fn affinity_binds_confines_or_leaves_workers_alone() {
    let mut stage = planned(&nothing()).stages[DECODER].clone();
    assert!(stage.pin);
    assert_eq!(
        stage.affinity(0),
        stage.cpus.first().map(|cpu| CpuSet::range(cpu, cpu))
    );
    assert_eq!(stage.affinity(99), None);
    stage.pin = false;
    assert_eq!(stage.affinity(0), None);
    stage.confine = true;
    assert_eq!(stage.affinity(0), Some(stage.cpus.clone()));
}

#[test]
fn a_small_machine_still_settles() {
    let small = Shape {
        weights: (crate::model::card::TensorType::Q4_K, 90 << 20),
        layers: 2,
        context: 2048,
        ..qwen_like()
    };
    let draft = decide(
        &plain(1, Bytes::gib(1)),
        &card(&small),
        &nothing(),
        Options::default(),
    )
    .expect("a draft");
    let plan = Plan::settle(draft);
    assert_eq!(
        (plan.stages[DECODER].threads, plan.stages[DECODER].context),
        (1, 2048)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_emitted_plan_given_back_is_the_same_plan(
        hardware in some_machine(), shape in some_shape(), asked in some_asked()
    ) {
        let sample = card(&shape);
        if let Ok(draft) = decide(&hardware, &sample, &asked, Options::default()) {
            let plan = Plan::settle(draft);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("emitted.yaml");
            let text = plan.to_profile_yaml(false).unwrap();
            std::fs::write(&file, &text).unwrap();
            let sources = Sources { user_file: Some(file), ..Sources::default() };
            let layered = config::load(&sources).map_err(|problems| TestCaseError::fail(format!("{problems}\n{text}")))?;
            let mut again = Asked::from_layered(&layered).unwrap();
            again.policy = asked.policy;
            let again = decide(&hardware, &sample, &again, Options::default());
            prop_assert!(again.is_ok(), "refused: {}\n{text}", again.unwrap_err());
            prop_assert_eq!(Plan::settle(again.unwrap()).digest, plan.digest, "{}", text);
        }
    }
}

#[test]
fn two_plans_are_compared_key_by_key_with_both_reasons() {
    let plan = planned(&nothing());
    assert_eq!(diff::between(&plan, &plan), []);
    let mut asked = nothing();
    asked.decoder().context = Some(pin("stages.decoder.context", 1024));
    let other = planned(&asked);
    let found = diff::between(&plan, &other);
    let of = |key: &str| found.iter().find(|difference| difference.key == key);
    let context = of("stages.decoder.context").expect("the key that was pinned");
    let (left, right) = (context.left.as_ref().unwrap(), context.right.as_ref().unwrap());
    assert_eq!((&left.value, &right.value), (&8192.into(), &1024.into()));
    assert!(left.because.contains("policy") && matches!(right.origin, Some(Origin::Pinned { .. })));
    for follows in [
        "stages.decoder.kv_bytes",
        "memory.items.decoder.kv",
        "memory.peak_bytes",
        "server.default_max_tokens",
    ] {
        assert!(of(follows).is_some(), "{follows} follows: {found:?}");
    }
    assert!(of("digest").is_none() && of("stages.decoder.threads").is_none());
    // A key that one plan lacks has one side.
    let mut less = plan.clone();
    less.explanations.remove(&KeyPath::new("server.port"));
    let found = diff::between(&plan, &less);
    assert!(found.len() == 1 && found[0].right.is_none(), "{found:?}");
}
