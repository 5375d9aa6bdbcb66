//! From a GGUF set to a card.
//!
//! In: opened files. Out: the network as data, tokenizer facts, every tensor.
//! Invariant: reads metadata and at most one small tensor (`rope_freqs.weight`); never the weights.

use std::path::Path;

use super::card::{
    AttentionKind, DecoderSpec, GateActivation, LayerSpec, ModelCard, ModelFormat, RopeSpec,
    SamplingDefaults, TensorFact, TensorType, TokenizerFact,
};
use super::families::{Family, TensorRole, WindowDefault, by_gguf_architecture, tensor_name};
use super::formats::gguf::Gguf;
use super::formats::gguf_header::GgufTensor;
use super::formats::gguf_split::{GgufSet, PartName};
use super::formats::gguf_value::Value;
use super::formats::{file_name, malformed, unsupported};
use super::{check, end_tokens};
use crate::base::{Bytes, Place, Problem};

/// Inspects the GGUF file or set at `path`.
pub(crate) fn inspect(path: &Path) -> Result<ModelCard, Problem> {
    let set = GgufSet::open(path)?;
    card(&set).map_err(|problem| {
        if problem.place.is_some() {
            return problem;
        }
        problem.at(Place::of(set.first().path().display().to_string()))
    })
}

/// The card of an opened set.
pub(crate) fn card(set: &GgufSet) -> Result<ModelCard, Problem> {
    let first = set.first();
    let file = file_name(first.path());
    let Some(architecture) = first.str("general.architecture")? else {
        return Err(malformed(&file, "it has no key `general.architecture`"));
    };
    let keys = Keys {
        gguf: first,
        file: &file,
        family: by_gguf_architecture(architecture)?,
    };
    let tensors = facts(set);
    let decoder = decoder(&keys, set)?;
    check::numbers(&file, &decoder)?;
    let context_train = keys.required("context_length")?;
    let card = ModelCard {
        name: model_name(&file),
        family: keys.family.name.to_owned(),
        format: ModelFormat::Gguf,
        files: set.parts().map(|part| part.path().to_path_buf()).collect(),
        file_bytes: Bytes(set.parts().map(|part| part.mapping().len() as u64).sum()),
        parameters: super::parameters(&tensors),
        tokenizer: tokenizer(first, &file, decoder.vocab)?,
        decoder,
        tensors,
        chat_template: first.str("tokenizer.chat_template")?.map(str::to_owned),
        sampling: sampling(first)?,
        context_train,
        speech: None,
    };
    check::tensors(&card)?;
    Ok(card)
}

/// File stem, without the part numbers of a set.
fn model_name(file: &str) -> String {
    match PartName::parse(file) {
        Some(part) => part.stem,
        None => file.strip_suffix(".gguf").unwrap_or(file).to_owned(),
    }
}

fn facts(set: &GgufSet) -> Vec<TensorFact> {
    let of_part = |(file, part): (usize, &Gguf)| {
        let fact = move |tensor: &GgufTensor| TensorFact {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            bytes: Bytes(tensor.bytes),
            file,
            offset: tensor.offset,
        };
        part.header().tensors.iter().map(fact).collect::<Vec<_>>()
    };
    set.parts().enumerate().flat_map(of_part).collect()
}

/// Keys under the architecture's prefix.
struct Keys<'a> {
    gguf: &'a Gguf,
    file: &'a str,
    family: &'static Family,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    /// One integer; a per-layer list is taken if all its entries agree.
    fn integer(&self, key: &str) -> Result<Option<u64>, Problem> {
        let key = self.key(key);
        if !matches!(self.gguf.get(&key), Some(Value::Array(_))) {
            return self.gguf.u64(&key);
        }
        let Some(mut values) = self.gguf.i64s(&key)? else {
            return Ok(None);
        };
        let Some(one) = values.next() else { return Ok(None) };
        if values.any(|value| value != one) {
            return Err(unsupported(
                self.file,
                format!("`{key}` differs from layer to layer"),
                "use a model whose layers all have the same shape",
            ));
        }
        u64::try_from(one)
            .map(Some)
            .map_err(|_| malformed(self.file, format!("`{key}` is {one}, which is negative")))
    }

    fn required(&self, key: &str) -> Result<u64, Problem> {
        self.integer(key)?
            .ok_or_else(|| malformed(self.file, format!("it has no key `{}`", self.key(key))))
    }

    /// A count or width. What exceeds `usize` exceeds every limit too, so the largest value stands for it.
    fn size(&self, key: &str) -> Result<usize, Problem> {
        Ok(usize::try_from(self.required(key)?).unwrap_or(usize::MAX))
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, Problem> {
        Ok(self
            .integer(key)?
            .map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn real(&self, key: &str) -> Result<Option<f32>, Problem> {
        self.gguf.f32(&self.key(key))
    }
}

fn find<'a>(set: &'a GgufSet, name: &str) -> Option<(&'a Gguf, &'a GgufTensor)> {
    set.parts().find_map(|part| {
        let tensor = part.header().tensors.iter().find(|tensor| tensor.name == name)?;
        Some((part, tensor))
    })
}

fn decoder(keys: &Keys<'_>, set: &GgufSet) -> Result<DecoderSpec, Problem> {
    let family = keys.family;
    if keys.integer("expert_count")?.unwrap_or(0) > 0 {
        return Err(unsupported(
            keys.file,
            "it is a mixture of experts",
            "use a dense model of this family",
        ));
    }
    let layers = check::layer_count(keys.file, keys.required("block_count")?)?;
    let hidden = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let head_dim = match keys.integer("attention.key_length")? {
        Some(width) => usize::try_from(width).unwrap_or(usize::MAX),
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let name = |role| tensor_name(ModelFormat::Gguf, family.name, role, 0).unwrap_or_default();
    let vocab = match find(set, &name(TensorRole::TokenEmbedding)) {
        Some((_, embedding)) => embedding.shape.first().copied().unwrap_or(0),
        None => return Err(malformed(keys.file, "it has no tensor `token_embd.weight`")),
    };
    let has = |role| find(set, &name(role)).is_some();
    Ok(DecoderSpec {
        vocab: usize::try_from(vocab).unwrap_or(usize::MAX),
        hidden,
        heads,
        kv_heads: keys.size_or("attention.head_count_kv", heads)?,
        head_dim,
        value_dim: keys.size_or("attention.value_length", head_dim)?,
        ffn: keys.size("feed_forward_length")?,
        layers: layer_list(keys, set, layers, head_dim)?,
        norm_eps: keys
            .real("attention.layer_norm_rms_epsilon")?
            .unwrap_or(family.norm_eps),
        // Converters store Gemma's norm weights with the 1 added.
        norm_weight_offset: 0.0,
        embedding_scale: super::embedding_scale(family, hidden),
        attention_scale: super::attention_scale(family, hidden, heads, head_dim, layers),
        activation: family.activation,
        qk_norm: family.qk_norm,
        post_norms: family.post_norms,
        head_gate: has(TensorRole::HeadGate).then_some(GateActivation::Sigmoid),
        fused_qkv: has(TensorRole::Qkv),
        qk_rows_interleaved: family.gguf_interleaved,
        tied_embeddings: !has(TensorRole::Output),
        logit_softcap: keys.real("final_logit_softcapping")?.filter(|&cap| cap != 0.0),
    })
}

/// Attention kind and rope of each layer.
fn layer_list(
    keys: &Keys<'_>,
    set: &GgufSet,
    layers: usize,
    head_dim: usize,
) -> Result<Vec<LayerSpec>, Problem> {
    let family = keys.family;
    let sliding = sliding_layers(keys, layers)?;
    let window = keys.size_or("attention.sliding_window", 0)?;
    if sliding.contains(&true) && window == 0 {
        return Err(malformed(
            keys.file,
            format!(
                "it has sliding layers but no window (`{}`)",
                keys.key("attention.sliding_window")
            ),
        ));
    }
    let base = keys.real("rope.freq_base")?.unwrap_or(family.rope_base);
    let base_sliding = match keys.real("rope.freq_base_swa")? {
        Some(own) => own,
        None => family.rope_base_sliding.unwrap_or(base),
    };
    let dims = keys.size_or("rope.dimension_count", head_dim)?;
    let dims_sliding = keys.size_or("rope.dimension_count_swa", dims)?;
    let divisor = linear_scaling(keys)?;
    let frequency_divisors = rope_frequencies(keys, set)?;
    // Gemma scales positions on its full layers only.
    let divisor_sliding = if family.rope_base_sliding.is_some() {
        1.0
    } else {
        divisor
    };
    Ok(sliding
        .into_iter()
        .map(|sliding| LayerSpec {
            attention: if sliding {
                AttentionKind::Sliding { window }
            } else {
                AttentionKind::Full
            },
            rope: RopeSpec {
                base: if sliding { base_sliding } else { base },
                dims: if sliding { dims_sliding } else { dims },
                position_divisor: if sliding { divisor_sliding } else { divisor },
                frequency_divisors: frequency_divisors.clone(),
            },
        })
        .collect())
}

/// Which layers slide: from the file's list or period, else by the family's rule.
fn sliding_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, Problem> {
    let key = keys.key("attention.sliding_window_pattern");
    let by_period = |period: usize| (0..layers).map(|i| !(i + 1).is_multiple_of(period)).collect();
    let wrong_length = |found: usize| {
        malformed(
            keys.file,
            format!("`{key}` has {found} entries for {layers} layers"),
        )
    };
    match keys.gguf.get(&key) {
        Some(Value::Array(_)) => {
            let list: Vec<bool> = if let Ok(Some(list)) = keys.gguf.bools(&key) {
                if list.len() != layers {
                    return Err(wrong_length(list.len()));
                }
                list.collect()
            } else {
                let list = keys.gguf.i64s(&key)?;
                match list {
                    Some(list) if list.len() == layers => list.map(|n| n != 0).collect(),
                    other => return Err(wrong_length(other.map_or(0, |list| list.len()))),
                }
            };
            Ok(list)
        }
        Some(_) => {
            let period = keys.gguf.u64(&key)?.unwrap_or(0);
            let period = usize::try_from(period).ok().filter(|&n| n > 0);
            period
                .map(by_period)
                .ok_or_else(|| malformed(keys.file, format!("`{key}` is 0")))
        }
        None => Ok(match keys.family.window {
            WindowDefault::AllFull => vec![false; layers],
            WindowDefault::FullEvery(period) => by_period(period),
        }),
    }
}

fn linear_scaling(keys: &Keys<'_>) -> Result<f32, Problem> {
    let key = keys.key("rope.scaling.type");
    match keys.gguf.str(&key)? {
        None | Some("none" | "") => Ok(1.0),
        Some("linear") => Ok(keys
            .real("rope.scaling.factor")?
            .filter(|&f| f != 0.0)
            .unwrap_or(1.0)),
        Some(other) => Err(unsupported(
            keys.file,
            format!("`{key}` is `{other}`; `linear` and stored frequencies are served"),
            "use the model without extended context",
        )),
    }
}

/// The stored divisors of Llama 3's rope scaling, if there are any.
fn rope_frequencies(keys: &Keys<'_>, set: &GgufSet) -> Result<Vec<f32>, Problem> {
    let name = tensor_name(ModelFormat::Gguf, keys.family.name, TensorRole::RopeFreqs, 0).unwrap_or_default();
    let Some((part, tensor)) = find(set, &name) else {
        return Ok(Vec::new());
    };
    let bad = |what: String| Err(malformed(keys.file, format!("`{name}` {what}")));
    if tensor.dtype != TensorType::F32 {
        return bad(format!("has type {}, not F32", tensor.dtype.as_str()));
    }
    if tensor.bytes > 4096 {
        return bad(format!(
            "has {} bytes; half a head's width is needed",
            tensor.bytes
        ));
    }
    let (start, len) = (tensor.offset as usize, tensor.bytes as usize);
    let bytes = part.mapping().bytes().get(start..start + len).unwrap_or(&[]);
    let (values, _) = bytes.as_chunks::<4>();
    Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

fn tokenizer(gguf: &Gguf, file: &str, rows: usize) -> Result<TokenizerFact, Problem> {
    let Some(model) = gguf.str("tokenizer.ggml.model")? else {
        return Err(malformed(file, "it has no tokenizer (`tokenizer.ggml.model`)"));
    };
    let kind = match model {
        "gpt2" => "bpe",
        "llama" => "spm",
        other => {
            return Err(unsupported(
                file,
                format!(
                    "its tokenizer is of kind `{other}`; `gpt2` (byte-level BPE) and `llama` (SPM) are served"
                ),
                "use a model with one of these tokenizers",
            ));
        }
    };
    let Some(tokens) = gguf.texts("tokenizer.ggml.tokens")? else {
        return Err(malformed(file, "it has no token list (`tokenizer.ggml.tokens`)"));
    };
    let vocab = tokens.len();
    if vocab == 0 || vocab > rows {
        return Err(malformed(
            file,
            format!("it lists {vocab} tokens, but its embedding table has {rows} rows"),
        ));
    }
    let token = |key: &str| -> Result<Option<u32>, Problem> {
        let key = format!("tokenizer.ggml.{key}");
        // Some converters write -1 for "none".
        if matches!(gguf.get(&key), Some(Value::Integer(-1 | 0xffff_ffff))) {
            return Ok(None);
        }
        match gguf.u32(&key)? {
            Some(id) if id as usize >= vocab => Err(malformed(
                file,
                format!("`{key}` is {id}, but there are {vocab} tokens"),
            )),
            id => Ok(id),
        }
    };
    let pre = gguf
        .str("tokenizer.ggml.pre")?
        .filter(|_| kind == "bpe")
        .map(str::to_owned);
    // Defaults of the reference implementation where the file does not say.
    let adds_bos_by_default = kind == "spm"
        || matches!(
            pre.as_deref(),
            Some("llama-bpe" | "llama3" | "llama-v3" | "tekken")
        );
    let mut stop_ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        stop_ids.extend(token(key)?);
    }
    stop_ids.extend(end_tokens::positions(tokens));
    stop_ids.sort_unstable();
    stop_ids.dedup();
    Ok(TokenizerFact {
        kind: kind.to_owned(),
        pre,
        vocab,
        stop_ids,
        bos_id: token("bos_token_id")?,
        add_bos: gguf
            .bool("tokenizer.ggml.add_bos_token")?
            .unwrap_or(adds_bos_by_default),
    })
}

/// `general.sampling.*`, which newer converters write from `generation_config.json`.
fn sampling(gguf: &Gguf) -> Result<SamplingDefaults, Problem> {
    let top_k = match gguf.get("general.sampling.top_k") {
        // -1 means "off", which is 0 here.
        Some(Value::Integer(n)) if n < 0 => Some(0),
        _ => gguf.u32("general.sampling.top_k")?,
    };
    Ok(SamplingDefaults {
        repetition_penalty: None,
        temperature: gguf.f32("general.sampling.temp")?,
        top_p: gguf.f32("general.sampling.top_p")?,
        top_k,
    })
}
