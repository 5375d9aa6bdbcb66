//! The decoder: one network for every language-model family, described by [`DecoderSpec`].
//!
//! In: rows of (sequence, position, token), a [`KvCache`]. Out: logits of the rows that ask.
//! Invariant: a row's logits are the same bit for bit whatever rows it shares a pass with, however the prompt was cut
//! into passes, and however many threads work. The residual stream is f32. The maths is in `docs/concepts/decoder.md`.

use std::collections::BTreeMap;

use super::Row;
use super::load::{Loader, OnProgress};
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, AttentionInput, AttentionSpec, Kernels, PackedMatrix};
use crate::engine::kv_cache::KvCache;
use crate::engine::nn::rope::RopeRows;
use crate::engine::team::Team;
use crate::model::card::{AttentionKind, DecoderSpec, GateActivation, ModelCard};
use crate::model::families::TensorRole;
use crate::model::weights::Weights;

/// A loaded decoder: weights only, no state.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    embedding: PackedMatrix,
    /// `None`: the embedding is the head.
    head: Option<PackedMatrix>,
    output_norm: Vec<f32>,
    layers: Vec<Layer>,
    format_bytes: BTreeMap<String, Bytes>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    /// Rows q‖k‖v, then one row a head for the gate where there is one: too narrow to be worth a product of its own.
    qkv: PackedMatrix,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    attention_out: PackedMatrix,
    post_attention_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    /// Rows gate‖up.
    gate_up: PackedMatrix,
    down: PackedMatrix,
    post_ffn_norm: Option<Vec<f32>>,
    window: Option<usize>,
    /// Which of the workspace's rotations.
    rope: usize,
}

/// Buffers of a pass, kept from pass to pass.
#[derive(Debug)]
pub struct Workspace {
    ropes: Vec<RopeRows>,
    runs: Vec<Run>,
    input: Activations,
    /// Residual stream, T × E.
    x: Vec<f32>,
    /// Normed, T × E.
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
    logits: Vec<f32>,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct Run {
    sequence: usize,
    position: usize,
    row: usize,
    rows: usize,
}

/// Rows from which a loop over rows is worth waking the team for.
const PARALLEL_ROWS: usize = 8;

impl Decoder {
    /// Packs the weights of `card`'s network; `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        card: &ModelCard,
        weights: &Weights,
        huge_pages: bool,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let spec = card.decoder.clone();
        if spec.layers.is_empty() {
            return Err(Problem::new(
                Code::ModelMalformed,
                "the model has no layers",
                "fetch the model again, or use another conversion of it",
            ));
        }
        let mut loader = Loader::new(card, weights, huge_pages, on_progress);
        let embedding = loader.matrix(&[TensorRole::TokenEmbedding], 0, None)?;
        let output_norm = loader.norm(TensorRole::OutputNorm, 0)?;
        let ropes = distinct_ropes(&spec);
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, layer) in spec.layers.iter().enumerate() {
            let mut norm_if = |present: bool, role| present.then(|| loader.norm(role, index)).transpose();
            let q_norm = norm_if(spec.qk_norm, TensorRole::QNorm)?;
            let k_norm = norm_if(spec.qk_norm, TensorRole::KNorm)?;
            let post_attention_norm = norm_if(spec.post_norms, TensorRole::PostAttnNorm)?;
            let post_ffn_norm = norm_if(spec.post_norms, TensorRole::PostFfnNorm)?;
            let mut qkv_roles = if spec.fused_qkv {
                vec![TensorRole::Qkv]
            } else {
                vec![TensorRole::Q, TensorRole::K, TensorRole::V]
            };
            if spec.head_gate.is_some() {
                qkv_roles.push(TensorRole::HeadGate);
            }
            layers.push(Layer {
                attention_norm: loader.norm(TensorRole::AttnNorm, index)?,
                qkv: loader.matrix(&qkv_roles, index, Some(&layer.rope))?,
                q_norm,
                k_norm,
                attention_out: loader.matrix(&[TensorRole::AttnOutput], index, None)?,
                post_attention_norm,
                ffn_norm: loader.norm(TensorRole::FfnNorm, index)?,
                gate_up: loader.matrix(&[TensorRole::Gate, TensorRole::Up], index, None)?,
                down: loader.matrix(&[TensorRole::Down], index, None)?,
                post_ffn_norm,
                window: match layer.attention {
                    AttentionKind::Full => None,
                    AttentionKind::Sliding { window } => Some(window),
                },
                rope: ropes
                    .iter()
                    .position(|rope| *rope.spec() == layer.rope)
                    .unwrap_or_default(),
            });
        }
        let head = (!spec.tied_embeddings)
            .then(|| loader.matrix(&[TensorRole::Output], 0, None))
            .transpose()?;
        Ok(Self {
            format_bytes: loader.into_format_bytes(),
            spec,
            embedding,
            head,
            output_norm,
            layers,
        })
    }

    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        let in_layers = |layer: &Layer| {
            [&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down]
                .into_iter()
                .all(PackedMatrix::huge_pages)
        };
        self.embedding.huge_pages()
            && self.head.as_ref().is_none_or(PackedMatrix::huge_pages)
            && self.layers.iter().all(in_layers)
    }

    /// Runs one pass and returns one row of `vocab` logits for each row that asks, in row order.
    ///
    /// Rows of one sequence stand together with consecutive positions, at most the cache's `prefill_batch` of them.
    ///
    /// # Errors
    /// When a row lies outside the cache or the vocabulary, or rows do not stand as they must; nothing was written
    /// then.
    pub fn forward<'w>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        workspace: &'w mut Workspace,
        rows: &[Row],
    ) -> Result<&'w mut [f32], Problem> {
        self.check(cache, rows)?;
        let Workspace {
            ropes,
            runs,
            input,
            x,
            normed,
            qkv,
            attended,
            gate_up,
            activated,
            logits,
        } = workspace;
        let spec = &self.spec;
        find_runs(rows, runs);
        for rope in ropes.iter_mut() {
            rope.set(rows.iter().map(|row| row.position));
        }
        let mut tokens = rows.len();
        let hidden = spec.hidden;
        x.resize(tokens * hidden, 0.0);
        by_rows(team, x, hidden, tokens, &|row, out| {
            self.embedding.row_f32(rows[row].token as usize, out);
            if spec.embedding_scale.to_bits() != 1f32.to_bits() {
                kernels.scale(out, spec.embedding_scale);
            }
        });
        normed.resize(tokens * hidden, 0.0);
        let (heads, dim) = (spec.heads, spec.head_dim);
        let (q_width, k_width) = (heads * dim, spec.kv_heads * dim);
        for (index, layer) in self.layers.iter().enumerate() {
            let stride = layer.qkv.rows();
            kernels.rms_norm(team, x, &layer.attention_norm, spec.norm_eps, normed);
            input.load(kernels, team, normed, tokens, hidden, layer.qkv.needs());
            qkv.resize(tokens * stride, 0.0);
            kernels.linear(team, &layer.qkv, input, qkv);
            let rope = &ropes[layer.rope];
            by_rows(team, qkv, stride, tokens, &|row, out| {
                let (q, rest) = out.split_at_mut(q_width);
                if let Some(norm) = &layer.q_norm {
                    kernels.rms_norm_here(q, norm, spec.norm_eps);
                }
                if let Some(norm) = &layer.k_norm {
                    kernels.rms_norm_here(&mut rest[..k_width], norm, spec.norm_eps);
                }
                let (cosines, sines) = rope.row(row);
                kernels.rope(&mut out[..q_width + k_width], dim, cosines, sines);
            });
            let cache = cache.layer(index);
            for (row, out) in rows.iter().zip(qkv.chunks_exact(stride)) {
                let (k, v) = out[q_width..].split_at(k_width);
                cache.store(row.sequence, row.position, k, &v[..k_width]);
            }
            if index + 1 == self.layers.len() {
                // Keys and values are stored; of this layer's results, nobody sees the other rows.
                tokens = keep_asked(rows, x, hidden);
                keep_asked(rows, qkv, stride);
                asked_runs(rows, runs);
                normed.truncate(tokens * hidden);
            }
            let inputs: Vec<AttentionInput<'_>> = runs
                .iter()
                .map(|run| {
                    let (keys, values) = cache.sequence(run.sequence);
                    AttentionInput {
                        keys,
                        values,
                        position: run.position,
                        tokens: run.rows,
                        row: run.row,
                    }
                })
                .collect();
            let attention = AttentionSpec {
                shape: cache.shape(),
                heads,
                window: layer.window,
                scale: spec.attention_scale,
            };
            attended.resize(tokens * q_width, 0.0);
            kernels.attention(team, &attention, &inputs, qkv, stride, attended);
            if let Some(activation) = spec.head_gate {
                gate_heads(activation, qkv, stride, attended, heads, dim);
            }
            input.load(
                kernels,
                team,
                attended,
                tokens,
                q_width,
                layer.attention_out.needs(),
            );
            kernels.linear(team, &layer.attention_out, input, normed);
            self.add(kernels, team, x, normed, layer.post_attention_norm.as_deref());

            kernels.rms_norm(team, x, &layer.ffn_norm, spec.norm_eps, normed);
            input.load(kernels, team, normed, tokens, hidden, layer.gate_up.needs());
            gate_up.resize(tokens * 2 * spec.ffn, 0.0);
            kernels.linear(team, &layer.gate_up, input, gate_up);
            activated.resize(tokens * spec.ffn, 0.0);
            kernels.gated(team, spec.activation, gate_up, spec.ffn, activated);
            input.load(kernels, team, activated, tokens, spec.ffn, layer.down.needs());
            kernels.linear(team, &layer.down, input, normed);
            self.add(kernels, team, x, normed, layer.post_ffn_norm.as_deref());
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        logits.resize(tokens * spec.vocab, 0.0);
        kernels.rms_norm(team, x, &self.output_norm, spec.norm_eps, normed);
        input.load(kernels, team, normed, tokens, hidden, head.needs());
        kernels.linear(team, head, input, logits);
        if let Some(cap) = spec.logit_softcap {
            kernels.softcap(team, logits, cap);
        }
        Ok(logits)
    }

    /// `x += [norm](update)`.
    fn add(&self, kernels: &Kernels, team: &Team, x: &mut [f32], update: &mut [f32], norm: Option<&[f32]>) {
        if let Some(norm) = norm {
            by_rows(
                team,
                update,
                self.spec.hidden,
                update.len() / self.spec.hidden,
                &|_, row| {
                    kernels.rms_norm_here(row, norm, self.spec.norm_eps);
                },
            );
        }
        kernels.add_assign(team, x, update);
    }

    fn check(&self, cache: &KvCache, rows: &[Row]) -> Result<(), Problem> {
        let wrong = |what: String| {
            Err(Problem::new(
                Code::Internal,
                what,
                "report this with the request that caused it",
            ))
        };
        let sizes = cache.sizes();
        let mut seen = vec![false; sizes.max_seqs];
        let mut before: Option<Row> = None;
        let mut in_run = 0;
        for &row in rows {
            if row.sequence >= sizes.max_seqs
                || row.position >= sizes.context
                || row.token as usize >= self.spec.vocab
            {
                return wrong(format!(
                    "token {} at position {} of sequence {} is outside {} tokens, {} positions, {} sequences",
                    row.token, row.position, row.sequence, self.spec.vocab, sizes.context, sizes.max_seqs
                ));
            }
            match before {
                Some(before) if before.sequence == row.sequence => {
                    in_run += 1;
                    if before.position + 1 != row.position || in_run > sizes.prefill_batch {
                        return wrong(format!(
                            "position {} follows {} as row {in_run} of sequence {}; a pass takes {} consecutive ones",
                            row.position, before.position, row.sequence, sizes.prefill_batch
                        ));
                    }
                }
                _ if seen[row.sequence] => {
                    return wrong(format!("rows of sequence {} do not stand together", row.sequence));
                }
                _ => in_run = 1,
            }
            seen[row.sequence] = true;
            before = Some(row);
        }
        Ok(())
    }
}

impl Workspace {
    /// Buffers for passes of `decoder`; they grow to the largest pass.
    #[must_use]
    pub fn new(decoder: &Decoder) -> Self {
        Self {
            ropes: distinct_ropes(&decoder.spec),
            runs: Vec::new(),
            input: Activations::new(),
            x: Vec::new(),
            normed: Vec::new(),
            qkv: Vec::new(),
            attended: Vec::new(),
            gate_up: Vec::new(),
            activated: Vec::new(),
            logits: Vec::new(),
        }
    }
}

/// Every kind of rotation in the network once, in order of first use.
fn distinct_ropes(spec: &DecoderSpec) -> Vec<RopeRows> {
    let mut ropes: Vec<RopeRows> = Vec::new();
    for layer in &spec.layers {
        if ropes.iter().all(|rope| *rope.spec() != layer.rope) {
            ropes.push(RopeRows::new(&layer.rope));
        }
    }
    ropes
}

fn find_runs(rows: &[Row], runs: &mut Vec<Run>) {
    runs.clear();
    for (at, row) in rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.sequence == row.sequence => run.rows += 1,
            _ => runs.push(Run {
                sequence: row.sequence,
                position: row.position,
                row: at,
                rows: 1,
            }),
        }
    }
}

/// Calls `job(row, values)` for every row, on the team when there are many.
fn by_rows(
    team: &Team,
    values: &mut [f32],
    width: usize,
    rows: usize,
    job: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    if rows < PARALLEL_ROWS {
        for (row, out) in values.chunks_exact_mut(width).enumerate() {
            job(row, out);
        }
    } else {
        team.for_each_chunk(values, width, job);
    }
}

/// Multiplies each head of each row by the activation of its gate, the last `heads` columns of `qkv`.
fn gate_heads(
    activation: GateActivation,
    qkv: &[f32],
    stride: usize,
    attended: &mut [f32],
    heads: usize,
    dim: usize,
) {
    for (out, row) in attended
        .chunks_exact_mut(heads * dim)
        .zip(qkv.chunks_exact(stride))
    {
        let gates = &row[stride - heads..];
        for (head, &gate) in out.chunks_exact_mut(dim).zip(gates) {
            let sigmoid = 1.0 / (1.0 + (-gate).exp());
            let factor = match activation {
                GateActivation::Sigmoid => sigmoid,
                GateActivation::Silu => gate * sigmoid,
            };
            for value in head {
                *value *= factor;
            }
        }
    }
}

/// Moves the rows that ask for logits to the front and drops the others; returns how many.
fn keep_asked(rows: &[Row], values: &mut Vec<f32>, width: usize) -> usize {
    let mut kept = 0;
    for (at, _) in rows.iter().enumerate().filter(|(_, row)| row.logits) {
        values.copy_within(at * width..(at + 1) * width, kept * width);
        kept += 1;
    }
    values.truncate(kept * width);
    kept
}

/// The rows that ask for logits, each a run of its own, numbered as [`keep_asked`] leaves them.
fn asked_runs(rows: &[Row], runs: &mut Vec<Run>) {
    runs.clear();
    let asked = rows.iter().filter(|row| row.logits);
    runs.extend(asked.enumerate().map(|(at, row)| Run {
        sequence: row.sequence,
        position: row.position,
        row: at,
        rows: 1,
    }));
}
