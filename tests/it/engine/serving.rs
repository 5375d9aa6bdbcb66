//! A started engine under requests: answers, seeds, stop texts, cancels, what it says of itself.

use std::path::Path;
use std::time::Duration;

use edge_deploy::base::{Bytes, Code, CpuSet, Millis};
use edge_deploy::engine::{
    Event, FinishReason, Handle, Request, Sampling, StartProgress, Submission, TokenLogprobs, Usage, start,
};
use edge_deploy::model::{Weights, inspect};
use edge_deploy::plan::{
    Deadlines, Dtype, Ledger, ModelPlan, Plan, SCHEMA, SamplingPlan, ServerPlan, StagePlan,
};

use super::support::{Division, Loaded, Runner, argmax, golden_json, ids_of};
use crate::support::shared;

const TINY: &str = "golden/llm/tiny-qwen3-f32.gguf";

pub fn plan(path: &Path, stage: StagePlan, max_queue: usize) -> Plan {
    let card = inspect(path).unwrap();
    Plan {
        schema: SCHEMA,
        digest: String::new(),
        model: ModelPlan {
            name: card.name.clone(),
            family: card.family.clone(),
            profile: String::new(),
            files: card.files.clone(),
            card: Some(Box::new(card)),
            chat_template: "none".to_owned(),
            sampling: SamplingPlan {
                temperature: 0.0,
                top_p: 1.0,
                top_k: 0,
                min_p: 0.0,
                repetition_penalty: 1.0,
            },
        },
        hardware_class: String::new(),
        fingerprint: String::new(),
        stages: [("decoder".to_owned(), stage)].into(),
        server: ServerPlan {
            host: String::new(),
            port: 0,
            api_key_required: false,
            max_queue,
            max_body_bytes: Bytes(0),
            read_timeout_ms: Millis(0),
            request_timeout_ms: Millis(0),
            default_max_tokens: 16,
        },
        deadlines: Deadlines {
            load_ms: Millis(0),
            warmup_ms: Millis(0),
            shutdown_ms: Millis(0),
        },
        memory: Ledger::default(),
        explanations: std::collections::BTreeMap::default(),
        warnings: Vec::new(),
    }
}

pub fn stage_plan(max_seqs: usize) -> StagePlan {
    StagePlan {
        threads: 2,
        cpus: CpuSet::new(),
        pin: false,
        confine: false,
        isa_cap: "best".to_owned(),
        dtype: Dtype::F32,
        weight_path: "native".to_owned(),
        kv_dtype: Dtype::F16,
        context: 256,
        max_seqs,
        kv_bytes: Bytes(0),
        kv_block: 64,
        prefill_batch: 16,
        huge_pages: false,
    }
}

fn started(test: &str, stage: StagePlan, max_queue: usize) -> Option<Handle> {
    let path = shared(test, TINY)?;
    let plan = plan(&path, stage, max_queue);
    let weights = Weights::open(plan.model.card.as_deref().unwrap()).unwrap();
    Some(start(&plan, weights, &mut |_| {}).unwrap())
}

fn ids(length: usize, shift: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|at| (at * 7919 + shift * 104_729 + 13) % 49_000)
        .collect()
}

pub fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        sampling: Sampling::default(),
        max_tokens,
        stop: Vec::new(),
        ignore_eos: true,
        logprobs: None,
        echo: false,
    }
}

#[derive(Debug, Default)]
pub struct Answer {
    pub text: String,
    pub ids: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
    pub finish: Option<FinishReason>,
    pub usage: Usage,
}

pub fn answer(mut submission: Submission) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = submission.events.blocking_recv() {
        assert!(answer.finish.is_none(), "an event after the last: {event:?}");
        match event {
            Event::Prefilled { .. } => assert!(answer.ids.is_empty()),
            Event::Token { id, text, logprobs } => {
                answer.ids.push(id);
                answer.text.push_str(&text);
                answer.logprobs.extend(logprobs);
            }
            Event::Done { finish, text, usage } => {
                answer.text.push_str(&text);
                answer.finish = Some(finish);
                answer.usage = usage;
            }
            Event::Failed(problem) => panic!("{problem}"),
        }
    }
    answer
}

#[test]
fn requests_of_all_lengths_get_the_same_answer_together_as_alone() {
    let Some(handle) = started("engine::serving::together", stage_plan(3), 16) else {
        return;
    };
    let sampled = |seed| Sampling {
        temperature: 0.9,
        top_p: 0.95,
        seed,
        ..Sampling::default()
    };
    let requests: Vec<Request> = (0..8u32)
        .map(|n| {
            let mut request = request(ids(1 + 23 * n as usize, n), 5 + 6 * n as usize);
            if n % 2 == 1 {
                request.sampling = sampled(u64::from(n));
            }
            request
        })
        .collect();
    let alone: Vec<Answer> = requests
        .iter()
        .map(|request| answer(handle.submit(request.clone()).unwrap()))
        .collect();
    let mut submitted: Vec<Option<Submission>> = requests
        .iter()
        .map(|request| Some(handle.submit(request.clone()).unwrap()))
        .collect();
    // Two leave, in their own ways.
    let cancelled = submitted[5].take().unwrap();
    assert!(handle.cancel(cancelled.id));
    drop(submitted[6].take());
    for (n, submission) in submitted.into_iter().enumerate() {
        let Some(submission) = submission else { continue };
        let together = answer(submission);
        assert_eq!(together.ids, alone[n].ids, "request {n}");
        assert_eq!(together.text, alone[n].text);
        assert_eq!(together.ids.len(), requests[n].max_tokens);
        assert_eq!(together.usage.prompt_tokens, requests[n].prompt.len());
        assert_eq!(together.finish, Some(FinishReason::Length));
    }
    let left = answer(cancelled);
    assert_eq!(left.finish, Some(FinishReason::Cancelled));
    assert!(alone[5].ids.starts_with(&left.ids));
    let other_seed = Request {
        sampling: sampled(99),
        ..requests[7].clone()
    };
    assert_ne!(answer(handle.submit(other_seed).unwrap()).ids, alone[7].ids);
}

#[test]
fn greedy_answers_are_the_decoders_own_choices() {
    let test = "engine::serving::greedy";
    let Some(handle) = started(test, stage_plan(1), 1) else {
        return;
    };
    let loaded = Loaded::open(&shared(test, TINY).unwrap());
    let division = Division {
        dtype: Dtype::F16,
        ..Division::default()
    };
    let prompt = ids_of(&golden_json(test, "golden/llm/tiny_models.json").unwrap()["tiny-qwen3-f32"]["ids"]);
    let mut runner = Runner::new(&loaded.decoder, division);
    let mut row = runner.feed(&prompt, 0, &[prompt.len() - 1]).remove(0);
    let mut expected = Vec::new();
    for at in prompt.len()..prompt.len() + 12 {
        let id = argmax(&row) as u32;
        expected.push(id);
        row = runner.feed(&[id], at, &[at]).remove(0);
    }
    let mut wanted = request(prompt, 12);
    wanted.logprobs = Some(3);
    let answer = answer(handle.submit(wanted).unwrap());
    assert_eq!(answer.ids, expected);
    assert_eq!(answer.logprobs.len(), 12);
    for (id, logprobs) in answer.ids.iter().zip(&answer.logprobs) {
        assert_eq!((logprobs.top[0].0, logprobs.top.len()), (*id, 3));
        assert!(logprobs.chosen <= 0.0 && logprobs.top[0].1 >= logprobs.top[2].1);
    }
    let pieces: String = handle.tokenizer().decode(&answer.ids);
    assert_eq!(answer.text.trim_start(), pieces.trim_start());
}

#[test]
fn stop_texts_end_an_answer_exactly_before_them() {
    let Some(handle) = started("engine::serving::stop", stage_plan(2), 4) else {
        return;
    };
    let free = answer(handle.submit(request(ids(30, 1), 40)).unwrap());
    let chars: Vec<(usize, char)> = free.text.char_indices().collect();
    let mut checked = 0;
    for from in (4..chars.len().saturating_sub(12)).step_by(9) {
        let stop = &free.text[chars[from].0..chars[from + 10].0];
        if free.text.find(stop) != Some(chars[from].0) || stop.contains(char::REPLACEMENT_CHARACTER) {
            continue;
        }
        let mut wanted = request(ids(30, 1), 40);
        wanted.stop = vec!["never in here, surely".to_owned(), stop.to_owned()];
        let stopped = answer(handle.submit(wanted).unwrap());
        assert_eq!(stopped.finish, Some(FinishReason::Stop));
        assert_eq!(stopped.text, free.text[..chars[from].0]);
        assert!(stopped.ids.len() < free.ids.len());
        assert_eq!(stopped.ids, free.ids[..stopped.ids.len()]);
        checked += 1;
    }
    assert!(checked >= 3, "only {checked} stop texts in {:?}", free.text);
}

#[test]
fn a_reader_who_does_not_read_holds_up_nobody() {
    let Some(handle) = started("engine::serving::slow", stage_plan(2), 8) else {
        return;
    };
    let unread = handle.submit(request(ids(5, 2), 200)).unwrap();
    for n in 0..6 {
        assert_eq!(
            answer(handle.submit(request(ids(9, n), 20)).unwrap()).ids.len(),
            20
        );
    }
    assert_eq!(answer(unread).ids.len(), 200);
}

#[test]
fn the_engine_reports_what_it_really_uses() {
    let test = "engine::serving::effective";
    let Some(path) = shared(test, TINY) else {
        return;
    };
    let cpus: CpuSet =
        edge_deploy::sys::affinity::allowed_cpus(edge_deploy::sys::affinity::current_thread_id())
            .unwrap()
            .iter()
            .take(2)
            .collect();
    let stage = StagePlan {
        threads: cpus.len(),
        cpus: cpus.clone(),
        pin: true,
        isa_cap: "scalar".to_owned(),
        huge_pages: true,
        ..stage_plan(3)
    };
    let plan = plan(&path, stage.clone(), 4);
    let card = plan.model.card.as_deref().unwrap();
    let mut seen = Vec::new();
    let handle = start(&plan, Weights::open(card).unwrap(), &mut |progress| {
        seen.push(progress);
    })
    .unwrap();
    let StartProgress::Weights(last) = seen.last().unwrap() else {
        panic!("{seen:?}")
    };
    assert_eq!(last.done, last.total, "every tensor is packed and counted");
    let effective = handle.effective().unwrap();
    let used = &effective.stages["decoder"];
    let expected: Vec<CpuSet> = cpus.iter().map(|cpu| CpuSet::range(cpu, cpu)).collect();
    assert_eq!(used.worker_cpus, expected);
    assert_eq!(used.threads, cpus.len());
    assert!(used.kernels.ends_with("scalar"), "{}", used.kernels);
    assert_eq!((used.context, used.max_seqs, used.prefill_batch), (256, 3, 16));
    assert_eq!(used.kv_dtype, Dtype::F16);
    let formula = edge_deploy::model::kv::kv_bytes(&card.decoder, 256, 3, 2, 16);
    assert_eq!(used.kv_bytes, formula);
    assert!(used.huge_pages);
    let weights: u64 = used.weight_bytes_by_format.values().map(|bytes| bytes.0).sum();
    let stored: u64 = card.tensors.iter().map(|tensor| tensor.bytes.0).sum();
    assert!(
        weights >= stored && weights < stored * 11 / 10,
        "{weights} of {stored}"
    );
    handle.shutdown(Duration::from_secs(5));
    assert_eq!(handle.effective().unwrap_err().code, Code::NotReady);
}

#[test]
fn a_plan_that_cannot_run_is_refused_and_says_why() {
    let test = "engine::serving::refused";
    let Some(path) = shared(test, TINY) else {
        return;
    };
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(&path, stage_plan(1), 1);
        let weights = Weights::open(plan.model.card.as_deref().unwrap()).unwrap();
        change(&mut plan);
        start(&plan, weights, &mut |_| {}).unwrap_err()
    };
    let stage = |change: fn(&mut StagePlan)| {
        refused(&move |plan: &mut Plan| change(plan.stages.get_mut("decoder").unwrap()))
    };
    assert_eq!(stage(|s| s.isa_cap = "avx9".to_owned()).code, Code::BadValue);
    assert_eq!(stage(|s| s.kv_dtype = Dtype::Bf16).code, Code::ModelUnsupported);
    assert_eq!(stage(|s| s.dtype = Dtype::Bf16).code, Code::PinUnmet);
    assert_eq!(stage(|s| s.weight_path = "int4".to_owned()).code, Code::PinUnmet);
    assert_eq!(stage(|s| s.threads = 0).code, Code::BadValue);
    assert_eq!(stage(|s| s.context = usize::MAX / 2).code, Code::ModelUnsupported);
    let no_card = refused(&|plan| plan.model.card = None);
    assert_eq!(no_card.code, Code::Internal);
    let wrong_shape = refused(&|plan| plan.model.card.as_mut().unwrap().decoder.ffn += 32);
    assert_eq!(wrong_shape.code, Code::ModelMalformed);
    assert!(
        wrong_shape.what.contains("blk.0.ffn_gate.weight") && wrong_shape.what.matches('[').count() == 2,
        "the tensor and both shapes: {}",
        wrong_shape.what
    );
    let missing = refused(&|plan| {
        let layers = &mut plan.model.card.as_mut().unwrap().decoder.layers;
        layers.push(layers[0].clone());
    });
    assert_eq!(missing.code, Code::ModelMalformed);
    assert!(
        missing.what.contains("`blk.3.") && missing.what.contains("missing"),
        "{missing}"
    );
}
