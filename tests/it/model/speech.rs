//! Speech model folders: every release's shapes, the golden checkpoints, and what cannot be served.

#![allow(clippy::float_cmp, reason = "numbers read from files")]

use edge_deploy::base::Code;
use edge_deploy::model::speech::{CODE_PREDICTOR, CODE2WAV, SpeechVariant, TALKER, TensorUse};
use edge_deploy::model::{self, ModelCard, Span, Weights};
use serde_json::{Value, json};

use super::refusal;
use crate::support::shared;
use crate::support::speech::Release;

fn card(release: &Release) -> ModelCard {
    model::inspect(release.write().path()).unwrap()
}

#[test]
fn every_release_is_recognised_with_its_own_inventory() {
    // Tensors and weights as published: main file, then the codec's decoder, its quantiser's inputs not counted.
    for (name, tensors, variant) in [
        ("0.6B-CustomVoice", 402, SpeechVariant::CustomVoice),
        ("1.7B-CustomVoice", 404, SpeechVariant::CustomVoice),
        ("1.7B-VoiceDesign", 404, SpeechVariant::VoiceDesign),
        ("0.6B-Base", 478, SpeechVariant::Base),
        ("1.7B-Base", 480, SpeechVariant::Base),
    ] {
        let release = Release::new(name);
        assert_eq!(release.shapes.len(), tensors, "{name}");
        let card = card(&release);
        let speech = card.speech.as_ref().unwrap();
        assert_eq!(speech.variant, variant, "{name}");
        let main = card.tensors.iter().filter(|tensor| tensor.file == 0).count();
        assert_eq!(main, tensors, "{name}");
        assert_eq!(speech.predictor_projection, name.starts_with("1.7B"), "{name}");
        assert_eq!(
            card.tensors
                .iter()
                .any(|tensor| tensor.name.starts_with("encoder.")),
            variant == SpeechVariant::Base,
            "{name}"
        );
        assert!(
            card.tensors
                .iter()
                .all(|tensor| card.tensor_use(tensor).is_some())
        );
    }
    let release = Release::new("0.6B-CustomVoice");
    let weights = |shapes: &crate::support::speech::Shapes| -> u64 {
        shapes.values().map(|shape| shape.iter().product::<u64>()).sum()
    };
    assert_eq!(weights(&release.shapes), 905_788_672);
    assert_eq!(weights(&release.codec_shapes), 170_557_441);
}

#[test]
fn a_card_says_what_the_configuration_says() {
    let card = card(&Release::new("0.6B-CustomVoice"));
    assert_eq!((card.family.as_str(), card.context_train), ("qwen3_tts", 32_768));
    assert_eq!(
        (card.decoder.hidden, card.decoder.heads, card.decoder.head_dim),
        (1024, 16, 128)
    );
    assert_eq!((card.decoder.vocab, card.decoder.layers.len()), (3072, 28));
    assert!(card.decoder.qk_norm && !card.decoder.tied_embeddings);
    let rope = &card.decoder.layers[0].rope;
    assert_eq!(
        (rope.base, rope.dims, rope.frequency_divisors.len()),
        (1e6, 128, 0)
    );
    let speech = card.speech.as_ref().unwrap();
    assert_eq!(
        (
            speech.predictor.layers.len(),
            speech.predictor.vocab,
            speech.codebooks
        ),
        (5, 2048, 16)
    );
    assert_eq!((speech.text_vocab, speech.text_hidden), (151_936, 2048));
    assert_eq!((speech.languages["english"], speech.languages.len()), (2050, 12));
    assert_eq!(
        speech.speakers["eric"].dialect.as_deref(),
        Some("sichuan_dialect")
    );
    assert_eq!(speech.speakers["ryan"].id, 3061);
    assert_eq!((speech.ids.codec_eos, speech.ids.tts_bos), (2150, 151_672));
    assert!((speech.talker_sampling.repetition_penalty - 1.05).abs() < f32::EPSILON);
    assert!((speech.predictor_sampling.repetition_penalty - 1.0).abs() < f32::EPSILON);
    assert_eq!((speech.max_new_tokens, speech.codec.code_dim), (8192, 256));
    assert_eq!(
        (speech.codec.codebook_size, speech.codec.samples_per_frame),
        (2048, 1920)
    );
    let stages = card.stages();
    let names: Vec<_> = stages.iter().map(|stage| (stage.name, stage.context)).collect();
    let spans = [Span::UpTo(32_768), Span::Exactly(16), Span::Exactly(72)];
    assert_eq!(
        names,
        [
            (TALKER, spans[0]),
            (CODE_PREDICTOR, spans[1]),
            (CODE2WAV, spans[2])
        ]
    );
    assert_eq!(stages[0].mapped.len(), 1);
    let embedding = card
        .tensors
        .iter()
        .find(|t| t.name == "talker.model.text_embedding.weight")
        .unwrap();
    assert_eq!(card.tensor_use(embedding), Some((TALKER, TensorUse::Mapped)));
    let text = serde_json::to_string(&card).unwrap();
    assert_eq!(serde_json::from_str::<ModelCard>(&text).unwrap(), card);
}

#[test]
fn an_id_in_a_list_of_one_and_names_in_capitals_mean_the_same() {
    let mut release = Release::new("0.6B-CustomVoice");
    release.config["talker_config"]["spk_id"] = json!({"Ryan": [3061], "ERIC": 2875});
    release.config["talker_config"]["spk_is_dialect"] = json!({"Eric": "Sichuan_Dialect"});
    let speech = card(&release).speech.unwrap();
    assert_eq!(speech.speakers["ryan"].id, 3061);
    assert_eq!(
        speech.speakers["eric"].dialect.as_deref(),
        Some("sichuan_dialect")
    );
}

/// The refusal of a release whose files were changed.
fn refused(name: &str, change: impl FnOnce(&mut Release)) -> edge_deploy::base::Problem {
    let mut release = Release::new(name);
    change(&mut release);
    refusal(release.write().path())
}

#[test]
fn every_fault_of_the_configuration_is_named_at_once() {
    let problem = refused("0.6B-CustomVoice", |release| {
        release.config["tts_model_type"] = json!("singer");
        release.config["im_start_token_id"] = json!(999_999);
        release.config["talker_config"]["codec_pad_id"] = Value::Null;
        release.config["talker_config"]["spk_is_dialect"]["ryan"] = json!("klingon");
        release.generation["subtalker_temperature"] = json!(0);
        release.codec["decoder_config"]["upsample_rates"] = json!([8, 5, 4, 4]);
    });
    for seen in [
        "singer",
        "im_start_token_id",
        "in `talker_config`: it has no key `codec_pad_id`",
        "klingon",
        "subtalker_temperature",
        "2560 samples",
    ] {
        assert!(problem.what.contains(seen), "{seen}: {problem}");
    }
}

#[test]
fn what_does_not_fit_or_is_not_served_is_refused() {
    let set = |section: &'static str, key: &'static str, value: Value| {
        move |release: &mut Release| {
            let part = section
                .split('.')
                .fold(&mut release.config, |part, key| &mut part[key]);
            part[key] = value;
        }
    };
    let talker = "talker_config";
    let predictor = "talker_config.code_predictor_config";
    for (change, code, seen) in [
        (
            set(talker, "vocab_size", json!(3000)),
            Code::ModelMalformed,
            "1976 codes",
        ),
        (
            set(talker, "num_hidden_layers", json!(100_000_000)),
            Code::ModelMalformed,
            "layers",
        ),
        (
            set(talker, "head_dim", json!(0)),
            Code::ModelMalformed,
            "head width is 0",
        ),
        (
            set(talker, "codec_eos_token_id", json!(7)),
            Code::ModelMalformed,
            "also a code",
        ),
        (
            set(talker, "num_code_groups", json!(15)),
            Code::ModelMalformed,
            "code groups",
        ),
        (
            set(talker, "codec_language_id", json!({"english": 5000})),
            Code::ModelMalformed,
            "5000",
        ),
        (
            set(talker, "attention_bias", json!(true)),
            Code::ModelUnsupported,
            "attention_bias",
        ),
        (
            set(predictor, "hidden_size", json!(512)),
            Code::ModelMalformed,
            "needs",
        ),
        (
            set(predictor, "num_code_groups", json!(0)),
            Code::ModelMalformed,
            "num_code_groups",
        ),
        (
            set(predictor, "intermediate_size", json!("wide")),
            Code::ModelMalformed,
            "intermediate_size",
        ),
        (
            set(talker, "rope_scaling", json!({"rope_type": "yarn"})),
            Code::ModelUnsupported,
            "yarn",
        ),
    ] {
        let problem = refused("0.6B-CustomVoice", change);
        assert_eq!(problem.code, code, "{problem}");
        assert!(problem.what.contains(seen), "{seen}: {problem}");
    }
    let problem = refused("0.6B-Base", |release| {
        release.config["speaker_encoder_config"]["enc_dim"] = json!(2048);
    });
    assert!(problem.what.contains("enc_dim"), "{problem}");
    let problem = refused("0.6B-CustomVoice", |release| {
        release.codec["model_type"] = json!("qwen3_tts_tokenizer_25hz");
    });
    assert_eq!(problem.code, Code::ModelUnsupported, "{problem}");
    let problem = refused("0.6B-CustomVoice", |release| {
        release.codec["decoder_config"]["num_quantizers"] = json!(32);
    });
    assert!(problem.what.contains("32 codebooks"), "{problem}");
}

#[test]
fn missing_misshapen_and_unknown_tensors_are_listed() {
    let problem = refused("1.7B-CustomVoice", |release| {
        release.shapes.remove("talker.code_predictor.lm_head.14.weight");
        release
            .shapes
            .insert("talker.model.norm.weight".to_owned(), vec![2049]);
        release.codec_shapes.remove("decoder.decoder.6.conv.bias");
    });
    for seen in [
        "lm_head.14",
        "talker.model.norm.weight` has shape [2049]",
        "decoder.decoder.6.conv.bias",
    ] {
        assert!(problem.what.contains(seen), "{seen}: {problem}");
    }
    let problem = refused("0.6B-CustomVoice", |release| {
        release.shapes.insert("talker.lora.weight".to_owned(), vec![3]);
    });
    assert_eq!(problem.code, Code::ModelUnsupported);
    assert!(problem.what.contains("talker.lora.weight"), "{problem}");
    let release = Release::new("0.6B-CustomVoice");
    let folder = release.write();
    std::fs::remove_dir_all(folder.path().join("speech_tokenizer")).unwrap();
    assert_eq!(refusal(folder.path()).code, Code::ModelPartMissing);
    let folder = release.write();
    std::fs::remove_file(folder.path().join("merges.txt")).unwrap();
    let problem = refusal(folder.path());
    assert_eq!(problem.code, Code::TokenizerUnusable);
    assert!(problem.what.contains("merges.txt"), "{problem}");
}

#[test]
fn golden_checkpoints_open_with_every_tensor_at_hand() {
    for name in ["custom-voice", "base-wide"] {
        let Some(folder) = shared("golden speech checkpoints", &format!("golden/qwen3-tts/{name}")) else {
            return;
        };
        let card = model::inspect(&folder).unwrap();
        let weights = Weights::open(&card).unwrap();
        for tensor in &card.tensors {
            let view = weights.tensor(&tensor.name).unwrap();
            assert_eq!(view.bytes.len() as u64, tensor.bytes.0, "{}", tensor.name);
        }
        let speech = card.speech.as_ref().unwrap();
        assert_eq!(speech.predictor_projection, name == "base-wide");
        assert_eq!((speech.codec.codebook_size, speech.codec.window), (64, 6));
    }
}
