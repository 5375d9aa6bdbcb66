//! Loading the codec's encoder.
//!
//! In: opened weights, the network's shape. Out: [`CodecEncoder`], in F32.
//! Invariant: as for the decoder: codebook rows are divided by their usage, layer scales go into the matrix before
//! them. Codebooks beyond those that are used are not read.

use super::{Block, CodecEncoder, Layer, Quantizer};
use crate::base::{Bytes, Code, Problem};
use crate::engine::nets::load::OnProgress;
use crate::engine::nets::tensors::{LEAST_USAGE, Tensors, scale_rows};
use crate::engine::nn::conv::Held;
use crate::model::speech::CodecEncoderSpec;
use crate::model::speech_tensors;
use crate::model::weight_path::WeightPath;
use crate::model::weights::Weights;

/// What stands before the names of the encoder's tensors.
const PREFIX: &str = "encoder.";

impl CodecEncoder {
    /// Packs the encoder's weights; `on_progress` is called after each tensor.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `memory_short`.
    pub fn load(
        spec: &CodecEncoderSpec,
        weights: &Weights,
        huge_pages: bool,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        if spec.compress == 0 || spec.codebooks < 2 || spec.downsample == 0 || spec.strides.contains(&0) {
            return Err(Problem::new(
                Code::ModelUnsupported,
                "a codec encoder with a stride or compression of zero, or fewer than two codebooks",
                "use a release of the model as published",
            ));
        }
        let total = speech_tensors::codec_encoder(spec)
            .iter()
            .filter_map(|(name, _)| weights.tensor(name))
            .map(|view| view.bytes.len() as u64)
            .sum();
        let held = Held {
            path: WeightPath::Native,
            huge_pages,
        };
        let mut tensors = Tensors::new(weights, PREFIX, Bytes(total), held, on_progress);
        let t = &mut tensors;
        let mut width = spec.filters;
        let first = t.conv("encoder.layers.0.conv", (width, 1, spec.kernel), 1)?;
        let mut blocks = Vec::new();
        for (index, &stride) in spec.strides.iter().enumerate() {
            let at = 1 + 3 * index;
            let narrow = width / spec.compress;
            blocks.push(Block {
                narrow: t.conv(
                    &format!("encoder.layers.{at}.block.1.conv"),
                    (narrow, width, spec.residual_kernel),
                    1,
                )?,
                widen: t.conv(
                    &format!("encoder.layers.{at}.block.3.conv"),
                    (width, narrow, 1),
                    1,
                )?,
                reduce: t.strided(
                    &format!("encoder.layers.{}.conv", at + 2),
                    (2 * width, width, 2 * stride),
                    stride,
                    true,
                )?,
            });
            width *= 2;
        }
        let last = t.conv(
            &format!("encoder.layers.{}.conv", 2 + 3 * spec.strides.len()),
            (spec.hidden, width, spec.last_kernel),
            1,
        )?;
        let layers = (0..spec.layers)
            .map(|index| layer(t, &format!("encoder_transformer.layers.{index}"), spec))
            .collect::<Result<_, _>>()?;
        let downsample = t.strided(
            "downsample.conv",
            (spec.hidden, spec.hidden, 2 * spec.downsample),
            spec.downsample,
            false,
        )?;
        let semantic = quantizer(t, "semantic", 1, spec)?;
        let acoustic = quantizer(t, "acoustic", spec.codebooks - 1, spec)?;
        Ok(Self {
            spec: spec.clone(),
            first,
            blocks,
            last,
            layers,
            downsample,
            semantic,
            acoustic,
            format_bytes: tensors.into_held().0,
        })
    }
}

fn layer(t: &mut Tensors<'_, '_>, at: &str, spec: &CodecEncoderSpec) -> Result<Layer, Problem> {
    let (hidden, inner, ffn) = (spec.hidden, spec.heads * spec.head_dim, spec.ffn);
    let mut norm = |name: &str| -> Result<_, Problem> {
        Ok((
            t.vector(&format!("{at}.{name}.weight"), &[hidden])?,
            t.vector(&format!("{at}.{name}.bias"), &[hidden])?,
        ))
    };
    let attention_norm = norm("input_layernorm")?;
    let ffn_norm = norm("post_attention_layernorm")?;
    let mut qkv = Vec::new();
    for part in ["q_proj", "k_proj", "v_proj"] {
        qkv.extend(t.read(&format!("{at}.self_attn.{part}.weight"), &[inner, hidden])?);
    }
    let qkv = t.packed(&qkv, &[], (3 * inner, hidden))?;
    let mut scaled = |part: &str, scale: &str, cols: usize| {
        let mut weight = t.read(&format!("{at}.{part}.weight"), &[hidden, cols])?;
        let scale = t.read(&format!("{at}.{scale}.scale"), &[hidden])?;
        scale_rows(&mut weight, &scale, cols);
        t.packed(&weight, &[], (hidden, cols))
    };
    let attention_out = scaled("self_attn.o_proj", "self_attn_layer_scale", inner)?;
    let down = scaled("mlp.fc2", "mlp_layer_scale", ffn)?;
    Ok(Layer {
        attention_norm,
        qkv,
        attention_out,
        ffn_norm,
        up: t.linear(&format!("{at}.mlp.fc1"), (ffn, hidden), false)?,
        down,
    })
}

fn quantizer(
    t: &mut Tensors<'_, '_>,
    part: &str,
    books: usize,
    spec: &CodecEncoderSpec,
) -> Result<Quantizer, Problem> {
    let at = format!("quantizer.{part}_residual_vector_quantizer");
    let weight = t.read(
        &format!("{at}.input_proj.weight"),
        &[spec.code_dim, spec.hidden, 1],
    )?;
    let projection = t.packed(&weight, &[], (spec.code_dim, spec.hidden))?;
    let mut tables = Vec::with_capacity(books);
    for book in 0..books {
        let at = format!("{at}.layers.{book}.codebook");
        let mut rows = t.vector(&format!("{at}.embed_sum"), &[spec.codebook_size, spec.code_dim])?;
        let usage = t.read(&format!("{at}.cluster_usage"), &[spec.codebook_size])?;
        for (row, usage) in rows.chunks_exact_mut(spec.code_dim).zip(usage) {
            for value in row {
                *value /= usage.max(LEAST_USAGE);
            }
        }
        tables.push(rows);
    }
    Ok(Quantizer { projection, tables })
}
