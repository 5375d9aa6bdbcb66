//! The geometry of a speech model's codec and encoders, from the configuration files.
//!
//! In: `speech_tokenizer/config.json` and `speaker_encoder_config`. Out: specs whose numbers are within range and fit
//! each other. Invariant: the specs decide how many tensors are asked for, so every list and count is bounded here.

use super::formats::hf_config::HfConfig;
use super::speech::{CodecEncoderSpec, CodecSpec, SpeakerEncoderSpec};
use crate::base::Problem;

/// Largest width or count believed.
const MAX_DIMENSION: usize = 1 << 20;
/// Most layers, codebooks or blocks believed.
const MAX_COUNT: usize = 256;
/// Kernels of the encoder's downsampling have twice this stride.
const DOWNSAMPLE: usize = 2;

/// A width or count of at least 1 and at most `most`.
pub(super) fn bounded(config: &HfConfig, key: &str, most: usize) -> Result<usize, Problem> {
    in_range(config, key, config.required_size(key)?, most)
}

fn in_range(config: &HfConfig, key: &str, value: usize, most: usize) -> Result<usize, Problem> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(config.fault(format!("`{key}` is {value}; 1 to {most} are possible")))
}

/// The same with a value where the file says nothing.
fn bounded_or(config: &HfConfig, key: &str, most: usize, default: usize) -> Result<usize, Problem> {
    in_range(config, key, config.size(key)?.unwrap_or(default), most)
}

fn width(config: &HfConfig, key: &str) -> Result<usize, Problem> {
    bounded(config, key, MAX_DIMENSION)
}

fn count(config: &HfConfig, key: &str) -> Result<usize, Problem> {
    bounded(config, key, MAX_COUNT)
}

/// A list of widths or counts.
fn list(config: &HfConfig, key: &str, most: usize) -> Result<Vec<usize>, Problem> {
    let found = config
        .sizes(key)?
        .ok_or_else(|| config.fault(format!("it has no key `{key}`")))?;
    if found.is_empty() || found.len() > 16 {
        return Err(config.fault(format!(
            "`{key}` has {} entries; 1 to 16 are possible",
            found.len()
        )));
    }
    for &value in &found {
        in_range(config, key, value, most)?;
    }
    Ok(found)
}

fn positive(config: &HfConfig, key: &str) -> Result<f32, Problem> {
    let value = config
        .real(key)?
        .ok_or_else(|| config.fault(format!("it has no key `{key}`")))? as f32;
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(config.fault(format!("`{key}` is {value}, not a positive number")))
}

/// The decoder. `codebooks` is what the language model makes; `rows` and `code_dim` are the shape of a stored
/// codebook, which the file's own sizes do not give reliably.
pub(super) fn codec(
    root: &HfConfig,
    codebooks: usize,
    (rows, code_dim): (usize, usize),
) -> Result<CodecSpec, Problem> {
    let config = root.required_section("decoder_config")?;
    let spec = CodecSpec {
        sample_rate: rate(root, "output_sample_rate")?,
        samples_per_frame: width(root, "decode_upsample_rate")?,
        codebooks: count(&config, "num_quantizers")?,
        codebook_size: rows,
        code_dim,
        quantized: width(&config, "codebook_dim")?,
        latent: width(&config, "latent_dim")?,
        hidden: width(&config, "hidden_size")?,
        layers: count(&config, "num_hidden_layers")?,
        heads: bounded(&config, "num_attention_heads", 1024)?,
        head_dim: bounded(&config, "head_dim", 1024)?,
        ffn: width(&config, "intermediate_size")?,
        window: width(&config, "sliding_window")?,
        rope_base: positive(&config, "rope_theta")?,
        norm_eps: positive(&config, "rms_norm_eps")?,
        upsampling_ratios: list(&config, "upsampling_ratios", 64)?,
        decoder_dim: width(&config, "decoder_dim")?,
        upsample_rates: list(&config, "upsample_rates", 64)?,
    };
    if spec.codebooks != codebooks {
        return Err(config.fault(format!(
            "it decodes {} codebooks, but the language model makes {codebooks}",
            spec.codebooks
        )));
    }
    if config
        .size("num_key_value_heads")?
        .is_some_and(|n| n != spec.heads)
    {
        return Err(config.refuse(
            "its key/value heads are fewer than its query heads",
            "use the speech tokenizer of the release",
        ));
    }
    let product = |factors: &[usize]| factors.iter().fold(1usize, |all, &n| all.saturating_mul(n));
    let samples = product(&spec.upsampling_ratios).saturating_mul(product(&spec.upsample_rates));
    if samples != spec.samples_per_frame {
        return Err(config.fault(format!(
            "its upsampling makes {samples} samples of a frame, but `decode_upsample_rate` is {}",
            spec.samples_per_frame
        )));
    }
    if spec.decoder_dim >> spec.upsample_rates.len() == 0
        || !spec.decoder_dim.is_multiple_of(1 << spec.upsample_rates.len())
    {
        return Err(config.fault(format!(
            "`decoder_dim` {} cannot be halved {} times",
            spec.decoder_dim,
            spec.upsample_rates.len()
        )));
    }
    if !spec.head_dim.is_multiple_of(2) {
        return Err(config.fault(format!(
            "`head_dim` is {}, which cannot be rotated",
            spec.head_dim
        )));
    }
    Ok(spec)
}

fn rate(config: &HfConfig, key: &str) -> Result<u32, Problem> {
    let rate = bounded(config, key, 768_000)?;
    Ok(u32::try_from(rate).unwrap_or(u32::MAX))
}

/// The encoder. `rows` and `code_dim` are the shape of a stored codebook.
pub(super) fn codec_encoder(
    root: &HfConfig,
    codebooks: usize,
    (rows, code_dim): (usize, usize),
) -> Result<CodecEncoderSpec, Problem> {
    let config = root.required_section("encoder_config")?;
    // The file lists the factors as a decoder would apply them.
    let mut strides = list(&config, "upsampling_ratios", 64)?;
    strides.reverse();
    let spec = CodecEncoderSpec {
        sample_rate: rate(root, "input_sample_rate")?,
        samples_per_frame: width(root, "encode_downsample_rate")?,
        filters: bounded(&config, "num_filters", 4096)?,
        kernel: bounded(&config, "kernel_size", 64)?,
        residual_kernel: bounded(&config, "residual_kernel_size", 64)?,
        last_kernel: bounded(&config, "last_kernel_size", 64)?,
        compress: bounded(&config, "compress", 64)?,
        strides,
        hidden: width(&config, "hidden_size")?,
        layers: count(&config, "num_hidden_layers")?,
        heads: bounded(&config, "num_attention_heads", 1024)?,
        head_dim: bounded(&config, "head_dim", 1024)?,
        ffn: width(&config, "intermediate_size")?,
        norm_eps: positive(&config, "norm_eps")?,
        rope_base: positive(&config, "rope_theta")?,
        window: width(&config, "sliding_window")?,
        downsample: DOWNSAMPLE,
        codebooks,
        stored_codebooks: count(&config, "num_quantizers")?,
        codebook_size: rows,
        code_dim,
    };
    if let Some(units) = config.size("num_residual_layers")?.filter(|&n| n != 1) {
        return Err(config.refuse(
            format!("it has {units} residual units in a block"),
            "use the speech tokenizer of the release",
        ));
    }
    if spec.stored_codebooks < codebooks {
        return Err(config.fault(format!(
            "it has {} codebooks, fewer than the {codebooks} of a frame",
            spec.stored_codebooks
        )));
    }
    let samples = spec
        .strides
        .iter()
        .fold(spec.downsample, |all, &n| all.saturating_mul(n));
    if samples != spec.samples_per_frame {
        return Err(config.fault(format!(
            "its strides make a frame of {samples} samples, but `encode_downsample_rate` is {}",
            spec.samples_per_frame
        )));
    }
    if !spec.filters.is_multiple_of(spec.compress) || !spec.head_dim.is_multiple_of(2) {
        return Err(config.fault(format!(
            "{} filters and heads of {} do not divide evenly",
            spec.filters, spec.head_dim
        )));
    }
    Ok(spec)
}

/// The voice-vector network; `hidden` is the talker's width, which its result must have.
pub(super) fn speaker_encoder(root: &HfConfig, hidden: usize) -> Result<SpeakerEncoderSpec, Problem> {
    let config = root.required_section("speaker_encoder_config")?;
    let or = |key: &str, default: &[usize]| -> Result<Vec<usize>, Problem> {
        if config.get(key).is_none() {
            return Ok(default.to_vec());
        }
        list(&config, key, MAX_DIMENSION)
    };
    let spec = SpeakerEncoderSpec {
        sample_rate: rate(&config, "sample_rate")?,
        mel: bounded_or(&config, "mel_dim", 1024, 128)?,
        channels: or("enc_channels", &[512, 512, 512, 512, 1536])?,
        kernels: or("enc_kernel_sizes", &[5, 3, 3, 3, 1])?,
        dilations: or("enc_dilations", &[1, 2, 3, 4, 1])?,
        attention: bounded_or(&config, "enc_attention_channels", MAX_DIMENSION, 128)?,
        scale: bounded_or(&config, "enc_res2net_scale", 64, 8)?,
        squeeze: bounded_or(&config, "enc_se_channels", MAX_DIMENSION, 128)?,
        output: width(&config, "enc_dim")?,
    };
    let parts = spec.channels.len();
    if parts < 3 || spec.kernels.len() != parts || spec.dilations.len() != parts {
        return Err(config.fault(format!(
            "it has {parts} widths, {} kernels and {} dilations; as many of each, at least 3, are possible",
            spec.kernels.len(),
            spec.dilations.len()
        )));
    }
    let uneven = spec.channels[1..parts - 1]
        .iter()
        .any(|&n| !n.is_multiple_of(spec.scale) || n != spec.channels[0]);
    if uneven || spec.scale < 2 {
        return Err(config.fault(format!(
            "blocks of widths {:?} cannot be cut into {} groups",
            spec.channels, spec.scale
        )));
    }
    if spec.output != hidden {
        return Err(config.fault(format!(
            "`enc_dim` is {}, but the talker is {hidden} wide",
            spec.output
        )));
    }
    Ok(spec)
}
