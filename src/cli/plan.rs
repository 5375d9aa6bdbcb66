//! `plan`, which is `auto --dry-run`: what would be done and why, also against another plan.
//!
//! In: the flags of `auto`. Out: the plan, or how it differs, as text or JSON. Invariant: loads nothing, fetches
//! nothing.

use std::path::{Path, PathBuf};

use super::args::{Listen, Select};
use super::{Outcome, print, select, show};
use crate::base::{Code, ExitCode, Place, Problem};
use crate::config::search;
use crate::launch::{Machine, Wanted};
use crate::plan::{Plan, diff};

pub(super) fn run(select: &Select, listen: &Listen, json: bool) -> Outcome {
    let decided = select::decide(&select::wanted(select, listen)?)?;
    if json {
        print::json(&decided.plan)?;
    } else {
        print::warnings(&decided.hardware.warnings);
        print::warnings(&decided.plan.warnings);
        print::text(&format!(
            "{}\n{}{}",
            show::machine_line(&decided.hardware),
            show::storage_line(decided.storage.as_ref()),
            show::plan(&decided.plan)
        ));
    }
    Ok(ExitCode::Ok)
}

/// The plan as a profile that pins all of it.
pub(super) fn emit(select: &Select, listen: &Listen) -> Outcome {
    let decided = select::decide(&select::wanted(select, listen)?)?;
    print::warnings(&decided.plan.warnings);
    print::text(&decided.plan.to_profile_yaml(false)?);
    Ok(ExitCode::Ok)
}

/// The plan against another one.
pub(super) fn compare(select: &Select, listen: &Listen, other: &str, json: bool) -> Outcome {
    let wanted = select::wanted(select, listen)?;
    let (plan, right) = match other_plan(&wanted, other)? {
        Other::Saved(right) => (select::decide(&wanted)?.plan, *right),
        Other::Planned(right) => {
            let (left, right) = select::decide_both(&wanted, &right)?;
            (left.plan, right.plan)
        }
    };
    let differences = diff::between(&plan, &right);
    if json {
        print::json(&serde_json::json!({
            "left": {"digest": plan.digest, "model": plan.model.name, "hardware_class": plan.hardware_class},
            "right": {"digest": right.digest, "model": right.model.name, "hardware_class": right.hardware_class,
                "from": other},
            "same_digest": plan.digest == right.digest,
            "differences": differences,
        }))?;
    } else {
        print::text(&show::differences(&plan, &right, other, &differences));
    }
    Ok(ExitCode::Ok)
}

/// What a plan is compared with.
enum Other {
    /// A plan saved before.
    Saved(Box<Plan>),
    /// One to be made now.
    Planned(Box<Wanted>),
}

/// What `other` stands for: a saved plan, or one made with another machine or profile and else the same.
fn other_plan(wanted: &Wanted, other: &str) -> Result<Other, Problem> {
    let path = Path::new(other);
    let on = |machine: Machine| Wanted {
        machine,
        ..wanted.clone()
    };
    if path.is_dir() {
        return Ok(Other::Planned(Box::new(on(Machine::Captured(path.to_owned())))));
    }
    if is_json(path) {
        let text = search::read_file(path)?;
        let kind: serde_json::Value = serde_json::from_str(&text.text).map_err(|error| {
            Problem::new(
                Code::BadValue,
                format!("this is not JSON: {error}"),
                "give a plan saved with `plan --json` or a machine saved with `probe --save`",
            )
            .at(Place::of(other))
        })?;
        if kind.get("digest").is_some() && kind.get("stages").is_some() {
            return Plan::read(&text.text)
                .map(|plan| Other::Saved(Box::new(plan)))
                .map_err(|problem| problem.at(Place::of(other)));
        }
        return Ok(Other::Planned(Box::new(on(Machine::Saved(PathBuf::from(other))))));
    }
    Ok(Other::Planned(Box::new(Wanted {
        profiles: vec![other.to_owned()],
        ..wanted.clone()
    })))
}

/// Whether a file holds a JSON object, whatever its name.
fn is_json(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0u8; 64];
    let is_file = path.metadata().is_ok_and(|facts| facts.is_file());
    let read = is_file
        .then(|| {
            std::fs::File::open(path)
                .and_then(|mut file| file.read(&mut start))
                .ok()
        })
        .flatten()
        .unwrap_or(0);
    start[..read].trim_ascii_start().first() == Some(&b'{')
}
