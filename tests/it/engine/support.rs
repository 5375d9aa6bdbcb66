//! What the engine's tests share: models, loaded decoders, runs of them, comparisons.

use std::path::Path;

use edge_deploy::base::CpuSet;
use edge_deploy::engine::kernels::{Kernels, select};
use edge_deploy::engine::kv_cache::{KvCache, KvSizes};
use edge_deploy::engine::nets::Row;
use edge_deploy::engine::nets::decoder::{Decoder, Workspace};
use edge_deploy::engine::nets::load::Held;
use edge_deploy::engine::team::Team;
use edge_deploy::model::card::ModelCard;
use edge_deploy::model::weight_path::WeightPath;
use edge_deploy::model::{Weights, inspect};
use edge_deploy::plan::Dtype;

pub use crate::support::model_file as cached_model;
use crate::support::shared;

/// A decoder ready to run passes.
pub struct Loaded {
    pub card: ModelCard,
    pub decoder: Decoder,
}

impl Loaded {
    pub fn open(path: &Path) -> Self {
        Self::open_as(path, WeightPath::Native)
    }

    pub fn open_as(path: &Path, weight_path: WeightPath) -> Self {
        let card = inspect(path).unwrap();
        let weights = Weights::open(&card).unwrap();
        let held = Held {
            path: weight_path,
            huge_pages: false,
        };
        let decoder = Decoder::load(&card, &weights, held, &mut |_| {}).unwrap();
        Self { card, decoder }
    }
}

/// How to divide the work of a run.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    pub threads: usize,
    /// Rows of prompt in a pass.
    pub chunk: usize,
    pub dtype: Dtype,
    pub context: usize,
    pub max_seqs: usize,
}

impl Default for Division {
    fn default() -> Self {
        Self {
            threads: 1,
            chunk: 64,
            dtype: Dtype::F32,
            context: 128,
            max_seqs: 1,
        }
    }
}

/// State of passes of one decoder.
pub struct Runner<'d> {
    pub decoder: &'d Decoder,
    pub kernels: &'static Kernels,
    pub team: Team,
    pub cache: KvCache,
    pub workspace: Workspace,
    pub division: Division,
}

impl<'d> Runner<'d> {
    pub fn new(decoder: &'d Decoder, division: Division) -> Self {
        Self::with_kernels(decoder, division, "best")
    }

    pub fn with_kernels(decoder: &'d Decoder, division: Division, cap: &str) -> Self {
        let sizes = KvSizes {
            context: division.context,
            max_seqs: division.max_seqs,
            prefill_batch: division.chunk,
            dtype: division.dtype,
        };
        Self {
            decoder,
            kernels: select(cap).unwrap(),
            team: Team::new("test", &CpuSet::new(), division.threads, false).unwrap(),
            cache: KvCache::new(decoder.spec(), sizes).unwrap(),
            workspace: Workspace::new(decoder),
            division,
        }
    }

    /// One pass; the logits of the rows that ask.
    pub fn pass(&mut self, rows: &[Row]) -> Vec<Vec<f32>> {
        let vocab = self.decoder.spec().vocab;
        self.decoder
            .forward(
                self.kernels,
                &self.team,
                &mut self.cache,
                &mut self.workspace,
                rows,
            )
            .unwrap()
            .chunks_exact(vocab)
            .map(<[f32]>::to_vec)
            .collect()
    }

    /// `ids` in sequence 0 from `start`; logits at `wanted` positions, in order.
    pub fn feed(&mut self, ids: &[u32], start: usize, wanted: &[usize]) -> Vec<Vec<f32>> {
        let rows: Vec<Row> = ids
            .iter()
            .enumerate()
            .map(|(at, &token)| Row {
                sequence: 0,
                position: start + at,
                token,
                logits: wanted.contains(&(start + at)),
            })
            .collect();
        rows.chunks(self.division.chunk)
            .flat_map(|chunk| self.pass(chunk))
            .collect()
    }
}

/// Logits at `wanted` positions of one sequence.
pub fn logits(decoder: &Decoder, division: Division, ids: &[u32], wanted: &[usize]) -> Vec<Vec<f32>> {
    Runner::new(decoder, division).feed(ids, 0, wanted)
}

/// A golden JSON document.
pub fn golden_json(test: &str, path: &str) -> Option<serde_json::Value> {
    let text = std::fs::read_to_string(shared(test, path)?).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

/// Little-endian f32 of a golden file.
pub fn golden_f32(test: &str, path: &str) -> Option<Vec<f32>> {
    let bytes = std::fs::read(shared(test, path)?).unwrap();
    Some(
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect(),
    )
}

pub fn ids_of(value: &serde_json::Value) -> Vec<u32> {
    let number = |v: &serde_json::Value| u32::try_from(v.as_u64().unwrap()).unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

/// `[[id, logit], …]`
pub fn pairs_of(value: &serde_json::Value) -> Vec<(usize, f64)> {
    let pair = |v: &serde_json::Value| (v[0].as_u64().unwrap() as usize, v[1].as_f64().unwrap());
    value.as_array().unwrap().iter().map(pair).collect()
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}

pub fn cosine(a: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut dot, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a {
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    dot / (aa * bb).sqrt()
}

pub fn argmax(row: &[f32]) -> usize {
    edge_deploy::engine::sampler::argmax(row).unwrap() as usize
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}
