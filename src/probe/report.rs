//! The page that `probe` prints: what a person can read at a glance.
//!
//! In: [`Hardware`]. Out: text of at most about 110 columns.
//! Invariant: everything that limits us stands with the file that says so; nothing is cut silently.

use std::fmt::Write as _;

use super::hardware::{Confidence, CpuQuota, Hardware, HardwareClass};
use crate::base::{CpuSet, Problem};

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
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name:<12} {text}");
}

fn push_warning(out: &mut String, warning: &Problem) {
    let _ = writeln!(out, "{warning}");
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

/// One row per kind, node and level 3 cache: CPUs, with those that are not ours in brackets.
fn core_map(out: &mut String, hardware: &Hardware) {
    let topology = &hardware.topology;
    let confidence = match topology.kinds_confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    let _ = writeln!(
        out,
        "{:<8} {:<5} {:<10} {:>5} {:>7}  cpus",
        "kind", "node", "L3", "cores", "clock"
    );
    let nodes: Vec<(String, CpuSet)> = if topology.nodes.is_empty() {
        vec![("-".to_owned(), hardware.cpus.online.clone())]
    } else {
        topology
            .nodes
            .iter()
            .map(|node| (node.id.to_string(), node.cpus.clone()))
            .collect()
    };
    let mut caches: Vec<(String, CpuSet)> = topology
        .caches
        .iter()
        .filter(|cache| cache.level == 3)
        .map(|cache| {
            (
                cache
                    .size_bytes
                    .map_or_else(|| "?".to_owned(), |size| size.to_string()),
                cache.cpus.clone(),
            )
        })
        .collect();
    let cached = caches
        .iter()
        .fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
    caches.push(("-".to_owned(), hardware.cpus.online.difference(&cached)));
    for kind in &topology.kinds {
        for (node, node_cpus) in &nodes {
            for (size, cache_cpus) in &caches {
                let cpus = kind.cpus.intersection(node_cpus).intersection(cache_cpus);
                if cpus.is_empty() {
                    continue;
                }
                let clock = kind
                    .max_khz
                    .map_or_else(|| "?".to_owned(), |khz| format!("{:.2}GHz", khz as f64 / 1e6));
                let ours = cpus.intersection(&hardware.cpus.allowed);
                let others = cpus.difference(&ours);
                let others = if others.is_empty() {
                    String::new()
                } else {
                    format!(" (not ours: {others})")
                };
                let cores = topology.cores_within(&cpus).len();
                let _ = writeln!(
                    out,
                    "{:<8} {node:<5} {size:<10} {cores:>5} {clock:>7}  {ours}{others}",
                    kind.name
                );
            }
        }
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
    if hardware.class == HardwareClass::Jetson {
        line(
            out,
            "",
            "the GPU's memory is the same memory: it is never added to the budget",
        );
    }
}
