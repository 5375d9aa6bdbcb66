//! Loading the codec's decoder: folds, reorders, packs.
//!
//! In: opened weights, the network's shape, how to hold matrices. Out: [`CodecDecoder`].
//! Invariant: folds are exact up to one rounding of a weight: codebook rows are divided by their usage, layer scales
//! and the ConvNeXt scale go into the matrix before them, the snake's exponentials are taken once.

use super::transformer::{Shape, Transformer, TransformerLayer};
use super::{Block, CodecDecoder, DEPTHWISE_TAPS, Quantizer, Snake, Unit, Upsampler};
use crate::base::{Bytes, Problem};
use crate::engine::nets::load::OnProgress;
use crate::engine::nets::tensors::{LEAST_USAGE, Tensors, scale_rows};
use crate::engine::nn::conv::Held;
use crate::model::speech::CodecSpec;
use crate::model::speech_tensors;
use crate::model::weights::Weights;

/// Dilations of a block's residual units.
const DILATIONS: [usize; 3] = [1, 3, 9];

impl CodecDecoder {
    /// Packs the decoder's weights; `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        spec: &CodecSpec,
        weights: &Weights,
        held: Held,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let wanted = speech_tensors::codec_decoder(spec);
        let total = wanted
            .iter()
            .filter_map(|(name, _)| weights.tensor(name))
            .map(|view| view.bytes.len() as u64)
            .sum();
        let mut tensors = Tensors::new(
            weights,
            speech_tensors::CODEC_DECODER,
            Bytes(total),
            held,
            on_progress,
        );
        let t = &mut tensors;
        let quantizer = quantizer(t, spec)?;
        let pre_conv = t.conv("pre_conv.conv", (spec.latent, spec.quantized, 3), 1)?;
        let transformer = transformer(t, spec)?;
        let upsamplers = spec
            .upsampling_ratios
            .iter()
            .enumerate()
            .map(|(index, &ratio)| upsampler(t, &format!("upsample.{index}"), spec.latent, ratio))
            .collect::<Result<_, _>>()?;
        let first = t.conv("decoder.0.conv", (spec.decoder_dim, spec.latent, 7), 1)?;
        let mut width = spec.decoder_dim;
        let mut blocks = Vec::with_capacity(spec.upsample_rates.len());
        for (index, &rate) in spec.upsample_rates.iter().enumerate() {
            blocks.push(block(t, &format!("decoder.{}.block", index + 1), width, rate)?);
            width /= 2;
        }
        let last_snake = snake(t, &format!("decoder.{}", blocks.len() + 1), width)?;
        let last = t.conv(&format!("decoder.{}.conv", blocks.len() + 2), (1, width, 7), 1)?;
        let (format_bytes, huge_pages) = tensors.into_held();
        Ok(Self {
            spec: spec.clone(),
            quantizer,
            pre_conv,
            transformer,
            upsamplers,
            first,
            blocks,
            last_snake,
            last,
            format_bytes,
            huge_pages,
        })
    }
}

fn quantizer(t: &mut Tensors<'_, '_>, spec: &CodecSpec) -> Result<Quantizer, Problem> {
    let mut tables = Vec::with_capacity(spec.codebooks);
    for book in 0..spec.codebooks {
        let at = match book {
            0 => "quantizer.rvq_first.vq.layers.0._codebook".to_owned(),
            _ => format!("quantizer.rvq_rest.vq.layers.{}._codebook", book - 1),
        };
        let mut rows = t.vector(
            &format!("{at}.embedding_sum"),
            &[spec.codebook_size, spec.code_dim],
        )?;
        let usage = t.read(&format!("{at}.cluster_usage"), &[spec.codebook_size])?;
        for (row, usage) in rows.chunks_exact_mut(spec.code_dim).zip(usage) {
            for value in row {
                *value /= usage.max(LEAST_USAGE);
            }
        }
        tables.push(rows);
    }
    let mut projection = |part: &str| {
        let name = format!("quantizer.{part}.output_proj.weight");
        let weight = t.read(&name, &[spec.quantized, spec.code_dim, 1])?;
        t.packed(&weight, &[], (spec.quantized, spec.code_dim))
    };
    Ok(Quantizer {
        first: projection("rvq_first")?,
        rest: projection("rvq_rest")?,
        tables,
    })
}

fn transformer(t: &mut Tensors<'_, '_>, spec: &CodecSpec) -> Result<Transformer, Problem> {
    let (hidden, inner, ffn) = (spec.hidden, spec.heads * spec.head_dim, spec.ffn);
    let input = t.linear("pre_transformer.input_proj", (hidden, spec.latent), true)?;
    let mut layers = Vec::with_capacity(spec.layers);
    for layer in 0..spec.layers {
        let at = format!("pre_transformer.layers.{layer}");
        let mut stacked = |parts: &[&str], rows: usize| {
            let mut all = Vec::new();
            for part in parts {
                all.extend(t.read(&format!("{at}.{part}.weight"), &[rows, hidden])?);
            }
            t.packed(&all, &[], (rows * parts.len(), hidden))
        };
        let qkv = stacked(
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            inner,
        )?;
        let gate_up = stacked(&["mlp.gate_proj", "mlp.up_proj"], ffn)?;
        let mut scaled = |part: &str, scale: &str, cols: usize| {
            let mut weight = t.read(&format!("{at}.{part}.weight"), &[hidden, cols])?;
            let scale = t.read(&format!("{at}.{scale}.scale"), &[hidden])?;
            scale_rows(&mut weight, &scale, cols);
            t.packed(&weight, &[], (hidden, cols))
        };
        let attention_out = scaled("self_attn.o_proj", "self_attn_layer_scale", inner)?;
        let down = scaled("mlp.down_proj", "mlp_layer_scale", ffn)?;
        layers.push(TransformerLayer {
            attention_norm: t.vector(&format!("{at}.input_layernorm.weight"), &[hidden])?,
            qkv,
            attention_out,
            ffn_norm: t.vector(&format!("{at}.post_attention_layernorm.weight"), &[hidden])?,
            gate_up,
            down,
        });
    }
    Ok(Transformer {
        shape: Shape::of(spec)?,
        input,
        layers,
        norm: t.vector("pre_transformer.norm.weight", &[hidden])?,
        output: t.linear("pre_transformer.output_proj", (spec.latent, hidden), true)?,
    })
}

fn upsampler(t: &mut Tensors<'_, '_>, at: &str, channels: usize, ratio: usize) -> Result<Upsampler, Problem> {
    let expand = t.transposed(&format!("{at}.0.conv"), (channels, channels, ratio), ratio)?;
    let by_channel = t.vector(
        &format!("{at}.1.dwconv.conv.weight"),
        &[channels, 1, DEPTHWISE_TAPS],
    )?;
    let mut depthwise = vec![0.0; by_channel.len()];
    for (channel, taps) in by_channel.chunks_exact(DEPTHWISE_TAPS).enumerate() {
        for (tap, weight) in taps.iter().enumerate() {
            depthwise[tap * channels + channel] = *weight;
        }
    }
    let (mut narrow, mut narrow_bias) = t.weight(
        &format!("{at}.1.pwconv2"),
        &[channels, 4 * channels],
        Some(channels),
    )?;
    let gamma = t.read(&format!("{at}.1.gamma"), &[channels])?;
    scale_rows(&mut narrow, &gamma, 4 * channels);
    scale_rows(&mut narrow_bias, &gamma, 1);
    Ok(Upsampler {
        expand,
        depthwise,
        depthwise_bias: t.vector(&format!("{at}.1.dwconv.conv.bias"), &[channels])?,
        norm: (
            t.vector(&format!("{at}.1.norm.weight"), &[channels])?,
            t.vector(&format!("{at}.1.norm.bias"), &[channels])?,
        ),
        widen: t.linear(&format!("{at}.1.pwconv1"), (4 * channels, channels), true)?,
        narrow: t.packed(&narrow, &narrow_bias, (channels, 4 * channels))?,
    })
}

fn block(t: &mut Tensors<'_, '_>, at: &str, channels: usize, rate: usize) -> Result<Block, Problem> {
    let half = channels / 2;
    let units = DILATIONS
        .iter()
        .enumerate()
        .map(|(index, &dilation)| {
            let at = format!("{at}.{}", index + 2);
            Ok(Unit {
                snakes: [
                    snake(t, &format!("{at}.act1"), half)?,
                    snake(t, &format!("{at}.act2"), half)?,
                ],
                dilated: t.conv(&format!("{at}.conv1.conv"), (half, half, 7), dilation)?,
                mix: t.conv(&format!("{at}.conv2.conv"), (half, half, 1), 1)?,
            })
        })
        .collect::<Result<_, Problem>>()?;
    Ok(Block {
        snake: snake(t, &format!("{at}.0"), channels)?,
        expand: t.transposed(&format!("{at}.1.conv"), (channels, half, 2 * rate), rate)?,
        units,
    })
}

fn snake(t: &mut Tensors<'_, '_>, at: &str, channels: usize) -> Result<Snake, Problem> {
    let mut alpha = t.vector(&format!("{at}.alpha"), &[channels])?;
    let mut beta = t.vector(&format!("{at}.beta"), &[channels])?;
    for (alpha, beta) in alpha.iter_mut().zip(&mut beta) {
        *alpha = alpha.exp();
        *beta = 1.0 / (beta.exp() + 1e-9);
    }
    Ok(Snake {
        alpha,
        inverse_beta: beta,
    })
}
