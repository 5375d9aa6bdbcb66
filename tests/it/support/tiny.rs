//! Small random F32 models of every family, written as GGUF and as a safetensors folder with the same weights.
//!
//! In: a family and a seed. Out: files that hold one network in both conventions: GGUF has Llama's q and k rows
//! interleaved and Gemma's norms with the 1 added, safetensors have neither.

use std::path::{Path, PathBuf};

use edge_deploy::model::card::{
    Activation, AttentionKind, DecoderSpec, GateActivation, LayerSpec, ModelFormat, RopeSpec, TensorType,
};
use edge_deploy::model::families::{LAYER_ROLES, MODEL_ROLES, TensorRole, required_shape};
use edge_deploy::model::tensor_name;
use serde_json::{Value, json};

use super::gguf::{GgufWriter, encode, type_id};

/// Families that [`TinyModel::new`] knows.
pub const FAMILIES: [&str; 4] = ["llama", "qwen3", "gemma3", "spark2_5"];
/// Tokens of context the models say they were trained for.
pub const CONTEXT: u32 = 512;

/// How a tensor of this shape and these values is stored: type and data.
pub type Stored<'s> = &'s mut dyn FnMut(&[u64], &[f32]) -> (TensorType, Vec<u8>);

/// A network and its weights in the safetensors convention.
#[derive(Clone, Debug)]
pub struct TinyModel {
    pub family: &'static str,
    /// Tokens of context it says it was trained for.
    pub context: u32,
    /// The network as `inspect` has to describe it for a safetensors folder.
    pub spec: DecoderSpec,
    /// Role, layer, shape (outermost first), values.
    pub tensors: Vec<(TensorRole, usize, Vec<u64>, Vec<f32>)>,
}

/// Uniform numbers from a 64-bit state (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// -1..1.
    pub fn next(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn rope(base: f32, dims: usize) -> RopeSpec {
    RopeSpec {
        base,
        dims,
        position_divisor: 1.0,
        frequency_divisors: Vec::new(),
    }
}

fn spec(family: &str, vocab: usize) -> DecoderSpec {
    let plain = DecoderSpec {
        vocab,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        value_dim: 16,
        ffn: 96,
        layers: vec![
            LayerSpec {
                attention: AttentionKind::Full,
                rope: rope(1e4, 16)
            };
            2
        ],
        norm_eps: 1e-5,
        norm_weight_offset: 0.0,
        embedding_scale: 1.0,
        attention_scale: 0.25,
        activation: Activation::Silu,
        qk_norm: false,
        post_norms: false,
        head_gate: None,
        fused_qkv: false,
        qk_rows_interleaved: false,
        tied_embeddings: false,
        logit_softcap: None,
    };
    // The other families have a head width that is not hidden / heads.
    let wide = DecoderSpec {
        head_dim: 32,
        value_dim: 32,
        attention_scale: 1.0 / 32f32.sqrt(),
        norm_eps: 1e-6,
        tied_embeddings: true,
        ..plain.clone()
    };
    let layers = |count: usize, period: usize, sliding: RopeSpec, full: RopeSpec| -> Vec<LayerSpec> {
        let layer = |i: usize| {
            if (i + 1).is_multiple_of(period) {
                return LayerSpec {
                    attention: AttentionKind::Full,
                    rope: full.clone(),
                };
            }
            LayerSpec {
                attention: AttentionKind::Sliding { window: 8 },
                rope: sliding.clone(),
            }
        };
        (0..count).map(layer).collect()
    };
    match family {
        "llama" => plain,
        "qwen3" => DecoderSpec {
            qk_norm: true,
            layers: layers(2, 1, rope(1e6, 32), rope(1e6, 32)),
            ..wide
        },
        "gemma3" => DecoderSpec {
            kv_heads: 1,
            qk_norm: true,
            post_norms: true,
            norm_weight_offset: 1.0,
            embedding_scale: 8.0,
            activation: Activation::GeluTanh,
            layers: layers(7, 6, rope(1e4, 32), rope(1e6, 32)),
            ..wide
        },
        "spark2_5" => DecoderSpec {
            head_gate: Some(GateActivation::Sigmoid),
            fused_qkv: true,
            activation: Activation::GeluErf,
            layers: layers(4, 4, rope(1e4, 32), rope(5e6, 8)),
            ..wide
        },
        other => panic!("no tiny model of family {other}"),
    }
}

impl TinyModel {
    /// The family's small network with weights from `seed`.
    pub fn new(family: &'static str, seed: u64) -> Self {
        let spec = spec(family, super::tiny_tokenizer::vocabulary(family).len());
        Self::with_spec(family, spec, seed)
    }

    /// A small Llama whose matrices are whole blocks of every type.
    pub fn llama_in_blocks(seed: u64) -> Self {
        let narrow = spec("llama", super::tiny_tokenizer::vocabulary("llama").len());
        let layer = LayerSpec {
            attention: AttentionKind::Full,
            rope: rope(1e4, 64),
        };
        let spec = DecoderSpec {
            hidden: 256,
            head_dim: 64,
            value_dim: 64,
            attention_scale: 0.125,
            ffn: 512,
            layers: vec![layer; 2],
            ..narrow
        };
        Self::with_spec("llama", spec, seed)
    }

    /// Keys and values in the geometry of Spark-X2.5-1.7B, and little else.
    pub fn spark_geometry(seed: u64) -> Self {
        let narrow = spec("spark2_5", super::tiny_tokenizer::vocabulary("spark2_5").len());
        let layer = |index: usize| {
            if index % 4 == 3 {
                return LayerSpec {
                    attention: AttentionKind::Full,
                    rope: rope(5e6, 64),
                };
            }
            LayerSpec {
                attention: AttentionKind::Sliding { window: 512 },
                rope: rope(1e4, 256),
            }
        };
        let spec = DecoderSpec {
            heads: 2,
            kv_heads: 2,
            head_dim: 256,
            value_dim: 256,
            attention_scale: 1.0 / 16.0,
            layers: (0..28).map(layer).collect(),
            ..narrow
        };
        Self {
            context: 1 << 20,
            ..Self::with_spec("spark2_5", spec, seed)
        }
    }

    fn with_spec(family: &'static str, spec: DecoderSpec, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let mut tensors = Vec::new();
        let once = MODEL_ROLES.into_iter().map(|role| (role, 0));
        let layered = (0..spec.layers.len()).flat_map(|layer| LAYER_ROLES.map(|role| (role, layer)));
        for (role, layer) in once.chain(layered) {
            let Some(shape) = required_shape(role, &spec) else {
                continue;
            };
            let count: u64 = shape.iter().product();
            let values = if shape.len() == 1 {
                (0..count)
                    .map(|_| 1.0 - spec.norm_weight_offset + 0.2 * noise.next())
                    .collect()
            } else {
                let width = (3.0 / *shape.last().unwrap() as f32).sqrt();
                (0..count).map(|_| width * noise.next()).collect()
            };
            tensors.push((role, layer, shape, values));
        }
        Self {
            family,
            context: CONTEXT,
            spec,
            tensors,
        }
    }

    /// The same network with every value rounded to what `dtype` can hold.
    pub fn rounded(mut self, dtype: TensorType) -> Self {
        for (.., values) in &mut self.tensors {
            for value in values {
                *value = match dtype {
                    TensorType::F16 => half::f16::from_f32(*value).to_f32(),
                    TensorType::BF16 => half::bf16::from_f32(*value).to_f32(),
                    _ => *value,
                };
            }
        }
        self
    }

    /// The model as GGUF, ready to write or to damage.
    pub fn gguf(&self) -> GgufWriter {
        self.gguf_as(&mut |_, values| (TensorType::F32, encode(TensorType::F32, values)))
    }

    /// The model as GGUF with each tensor as `stored` answers for its shape and values.
    pub fn gguf_as(&self, stored: Stored<'_>) -> GgufWriter {
        let spec = &self.spec;
        let key = |name: &str| format!("{}.{name}", self.family);
        let full = spec
            .layers
            .iter()
            .rev()
            .find(|l| l.attention == AttentionKind::Full)
            .unwrap();
        let mut file = GgufWriter::new(self.family)
            .text("general.name", "tiny")
            .u32(&key("context_length"), self.context)
            .u32(&key("block_count"), spec.layers.len() as u32)
            .u32(&key("embedding_length"), spec.hidden as u32)
            .u32(&key("feed_forward_length"), spec.ffn as u32)
            .u32(&key("attention.head_count"), spec.heads as u32)
            .u32(&key("attention.head_count_kv"), spec.kv_heads as u32)
            .u32(&key("attention.key_length"), spec.head_dim as u32)
            .u32(&key("attention.value_length"), spec.value_dim as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), spec.norm_eps)
            .f32(&key("rope.freq_base"), full.rope.base);
        if let Some(sliding) = spec.layers.iter().find(|l| l.attention != AttentionKind::Full) {
            let AttentionKind::Sliding { window } = sliding.attention else {
                unreachable!()
            };
            file = file.u32(&key("attention.sliding_window"), window as u32);
            if self.family == "spark2_5" {
                let pattern: Vec<bool> = spec
                    .layers
                    .iter()
                    .map(|l| l.attention != AttentionKind::Full)
                    .collect();
                file = file
                    .bools(&key("attention.sliding_window_pattern"), &pattern)
                    .f32(&key("rope.freq_base_swa"), sliding.rope.base)
                    .u32(&key("rope.dimension_count"), full.rope.dims as u32)
                    .u32(&key("rope.dimension_count_swa"), sliding.rope.dims as u32);
            }
        }
        file = super::tiny_tokenizer::add_to_gguf(file, self.family);
        for (role, layer, shape, values) in &self.tensors {
            let name = tensor_name(ModelFormat::Gguf, self.family, *role, *layer).unwrap();
            let (dtype, data) = stored(shape, &self.in_gguf_convention(*role, shape, values));
            file = file.tensor(&name, shape, type_id(dtype), data);
        }
        file
    }

    fn in_gguf_convention(&self, role: TensorRole, shape: &[u64], values: &[f32]) -> Vec<f32> {
        if shape.len() == 1 {
            return values.iter().map(|w| w + self.spec.norm_weight_offset).collect();
        }
        if self.family != "llama" || !matches!(role, TensorRole::Q | TensorRole::K) {
            return values.to_vec();
        }
        // Row 2i + j of a head comes from row j × D/2 + i.
        let (width, half) = (self.spec.hidden, self.spec.head_dim / 2);
        let rows: Vec<&[f32]> = values.chunks(width).collect();
        let from = |row: usize| {
            let (head, within) = (row / (2 * half), row % (2 * half));
            rows[head * 2 * half + (within % 2) * half + within / 2]
        };
        (0..rows.len())
            .flat_map(|row| from(row).iter().copied())
            .collect()
    }

    /// Writes `tiny-FAMILY.gguf` into `folder`.
    pub fn write_gguf(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("tiny-{}.gguf", self.family));
        self.gguf().write(&path);
        path
    }

    /// `config.json` as the family's own checkpoints have it.
    pub fn config(&self) -> Value {
        let spec = &self.spec;
        let kind = |layer: &LayerSpec| match layer.attention {
            AttentionKind::Full => "full_attention",
            AttentionKind::Sliding { .. } => "sliding_attention",
        };
        let kinds: Vec<&str> = spec.layers.iter().map(kind).collect();
        let common = json!({
            "vocab_size": spec.vocab, "hidden_size": spec.hidden, "intermediate_size": spec.ffn,
            "num_hidden_layers": spec.layers.len(), "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads, "max_position_embeddings": self.context,
            "rms_norm_eps": spec.norm_eps, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
        });
        let own = match self.family {
            "llama" => json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "rope_theta": 10000.0, "rope_scaling": null, "tie_word_embeddings": false, "attention_bias": false,
            }),
            "qwen3" => json!({
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "head_dim": 32,
                "rope_theta": 1_000_000, "tie_word_embeddings": true, "use_sliding_window": false,
                "sliding_window": null, "max_window_layers": 2,
            }),
            "gemma3" => json!({
                "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 32,
                "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 8,
                "sliding_window_pattern": 6, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10000.0,
                "rope_scaling": null, "attn_logit_softcapping": null, "final_logit_softcapping": null,
                "bos_token_id": 2, "eos_token_id": 1,
            }),
            _ => json!({
                "architectures": ["Spark2_5ForCausalLM"], "model_type": "spark2_5", "head_dim": 32,
                "hidden_act": "gelu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true,
                "headwise_attn_output_gate": true, "gate_attn_act_mode": "sigmoid", "sliding_window": 8,
                "layer_types": kinds,
                "rope_parameters": {
                    "full_attention": {"rope_theta": 5_000_000, "partial_rotary_factor": 0.25},
                    "sliding_attention": {"rope_theta": 10000, "partial_rotary_factor": 1.0},
                },
            }),
        };
        let (Value::Object(mut all), Value::Object(own)) = (common, own) else {
            unreachable!()
        };
        all.extend(own);
        Value::Object(all)
    }

    /// Writes `config.json`, tokenizer and weights into `folder`, the weights in `shards` files.
    pub fn write_safetensors(&self, folder: &Path, shards: usize) {
        self.write_safetensors_as(folder, shards, TensorType::F32);
    }

    /// The same with weights of this float type.
    pub fn write_safetensors_as(&self, folder: &Path, shards: usize, dtype: TensorType) {
        write_json(&folder.join("config.json"), &self.config());
        super::tiny_tokenizer::write_hf(folder, self.family);
        let named: Vec<(String, &[u64], &[f32])> = self
            .tensors
            .iter()
            .map(|(role, layer, shape, values)| {
                let name = tensor_name(ModelFormat::Safetensors, self.family, *role, *layer).unwrap();
                (name, shape.as_slice(), values.as_slice())
            })
            .collect();
        if shards == 1 {
            std::fs::write(folder.join("model.safetensors"), safetensors_as(&named, dtype)).unwrap();
            return;
        }
        let mut map = serde_json::Map::new();
        for (index, part) in named.chunks(named.len().div_ceil(shards)).enumerate() {
            let file = format!("model-{:05}-of-{shards:05}.safetensors", index + 1);
            std::fs::write(folder.join(&file), safetensors_as(part, dtype)).unwrap();
            map.extend(part.iter().map(|(name, ..)| (name.clone(), json!(file))));
        }
        write_json(
            &folder.join("model.safetensors.index.json"),
            &json!({"metadata": {}, "weight_map": map}),
        );
    }
}

/// The bytes of a safetensors file of F32 tensors.
pub fn safetensors(tensors: &[(String, &[u64], &[f32])]) -> Vec<u8> {
    safetensors_as(tensors, TensorType::F32)
}

fn safetensors_as(tensors: &[(String, &[u64], &[f32])], dtype: TensorType) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let begin = data.len();
        data.extend(encode(dtype, values));
        header.insert(
            name.clone(),
            json!({"dtype": dtype.as_str(), "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let mut text = serde_json::to_vec(&Value::Object(header)).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(data);
    out
}

/// Writes a JSON file.
pub fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_vec_pretty(value).unwrap()).unwrap();
}
