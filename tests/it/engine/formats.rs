//! One network in every form files come in: GGUF and safetensors, and every type of weights.
//!
//! In: small random networks. Out: the same logits, within what the form's arithmetic allows.
//! Invariant: what is compared with is always the same values as F32.

use std::path::Path;

use edge_deploy::derive::weight_path;
use edge_deploy::engine::kernels::{available, dequant};
use edge_deploy::model::card::TensorType;
use edge_deploy::model::weight_path::WeightPath;

use super::support::{Division, Loaded, Runner, argmax, cosine, max_difference};
use crate::support::gguf::{encode, random_blocks};
use crate::support::tiny::{FAMILIES, Noise, TinyModel};

/// Longer than the small models' windows.
const TOKENS: usize = 40;

/// Logits of some positions of one prompt.
fn logits(loaded: &Loaded, kernels: &str) -> Vec<Vec<f32>> {
    let vocab = u32::try_from(loaded.decoder.spec().vocab).unwrap();
    let ids: Vec<u32> = (0..TOKENS as u32).map(|at| (at * 37 + 5) % vocab).collect();
    let mut runner = Runner::with_kernels(&loaded.decoder, Division::default(), kernels);
    runner.feed(&ids, 0, &[0, 7, 8, 21, TOKENS - 1])
}

fn similarity(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    cosine(pairs.map(|(a, b)| (f64::from(*a), f64::from(*b))))
}

#[test]
fn a_folder_and_a_gguf_file_of_one_network_give_the_same_logits() {
    for family in FAMILIES {
        for dtype in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let model = TinyModel::new(family, 11).rounded(dtype);
            let folder = tempfile::tempdir().unwrap();
            model.write_safetensors_as(folder.path(), 3, dtype);
            let elsewhere = tempfile::tempdir().unwrap();
            let file = Loaded::open(&model.write_gguf(elsewhere.path()));
            let folder = Loaded::open(folder.path());
            assert_eq!(folder.card.tensors[0].dtype, dtype);
            for kernels in available() {
                let (a, b) = (logits(&file, kernels), logits(&folder, kernels));
                // This table rounds the activations that meet BF16.
                if dtype == TensorType::BF16 && kernels.ends_with("avx512_bf16") {
                    let similarity = similarity(&a, &b);
                    assert!(similarity >= 0.999, "{family} {dtype:?} {kernels}: {similarity}");
                    continue;
                }
                for (a, b) in a.iter().zip(&b) {
                    let difference = max_difference(a, b);
                    assert!(difference <= 1e-4, "{family} {dtype:?} {kernels}: {difference}");
                }
            }
        }
    }
}

/// A Llama with every matrix in `dtype`, and the same values as F32; both written into `folder`.
fn in_type(dtype: TensorType, folder: &Path) -> (Loaded, Loaded) {
    let model = TinyModel::llama_in_blocks(3);
    let mut noise = Noise(1000 + dtype as u64);
    let mut values = Vec::new();
    let mut stored = |shape: &[u64], own: &[f32]| {
        if shape.len() == 1 {
            values.push(own.to_vec());
            return (TensorType::F32, encode(TensorType::F32, own));
        }
        let bytes = if dtype.block_len() == 1 {
            encode(dtype, own)
        } else {
            let rms = 1.0 / (shape[1] as f32).sqrt();
            random_blocks(dtype, own.len(), rms, &mut || noise.bits())
        };
        let mut read = vec![0.0; own.len()];
        dequant::dequantise(dtype, &bytes, &mut read).unwrap();
        values.push(read);
        (dtype, bytes)
    };
    let packed = folder.join("packed.gguf");
    model.gguf_as(&mut stored).write(&packed);
    let mut values = values.into_iter();
    let plain = folder.join("plain.gguf");
    model
        .gguf_as(&mut |_, _| (TensorType::F32, encode(TensorType::F32, &values.next().unwrap())))
        .write(&plain);
    (Loaded::open(&packed), Loaded::open(&plain))
}

#[test]
fn every_type_of_weights_gives_the_logits_of_its_values() {
    for dtype in TensorType::ALL {
        let folder = tempfile::tempdir().unwrap();
        let (packed, plain) = in_type(dtype, folder.path());
        let held: Vec<&str> = packed.decoder.format_bytes().keys().map(String::as_str).collect();
        let matrices = format!("{} (R16)", dtype.as_str());
        assert!(
            held.len() == 2 && held.contains(&"F32") && held.contains(&&*matrices),
            "{held:?}"
        );
        let exact = logits(&plain, "best");
        let size = exact.iter().flatten().map(|x| x * x).sum::<f32>() / exact.concat().len() as f32;
        for kernels in available() {
            let got = logits(&packed, kernels);
            let similarity = similarity(&got, &exact);
            assert!(similarity >= 0.999, "{dtype:?} {kernels}: cosine {similarity}");
            let mut clear = 0;
            for (got, exact) in got.iter().zip(&exact) {
                let first = argmax(exact);
                let others = exact.iter().enumerate().filter(|(id, _)| *id != first);
                let second = others.map(|(_, x)| *x).fold(f32::MIN, f32::max);
                // Three standard deviations of the difference that this cosine leaves.
                if exact[first] - second > 0.14 * size.sqrt() {
                    clear += 1;
                    assert_eq!(argmax(got), first, "{dtype:?} {kernels}");
                }
            }
            assert!(clear > 0, "{dtype:?}: no position with a clear first choice");
        }
    }
}

/// Paths that change float weights: the type of inner matrices, of the table, and the cosine that must be kept (of
/// networks 64 wide, whose errors average out less than those of real ones).
const PATHS: [(WeightPath, TensorType, TensorType, f64); 3] = [
    (WeightPath::Bf16, TensorType::BF16, TensorType::BF16, 0.999),
    (WeightPath::W8a8, TensorType::Q8_0, TensorType::Q8_0, 0.998),
    (WeightPath::W4a8, TensorType::IQ4_NL, TensorType::Q8_0, 0.93),
];

#[test]
fn a_weight_path_holds_float_matrices_as_it_says_and_keeps_the_logits() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let file = TinyModel::new(family, 5).write_gguf(folder.path());
        let exact = Loaded::open(&file);
        let reference = logits(&exact, "best");
        for (path, matrices, table, floor) in PATHS {
            let loaded = Loaded::open_as(&file, path);
            let by_engine = loaded.decoder.format_bytes();
            for wanted in [matrices, table] {
                let name = format!("{} (R16)", wanted.as_str());
                assert!(by_engine.contains_key(&name), "{family} {path:?}: {by_engine:?}");
            }
            let engine: u64 = by_engine.values().map(|bytes| bytes.0).sum();
            let planned = weight_path::held_weights(&loaded.card.stages()[0], &loaded.card, path).bytes;
            assert_eq!(engine, planned, "{family} {path:?}: bytes held and bytes planned");
            for kernels in available() {
                let found = similarity(&logits(&loaded, kernels), &reference);
                assert!(found >= floor, "{family} {path:?} {kernels}: cosine {found}");
                assert!(found < 1.0, "{family} {path:?} {kernels}: nothing was changed");
            }
        }
    }
}

#[test]
fn weights_that_are_quantised_already_stay_as_they_are_on_every_path() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, _) = in_type(TensorType::Q4_K, folder.path());
    for path in WeightPath::ALL {
        let loaded = Loaded::open_as(&folder.path().join("packed.gguf"), path);
        assert_eq!(
            loaded.decoder.format_bytes(),
            packed.decoder.format_bytes(),
            "{path:?}"
        );
    }
}
