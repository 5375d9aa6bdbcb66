//! Names and shapes of every tensor of a Qwen3-TTS release.
//!
//! In: a speech model's networks as data. Out: what its files must hold, and which of it is read.
//! Invariant: the lists are those of the published files; a test holds them to the releases' own inventory.

use super::card::{DecoderSpec, ModelFormat};
use super::families::{Family, LAYER_ROLES, TensorRole, required_shape, tensor_name};
use super::speech::{CodecEncoderSpec, CodecSpec, SpeakerEncoderSpec, SpeechCard};

/// What stands before the names of the talker's tensors.
pub const TALKER_PREFIX: &str = "talker.";
/// What stands before the names of the predictor's tensors.
pub const PREDICTOR_PREFIX: &str = "talker.code_predictor.";
/// The text embedding, `[text_vocab, text_hidden]`.
pub const TEXT_EMBEDDING: &str = "talker.model.text_embedding.weight";
/// The text projection's layers: `[text_hidden, text_hidden]` and `[hidden, text_hidden]`, each with a bias.
pub const TEXT_PROJECTION: [&str; 2] = [
    "talker.text_projection.linear_fc1",
    "talker.text_projection.linear_fc2",
];
/// The predictor's projection of its inputs, where there is one.
pub const PREDICTOR_PROJECTION: &str = "talker.code_predictor.small_to_mtp_projection";
/// What stands before the names of the codec decoder's tensors.
pub const CODEC_DECODER: &str = "decoder.";

/// A tensor's name and shape, outermost dimension first.
pub type Wanted = (String, Vec<u64>);

/// The predictor's embedding of codebook `group + 1`.
#[must_use]
pub fn predictor_embedding(group: usize) -> String {
    format!("{PREDICTOR_PREFIX}model.codec_embedding.{group}.weight")
}

/// The predictor's head for codebook `group + 1`.
#[must_use]
pub fn predictor_head(group: usize) -> String {
    format!("{PREDICTOR_PREFIX}lm_head.{group}.weight")
}

/// A list of names and shapes under construction.
struct List {
    prefix: String,
    wanted: Vec<Wanted>,
}

impl List {
    fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            wanted: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let shape = shape.iter().map(|&n| n as u64).collect();
        self.wanted.push((format!("{}{name}", self.prefix), shape));
    }

    /// A weight and the bias of its outputs.
    fn biased(&mut self, name: &str, shape: &[usize]) {
        self.add(&format!("{name}.weight"), shape);
        self.add(&format!("{name}.bias"), &shape[..1]);
    }
}

/// Everything read of `model.safetensors`: talker, predictor and, where there is one, speaker encoder.
#[must_use]
pub fn language_model(family: &Family, talker: &DecoderSpec, speech: &SpeechCard) -> Vec<Wanted> {
    let mut list = List::new("");
    list.add(TEXT_EMBEDDING, &[speech.text_vocab, speech.text_hidden]);
    let [first, second] = TEXT_PROJECTION;
    list.biased(first, &[speech.text_hidden, speech.text_hidden]);
    list.biased(second, &[talker.hidden, speech.text_hidden]);
    list.wanted.extend(network(family, TALKER_PREFIX, talker));
    let predictor = &speech.predictor;
    for group in 0..speech.codebooks.saturating_sub(1) {
        list.add(&predictor_embedding(group), &[predictor.vocab, talker.hidden]);
        list.add(&predictor_head(group), &[predictor.vocab, predictor.hidden]);
    }
    if speech.predictor_projection {
        list.biased(PREDICTOR_PROJECTION, &[predictor.hidden, talker.hidden]);
    }
    let single_tables = [TensorRole::TokenEmbedding, TensorRole::Output]
        .map(|role| tensor_name(ModelFormat::Safetensors, family.name, role, 0));
    list.wanted.extend(
        network(family, PREDICTOR_PREFIX, predictor)
            .into_iter()
            .filter(|(name, _)| {
                let own = name.strip_prefix(PREDICTOR_PREFIX).map(str::to_owned);
                !single_tables.contains(&own)
            }),
    );
    if let Some(encoder) = &speech.speaker_encoder {
        list.wanted.extend(speaker_encoder(encoder));
    }
    list.wanted
}

/// A decoder's tensors under the family's names.
fn network(family: &Family, prefix: &str, spec: &DecoderSpec) -> Vec<Wanted> {
    let once = [
        TensorRole::TokenEmbedding,
        TensorRole::OutputNorm,
        TensorRole::Output,
    ]
    .map(|role| (role, 0));
    let layered = (0..spec.layers.len()).flat_map(|layer| LAYER_ROLES.map(|role| (role, layer)));
    once.into_iter()
        .chain(layered)
        .filter_map(|(role, layer)| {
            let name = tensor_name(ModelFormat::Safetensors, family.name, role, layer)?;
            Some((format!("{prefix}{name}"), required_shape(role, spec)?))
        })
        .collect()
}

fn speaker_encoder(spec: &SpeakerEncoderSpec) -> Vec<Wanted> {
    let mut list = List::new("speaker_encoder.");
    let (channels, kernels) = (&spec.channels, &spec.kernels);
    let last = channels.len() - 1;
    list.biased("blocks.0.conv", &[channels[0], spec.mel, kernels[0]]);
    for block in 1..last {
        let (before, width) = (channels[block - 1], channels[block]);
        let at = format!("blocks.{block}");
        list.biased(&format!("{at}.tdnn1.conv"), &[width, before, 1]);
        for part in 0..spec.scale.saturating_sub(1) {
            let narrow = width / spec.scale;
            list.biased(
                &format!("{at}.res2net_block.blocks.{part}.conv"),
                &[narrow, narrow, kernels[block]],
            );
        }
        list.biased(&format!("{at}.tdnn2.conv"), &[width, width, 1]);
        list.biased(&format!("{at}.se_block.conv1"), &[spec.squeeze, width, 1]);
        list.biased(&format!("{at}.se_block.conv2"), &[width, spec.squeeze, 1]);
    }
    let joined = channels[last];
    let concatenated: usize = channels[1..last].iter().sum();
    list.biased("mfa.conv", &[joined, concatenated, kernels[last]]);
    list.biased("asp.tdnn.conv", &[spec.attention, 3 * joined, 1]);
    list.biased("asp.conv", &[joined, spec.attention, 1]);
    list.biased("fc", &[spec.output, 2 * joined, 1]);
    list.wanted
}

/// Everything the codec's decoder has in `speech_tokenizer/model.safetensors`.
#[must_use]
pub fn codec_decoder(spec: &CodecSpec) -> Vec<Wanted> {
    let mut list = List::new(CODEC_DECODER);
    for (part, codebooks) in [("rvq_first", 1), ("rvq_rest", spec.codebooks.saturating_sub(1))] {
        let at = format!("quantizer.{part}");
        list.add(
            &format!("{at}.output_proj.weight"),
            &[spec.quantized, spec.code_dim, 1],
        );
        for layer in 0..codebooks {
            let codebook = format!("{at}.vq.layers.{layer}._codebook");
            list.add(
                &format!("{codebook}.embedding_sum"),
                &[spec.codebook_size, spec.code_dim],
            );
            list.add(&format!("{codebook}.cluster_usage"), &[spec.codebook_size]);
        }
    }
    list.biased("pre_conv.conv", &[spec.latent, spec.quantized, 3]);
    let (hidden, inner) = (spec.hidden, spec.heads * spec.head_dim);
    list.biased("pre_transformer.input_proj", &[hidden, spec.latent]);
    list.biased("pre_transformer.output_proj", &[spec.latent, hidden]);
    list.add("pre_transformer.norm.weight", &[hidden]);
    for layer in 0..spec.layers {
        let at = format!("pre_transformer.layers.{layer}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            list.add(&format!("{at}.{norm}.weight"), &[hidden]);
        }
        for projection in ["q_proj", "k_proj", "v_proj"] {
            list.add(&format!("{at}.self_attn.{projection}.weight"), &[inner, hidden]);
        }
        list.add(&format!("{at}.self_attn.o_proj.weight"), &[hidden, inner]);
        for projection in ["gate_proj", "up_proj"] {
            list.add(&format!("{at}.mlp.{projection}.weight"), &[spec.ffn, hidden]);
        }
        list.add(&format!("{at}.mlp.down_proj.weight"), &[hidden, spec.ffn]);
        list.add(&format!("{at}.self_attn_layer_scale.scale"), &[hidden]);
        list.add(&format!("{at}.mlp_layer_scale.scale"), &[hidden]);
    }
    let latent = spec.latent;
    for (index, &ratio) in spec.upsampling_ratios.iter().enumerate() {
        let at = format!("upsample.{index}");
        list.add(&format!("{at}.0.conv.weight"), &[latent, latent, ratio]);
        list.add(&format!("{at}.0.conv.bias"), &[latent]);
        list.add(&format!("{at}.1.gamma"), &[latent]);
        list.biased(&format!("{at}.1.dwconv.conv"), &[latent, 1, 7]);
        list.add(&format!("{at}.1.norm.weight"), &[latent]);
        list.add(&format!("{at}.1.norm.bias"), &[latent]);
        list.biased(&format!("{at}.1.pwconv1"), &[4 * latent, latent]);
        list.biased(&format!("{at}.1.pwconv2"), &[latent, 4 * latent]);
    }
    list.biased("decoder.0.conv", &[spec.decoder_dim, latent, 7]);
    let mut width = spec.decoder_dim;
    for (index, &rate) in spec.upsample_rates.iter().enumerate() {
        let at = format!("decoder.{}.block", index + 1);
        let half = width / 2;
        snake(&mut list, &format!("{at}.0"), width);
        list.add(&format!("{at}.1.conv.weight"), &[width, half, 2 * rate]);
        list.add(&format!("{at}.1.conv.bias"), &[half]);
        for unit in 2..5 {
            snake(&mut list, &format!("{at}.{unit}.act1"), half);
            list.biased(&format!("{at}.{unit}.conv1.conv"), &[half, half, 7]);
            snake(&mut list, &format!("{at}.{unit}.act2"), half);
            list.biased(&format!("{at}.{unit}.conv2.conv"), &[half, half, 1]);
        }
        width = half;
    }
    let blocks = spec.upsample_rates.len();
    snake(&mut list, &format!("decoder.{}", blocks + 1), width);
    list.biased(&format!("decoder.{}.conv", blocks + 2), &[1, width, 7]);
    list.wanted
}

fn snake(list: &mut List, name: &str, channels: usize) {
    list.add(&format!("{name}.alpha"), &[channels]);
    list.add(&format!("{name}.beta"), &[channels]);
}

/// What the codec's encoder reads of `speech_tokenizer/model.safetensors`.
#[must_use]
pub fn codec_encoder(spec: &CodecEncoderSpec) -> Vec<Wanted> {
    let mut list = List::new("encoder.");
    let mut width = spec.filters;
    list.biased("encoder.layers.0.conv", &[width, 1, spec.kernel]);
    // A block is a residual unit, an activation and a strided convolution: three entries of the list.
    for (index, &stride) in spec.strides.iter().enumerate() {
        let at = 1 + 3 * index;
        let narrow = width / spec.compress;
        list.biased(
            &format!("encoder.layers.{at}.block.1.conv"),
            &[narrow, width, spec.residual_kernel],
        );
        list.biased(&format!("encoder.layers.{at}.block.3.conv"), &[width, narrow, 1]);
        list.biased(
            &format!("encoder.layers.{}.conv", at + 2),
            &[2 * width, width, 2 * stride],
        );
        width *= 2;
    }
    let last = 2 + 3 * spec.strides.len();
    list.biased(
        &format!("encoder.layers.{last}.conv"),
        &[spec.hidden, width, spec.last_kernel],
    );
    let (hidden, inner) = (spec.hidden, spec.heads * spec.head_dim);
    for layer in 0..spec.layers {
        let at = format!("encoder_transformer.layers.{layer}");
        for projection in ["q_proj", "k_proj", "v_proj"] {
            list.add(&format!("{at}.self_attn.{projection}.weight"), &[inner, hidden]);
        }
        list.add(&format!("{at}.self_attn.o_proj.weight"), &[hidden, inner]);
        list.add(&format!("{at}.mlp.fc1.weight"), &[spec.ffn, hidden]);
        list.add(&format!("{at}.mlp.fc2.weight"), &[hidden, spec.ffn]);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            list.biased(&format!("{at}.{norm}"), &[hidden]);
        }
        list.add(&format!("{at}.self_attn_layer_scale.scale"), &[hidden]);
        list.add(&format!("{at}.mlp_layer_scale.scale"), &[hidden]);
    }
    list.add("downsample.conv.weight", &[hidden, hidden, 2 * spec.downsample]);
    for (part, codebooks) in [("semantic", 1), ("acoustic", spec.codebooks.saturating_sub(1))] {
        let at = format!("quantizer.{part}_residual_vector_quantizer");
        list.add(&format!("{at}.input_proj.weight"), &[spec.code_dim, hidden, 1]);
        for layer in 0..codebooks {
            let codebook = format!("{at}.layers.{layer}.codebook");
            list.add(
                &format!("{codebook}.embed_sum"),
                &[spec.codebook_size, spec.code_dim],
            );
            list.add(&format!("{codebook}.cluster_usage"), &[spec.codebook_size]);
        }
    }
    list.wanted
}

/// Tensors of a release that are not read: what only training or the other direction needs.
#[must_use]
pub fn is_unread(name: &str) -> bool {
    let decoder_input = name.starts_with("decoder.quantizer.") && name.ends_with(".input_proj.weight");
    let encoder_rest = name.starts_with("encoder.quantizer.")
        && (name.ends_with(".output_proj.weight")
            || name.ends_with(".initialized")
            || name.contains(".acoustic_residual_vector_quantizer.layers."));
    decoder_input || encoder_rest
}
