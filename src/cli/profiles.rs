//! `profiles`: list, show, copy and check the YAML that settings come from.
//!
//! In: names and files. Out: texts, or every problem with its place. Invariant: `validate` checks as `auto` would.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::args::ProfilesCommand;
use super::{Outcome, print};
use crate::base::{Code, ExitCode, Place, Problem, Problems, Severity, env_vars};
use crate::config::search::{self, user_folder};
use crate::config::{self, Kin, Library, Shelf, Sources, reference};

pub(super) fn run(command: ProfilesCommand) -> Outcome {
    match command {
        ProfilesCommand::List { config_dir, output } => list(config_dir.as_deref(), output.json),
        ProfilesCommand::Show {
            name,
            resolved,
            class,
            config_dir,
            output,
        } => {
            let library = Library::usual(config_dir.as_deref())?;
            if resolved {
                show_resolved(library, &name, &class, output.json)
            } else {
                show(&library, &name, output.json)
            }
        }
        ProfilesCommand::Eject {
            name,
            config_dir,
            force,
            output,
        } => eject(&name, config_dir, force, output.json),
        ProfilesCommand::Validate {
            files,
            hardware,
            lenient,
            output,
        } => validate(&files, hardware, lenient, output.json),
        ProfilesCommand::Schema => {
            print::text(&reference::json_schema());
            Ok(ExitCode::Ok)
        }
    }
}

fn list(config_dir: Option<&Path>, json: bool) -> Outcome {
    let library = Library::usual(config_dir)?;
    let (profiles, hardware) = (library.list(Shelf::Profiles)?, library.list(Shelf::Hardware)?);
    if json {
        print::json(
            &serde_json::json!({"searched": library.folders, "profiles": profiles, "hardware": hardware}),
        )?;
        return Ok(ExitCode::Ok);
    }
    let mut out = String::new();
    for (title, entries) in [("PROFILE", profiles), ("HARDWARE CLASS", hardware)] {
        let mut rows = vec![[title, "FROM", "ABOUT"].map(str::to_owned).to_vec()];
        for entry in entries {
            let mut origin = entry.origin;
            if !entry.shadowed.is_empty() {
                let _ = write!(origin, " (hides {})", entry.shadowed.join(", "));
            }
            rows.push(vec![entry.name, origin, entry.about]);
        }
        out.push_str(&print::table(&rows));
        out.push('\n');
    }
    print::text(out.trim_end());
    Ok(ExitCode::Ok)
}

/// The shelf a name stands on; profiles first.
fn shelf_of(library: &Library, name: &str) -> Shelf {
    if !library.has(Shelf::Profiles, name) && library.has(Shelf::Hardware, name) {
        Shelf::Hardware
    } else {
        Shelf::Profiles
    }
}

fn show(library: &Library, name: &str, json: bool) -> Outcome {
    let shelf = shelf_of(library, name);
    let source = library.find(shelf, name)?;
    if json {
        print::json(
            &serde_json::json!({"name": name, "shelf": shelf, "origin": source.name, "text": source.text}),
        )?;
    } else {
        print::text(&source.text);
    }
    Ok(ExitCode::Ok)
}

fn show_resolved(library: Library, name: &str, class: &str, json: bool) -> Outcome {
    let is_class = shelf_of(&library, name) == Shelf::Hardware;
    let user = !is_class && search::kin(name)? == Kin::User;
    let layered = config::load(&Sources {
        library,
        class: Some(if is_class { name } else { class }.to_owned()),
        profiles: if is_class || user {
            Vec::new()
        } else {
            vec![name.to_owned()]
        },
        user_file: user.then(|| PathBuf::from(name)),
        env: env_vars::key_overrides(),
        ..Sources::default()
    })?;
    print::warnings(&layered.warnings);
    if json {
        print::json(&layered.provenance)?;
    } else {
        print::text(&layered.to_annotated_yaml());
    }
    Ok(ExitCode::Ok)
}

fn eject(name: &str, config_dir: Option<PathBuf>, force: bool, json: bool) -> Outcome {
    let shelf = shelf_of(&Library::default(), name);
    let folder = config_dir
        .or_else(|| env_vars::get(env_vars::CONFIG_DIR).map(PathBuf::from))
        .or_else(user_folder)
        .ok_or_else(|| {
            Problem::new(
                Code::FileAccess,
                "there is no home folder to copy to",
                "give a folder with --config-dir",
            )
        })?;
    let path = Library::eject(shelf, name, &folder, force)?;
    if json {
        print::json(&serde_json::json!({ "path": path }))?;
    } else {
        print::text(&path.display().to_string());
    }
    Ok(ExitCode::Ok)
}

fn validate(files: &[String], hardware: bool, lenient: bool, json: bool) -> Outcome {
    let mut problems = Vec::new();
    for file in files {
        let mut found = match checked(file, hardware, lenient) {
            Ok(warnings) => warnings,
            Err(Problems(found)) => found,
        };
        for problem in &mut found {
            problem.place.get_or_insert_with(|| Place::of(file));
        }
        problems.append(&mut found);
    }
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(Problems(problems));
    }
    if json {
        print::json(&serde_json::json!({"files": files, "valid": true, "warnings": problems}))?;
    } else {
        print::warnings(&problems);
        for file in files {
            print::text(&format!("{file}: valid"));
        }
    }
    Ok(ExitCode::Ok)
}

/// Reads one file as planning would: a class file, a profile, or a file of the user's own.
fn checked(file: &str, hardware: bool, lenient: bool) -> Result<Vec<Problem>, Problems> {
    let mut sources = Sources {
        library: Library::usual(None)?,
        lenient,
        ..Sources::default()
    };
    if hardware {
        sources.class = Some(file.to_owned());
    } else {
        match search::kin(file)? {
            Kin::User => sources.user_file = Some(PathBuf::from(file)),
            _ => sources.profiles.push(file.to_owned()),
        }
    }
    Ok(config::load(&sources)?.warnings)
}
