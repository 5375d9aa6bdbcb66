//! Settling: a draft's decisions become the plan's values, each with its explanation.
//!
//! In: [`Draft`]. Out: [`Plan`] with digest. Invariant: every leaf of the plan has an explanation; a value and its
//! explanation come from the same decision, so they cannot differ.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explain::{Explanation, json_of};
use super::{Deadlines, ModelPlan, Plan, SCHEMA, SamplingPlan, ServerPlan, StagePlan};
use crate::base::KeyPath;
use crate::derive::deadlines::DeadlineDraft;
use crate::derive::server::{SamplingDraft, ServerDraft};
use crate::derive::{Decision, Draft, Ledger, ModelDraft, StageDraft};

/// Collects explanations while values are taken out of decisions.
#[derive(Default)]
struct Book(BTreeMap<KeyPath, Explanation>);

impl Book {
    /// The decision's value; its reason goes into the book.
    fn take<T: Serialize>(&mut self, key: &str, decision: Decision<T>) -> T {
        let key = KeyPath::new(key);
        let explanation = Explanation::of(&key, &decision);
        self.0.insert(key, explanation);
        decision.value
    }

    /// Explains a value that follows from others.
    fn note<T: Serialize>(&mut self, key: &str, value: &T, rule: &str, because: impl Into<String>) {
        self.take(key, Decision::derived(json_of(value), rule, because));
    }
}

impl Plan {
    /// Takes the values out of the decisions and keeps the reasons.
    #[must_use]
    pub fn settle(draft: Draft) -> Self {
        let mut book = Book::default();
        let stages = draft
            .stages
            .into_iter()
            .map(|(name, stage)| {
                let plan = settle_stage(&mut book, &name, stage);
                (name, plan)
            })
            .collect();
        let mut plan = Self {
            schema: SCHEMA,
            digest: String::new(),
            model: settle_model(&mut book, draft.model),
            hardware_class: book.take("hardware_class", draft.hardware_class),
            fingerprint: book.take("fingerprint", draft.fingerprint),
            stages,
            server: settle_server(&mut book, draft.server),
            deadlines: settle_deadlines(&mut book, draft.deadlines),
            memory: draft.memory,
            explanations: BTreeMap::new(),
            warnings: draft.warnings,
        };
        explain_ledger(&mut book, &plan.memory, &draft.memory_because);
        plan.digest = plan.computed_digest();
        book.note(
            "schema",
            &plan.schema,
            "document",
            "version of the plan's JSON form",
        );
        book.note(
            "digest",
            &plan.digest,
            "document",
            "SHA-256 over every knob of model, stages, server and deadlines; equal plans run alike",
        );
        plan.explanations = book.0;
        plan
    }
}

fn settle_model(book: &mut Book, draft: ModelDraft) -> ModelPlan {
    ModelPlan {
        name: book.take("model.name", draft.name),
        family: book.take("model.family", draft.family),
        profile: book.take("model.profile", draft.profile),
        files: book.take("model.files", draft.files),
        chat_template: book.take("model.chat_template", draft.chat_template),
        sampling: settle_sampling(book, draft.sampling),
        card: Some(draft.card),
    }
}

fn settle_sampling(book: &mut Book, draft: SamplingDraft) -> SamplingPlan {
    SamplingPlan {
        temperature: book.take("model.sampling.temperature", draft.temperature),
        top_p: book.take("model.sampling.top_p", draft.top_p),
        top_k: book.take("model.sampling.top_k", draft.top_k),
        min_p: book.take("model.sampling.min_p", draft.min_p),
        repetition_penalty: book.take("model.sampling.repetition_penalty", draft.repetition_penalty),
    }
}

fn settle_stage(book: &mut Book, name: &str, draft: StageDraft) -> StagePlan {
    let key = |knob: &str| format!("stages.{name}.{knob}");
    StagePlan {
        threads: book.take(&key("threads"), draft.threads),
        cpus: book.take(&key("cpus"), draft.cpus),
        pin: book.take(&key("pin"), draft.pin),
        confine: book.take(&key("confine"), draft.confine),
        isa_cap: book.take(&key("isa_cap"), draft.isa_cap),
        dtype: book.take(&key("dtype"), draft.dtype),
        weight_path: book.take(&key("weight_path"), draft.weight_path),
        kv_dtype: book.take(&key("kv_dtype"), draft.kv_dtype),
        context: book.take(&key("context"), draft.context),
        max_seqs: book.take(&key("max_seqs"), draft.max_seqs),
        kv_bytes: book.take(&key("kv_bytes"), draft.kv_bytes),
        kv_block: book.take(&key("kv_block"), draft.kv_block),
        prefill_batch: book.take(&key("prefill_batch"), draft.prefill_batch),
        huge_pages: book.take(&key("huge_pages"), draft.huge_pages),
    }
}

fn settle_server(book: &mut Book, draft: ServerDraft) -> ServerPlan {
    ServerPlan {
        host: book.take("server.host", draft.host),
        port: book.take("server.port", draft.port),
        api_key_required: book.take("server.api_key_required", draft.api_key_required),
        max_queue: book.take("server.max_queue", draft.max_queue),
        max_body_bytes: book.take("server.max_body_bytes", draft.max_body_bytes),
        read_timeout_ms: book.take("server.read_timeout_ms", draft.read_timeout_ms),
        request_timeout_ms: book.take("server.request_timeout_ms", draft.request_timeout_ms),
        default_max_tokens: book.take("server.default_max_tokens", draft.default_max_tokens),
    }
}

fn settle_deadlines(book: &mut Book, draft: DeadlineDraft) -> Deadlines {
    Deadlines {
        load_ms: book.take("deadlines.load_ms", draft.load),
        warmup_ms: book.take("deadlines.warmup_ms", draft.warmup),
        shutdown_ms: book.take("deadlines.shutdown_ms", draft.shutdown),
    }
}

fn explain_ledger(book: &mut Book, ledger: &Ledger, because: &str) {
    let several = ledger.several_stages();
    book.note(
        "memory.items",
        &ledger.items,
        "memory.ledger",
        format!(
            "{} items, largest first, each with its own reason; sums count anonymous memory",
            ledger.items.len()
        ),
    );
    let listed = |steady: bool| {
        let items = ledger
            .items
            .iter()
            .filter(|item| item.anonymous && item.bytes.0 > 0 && (item.steady || !steady));
        let listed: Vec<String> = items
            .map(|item| format!("{} {}", item.label(several), item.bytes))
            .collect();
        listed.join(" + ")
    };
    book.note(
        "memory.loaded_bytes",
        &ledger.loaded_bytes,
        "memory.ledger",
        "weights, tokenizer, process and the first block of the cache; the rest is touched as sequences grow",
    );
    book.note(
        "memory.mapped_steady_bytes",
        &ledger.mapped_steady_bytes,
        "memory.ledger",
        "the program's own pages; the weight files are given back once they are laid out",
    );
    book.note(
        "memory.steady_bytes",
        &ledger.steady_bytes,
        "memory.ledger",
        format!("once every sequence has filled its context: {}", listed(true)),
    );
    book.note(
        "memory.peak_bytes",
        &ledger.peak_bytes,
        "memory.ledger",
        format!(
            "at any time, loading included: {}; weights are laid out straight from the mapped files, so no second copy exists, and what building the tokenizer needs is given back before",
            listed(true)
        ),
    );
    book.note(
        "memory.mapped_bytes",
        &ledger.mapped_bytes,
        "memory.ledger",
        "pages of the weight files while they are read; the kernel drops them when memory is short, so they are in no sum",
    );
    let spare = ledger
        .available_bytes
        .0
        .saturating_sub(ledger.reserve_bytes.0)
        .saturating_sub(ledger.peak_bytes.0);
    book.note(
        "memory.available_bytes",
        &ledger.available_bytes,
        "memory.available",
        format!(
            "{because}; beyond the peak of {} there are {} left",
            ledger.peak_bytes,
            crate::base::Bytes(spare)
        ),
    );
    book.note(
        "memory.reserve_bytes",
        &ledger.reserve_bytes,
        "memory.reserve",
        because,
    );
}
