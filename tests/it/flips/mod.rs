//! Every key of the plan, flipped: what runs with one value is held against what runs with another.
//!
//! In: `plan::knobs::KNOBS`. Out: a test for every entry. Invariant: each test sees the engine, the server or the
//! operating system differ, not only the value repeated; a key without a read-back or without a test fails the build.

mod decoder;
mod facts;
pub mod program;
mod serving;
mod starting;

use std::collections::BTreeSet;

use edge_deploy::plan::knobs::{self, KNOBS, Readback};
use serde_json::Value;

use program::Program;

/// Makes a test of every function and the list of their names, so that no entry of the list is anything but a test.
macro_rules! flips {
    ($($module:ident :: $name:ident),* $(,)?) => {
        const FLIPS: &[&str] = &[$(stringify!($name)),*];
        mod flip {
            $(#[test] fn $name() { super::$module::$name(); })*
        }
    };
}

flips! {
    facts::documents_of_another_schema_or_digest_are_refused,
    facts::profile_changes_only_what_it_says,
    facts::the_machine_is_named_as_probed,
    facts::available_memory_bounds_the_plan,
    facts::memory_follows_context_and_sequences,
    decoder::family_chooses_the_network,
    decoder::files_are_what_is_loaded,
    decoder::isa_cap_changes_the_table,
    decoder::dtype_that_cannot_run_is_refused,
    decoder::weight_path_changes_how_weights_are_held,
    decoder::kv_dtype_changes_bytes_and_logits,
    decoder::context_bounds_requests_and_slots,
    decoder::max_seqs_run_at_once,
    decoder::kv_bytes_are_allocated_to_the_byte,
    decoder::kv_block_is_what_slots_are_rounded_to,
    decoder::prefill_batch_changes_the_number_of_passes,
    starting::threads_are_that_many,
    starting::cpus_hold_the_workers,
    starting::pin_binds_each_worker_to_one_cpu,
    starting::confine_keeps_workers_within_the_set,
    starting::huge_pages_mark_the_weights,
    starting::host_and_port_are_bound,
    starting::load_deadline_ends_a_start,
    starting::warmup_deadline_ends_a_start,
    serving::name_is_what_requests_must_say,
    serving::chat_template_writes_the_prompt,
    serving::sampling_defaults_change_answers,
    serving::a_key_is_asked_for_only_where_required,
    serving::max_queue_refuses_what_is_beyond,
    serving::max_body_bytes_refuses_larger_bodies,
    serving::read_timeout_gives_up_a_body,
    serving::request_timeout_ends_an_answer,
    serving::default_max_tokens_end_an_answer,
    serving::shutdown_grace_lets_answers_finish,
}

/// Keys of a plan with the stage's name replaced by `*`.
fn patterns(plan: &Value) -> BTreeSet<String> {
    let general = |key: String| match key.strip_prefix("stages.").and_then(|rest| rest.split_once('.')) {
        Some((_, knob)) => format!("stages.*.{knob}"),
        None => key,
    };
    knobs::keys(plan)
        .into_iter()
        .map(|(key, _)| general(key))
        .collect()
}

#[test]
fn every_key_of_a_plan_has_a_readback_and_a_test_that_flips_it() {
    let program = Program::start(&[]);
    let listed: BTreeSet<String> = KNOBS.iter().map(|knob| knob.key.to_owned()).collect();
    assert_eq!(listed.len(), KNOBS.len(), "a key stands twice");
    let planned = patterns(&program.said["plan"]);
    assert_eq!(
        planned.difference(&listed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "keys of the plan that are not in KNOBS: add the read-back and a test that flips them"
    );
    assert_eq!(
        listed.difference(&planned).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "entries of KNOBS that no plan has"
    );
    let tested: BTreeSet<&str> = KNOBS.iter().map(|knob| knob.test).collect();
    let tests: BTreeSet<&str> = FLIPS.iter().copied().collect();
    assert_eq!(tested, tests, "tests that KNOBS names, and tests there are");
    // The read-back is really in what a running server answers.
    let effective = program.get("/v1/edge/effective");
    for (key, _) in knobs::keys(&program.said["plan"]) {
        match knobs::of(&key).unwrap().readback {
            Readback::Field(_) => {
                let path = knobs::readback_path(&key).unwrap();
                let value = knobs::at(&effective, &path);
                assert!(
                    value.is_some_and(|value| !value.is_null()),
                    "{key}: {path} is not in {effective}"
                );
            }
            Readback::Fact(why) => assert!(!why.is_empty()),
        }
    }
    assert_eq!(program.stop(), Some(0));
}
