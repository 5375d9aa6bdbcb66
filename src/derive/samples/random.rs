//! Random machines, models and pins.
//!
//! In: proptest's choices. Out: cases for the tests of this room and of `plan`. Invariant: built in tests only.

use proptest::prelude::*;

use super::{Shape, machine, pin, policy, with_nodes};
use crate::base::{Bytes, CpuSet, Dtype};
use crate::config::Priority;
use crate::derive::Asked;
use crate::model::card::TensorType;
use crate::probe::Hardware;
use crate::probe::hardware::{Confidence, Environment};

pub(crate) fn some_machine() -> impl Strategy<Value = Hardware> {
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

pub(crate) fn some_shape() -> impl Strategy<Value = Shape> {
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
        2u64..2_000_000,
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

pub(crate) fn some_asked() -> impl Strategy<Value = Asked> {
    (
        proptest::option::weighted(0.15, 0usize..12),
        proptest::option::weighted(0.15, (0u32..30, 0u32..6)),
        proptest::option::weighted(0.15, any::<bool>()),
        proptest::option::weighted(0.15, 0usize..60_000),
        proptest::option::weighted(0.15, 0usize..12),
        proptest::option::weighted(0.15, 0u64..(16 << 30)),
        (1usize..2000, 512usize..100_000, 1usize..16),
        (
            proptest::option::weighted(0.1, 1usize..16),
            proptest::option::weighted(0.1, (64u64 << 20)..(32 << 30)),
            proptest::option::weighted(0.1, 2usize..20_000),
            proptest::option::weighted(0.1, (1u64 << 20)..(8 << 30)),
            proptest::option::weighted(0.1, 1usize..600),
            proptest::option::weighted(0.1, any::<bool>()),
        ),
    )
        .prop_map(
            |(count, list, bind, context, seqs, cache, (batch, cap, most), limits)| {
                let mut asked = Asked::nothing(policy());
                let priorities = [
                    None,
                    Some(Priority::Quality),
                    Some(Priority::Fast),
                    Some(Priority::Agentic),
                ];
                asked.priority = priorities[batch % 4].map(|priority| pin("priority", priority));
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
                let (threads, memory, tokens, caches, rows, wide) = limits;
                asked.limits.max_threads = threads.map(|n| pin("limits.max_threads", n));
                asked.limits.memory_bytes = memory.map(|n| pin("limits.memory_bytes", Bytes(n)));
                asked.limits.max_context = tokens.map(|n| pin("limits.max_context", n));
                asked.limits.kv_cache_bytes = caches.map(|n| pin("limits.kv_cache_bytes", Bytes(n)));
                asked.decoder().prefill_batch = rows.map(|n| pin("stages.decoder.prefill_batch", n));
                asked.decoder().kv_dtype = wide.map(|wide| {
                    pin(
                        "stages.decoder.kv_dtype",
                        if wide { Dtype::F32 } else { Dtype::F16 },
                    )
                });
                asked
            },
        )
}
