//! Valid files with random damage: the answer is a card or a problem, never a panic, and memory stays bounded.

use edge_deploy::model;
use edge_deploy::model::formats::{gguf_header, safetensors};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support;
use crate::support::tiny::TinyModel;

/// One way to damage a file.
#[derive(Clone, Debug)]
enum Damage {
    /// Keep this share of the bytes.
    Cut(f64),
    /// Change one byte of the header.
    Flip(f64, u8),
    /// Put a number where eight bytes of the header were.
    Number(f64, u64),
    /// Take some bytes of the header out.
    Remove(f64, usize),
    /// Repeat some bytes of the header.
    Repeat(f64, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0.0..1.0f64;
    let number = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 40),
        Just(1 << 31),
        0u64..100_000,
        any::<u64>()
    ];
    prop_oneof![
        place().prop_map(Damage::Cut),
        (place(), 1u8..=255).prop_map(|(at, xor)| Damage::Flip(at, xor)),
        (place(), number).prop_map(|(at, n)| Damage::Number(at, n)),
        (place(), 1usize..40).prop_map(|(at, n)| Damage::Remove(at, n)),
        (place(), 1usize..40).prop_map(|(at, n)| Damage::Repeat(at, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, header: usize, damage: &Damage) {
    let header = header.min(bytes.len());
    let at = |share: f64| (header as f64 * share) as usize;
    match *damage {
        Damage::Cut(share) => bytes.truncate((bytes.len() as f64 * share) as usize),
        Damage::Flip(share, xor) => {
            if let Some(byte) = bytes.get_mut(at(share)) {
                *byte ^= xor;
            }
        }
        Damage::Number(share, n) => {
            let at = at(share);
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&n.to_le_bytes());
            }
        }
        Damage::Remove(share, n) => {
            let at = at(share);
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Damage::Repeat(share, n) => {
            let at = at(share);
            let again = bytes[at..(at + n).min(bytes.len())].to_vec();
            bytes.splice(at..at, again);
        }
    }
}

/// Damages `whole` in many ways and hands each result to `read`; memory may grow by 64 MiB in all.
fn survives(whole: &[u8], header: usize, cases: u32, read: impl Fn(&[u8])) {
    let before = support::peak_rss_bytes();
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&proptest::collection::vec(damage(), 1..4), |damages| {
            let mut bytes = whole.to_vec();
            for damage in &damages {
                apply(&mut bytes, header, damage);
            }
            read(&bytes);
            Ok(())
        })
        .unwrap();
    let grown = support::peak_rss_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
}

#[test]
fn damaged_gguf_files_never_panic_and_never_fill_memory() {
    if !support::alone("model::mutated::damaged_gguf_files_never_panic_and_never_fill_memory") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    for family in ["llama", "spark2_5", "gemma3"] {
        let whole = TinyModel::new(family, 1).gguf().bytes();
        let header = gguf_header::parse(&whole, "m.gguf").unwrap().data_start as usize;
        survives(&whole, header, 400, |bytes| {
            std::fs::write(&path, bytes).unwrap();
            if let Err(problem) = model::inspect(&path) {
                assert!(!problem.remedy.is_empty() && problem.place.is_some(), "{problem}");
            }
        });
    }
}

#[test]
fn damaged_safetensors_headers_never_panic_and_never_fill_memory() {
    if !support::alone("model::mutated::damaged_safetensors_headers_never_panic_and_never_fill_memory") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = TinyModel::new("llama", 1);
    model.write_safetensors(folder.path(), 1);
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    survives(&whole, header, 1000, |bytes| {
        // What parses is laid out without gap, overlap or end beyond the file.
        if let Ok(tensors) = safetensors::parse(bytes, "model.safetensors") {
            let sum: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
            assert!(sum < bytes.len() as u64);
        }
    });
    let config = serde_json::to_vec(&model.config()).unwrap();
    survives(&config, config.len(), 500, |bytes| {
        std::fs::write(folder.path().join("config.json"), bytes).unwrap();
        if let Err(problem) = model::inspect(folder.path()) {
            assert!(!problem.remedy.is_empty() && problem.place.is_some(), "{problem}");
        }
    });
}
