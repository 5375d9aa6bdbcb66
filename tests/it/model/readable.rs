//! Whole models are read as the reference readers and the published files have them.

use std::path::Path;

use edge_deploy::base::Code;
use edge_deploy::model::card::{Activation, AttentionKind, DecoderSpec, ModelFormat};
use edge_deploy::model::formats::gguf::Gguf;
use edge_deploy::model::{self, ModelCard, TensorRole, Weights};

use crate::support::gguf::GgufWriter;
use crate::support::tiny::{self, TinyModel};
use crate::support::{self, tiny_tokenizer};

/// The dump of the reference reader: `name [dims innermost first] TYPE bytes offset`, tab-separated.
fn assert_matches_dump(card: &ModelCard, dump: &Path) {
    let text = std::fs::read_to_string(dump).unwrap();
    let data_offset: u64 = text
        .lines()
        .next()
        .unwrap()
        .rsplit_once("data_offset=")
        .unwrap()
        .1
        .trim()
        .parse()
        .unwrap();
    let listed = text
        .lines()
        .skip_while(|line| !line.contains("tensors: name"))
        .skip(1);
    let mut lines = 0;
    for (line, fact) in listed.zip(&card.tensors) {
        let fields: Vec<&str> = line.split('\t').collect();
        let mut shape: Vec<u64> = serde_json::from_str(fields[1]).unwrap();
        shape.reverse();
        assert_eq!(
            (
                fact.name.as_str(),
                &fact.shape,
                fact.dtype.as_str(),
                fact.bytes.0,
                fact.offset
            ),
            (
                fields[0],
                &shape,
                fields[2],
                fields[3].parse().unwrap(),
                data_offset + fields[4].parse::<u64>().unwrap()
            )
        );
        lines += 1;
    }
    assert_eq!(lines, card.tensors.len());
}

#[test]
fn smollm2_is_read_as_the_reference_reads_it() {
    let test = "smollm2_is_read_as_the_reference_reads_it";
    let Some(path) = support::model_file(test, "SmolLM2-135M-Instruct.Q4_1.gguf") else {
        return;
    };
    let card = model::inspect(&path).unwrap();
    if let Some(dump) = support::shared(test, "golden/llm/gguf-dump-SmolLM2-135M-Instruct.Q4_1.txt") {
        assert_matches_dump(&card, &dump);
    }
    let spec = &card.decoder;
    assert_eq!(
        (card.name.as_str(), card.family.as_str()),
        ("SmolLM2-135M-Instruct.Q4_1", "llama")
    );
    assert_eq!((card.format, card.file_bytes.0), (ModelFormat::Gguf, 98_362_432));
    assert_eq!((card.parameters, card.context_train), (134_515_008, 8192));
    assert_eq!((spec.vocab, spec.hidden, spec.ffn), (49_152, 576, 1536));
    assert_eq!(
        (spec.heads, spec.kv_heads, spec.head_dim, spec.layers.len()),
        (9, 3, 64, 30)
    );
    assert_eq!((spec.layers[29].rope.base, spec.norm_eps), (1e5, 1e-5));
    assert!(spec.tied_embeddings && spec.qk_rows_interleaved && !spec.qk_norm && !spec.fused_qkv);
    assert_eq!((spec.attention_scale, spec.embedding_scale), (0.125, 1.0));
    assert_eq!(
        (card.tokenizer.kind.as_str(), card.tokenizer.pre.as_deref()),
        ("bpe", Some("smollm"))
    );
    assert_eq!(
        (card.tokenizer.stop_ids.as_slice(), card.tokenizer.add_bos),
        ([0, 2].as_slice(), false)
    );
    assert!(
        card.chat_template
            .unwrap()
            .contains("You are a helpful AI assistant named SmolLM")
    );

    let weights = Weights::open(&model::inspect(&path).unwrap()).unwrap();
    let norm = weights.tensor("output_norm.weight").unwrap();
    assert_eq!((norm.shape, norm.bytes.len()), ([576].as_slice(), 2304));
    weights.release("output_norm.weight").unwrap();
    assert_eq!(weights.tensor("output_norm.weight").unwrap().bytes.len(), 2304);
    assert!(weights.tensor("output.weight").is_none());
    let metadata = weights.gguf_metadata().unwrap();
    let mut tokens = metadata.texts("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(
        (tokens.len(), tokens.nth(1)),
        (49_152, Some(b"<|im_start|>".as_slice()))
    );
    assert_eq!(
        metadata
            .i64s("tokenizer.ggml.token_type")
            .unwrap()
            .unwrap()
            .filter(|t| *t == 3)
            .count(),
        17
    );
    assert_eq!(
        metadata.texts("tokenizer.ggml.merges").unwrap().unwrap().count(),
        48_900
    );
    assert_eq!(
        metadata.u64("general.architecture").unwrap_err().code,
        Code::ModelMalformed
    );
}

#[test]
fn gemma3_is_read_as_the_reference_reads_it() {
    let test = "gemma3_is_read_as_the_reference_reads_it";
    let Some(path) = support::model_file(test, "gemma-3-270m-q4_k_m.gguf") else {
        return;
    };
    let card = model::inspect(&path).unwrap();
    if let Some(dump) = support::shared(test, "golden/llm/gguf-dump-gemma-3-270m-q4_k_m.txt") {
        assert_matches_dump(&card, &dump);
    }
    let spec = &card.decoder;
    assert_eq!(
        (spec.heads, spec.kv_heads, spec.head_dim, spec.layers.len()),
        (4, 1, 256, 18)
    );
    let full: Vec<usize> = (0..18)
        .filter(|&i| spec.layers[i].attention == AttentionKind::Full)
        .collect();
    assert_eq!(full, [5, 11, 17]);
    assert_eq!(spec.layers[0].attention, AttentionKind::Sliding { window: 512 });
    assert_eq!((spec.layers[0].rope.base, spec.layers[5].rope.base), (1e4, 1e6));
    assert_eq!(
        (spec.activation, spec.norm_weight_offset),
        (Activation::GeluTanh, 0.0)
    );
    assert_eq!(
        (spec.embedding_scale, spec.attention_scale),
        (640f32.sqrt(), 0.0625)
    );
    assert!(spec.qk_norm && spec.post_norms && spec.tied_embeddings && !spec.qk_rows_interleaved);
    assert_eq!(
        (card.tokenizer.kind.as_str(), card.tokenizer.vocab),
        ("spm", 262_144)
    );
    assert_eq!((card.tokenizer.bos_id, card.tokenizer.add_bos), (Some(2), true));
    assert_eq!(card.tokenizer.stop_ids, [1, 106]);
    assert_eq!(card.chat_template, None);
}

#[test]
fn tiny_golden_models_are_read() {
    let test = "tiny_golden_models_are_read";
    let Some(spark) = support::shared(test, "golden/llm/tiny-spark2_5-f32.gguf") else {
        return;
    };
    let card = model::inspect(&spark).unwrap();
    let spec = &card.decoder;
    assert_eq!(
        (card.family.as_str(), spec.hidden, spec.ffn),
        ("spark2_5", 64, 96)
    );
    assert_eq!((spec.heads, spec.kv_heads, spec.head_dim), (4, 2, 32));
    let kinds: Vec<bool> = spec
        .layers
        .iter()
        .map(|l| l.attention == AttentionKind::Full)
        .collect();
    assert_eq!(kinds, [false, false, false, true]);
    assert_eq!((spec.layers[0].rope.dims, spec.layers[3].rope.dims), (32, 8));
    assert_eq!((spec.layers[0].rope.base, spec.layers[3].rope.base), (1e4, 5e6));
    assert!(spec.head_gate.is_some() && spec.fused_qkv && spec.tied_embeddings);
    assert_eq!(spec.activation, Activation::GeluErf);

    let qwen = spark.with_file_name("tiny-qwen3-f32.gguf");
    let card = model::inspect(qwen).unwrap();
    assert_eq!((card.family.as_str(), card.decoder.layers.len()), ("qwen3", 3));
    assert!(card.decoder.qk_norm && !card.decoder.fused_qkv && !card.decoder.qk_rows_interleaved);
}

#[test]
fn every_family_reads_back_as_it_was_written() {
    for family in tiny::FAMILIES {
        let model = TinyModel::new(family, 7);
        let folder = tempfile::tempdir().unwrap();
        let gguf = model::inspect(model.write_gguf(folder.path())).unwrap();
        let expected = DecoderSpec {
            norm_weight_offset: 0.0,
            qk_rows_interleaved: family == "llama",
            ..model.spec.clone()
        };
        assert_eq!(gguf.decoder, expected, "{family}");
        for shards in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            model.write_safetensors(folder.path(), shards);
            let card = model::inspect(folder.path()).unwrap();
            assert_eq!(card.decoder, model.spec, "{family}, {shards} files");
            assert_eq!(card.files.len(), shards);
            assert_eq!((&card.family, card.parameters), (&gguf.family, gguf.parameters));
            assert_eq!((card.format, card.context_train), (ModelFormat::Safetensors, 512));
            assert_eq!(card.tokenizer.kind, "tokenizer_json");
            assert_eq!(card.tokenizer.stop_ids, gguf.tokenizer.stop_ids, "{family}");
            assert_eq!(card.tokenizer.bos_id, gguf.tokenizer.bos_id);
            assert_eq!(card.tokenizer.add_bos, gguf.tokenizer.add_bos);
            assert_eq!(card.chat_template, gguf.chat_template);
            // Every tensor's bytes are those written.
            let weights = Weights::open(&card).unwrap();
            for (role, layer, shape, values) in &model.tensors {
                let name = model::tensor_name(ModelFormat::Safetensors, family, *role, *layer).unwrap();
                let tensor = weights.tensor(&name).unwrap();
                assert_eq!(tensor.shape, shape);
                let stored: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                assert_eq!(tensor.bytes, stored, "{name}");
            }
            // The folder may be named by any of its files.
            assert_eq!(model::inspect(folder.path().join("config.json")).unwrap(), card);
            assert_eq!(model::inspect(&card.files[0]).unwrap(), card);
        }
    }
}

#[test]
fn tiny_tokenizers_cover_their_vocabulary() {
    for family in tiny::FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        tiny_tokenizer::write_hf(folder.path(), family);
        let tokenizer = tokenizers::Tokenizer::from_file(folder.path().join("tokenizer.json")).unwrap();
        assert_eq!(
            tokenizer.get_vocab_size(true),
            tiny_tokenizer::vocabulary(family).len()
        );
        let text = "the inn, 42 \u{e9}\u{1f600}";
        let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{family}");
    }
}

/// Tensor names of every family by hand, against the published checkpoints.
#[test]
fn tensor_names_are_those_of_the_published_files() {
    let hf = |family, role| model::tensor_name(ModelFormat::Safetensors, family, role, 3);
    let gguf = |family, role| model::tensor_name(ModelFormat::Gguf, family, role, 3);
    let named = |text: &str| Some(text.to_owned());
    for (family, role, safetensors_name, gguf_name) in [
        (
            "spark2_5",
            TensorRole::TokenEmbedding,
            named("model.embedding.weight"),
            named("token_embd.weight"),
        ),
        (
            "spark2_5",
            TensorRole::Qkv,
            named("model.layers.3.self_attn.q_k_v_proj.weight"),
            named("blk.3.attn_qkv.weight"),
        ),
        ("spark2_5", TensorRole::Q, None, named("blk.3.attn_q.weight")),
        (
            "spark2_5",
            TensorRole::HeadGate,
            named("model.layers.3.self_attn.g_proj.weight"),
            named("blk.3.attn_gate.weight"),
        ),
        (
            "spark2_5",
            TensorRole::AttnOutput,
            named("model.layers.3.self_attn.out_proj.weight"),
            named("blk.3.attn_output.weight"),
        ),
        (
            "spark2_5",
            TensorRole::FfnNorm,
            named("model.layers.3.post_attention_layernorm.weight"),
            named("blk.3.ffn_norm.weight"),
        ),
        ("spark2_5", TensorRole::QNorm, None, None),
        (
            "gemma3",
            TensorRole::PostAttnNorm,
            named("model.layers.3.post_attention_layernorm.weight"),
            named("blk.3.post_attention_norm.weight"),
        ),
        (
            "gemma3",
            TensorRole::FfnNorm,
            named("model.layers.3.pre_feedforward_layernorm.weight"),
            named("blk.3.ffn_norm.weight"),
        ),
        (
            "gemma3",
            TensorRole::PostFfnNorm,
            named("model.layers.3.post_feedforward_layernorm.weight"),
            named("blk.3.post_ffw_norm.weight"),
        ),
        (
            "qwen3",
            TensorRole::KNorm,
            named("model.layers.3.self_attn.k_norm.weight"),
            named("blk.3.attn_k_norm.weight"),
        ),
        (
            "llama",
            TensorRole::TokenEmbedding,
            named("model.embed_tokens.weight"),
            named("token_embd.weight"),
        ),
        (
            "llama",
            TensorRole::OutputNorm,
            named("model.norm.weight"),
            named("output_norm.weight"),
        ),
        (
            "llama",
            TensorRole::Output,
            named("lm_head.weight"),
            named("output.weight"),
        ),
        (
            "llama",
            TensorRole::Gate,
            named("model.layers.3.mlp.gate_proj.weight"),
            named("blk.3.ffn_gate.weight"),
        ),
        ("llama", TensorRole::RopeFreqs, None, named("rope_freqs.weight")),
        ("mamba", TensorRole::Q, None, None),
    ] {
        assert_eq!(hf(family, role), safetensors_name, "{family} {role:?}");
        assert_eq!(gguf(family, role), gguf_name, "{family} {role:?}");
    }
}

/// The built-in cards against the files they were made from. `EDGE_DEPLOY_BLESS=1` writes them anew.
#[test]
fn embedded_cards_are_those_of_the_files() {
    for embedded in model::embedded::MODELS {
        let name = embedded.file_name;
        let Some(path) = support::model_file("embedded_cards_are_those_of_the_files", name) else {
            continue;
        };
        let mut card = model::inspect(&path).unwrap();
        card.files.clear();
        if std::env::var_os("EDGE_DEPLOY_BLESS").is_some() {
            let file = format!("src/model/cards/{}.json", name.trim_end_matches(".gguf"));
            let text = serde_json::to_string(&card).unwrap() + "\n";
            std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), text).unwrap();
            continue;
        }
        assert_eq!(model::embedded::card(name).unwrap().unwrap(), card, "{name}");
    }
}

#[test]
fn metadata_getters_tell_absent_from_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    GgufWriter::new("llama")
        .raw("i8", 1, &[0xff])
        .raw("u64", 10, &u64::MAX.to_le_bytes())
        .raw("f64", 12, &1.5f64.to_le_bytes())
        .raw("latin1", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xe9])
        .raw("u16s", 9, &[2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff])
        .texts("texts", &[b"a".as_slice(), b"", b"\xff\x00"])
        .bools("bools", &[true, false])
        .f32s("f32s", &[0.5, -1.0])
        .bool("bool", true)
        .write(&path);
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.str("none").unwrap(), None);
    assert_eq!(
        (file.u64("none").unwrap(), file.bool("bool").unwrap()),
        (None, Some(true))
    );
    assert_eq!(
        (file.u64("u64").unwrap(), file.f32("f64").unwrap()),
        (Some(u64::MAX), Some(1.5))
    );
    assert_eq!(
        file.i64s("u16s").unwrap().unwrap().collect::<Vec<_>>(),
        [1, 65_535]
    );
    assert_eq!(
        file.f32s("f32s").unwrap().unwrap().collect::<Vec<_>>(),
        [0.5, -1.0]
    );
    assert_eq!(
        file.bools("bools").unwrap().unwrap().collect::<Vec<_>>(),
        [true, false]
    );
    let texts: Vec<&[u8]> = file.texts("texts").unwrap().unwrap().collect();
    assert_eq!(texts, [b"a".as_slice(), b"", b"\xff\x00"]);
    assert_eq!(file.header().keys().count(), 10);
    for (problem, word) in [
        (file.u64("i8").unwrap_err(), "`i8` is -1, which is negative"),
        (file.u32("u64").unwrap_err(), "at most 4294967295"),
        (
            file.u64("f64").unwrap_err(),
            "`f64` is a real number, not an integer",
        ),
        (file.str("latin1").unwrap_err(), "`latin1` is not UTF-8"),
        (
            file.texts("u16s").err().unwrap(),
            "`u16s` is an array, not an array of texts",
        ),
        (file.i64s("f32s").err().unwrap(), "not an array of integers"),
        (file.f32s("bool").err().unwrap(), "`bool` is a truth value"),
        (
            file.bool("texts").unwrap_err(),
            "`texts` is an array, not a truth value",
        ),
    ] {
        assert_eq!(problem.code, Code::ModelMalformed);
        assert!(
            problem.what.contains(word) && problem.place.is_some(),
            "{problem}"
        );
    }
    // Arrays in arrays: some levels are walked over, a bomb is not.
    let nested = |levels: usize| {
        let mut value = Vec::new();
        for _ in 0..levels {
            value.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        }
        value.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        GgufWriter::new("llama")
            .raw("nested", 9, &value)
            .bool("after", true)
    };
    nested(3).write(&path);
    assert_eq!(Gguf::open(&path).unwrap().bool("after").unwrap(), Some(true));
    nested(4).write(&path);
    let problem = Gguf::open(&path).unwrap_err();
    assert!(problem.what.contains("more than 4 deep"), "{problem}");
}
