//! The list of every key of the plan: which field reads it back, and which test flips it.
//!
//! In: nothing. Out: [`KNOBS`], from which `docs/reference/knobs.md` and the table of `verify` are made.
//! Invariant: a test holds this list against a real plan, a running engine and the tests themselves, so a key without
//! a read-back or without a test that flips it does not get in.

use serde_json::Value;

/// One key of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The key; `*` stands for a stage's name.
    pub key: &'static str,
    /// How it is read back.
    pub readback: Readback,
    /// The test in `tests/it/engine/flips` that runs it at two values and sees the engine or the operating system
    /// differ; for a fact, the test that holds it.
    pub test: &'static str,
}

/// How a key is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readback {
    /// From this field of `GET /v1/edge/effective`.
    Field(&'static str),
    /// It changes nothing that runs; said why.
    Fact(&'static str),
}

const fn knob(key: &'static str, field: &'static str, test: &'static str) -> Knob {
    Knob {
        key,
        readback: Readback::Field(field),
        test,
    }
}

const fn fact(key: &'static str, why: &'static str, test: &'static str) -> Knob {
    Knob {
        key,
        readback: Readback::Fact(why),
        test,
    }
}

/// Every key, in the plan's own order.
pub const KNOBS: &[Knob] = &[
    fact(
        "schema",
        "version of the document; a reader refuses another",
        "documents_of_another_schema_or_digest_are_refused",
    ),
    fact(
        "digest",
        "computed anew by every reader, who refuses a document it does not match",
        "documents_of_another_schema_or_digest_are_refused",
    ),
    knob("model.name", "model.name", "name_is_what_requests_must_say"),
    knob("model.family", "model.family", "family_chooses_the_network"),
    fact(
        "model.profile",
        "tells which files were read; what they say is in the other keys",
        "profile_changes_only_what_it_says",
    ),
    knob("model.files", "model.files", "files_are_what_is_loaded"),
    knob(
        "model.chat_template",
        "model.chat_template",
        "chat_template_writes_the_prompt",
    ),
    knob(
        "model.sampling.temperature",
        "server.sampling.temperature",
        "sampling_defaults_change_answers",
    ),
    knob(
        "model.sampling.top_p",
        "server.sampling.top_p",
        "sampling_defaults_change_answers",
    ),
    knob(
        "model.sampling.top_k",
        "server.sampling.top_k",
        "sampling_defaults_change_answers",
    ),
    knob(
        "model.sampling.min_p",
        "server.sampling.min_p",
        "sampling_defaults_change_answers",
    ),
    knob(
        "model.sampling.repetition_penalty",
        "server.sampling.repetition_penalty",
        "sampling_defaults_change_answers",
    ),
    fact(
        "hardware_class",
        "chooses the policy that is derived with",
        "the_machine_is_named_as_probed",
    ),
    fact(
        "fingerprint",
        "names the machine that measurements hold for",
        "the_machine_is_named_as_probed",
    ),
    knob("stages.*.threads", "stages.*.threads", "threads_are_that_many"),
    knob("stages.*.cpus", "stages.*.worker_cpus", "cpus_hold_the_workers"),
    knob(
        "stages.*.pin",
        "stages.*.worker_cpus",
        "pin_binds_each_worker_to_one_cpu",
    ),
    knob(
        "stages.*.confine",
        "stages.*.worker_cpus",
        "confine_keeps_workers_within_the_set",
    ),
    knob(
        "stages.*.isa_cap",
        "stages.*.kernels",
        "isa_cap_changes_the_table",
    ),
    knob(
        "stages.*.dtype",
        "stages.*.dtype",
        "dtype_that_cannot_run_is_refused",
    ),
    knob(
        "stages.*.weight_path",
        "stages.*.weight_path",
        "weight_path_changes_how_weights_are_held",
    ),
    knob(
        "stages.*.kv_dtype",
        "stages.*.kv_dtype",
        "kv_dtype_changes_bytes_and_logits",
    ),
    knob(
        "stages.*.context",
        "stages.*.context",
        "context_bounds_requests_and_slots",
    ),
    knob("stages.*.max_seqs", "stages.*.max_seqs", "max_seqs_run_at_once"),
    knob(
        "stages.*.kv_bytes",
        "stages.*.kv_bytes",
        "kv_bytes_are_allocated_to_the_byte",
    ),
    knob(
        "stages.*.kv_block",
        "stages.*.kv_block",
        "kv_block_is_what_slots_are_rounded_to",
    ),
    knob(
        "stages.*.prefill_batch",
        "stages.*.prefill_batch",
        "prefill_batch_changes_the_number_of_passes",
    ),
    knob(
        "stages.*.huge_pages",
        "stages.*.huge_pages",
        "huge_pages_mark_the_weights",
    ),
    knob("server.host", "server.host", "host_and_port_are_bound"),
    knob("server.port", "server.port", "host_and_port_are_bound"),
    knob(
        "server.api_key_required",
        "server.api_key_required",
        "a_key_is_asked_for_only_where_required",
    ),
    knob(
        "server.max_queue",
        "server.max_queue",
        "max_queue_refuses_what_is_beyond",
    ),
    knob(
        "server.max_body_bytes",
        "server.max_body_bytes",
        "max_body_bytes_refuses_larger_bodies",
    ),
    knob(
        "server.read_timeout_ms",
        "server.read_timeout_ms",
        "read_timeout_gives_up_a_body",
    ),
    knob(
        "server.request_timeout_ms",
        "server.request_timeout_ms",
        "request_timeout_ends_an_answer",
    ),
    knob(
        "server.default_max_tokens",
        "server.default_max_tokens",
        "default_max_tokens_end_an_answer",
    ),
    knob(
        "deadlines.load_ms",
        "deadlines.load_ms",
        "load_deadline_ends_a_start",
    ),
    knob(
        "deadlines.warmup_ms",
        "deadlines.warmup_ms",
        "warmup_deadline_ends_a_start",
    ),
    knob(
        "deadlines.shutdown_ms",
        "deadlines.shutdown_ms",
        "shutdown_grace_lets_answers_finish",
    ),
    knob(
        "memory.items",
        "memory.items",
        "memory_follows_context_and_sequences",
    ),
    knob(
        "memory.loaded_bytes",
        "memory.anonymous_bytes",
        "memory_follows_context_and_sequences",
    ),
    knob(
        "memory.steady_bytes",
        "memory.anonymous_bytes",
        "memory_follows_context_and_sequences",
    ),
    knob(
        "memory.peak_bytes",
        "memory.peak_bytes",
        "memory_follows_context_and_sequences",
    ),
    knob(
        "memory.mapped_steady_bytes",
        "memory.file_bytes",
        "memory_follows_context_and_sequences",
    ),
    knob(
        "memory.mapped_bytes",
        "memory.file_bytes",
        "memory_follows_context_and_sequences",
    ),
    fact(
        "memory.available_bytes",
        "a reading of the machine before the start",
        "available_memory_bounds_the_plan",
    ),
    fact(
        "memory.reserve_bytes",
        "kept free by not planning with it",
        "available_memory_bounds_the_plan",
    ),
];

/// The entry of a key such as `stages.decoder.threads`.
#[must_use]
pub fn of(key: &str) -> Option<&'static Knob> {
    KNOBS
        .iter()
        .find(|knob| concrete(knob.key, key).is_some_and(|text| text == key))
}

/// `pattern` with the stage's name of `key` in the place of `*`.
fn concrete(pattern: &str, key: &str) -> Option<String> {
    match pattern.split_once('*') {
        None => Some(pattern.to_owned()),
        Some((head, tail)) => {
            let stage = key.strip_prefix("stages.")?.split('.').next()?;
            Some(format!("{head}{stage}{tail}"))
        }
    }
}

/// Path in `Effective` of what `key` reads back as.
#[must_use]
pub fn readback_path(key: &str) -> Option<String> {
    match of(key)?.readback {
        Readback::Field(path) => concrete(path, key),
        Readback::Fact(_) => None,
    }
}

/// Every key of a plan given as JSON, in its order. Reasons and warnings are no keys; lists count as one.
#[must_use]
pub fn keys(plan: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (name, value) in plan.as_object().into_iter().flatten() {
        if name != "explanations" && name != "warnings" {
            collect(name.clone(), value, &mut found);
        }
    }
    found
}

fn collect<'v>(key: String, value: &'v Value, found: &mut Vec<(String, &'v Value)>) {
    match value.as_object() {
        Some(members) => {
            for (name, value) in members {
                collect(format!("{key}.{name}"), value, found);
            }
        }
        None => found.push((key, value)),
    }
}

/// The value at a dotted path.
#[must_use]
pub fn at<'v>(root: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(root, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_found_whatever_the_stage_is_called() {
        assert_eq!(of("stages.talker.threads").unwrap().key, "stages.*.threads");
        assert_eq!(
            readback_path("stages.talker.cpus").unwrap(),
            "stages.talker.worker_cpus"
        );
        assert_eq!(readback_path("digest"), None);
        assert!(of("stages.talker.nothing").is_none() && of("server").is_none());
    }

    #[test]
    fn keys_of_a_document_are_its_leaves() {
        let plan =
            json!({"a": 1, "b": {"c": [1, 2], "d": {"e": null}}, "warnings": [1], "explanations": {"x": 1}});
        let names: Vec<String> = keys(&plan).into_iter().map(|(key, _)| key).collect();
        assert_eq!(names, ["a", "b.c", "b.d.e"]);
        assert_eq!(at(&plan, "b.c"), Some(&json!([1, 2])));
        assert_eq!(at(&plan, "b.x.y"), None);
    }
}
