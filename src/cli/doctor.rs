//! `doctor`: is this machine in order for serving, and if not, what to do.
//!
//! In: this machine, the settings, the cache. Out: one line a check, problems with remedies; with `--capture` a
//! folder that reproduces what the probe saw. Invariant: no network, nothing loaded, nothing changed but the capture.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;

use serde::Serialize;

use super::args::{DoctorArgs, Listen, Select};
use super::{Outcome, print, select, show};
use crate::base::{Code, ExitCode, Place, Problem, Problems, Severity, env_vars};
use crate::config::{self, Library, Shelf, Sources};
use crate::fetch::pip::PipSettings;
use crate::fetch::{Cache, ModelRef, address, cache, catalogue};
use crate::probe::{self, Hardware, Root};

/// One thing looked at.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    found: String,
    problems: Vec<Problem>,
}

impl Check {
    /// The home folder's path, which holds a user's name, becomes `~`.
    fn without_home(&mut self) {
        let Some(home) = dirs::home_dir().filter(|home| home.components().count() > 1) else {
            return;
        };
        let home = home.display().to_string();
        let hide = |text: &mut String| *text = text.replace(&home, "~");
        hide(&mut self.found);
        for problem in &mut self.problems {
            for text in [&mut problem.what, &mut problem.why, &mut problem.remedy] {
                hide(text);
            }
            if let Some(place) = &mut problem.place {
                hide(&mut place.source);
            }
        }
    }
}

pub(super) fn run(args: &DoctorArgs) -> Outcome {
    let root = Root::live();
    let hardware = probe::probe(&root)?;
    let captured = args
        .capture
        .as_deref()
        .map(|folder| capture(&root, &hardware, folder))
        .transpose()?;
    let passed_on = args.output.json || args.report;
    let hardware = if passed_on {
        probe::doctor::shareable(&root, &hardware)?
    } else {
        hardware
    };
    let mut checks = vec![
        Check {
            name: "machine",
            found: show::machine_line(&hardware),
            problems: hardware.warnings.clone(),
        },
        settings(&hardware),
        cached(),
        packages(passed_on),
        planned(&hardware),
    ];
    checks.extend(captured);
    if passed_on {
        checks.iter_mut().for_each(Check::without_home);
    }
    let failed = checks
        .iter()
        .flat_map(|check| &check.problems)
        .find(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.code.exit_code());
    if args.output.json {
        print::json(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "features": features(),
            "environment": variables_set(),
            "facts": probe::facts(&hardware),
            "checks": checks,
            "raw_inputs": probe::doctor::raw_inputs(&root),
        }))?;
    } else {
        if args.report {
            print::text(&probe::doctor::report(&root, &hardware));
        }
        print::text(&text(&checks));
    }
    Ok(failed.unwrap_or(ExitCode::Ok))
}

fn text(checks: &[Check]) -> String {
    let mut out = format!(
        "edge-deploy {} ({})\n",
        env!("CARGO_PKG_VERSION"),
        features().join(", ")
    );
    for name in variables_set() {
        let _ = writeln!(out, "set: {name}");
    }
    for check in checks {
        let errors = check.problems.iter().any(|p| p.severity == Severity::Error);
        let state = match (check.problems.is_empty(), errors) {
            (true, _) => "ok     ",
            (false, false) => "warning",
            (false, true) => "FAULT  ",
        };
        let _ = writeln!(out, "{state}  {}: {}", check.name, check.found);
        for problem in &check.problems {
            for line in problem.to_string().lines() {
                let _ = writeln!(out, "         {line}");
            }
        }
    }
    out
}

fn features() -> Vec<&'static str> {
    let mut features = vec![std::env::consts::ARCH];
    if cfg!(feature = "hwloc") {
        features.push("hwloc");
    }
    features
}

/// Names of our variables that are set; values may be secrets.
fn variables_set() -> Vec<String> {
    let ours = env_vars::ALL
        .iter()
        .filter(|var| env_vars::get(**var).is_some_and(|value| !set_by_us(**var, &value)))
        .map(|var| var.name.to_owned());
    ours.chain(env_vars::key_overrides().into_iter().map(|(name, _)| name))
        .collect()
}

/// The program sets this one for itself when it starts.
fn set_by_us(var: env_vars::EnvVar, value: &str) -> bool {
    var.name == env_vars::HWLOC_PLUGINS_PATH.name && value == "/dev/null"
}

/// Every profile, and the class of this machine, must load.
fn settings(hardware: &Hardware) -> Check {
    let class = hardware.class.as_str();
    let (found, problems) = match load_all(class) {
        Ok((profiles, problems)) => (format!("{profiles} profiles, class {class}"), problems),
        Err(problem) => (String::new(), vec![problem]),
    };
    Check {
        name: "settings",
        found,
        problems,
    }
}

/// How many profiles there are, and what is wrong with any of them.
fn load_all(class: &str) -> Result<(usize, Vec<Problem>), Problem> {
    let library = Library::usual(None)?;
    let entries = library.list(Shelf::Profiles)?;
    let mut problems = Vec::new();
    for entry in &entries {
        let loaded = config::load(&Sources {
            library: library.clone(),
            class: Some(class.to_owned()),
            profiles: vec![entry.name.clone()],
            env: env_vars::key_overrides(),
            ..Sources::default()
        });
        for problem in loaded.map_or_else(|found| found.0, |layered| layered.warnings) {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    Ok((entries.len(), problems))
}

fn cached() -> Check {
    let mut problems = Vec::new();
    let mut found = String::new();
    match Cache::open() {
        Err(problem) => problems.push(problem),
        Ok(cache) => {
            let here: Vec<&str> = catalogue::ALL
                .iter()
                .filter(|named| ModelRef::Named(named).present(&cache).is_some())
                .map(|named| named.name)
                .collect();
            found = format!(
                "{}, holds {}",
                cache.root().display(),
                if here.is_empty() {
                    "no named model".to_owned()
                } else {
                    here.join(", ")
                }
            );
            // Markers only say that a file is as it was when it was checked; a failing disk shows in its bytes alone.
            for named in catalogue::ALL {
                let file = cache.models().join(named.file);
                if file.is_file() && !cache::sha256_of(&file).is_ok_and(|found| found == named.sha256) {
                    problems.push(
                        Problem::new(
                            Code::DigestMismatch,
                            format!(
                                "`{}` is damaged: its bytes are not those of {}",
                                file.display(),
                                named.name
                            ),
                            format!("delete it and run `edge-deploy pull {}`", named.name),
                        )
                        .at(Place::of(file.display().to_string())),
                    );
                }
            }
            // The nearest folder that exists tells whether the default model would fit.
            let existing = cache
                .root()
                .ancestors()
                .find(|folder| folder.exists())
                .unwrap_or(Path::new("/"));
            if let Some(storage) = crate::launch::storage_of(existing) {
                let _ = write!(found, ", on {storage}");
                problems.extend(probe::storage::explain(&storage));
            }
            let needed = catalogue::find(catalogue::DEFAULT).map_or(0, |named| named.bytes * 2);
            if here.is_empty()
                && let Err(problem) =
                    cache::require_folder(existing).and_then(|()| cache::require_space(existing, needed))
            {
                problems.push(problem);
            }
        }
    }
    Check {
        name: "cache",
        found,
        problems,
    }
}

/// Where packages come from; the address of a private index is a name that stays out of what is passed on.
fn packages(passed_on: bool) -> Check {
    let settings = PipSettings::from_environment();
    Check {
        name: "models come from",
        found: match &settings.index_url {
            Some(_) if passed_on => format!("the package index of {}", settings.source),
            Some(url) => format!(
                "the package index {} ({})",
                address::without_credentials(url),
                settings.source
            ),
            None => "wherever the installed pip says (no index is configured)".to_owned(),
        },
        problems: Vec::new(),
    }
}

/// The plan for the default model, and whether its port is free.
fn planned(hardware: &Hardware) -> Check {
    let mut found = String::new();
    let mut problems = Vec::new();
    let decided = default_wanted().and_then(|wanted| {
        let card = crate::launch::card(&wanted.model, &Cache::open()?)?;
        crate::launch::decide(&wanted, hardware.clone(), &card)
    });
    match decided {
        Ok(decided) => {
            let server = &decided.plan.server;
            problems.extend(decided.plan.warnings.clone());
            found = format!(
                "{}: {} of {} needed",
                decided.plan.model.name, decided.plan.memory.peak_bytes, decided.plan.memory.available_bytes
            );
            if let Err(error) = TcpListener::bind((server.host.as_str(), server.port)) {
                problems.push(Problem::warning(
                    Code::AddressInUse,
                    format!("{}:{} cannot be bound now: {error}", server.host, server.port),
                    "stop what listens there, or give another port with --port",
                ));
            }
        }
        Err(Problems(more)) => problems.extend(more),
    }
    Check {
        name: "default model",
        found,
        problems,
    }
}

fn default_wanted() -> Result<crate::launch::Wanted, Problems> {
    let select = Select {
        model: "default".to_owned(),
        profile: Vec::new(),
        set: Vec::new(),
        context: None,
        threads: None,
        isa_cap: None,
        hardware: None,
        sysroot: None,
        config_dir: None,
        lenient: false,
        force: false,
    };
    Ok(select::wanted(&select, &Listen::default())?)
}

/// Writes everything the probe looked at, and checks that probing the copy finds the same machine.
fn capture(root: &Root, hardware: &Hardware, folder: &Path) -> Result<Check, Problem> {
    let files = probe::doctor::capture(root, folder)?;
    let again = probe::probe(&Root::snapshot(folder)?)?;
    let (here, there) = (probe::facts(hardware), probe::facts(&again));
    let mut differing = Vec::new();
    if let (Some(here), Some(there)) = (here.as_object(), there.as_object()) {
        for (key, value) in here {
            // Names of control groups are replaced in the copy; the AMX state is a system call's.
            let expected = key.ends_with("_source") || key == "warnings" || key == "amx_permission";
            if !expected && there.get(key) != Some(value) {
                differing.push(key.clone());
            }
        }
    }
    let problems = if differing.is_empty() {
        Vec::new()
    } else {
        vec![
            Problem::warning(
                Code::HardwareUnsure,
                format!(
                    "probing the copy gives other values for: {}",
                    differing.join(", ")
                ),
                "attach the output of `edge-deploy probe --json` to a report as well",
            )
            .why("some facts come from system calls or tools, or changed meanwhile"),
        ]
    };
    Ok(Check {
        name: "capture",
        found: format!("{files} files in {}", folder.display()),
        problems,
    })
}
