//! Configuration: what people write, layer by layer, and what they are told when it is wrong.

use edge_deploy::base::{Bytes, Code, Problems, Severity};
use edge_deploy::config::{self, Layered, Sources};

/// Loads one user file with nothing else.
fn load_text(text: &str) -> Result<Layered, Problems> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input.yaml");
    std::fs::write(&path, text).unwrap();
    config::load(&Sources {
        user_file: Some(path),
        ..Sources::default()
    })
}

#[test]
fn a_pin_carries_its_value_and_its_place() {
    let layered = config::load(&Sources::default().set("stages.decoder.threads", "3")).unwrap();
    assert_eq!(layered.profile.stages["decoder"].threads, Some(3));
    let pin = layered.pin::<usize>("stages.decoder.threads").unwrap().unwrap();
    assert_eq!((pin.value, pin.layer.as_str()), (3, "--set"));
    assert_eq!(pin.place.to_string(), "--set stages.decoder.threads");
    assert!(layered.pin::<usize>("stages.decoder.context").unwrap().is_none());
    assert!(layered.pin::<bool>("stages.decoder.threads").is_err());
}

#[test]
fn policy_is_complete_and_a_class_changes_it() {
    let plain = config::load(&Sources::default()).unwrap();
    assert_eq!(plain.policy.reserve_bytes, Bytes::mib(512));
    let classed = config::load(&Sources {
        class: Some("x86_cpu".into()),
        ..Sources::default()
    })
    .unwrap();
    assert_eq!(classed.policy.reserve_bytes, Bytes::gib(1));
    let origin = &classed.provenance[&"policy.reserve_bytes".into()];
    assert_eq!(origin.layer, "class");
    assert_eq!(origin.shadowed[0].layer, "built-in");
}

#[test]
fn problems_carry_line_and_excerpt() {
    let problems = load_text("stages:\n  decoder:\n    thread: 4\n").unwrap_err();
    assert_eq!(problems.0.len(), 1);
    let problem = &problems.0[0];
    assert_eq!(
        (problem.code, problem.severity),
        (Code::UnknownKey, Severity::Error)
    );
    let place = problem.place.as_ref().unwrap();
    assert_eq!((place.line, place.column), (Some(3), Some(5)));
    assert!(place.snippet.as_ref().unwrap().contains("thread: 4"));
}
