//! Layering: every pair of layers, every kind of value, un-pinning, and where each value is said to come from.

use edge_deploy::base::{Bytes, Code};
use edge_deploy::config::{self, Kin, Layered, Library, Sources};

use super::{Desk, load_text, refusal};

/// Every place a pin may stand, lowest first. `Parent` is what a profile extends.
const PLACES: [&str; 6] = [
    "parent",
    "profile",
    "user file",
    "environment",
    "--set",
    "command line",
];

/// A YAML file that sets one key.
fn yaml(key: &str, value: &str) -> String {
    let segments: Vec<&str> = key.split('.').collect();
    let lines = segments
        .iter()
        .enumerate()
        .map(|(depth, segment)| format!("{}{segment}:", "  ".repeat(depth)));
    format!("{} {value}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// Loads with `key` set in each of the given places.
fn load(key: &str, said: &[(&str, &str)]) -> Layered {
    let desk = Desk::new();
    let mut sources = Sources::default();
    let mut profile = None;
    let mut parent = false;
    for (place, value) in said {
        let (key_text, value) = (key.to_owned(), (*value).to_owned());
        match *place {
            "class" => {
                let path = desk.file("class.yaml", &yaml(key, &value));
                sources.class = Some(path.display().to_string());
            }
            "parent" => {
                desk.file("parent.yaml", &yaml(key, &value));
                parent = true;
            }
            "profile" => profile = Some(yaml(key, &value)),
            "user file" => sources.user_file = Some(desk.file("user.yaml", &yaml(key, &value))),
            "environment" => {
                let name = format!("EDGE_DEPLOY__{}", key.to_uppercase().replace('.', "__"));
                sources.env.push((name, value));
            }
            "--set" => sources.set.push((key_text, value)),
            "command line" => sources.flags.push(config::Flag {
                flag: "--flag".into(),
                key: key_text,
                value,
            }),
            other => panic!("{other}"),
        }
    }
    if parent || profile.is_some() {
        let head = if parent { "extends: ./parent.yaml\n" } else { "" };
        let text = format!("{head}{}", profile.unwrap_or_default());
        sources
            .profiles
            .push(desk.file("child.yaml", &text).display().to_string());
    }
    config::load(&sources).unwrap_or_else(|problems| panic!("{key} {said:?}: {problems}"))
}

fn layer_name(place: &str) -> &str {
    if place == "parent" { "profile" } else { place }
}

/// Key, a lower value, a higher value, and both as JSON.
fn kinds() -> Vec<(
    &'static str,
    &'static str,
    &'static str,
    serde_json::Value,
    serde_json::Value,
)> {
    use serde_json::json;
    vec![
        ("stages.decoder.threads", "2", "7", json!(2), json!(7)),
        ("stages.decoder.pin", "true", "false", json!(true), json!(false)),
        ("stages.decoder.cpus", "0-3", "1,2", json!("0-3"), json!("1-2")),
        ("stages.decoder.dtype", "f32", "bf16", json!("f32"), json!("bf16")),
        ("sampling.top_k", "40", "0", json!(40), json!(0)),
        ("sampling.temperature", "0.5", "0", json!(0.5), json!(0.0)),
        ("model.name", "one", "no", json!("one"), json!("no")),
        ("model.version", "12.10", "1e5", json!("12.10"), json!("1e5")),
        (
            "model.languages",
            "[en, de, fr]",
            "[no]",
            json!(["en", "de", "fr"]),
            json!(["no"]),
        ),
        (
            "server.max_body_bytes",
            "4MiB",
            "1e3",
            json!(4_194_304),
            json!(1000),
        ),
        ("server.read_timeout_ms", "2s", "5", json!(2000), json!(5)),
        ("priority", "fast", "quality", json!("fast"), json!("quality")),
    ]
}

#[test]
fn the_higher_layer_wins_for_every_pair_and_every_kind_of_value() {
    for (low, high) in pairs() {
        for (key, below, above, below_json, above_json) in kinds() {
            let layered = load(key, &[(low, below), (high, above)]);
            let origin = &layered.provenance[&key.into()];
            let case = format!("{key}: {low} < {high}");
            assert_eq!(origin.value, above_json, "{case}");
            assert_eq!(origin.layer, layer_name(high), "{case}");
            assert_eq!(origin.shadowed.len(), 1, "{case}");
            assert_eq!(origin.shadowed[0].layer, layer_name(low), "{case}");
            assert_eq!(origin.shadowed[0].value, below_json, "{case}");
            let pin = layered.pin::<serde_json::Value>(key).unwrap().unwrap();
            assert_eq!(
                (pin.value, pin.layer.as_str()),
                (above_json, layer_name(high)),
                "{case}"
            );
        }
    }
}

fn pairs() -> Vec<(&'static str, &'static str)> {
    let mut pairs = Vec::new();
    for (index, low) in PLACES.iter().enumerate() {
        pairs.extend(PLACES[index + 1..].iter().map(|high| (*low, *high)));
    }
    assert_eq!(pairs.len(), 15);
    pairs
}

#[test]
fn auto_and_null_unpin_for_every_pair_and_every_kind_of_value() {
    for (low, high) in pairs() {
        for (key, below, ..) in kinds() {
            for nothing in ["auto", "null"] {
                let layered = load(key, &[(low, below), (high, nothing)]);
                let case = format!("{key}: {low} < {high} with {nothing}");
                assert!(layered.pin::<serde_json::Value>(key).unwrap().is_none(), "{case}");
                let origin = &layered.provenance[&key.into()];
                assert_eq!(origin.value, serde_json::Value::Null, "{case}");
                assert_eq!(
                    (origin.layer.as_str(), origin.shadowed.len()),
                    (layer_name(high), 1),
                    "{case}"
                );
                // And a layer above pins again.
                if high != "command line" {
                    let layered = load(key, &[(low, below), (high, nothing), ("command line", below)]);
                    assert!(layered.pin::<serde_json::Value>(key).unwrap().is_some(), "{case}");
                    assert_eq!(layered.provenance[&key.into()].shadowed.len(), 2, "{case}");
                }
            }
        }
    }
}

#[test]
fn policy_goes_from_built_in_over_class_to_the_flags_and_auto_means_built_in() {
    let key = "policy.reserve_bytes";
    let built_in = load(key, &[]).policy.reserve_bytes;
    let mut places = vec!["class"];
    places.extend(
        PLACES
            .iter()
            .filter(|place| !matches!(**place, "parent" | "profile")),
    );
    for (index, high) in places.iter().enumerate() {
        assert_eq!(
            load(key, &[(high, "3GiB")]).policy.reserve_bytes,
            Bytes::gib(3),
            "{high}"
        );
        for low in &places[..index] {
            let layered = load(key, &[(low, "3GiB"), (high, "5GiB")]);
            assert_eq!(layered.policy.reserve_bytes, Bytes::gib(5), "{low} < {high}");
            let shadowed: Vec<_> = layered.provenance[&key.into()]
                .shadowed
                .iter()
                .map(|s| s.layer.as_str())
                .collect();
            assert_eq!(shadowed, [*low, "built-in"], "{low} < {high}");
            for nothing in ["auto", "null"] {
                let layered = load(key, &[(low, "3GiB"), (high, nothing)]);
                assert_eq!(layered.policy.reserve_bytes, built_in, "{low} < {high}");
                assert_eq!(layered.provenance[&key.into()].layer, *high);
            }
        }
    }
    let whole = load(
        "policy",
        &[
            ("class", "{reserve_bytes: 3GiB, max_seqs: 2}"),
            ("user file", "auto"),
        ],
    );
    assert_eq!(whole.policy, load(key, &[]).policy);
}

#[test]
fn maps_merge_key_by_key_and_lists_replace() {
    let desk = Desk::new();
    let profile = desk.file(
        "p.yaml",
        "stages: {decoder: {threads: 4, max_seqs: 2}, talker: {threads: 1}}\n",
    );
    let user = desk.file("u.yaml", "stages: {decoder: {max_seqs: 8, kv_bytes: 1GiB}}\n");
    let layered = config::load(&Sources {
        profiles: vec![profile.display().to_string()],
        user_file: Some(user),
        ..Sources::default()
    })
    .unwrap();
    let decoder = &layered.profile.stages["decoder"];
    assert_eq!(
        (decoder.threads, decoder.max_seqs, decoder.kv_bytes),
        (Some(4), Some(8), Some(Bytes::gib(1)))
    );
    assert_eq!(layered.profile.stages["talker"].threads, Some(1));
    let place = &layered.provenance[&"stages.decoder.kv_bytes".into()].place;
    assert_eq!((place.line, place.column), (Some(1), Some(43)));
}

#[test]
fn unpinning_a_section_unpins_all_below_it() {
    let desk = Desk::new();
    let profile = desk.file(
        "p.yaml",
        "stages: {decoder: {threads: 4, max_seqs: 2}, talker: {threads: 1}}\n",
    );
    for nothing in ["stages.decoder=auto", "stages.decoder="] {
        let (key, value) = nothing.split_once('=').unwrap();
        let layered = config::load(
            &Sources {
                profiles: vec![profile.display().to_string()],
                ..Sources::default()
            }
            .set(key, value)
            .set("stages.decoder.kv_block", "32"),
        )
        .unwrap();
        let decoder = &layered.profile.stages["decoder"];
        assert_eq!(
            (decoder.threads, decoder.max_seqs, decoder.kv_block),
            (None, None, Some(32))
        );
        assert_eq!(layered.profile.stages["talker"].threads, Some(1));
    }
}

#[test]
fn a_later_set_of_the_same_key_wins() {
    let sources = Sources::default()
        .set("sampling.top_k", "5")
        .set("sampling.top_k", "6");
    let layered = config::load(&sources).unwrap();
    assert_eq!(layered.profile.sampling.top_k, Some(6));
    assert_eq!(layered.provenance[&"sampling.top_k".into()].shadowed[0].value, 5);
}

#[test]
fn extends_applies_parents_below_and_refuses_circles() {
    let desk = Desk::new();
    desk.file(
        "profiles/grand.yaml",
        "sampling: {top_k: 1, top_p: 0.1, min_p: 0.1}\n",
    );
    desk.file(
        "profiles/middle.yaml",
        "extends: grand\nsampling: {top_k: 2, top_p: 0.2}\n",
    );
    desk.file("profiles/leaf.yaml", "extends: middle\nsampling: {top_k: 3}\n");
    desk.file("profiles/a.yaml", "extends: b\n");
    desk.file("profiles/b.yaml", "extends: a\n");
    desk.file("profiles/own.yaml", "extends: own\n");
    desk.file("profiles/lost.yaml", "model: {name: x}\nextends: middel\n");
    for i in 0..20 {
        desk.file(
            &format!("profiles/deep{i}.yaml"),
            &format!("extends: deep{}\n", i + 1),
        );
    }
    let load = |name: &str| {
        config::load(&Sources {
            library: Library {
                folders: vec![desk.folder.path().into()],
            },
            profiles: vec![name.into()],
            ..Sources::default()
        })
    };
    let sampling = load("leaf").unwrap().profile.sampling;
    assert_eq!(
        (sampling.top_k, sampling.top_p, sampling.min_p),
        (Some(3), Some(0.2), Some(0.1))
    );
    for name in ["a", "own", "deep0"] {
        let problems = load(name).unwrap_err();
        assert_eq!(problems.0[0].code, Code::ExtendsCycle, "{problems}");
        assert!(problems.0[0].place.as_ref().unwrap().line.is_some());
    }
    let problem = load("lost").unwrap_err().0.remove(0);
    assert_eq!(problem.code, Code::ProfileNotFound);
    assert!(problem.remedy.contains("`middle`"), "{problem}");
    assert_eq!(problem.place.unwrap().line, Some(2));
}

#[test]
fn every_built_in_class_and_profile_loads_without_a_word() {
    let library = Library::default();
    for class in library.list(config::Shelf::Hardware).unwrap() {
        for profile in library.list(config::Shelf::Profiles).unwrap() {
            assert!(!class.about.is_empty() && !profile.about.is_empty());
            let layered = config::load(&Sources {
                class: Some(class.name.clone()),
                profiles: vec![profile.name.clone()],
                ..Sources::default()
            })
            .unwrap();
            assert!(layered.warnings.is_empty(), "{:?}", layered.warnings);
            assert_eq!(
                layered.profile.model.family.as_deref(),
                Some(profile.name.as_str())
            );
        }
    }
}

#[test]
fn what_is_shown_can_be_loaded_again_and_holds_no_secret() {
    let text = "stages: {decoder: {threads: 4, cpus: 0-3, pin: false}}\nmodel: {languages: [no, en], revision: 1e5}\n";
    let layered = load_text(text).unwrap();
    let again = load_text(&layered.to_annotated_yaml()).unwrap();
    assert_eq!(layered.profile, again.profile);
    assert_eq!(layered.policy, again.policy);
    let secret = config::load(&Sources::default().set("server.api_key", "hunter2")).unwrap();
    assert_eq!(
        secret.profile.server.api_key.as_ref().unwrap().reveal(),
        "hunter2"
    );
    let shown = format!(
        "{secret:?} {} {:?}",
        secret.to_annotated_yaml(),
        secret.provenance
    );
    assert!(
        !shown.contains("hunter2") && shown.contains("not shown"),
        "{shown}"
    );
    assert!(
        !serde_json::to_string(&secret.profile)
            .unwrap()
            .contains("hunter2")
    );
}

#[test]
fn layer_names_are_those_of_explain() {
    let names = [
        Kin::BuiltIn,
        Kin::Class,
        Kin::Profile,
        Kin::User,
        Kin::Environment,
        Kin::Set,
        Kin::CommandLine,
    ];
    let names: Vec<_> = names.iter().map(|kin| kin.as_str()).collect();
    assert_eq!(
        names,
        [
            "built-in",
            "class",
            "profile",
            "user file",
            "environment",
            "--set",
            "command line"
        ]
    );
}

#[test]
fn a_missing_user_file_is_an_error() {
    let problems = config::load(&Sources {
        user_file: Some("/does/not/exist.yaml".into()),
        ..Sources::default()
    });
    assert!(refusal(problems).contains("/does/not/exist.yaml"));
}
