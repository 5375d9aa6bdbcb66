//! Properties over random machines, models and pins.

use proptest::prelude::*;

use crate::base::Bytes;
use crate::derive::samples::card;
use crate::derive::samples::random::{some_asked, some_machine, some_shape};
use crate::derive::{DECODER, Options, decide, threads};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_keeps_every_pin_and_every_limit(
        hardware in some_machine(), shape in some_shape(), asked in some_asked(), force in any::<bool>()
    ) {
        let options = Options { force, ..Options::default() };
        let sample = card(&shape);
        let pins = asked.stage(DECODER);
        match decide(&hardware, &sample, &asked, options) {
            Ok(draft) => {
                let stage = &draft.stages[DECODER];
                let allowed = hardware.cpus.allowed.intersection(&hardware.cpus.online);
                prop_assert!(stage.cpus.value.is_subset(&allowed));
                prop_assert!(stage.threads.value >= 1 && stage.threads.value <= stage.cpus.value.len());
                if pins.cpus.is_none() {
                    prop_assert_eq!(stage.threads.value, stage.cpus.value.len());
                    prop_assert!(stage.cpus.value.is_subset(&threads::usable(&hardware).unwrap()));
                }
                if let Some(quota) = hardware.quota.cpus && !force {
                    prop_assert!(stage.threads.value <= (quota.floor() as usize).max(1));
                }
                for (pinned, value) in [
                    (&pins.threads, stage.threads.value),
                    (&pins.max_seqs, stage.max_seqs.value),
                ] {
                    prop_assert!(pinned.as_ref().is_none_or(|pin| pin.value == value));
                }
                if let Some(pin) = &pins.context {
                    let wanted = if pin.value == 0 { sample.context_train as usize } else { pin.value };
                    prop_assert_eq!(stage.context.value, wanted);
                }
                prop_assert!(pins.kv_bytes.as_ref().is_none_or(|pin| pin.value == stage.kv_bytes.value));
                prop_assert!(pins.cpus.as_ref().is_none_or(|pin| pin.value == stage.cpus.value));
                prop_assert!(pins.pin.as_ref().is_none_or(|pin| pin.value == stage.pin.value));
                prop_assert!(stage.context.value >= 1 && stage.max_seqs.value >= 1);
                let memory = &draft.memory;
                prop_assert!(force || memory.peak_bytes.0 + memory.reserve_bytes.0 <= memory.available_bytes.0);
                prop_assert!(memory.steady_bytes <= memory.peak_bytes);
                prop_assert!(pins.prefill_batch.as_ref().is_none_or(|pin| pin.value == stage.prefill_batch.value));
                prop_assert!(pins.kv_dtype.as_ref().is_none_or(|pin| pin.value == stage.kv_dtype.value));
                let limits = &asked.limits;
                prop_assert!(limits.max_threads.as_ref().is_none_or(|limit| stage.threads.value <= limit.value));
                prop_assert!(limits.max_context.as_ref().is_none_or(|limit| stage.context.value <= limit.value));
                prop_assert!(force || limits.memory_bytes.as_ref().is_none_or(|limit| memory.peak_bytes <= limit.value));
                prop_assert!(force || limits.kv_cache_bytes.as_ref().is_none_or(|limit| stage.kv_bytes.value <= limit.value));
            }
            Err(problems) => {
                prop_assert!(!problems.0.is_empty());
                for problem in &problems.0 {
                    prop_assert!(!problem.remedy.is_empty());
                }
            }
        }
    }

    #[test]
    fn more_memory_never_shortens_the_context(
        hardware in some_machine(), shape in some_shape(), asked in some_asked(), more in 0u64..(64 << 30)
    ) {
        let mut larger = hardware.clone();
        larger.memory.total_bytes = Bytes(hardware.memory.total_bytes.0 + more);
        larger.memory.available_bytes = Bytes(hardware.memory.available_bytes.0 + more);
        for node in &mut larger.topology.nodes {
            node.available_bytes = node.available_bytes.map(|free| Bytes(free.0 + more));
        }
        let sample = card(&shape);
        if let Ok(before) = decide(&hardware, &sample, &asked, Options::default()) {
            let after = decide(&larger, &sample, &asked, Options::default());
            prop_assert!(after.is_ok(), "refused with more memory: {}", after.unwrap_err());
            let after = after.unwrap();
            prop_assert!(after.stages[DECODER].context.value >= before.stages[DECODER].context.value);
        }
    }
}

#[test]
fn the_random_cases_reach_both_outcomes_and_every_bound() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut planned, mut refused, mut quota, mut memory, mut node) = (0, 0, 0, 0, 0);
    for _ in 0..1000 {
        let case = (some_machine(), some_shape(), some_asked())
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let Ok(draft) = decide(&case.0, &card(&case.1), &case.2, Options::default()) else {
            refused += 1;
            continue;
        };
        planned += 1;
        let stage = &draft.stages[DECODER];
        let by = |bound: &Option<String>, word: &str| {
            usize::from(bound.as_deref().is_some_and(|b| b.contains(word)))
        };
        quota += by(&stage.threads.bounded_by, "quota");
        memory += by(&stage.context.bounded_by, "memory") + by(&stage.max_seqs.bounded_by, "memory");
        node += by(&stage.cpus.bounded_by, "NUMA");
    }
    let counts = format!("planned {planned} refused {refused} quota {quota} memory {memory} node {node}");
    assert!(
        planned > 300 && refused > 100 && quota > 50 && memory > 50 && node > 20,
        "{counts}"
    );
}
