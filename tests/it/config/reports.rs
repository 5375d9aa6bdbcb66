//! What people are told: variables (T56), misplaced keys, several problems at once, values of the wrong kind.

use edge_deploy::base::{Code, KeyPath, Severity};
use edge_deploy::config::{self, Layered, Sources};
use proptest::prelude::*;

use super::{Desk, load_text, refusal};

fn t56(lenient: bool) -> Sources {
    let pairs = [
        ("EDGE_DEPLOY__MODEL__REVISION", "1e5"),
        ("EDGE_DEPLOY__SERVER__API_KEY", "123456"),
        ("EDGE_DEPLOY__STAGES__CODE_PREDICTOR__THREADS", "2"),
        ("EDGE_DEPLOY__STAGES__TALKER__TREADS", "2"),
    ];
    Sources {
        env: pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        lenient,
        ..Sources::default()
    }
}

#[test]
fn t56_variables_stay_text_and_a_misspelt_one_is_reported() {
    let problems = config::load(&t56(false)).unwrap_err();
    assert_eq!(problems.0.len(), 1, "{problems}");
    let report = problems.to_string();
    for word in [
        "EDGE_DEPLOY__STAGES__TALKER__TREADS",
        "no effect",
        "stages.talker.threads",
        "stages.talker.treads",
    ] {
        assert!(report.contains(word), "{word} is not in:\n{report}");
    }
    let layered = config::load(&t56(true)).unwrap();
    assert_eq!(layered.profile.model.revision.as_deref(), Some("1e5"));
    let key = layered.profile.server.api_key.as_ref().unwrap();
    assert_eq!(key.reveal(), "123456");
    assert_eq!(layered.profile.stages["code_predictor"].threads, Some(2));
    assert_eq!(layered.warnings.len(), 1);
    let origin = &layered.provenance[&KeyPath::new("stages.code_predictor.threads")];
    assert_eq!(
        origin.place.to_string(),
        "EDGE_DEPLOY__STAGES__CODE_PREDICTOR__THREADS"
    );
}

#[test]
fn a_cpu_list_that_braces_split_is_to_be_quoted() {
    let refused = |text: &str| refusal(load_text(text));
    let text = refused("stages: {decoder: {cpus: 0-1,3,5-6, threads: 2}}\n");
    assert!(text.contains("`cpus: \"0-1,3,5-6\"`"), "{text}");
    assert!(!text.contains("remove it"), "{text}");
    let other = refused("stages: {decoder: {threads: 2,3}}\n");
    assert!(!other.contains("quote the list"), "{other}");
    assert!(load_text("stages: {decoder: {cpus: \"0-1,3\"}}\n").is_ok());
}

#[test]
fn names_that_no_machine_has_are_refused_on_reading() {
    for (key, name) in [("weight_path", "w8a8"), ("isa_cap", "avx512_vnni")] {
        let text = refusal(load_text(&format!("stages:\n  decoder:\n    {key}: foo\n")));
        assert!(text.contains("bad_value") && text.contains(name), "{text}");
        assert!(load_text(&format!("stages:\n  decoder:\n    {key}: {name}\n")).is_ok());
        assert!(load_text(&format!("stages:\n  decoder:\n    {key}: auto\n")).is_ok());
    }
}

fn with_variable(name: &str, value: &str) -> Result<Layered, edge_deploy::base::Problems> {
    config::load(&Sources {
        env: vec![(name.into(), value.into())],
        ..Sources::default()
    })
}

#[test]
fn variables_take_lists_and_maps_and_say_when_they_name_nothing() {
    for list in ["no,en", "[no, en]", " no , en "] {
        let layered = with_variable("EDGE_DEPLOY__MODEL__LANGUAGES", list).unwrap();
        assert_eq!(layered.profile.model.languages.unwrap(), ["no", "en"], "{list}");
    }
    let layered = with_variable("EDGE_DEPLOY__STAGES__DECODER", "{threads: 3, pin: false}").unwrap();
    assert_eq!(layered.profile.stages["decoder"].threads, Some(3));
    for name in [
        "EDGE_DEPLOY__",
        "EDGE_DEPLOY____PORT",
        "EDGE_DEPLOY__SERVER.PORT",
        "EDGE_DEPLOY__SERVER__PORT__X",
    ] {
        assert!(refusal(with_variable(name, "1")).contains("no effect"), "{name}");
    }
    for name in ["EDGE_DEPLOY__EXTENDS", "EDGE_DEPLOY__SCHEMA"] {
        assert!(
            refusal(with_variable(name, "2")).contains("misplaced_key"),
            "{name}"
        );
    }
    let empty = with_variable("EDGE_DEPLOY__SERVER__API_KEY", "").unwrap();
    assert_eq!(
        (empty.warnings.len(), empty.warnings[0].severity),
        (1, Severity::Warning)
    );
    assert!(empty.profile.server.api_key.is_none());
    let twice = Sources {
        env: vec![
            ("EDGE_DEPLOY__SERVER__PORT".into(), "1".into()),
            ("EDGE_DEPLOY__server__port".into(), "2".into()),
        ],
        ..Sources::default()
    };
    assert!(refusal(config::load(&twice)).contains("set the same key"));
}

#[test]
fn keys_in_the_wrong_kind_of_file_are_named_with_where_they_belong() {
    let desk = Desk::new();
    let sources = Sources {
        class: Some(
            desk.file("class.yaml", "policy: {max_seqs: 2}\nserver: {port: 1}\n")
                .display()
                .to_string(),
        ),
        profiles: vec![
            desk.file("p.yaml", "policy: {max_seqs: 3}\nmodel: {name: a}\n")
                .display()
                .to_string(),
        ],
        user_file: Some(desk.file("u.yaml", "extends: qwen3\n")),
        ..Sources::default()
    };
    let problems = config::load(&sources).unwrap_err();
    let lines: Vec<_> = problems
        .0
        .iter()
        .map(|p| (p.code, p.place.as_ref().unwrap().line))
        .collect();
    assert_eq!(
        lines,
        [Some(2), Some(1), Some(1)].map(|line| (Code::MisplacedKey, line))
    );
    assert!(problems.0[0].remedy.contains("profiles/"), "{problems}");
    assert!(problems.0[1].remedy.contains("hardware/"), "{problems}");
    let lenient = config::load(&Sources {
        lenient: true,
        ..sources
    })
    .unwrap();
    assert_eq!(lenient.warnings.len(), 3);
    assert_eq!(lenient.policy.max_seqs, 2);
    assert_eq!(
        (lenient.profile.server.port, lenient.profile.model.name.as_deref()),
        (None, Some("a"))
    );
}

#[test]
fn all_problems_of_all_layers_come_together_errors_first() {
    let desk = Desk::new();
    let profile = desk.file(
        "p.yaml",
        "sampling: {top_p: 2, topk: 3}\nmodel: {name: [a]}\nmodel2: 1\n",
    );
    let user = desk.file(
        "u.yaml",
        "schema: 99\nnew_key: 1\nserver: {port: 70000}\nserver: {port: 1}\n",
    );
    let problems = config::load(
        &Sources {
            class: Some("x86cpu".into()),
            profiles: vec![profile.display().to_string()],
            user_file: Some(user),
            ..Sources::default()
        }
        .set("stages.decoder.threads", "lots")
        .set("nothing", "1"),
    )
    .unwrap_err();
    let codes: Vec<_> = problems.0.iter().map(|problem| problem.code).collect();
    let count = |code: Code| codes.iter().filter(|c| **c == code).count();
    assert_eq!(count(Code::ProfileNotFound), 1, "{problems}");
    assert_eq!(count(Code::YamlDuplicateKey), 1, "{problems}");
    assert_eq!(count(Code::BadValue), 4, "{problems}");
    assert_eq!(count(Code::UnknownKey), 4, "{problems}");
    // A file for a newer version of the language may hold keys this program does not know.
    let last = problems.0.last().unwrap();
    assert_eq!((last.severity, last.code), (Severity::Warning, Code::UnknownKey));
    assert!(last.what.contains("new_key"));
}

#[test]
fn values_of_the_wrong_kind_are_refused_with_what_is_taken() {
    for (text, word) in [
        ("stages: {decoder: {threads: 0}}", "from 1 to 4096"),
        ("stages: {decoder: {threads: four}}", "a whole number"),
        ("stages: {decoder: {threads: 2.5}}", "not a whole number"),
        ("stages: {decoder: {threads: -1}}", "negative"),
        ("stages: {decoder: {threads: \"\"}}", "empty"),
        ("stages: {decoder: 4}", "a map of keys"),
        ("stages: [decoder]", "a list"),
        ("stages: {decoder: {pin: yes}}", "`true` or `false`"),
        ("stages: {decoder: {dtype: fp16}}", "`f16`"),
        ("stages: {decoder: {cpus: 3-1}}", "ends before"),
        (
            "stages: {decoder: {kv_bytes: 4 gigs}}",
            "a number of bytes such as `8GiB`",
        ),
        ("stages: {decoder: {kv_bytes: 0}}", "nothing could be served"),
        ("sampling: {temperature: .nan}", "a number"),
        ("sampling: {temperature: 1e999}", "too large"),
        ("server: {read_timeout_ms: soon}", "a duration"),
        ("model: {languages: en}", "`[en]`"),
        ("model: {languages: [en, ~]}", "empty item"),
        ("model: {languages: [[en]]}", "a map or a list"),
        ("model: {name: {a: 1}}", "is a map"),
        ("just text", "not a map of keys"),
        ("[a]", "not a map of keys"),
    ] {
        let report = refusal(load_text(text));
        assert!(report.contains(word), "{text}: {word} is not in:\n{report}");
        assert!(report.contains("input.yaml:1:"), "{text}:\n{report}");
    }
}

#[test]
fn contradictions_name_both_places() {
    for (text, word) in [
        ("model: {default_language: no, languages: [en]}", "does not list"),
        (
            "model: {context: 9000}\nlimits: {max_context: 8192}",
            "limits.max_context",
        ),
        (
            "stages: {decoder: {threads: 9}}\nlimits: {max_threads: 8}",
            "limits.max_threads",
        ),
        (
            "server: {request_timeout_ms: 61s}\nlimits: {request_timeout_s: 60}",
            "limits.request_timeout_s",
        ),
        (
            "stages: {decoder: {threads: 3, cpus: 0-1, pin: true}}",
            "names 2 CPUs",
        ),
        (
            "policy: {context_floor: 4096, context_cap: 1024}",
            "policy.context_cap",
        ),
    ] {
        let report = refusal(load_text(text));
        assert!(
            report.contains(word) && report.contains("contradicts this"),
            "{text}:\n{report}"
        );
    }
}

#[test]
fn empty_files_set_nothing_and_floods_are_cut() {
    for text in ["", "# nothing\n", "---\n", "{}", "null", "x-note: [1, {a: 2}]\n"] {
        let layered = load_text(text).unwrap();
        assert!(
            layered.warnings.is_empty() && layered.profile == config::Profile::default(),
            "{text}"
        );
    }
    let flood = (0..5000)
        .map(|i| format!("key{i}: 1\n"))
        .collect::<Vec<_>>()
        .concat();
    let problems = load_text(&flood).unwrap_err();
    assert_eq!(problems.0.len(), 51);
    assert!(problems.0[50].what.contains("4950 more"), "{}", problems.0[50]);
    let repeated = load_text(&format!("limits:\n{}", "  max_threads: 1\n".repeat(20_000))).unwrap_err();
    assert_eq!(repeated.0.len(), 21);
    assert!(repeated.0[20].what.contains("19979 more"), "{}", repeated.0[20]);
}

#[test]
fn quoting_makes_text_and_numbers_may_be_quoted() {
    let profile = load_text("model: {name: 'auto', version: 'null'}\nstages: {decoder: {threads: \"4\"}}")
        .unwrap()
        .profile;
    assert_eq!(profile.model.name.as_deref(), Some("auto"));
    assert_eq!(profile.model.version.as_deref(), Some("null"));
    assert_eq!(profile.stages["decoder"].threads, Some(4));
}

#[test]
fn the_argument_of_set_is_a_key_and_a_value() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(config::parse_set("a.b=c=d").unwrap(), pair("a.b", "c=d"));
    assert_eq!(config::parse_set("a.b=").unwrap(), pair("a.b", ""));
    for bad in ["a.b", "=c", " =c", ""] {
        assert!(
            config::parse_set(bad).unwrap_err().remedy.contains("key=value"),
            "{bad}"
        );
    }
    for bad in ["stages..decoder.threads", ".server.port", "server.port.", ""] {
        let report = refusal(config::load(&Sources::default().set(bad, "1")));
        assert!(report.contains("no effect"), "{bad}: {report}");
    }
}

#[test]
fn validating_checks_one_file_of_either_kind() {
    let library = config::Library::default();
    let desk = Desk::new();
    let class = desk
        .file("c.yaml", "policy: {max_seq: 1}\n")
        .display()
        .to_string();
    for lenient in [false, true] {
        let checked = config::validate(&library, config::Shelf::Hardware, &class, lenient);
        let problems = checked.unwrap_or_else(|problems| problems.0);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].remedy.contains("policy.max_seqs"), "{}", problems[0]);
    }
    assert!(config::validate(&library, config::Shelf::Profiles, &class, false).is_err());
    assert!(
        config::validate(&library, config::Shelf::Profiles, "qwen3", false)
            .unwrap()
            .is_empty()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_variable_and_set_is_taken_or_reported_and_never_panics(
        name in "(EDGE_DEPLOY__)?[A-Z_]{0,12}(__[A-Z_.\\PC]{0,8}){0,3}",
        key in "(stages|model|policy|server|x)(\\.[a-z_]{1,8}|\\.decoder|\\.PC){0,3}",
        value in "\\PC{0,20}|[0-9_.e+-]{0,12}|[\\[\\]{},:& *a-z]{0,20}",
    ) {
        let sources = Sources { env: vec![(name, value.clone())], ..Sources::default() }.set(&key, &value);
        if let Err(problems) = config::load(&sources) {
            prop_assert!(!problems.0.is_empty());
        }
    }

    #[test]
    fn text_from_a_variable_is_kept_exactly(text in "[ -~äß漢]{1,20}") {
        prop_assume!(!matches!(text.as_str(), "auto" | "null" | "Null" | "NULL" | "~"));
        let layered = with_variable("EDGE_DEPLOY__MODEL__REVISION", &text).unwrap();
        prop_assert_eq!(layered.profile.model.revision, Some(text));
    }

    #[test]
    fn whole_numbers_read_as_they_are(number in 0u64..=i64::MAX as u64) {
        let layered = load_text(&format!("server: {{max_queue: {number}}}")).unwrap();
        prop_assert_eq!(layered.profile.server.max_queue, Some(usize::try_from(number).unwrap()));
    }
}
