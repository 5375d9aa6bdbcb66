//! Properties over random machines, models and pins.

use proptest::prelude::*;

use crate::base::{Bytes, CpuSet};
use crate::derive::samples::{Shape, card, machine, pin, policy, with_nodes};
use crate::derive::{Asked, DECODER, Options, decide, threads};
use crate::model::card::TensorType;
use crate::probe::Hardware;
use crate::probe::hardware::{Confidence, Environment};

fn some_machine() -> impl Strategy<Value = Hardware> {
    let memory = (64u64 << 20)..(96u64 << 30);
    (
        (0usize..20, 0usize..14, 1usize..3),
        memory,
        proptest::option::of(0.05f64..24.0),
        (any::<u32>(), any::<u32>(), any::<u32>()),
        (0u8..3, 0u8..4, 1usize..4),
    )
        .prop_map(
            |(
                (big, little, siblings),
                memory,
                quota,
                (offline, forbidden, isolated),
                (sure, place, nodes),
            )| {
                let mut next = 0u32;
                let mut cores = |count: usize, width: usize| -> Vec<String> {
                    (0..count)
                        .map(|_| {
                            let first = next;
                            next += width as u32;
                            format!("{first}-{}", next - 1)
                        })
                        .collect()
                };
                let (big, little) = (cores(big.max(1), siblings), cores(little, 1));
                let (big, little): (Vec<&str>, Vec<&str>) = (
                    big.iter().map(String::as_str).collect(),
                    little.iter().map(String::as_str).collect(),
                );
                let mut kinds: Vec<(&str, &[&str])> = vec![("P", &big)];
                if !little.is_empty() {
                    kinds.push(("E", &little));
                }
                let mut hardware = machine(&kinds, Bytes(memory));
                let without = |mask: u32, set: &CpuSet| -> CpuSet {
                    // One bit in four, so that usually something is left.
                    set.iter()
                        .filter(|cpu| (mask & mask.rotate_left(7)) >> (cpu % 32) & 1 == 0)
                        .collect()
                };
                hardware.cpus.online = without(offline, &hardware.cpus.possible);
                hardware.cpus.allowed = without(forbidden, &hardware.cpus.possible);
                hardware.cpus.isolated = hardware
                    .cpus
                    .possible
                    .difference(&without(isolated, &hardware.cpus.possible));
                hardware.quota.cpus = quota;
                hardware.topology.kinds_confidence =
                    [Confidence::Low, Confidence::Medium, Confidence::High][sure as usize];
                hardware.environment = [
                    Environment::Bare,
                    Environment::Vm,
                    Environment::Wsl2,
                    Environment::Docker,
                ][place as usize];
                if nodes > 1 {
                    let last = hardware.cpus.possible.last().unwrap_or(0);
                    let lists: Vec<String> = (0..nodes as u32)
                        .map(|node| {
                            let own: CpuSet = (0..=last).filter(|cpu| cpu % nodes as u32 == node).collect();
                            own.to_string()
                        })
                        .collect();
                    let split: Vec<(&str, u64)> = lists
                        .iter()
                        .map(|list| (list.as_str(), memory / nodes as u64))
                        .collect();
                    hardware = with_nodes(hardware, &split);
                }
                hardware
            },
        )
}

fn some_shape() -> impl Strategy<Value = Shape> {
    let kinds = prop_oneof![
        Just(TensorType::F32),
        Just(TensorType::BF16),
        Just(TensorType::Q8_0),
        Just(TensorType::Q4_K),
        Just(TensorType::Q2_K)
    ];
    (
        1usize..80,
        1usize..16,
        prop_oneof![Just(64usize), Just(128), Just(256)],
        1u64..2_000_000,
        (kinds, (1u64 << 20)..(16u64 << 30)),
        proptest::option::of(1usize..8192),
    )
        .prop_map(|(layers, kv_heads, head_dim, context, weights, window)| Shape {
            layers,
            kv_heads,
            head_dim,
            context,
            weights,
            window,
        })
}

fn some_asked() -> impl Strategy<Value = Asked> {
    (
        proptest::option::weighted(0.15, 0usize..12),
        proptest::option::weighted(0.15, (0u32..30, 0u32..6)),
        proptest::option::weighted(0.15, any::<bool>()),
        proptest::option::weighted(0.15, 0usize..60_000),
        proptest::option::weighted(0.15, 0usize..12),
        proptest::option::weighted(0.15, 0u64..(16 << 30)),
        (1usize..2000, 512usize..100_000, 1usize..16),
    )
        .prop_map(|(count, list, bind, context, seqs, cache, (batch, cap, most))| {
            let mut asked = Asked::nothing(policy());
            asked.policy.prefill_batch = batch;
            asked.policy.context_cap = cap;
            asked.policy.max_seqs = most;
            asked.decoder().threads = count.map(|n| pin("stages.decoder.threads", n));
            asked.decoder().cpus =
                list.map(|(first, more)| pin("stages.decoder.cpus", CpuSet::range(first, first + more)));
            asked.decoder().pin = bind.map(|yes| pin("stages.decoder.pin", yes));
            asked.decoder().context = context.map(|n| pin("model.context", n));
            asked.decoder().max_seqs = seqs.map(|n| pin("stages.decoder.max_seqs", n));
            asked.decoder().kv_bytes = cache.map(|n| pin("stages.decoder.kv_bytes", Bytes(n)));
            asked
        })
}

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
