//! Safetensors folders: the forms `config.json` comes in, and those that cannot be served.

use edge_deploy::base::Code;
use edge_deploy::model::card::ModelFormat;
use edge_deploy::model::{self, Weights};
use serde_json::json;

use super::refusal;
use crate::support::tiny::{self, TinyModel};

/// A folder whose `config.json` has `edits` applied; a `null` takes a key away.
fn edited(model: &TinyModel, edits: serde_json::Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    model.write_safetensors(folder.path(), 1);
    let mut config = model.config();
    for (key, value) in edits.as_object().unwrap() {
        config[key] = value.clone();
    }
    tiny::write_json(&folder.path().join("config.json"), &config);
    folder
}

#[test]
fn config_json_in_its_other_forms_means_the_same() {
    let gemma = TinyModel::new("gemma3", 5);
    let kinds = [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ];
    for edits in [
        json!({"sliding_window_pattern": null}),
        json!({"sliding_window_pattern": null, "_sliding_window_pattern": 6}),
        json!({"sliding_window_pattern": null, "layer_types": kinds}),
        json!({"rope_theta": null, "rope_local_base_freq": null, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
        json!({"model_type": null}),
        json!({"hidden_activation": null}),
    ] {
        let folder = edited(&gemma, edits.clone());
        assert_eq!(
            model::inspect(folder.path()).unwrap().decoder,
            gemma.spec,
            "{edits}"
        );
    }
    // Linear scaling stretches the full layers only.
    let folder = edited(
        &gemma,
        json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    );
    let layers = model::inspect(folder.path()).unwrap().decoder.layers;
    assert_eq!(
        (layers[4].rope.position_divisor, layers[5].rope.position_divisor),
        (1.0, 8.0)
    );

    let llama = TinyModel::new("llama", 5);
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let folder = edited(&llama, json!({"rope_scaling": scaling}));
    let divisors = model::inspect(folder.path()).unwrap().decoder.layers[0]
        .rope
        .frequency_divisors
        .clone();
    assert_eq!((divisors.len(), divisors[0], divisors[7]), (8, 1.0, 8.0));
    let folder = edited(
        &llama,
        json!({"rope_theta": null, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
    );
    assert_eq!(
        model::inspect(folder.path()).unwrap().decoder.layers[1]
            .rope
            .base
            .to_bits(),
        5e5f32.to_bits()
    );
}

#[test]
fn a_wrapped_language_model_is_found_in_both_namings() {
    let gemma = TinyModel::new("gemma3", 6);
    for prefix in ["language_model.", "model.language_model."] {
        let folder = tempfile::tempdir().unwrap();
        gemma.write_safetensors(folder.path(), 1);
        let inner = gemma.config();
        let outer = json!({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": inner, "vision_config": {"hidden_size": 8}, "eos_token_id": [1, 5]});
        tiny::write_json(&folder.path().join("config.json"), &outer);
        let mut named: Vec<(String, &[u64], &[f32])> = gemma
            .tensors
            .iter()
            .map(|(role, layer, shape, values)| {
                let name = model::tensor_name(ModelFormat::Safetensors, "gemma3", *role, *layer).unwrap();
                let name = match prefix {
                    "language_model." => format!("language_model.{name}"),
                    _ => name.replacen("model.", prefix, 1),
                };
                (name, shape.as_slice(), values.as_slice())
            })
            .collect();
        named.push(("vision_tower.patch.weight".to_owned(), &[2], &[0.5, 0.5]));
        std::fs::write(folder.path().join("model.safetensors"), tiny::safetensors(&named)).unwrap();
        let card = model::inspect(folder.path()).unwrap();
        assert_eq!(card.decoder, gemma.spec);
        assert!(
            card.tensors
                .iter()
                .all(|tensor| tensor.name.starts_with("model."))
        );
        assert_eq!(card.tokenizer.stop_ids, [1, 5]);
        let weights = Weights::open(&card).unwrap();
        assert!(weights.tensor("model.layers.0.mlp.up_proj.weight").is_some());
    }
}

#[test]
fn folders_that_could_not_be_served_are_refused() {
    let llama = TinyModel::new("llama", 2);
    for (edits, code, word) in [
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            Code::ModelUnsupported,
            "`gptq`",
        ),
        (
            json!({"model_type": "mixtral"}),
            Code::ModelUnsupported,
            "`mixtral`",
        ),
        (
            json!({"attention_bias": true}),
            Code::ModelUnsupported,
            "its attention projections have biases (`attention_bias`",
        ),
        (
            json!({"mlp_bias": true}),
            Code::ModelUnsupported,
            "its feed-forward projections have biases (`mlp_bias`",
        ),
        (json!({"hidden_act": "relu2"}), Code::ModelUnsupported, "relu2"),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
            Code::ModelUnsupported,
            "yarn",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear"}}),
            Code::ModelMalformed,
            "`factor`",
        ),
        (
            json!({"layer_types": ["full_attention"]}),
            Code::ModelMalformed,
            "1 entries for 2 layers",
        ),
        (
            json!({"layer_types": ["full_attention", "mamba"]}),
            Code::ModelUnsupported,
            "`mamba`",
        ),
        (
            json!({"hidden_size": "64"}),
            Code::ModelMalformed,
            "`hidden_size`",
        ),
        (
            json!({"hidden_size": null}),
            Code::ModelMalformed,
            "no key `hidden_size`",
        ),
        (json!({"num_key_value_heads": 3}), Code::ModelMalformed, "evenly"),
        (json!({"head_dim": 8}), Code::ModelMalformed, "needs [32, 64]"),
        (json!({"rms_norm_eps": 0.0}), Code::ModelMalformed, "epsilon"),
        (
            json!({"partial_rotary_factor": 1.5}),
            Code::ModelMalformed,
            "partial_rotary_factor",
        ),
        (json!({"eos_token_id": 5000}), Code::ModelMalformed, "token 5000"),
    ] {
        let folder = edited(&llama, edits.clone());
        let problem = refusal(folder.path());
        assert_eq!(problem.code, code, "{edits}: {problem}");
        assert!(problem.what.contains(word), "{edits}: {problem}");
        assert!(problem.place.is_some(), "{problem}");
    }
    for (gone, code, word) in [
        ("config.json", Code::ModelNotFound, "no config.json"),
        ("tokenizer.json", Code::TokenizerUnusable, "no tokenizer.json"),
        (
            "model-00002-of-00003.safetensors",
            Code::ModelPartMissing,
            "`model-00002-of-00003.safetensors` (missing)",
        ),
        (
            "model.safetensors.index.json",
            Code::ModelPartMissing,
            "`model.safetensors.index.json` is missing",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        llama.write_safetensors(folder.path(), 3);
        std::fs::remove_file(folder.path().join(gone)).unwrap();
        let problem = refusal(folder.path());
        assert_eq!(problem.code, code, "{problem}");
        assert!(problem.what.contains(word), "{problem}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(refusal(folder.path()).code, Code::ModelNotAModel);
    assert_eq!(refusal(folder.path().join("none.gguf")).code, Code::ModelNotFound);
    std::fs::write(folder.path().join("pytorch_model.bin"), b"PK").unwrap();
    assert!(refusal(folder.path()).what.contains("pickles"));
    for name in ["a.gguf", "b.gguf"] {
        llama.gguf().write(&folder.path().join(name));
    }
    assert!(
        refusal(folder.path())
            .what
            .contains("several models: `a.gguf`, `b.gguf`")
    );
}
