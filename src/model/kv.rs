//! How many key/value slots each layer keeps, and what they cost in bytes.
//!
//! In: a [`DecoderSpec`], the context, the sequences at once, bytes of one element, the longest prompt chunk.
//! Out: slots by layer and exact bytes. Invariant: deriving and the engine's allocation use this one formula, so
//! the plan's number is the number allocated.
//!
//! A full layer keeps every token of the context. A sliding layer is a ring. While a chunk of `n` prompt tokens is
//! processed, its first query still needs the `window - 1` keys before it and its last query needs all `n` keys of
//! the chunk, so the ring holds `window - 1 + n` slots and never more than the context. Both are rounded up to whole
//! blocks of [`BLOCK`], the unit of attention, and a value head to a multiple of [`VALUE_LANES`] elements.

use super::card::{AttentionKind, DecoderSpec};
use crate::base::Bytes;

/// Slots come in blocks of this many: attention works on whole blocks.
pub const BLOCK: usize = 64;
/// A value head occupies a multiple of this many elements: one vector.
pub const VALUE_LANES: usize = 16;

/// Slots that one sequence has in a layer of this kind.
#[must_use]
pub fn slots(attention: AttentionKind, context: usize, prefill_batch: usize) -> usize {
    let tokens = match attention {
        AttentionKind::Full => context,
        AttentionKind::Sliding { window } => window
            .max(1)
            .saturating_add(prefill_batch.max(1) - 1)
            .min(context),
    };
    tokens.checked_next_multiple_of(BLOCK).unwrap_or(usize::MAX)
}

/// [`slots`] of every layer, in order.
#[must_use]
pub fn slots_by_layer(spec: &DecoderSpec, context: usize, prefill_batch: usize) -> Vec<usize> {
    spec.layers
        .iter()
        .map(|layer| slots(layer.attention, context, prefill_batch))
        .collect()
}

/// Bytes of the key and value caches of all layers for `max_seqs` sequences; saturates instead of overflowing.
#[must_use]
pub fn kv_bytes(
    spec: &DecoderSpec,
    context: usize,
    max_seqs: usize,
    element_bytes: usize,
    prefill_batch: usize,
) -> Bytes {
    let slots: u128 = slots_by_layer(spec, context, prefill_batch)
        .into_iter()
        .map(|n| n as u128)
        .sum();
    let head_elements =
        spec.head_dim as u128 + (spec.value_dim as u128).next_multiple_of(VALUE_LANES as u128);
    let slot_elements = (spec.kv_heads as u128).saturating_mul(head_elements);
    let total = slots
        .saturating_mul(slot_elements)
        .saturating_mul(element_bytes as u128)
        .saturating_mul(max_seqs as u128);
    Bytes(u64::try_from(total).unwrap_or(u64::MAX))
}

/// The longest context whose cache for `max_seqs` sequences fits into `available`; 0 if not even one token fits.
#[must_use]
pub fn largest_context(
    spec: &DecoderSpec,
    max_seqs: usize,
    element_bytes: usize,
    prefill_batch: usize,
    available: Bytes,
    limit: usize,
) -> usize {
    // The size rises with the context, so halving the interval finds the last one that fits.
    let (mut fits, mut exceeds) = (0, limit.saturating_add(1));
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        if kv_bytes(spec, middle, max_seqs, element_bytes, prefill_batch) <= available {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::card::{Activation, LayerSpec, RopeSpec};

    fn spec(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        kind: impl Fn(usize) -> AttentionKind,
    ) -> DecoderSpec {
        let rope = RopeSpec {
            base: 1e4,
            dims: head_dim,
            position_divisor: 1.0,
            frequency_divisors: Vec::new(),
        };
        DecoderSpec {
            vocab: 10,
            hidden: 64,
            heads: kv_heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            ffn: 64,
            layers: (0..layers)
                .map(|i| LayerSpec {
                    attention: kind(i),
                    rope: rope.clone(),
                })
                .collect(),
            norm_eps: 1e-6,
            norm_weight_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: 1.0,
            activation: Activation::Silu,
            qk_norm: false,
            post_norms: false,
            head_gate: None,
            fused_qkv: false,
            qk_rows_interleaved: false,
            tied_embeddings: true,
            logit_softcap: None,
        }
    }

    #[test]
    fn published_sizes_are_met_exactly() {
        let full = |_| AttentionKind::Full;
        let qwen = spec(28, 8, 128, full);
        assert_eq!(kv_bytes(&qwen, 131_072, 1, 2, 512), Bytes(15_032_385_536));
        assert_eq!(kv_bytes(&qwen, 40_960, 1, 2, 512), Bytes(4_697_620_480));
        assert_eq!(
            kv_bytes(&spec(40, 8, 128, full), 1_024_000, 1, 2, 1),
            Bytes(167_772_160_000)
        );
    }

    #[test]
    fn sliding_layers_keep_window_and_chunk_and_never_more_than_the_context() {
        let sliding = AttentionKind::Sliding { window: 512 };
        assert_eq!(slots(sliding, 32_768, 1), 512);
        assert_eq!(slots(sliding, 32_768, 128), 640);
        assert_eq!(slots(sliding, 256, 128), 256);
        assert_eq!(
            slots(AttentionKind::Sliding { window: usize::MAX }, 100, usize::MAX),
            128
        );
        let gemma = spec(18, 1, 256, |i| {
            if (i + 1) % 6 == 0 {
                AttentionKind::Full
            } else {
                sliding
            }
        });
        let tokens = 15 * 640 + 3 * 4096;
        assert_eq!(kv_bytes(&gemma, 4096, 2, 2, 128), Bytes(tokens * 256 * 2 * 2 * 2));
    }

    #[test]
    fn keys_and_values_of_different_width_count_separately_and_nothing_overflows() {
        let mut deep = spec(1, 1, 192, |_| AttentionKind::Full);
        deep.value_dim = 128;
        assert_eq!(kv_bytes(&deep, 10, 1, 2, 1), Bytes(64 * (192 + 128) * 2));
        assert_eq!(kv_bytes(&deep, usize::MAX, usize::MAX, 4, 1), Bytes(u64::MAX));
    }

    #[test]
    fn the_largest_context_fits_and_the_next_does_not() {
        let spec = spec(28, 8, 128, |_| AttentionKind::Full);
        let budget = Bytes::gib(2);
        let found = largest_context(&spec, 1, 2, 512, budget, 1 << 20);
        assert!(kv_bytes(&spec, found, 1, 2, 512) <= budget);
        assert_eq!(found % BLOCK, 0, "a started block is a whole one");
        assert!(kv_bytes(&spec, found + 1, 1, 2, 512) > budget);
        assert_eq!(largest_context(&spec, 1, 2, 512, Bytes(0), 4096), 0);
        assert_eq!(largest_context(&spec, 1, 2, 512, Bytes::gib(99), 4096), 4096);
    }
}
