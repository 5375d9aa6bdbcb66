//! Whole decisions: captured machines and real configuration in, a settled plan out, against the fixtures' bounds.

use std::fs;
use std::path::Path;
use std::time::Duration;

use edge_deploy::base::{Bytes, Code, CpuSet, ExitCode, Problems};
use edge_deploy::config::{self, Layered, Sources};
use edge_deploy::derive::{DECODER, Options, derive, derive_with, isa, weight_path};
use edge_deploy::engine;
use edge_deploy::model::card::{TensorFact, TensorType};
use edge_deploy::model::{self, ModelCard};
use edge_deploy::plan::{Origin, Plan, readback};
use edge_deploy::probe::root::Root;
use edge_deploy::probe::{self, Hardware};
use serde_json::Value;

use crate::support::shared;

/// The tiny model's card, with weights of `bytes` in one Q4_K matrix instead of its own.
fn card_of(test: &str, bytes: u64) -> Option<ModelCard> {
    let path = shared(test, "golden/llm/tiny-qwen3-f32.gguf")?;
    let mut card = model::inspect(&path).expect("the tiny model is whole");
    let columns = 4096u64;
    let rows = bytes / (columns / 256 * 144);
    card.file_bytes = Bytes(bytes);
    card.tensors = vec![TensorFact {
        name: "all".to_owned(),
        dtype: TensorType::Q4_K,
        shape: vec![rows, columns],
        bytes: Bytes(bytes),
        file: 0,
        offset: 0,
    }];
    card.context_train = 32_768;
    Some(card)
}

fn configured(hardware: &Hardware, set: &[(&str, &str)]) -> Layered {
    let sources = Sources {
        class: Some(hardware.class.as_str().to_owned()),
        set: set
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        ..Sources::default()
    };
    config::load(&sources).unwrap_or_else(|problems| panic!("{problems}"))
}

fn planned(hardware: &Hardware, card: &ModelCard, set: &[(&str, &str)]) -> Result<Plan, Problems> {
    derive(hardware, card, &configured(hardware, set)).map(Plan::settle)
}

fn fixture(test: &str, name: &str) -> Option<Hardware> {
    let folder = shared(test, &format!("fixtures/{name}/fsroot"))?;
    let root = Root::snapshot(&folder).unwrap_or_else(|problem| panic!("{problem}"));
    Some(probe::probe(&root).unwrap_or_else(|problem| panic!("{name}: {problem}")))
}

fn expected(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("expect.json")).unwrap()).unwrap()
}

#[test]
fn captured_machines_are_planned_within_their_bounds() {
    let test = "captured_machines_are_planned_within_their_bounds";
    let (Some(fixtures), Some(small)) = (shared(test, "fixtures"), card_of(test, 90 << 20)) else {
        return;
    };
    let mut names: Vec<String> = fs::read_dir(&fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| fixtures.join(name).join("fsroot").is_dir())
        .collect();
    names.sort();
    let mut checks = 0;
    for name in &names {
        let expect = expected(&fixtures.join(name));
        let hardware = fixture(test, name).unwrap();
        let plan = planned(&hardware, &small, &[]).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        let stage = &plan.stages[DECODER];
        assert_eq!(stage.cpus.len(), stage.threads, "{name}: one CPU for each worker");
        let allowed = hardware.cpus.allowed.intersection(&hardware.cpus.online);
        assert!(
            stage.cpus.is_subset(&allowed),
            "{name}: {} within {allowed}",
            stage.cpus
        );
        if let Some(bounds) = expect.get("decode_threads") {
            let bound = |key: &str| bounds[key].as_u64().unwrap() as usize;
            assert!(
                (bound("min")..=bound("max")).contains(&stage.threads),
                "{name}: {} threads, wanted {bounds}",
                stage.threads
            );
            checks += 1;
        }
        if let Some(within) = expect.get("pin_must_be_subset_of") {
            let within: CpuSet = within.as_str().unwrap().parse().unwrap();
            assert!(
                stage.cpus.is_subset(&within),
                "{name}: {} within {within}",
                stage.cpus
            );
            checks += 1;
        }
        if let Some(spared) = expect.get("lp_e_cpus") {
            let spared: CpuSet = spared.as_str().unwrap().parse().unwrap();
            assert!(
                stage.cpus.intersection(&spared).is_empty(),
                "{name}: {} has LP-E cores",
                stage.cpus
            );
            checks += 1;
        }
        if let Some(fit) = expect.get("fit") {
            assert_eq!(fit["verdict"], "fits", "{name}: a verdict this test knows");
            let card = card_of(test, fit["model_bytes"].as_u64().unwrap()).unwrap();
            let plan = planned(&hardware, &card, &[]).unwrap_or_else(|problems| panic!("{name}: {problems}"));
            assert!(plan.memory.peak_bytes.0 + plan.memory.reserve_bytes.0 <= plan.memory.available_bytes.0);
            checks += 1;
        }
        let cores = hardware
            .topology
            .cores
            .iter()
            .filter(|core| !core.cpus.intersection(&stage.cpus).is_empty())
            .count();
        assert_eq!(cores, stage.threads, "{name}: no two workers on one core");
    }
    assert!(
        checks >= 17,
        "only {checks} expectations were found in {} machines",
        names.len()
    );
}

#[test]
fn hidden_topology_is_not_pinned_and_a_quota_below_one_is_said() {
    let test = "hidden_topology_is_not_pinned_and_a_quota_below_one_is_said";
    let Some(card) = card_of(test, 90 << 20) else {
        return;
    };
    let Some(wsl) = fixture(test, "T14-wsl2-hybrid-hidden") else {
        return;
    };
    let plan = planned(&wsl, &card, &[]).unwrap();
    assert!(!plan.stages[DECODER].pin);
    assert!(
        plan.explain("stages.decoder.pin")
            .unwrap()
            .because
            .contains("hides")
    );

    let Some(half) = fixture(test, "T05-half-cpu") else {
        return;
    };
    let plan = planned(&half, &card, &[]).unwrap();
    assert_eq!(plan.stages[DECODER].threads, 1);
    assert!(
        plan.warnings.iter().any(|w| w.what.contains("0.5 CPU")),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn pins_of_the_configuration_are_met_refused_and_explained() {
    let test = "pins_of_the_configuration_are_met_refused_and_explained";
    let Some(card) = card_of(test, 90 << 20) else {
        return;
    };
    let Some(hardware) = fixture(test, "T06-cpuset-smt-siblings") else {
        return;
    };
    let plan = planned(
        &hardware,
        &card,
        &[
            ("stages.decoder.cpus", "3,11"),
            ("stages.decoder.context", "1024"),
            ("server.api_key", "a-secret"),
            ("deadlines.load_ms", "5s"),
        ],
    )
    .unwrap();
    let stage = &plan.stages[DECODER];
    assert_eq!(
        (stage.cpus.to_string().as_str(), stage.threads, stage.context),
        ("3,11", 2, 1024)
    );
    assert_eq!(plan.deadlines.load_ms.0, 5000);
    assert!(plan.server.api_key_required);
    let text = plan.to_json().unwrap();
    assert!(!text.contains("a-secret"), "the key never enters the plan");
    let explanation = plan.explain("stages.decoder.cpus").unwrap();
    assert!(
        matches!(&explanation.origin, Origin::Pinned { layer, place } if layer == "--set" && place.source.contains("cpus")),
        "{explanation:?}"
    );
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap()["stages"]["decoder"]["cpus"],
        "3,11"
    );

    // CPU 0 exists but is not allowed; the place of the pin is in the refusal.
    let Problems(problems) = planned(&hardware, &card, &[("stages.decoder.cpus", "0,3")]).unwrap_err();
    assert_eq!(
        (problems[0].code, problems[0].code.exit_code()),
        (Code::PinUnmet, ExitCode::Refused)
    );
    assert!(
        problems[0]
            .place
            .as_ref()
            .is_some_and(|place| place.source.contains("cpus")),
        "{}",
        problems[0]
    );

    let Problems(problems) = planned(&hardware, &card, &[("stages.talker.threads", "1")]).unwrap_err();
    assert!(problems[0].what.contains("talker"), "{}", problems[0]);
}

#[test]
fn what_does_not_fit_is_refused_with_exit_code_5_and_forced_on_request() {
    let test = "what_does_not_fit_is_refused_with_exit_code_5_and_forced_on_request";
    let Some(card) = card_of(test, 19 << 30) else {
        return;
    };
    let Some(hardware) = fixture(test, "T27-v1-hierarchical-limit") else {
        return;
    };
    let Problems(problems) = planned(&hardware, &card, &[]).unwrap_err();
    assert_eq!(
        (problems[0].code, problems[0].code.exit_code().number()),
        (Code::MemoryShort, 5)
    );
    let details = problems[0].details.as_ref().unwrap();
    assert!(details["short_bytes"].as_u64().unwrap() > 15 << 30, "{details}");
    let force = Options {
        force: true,
        ..Options::default()
    };
    let draft = derive_with(&hardware, &card, &configured(&hardware, &[]), force).unwrap();
    assert!(
        draft.warnings.iter().any(|w| w.code == Code::MemoryShort),
        "{:?}",
        draft.warnings
    );
}

#[test]
fn every_shipped_profile_plans_with_its_own_family() {
    let test = "every_shipped_profile_plans_with_its_own_family";
    let Some(card) = card_of(test, 90 << 20) else {
        return;
    };
    let Some(hardware) = fixture(test, "T01-v2-quota-4-of-8") else {
        return;
    };
    for (name, _) in config::builtin::PROFILES {
        let sources = Sources {
            class: Some(hardware.class.as_str().to_owned()),
            profiles: vec![(*name).to_owned()],
            ..Sources::default()
        };
        let layered = config::load(&sources).unwrap_or_else(|problems| panic!("{problems}"));
        let mut card = card.clone();
        if let Some(family) = &layered.profile.model.family {
            card.family.clone_from(family);
        }
        let plan = derive(&hardware, &card, &layered).map(Plan::settle);
        let plan = plan.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(plan.model.profile, *name);
        card.family = "another".to_owned();
        if layered.profile.model.family.is_some() {
            let Problems(problems) = derive(&hardware, &card, &layered).unwrap_err();
            assert_eq!(problems[0].code, Code::PinUnmet, "{name}");
        }
    }
}

#[test]
fn every_instruction_set_that_a_pin_may_name_is_one_the_engine_knows() {
    for name in isa::names(std::env::consts::ARCH) {
        assert!(edge_deploy::engine::kernels::select(name).is_ok(), "{name}");
    }
    assert!(edge_deploy::engine::kernels::select("sse9").is_err());
}

#[test]
fn weights_are_charged_as_the_engine_holds_them() {
    use edge_deploy::engine::kernels::{PackSource, PackedMatrix};
    for dtype in TensorType::ALL {
        for (rows, cols) in [(16usize, 256usize), (64, 1024), (17, 512)] {
            let bytes = vec![0u8; rows * cols / dtype.block_len() * dtype.block_bytes()];
            let part = PackSource {
                dtype,
                held: dtype,
                rows,
                cols,
                bytes: &bytes,
                row_order: None,
            };
            let packed = PackedMatrix::pack(&[part], false).unwrap_or_else(|problem| panic!("{problem}"));
            let held: u64 = packed.format_bytes().values().map(|bytes| bytes.0).sum();
            let fact = TensorFact {
                name: String::new(),
                dtype,
                shape: vec![rows as u64, cols as u64],
                bytes: Bytes(bytes.len() as u64),
                file: 0,
                offset: 0,
            };
            assert_eq!(
                weight_path::held_bytes(&fact, dtype),
                held,
                "{} {rows}×{cols}",
                dtype.as_str()
            );
        }
    }
}

#[test]
fn a_running_engine_reads_back_as_planned() {
    let test = "a_running_engine_reads_back_as_planned";
    let Some(path) = shared(test, "golden/llm/tiny-qwen3-f32.gguf") else {
        return;
    };
    let card = model::inspect(&path).unwrap();
    let hardware = probe::probe(&Root::live()).unwrap();
    let first = hardware.cpus.allowed.first().unwrap().to_string();
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("stages.decoder.weight_path", "w4a8")],
        &[("priority", "fast")],
        &[("stages.decoder.pin", "true"), ("stages.decoder.context", "100")],
        &[("stages.decoder.cpus", &first), ("stages.decoder.pin", "false")],
        &[
            ("stages.decoder.isa_cap", "scalar"),
            ("stages.decoder.max_seqs", "3"),
            ("stages.decoder.kv_dtype", "f16"),
        ],
    ];
    for set in cases {
        let mut plan = planned(&hardware, &card, set).unwrap_or_else(|problems| panic!("{problems}"));
        // This process also runs other tests, whose memory is not the engine's.
        plan.memory.items.clear();
        let weights = model::Weights::open(&card).unwrap();
        let handle =
            engine::start(&plan, weights, &mut |_| {}).unwrap_or_else(|problem| panic!("{set:?}: {problem}"));
        let differences = readback::compare(&plan, &handle.effective().unwrap());
        handle.shutdown(Duration::from_secs(1));
        assert_eq!(differences, [], "{set:?}");

        // The same engine against another plan is told apart.
        let other = planned(&hardware, &card, &[("stages.decoder.context", "77")]).unwrap();
        let weights = model::Weights::open(&card).unwrap();
        let handle = engine::start(&plan, weights, &mut |_| {}).unwrap();
        let differences = readback::compare(&other, &handle.effective().unwrap());
        handle.shutdown(Duration::from_secs(1));
        assert!(
            differences.iter().any(|d| d.code == Code::ReadbackMismatch),
            "{set:?}"
        );
    }
}
