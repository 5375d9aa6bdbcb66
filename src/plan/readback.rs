//! Readback: what the engine and the server really use against what was planned.
//!
//! In: a plan and [`Effective`]. Out: one warning for each difference. Invariant: an empty list means every knob
//! that can be read back was, and is as planned; `knobs` lists which field answers for which knob.

use std::net::IpAddr;

use serde_json::json;

use super::effective::{Effective, EffectiveDeadlines, EffectiveMemory, EffectiveServer, EffectiveStage};
use super::explain::json_of;
use super::{Ledger, Origin, Plan, StagePlan};
use crate::base::{Bytes, Code, CpuSet, KeyPath, Problem};
use crate::derive::isa;
use crate::model::{ModelCard, kv};

/// What a measured size may exceed its prediction by: the larger of this and [`SLACK_SHARE`].
pub const SLACK_BYTES: Bytes = Bytes::mib(32);
/// See [`SLACK_BYTES`].
pub const SLACK_SHARE: f64 = 0.05;

/// Every difference between the plan and what runs.
#[must_use]
pub fn compare(plan: &Plan, effective: &Effective) -> Vec<Problem> {
    let mut found = Found::default();
    compare_model(plan, effective, &mut found);
    for (name, stage) in &plan.stages {
        match effective.stages.get(name) {
            Some(real) => compare_stage(plan, name, stage, real, &mut found),
            None => found.differ(&format!("stages.{name}"), "a running stage", "none"),
        }
    }
    for name in effective.stages.keys() {
        if !plan.stages.contains_key(name) {
            found.differ(&format!("stages.{name}"), "no such stage", "a running one");
        }
    }
    if let Some(server) = &effective.server {
        compare_server(plan, server, &mut found);
    }
    if let Some(phases) = &effective.deadlines {
        compare_deadlines(plan, phases, &mut found);
    }
    compare_memory(&plan.memory, &effective.memory, &mut found);
    found.0
}

#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    /// Notes a difference.
    fn differ(&mut self, key: &str, planned: &str, real: &str) {
        self.0.push(
            Problem::warning(
                Code::ReadbackMismatch,
                format!("`{key}`: planned {planned}, in use is {real}"),
                format!(
                    "`edge-deploy explain {key}` shows why it was planned so; report this if nothing else changed it"
                ),
            )
            .why("a knob that is not followed makes every number of the plan doubtful")
            .with(json!({"key": key, "planned": planned, "effective": real})),
        );
    }

    /// Notes two values that are not equal.
    fn check(&mut self, key: &str, planned: impl ToString, real: impl ToString) {
        let (planned, real) = (planned.to_string(), real.to_string());
        if planned != real {
            self.differ(key, &planned, &real);
        }
    }
}

fn compare_model(plan: &Plan, effective: &Effective, found: &mut Found) {
    let (planned, real) = (&plan.model, &effective.model);
    found.check("model.name", &planned.name, &real.name);
    found.check("model.family", &planned.family, &real.family);
    if planned.files != real.files {
        found.differ(
            "model.files",
            &format!("{:?}", planned.files),
            &format!("{:?}", real.files),
        );
    }
    // A pinned template that is word for word the file's own reads back as the file's own.
    let same_text = planned.chat_template == "pinned" && real.chat_template == "model";
    if !same_text {
        found.check("model.chat_template", &planned.chat_template, &real.chat_template);
    }
}

fn compare_stage(plan: &Plan, name: &str, stage: &StagePlan, real: &EffectiveStage, found: &mut Found) {
    let key = |knob: &str| format!("stages.{name}.{knob}");
    found.check(&key("threads"), stage.threads, real.threads);
    found.check(&key("dtype"), stage.dtype, real.dtype);
    found.check(&key("weight_path"), &stage.weight_path, &real.weight_path);
    found.check(&key("kv_dtype"), stage.kv_dtype, real.kv_dtype);
    found.check(&key("kv_block"), stage.kv_block, real.kv_block);
    found.check(&key("context"), stage.context, real.context);
    found.check(&key("max_seqs"), stage.max_seqs, real.max_seqs);
    found.check(&key("prefill_batch"), stage.prefill_batch, real.prefill_batch);
    found.check(&key("huge_pages"), stage.huge_pages, real.huge_pages);
    let tables = real.tensors.iter().filter_map(|tensor| tensor.kernel.as_deref());
    for table in std::iter::once(real.kernels.as_str()).chain(tables) {
        if !isa::within(table, &stage.isa_cap) {
            found.differ(
                &key("isa_cap"),
                &format!("at most `{}`", stage.isa_cap),
                &format!("`{table}`"),
            );
            break;
        }
    }
    compare_workers(&key("cpus"), stage, &real.worker_cpus, found);
    compare_cache(plan, name, stage, real, found);
}

/// Every worker where it belongs.
fn compare_workers(key: &str, stage: &StagePlan, workers: &[CpuSet], found: &mut Found) {
    if workers.len() != stage.threads {
        let real = format!("{} workers with a known CPU list", workers.len());
        found.differ(key, &format!("{} workers", stage.threads), &real);
        return;
    }
    for (index, real) in workers.iter().enumerate() {
        let Some(wanted) = stage.affinity(index) else {
            continue;
        };
        if *real != wanted {
            found.differ(
                key,
                &format!("worker {index} on CPU {wanted}"),
                &format!("worker {index} on CPU {real}"),
            );
        }
    }
}

/// The cache as allocated: by layer, and in all.
fn compare_cache(plan: &Plan, name: &str, stage: &StagePlan, real: &EffectiveStage, found: &mut Found) {
    let key = KeyPath::new(&format!("stages.{name}.kv_bytes"));
    let pinned = plan
        .explanations
        .get(&key)
        .is_some_and(|explanation| matches!(explanation.origin, Origin::Pinned { .. }));
    // A pinned size is a bound that context and sequences were checked against; a derived one is exact.
    let as_planned = if pinned {
        real.kv_bytes <= stage.kv_bytes
    } else {
        real.kv_bytes == stage.kv_bytes
    };
    if !as_planned {
        let show = |bytes: Bytes| format!("{bytes} ({} bytes)", bytes.0);
        found.differ(key.as_str(), &show(stage.kv_bytes), &show(real.kv_bytes));
    }
    let stages = plan
        .model
        .card
        .as_deref()
        .map(ModelCard::stages)
        .unwrap_or_default();
    let network = stages
        .iter()
        .find(|spec| spec.name == name)
        .and_then(|spec| spec.network);
    if let Some(network) = network {
        let slots = kv::slots_by_layer(network, stage.context, stage.prefill_batch);
        if slots != real.kv_tokens_by_layer {
            found.differ(
                &format!("stages.{name}.context"),
                &format!("slots by layer {slots:?}"),
                &format!("{:?}", real.kv_tokens_by_layer),
            );
        }
    }
}

fn compare_server(plan: &Plan, real: &EffectiveServer, found: &mut Found) {
    let planned = &plan.server;
    let bare = planned.host.trim_start_matches('[').trim_end_matches(']');
    // A name may stand for any address; only `localhost` is known to stay on this machine.
    let as_planned = match (bare.parse::<IpAddr>(), real.host.parse::<IpAddr>()) {
        (Ok(planned), Ok(real)) => planned == real,
        (Err(_), Ok(real)) => bare != "localhost" || real.is_loopback(),
        (_, Err(_)) => false,
    };
    if !as_planned {
        found.differ("server.host", &planned.host, &real.host);
    }
    if real.port == 0 || (planned.port != 0 && planned.port != real.port) {
        found.differ("server.port", &planned.port.to_string(), &real.port.to_string());
    }
    found.check(
        "server.api_key_required",
        planned.api_key_required,
        real.api_key_required,
    );
    found.check("server.max_queue", planned.max_queue, real.max_queue);
    found.check(
        "server.max_body_bytes",
        planned.max_body_bytes.0,
        real.max_body_bytes.0,
    );
    found.check(
        "server.read_timeout_ms",
        planned.read_timeout_ms,
        real.read_timeout_ms,
    );
    found.check(
        "server.request_timeout_ms",
        planned.request_timeout_ms,
        real.request_timeout_ms,
    );
    found.check(
        "server.default_max_tokens",
        planned.default_max_tokens,
        real.default_max_tokens,
    );
    let sampling = json_of(&plan.model.sampling);
    let in_use = json_of(&real.sampling);
    for (knob, value) in sampling.as_object().into_iter().flatten() {
        found.check(&format!("model.sampling.{knob}"), value, &in_use[knob]);
    }
}

fn compare_deadlines(plan: &Plan, real: &EffectiveDeadlines, found: &mut Found) {
    let planned = plan.deadlines;
    found.check("deadlines.load_ms", planned.load_ms, real.load_ms);
    found.check("deadlines.warmup_ms", planned.warmup_ms, real.warmup_ms);
    if let Some(shutdown) = real.shutdown_ms {
        found.check("deadlines.shutdown_ms", planned.shutdown_ms, shutdown);
    }
}

/// Whether a measured size is within what was predicted for it, up to the slack.
#[must_use]
pub fn within_slack(measured: Bytes, predicted: Bytes) -> bool {
    let slack = SLACK_BYTES.0.max((predicted.0 as f64 * SLACK_SHARE) as u64);
    measured.0 <= predicted.0.saturating_add(slack)
}

/// Nothing takes more than the ledger says. Less is no difference: a cache fills as sequences grow.
fn compare_memory(ledger: &Ledger, real: &EffectiveMemory, found: &mut Found) {
    if ledger.items.is_empty() {
        return;
    }
    let mut at_most = |key: &str, predicted: Bytes, measured: Bytes| {
        if !within_slack(measured, predicted) {
            found.differ(key, &format!("at most {predicted}"), &measured.to_string());
        }
    };
    for item in &real.items {
        let planned: u64 = ledger
            .items
            .iter()
            .filter(|planned| planned.name == item.name)
            .map(|planned| planned.bytes.0)
            .sum();
        at_most("memory.items", Bytes(planned), item.bytes);
    }
    at_most("memory.peak_bytes", ledger.peak_bytes, real.anonymous_bytes);
    at_most("memory.mapped_bytes", ledger.mapped_bytes, real.file_bytes);
}

#[cfg(test)]
mod tests;
