//! Readback: what the engine really uses against what was planned.
//!
//! In: a plan and [`Effective`]. Out: one problem for each difference. Invariant: an empty list means every knob
//! that can be read back was, and is as planned.

use serde_json::json;

use super::effective::{Effective, EffectiveStage};
use super::{Origin, Plan, StagePlan};
use crate::base::{Bytes, Code, CpuSet, KeyPath, Problem};
use crate::derive::isa;
use crate::model::kv;

/// Every difference between the plan and the running engine.
#[must_use]
pub fn compare(plan: &Plan, effective: &Effective) -> Vec<Problem> {
    let mut found = Vec::new();
    for (name, stage) in &plan.stages {
        match effective.stages.get(name) {
            Some(real) => compare_stage(plan, name, stage, real, &mut found),
            None => found.push(differs(&format!("stages.{name}"), "a running stage", "none")),
        }
    }
    for name in effective
        .stages
        .keys()
        .filter(|name| !plan.stages.contains_key(*name))
    {
        found.push(differs(
            &format!("stages.{name}"),
            "no such stage",
            "a running one",
        ));
    }
    found
}

fn compare_stage(
    plan: &Plan,
    name: &str,
    stage: &StagePlan,
    real: &EffectiveStage,
    found: &mut Vec<Problem>,
) {
    let key = |knob: &str| format!("stages.{name}.{knob}");
    let mut check = |knob: &str, planned: String, real: String| {
        if planned != real {
            found.push(differs(&key(knob), &planned, &real));
        }
    };
    check("threads", stage.threads.to_string(), real.threads.to_string());
    check("dtype", stage.dtype.to_string(), real.dtype.to_string());
    check("weight_path", stage.weight_path.clone(), real.weight_path.clone());
    check("kv_dtype", stage.kv_dtype.to_string(), real.kv_dtype.to_string());
    check("context", stage.context.to_string(), real.context.to_string());
    check("max_seqs", stage.max_seqs.to_string(), real.max_seqs.to_string());
    check(
        "prefill_batch",
        stage.prefill_batch.to_string(),
        real.prefill_batch.to_string(),
    );
    check(
        "huge_pages",
        stage.huge_pages.to_string(),
        real.huge_pages.to_string(),
    );
    if !isa::within(&real.kernels, &stage.isa_cap) {
        found.push(differs(
            &key("isa_cap"),
            &format!("at most `{}`", stage.isa_cap),
            &real.kernels,
        ));
    }
    compare_workers(&key("cpus"), stage, &real.worker_cpus, found);
    compare_cache(plan, name, stage, real, found);
}

/// Every worker where it belongs.
fn compare_workers(key: &str, stage: &StagePlan, workers: &[CpuSet], found: &mut Vec<Problem>) {
    if workers.len() != stage.threads {
        let real = format!("{} workers with a known CPU list", workers.len());
        found.push(differs(key, &format!("{} workers", stage.threads), &real));
        return;
    }
    for (index, real) in workers.iter().enumerate() {
        let Some(wanted) = stage.affinity(index) else {
            continue;
        };
        if *real != wanted {
            found.push(differs(
                key,
                &format!("worker {index} on CPU {wanted}"),
                &format!("worker {index} on CPU {real}"),
            ));
        }
    }
}

/// The cache as allocated: by layer, and in all.
fn compare_cache(
    plan: &Plan,
    name: &str,
    stage: &StagePlan,
    real: &EffectiveStage,
    found: &mut Vec<Problem>,
) {
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
        found.push(differs(key.as_str(), &show(stage.kv_bytes), &show(real.kv_bytes)));
    }
    if let Some(card) = &plan.model.card {
        let slots = kv::slots_by_layer(&card.decoder, stage.context, stage.prefill_batch);
        if slots != real.kv_tokens_by_layer {
            found.push(differs(
                &format!("stages.{name}.context"),
                &format!("slots by layer {slots:?}"),
                &format!("{:?}", real.kv_tokens_by_layer),
            ));
        }
    }
}

fn differs(key: &str, planned: &str, real: &str) -> Problem {
    Problem::new(
        Code::ReadbackMismatch,
        format!("`{key}`: planned {planned}, the engine uses {real}"),
        format!(
            "`edge-deploy explain {key}` shows why it was planned so; report this if nothing else changed it"
        ),
    )
    .why("a knob that is not followed makes every number of the plan doubtful")
    .with(json!({"key": key, "planned": planned, "effective": real}))
}
