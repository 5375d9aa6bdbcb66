//! `probe`: what this machine is and what may be used of it.
//!
//! In: this machine, a captured or a saved one. Out: text, JSON, or a file for `--hardware`.
//! Invariant: shows what the probe found, warnings included.

use super::args::ProbeArgs;
use super::{Outcome, print, select};
use crate::base::ExitCode;
use crate::{launch, probe};

pub(super) fn run(args: &ProbeArgs) -> Outcome {
    let which = select::machine(args.sysroot.as_deref(), args.hardware.as_deref());
    let hardware = launch::machine(&which)?;
    if let Some(path) = &args.save {
        hardware.save(path)?;
        print::note(&format!(
            "saved; plan for it anywhere with `edge-deploy plan --hardware {}`",
            path.display()
        ));
    }
    if args.output.json {
        print::json(&serde_json::json!({ "facts": probe::facts(&hardware), "hardware": hardware }))?;
    } else {
        print::text(&probe::report::page(&hardware));
    }
    Ok(ExitCode::Ok)
}
