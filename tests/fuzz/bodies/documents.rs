//! Documents that a person or this program wrote: profiles and class files in YAML, saved machines and plans in JSON.

use std::fs;
use std::sync::LazyLock;

use edge_deploy::base::Problems;
use edge_deploy::config::{self, Layered, Sources};
use edge_deploy::derive::derive;
use edge_deploy::model::{ModelCard, embedded};
use edge_deploy::plan::Plan;
use edge_deploy::probe::{Hardware, Root, facts, probe, report};

use super::{folder, said};

/// A file as profile, class and own file: parsed, checked, merged; what is accepted is resolved into a plan.
pub fn yaml(bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join("file.yaml");
    fs::write(&path, bytes).expect("a temporary file can be written");
    let name = path.display().to_string();
    resolved(&Sources {
        profiles: vec![name.clone()],
        ..Sources::default()
    });
    resolved(&Sources {
        class: Some(name),
        lenient: true,
        ..Sources::default()
    });
    resolved(&Sources {
        class: Some("x86_cpu".to_owned()),
        profiles: vec!["llama".to_owned()],
        user_file: Some(path),
        ..Sources::default()
    });
}

/// Loads, and derives a plan from what was loaded.
pub fn resolved(sources: &Sources) {
    let layered = match config::load(sources) {
        Ok(layered) => layered,
        Err(problems) => return all_said(&problems),
    };
    let _ = layered.to_annotated_yaml();
    planned(&layered);
}

fn planned(layered: &Layered) {
    match derive(machine(), card(), layered) {
        Err(problems) => all_said(&problems),
        Ok(draft) => {
            let plan = Plan::settle(draft);
            let text = plan.to_json().expect("a plan can be written");
            let again = Plan::read(&text).unwrap_or_else(|problem| panic!("{problem}\n{text}"));
            assert_eq!(again.computed_digest(), plan.computed_digest());
            plan.to_profile_yaml(false).expect("a plan is a profile");
        }
    }
}

fn all_said(problems: &Problems) {
    assert!(!problems.0.is_empty());
    problems.0.iter().for_each(said);
}

/// A plain machine of four cores, probed once.
fn machine() -> &'static Hardware {
    static MACHINE: LazyLock<Hardware> = LazyLock::new(|| {
        let folder = folder();
        for (path, content) in [
            ("sys/devices/system/cpu/online", "0-3\n"),
            (
                "proc/meminfo",
                "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\n",
            ),
            (
                "proc/cpuinfo",
                "processor : 0\nmodel name : M\nflags : sse4_2 avx avx2 fma f16c\n",
            ),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder can be made");
            fs::write(path, content).expect("a temporary file can be written");
        }
        let root = Root::snapshot(folder.path()).expect("proc and sys are there");
        probe(&root).expect("it has CPUs")
    });
    &MACHINE
}

fn card() -> &'static ModelCard {
    static CARD: LazyLock<ModelCard> = LazyLock::new(|| {
        let card = embedded::card("SmolLM2-135M-Instruct.Q4_1.gguf");
        card.ok().flatten().expect("its card is built in")
    });
    &CARD
}

/// A saved machine or plan: what is accepted can be shown and written again.
pub fn saved(bytes: &[u8]) {
    match Hardware::parse(bytes) {
        Err(problem) => said(&problem),
        Ok(hardware) => {
            assert!(!hardware.topology.cores.is_empty() && !hardware.topology.kinds.is_empty());
            assert!(
                !hardware.cpus.allowed.is_empty() && hardware.cpus.allowed.is_subset(&hardware.cpus.online)
            );
            assert!(!report::page(&hardware).is_empty());
            assert!(facts(&hardware).is_object());
            let again = serde_json::to_vec(&hardware).expect("what was read can be written");
            assert!(Hardware::parse(&again).is_ok());
            let class = Sources {
                class: Some(hardware.class.as_str().to_owned()),
                ..Sources::default()
            };
            let layered = config::load(&class).expect("the built-in classes are valid");
            if let Err(problems) = derive(&hardware, card(), &layered) {
                all_said(&problems);
            }
        }
    }
    match Plan::read(&String::from_utf8_lossy(bytes)) {
        Err(problem) => said(&problem),
        Ok(plan) => {
            assert!(!plan.summary().is_empty());
            plan.to_json().expect("what was read can be written");
        }
    }
}
