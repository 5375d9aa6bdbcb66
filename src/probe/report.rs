//! The page that `probe` prints: what a person can read at a glance.
//!
//! In: [`Hardware`]. Out: text of at most [`WIDTH`] columns.
//! Invariant: everything that limits us stands with the file that says so; nothing is cut: long lines go on below,
//! and rows of the core map are put together only where they are alike, with their number.

use std::fmt::Write as _;

use super::hardware::{Confidence, CpuQuota, Hardware};
use crate::base::{Bytes, CpuSet, Problem};

/// Columns of the narrowest usual terminal.
pub const WIDTH: usize = 80;
/// Where the text of a row begins.
const TEXT_AT: usize = 13;
/// Rows of the core map that can be taken in at a glance; with more, rows that are alike become one.
const MAX_ROWS: usize = 16;

/// The whole page.
#[must_use]
pub fn page(hardware: &Hardware) -> String {
    let mut out = String::new();
    let mut row = |name: &str, text: &str| line(&mut out, name, text);
    row("processor", &processor(hardware));
    row(
        "class",
        &format!(
            "{}, environment {}",
            hardware.class.as_str(),
            name(hardware.environment)
        ),
    );
    row("cpus", &cpus(hardware));
    row("cores", &cores(hardware));
    row("quota", &quota(&hardware.quota, hardware.cpus.allowed.len()));
    row("memory", &memory(hardware));
    if let Some(soft) = hardware.memory.soft_limit_bytes {
        row(
            "",
            &format!("soft limit {soft}: above it the kernel slows this process down"),
        );
    }
    row("isa", &isa(&hardware.isa));
    out.push('\n');
    core_map(&mut out, hardware);
    accelerators(&mut out, hardware);
    let thermal = &hardware.thermal;
    let mut state: Vec<String> = Vec::new();
    state.extend(
        thermal
            .governor
            .as_ref()
            .map(|governor| format!("governor {governor}")),
    );
    state.extend(
        thermal
            .max_millidegrees
            .map(|temp| format!("{:.0} °C", temp as f64 / 1000.0)),
    );
    state.extend(
        hardware
            .memory
            .thp
            .as_ref()
            .map(|thp| format!("transparent huge pages {thp}")),
    );
    if !state.is_empty() {
        line(&mut out, "state", &state.join(", "));
    }
    line(&mut out, "fingerprint", &hardware.fingerprint);
    if !hardware.warnings.is_empty() {
        out.push('\n');
        for warning in &hardware.warnings {
            push_warning(&mut out, warning);
        }
    }
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    wrapped(
        out,
        &format!("{name:<width$} ", width = TEXT_AT - 1),
        TEXT_AT,
        text,
    );
}

fn push_warning(out: &mut String, warning: &Problem) {
    for text in warning.to_string().lines() {
        let blank = text.len() - text.trim_start().len();
        wrapped(out, &text[..blank], blank + 4, text.trim_start());
    }
}

/// Writes `first` and the text; lines after the first are indented.
fn wrapped(out: &mut String, first: &str, indent: usize, text: &str) {
    let mut at = first.chars().count();
    out.push_str(first);
    let mut begins = true;
    for word in text.split(' ').flat_map(|word| pieces(word, WIDTH - indent)) {
        let (blank, word, width) = match word {
            Piece::Word(word) => (usize::from(!begins), word, word.chars().count()),
            Piece::More(word) => (0, word, word.chars().count()),
        };
        if at + blank + width > WIDTH && at > indent {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            at = indent;
        } else if blank > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += width;
        begins = false;
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// A part of a text between two places where a line may end.
enum Piece<'a> {
    /// A word with a blank in front.
    Word(&'a str),
    /// What goes on without one.
    More(&'a str),
}

/// A word in pieces of at most `width`: a longer one ends after a comma or slash, else anywhere.
fn pieces(word: &str, width: usize) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = word;
    while rest.chars().count() > width {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        let cut = rest[..end].rfind([',', '/']).map_or(end, |at| at + 1);
        let (head, tail) = rest.split_at(cut);
        found.push(head);
        rest = tail;
    }
    found.push(rest);
    found
        .into_iter()
        .enumerate()
        .map(|(index, piece)| {
            if index == 0 {
                Piece::Word(piece)
            } else {
                Piece::More(piece)
            }
        })
        .collect()
}

fn name(value: impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn processor(hardware: &Hardware) -> String {
    let model = hardware.cpu_model.as_deref().unwrap_or("unknown model");
    format!("{model} ({})", hardware.arch)
}

fn cpus(hardware: &Hardware) -> String {
    let cpus = &hardware.cpus;
    let mut text = format!(
        "{} allowed of {} online: {}",
        cpus.allowed.len(),
        cpus.online.len(),
        cpus.allowed
    );
    let offline = cpus.present.difference(&cpus.online);
    if !offline.is_empty() {
        let _ = write!(text, "; offline {offline}");
    }
    if !cpus.isolated.is_empty() {
        let _ = write!(text, "; isolated {}", cpus.isolated);
    }
    text
}

fn cores(hardware: &Hardware) -> String {
    let topology = &hardware.topology;
    let allowed = topology.cores_within(&hardware.cpus.allowed).len();
    let mut parts = vec![plural(topology.cores.len(), "core")];
    if allowed != topology.cores.len() {
        parts.push(format!("{allowed} allowed"));
    }
    parts.push(if topology.smt {
        format!(
            "{} threads per core",
            topology.threads_per_core(&hardware.cpus.online)
        )
    } else {
        "no SMT".to_owned()
    });
    parts.push(plural(topology.packages.len(), "package"));
    parts.push(plural(topology.nodes.len().max(1), "NUMA node"));
    parts.push(plural(
        topology.cache_groups(3, &hardware.cpus.online).len(),
        "L3 cache",
    ));
    parts.join(", ")
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn quota(quota: &CpuQuota, allowed: usize) -> String {
    match (quota.cpus, &quota.source) {
        (Some(cpus), Some(source)) => {
            let effect = if cpus < allowed as f64 {
                ""
            } else {
                " (more than the CPUs allowed)"
            };
            format!("{cpus} CPUs of time{effect}, by {source}")
        }
        _ => "none".to_owned(),
    }
}

fn memory(hardware: &Hardware) -> String {
    let memory = &hardware.memory;
    let limit = match (memory.limit_bytes, &memory.limit_source) {
        (Some(limit), Some(source)) => format!(", limit {limit} by {source}"),
        _ => String::new(),
    };
    format!(
        "{} available of {} (bound by {}){limit}",
        memory.available_bytes, memory.total_bytes, memory.available_source
    )
}

fn isa(features: &[String]) -> String {
    if features.is_empty() {
        "none known".to_owned()
    } else {
        features.join(" ")
    }
}

/// Cores of one kind on one node under one level 3 cache, or several such groups that are alike.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    kind: usize,
    /// Empty where the kernel has no nodes.
    nodes: CpuSet,
    /// Size of the cache; `None` where it is not stated.
    cache: Option<Bytes>,
    /// How many caches; 0 for CPUs outside any.
    caches: usize,
    cores: usize,
    cpus: CpuSet,
}

fn rows(hardware: &Hardware) -> Vec<Row> {
    let topology = &hardware.topology;
    let nodes: Vec<(CpuSet, &CpuSet)> = if topology.nodes.is_empty() {
        vec![(CpuSet::new(), &hardware.cpus.online)]
    } else {
        let of = |node: &'_ super::hardware::NumaNode| CpuSet::range(node.id, node.id);
        topology.nodes.iter().map(|node| (of(node), &node.cpus)).collect()
    };
    let third = topology.caches.iter().filter(|cache| cache.level == 3);
    let mut caches: Vec<(Option<Bytes>, usize, CpuSet)> = third
        .map(|cache| (cache.size_bytes, 1, cache.cpus.clone()))
        .collect();
    let cached = caches
        .iter()
        .fold(CpuSet::new(), |all, (_, _, cpus)| all.union(cpus));
    caches.push((None, 0, hardware.cpus.online.difference(&cached)));
    let mut rows = Vec::new();
    for (kind, of_kind) in topology.kinds.iter().enumerate() {
        for (node, node_cpus) in &nodes {
            for (cache, count, cache_cpus) in &caches {
                let cpus = of_kind.cpus.intersection(node_cpus).intersection(cache_cpus);
                if !cpus.is_empty() {
                    rows.push(Row {
                        kind,
                        nodes: node.clone(),
                        cache: *cache,
                        caches: *count,
                        cores: topology.cores_within(&cpus).len(),
                        cpus,
                    });
                }
            }
        }
    }
    rows
}

/// Puts rows together that `alike` says are.
fn merged(rows: Vec<Row>, alike: fn(&Row, &Row) -> bool) -> Vec<Row> {
    let mut groups: Vec<(Row, Row)> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|(first, _)| alike(first, &row)) {
            Some((_, all)) => {
                all.nodes = all.nodes.union(&row.nodes);
                all.cpus = all.cpus.union(&row.cpus);
                all.caches += row.caches;
                all.cores += row.cores;
            }
            None => groups.push((row.clone(), row)),
        }
    }
    groups.into_iter().map(|(_, all)| all).collect()
}

/// One row per kind, node and level 3 cache: CPUs, with those that are not ours in brackets.
fn core_map(out: &mut String, hardware: &Hardware) {
    let topology = &hardware.topology;
    let mut rows = rows(hardware);
    if rows.len() > MAX_ROWS {
        let same = |a: &Row, b: &Row| {
            (a.kind, a.cache, a.caches, a.cores, a.cpus.len())
                == (b.kind, b.cache, b.caches, b.cores, b.cpus.len())
        };
        rows = merged(rows, |a, b| {
            a.nodes == b.nodes && (a.kind, a.cache, a.cores) == (b.kind, b.cache, b.cores)
        });
        if rows.len() > MAX_ROWS {
            rows = merged(rows, same);
        }
    }
    let _ = writeln!(
        out,
        "{:<8} {:<5} {:<10} {:>5} {:>7}  cpus",
        "kind", "node", "L3", "cores", "clock"
    );
    for row in &rows {
        let kind = &topology.kinds[row.kind];
        let node = if row.nodes.is_empty() {
            "-".to_owned()
        } else {
            row.nodes.to_string()
        };
        let size = row.cache.map_or_else(|| "?".to_owned(), |size| size.to_string());
        let cache = match row.caches {
            0 => "-".to_owned(),
            1 => size,
            count => format!("{count}x{size}"),
        };
        let clock = kind
            .max_khz
            .map_or_else(|| "?".to_owned(), |khz| format!("{:.2}GHz", khz as f64 / 1e6));
        let ours = row.cpus.intersection(&hardware.cpus.allowed);
        let others = row.cpus.difference(&ours);
        let mut text = ours.to_string();
        if !others.is_empty() {
            let _ = write!(text, " (not ours: {others})");
        }
        let first = format!(
            "{:<8} {node:<5} {cache:<10} {:>5} {clock:>7}  ",
            kind.name, row.cores
        );
        wrapped(out, &first, 41, text.trim_start());
    }
    for node in topology.nodes.iter().filter(|node| node.cpus.is_empty()) {
        let size = node
            .total_bytes
            .map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(out, "{:<8} {:<5} memory only, {size}", "-", node.id);
    }
    let evidence = topology
        .kinds
        .first()
        .map_or("none", |kind| kind.evidence.as_str());
    let confidence = match topology.kinds_confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    let _ = writeln!(out, "kinds told apart by {evidence}, confidence {confidence}\n");
}

fn accelerators(out: &mut String, hardware: &Hardware) {
    if hardware.accelerators.is_empty() {
        line(out, "accelerators", "none found");
    }
    for accelerator in &hardware.accelerators {
        let memory = match (accelerator.vram_bytes, accelerator.unified_memory) {
            (Some(bytes), true) => format!("{bytes} carved out of the system's memory"),
            (Some(bytes), false) => bytes.to_string(),
            (None, true) => "shares the system's memory".to_owned(),
            (None, false) => "memory unknown".to_owned(),
        };
        let state = match (&accelerator.reason, &accelerator.route) {
            (Some(reason), _) => format!("not usable: {reason}"),
            (None, Some(route)) => format!("reachable by {route}"),
            (None, None) => "reachable".to_owned(),
        };
        line(
            out,
            &accelerator.kind,
            &format!(
                "{} {}, {memory}; {state}",
                accelerator.vendor,
                accelerator.name.as_deref().unwrap_or("(no name)")
            ),
        );
    }
    if hardware
        .accelerators
        .iter()
        .any(|a| a.vendor == "nvidia" && a.unified_memory)
    {
        line(
            out,
            "",
            "the GPU's memory is the same memory: it is never added to the budget",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_go_on_below_and_lose_nothing() {
        let path = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a-very-long-name.scope/memory.max";
        let list = (0..60).map(|n| (n * 7).to_string()).collect::<Vec<_>>().join(",");
        let solid = "x".repeat(300);
        for text in [
            "",
            "short",
            path,
            &list,
            &solid,
            &format!("of {list} by {path} and {solid} end"),
        ] {
            let mut out = String::new();
            line(&mut out, "name", text);
            assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
            assert!(out.lines().all(|line| !line.ends_with(' ')), "{out}");
            let glued = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(glued(&out), glued(&format!("name {text}")));
        }
    }
}
