//! Models from files: real and small ones, whole and damaged.

use std::path::Path;

use edge_deploy::base::{Code, Problem};
use edge_deploy::model::card::{Activation, AttentionKind, ModelFormat};
use edge_deploy::model::{self, ModelCard, Weights};

use crate::support;

fn refusal(path: impl AsRef<Path>) -> Problem {
    match model::inspect(path.as_ref()) {
        Ok(card) => panic!(
            "{} was taken for a {} model",
            path.as_ref().display(),
            card.family
        ),
        Err(problem) => problem,
    }
}

#[test]
fn lfs_pointers_are_named() {
    let Some(folder) = support::shared("lfs_pointers_are_named", "fixtures/T29-lfs-pointer") else {
        return;
    };
    for path in [
        folder.clone(),
        folder.join("model.safetensors"),
        folder.join("model.gguf"),
    ] {
        let problem = refusal(&path);
        assert_eq!(problem.code, Code::ModelNotAModel, "{problem}");
        assert!(
            problem.what.contains("Git LFS") && problem.what.contains("3833402552"),
            "{problem}"
        );
        assert!(problem.remedy.contains("git lfs pull"), "{problem}");
    }
    assert!(refusal(&folder).what.contains("model.safetensors"));
}

#[test]
fn a_cut_safetensors_file_says_how_much_is_there() {
    let Some(folder) = support::shared("a_cut_safetensors_file", "fixtures/T30-safetensors-truncated") else {
        return;
    };
    for path in [folder.clone(), folder.join("model.safetensors")] {
        let problem = refusal(&path);
        assert_eq!(problem.code, Code::ModelTruncated, "{problem}");
        for word in ["truncated", "4096", "100"] {
            assert!(problem.what.contains(word), "{problem}");
        }
    }
}

#[test]
fn malformed_gguf_files_are_refused_without_memory_growth() {
    let Some(folder) = support::shared("malformed_gguf_files", "fixtures/T32-gguf-malformed") else {
        return;
    };
    if !support::alone("model::malformed_gguf_files_are_refused_without_memory_growth") {
        return;
    }
    let expected = [
        (
            "align_1GiB",
            Code::ModelMalformed,
            "general.alignment is 1073741824",
        ),
        ("align_3", Code::ModelMalformed, "general.alignment is 3"),
        ("align_zero", Code::ModelMalformed, "general.alignment is 0"),
        ("arr_nested_bomb", Code::ModelMalformed, "1099511627776 elements"),
        ("big_endian", Code::ModelUnsupported, "big-endian"),
        ("dim_zero", Code::ModelMalformed, "dimension of 0"),
        ("dims_wrap", Code::ModelMalformed, "overflows"),
        ("empty", Code::ModelNotAModel, "empty"),
        ("key_empty", Code::ModelMalformed, "empty"),
        ("magic_html", Code::ModelNotAModel, "HTML"),
        ("ndims_1e6", Code::ModelMalformed, "1000000 dimensions"),
        ("ndims_9", Code::ModelMalformed, "9 dimensions"),
        ("nkv_huge", Code::ModelMalformed, "1099511627776 metadata keys"),
        ("nt_huge", Code::ModelMalformed, "1152921504606846976 tensors"),
        ("str_len_huge", Code::ModelMalformed, "1152921504606846976"),
        ("truncated_header", Code::ModelTruncated, "truncated"),
        ("version_1", Code::ModelUnsupported, "version 1"),
        ("version_99", Code::ModelUnsupported, "version 99"),
    ];
    let present = std::fs::read_dir(&folder).unwrap().filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        path.extension().is_some_and(|e| e == "gguf")
    });
    assert_eq!(present.count(), expected.len(), "a fixture has no expectation");
    let before = support::rss_bytes();
    for (stem, code, text) in expected {
        let problem = refusal(folder.join(format!("{stem}.gguf")));
        assert_eq!(problem.code, code, "{stem}: {problem}");
        assert!(problem.what.contains(text), "{stem}: {problem}");
        assert!(
            !problem.remedy.is_empty() && problem.place.is_some(),
            "{stem}: {problem}"
        );
    }
    let grown = support::rss_bytes().saturating_sub(before);
    assert!(grown < 33_554_432, "{grown} bytes");
}

#[test]
fn all_missing_parts_are_named_from_any_part() {
    let Some(folder) = support::shared("all_missing_parts", "fixtures/T34-gguf-split-missing") else {
        return;
    };
    for part in ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf"] {
        let problem = refusal(folder.join(part));
        assert_eq!(problem.code, Code::ModelPartMissing, "{problem}");
        assert!(
            problem.what.contains("empty (0 bytes): `m-00002-of-00003.gguf`"),
            "{problem}"
        );
        assert!(
            problem.what.contains("missing: `m-00003-of-00003.gguf`"),
            "{problem}"
        );
    }
    let later = refusal(folder.join("m-00002-of-00003.gguf"));
    assert!(
        later.remedy.contains("pass part 1, `m-00001-of-00003.gguf`"),
        "{later}"
    );
    // The whole folder stands for its one model.
    assert_eq!(refusal(&folder).code, Code::ModelPartMissing);
}

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
