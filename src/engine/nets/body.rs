//! The body of a decoder: its layers and the norm behind them, whatever its inputs and heads are.
//!
//! In: one vector for each row of (sequence, position), a [`KvCache`]. Out: normed states of the rows that are wanted.
//! Invariant: a row's state is the same bit for bit whatever rows it shares a pass with, however a sequence was cut
//! into passes, and however many threads work. The residual stream is f32. The maths is in `docs/concepts/decoder.md`.

use super::load::Loader;
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, AttentionInput, AttentionSpec, Kernels, PackedMatrix};
use crate::engine::kv_cache::KvCache;
use crate::engine::nn::rope::RopeRows;
use crate::engine::team::Team;
use crate::model::card::{AttentionKind, DecoderSpec, GateActivation};
use crate::model::families::TensorRole;
use crate::sys::memory::Region;

/// Where a row of a pass stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Sequence slot of the KV cache.
    pub sequence: usize,
    /// Position in the sequence, from 0. Rows of one sequence in a pass have consecutive positions, and every
    /// earlier position was in an earlier pass.
    pub position: usize,
    /// Whether the state of this row is wanted.
    pub wanted: bool,
}

/// Loaded layers: weights only, no state.
#[derive(Debug)]
pub struct Body {
    spec: DecoderSpec,
    output_norm: Vec<f32>,
    layers: Vec<Layer>,
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
pub struct BodyBuffers {
    ropes: Vec<RopeRows>,
    runs: Vec<Run>,
    /// Sequences met so far, while the rows are checked.
    seen: Vec<bool>,
    input: Activations,
    /// Residual stream, T × E.
    x: Vec<f32>,
    /// Normed, T × E.
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
}

/// Writes the vector of a row.
pub type Fill<'f> = dyn Fn(usize, &mut [f32]) + Sync + 'f;
/// Sees the rows that go into a layer.
pub type Observe<'o> = dyn FnMut(usize, &[f32]) + 'o;

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

impl Body {
    /// Packs the layers of the loader's network.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub(super) fn load(loader: &mut Loader<'_, '_>) -> Result<Self, Problem> {
        let spec = loader.spec().clone();
        if spec.layers.is_empty() {
            return Err(Problem::new(
                Code::ModelMalformed,
                "the model has no layers",
                "fetch the model again, or use another conversion of it",
            ));
        }
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
        Ok(Self {
            spec,
            output_norm,
            layers,
        })
    }

    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.regions().all(Region::huge_pages)
    }

    /// The memory of every matrix.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.layers.iter().flat_map(|layer| {
            [&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down].map(PackedMatrix::region)
        })
    }

    /// Runs one pass and returns one row of `hidden` values, normed, for each row that is wanted, in row order.
    ///
    /// `fill` writes each row's input. Rows of one sequence stand together with consecutive positions, at most the
    /// cache's `prefill_batch` of them.
    ///
    /// # Errors
    /// When a row lies outside the cache, or rows do not stand as they must; nothing was written then.
    pub fn forward<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut BodyBuffers,
        places: &[Place],
        fill: &Fill<'_>,
    ) -> Result<&'b mut [f32], Problem> {
        self.forward_observed(kernels, team, cache, buffers, places, fill, &mut |_, _| {})
    }

    /// [`Self::forward`] that shows `observe` the rows that go into every layer.
    ///
    /// # Errors
    /// As [`Self::forward`].
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a pass; a struct for one caller would not be clearer"
    )]
    pub fn forward_observed<'b>(
        &self,
        kernels: &Kernels,
        team: &Team,
        cache: &mut KvCache,
        buffers: &'b mut BodyBuffers,
        places: &[Place],
        fill: &Fill<'_>,
        observe: &mut Observe<'_>,
    ) -> Result<&'b mut [f32], Problem> {
        Self::check(cache, places, &mut buffers.seen)?;
        let BodyBuffers {
            ropes,
            runs,
            seen: _,
            input,
            x,
            normed,
            qkv,
            attended,
            gate_up,
            activated,
        } = buffers;
        let spec = &self.spec;
        find_runs(places, runs);
        for rope in ropes.iter_mut() {
            rope.set(places.iter().map(|place| place.position));
        }
        let mut tokens = places.len();
        let hidden = spec.hidden;
        fit(x, tokens * hidden);
        by_rows(team, x, hidden, tokens, fill);
        fit(normed, tokens * hidden);
        let (heads, dim) = (spec.heads, spec.head_dim);
        let (q_width, k_width) = (heads * dim, spec.kv_heads * dim);
        for (index, layer) in self.layers.iter().enumerate() {
            observe(index, x);
            let stride = layer.qkv.rows();
            kernels.rms_norm(team, x, &layer.attention_norm, spec.norm_eps, normed);
            input.load(kernels, team, normed, tokens, hidden, layer.qkv.needs());
            fit(qkv, tokens * stride);
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
            for (place, out) in places.iter().zip(qkv.chunks_exact(stride)) {
                let (k, v) = out[q_width..].split_at(k_width);
                cache.store(place.sequence, place.position, k, &v[..k_width]);
            }
            if index + 1 == self.layers.len() {
                // Keys and values are stored; of this layer's results, nobody sees the other rows.
                tokens = keep_wanted(places, x, hidden);
                keep_wanted(places, qkv, stride);
                wanted_runs(places, runs);
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
            fit(attended, tokens * q_width);
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
            fit(gate_up, tokens * 2 * spec.ffn);
            kernels.linear(team, &layer.gate_up, input, gate_up);
            fit(activated, tokens * spec.ffn);
            kernels.gated(team, spec.activation, gate_up, spec.ffn, activated);
            input.load(kernels, team, activated, tokens, spec.ffn, layer.down.needs());
            kernels.linear(team, &layer.down, input, normed);
            self.add(kernels, team, x, normed, layer.post_ffn_norm.as_deref());
        }
        kernels.rms_norm(team, x, &self.output_norm, spec.norm_eps, normed);
        Ok(normed)
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

    fn check(cache: &KvCache, places: &[Place], seen: &mut Vec<bool>) -> Result<(), Problem> {
        let wrong = |what: String| {
            Err(Problem::new(
                Code::Internal,
                what,
                "report this with the request that caused it",
            ))
        };
        let sizes = cache.sizes();
        seen.clear();
        seen.resize(sizes.max_seqs, false);
        let mut before: Option<Place> = None;
        let mut in_run = 0;
        for &row in places {
            if row.sequence >= sizes.max_seqs || row.position >= sizes.context {
                return wrong(format!(
                    "position {} of sequence {} is outside {} positions, {} sequences",
                    row.position, row.sequence, sizes.context, sizes.max_seqs
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

impl BodyBuffers {
    /// Buffers for passes of `body`; they grow to the largest pass.
    #[must_use]
    pub fn new(body: &Body) -> Self {
        Self {
            ropes: distinct_ropes(&body.spec),
            runs: Vec::new(),
            seen: Vec::new(),
            input: Activations::new(),
            x: Vec::new(),
            normed: Vec::new(),
            qkv: Vec::new(),
            attended: Vec::new(),
            gate_up: Vec::new(),
            activated: Vec::new(),
        }
    }
}

impl BodyBuffers {
    /// Bytes of the buffers as they have grown, and of the rotations of a pass.
    #[must_use]
    pub fn bytes(&self) -> (Bytes, Bytes) {
        let values = [
            &self.x,
            &self.normed,
            &self.qkv,
            &self.attended,
            &self.gate_up,
            &self.activated,
        ];
        let buffers: usize = values.into_iter().map(Vec::capacity).sum::<usize>() * size_of::<f32>()
            + self.runs.capacity() * size_of::<Run>()
            + self.seen.capacity();
        let ropes: u64 = self.ropes.iter().map(|rope| rope.bytes().0).sum();
        (Bytes(buffers as u64 + self.input.bytes().0), Bytes(ropes))
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

fn find_runs(places: &[Place], runs: &mut Vec<Run>) {
    runs.clear();
    for (at, row) in places.iter().enumerate() {
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

/// Gives a buffer this length; room beyond it is never taken, so that what was planned for is what is held.
pub(super) fn fit(buffer: &mut Vec<f32>, length: usize) {
    buffer.reserve_exact(length.saturating_sub(buffer.len()));
    buffer.resize(length, 0.0);
}

/// Moves the wanted rows to the front and drops the others; returns how many.
fn keep_wanted(places: &[Place], values: &mut Vec<f32>, width: usize) -> usize {
    let mut kept = 0;
    for (at, _) in places.iter().enumerate().filter(|(_, place)| place.wanted) {
        values.copy_within(at * width..(at + 1) * width, kept * width);
        kept += 1;
    }
    values.truncate(kept * width);
    kept
}

/// The wanted rows, each a run of its own, numbered as [`keep_wanted`] leaves them.
fn wanted_runs(places: &[Place], runs: &mut Vec<Run>) {
    runs.clear();
    let wanted = places.iter().filter(|place| place.wanted);
    runs.extend(wanted.enumerate().map(|(at, row)| Run {
        sequence: row.sequence,
        position: row.position,
        row: at,
        rows: 1,
    }));
}
