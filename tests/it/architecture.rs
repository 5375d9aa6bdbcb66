//! Holds the source to `docs/ARCHITECTURE.md`: who may import whom, file heads, file size, where unsafe,
//! printing and environment reads may stand.

use std::fs;
use std::path::{Path, PathBuf};

/// Pipeline order: a room may import only from rooms before it.
const ORDER: &[&str] = &[
    "base",
    "sys",
    "observe",
    "fetch",
    "probe",
    "config",
    "model",
    "pacing",
    "derive",
    "plan",
    "engine",
    "calibrate",
    "server",
    "bench",
    "launch",
    "cli",
    "main",
];
/// Rooms that may use less than the order would allow.
const CUTS: &[(&str, &[&str])] = &[
    ("engine", &["base", "sys", "observe", "model", "pacing", "plan"]),
    ("server", &["base", "sys", "observe", "plan", "engine"]),
    ("derive", &["base", "probe", "config", "model", "pacing"]),
    ("pacing", &["base"]),
    ("config", &["base"]),
    ("model", &["base", "sys"]),
];
/// Inside the engine, lowest first.
const ENGINE_ORDER: &[&str] = &[
    "team",
    "kernels",
    "nn",
    "kv_cache",
    "text",
    "audio",
    "sampler",
    "nets",
    "speech",
    "status",
    "session",
    "stage",
    "stages",
    "scheduler",
    "pipeline",
    "handle",
    "speech_pipeline",
    "start",
    "mod",
];
const MAX_LINES: usize = 700;

struct Source {
    path: PathBuf,
    room: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let relative = path.strip_prefix(&root).unwrap().to_path_buf();
                let room = relative
                    .components()
                    .next()
                    .unwrap()
                    .as_os_str()
                    .to_string_lossy();
                let room = room.trim_end_matches(".rs").to_owned();
                files.push(Source {
                    text: fs::read_to_string(&path).unwrap(),
                    path: relative,
                    room,
                });
            }
        }
    }
    assert!(files.len() > 10, "the source tree was not found");
    files
}

/// The part of a file before its unit tests.
fn shipped(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Rooms named by `crate::room` outside comments.
fn imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        for part in line.split("crate::").skip(1) {
            if let Some(group) = part.strip_prefix('{') {
                found.extend(group.split(',').map(|item| first_word(item.trim())));
            } else {
                found.push(first_word(part));
            }
        }
    }
    found.retain(|name| ORDER.contains(&name.as_str()));
    found
}

fn first_word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn is_test_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path.components().any(|c| c.as_os_str() == "tests")
}

#[test]
fn rooms_import_only_from_the_left() {
    let mut faults = Vec::new();
    for source in sources() {
        if source.room == "lib" {
            continue;
        }
        let Some(own) = ORDER.iter().position(|room| *room == source.room) else {
            faults.push(format!(
                "{}: `{}` is not a room of the architecture",
                source.path.display(),
                source.room
            ));
            continue;
        };
        for import in imports(shipped(&source.text)) {
            let theirs = ORDER.iter().position(|room| *room == import).unwrap();
            let cut = CUTS.iter().find(|(room, _)| *room == source.room);
            let allowed = import == source.room
                || cut.map_or(theirs < own, |(_, rooms)| rooms.contains(&import.as_str()));
            if !allowed {
                faults.push(format!("{} imports `{import}`", source.path.display()));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "imports against the data flow:\n{}",
        faults.join("\n")
    );
}

#[test]
fn engine_layers_import_only_downwards() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.room == "engine") {
        let mut parts = source.path.components().skip(1);
        let own = parts
            .next()
            .unwrap()
            .as_os_str()
            .to_string_lossy()
            .trim_end_matches(".rs")
            .to_owned();
        let Some(own_at) = ENGINE_ORDER.iter().position(|layer| *layer == own) else {
            faults.push(format!(
                "{}: `{own}` is not a layer of the engine",
                source.path.display()
            ));
            continue;
        };
        let text = shipped(&source.text);
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            for part in line.split("crate::engine::").skip(1) {
                let names: Vec<String> = match part.strip_prefix('{') {
                    Some(group) => group.split(',').map(|item| first_word(item.trim())).collect(),
                    None => vec![first_word(part)],
                };
                for name in names {
                    if let Some(at) = ENGINE_ORDER.iter().position(|layer| *layer == name)
                        && at > own_at
                    {
                        faults.push(format!("{} imports engine::{name}", source.path.display()));
                    }
                }
            }
        }
    }
    assert!(
        faults.is_empty(),
        "engine layers against their order:\n{}",
        faults.join("\n")
    );
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut faults = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            faults.push(format!(
                "{}: {lines} lines; split it along its meaning",
                source.path.display()
            ));
        }
        if !source.text.starts_with("//!") {
            faults.push(format!("{}: does not open with `//!`", source.path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn unsafe_printing_and_environment_stand_where_they_may() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !is_test_file(&s.path)) {
        let path = source.path.to_string_lossy().replace('\\', "/");
        for (number, line) in shipped(&source.text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            let says = |word: &str| code.contains(word);
            let mut fault = |what: &str| faults.push(format!("src/{path}:{}: {what}", number + 1));
            let unsafe_room = path.starts_with("sys/") || path.starts_with("engine/kernels/");
            let declares =
                says("unsafe {") || says("unsafe fn") || says("unsafe impl") || says("unsafe extern");
            if declares && !unsafe_room {
                fault("unsafe outside sys/ and engine/kernels/");
            }
            if (says("env::var") || says("env::vars")) && path != "base/env_vars.rs" {
                fault("environment read outside base/env_vars.rs");
            }
            if (says("println!") || says("print!(")) && path != "cli/print.rs" {
                fault("printing outside cli/print.rs");
            }
            let pure = source.room == "derive" || source.room == "pacing";
            if pure && (says("std::fs") || says("Instant") || says("std::env")) {
                fault("a pure room reads a file, the clock or the environment");
            }
            let anyhow_room = matches!(source.room.as_str(), "cli" | "main");
            if says("anyhow") && !anyhow_room {
                fault("anyhow outside cli/ and main.rs");
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_import_would_be_found() {
    assert_eq!(
        imports("use crate::server::x;\n// use crate::cli;\nuse crate::{base::A, engine};"),
        ["server", "base", "engine"]
    );
}
