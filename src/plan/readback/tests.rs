//! Every difference is found, named by its key, and nothing else is.

use std::collections::BTreeMap;

use super::*;
use crate::base::{Bytes, Dtype, Millis};
use crate::derive::samples::{card, pin, plain, policy, qwen_like};
use crate::derive::{Asked, DECODER, Options, decide};
use crate::plan::{EffectiveItem, EffectiveModel, EffectiveTensor};

fn planned(asked: &Asked) -> Plan {
    let draft = decide(
        &plain(8, Bytes::gib(16)),
        &card(&qwen_like()),
        asked,
        Options::default(),
    );
    Plan::settle(draft.expect("a draft"))
}

fn nothing() -> Asked {
    Asked::nothing(policy())
}

fn as_planned(plan: &Plan) -> Effective {
    let stage = &plan.stages[DECODER];
    let spec = &plan.model.card.as_ref().unwrap().decoder;
    let real = EffectiveStage {
        threads: stage.threads,
        worker_cpus: stage.cpus.iter().map(|cpu| CpuSet::range(cpu, cpu)).collect(),
        kernels: "x86_64-avx2".to_owned(),
        dtype: stage.dtype,
        weight_path: stage.weight_path.clone(),
        kv_dtype: stage.kv_dtype,
        context: stage.context,
        max_seqs: stage.max_seqs,
        kv_bytes: stage.kv_bytes,
        kv_block: stage.kv_block,
        kv_tokens_by_layer: kv::slots_by_layer(spec, stage.context, stage.prefill_batch),
        prefill_batch: stage.prefill_batch,
        huge_pages: stage.huge_pages,
        tensors: vec![EffectiveTensor {
            kernel: Some("x86_64-avx2".to_owned()),
            ..EffectiveTensor::default()
        }],
        ..EffectiveStage::default()
    };
    Effective {
        model: EffectiveModel {
            name: plan.model.name.clone(),
            family: plan.model.family.clone(),
            files: plan.model.files.clone(),
            chat_template: plan.model.chat_template.clone(),
        },
        stages: BTreeMap::from([(DECODER.to_owned(), real)]),
        server: Some(EffectiveServer {
            host: plan.server.host.clone(),
            port: plan.server.port,
            api_key_required: plan.server.api_key_required,
            max_queue: plan.server.max_queue,
            max_body_bytes: plan.server.max_body_bytes,
            read_timeout_ms: plan.server.read_timeout_ms,
            request_timeout_ms: plan.server.request_timeout_ms,
            default_max_tokens: plan.server.default_max_tokens,
            sampling: Some(plan.model.sampling),
            ..EffectiveServer::default()
        }),
        deadlines: Some(EffectiveDeadlines {
            load_ms: plan.deadlines.load_ms,
            warmup_ms: plan.deadlines.warmup_ms,
            shutdown_ms: Some(plan.deadlines.shutdown_ms),
            ..EffectiveDeadlines::default()
        }),
        memory: EffectiveMemory {
            anonymous_bytes: plan.memory.steady_bytes,
            file_bytes: plan.memory.mapped_bytes,
            items: plan
                .memory
                .items
                .iter()
                .map(|item| EffectiveItem {
                    name: item.name.clone(),
                    bytes: item.bytes,
                })
                .collect(),
            ..EffectiveMemory::default()
        },
    }
}

/// Exactly one difference, at this key.
fn only(plan: &Plan, effective: &Effective, key: &str) {
    let found = compare(plan, effective);
    assert_eq!(found.len(), 1, "{key}: {found:?}");
    assert_eq!(found[0].code, Code::ReadbackMismatch);
    assert_eq!(found[0].details.as_ref().unwrap()["key"], key);
    assert!(found[0].what.contains(&format!("`{key}`")), "{}", found[0].what);
}

#[test]
fn silent_when_all_is_as_planned_and_each_difference_of_a_stage_is_named() {
    let plan = planned(&nothing());
    assert_eq!(compare(&plan, &as_planned(&plan)), []);
    type Change = fn(&mut EffectiveStage);
    let changes: [(&str, Change); 14] = [
        ("threads", |s| s.threads += 1),
        ("cpus", |s| s.worker_cpus[0] = CpuSet::range(0, 7)),
        ("cpus", |s| s.worker_cpus.truncate(1)),
        ("dtype", |s| s.dtype = Dtype::Bf16),
        ("weight_path", |s| s.weight_path = "other".to_owned()),
        ("kv_dtype", |s| s.kv_dtype = Dtype::F32),
        ("kv_block", |s| s.kv_block = 16),
        ("context", |s| s.context -= 1),
        ("context", |s| s.kv_tokens_by_layer[3] = 1),
        ("max_seqs", |s| s.max_seqs = 1),
        ("kv_bytes", |s| s.kv_bytes.0 -= 1),
        ("prefill_batch", |s| s.prefill_batch = 1),
        ("huge_pages", |s| s.huge_pages = !s.huge_pages),
        ("isa_cap", |s| {
            s.tensors[0].kernel = Some("x86_64-later".to_owned());
        }),
    ];
    for (knob, change) in changes {
        let mut plan = plan.clone();
        if knob == "isa_cap" {
            plan.stages.get_mut(DECODER).unwrap().isa_cap = "avx2".to_owned();
        }
        let mut effective = as_planned(&plan);
        change(effective.stages.get_mut(DECODER).unwrap());
        only(&plan, &effective, &format!("stages.decoder.{knob}"));
    }
    let mut none = as_planned(&plan);
    none.stages.clear();
    only(&plan, &none, "stages.decoder");
    let mut more = as_planned(&plan);
    let extra = more.stages[DECODER].clone();
    more.stages.insert("talker".to_owned(), extra);
    only(&plan, &more, "stages.talker");
}

#[test]
fn each_difference_of_model_server_and_deadlines_is_named() {
    let plan = planned(&nothing());
    fn server(effective: &mut Effective) -> &mut EffectiveServer {
        effective.server.as_mut().unwrap()
    }
    fn sampling(effective: &mut Effective) -> &mut crate::plan::SamplingPlan {
        server(effective).sampling.as_mut().unwrap()
    }
    fn phases(effective: &mut Effective) -> &mut EffectiveDeadlines {
        effective.deadlines.as_mut().unwrap()
    }
    type Change = fn(&mut Effective);
    let changes: [(&str, Change); 20] = [
        ("model.name", |e| e.model.name.push('x')),
        ("model.family", |e| e.model.family.push('x')),
        ("model.files", |e| e.model.files.push("x".into())),
        ("model.chat_template", |e| e.model.chat_template = "x".to_owned()),
        ("model.sampling.temperature", |e| sampling(e).temperature += 0.1),
        ("model.sampling.top_p", |e| sampling(e).top_p = 0.1),
        ("model.sampling.top_k", |e| sampling(e).top_k += 1),
        ("model.sampling.min_p", |e| sampling(e).min_p += 0.1),
        ("model.sampling.repetition_penalty", |e| {
            sampling(e).repetition_penalty += 0.1;
        }),
        ("server.host", |e| server(e).host = "0.0.0.0".to_owned()),
        ("server.port", |e| server(e).port = 1),
        ("server.api_key_required", |e| server(e).api_key_required = true),
        ("server.max_queue", |e| server(e).max_queue += 1),
        ("server.max_body_bytes", |e| server(e).max_body_bytes.0 += 1),
        ("server.read_timeout_ms", |e| server(e).read_timeout_ms.0 += 1),
        ("server.request_timeout_ms", |e| {
            server(e).request_timeout_ms = Millis(0);
        }),
        ("server.default_max_tokens", |e| server(e).default_max_tokens += 1),
        ("deadlines.load_ms", |e| phases(e).load_ms.0 += 1),
        ("deadlines.warmup_ms", |e| phases(e).warmup_ms.0 += 1),
        ("deadlines.shutdown_ms", |e| {
            phases(e).shutdown_ms = Some(Millis(1));
        }),
    ];
    for (key, change) in changes {
        let mut effective = as_planned(&plan);
        change(&mut effective);
        only(&plan, &effective, key);
    }
}

#[test]
fn any_free_port_any_spelling_of_an_address_and_a_repeated_template_are_as_planned() {
    let mut plan = planned(&nothing());
    plan.model.chat_template = "pinned".to_owned();
    plan.server.port = 0;
    for (host, bound, same) in [
        ("localhost", "127.0.0.1", true),
        ("localhost", "::1", true),
        ("localhost", "10.0.0.1", false),
        ("[::1]", "::1", true),
        ("box.example", "10.0.0.1", true),
        ("0.0.0.0", "127.0.0.1", false),
        ("127.0.0.1", "", false),
    ] {
        host.clone_into(&mut plan.server.host);
        let mut effective = as_planned(&plan);
        "model".clone_into(&mut effective.model.chat_template);
        let server = effective.server.as_mut().unwrap();
        bound.clone_into(&mut server.host);
        server.port = 40_000;
        assert_eq!(compare(&plan, &effective).is_empty(), same, "{host} {bound}");
        effective.server.as_mut().unwrap().port = 0;
        assert!(!compare(&plan, &effective).is_empty(), "no port is bound");
    }
}

#[test]
fn memory_beyond_the_ledger_is_a_difference_and_less_is_none() {
    let plan = planned(&nothing());
    let slack = SLACK_BYTES
        .0
        .max((plan.memory.peak_bytes.0 as f64 * SLACK_SHARE) as u64);
    let mut less = as_planned(&plan);
    less.memory.items.iter_mut().for_each(|item| item.bytes.0 /= 2);
    less.memory.anonymous_bytes.0 /= 2;
    assert_eq!(compare(&plan, &less), []);
    let mut more = as_planned(&plan);
    more.memory.anonymous_bytes.0 = plan.memory.peak_bytes.0 + slack;
    assert_eq!(compare(&plan, &more), []);
    more.memory.anonymous_bytes.0 += 1;
    only(&plan, &more, "memory.peak_bytes");
    let mut mapped = as_planned(&plan);
    mapped.memory.file_bytes.0 = plan.memory.mapped_bytes.0 * 2 + SLACK_BYTES.0;
    only(&plan, &mapped, "memory.mapped_bytes");
    let mut unknown = as_planned(&plan);
    unknown.memory.items.push(EffectiveItem {
        name: "not in the ledger".to_owned(),
        bytes: Bytes(SLACK_BYTES.0 + 1),
    });
    only(&plan, &unknown, "memory.items");
}

#[test]
fn kernels_above_a_cap_are_a_difference() {
    let mut asked = nothing();
    asked.decoder().isa_cap = Some(pin("stages.decoder.isa_cap", "scalar".to_owned()));
    let plan = planned(&asked);
    only(&plan, &as_planned(&plan), "stages.decoder.isa_cap");
}
