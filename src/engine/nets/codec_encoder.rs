//! The codec's encoder: a recording to frames of codes, for cloning a voice with its words.
//!
//! In: samples at the codec's rate. Out: `codebooks` codes a frame of `samples_per_frame`.
//! Invariant: everything looks back only, so the convolutions run over the recording part by part with what they have
//! seen carried on: memory grows with 25 rows a second, not with samples times channels. F32 throughout: codes are a
//! nearest neighbour and have to be the reference's.

mod load;

use std::collections::BTreeMap;

use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, AttentionInput, AttentionSpec, Kernels, KvShape, Store};
use crate::engine::nn::conv::{Conv, ConvRun};
use crate::engine::nn::norm::layer_norm_here;
use crate::engine::nn::rope::RopeRows;
use crate::engine::team::Team;
use crate::model::card::{Activation, RopeSpec};
use crate::model::speech::CodecEncoderSpec;
use crate::plan::Dtype;

/// Rows behind the strided convolutions that are made in one part.
const ROWS_PER_PART: usize = 25;

/// A loaded encoder.
#[derive(Debug)]
pub struct CodecEncoder {
    spec: CodecEncoderSpec,
    first: Conv,
    blocks: Vec<Block>,
    last: Conv,
    layers: Vec<Layer>,
    downsample: Conv,
    semantic: Quantizer,
    acoustic: Quantizer,
    format_bytes: BTreeMap<String, Bytes>,
}

/// A residual unit, then fewer rows.
#[derive(Debug)]
struct Block {
    narrow: Conv,
    widen: Conv,
    reduce: Conv,
}

/// A layer of the transformer; its scales are folded into the last matrix of each half.
#[derive(Debug)]
struct Layer {
    attention_norm: (Vec<f32>, Vec<f32>),
    /// Rows q‖k‖v.
    qkv: Conv,
    attention_out: Conv,
    ffn_norm: (Vec<f32>, Vec<f32>),
    up: Conv,
    down: Conv,
}

/// A projection and codebooks, each of what the ones before left over.
#[derive(Debug)]
struct Quantizer {
    projection: Conv,
    /// `codebook_size × code_dim` each.
    tables: Vec<Vec<f32>>,
}

/// Told the rows after each stage: name, rows, width. For tests.
pub type Observer<'o> = dyn FnMut(&'static str, &[f32], usize) + 'o;

impl CodecEncoder {
    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &CodecEncoderSpec {
        &self.spec
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Codes of a recording at the spec's rate: frames × codebooks; a last frame that is not full counts.
    ///
    /// # Errors
    /// `request_invalid` for no samples; `model_unsupported` when its attention would not fit memory.
    pub fn encode(
        &self,
        kernels: &Kernels,
        team: &Team,
        samples: &[f32],
        observer: &mut Observer<'_>,
    ) -> Result<Vec<u32>, Problem> {
        if samples.is_empty() {
            return Err(Problem::new(
                Code::RequestInvalid,
                "the recording has no samples",
                "send a recording of some seconds",
            ));
        }
        let mut input = Activations::new();
        let run = &mut ConvRun {
            kernels,
            team,
            input: &mut input,
        };
        let mut rows = self.convolve(run, samples);
        let width = self.spec.hidden;
        observer("enc_seanet", &rows, width);
        self.attend(run, &mut rows)?;
        observer("enc_transformer", &rows, width);
        let reduced = self.halve(run, &rows);
        observer("enc_downsample", &reduced, width);
        let frames = samples.len().div_ceil(self.spec.samples_per_frame);
        let semantic = self.semantic.codes(run, &reduced, self.spec.code_dim);
        let acoustic = self.acoustic.codes(run, &reduced, self.spec.code_dim);
        let per_frame = (self.semantic.tables.len(), self.acoustic.tables.len());
        Ok(semantic
            .chunks_exact(per_frame.0)
            .zip(acoustic.chunks_exact(per_frame.1))
            .take(frames)
            .flat_map(|(first, rest)| first.iter().chain(rest))
            .copied()
            .collect())
    }

    /// Samples to rows of `hidden` at 25 Hz.
    fn convolve(&self, run: &mut ConvRun<'_>, samples: &[f32]) -> Vec<f32> {
        let convs = || {
            let blocks = self.blocks.iter();
            let inner = blocks.flat_map(|block| [&block.narrow, &block.widen, &block.reduce]);
            [&self.first].into_iter().chain(inner).chain([&self.last])
        };
        let mut histories: Vec<Vec<f32>> = convs().map(|conv| vec![0.0; conv.history()]).collect();
        let stride: usize = self.spec.strides.iter().product();
        let mut rows = Vec::new();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut padded = Vec::new();
        // Only the last part can end within a stride; each convolution fills that up with zeros for itself.
        for part in samples.chunks(ROWS_PER_PART * stride) {
            let mut carried = histories.iter_mut();
            let mut step =
                |run: &mut ConvRun<'_>, conv: &Conv, x: &[f32], out: &mut Vec<f32>, store, elu: bool| {
                    let Some(history) = carried.next() else { return };
                    let count = x.len().div_ceil(conv.input());
                    if store == Store::Replace {
                        out.clear();
                        out.resize(count * conv.output(), 0.0);
                    }
                    let fill = |rows: &mut [f32]| {
                        let (seen, beyond) = rows.split_at_mut(x.len());
                        seen.copy_from_slice(x);
                        beyond.fill(0.0);
                        if elu {
                            for x in seen.iter_mut().filter(|x| **x <= 0.0) {
                                *x = x.exp_m1();
                            }
                        }
                    };
                    conv.stream(run, history, &mut padded, fill, out, store);
                };
            step(run, &self.first, part, &mut x, Store::Replace, false);
            for block in &self.blocks {
                step(run, &block.narrow, &x, &mut y, Store::Replace, true);
                step(run, &block.widen, &y, &mut x, Store::Add, true);
                step(run, &block.reduce, &x, &mut y, Store::Replace, true);
                std::mem::swap(&mut x, &mut y);
            }
            step(run, &self.last, &x, &mut y, Store::Replace, true);
            rows.extend_from_slice(&y);
        }
        rows
    }

    /// The transformer, in place. Every row sees all rows before it.
    fn attend(&self, run: &mut ConvRun<'_>, x: &mut [f32]) -> Result<(), Problem> {
        let spec = &self.spec;
        let (kernels, team) = (run.kernels, run.team);
        let tokens = x.len() / spec.hidden;
        let width = spec.heads * spec.head_dim;
        let shape = KvShape::new(spec.heads, spec.head_dim, tokens, Dtype::F32)?;
        let (mut keys, mut values) = (vec![0; shape.key_bytes()], vec![0; shape.value_bytes()]);
        let mut rope = RopeRows::new(&RopeSpec {
            base: spec.rope_base,
            dims: spec.head_dim,
            position_divisor: 1.0,
            frequency_divisors: Vec::new(),
        });
        rope.set(0..tokens);
        let mut normed = vec![0.0; x.len()];
        let mut qkv = vec![0.0; tokens * 3 * width];
        let mut attended = vec![0.0; tokens * width];
        let mut inner = vec![0.0; tokens * spec.ffn];
        for layer in &self.layers {
            normed.copy_from_slice(x);
            layer_norm_here(
                &mut normed,
                &layer.attention_norm.0,
                &layer.attention_norm.1,
                spec.norm_eps,
            );
            layer.qkv.run(run, &normed, &mut qkv, Store::Replace);
            for (row, qkv) in qkv.chunks_exact_mut(3 * width).enumerate() {
                let (cosines, sines) = rope.row(row);
                kernels.rope(&mut qkv[..2 * width], spec.head_dim, cosines, sines);
                let (k, v) = qkv[width..].split_at(width);
                shape.store(&mut keys, &mut values, row, k, v);
            }
            let attention = AttentionSpec {
                shape,
                heads: spec.heads,
                window: None,
                scale: 1.0 / (spec.head_dim as f32).sqrt(),
            };
            let seen = AttentionInput {
                keys: &keys,
                values: &values,
                position: 0,
                tokens,
                row: 0,
            };
            kernels.attention(team, &attention, &[seen], &qkv, 3 * width, &mut attended);
            layer.attention_out.run(run, &attended, x, Store::Add);
            normed.copy_from_slice(x);
            layer_norm_here(&mut normed, &layer.ffn_norm.0, &layer.ffn_norm.1, spec.norm_eps);
            layer.up.run(run, &normed, &mut inner, Store::Replace);
            kernels.activate(team, Activation::GeluErf, &mut inner);
            layer.down.run(run, &inner, x, Store::Add);
        }
        Ok(())
    }

    /// The convolution to frame rate; beyond its edges it sees the first and the last row again.
    fn halve(&self, run: &mut ConvRun<'_>, x: &[f32]) -> Vec<f32> {
        let width = self.spec.hidden;
        let stride = self.spec.downsample;
        let frames = (x.len() / width).div_ceil(stride);
        let left = self.downsample.halo() * stride;
        let (first, last) = (&x[..width], &x[x.len() - width..]);
        let mut padded = first.repeat(left);
        padded.extend_from_slice(x);
        while padded.len() < (left + frames * stride) * width {
            padded.extend_from_slice(last);
        }
        let mut out = vec![0.0; frames * width];
        self.downsample.run(run, &padded, &mut out, Store::Replace);
        out
    }
}

impl Quantizer {
    /// Codes of every row, one from each codebook.
    fn codes(&self, run: &mut ConvRun<'_>, x: &[f32], width: usize) -> Vec<u32> {
        let mut rows = vec![0.0; x.len() / self.projection.input() * width];
        self.projection.run(run, x, &mut rows, Store::Replace);
        let books = self.tables.len();
        let mut codes = vec![0; rows.len() / width * books];
        let mut both: Vec<(&mut [f32], &mut [u32])> = rows
            .chunks_exact_mut(width)
            .zip(codes.chunks_exact_mut(books))
            .collect();
        run.team.for_each_chunk(&mut both, 1, &|_, part| {
            for (row, codes) in part {
                for (table, code) in self.tables.iter().zip(codes.iter_mut()) {
                    let at = nearest(table, row);
                    *code = at as u32;
                    for (x, y) in row.iter_mut().zip(&table[at * width..(at + 1) * width]) {
                        *x -= y;
                    }
                }
            }
        });
        codes
    }
}

/// The row of `table` nearest to `x`, the first among equals.
fn nearest(table: &[f32], x: &[f32]) -> usize {
    let mut best = (0, f32::INFINITY);
    for (at, row) in table.chunks_exact(x.len()).enumerate() {
        // Eight sums, which vectorise, in one fixed order.
        let mut sums = [0f32; 8];
        for (x, y) in x.chunks(8).zip(row.chunks(8)) {
            for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
                *sum += (x - y) * (x - y);
            }
        }
        let distance = sums.iter().sum();
        if distance < best.1 {
            best = (at, distance);
        }
    }
    best.0
}
