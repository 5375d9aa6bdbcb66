//! The transformer between the codes and the upsampling: a sliding window over frames.
//!
//! In: one row a frame, a stream's keys and values. Out: one row a frame.
//! Invariant: positions count from the stream's first frame without end; there is no residual around the whole.

use crate::base::Problem;
use crate::engine::kernels::{AttentionInput, AttentionSpec, KvShape, Store};
use crate::engine::nn::conv::{Conv, ConvRun};
use crate::engine::nn::rope::RopeRows;
use crate::model::card::{Activation, RopeSpec};
use crate::model::speech::{CODEC_PASS_FRAMES, CodecSpec};
use crate::plan::Dtype;
use crate::sys::memory::Region;

/// Weights.
#[derive(Debug)]
pub(super) struct Transformer {
    pub shape: Shape,
    pub input: Conv,
    pub layers: Vec<TransformerLayer>,
    pub norm: Vec<f32>,
    pub output: Conv,
}

/// Weights of a layer; its scales are folded into the last matrix of each half.
#[derive(Debug)]
pub(super) struct TransformerLayer {
    pub attention_norm: Vec<f32>,
    /// Rows q‖k‖v.
    pub qkv: Conv,
    pub attention_out: Conv,
    pub ffn_norm: Vec<f32>,
    /// Rows gate‖up.
    pub gate_up: Conv,
    pub down: Conv,
}

/// Sizes.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub heads: usize,
    pub head_dim: usize,
    pub window: usize,
    pub ffn: usize,
    pub norm_eps: f32,
    pub rope: RopeSpec,
    pub cache: KvShape,
}

impl Shape {
    pub fn of(spec: &CodecSpec) -> Result<Self, Problem> {
        // A pass stores its frames before it reads, so the ring holds the window and the rest of a pass.
        let positions = spec.window + CODEC_PASS_FRAMES - 1;
        Ok(Self {
            heads: spec.heads,
            head_dim: spec.head_dim,
            window: spec.window,
            ffn: spec.ffn,
            norm_eps: spec.norm_eps,
            rope: RopeSpec {
                base: spec.rope_base,
                dims: spec.head_dim,
                position_divisor: 1.0,
                frequency_divisors: Vec::new(),
            },
            cache: KvShape::new(spec.heads, spec.head_dim, positions, Dtype::F32)?,
        })
    }
}

/// Keys and values of one stream.
#[derive(Debug)]
pub(super) struct AttentionState {
    /// Layer after layer.
    keys: Region,
    values: Region,
}

impl AttentionState {
    pub fn new(spec: &CodecSpec) -> Result<Self, Problem> {
        let shape = Shape::of(spec)?.cache;
        // Sizes were read from the tensors, which a file holds; their product with the window fits.
        Ok(Self {
            keys: Region::new(shape.key_bytes() * spec.layers, false)?,
            values: Region::new(shape.value_bytes() * spec.layers, false)?,
        })
    }

    pub fn bytes(&self) -> u64 {
        (self.keys.len() + self.values.len()) as u64
    }
}

/// Buffers of a pass.
#[derive(Debug, Default)]
pub(super) struct TransformerBuffers {
    rope: Option<RopeRows>,
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
}

impl TransformerBuffers {
    /// Values the buffers have room for.
    pub fn floats(&self) -> usize {
        let all = [
            &self.x,
            &self.normed,
            &self.qkv,
            &self.attended,
            &self.gate_up,
            &self.activated,
        ];
        all.iter().map(|buffer| buffer.capacity()).sum()
    }
}

impl Transformer {
    /// Every matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &Conv> {
        let layers = self.layers.iter();
        let inner = layers.flat_map(|layer| [&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down]);
        [&self.input, &self.output].into_iter().chain(inner)
    }

    /// Rows of `rows` through the network into `out`.
    pub fn forward(
        &self,
        run: &mut ConvRun<'_>,
        state: &mut AttentionState,
        position: usize,
        rows: &[f32],
        out: &mut Vec<f32>,
        buffers: &mut TransformerBuffers,
    ) {
        let (kernels, team, shape) = (run.kernels, run.team, &self.shape);
        let TransformerBuffers {
            rope,
            x,
            normed,
            qkv,
            attended,
            gate_up,
            activated,
        } = buffers;
        let tokens = rows.len() / self.input.input();
        let width = shape.heads * shape.head_dim;
        let rope = rope.get_or_insert_with(|| RopeRows::new(&shape.rope));
        rope.set(position..position + tokens);
        x.resize(tokens * self.input.output(), 0.0);
        normed.resize(x.len(), 0.0);
        qkv.resize(tokens * 3 * width, 0.0);
        attended.resize(tokens * width, 0.0);
        gate_up.resize(tokens * 2 * shape.ffn, 0.0);
        activated.resize(tokens * shape.ffn, 0.0);
        self.input.run(run, rows, x, Store::Replace);
        let keys = state.keys.bytes_mut().chunks_exact_mut(shape.cache.key_bytes());
        let values = state
            .values
            .bytes_mut()
            .chunks_exact_mut(shape.cache.value_bytes());
        for (layer, (keys, values)) in self.layers.iter().zip(keys.zip(values)) {
            kernels.rms_norm(team, x, &layer.attention_norm, shape.norm_eps, normed);
            layer.qkv.run(run, normed, qkv, Store::Replace);
            for (row, qkv) in qkv.chunks_exact_mut(3 * width).enumerate() {
                let (cosines, sines) = rope.row(row);
                kernels.rope(&mut qkv[..2 * width], shape.head_dim, cosines, sines);
                let (k, v) = qkv[width..].split_at(width);
                shape.cache.store(keys, values, position + row, k, v);
            }
            let attention = AttentionSpec {
                shape: shape.cache,
                heads: shape.heads,
                window: Some(shape.window),
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
            };
            let seen = AttentionInput {
                keys,
                values,
                position,
                tokens,
                row: 0,
            };
            kernels.attention(team, &attention, &[seen], qkv, 3 * width, attended);
            layer.attention_out.run(run, attended, x, Store::Add);
            kernels.rms_norm(team, x, &layer.ffn_norm, shape.norm_eps, normed);
            layer.gate_up.run(run, normed, gate_up, Store::Replace);
            kernels.gated(team, Activation::Silu, gate_up, shape.ffn, activated);
            layer.down.run(run, activated, x, Store::Add);
        }
        kernels.rms_norm(team, x, &self.norm, shape.norm_eps, normed);
        out.resize(tokens * self.output.output(), 0.0);
        self.output.run(run, normed, out, Store::Replace);
    }
}
