//! Machines and plans as text.
//!
//! In: [`Hardware`], [`Plan`]. Out: lines of at most 80 columns, long words aside. Invariant: every number shown is one of the
//! machine's or the plan's own.

use std::fmt::Write as _;

use super::print;
use crate::base::{Bytes, Millis};
use crate::plan::diff::Difference;
use crate::plan::{Origin, Plan};
use crate::probe::Hardware;
use crate::probe::storage::Storage;

/// Width that texts are wrapped to.
const WIDTH: usize = 80;
/// Values up to this length stand in a column of their own; the reason of a longer one begins below it.
const VALUE: usize = 14;

/// The machine in one line.
pub(super) fn machine_line(hardware: &Hardware) -> String {
    let quota = hardware
        .quota
        .cpus
        .map_or_else(String::new, |cpus| format!(" (time for {cpus:.2})"));
    let line = format!(
        "{}: {} of {} CPU{}{quota}, {} of {} memory, class {}",
        hardware.cpu_model.as_deref().unwrap_or(&hardware.arch),
        hardware.cpus.allowed.len(),
        hardware.cpus.online.len(),
        if hardware.cpus.online.len() == 1 { "" } else { "s" },
        hardware.memory.available_bytes,
        hardware.memory.total_bytes,
        hardware.class.as_str()
    );
    print::wrapped(&line, WIDTH, "  ")
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
            .filter(|&length| length <= VALUE)
            .max()
            .unwrap_or(0)
            + 2;
        let _ = writeln!(out, "\n{title}");
        let indent = " ".repeat(2 + key + value);
        for line in lines {
            let because = print::wrapped(&line.because, WIDTH - indent.len(), &indent);
            let text = if line.value.chars().count() > VALUE {
                let value = print::wrapped(&line.value, WIDTH - 2 - key, &" ".repeat(2 + key));
                format!("  {:key$}{value}\n{indent}{because}", line.key)
            } else {
                format!("  {:key$}{:value$}{because}", line.key, line.value)
            };
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
    out
}

/// A value as people read it: text without quotes, amounts and times with a unit, the ledger's items a line each.
fn shown(key: &str, value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Number(number) => {
            let unit = |number: u64| {
                if key.ends_with("_bytes") {
                    format!("{} ({number})", Bytes(number))
                } else if key.ends_with("_ms") {
                    Millis(number).to_string()
                } else {
                    number.to_string()
                }
            };
            number.as_u64().map_or_else(|| number.to_string(), unit)
        }
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) if items.iter().any(serde_json::Value::is_object) => {
            let lines: Vec<String> = items.iter().map(item).collect();
            lines.concat()
        }
        other => other.to_string(),
    }
}

/// One item of the ledger, on a line of its own.
fn item(item: &serde_json::Value) -> String {
    let text = |key: &str| item[key].as_str().unwrap_or_default();
    let bytes = Bytes(item["bytes"].as_u64().unwrap_or_default());
    let kind = match (item["anonymous"] == true, item["steady"] == true) {
        (true, true) => "",
        (true, false) => " while loading",
        (false, true) => " of the mapped file",
        (false, false) => " of the mapped file while loading",
    };
    let because = print::wrapped(text("because"), WIDTH - 6, "      ");
    format!(
        "\n  {}{}{}: {bytes}{kind}\n      {because}",
        text("stage"),
        if text("stage").is_empty() { "" } else { " " },
        text("name")
    )
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Pinned { layer, place } => format!("pinned by {layer}: {place}"),
        Origin::Derived { rule } => format!("derived by the rule `{rule}`"),
        Origin::Measured { record } => format!("measured: {record}"),
    }
}

/// One knob with everything known about it.
pub(super) fn explanation(key: &str, explained: &crate::plan::Explanation) -> String {
    let value = shown(key, &explained.value);
    let mut out = if value.starts_with('\n') {
        format!("{key} ={value}\n")
    } else {
        format!("{}\n", print::wrapped(&format!("{key} = {value}"), WIDTH, "  "))
    };
    let mut line = |name: &str, text: &str| {
        let wrapped = print::wrapped(text, WIDTH - 11, "           ");
        let _ = writeln!(out, "  {name:9}{wrapped}");
    };
    line("from", &origin(&explained.origin));
    line("because", &explained.because);
    if let Some(bound) = &explained.bounded_by {
        line("bounded", bound);
    }
    line("verify", &explained.verify);
    out
}

/// Two plans, key by key where they differ.
pub(super) fn differences(left: &Plan, right: &Plan, other: &str, differences: &[Difference]) -> String {
    let count = differences.len();
    let mut out = format!(
        "- this plan:  {} ({} on {})\n+ the other:  {} ({} on {}), from {other}\n",
        left.digest,
        left.model.name,
        left.hardware_class,
        right.digest,
        right.model.name,
        right.hardware_class
    );
    if left.digest == right.digest {
        out.push_str("the digests are the same: both run alike\n");
    }
    let _ = match count {
        0 => writeln!(out, "no key differs"),
        1 => writeln!(out, "1 key differs"),
        _ => writeln!(out, "{count} keys differ"),
    };
    for difference in differences {
        let _ = writeln!(out, "\n{}", difference.key);
        for (sign, side) in [('-', &difference.left), ('+', &difference.right)] {
            let Some(side) = side else {
                let _ = writeln!(out, "  {sign} (not in this plan)");
                continue;
            };
            let value = print::wrapped(&shown(&difference.key, &side.value), WIDTH - 4, "    ");
            let _ = writeln!(out, "  {sign} {value}");
            let mut because = side.because.clone();
            if let Some(Origin::Pinned { .. }) = side.origin
                && let Some(pinned) = &side.origin
            {
                because = format!("{}; {because}", origin(pinned));
            }
            if let Some(bound) = &side.bounded_by {
                because = format!("{because}; bounded by {bound}");
            }
            let _ = writeln!(out, "      {}", print::wrapped(&because, WIDTH - 6, "      "));
        }
    }
    out
}
