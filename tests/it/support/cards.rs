//! Cards of models with the shapes of published ones, for planning without their files.
//!
//! In: the name of a shipped profile. Out: a card of its family. Invariant: sizes that memory depends on (layers,
//! heads, widths, windows, tensor types and bytes) are those of the published model.

use edge_deploy::base::Bytes;
use edge_deploy::model::card::{Activation, AttentionKind, LayerSpec, TensorFact, TensorType};
use edge_deploy::model::{self, ModelCard, embedded};

use super::speech;

/// What the card of a language model is made of.
struct Published {
    family: &'static str,
    name: &'static str,
    vocab: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    layers: usize,
    /// Every n-th layer is full, the others see a window.
    window: Option<(usize, usize)>,
    context: u64,
    weights: TensorType,
}

/// The default model of a family, or one of its published models.
pub fn card(profile: &str) -> ModelCard {
    match profile {
        "llama" => built_in("SmolLM2-135M-Instruct.Q4_1.gguf"),
        "gemma3" => built_in("gemma-3-270m-q4_k_m.gguf"),
        "qwen3" => made(&Published {
            family: "qwen3",
            name: "Qwen3-1.7B-Q8_0",
            vocab: 151_936,
            hidden: 2048,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            ffn: 6144,
            layers: 28,
            window: None,
            context: 40_960,
            weights: TensorType::Q8_0,
        }),
        "spark2_5" => made(&Published {
            family: "spark2_5",
            name: "Spark-X2.5-1.7B-BF16",
            vocab: 131_072,
            hidden: 2048,
            heads: 8,
            kv_heads: 2,
            head_dim: 256,
            ffn: 6656,
            layers: 28,
            window: Some((4, 512)),
            context: 1_048_576,
            weights: TensorType::BF16,
        }),
        "qwen3_tts" => {
            let folder = speech::Release::new("0.6B-CustomVoice").write();
            let mut card = model::inspect(folder.path()).unwrap_or_else(|problem| panic!("{problem}"));
            "Qwen3-TTS-12Hz-0.6B-CustomVoice".clone_into(&mut card.name);
            card.files = vec![
                "model.safetensors".into(),
                "speech_tokenizer/model.safetensors".into(),
            ];
            card
        }
        other => panic!("no card for the profile `{other}`: add one here"),
    }
}

fn built_in(file: &str) -> ModelCard {
    let mut card = embedded::card(file).unwrap().expect("a built-in card");
    card.files = vec![file.into()];
    card
}

fn made(published: &Published) -> ModelCard {
    let mut card = built_in("SmolLM2-135M-Instruct.Q4_1.gguf");
    let rope = card.decoder.layers[0].rope.clone();
    let spec = &mut card.decoder;
    spec.vocab = published.vocab;
    spec.hidden = published.hidden;
    spec.heads = published.heads;
    spec.kv_heads = published.kv_heads;
    spec.head_dim = published.head_dim;
    spec.value_dim = published.head_dim;
    spec.ffn = published.ffn;
    spec.activation = Activation::Silu;
    spec.qk_norm = published.family == "qwen3";
    spec.layers = (0..published.layers)
        .map(|layer| LayerSpec {
            attention: match published.window {
                Some((every, window)) if (layer + 1) % every != 0 => AttentionKind::Sliding { window },
                _ => AttentionKind::Full,
            },
            rope: edge_deploy::model::card::RopeSpec {
                dims: published.head_dim,
                ..rope.clone()
            },
        })
        .collect();
    let queries = published.heads * published.head_dim;
    let keys = published.kv_heads * published.head_dim;
    let mut tensors = vec![(published.vocab, published.hidden)];
    for _ in 0..published.layers {
        tensors.extend([
            (queries + 2 * keys, published.hidden),
            (published.hidden, queries),
            (2 * published.ffn, published.hidden),
            (published.hidden, published.ffn),
        ]);
    }
    let kind = published.weights;
    card.tensors = tensors
        .into_iter()
        .enumerate()
        .map(|(at, (rows, columns))| TensorFact {
            name: format!("matrix.{at}"),
            dtype: kind,
            shape: vec![rows as u64, columns as u64],
            bytes: Bytes((rows * (columns / kind.block_len()) * kind.block_bytes()) as u64),
            file: 0,
            offset: 0,
        })
        .collect();
    published.name.clone_into(&mut card.name);
    published.family.clone_into(&mut card.family);
    card.files = vec![format!("{}.gguf", published.name).into()];
    card.file_bytes = Bytes(card.tensors.iter().map(|tensor| tensor.bytes.0).sum());
    card.parameters = card
        .tensors
        .iter()
        .map(|tensor| tensor.shape.iter().product::<u64>())
        .sum();
    card.context_train = published.context;
    card.tokenizer.vocab = published.vocab;
    card
}
