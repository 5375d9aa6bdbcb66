//! Attention over a key/value cache whose layout the kernels own.
//!
//! In: rotated queries; keys and values stored by [`KvShape::store`]. Out: one vector per query head.
//! Invariant: softmax runs over blocks of 64 absolute positions, so a token's result does not depend on the pass it is
//! computed in; positions outside a query's range are never read as values.
//!
//! Per kv head a ring of `capacity` slots, slot = position mod capacity: keys in tiles of 16 positions
//! (`[tile][dimension][16 positions]`, so a dot product is a broadcast multiply-add), values row by row
//! (`[position][dimension padded to 16]`).

use half::f16;

use super::Kernels;
use super::ops::SharedRows;
use crate::base::{Code, Problem};
use crate::engine::team::Team;
use crate::plan::Dtype;

/// Positions of a softmax block; rings hold whole blocks.
pub const KV_BLOCK: usize = crate::model::kv::BLOCK;
const _: () = assert!(KV_BLOCK == 64, "four vectors of 16 positions");
/// Query heads that share one pass over keys and values: 4 × 4 accumulators.
const QUERIES: usize = 4;
/// Tokens of one work item.
const SPAN: usize = 16;

/// Geometry of one layer's cache for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    element: usize,
}

impl KvShape {
    /// A ring of at least `positions` slots (rounded up to whole blocks of [`KV_BLOCK`]).
    ///
    /// A sliding window of W processed in passes of up to T tokens needs W + T − 1 positions.
    ///
    /// # Errors
    /// `model_unsupported` for an element type other than F32 or F16, or a size of zero or beyond memory.
    pub fn new(kv_heads: usize, head_dim: usize, positions: usize, dtype: Dtype) -> Result<Self, Problem> {
        let unsupported = |what: String| {
            Problem::new(
                Code::ModelUnsupported,
                what,
                "choose `kv_dtype: f16` or `f32`, and a smaller context",
            )
        };
        if dtype == Dtype::Bf16 {
            return Err(unsupported("a BF16 key/value cache".to_owned()));
        }
        let capacity = positions.checked_next_multiple_of(KV_BLOCK).unwrap_or(0);
        let size = capacity
            .checked_mul(kv_heads)
            .and_then(|n| n.checked_mul(head_dim.checked_next_multiple_of(16)?))
            .and_then(|n| n.checked_mul(dtype.bytes()));
        if size.is_none_or(|size| size == 0 || size > isize::MAX as usize) {
            return Err(unsupported(format!(
                "a key/value cache of {kv_heads} heads × {head_dim} × {positions} positions"
            )));
        }
        Ok(Self {
            kv_heads,
            head_dim,
            capacity,
            element: dtype.bytes(),
        })
    }

    /// Slots of the ring.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of keys, all heads.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.kv_heads * self.key_head_bytes()
    }

    /// Bytes of values, all heads.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.kv_heads * self.value_head_bytes()
    }

    fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    fn key_head_bytes(&self) -> usize {
        self.capacity * self.head_dim * self.element
    }

    fn value_head_bytes(&self) -> usize {
        self.capacity * self.padded_dim() * self.element
    }

    /// Writes one position: `k` and `v` are `kv_heads × head_dim`, keys already rotated.
    ///
    /// # Panics
    /// If a slice does not have the length this shape says.
    pub fn store(&self, keys: &mut [u8], values: &mut [u8], position: usize, k: &[f32], v: &[f32]) {
        assert_eq!(keys.len(), self.key_bytes(), "length of the keys");
        assert_eq!(values.len(), self.value_bytes(), "length of the values");
        let width = self.kv_heads * self.head_dim;
        assert!(k.len() == width && v.len() == width, "width of a key or value");
        let slot = position % self.capacity;
        let (tile, lane) = (slot / 16, slot % 16);
        let (dim, element) = (self.head_dim, self.element);
        for head in 0..self.kv_heads {
            let k = &k[head * dim..(head + 1) * dim];
            let v = &v[head * dim..(head + 1) * dim];
            let keys = &mut keys[head * self.key_head_bytes() + tile * 16 * dim * element..];
            for (d, &k) in k.iter().enumerate() {
                put(keys, element, d * 16 + lane, k);
            }
            let values = &mut values[head * self.value_head_bytes() + slot * self.padded_dim() * element..];
            for (d, &v) in v.iter().enumerate() {
                put(values, element, d, v);
            }
        }
    }
}

fn put(bytes: &mut [u8], element: usize, index: usize, value: f32) {
    if element == 2 {
        bytes[2 * index..2 * index + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    } else {
        bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// `acc[q][16·v + lane] += Σ_n factors[q][n] · rows[n][v][lane]`, n in order: both products of attention.
#[derive(Clone, Copy)]
pub(super) struct Accumulate<'a> {
    /// Bytes of f16 or f32 elements.
    pub rows: &'a [u8],
    /// 2 or 4.
    pub element: usize,
    /// Rows to add up.
    pub count: usize,
    /// Bytes from row to row.
    pub row_stride: usize,
    /// Vectors of 16 lanes in a row: 1 to 4.
    pub vectors: usize,
    /// Bytes from vector to vector.
    pub vector_stride: usize,
    /// 1 to 4.
    pub queries: usize,
    pub factors: &'a [f32],
    /// From query to query in `factors`.
    pub factor_stride: usize,
    /// From query to query in `acc`.
    pub acc_stride: usize,
}

impl Accumulate<'_> {
    /// Element `lane` of the vector that starts at `row`.
    pub fn value(&self, row: &[u8], lane: usize) -> f32 {
        if self.element == 2 {
            f16::from_le_bytes([row[2 * lane], row[2 * lane + 1]]).to_f32()
        } else {
            let at = 4 * lane;
            f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
        }
    }

    /// Whether every access lies inside the slices.
    pub fn in_bounds(&self, acc_len: usize) -> bool {
        let rows = self.count.saturating_sub(1) * self.row_stride
            + self.vectors.saturating_sub(1) * self.vector_stride
            + 16 * self.element;
        (1..=4).contains(&self.vectors)
            && (1..=4).contains(&self.queries)
            && (self.count == 0 || rows <= self.rows.len())
            && (self.queries - 1) * self.factor_stride + self.count <= self.factors.len()
            && (self.queries - 1) * self.acc_stride + 16 * self.vectors <= acc_len
    }
}

/// What attention looks like in one layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// Geometry of the cache.
    pub shape: KvShape,
    /// Query heads; a multiple of the shape's kv heads.
    pub heads: usize,
    /// Keys seen, the token's own included; `None` = all.
    pub window: Option<usize>,
    /// Scores are multiplied by this.
    pub scale: f32,
}

/// Consecutive tokens of one sequence. Their keys and values are stored already.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// All keys of the layer.
    pub keys: &'a [u8],
    /// All values of the layer.
    pub values: &'a [u8],
    /// Position of the first token.
    pub position: usize,
    /// Tokens.
    pub tokens: usize,
    /// Row of the first token in the query and output matrices.
    pub row: usize,
}

impl Kernels {
    /// Attention of many tokens, of one sequence or several. Row `r` of `queries` starts at `r · query_stride` and
    /// holds `heads × head_dim` values; `out` is rows × (`heads × head_dim`) without gaps. Only rows named by `inputs`
    /// are written; they must not overlap.
    ///
    /// # Panics
    /// If shapes do not fit, rows overlap, or a ring is too short for the window and the tokens of a pass.
    pub fn attention(
        &self,
        team: &Team,
        spec: &AttentionSpec,
        inputs: &[AttentionInput<'_>],
        queries: &[f32],
        query_stride: usize,
        out: &mut [f32],
    ) {
        let shape = spec.shape;
        let width = spec.heads * shape.head_dim;
        assert!(
            spec.heads > 0 && spec.heads.is_multiple_of(shape.kv_heads),
            "query heads per kv head"
        );
        let mut next_row = 0;
        let mut items = Vec::new();
        for input in inputs {
            assert_eq!(input.keys.len(), shape.key_bytes(), "length of the keys");
            assert_eq!(input.values.len(), shape.value_bytes(), "length of the values");
            assert!(input.row >= next_row, "attention inputs in rising, disjoint rows");
            next_row = input.row + input.tokens;
            let end = input.position + input.tokens;
            let seen = spec
                .window
                .map_or(end, |window| end.min(window + input.tokens - 1));
            assert!(
                seen <= shape.capacity,
                "a ring of {} for {seen} positions",
                shape.capacity
            );
            for kv_head in 0..shape.kv_heads {
                for first in (0..input.tokens).step_by(SPAN) {
                    let tokens = SPAN.min(input.tokens - first);
                    items.push((input, kv_head, first, tokens));
                }
            }
        }
        if items.is_empty() {
            return;
        }
        assert!(
            query_stride >= width && queries.len() >= (next_row - 1) * query_stride + width,
            "length of the queries"
        );
        let rows = SharedRows::new(out, width);
        assert!(rows.rows() >= next_row, "length of the output");
        let group = spec.heads / shape.kv_heads * shape.head_dim;
        let work = |&(input, kv_head, first, tokens): &(&AttentionInput<'_>, usize, usize, usize)| {
            let mut scratch = Scratch::default();
            let first_query = kv_head * group;
            let query = |token: usize| {
                let at = (input.row + first + token) * query_stride + first_query;
                &queries[at..at + group]
            };
            self.span(spec, input, kv_head, (first, tokens), &query, &mut scratch);
            for (token, result) in scratch.out.chunks_exact(group).take(tokens).enumerate() {
                // SAFETY: each (row, kv head) belongs to one item (rows are disjoint between inputs, asserted above),
                // and each item is run once.
                unsafe { rows.write(input.row + first + token, first_query, result) };
            }
        };
        let positions: usize = inputs
            .iter()
            .map(|input| {
                input.tokens * (input.position + input.tokens).min(spec.window.unwrap_or(usize::MAX))
            })
            .sum();
        // Below this, waking the team takes longer than the work.
        if items.len() == 1 || positions * width < 1 << 14 {
            items.iter().for_each(work);
        } else {
            super::ops::in_turns(team, items.len(), &|index| work(&items[index]));
        }
    }

    /// Attention of a span of tokens of one kv head into `scratch.out` (tokens × group).
    fn span<'q>(
        &self,
        spec: &AttentionSpec,
        input: &AttentionInput<'_>,
        kv_head: usize,
        (first, tokens): (usize, usize),
        query: &dyn Fn(usize) -> &'q [f32],
        scratch: &mut Scratch,
    ) {
        let shape = &spec.shape;
        let (dim, padded, element) = (shape.head_dim, shape.padded_dim(), shape.element);
        let group = spec.heads / shape.kv_heads;
        let keys = &input.keys[kv_head * shape.key_head_bytes()..][..shape.key_head_bytes()];
        let values = &input.values[kv_head * shape.value_head_bytes()..][..shape.value_head_bytes()];
        let total = tokens * group;
        scratch.out.clear();
        scratch.out.resize(total * dim, 0.0);
        scratch.acc.resize(QUERIES * padded, 0.0);
        for start in (0..total).step_by(QUERIES) {
            let count = QUERIES.min(total - start);
            scratch.queries.clear();
            let mut ranges = [(0usize, 0usize); QUERIES];
            for (index, range) in ranges.iter_mut().enumerate().take(count) {
                let (token, head) = ((start + index) / group, (start + index) % group);
                scratch
                    .queries
                    .extend_from_slice(&query(token)[head * dim..(head + 1) * dim]);
                let last = input.position + first + token;
                let low = spec.window.map_or(0, |window| (last + 1).saturating_sub(window));
                *range = (low, last);
            }
            let low = ranges[0].0;
            let last = ranges[count - 1].1;
            let mut maximum = [f32::NEG_INFINITY; QUERIES];
            let mut sum = [0f32; QUERIES];
            scratch.acc.fill(0.0);
            for block in low / KV_BLOCK..=last / KV_BLOCK {
                let base = block * KV_BLOCK;
                let slot = base % shape.capacity;
                let mut scores = [0f32; QUERIES * KV_BLOCK];
                let vectors = (last - base).min(KV_BLOCK - 1) / 16 + 1;
                (self.accumulate)(
                    &Accumulate {
                        rows: &keys[slot * dim * element..(slot + KV_BLOCK) * dim * element],
                        element,
                        count: dim,
                        row_stride: 16 * element,
                        vectors,
                        vector_stride: 16 * dim * element,
                        queries: count,
                        factors: &scratch.queries,
                        factor_stride: dim,
                        acc_stride: KV_BLOCK,
                    },
                    &mut scores,
                );
                for (index, &(low, last)) in ranges.iter().enumerate().take(count) {
                    let scores = &mut scores[index * KV_BLOCK..(index + 1) * KV_BLOCK];
                    for (at, score) in scores.iter_mut().enumerate() {
                        if base + at < low || base + at > last {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                    // A block wholly outside this query's range must leave it untouched.
                    if last < base || low >= base + KV_BLOCK {
                        scores.fill(0.0);
                        continue;
                    }
                    let correction =
                        (self.vector.softmax_step)(scores, spec.scale, &mut maximum[index], &mut sum[index]);
                    let acc = &mut scratch.acc[index * padded..(index + 1) * padded];
                    (self.vector.scale)(acc, correction);
                }
                let from = low.max(base) - base;
                let to = last.min(base + KV_BLOCK - 1) - base + 1;
                let row = padded * element;
                for lane in (0..padded).step_by(64) {
                    (self.accumulate)(
                        &Accumulate {
                            rows: &values[(slot + from) * row + lane * element..(slot + to) * row],
                            element,
                            count: to - from,
                            row_stride: row,
                            vectors: (padded - lane).min(64) / 16,
                            vector_stride: 16 * element,
                            queries: count,
                            factors: &scores[from..],
                            factor_stride: KV_BLOCK,
                            acc_stride: padded,
                        },
                        &mut scratch.acc[lane..],
                    );
                }
            }
            for (index, sum) in sum.iter().enumerate().take(count) {
                let out = &mut scratch.out[(start + index) * dim..(start + index + 1) * dim];
                out.copy_from_slice(&scratch.acc[index * padded..index * padded + dim]);
                (self.vector.scale)(out, 1.0 / sum);
            }
        }
    }
}

#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    acc: Vec<f32>,
    out: Vec<f32>,
}
