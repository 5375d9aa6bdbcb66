//! `plan`, which is `auto --dry-run`: what would be done and why.
//!
//! In: the flags of `auto`. Out: the plan as text or JSON. Invariant: loads nothing, fetches nothing.

use super::args::{Listen, Select};
use super::{Outcome, print, select, show};
use crate::base::ExitCode;

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
    print::text(&decided.plan.to_profile_yaml(false)?);
    Ok(ExitCode::Ok)
}
