//! However the work is divided, the logits are the same bit for bit; and a ring sees what a full cache sees.

use edge_deploy::engine::kv_cache::{KvCache, KvSizes};
use edge_deploy::engine::nets::Row;
use edge_deploy::engine::nets::load::Held;
use edge_deploy::model::card::{AttentionKind, DecoderSpec};
use edge_deploy::model::kv;
use edge_deploy::plan::Dtype;

use super::support::{
    Division, Loaded, Runner, argmax, cached_model, golden_json, ids_of, logits, max_difference, same_bits,
};
use crate::support::tiny::TinyModel;
use crate::support::{alone, rss_bytes, shared};

/// The golden prompt of a tiny model, repeated with changes to `length` tokens.
fn tiny(test: &str, name: &str, length: usize) -> Option<(Loaded, Vec<u32>)> {
    let path = shared(test, &format!("golden/llm/{name}.gguf"))?;
    let all = golden_json(test, "golden/llm/tiny_models.json")?;
    let ids = ids_of(&all[name]["ids"]);
    let loaded = Loaded::open(&path);
    let vocab = u32::try_from(loaded.decoder.spec().vocab).unwrap();
    let long = (0..length)
        .map(|at| (ids[at % ids.len()] + (at / ids.len()) as u32 * 17) % vocab)
        .collect();
    Some((loaded, long))
}

fn every_division_agrees(loaded: &Loaded, ids: &[u32], context: usize) {
    let wanted: Vec<usize> = vec![0, ids.len() / 2, ids.len() - 1];
    for dtype in [Dtype::F32, Dtype::F16] {
        let division = |threads, chunk| Division {
            threads,
            chunk,
            dtype,
            context,
            max_seqs: 1,
        };
        let whole = logits(&loaded.decoder, division(1, ids.len()), ids, &wanted);
        for (threads, chunk) in [(2, ids.len()), (1, 1), (2, 1), (1, 7), (3, 7), (2, 64)] {
            let parts = logits(&loaded.decoder, division(threads, chunk), ids, &wanted);
            for (at, (a, b)) in whole.iter().zip(&parts).enumerate() {
                assert!(
                    same_bits(a, b),
                    "{} {dtype:?}: {threads} threads, chunks of {chunk}, position {}: differs by {}",
                    loaded.card.name,
                    wanted[at],
                    max_difference(a, b)
                );
            }
        }
    }
}

#[test]
fn threads_chunks_and_kv_types_change_no_bit_of_tiny_models() {
    for name in ["tiny-qwen3-f32", "tiny-spark2_5-f32"] {
        if let Some((loaded, ids)) = tiny("engine::division::tiny", name, 100) {
            every_division_agrees(&loaded, &ids, 128);
        }
    }
}

#[test]
fn threads_chunks_and_kv_types_change_no_bit_of_real_models() {
    for (file, key) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-q4_1"),
        ("gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4_k_m"),
    ] {
        let test = "engine::division::real";
        let (Some(path), Some(all)) = (
            cached_model(test, file),
            golden_json(test, "golden/llm/real_models.json"),
        ) else {
            continue;
        };
        let prompts = all[key].as_array().unwrap();
        let ids: Vec<u32> = prompts.iter().flat_map(|prompt| ids_of(&prompt["ids"])).collect();
        every_division_agrees(&Loaded::open(&path), &ids, 64);
    }
}

/// Four sequences of different length share passes, prompts beside answers; each gets what it gets alone.
fn batch_agrees(loaded: &Loaded, ids: &[u32], dtype: Dtype) {
    let division = Division {
        threads: 2,
        chunk: 16,
        dtype,
        context: 128,
        max_seqs: 4,
    };
    let parts: Vec<&[u32]> = [0..9, 9..50, 3..4, 20..60].map(|range| &ids[range]).to_vec();
    let steps = 6;
    let alone: Vec<Vec<Vec<f32>>> = parts
        .iter()
        .map(|part| {
            let mut runner = Runner::new(&loaded.decoder, division);
            let mut rows = runner.feed(part, 0, &[part.len() - 1]);
            for step in 1..steps {
                let token = argmax(&rows[step - 1]) as u32;
                let at = part.len() + step - 1;
                rows.extend(runner.feed(&[token], at, &[at]));
            }
            rows
        })
        .collect();
    let mut runner = Runner::new(&loaded.decoder, division);
    let mut done = [0usize; 4];
    let mut together: Vec<Vec<Vec<f32>>> = vec![Vec::new(); 4];
    while together.iter().any(|rows| rows.len() < steps) {
        let mut rows = Vec::new();
        let mut owners = Vec::new();
        // Slots in falling order and uneven chunks, so that rows stand elsewhere than alone.
        for sequence in (0..4).rev().filter(|&s| together[s].len() < steps) {
            let part = parts[sequence];
            if done[sequence] < part.len() {
                let end = part.len().min(done[sequence] + 5 + sequence);
                for position in done[sequence]..end {
                    let logits = position + 1 == part.len();
                    rows.push(Row {
                        sequence,
                        position,
                        token: part[position],
                        logits,
                    });
                    if logits {
                        owners.push(sequence);
                    }
                }
                done[sequence] = end;
            } else {
                rows.push(Row {
                    sequence,
                    position: done[sequence],
                    token: argmax(together[sequence].last().unwrap()) as u32,
                    logits: true,
                });
                owners.push(sequence);
                done[sequence] += 1;
            }
        }
        for (sequence, row) in owners.into_iter().zip(runner.pass(&rows)) {
            together[sequence].push(row);
        }
    }
    for (sequence, (a, b)) in alone.iter().zip(&together).enumerate() {
        for (step, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(
                same_bits(a, b),
                "{}: sequence {sequence}, step {step}",
                loaded.card.name
            );
        }
    }
}

#[test]
fn a_batch_changes_no_bit_of_its_sequences() {
    for name in ["tiny-qwen3-f32", "tiny-spark2_5-f32"] {
        if let Some((loaded, ids)) = tiny("engine::division::batch", name, 100) {
            batch_agrees(&loaded, &ids, Dtype::F32);
            batch_agrees(&loaded, &ids, Dtype::F16);
        }
    }
}

#[test]
fn a_reused_sequence_sees_nothing_of_the_one_before() {
    let Some((loaded, ids)) = tiny("engine::division::reuse", "tiny-spark2_5-f32", 100) else {
        return;
    };
    let fresh = logits(&loaded.decoder, Division::default(), &ids[50..60], &[9]);
    let mut runner = Runner::new(&loaded.decoder, Division::default());
    runner.feed(&ids, 0, &[]);
    assert!(same_bits(&fresh[0], &runner.feed(&ids[50..60], 0, &[9])[0]));
}

/// The same network with every layer's cache as long as the context: nothing is ever overwritten.
fn keep_all(spec: &DecoderSpec) -> DecoderSpec {
    let mut spec = spec.clone();
    for layer in &mut spec.layers {
        layer.attention = AttentionKind::Full;
    }
    spec
}

#[test]
fn a_ring_sees_what_a_full_cache_with_a_mask_sees() {
    let test = "engine::division::ring";
    let (Some(path), Some(all)) = (
        cached_model(test, "gemma-3-270m-q4_k_m.gguf"),
        golden_json(test, "golden/llm/real_models.json"),
    ) else {
        return;
    };
    let mut loaded = Loaded::open(&path);
    let prompts = all["gemma3-270m-q4_k_m"].as_array().unwrap();
    let text: Vec<u32> = prompts.iter().flat_map(|prompt| ids_of(&prompt["ids"])).collect();
    let ids: Vec<u32> = text.iter().copied().cycle().take(700).collect();
    let division = Division {
        threads: 2,
        chunk: 96,
        context: 704,
        ..Division::default()
    };
    let wanted = [510, 511, 512, 640, 699];
    let ring = logits(&loaded.decoder, division, &ids, &wanted);
    let sizes = KvSizes {
        context: division.context,
        max_seqs: 1,
        prefill_batch: division.chunk,
        dtype: division.dtype,
    };
    let mut runner = Runner::new(&loaded.decoder, division);
    assert!(
        runner.cache.tokens_by_layer().contains(&640),
        "the ring is shorter than the prompt"
    );
    runner.cache = KvCache::new(&keep_all(loaded.decoder.spec()), sizes).unwrap();
    assert!(runner.cache.tokens_by_layer().iter().all(|&n| n == 704));
    let full = runner.feed(&ids, 0, &wanted);
    for (at, (a, b)) in ring.iter().zip(&full).enumerate() {
        let difference = max_difference(a, b);
        assert!(difference <= 1e-4, "position {}: {difference}", wanted[at]);
    }
    // The comparison would notice a window that is one too short.
    drop(runner);
    for layer in &mut loaded.card.decoder.layers {
        if let AttentionKind::Sliding { window } = &mut layer.attention {
            *window -= 1;
        }
    }
    let weights = edge_deploy::model::Weights::open(&edge_deploy::model::inspect(&path).unwrap()).unwrap();
    let shorter = edge_deploy::engine::nets::decoder::Decoder::load(
        &loaded.card,
        &weights,
        Held::default(),
        &mut |_| {},
    )
    .unwrap();
    let other = logits(&shorter, division, &ids, &wanted);
    assert!(
        max_difference(&ring[0], &other[0]) <= 1e-4,
        "512 keys are not there yet"
    );
    assert!(max_difference(&ring[4], &other[4]) > 1e-3);
}

#[test]
fn the_cache_allocates_what_the_formula_says() {
    assert_eq!(kv::BLOCK, edge_deploy::engine::kernels::KV_BLOCK);
    for name in ["tiny-qwen3-f32", "tiny-spark2_5-f32"] {
        let Some((loaded, _)) = tiny("engine::division::bytes", name, 1) else {
            continue;
        };
        for (context, max_seqs, prefill_batch, dtype) in [
            (1, 1, 1, Dtype::F32),
            (100, 3, 7, Dtype::F16),
            (4096, 2, 128, Dtype::F16),
        ] {
            let spec = loaded.decoder.spec();
            let sizes = KvSizes {
                context,
                max_seqs,
                prefill_batch,
                dtype,
            };
            let cache = KvCache::new(spec, sizes).unwrap();
            let expected = kv::kv_bytes(spec, context, max_seqs, dtype.bytes(), prefill_batch);
            assert_eq!(cache.bytes(), expected, "{name}");
            assert_eq!(
                cache.tokens_by_layer(),
                kv::slots_by_layer(spec, context, prefill_batch)
            );
        }
    }
}

#[test]
fn rows_that_do_not_fit_are_refused_before_anything_is_written() {
    let Some((loaded, ids)) = tiny("engine::division::rows", "tiny-qwen3-f32", 100) else {
        return;
    };
    let division = Division {
        chunk: 4,
        context: 64,
        max_seqs: 2,
        ..Division::default()
    };
    let mut runner = Runner::new(&loaded.decoder, division);
    let row = |sequence, position, token| Row {
        sequence,
        position,
        token,
        logits: true,
    };
    let before = runner.feed(&ids[..4], 0, &[3]);
    for bad in [
        vec![row(2, 0, 1)],
        vec![row(0, 64, 1)],
        vec![row(0, 0, u32::MAX)],
        vec![row(1, 0, 1), row(1, 2, 1)],
        vec![row(0, 4, 1), row(1, 0, 1), row(0, 5, 1)],
        (0..5).map(|at| row(1, at, 1)).collect(),
    ] {
        let result = loaded.decoder.forward(
            runner.kernels,
            &runner.team,
            &mut runner.cache,
            &mut runner.workspace,
            &bad,
        );
        assert!(result.is_err(), "{bad:?}");
    }
    assert!(runner.pass(&[]).is_empty());
    assert!(same_bits(&before[0], &runner.feed(&ids[..4], 0, &[3])[0]));
}

#[test]
fn a_cache_takes_memory_as_it_is_written() {
    if !alone("engine::division::a_cache_takes_memory_as_it_is_written") {
        return;
    }
    let mut spec = TinyModel::new("llama", 1).spec;
    spec.layers = vec![spec.layers[0].clone(); 30];
    spec.head_dim = 64;
    spec.value_dim = 64;
    let sizes = KvSizes {
        context: 8192,
        max_seqs: 4,
        prefill_batch: 64,
        dtype: Dtype::F16,
    };
    let before = rss_bytes();
    let mut cache = KvCache::new(&spec, sizes).unwrap();
    let row = vec![0.5; spec.kv_heads * 64];
    for layer in 0..30 {
        for sequence in 0..4 {
            cache.layer(layer).store(sequence, 0, &row, &row);
        }
    }
    // One page for each layer, sequence and head of keys and of values, and the system's own tables. In pages of
    // 2 MiB it would be nearly everything.
    let pages = 30 * 4 * spec.kv_heads as u64 * 2;
    let bound = 2 * pages * rustix::param::page_size() as u64 + (4 << 20);
    let grown = rss_bytes().saturating_sub(before);
    assert!(
        grown <= bound && bound < cache.bytes().0,
        "{grown} of {}",
        cache.bytes()
    );
}
