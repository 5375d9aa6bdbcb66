//! The plans of many machines with every shipped profile, as texts to be read: one file for each profile.
//!
//! `UPDATE_GOLDEN=1` writes the files anew. Plans of machines that come with the shared data are in files of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use edge_deploy::base::{CpuSet, Problems};
use edge_deploy::config::{self, Layered, Sources};
use edge_deploy::derive::derive;
use edge_deploy::model::{ModelCard, Rhythm};
use edge_deploy::plan::{Plan, StagePlan};
use edge_deploy::probe::{self, Hardware, Root};

use crate::support::{cards, shared};

/// Sorted by name.
fn in_order<T>(mut named: Vec<(String, T)>) -> Vec<(String, T)> {
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

fn probed(folder: &Path) -> Hardware {
    let root = Root::snapshot(folder).unwrap_or_else(|problem| panic!("{problem}"));
    probe::probe(&root).unwrap_or_else(|problem| panic!("{}: {problem}", folder.display()))
}

/// Folders with an `fsroot` below `folder`.
fn captured(folder: &Path) -> Vec<(String, Hardware)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let roots = entries.filter(|path| path.join("fsroot").is_dir());
    in_order(
        roots
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, probed(&path.join("fsroot")))
            })
            .collect(),
    )
}

fn our_machines() -> Vec<(String, Hardware)> {
    captured(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/machines"))
}

/// The shared fixtures and topology snapshots.
fn shared_machines(test: &str) -> Option<Vec<(String, Hardware)>> {
    let mut machines = captured(&shared(test, "fixtures")?);
    let archives = fs::read_dir(shared(test, "hwloc/linux")?).unwrap();
    for path in archives.map(|entry| entry.unwrap().path()) {
        let (_dir, top) = crate::probe::unpack(&path);
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let name = file
            .split(".tar")
            .next()
            .unwrap()
            .trim_end_matches(".fsroot")
            .to_owned();
        machines.push((format!("hwloc-{name}"), probed(&top)));
    }
    Some(in_order(machines))
}

fn layered(hardware: &Hardware, profile: &str, user_file: Option<PathBuf>) -> Layered {
    let sources = Sources {
        class: Some(hardware.class.as_str().to_owned()),
        profiles: vec![profile.to_owned()],
        user_file,
        ..Sources::default()
    };
    config::load(&sources).unwrap_or_else(|problems| panic!("{problems}"))
}

fn planned(hardware: &Hardware, card: &ModelCard, profile: &str) -> Result<Plan, Problems> {
    derive(hardware, card, &layered(hardware, profile, None)).map(Plan::settle)
}

/// One machine as a paragraph.
fn paragraph(name: &str, hardware: &Hardware, plan: &Result<Plan, Problems>) -> String {
    let quota = (hardware.quota.cpus).map_or_else(String::new, |cpus| format!(", time for {cpus}"));
    let kinds: Vec<String> = (hardware.topology.kinds.iter())
        .map(|kind| format!("{} {}", kind.name, kind.cpus))
        .collect();
    let mut out = format!(
        "## {name}\n  {} {}, {:?}, CPUs {} of {}{quota}, {} cores ({}), {} nodes, {} available\n",
        hardware.arch,
        hardware.class.as_str(),
        hardware.environment,
        hardware.cpus.allowed,
        hardware.cpus.online,
        hardware.topology.cores.len(),
        kinds.join("; "),
        hardware.topology.nodes.len(),
        hardware.memory.available_bytes,
    );
    let plan = match plan {
        Ok(plan) => plan,
        Err(Problems(problems)) => {
            for problem in problems {
                let _ = writeln!(out, "  refused {}: {}", problem.code, problem.what);
                let _ = writeln!(out, "    do: {}", problem.remedy);
            }
            return out;
        }
    };
    for (name, stage) in &plan.stages {
        let _ = writeln!(out, "  {name}: {}", stage_line(stage));
        let because = &plan.explain(&format!("stages.{name}.cpus")).unwrap().because;
        let count = &plan.explain(&format!("stages.{name}.threads")).unwrap().because;
        let _ = writeln!(out, "    threads: {count}\n    cpus: {because}");
    }
    let memory = &plan.memory;
    let _ = writeln!(
        out,
        "  memory: peak {} + {} reserve of {}; load {}, first token {}",
        memory.peak_bytes,
        memory.reserve_bytes,
        memory.available_bytes,
        plan.deadlines.load_ms,
        plan.deadlines.warmup_ms
    );
    for warning in &plan.warnings {
        let _ = writeln!(out, "  {}: {}", warning.code, warning.what);
    }
    out
}

fn stage_line(stage: &StagePlan) -> String {
    let bound = match (stage.pin, stage.confine) {
        (true, _) => "pinned",
        (false, true) => "confined",
        (false, false) => "free",
    };
    format!(
        "{} thread{} on {} ({bound}), {} kernels, {} × {} tokens, KV {} {}, batch {}{}",
        stage.threads,
        if stage.threads == 1 { "" } else { "s" },
        stage.cpus,
        stage.isa_cap,
        stage.max_seqs,
        stage.context,
        stage.kv_bytes,
        stage.kv_dtype,
        stage.prefill_batch,
        if stage.huge_pages { ", huge pages" } else { "" }
    )
}

/// What holds for every plan, whatever the machine.
fn check(name: &str, hardware: &Hardware, card: &ModelCard, profile: &str, plan: &Plan) {
    let allowed = hardware.cpus.allowed.intersection(&hardware.cpus.online);
    let specs = card.stages();
    assert_eq!(plan.stages.len(), specs.len(), "{name}: every stage is planned");
    let quota = hardware
        .quota
        .cpus
        .map_or(usize::MAX, |cpus| (cpus.floor() as usize).max(1));
    let mut own: BTreeMap<&str, &CpuSet> = BTreeMap::new();
    let mut threads = 0;
    for spec in &specs {
        let stage = &plan.stages[spec.name];
        let at = format!("{name} {}", spec.name);
        assert!(
            stage.threads >= 1 && !stage.cpus.is_empty(),
            "{at}: no empty range"
        );
        assert!(
            stage.cpus.is_subset(&allowed),
            "{at}: {} within {allowed}",
            stage.cpus
        );
        assert_eq!(stage.cpus.len(), stage.threads, "{at}: a CPU for each worker");
        assert!(
            stage.context >= 1 && stage.max_seqs >= 1 && stage.prefill_batch >= 1,
            "{at}"
        );
        for key in [
            "threads",
            "cpus",
            "context",
            "max_seqs",
            "kv_bytes",
            "weight_path",
            "isa_cap",
        ] {
            let explained = plan.explain(&format!("stages.{}.{key}", spec.name)).unwrap();
            assert!(!explained.because.is_empty(), "{at} {key}");
        }
        if spec.rhythm != Rhythm::Own {
            continue;
        }
        threads += stage.threads;
        let shared = plan
            .explain(&format!("stages.{}.cpus", spec.name))
            .unwrap()
            .because
            .contains("shared with");
        for (other, cpus) in &own {
            let apart = stage.cpus.intersection(cpus).is_empty();
            assert!(apart || shared, "{at} and {other} share CPUs, and nobody says so");
        }
        own.insert(spec.name, &stage.cpus);
    }
    assert!(
        threads <= quota.max(own.len()),
        "{name}: {threads} workers for a quota of {quota}"
    );
    let first = &plan.stages[specs[0].name];
    assert!(
        first.context as u64 <= card.context_train,
        "{name}: no longer than trained"
    );
    let memory = &plan.memory;
    assert!(
        memory.peak_bytes.0 + memory.reserve_bytes.0 <= memory.available_bytes.0,
        "{name}: promised more than there is"
    );
    assert!(
        memory.available_bytes <= hardware.memory.available_bytes,
        "{name}"
    );
    assert!(memory.steady_bytes <= memory.peak_bytes, "{name}");

    // Emitted and given back, the plan is the same.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("emitted.yaml");
    fs::write(&file, plan.to_profile_yaml(false).unwrap()).unwrap();
    let again = match derive(hardware, card, &layered(hardware, profile, Some(file))) {
        Ok(draft) => Plan::settle(draft),
        Err(problems) => panic!("{name}: an emitted plan is refused: {problems}"),
    };
    assert_eq!(again.digest, plan.digest, "{name}: emitted and given back");
}

fn compare(test: &str, kind: &str, machines: &[(String, Hardware)]) {
    assert!(machines.len() >= 20, "{}", machines.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/plans");
    let mut stale = Vec::new();
    let mut seen = (0, 0);
    for (profile, _) in config::builtin::PROFILES {
        let card = cards::card(profile);
        let mut text = format!("# Plans of `{}` with the profile `{profile}`\n", card.name);
        for (name, hardware) in machines {
            let plan = planned(hardware, &card, profile);
            match &plan {
                Ok(plan) => {
                    check(name, hardware, &card, profile, plan);
                    seen.0 += 1;
                }
                Err(_) => seen.1 += 1,
            }
            let _ = write!(text, "\n{}", paragraph(name, hardware, &plan));
        }
        let file = folder.join(format!("{profile}{kind}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        if committed != text {
            let at = committed
                .lines()
                .zip(text.lines())
                .position(|(old, new)| old != new)
                .unwrap_or(0);
            let line = |text: &str| text.lines().nth(at).unwrap_or("(end)").to_owned();
            stale.push(format!(
                "{} line {}:\n  committed: {}\n  now:       {}",
                file.display(),
                at + 1,
                line(&committed),
                line(&text)
            ));
        }
    }
    assert!(seen.0 > 60 && seen.1 > 0, "{test}: {seen:?} planned and refused");
    assert!(
        stale.is_empty(),
        "plans changed; read them, then write them anew with UPDATE_GOLDEN=1:\n{}",
        stale.join("\n")
    );
}

#[test]
fn plans_of_our_machines_are_as_committed_and_sound() {
    compare(
        "plans_of_our_machines_are_as_committed_and_sound",
        "",
        &our_machines(),
    );
}

#[test]
fn plans_of_shared_machines_are_as_committed_and_sound() {
    let test = "plans_of_shared_machines_are_as_committed_and_sound";
    if let Some(machines) = shared_machines(test) {
        compare(test, "-shared", &machines);
    }
}
