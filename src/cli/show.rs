//! Machines and plans as text.
//!
//! In: [`Hardware`], [`Plan`]. Out: lines of at most about 110 columns. Invariant: every number shown is one of the
//! machine's or the plan's own.

use std::fmt::Write as _;

use super::print;
use crate::plan::{Origin, Plan};
use crate::probe::Hardware;
use crate::probe::storage::Storage;

/// Width that texts are wrapped to.
const WIDTH: usize = 110;

/// The machine in one line.
pub(super) fn machine_line(hardware: &Hardware) -> String {
    let quota = hardware
        .quota
        .cpus
        .map_or_else(String::new, |cpus| format!(" (time for {cpus:.2})"));
    format!(
        "{}: {} of {} CPUs{quota}, {} of {} memory, class {}",
        hardware.cpu_model.as_deref().unwrap_or(&hardware.arch),
        hardware.cpus.allowed.len(),
        hardware.cpus.online.len(),
        hardware.memory.available_bytes,
        hardware.memory.total_bytes,
        hardware.class.as_str()
    )
}

/// What the model lies on, as a line of its own; nothing where it is unknown.
pub(super) fn storage_line(storage: Option<&Storage>) -> String {
    storage.map_or_else(String::new, |storage| format!("model on {storage}\n"))
}

/// The plan: sections of key, value, reason.
pub(super) fn plan(plan: &Plan) -> String {
    let mut out = format!("plan {}\n", plan.digest);
    for (title, lines) in plan.summary() {
        let key = lines
            .iter()
            .map(|line| line.key.chars().count())
            .max()
            .unwrap_or(0)
            + 2;
        let value = lines
            .iter()
            .map(|line| line.value.chars().count())
            .filter(|&length| length <= 30)
            .max()
            .unwrap_or(0)
            + 2;
        let _ = writeln!(out, "\n{title}");
        for line in lines {
            let indent = " ".repeat(2 + key + value);
            let because = print::wrapped(&line.because, WIDTH - indent.len(), &indent);
            let text = format!("  {:key$}{:value$}{because}", line.key, line.value);
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
    out
}

/// One knob with everything known about it.
pub(super) fn explanation(key: &str, explained: &crate::plan::Explanation) -> String {
    let origin = match &explained.origin {
        Origin::Pinned { layer, place } => format!("pinned by {layer}: {place}"),
        Origin::Derived { rule } => format!("derived by the rule `{rule}`"),
        Origin::Measured { record } => format!("measured: {record}"),
    };
    let value = match &explained.value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut out = format!("{key} = {value}\n");
    let mut line = |name: &str, text: &str| {
        let wrapped = print::wrapped(text, WIDTH - 11, "           ");
        let _ = writeln!(out, "  {name:9}{wrapped}");
    };
    line("from", &origin);
    line("because", &explained.because);
    if let Some(bound) = &explained.bounded_by {
        line("bounded", bound);
    }
    line("verify", &explained.verify);
    out
}
