//! GGUF and safetensors files that are cut, crafted, incomplete or not models at all.

use edge_deploy::base::Code;
use edge_deploy::model::formats::safetensors;
use edge_deploy::model::{self, Weights};

use super::refusal;
use crate::support;
use crate::support::gguf::GgufWriter;
use crate::support::tiny::TinyModel;

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
    if !support::alone("model::damaged::malformed_gguf_files_are_refused_without_memory_growth") {
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

#[test]
fn split_sets_open_from_any_part_and_are_held_to_their_numbers() {
    let model = TinyModel::new("qwen3", 3);
    let folder = tempfile::tempdir().unwrap();
    let parts = model.gguf().write_split(folder.path(), "tiny", 3);
    let card = model::inspect(&parts[0]).unwrap();
    assert_eq!((card.name.as_str(), &card.files), ("tiny", &parts));
    assert_eq!(card.decoder, model.spec);
    assert_eq!(model::inspect(&parts[2]).unwrap(), card);
    assert_eq!(model::inspect(folder.path()).unwrap(), card);
    let weights = Weights::open(&card).unwrap();
    assert!(weights.tensor("blk.1.ffn_down.weight").is_some());

    // A part under another part's name.
    std::fs::copy(&parts[1], &parts[2]).unwrap();
    let problem = refusal(&parts[0]);
    assert!(problem.what.contains("split.no = 1"), "{problem}");
    // A part on its own, without the name of one.
    let alone = folder.path().join("alone.gguf");
    std::fs::copy(&parts[1], &alone).unwrap();
    let problem = refusal(&alone);
    assert_eq!(problem.code, Code::ModelPartMissing);
    assert!(problem.what.contains("part 2 of 3"), "{problem}");
    std::fs::remove_file(&parts[1]).unwrap();
    let problem = refusal(&parts[0]);
    assert!(
        problem.what.contains("missing: `tiny-00002-of-00003.gguf`"),
        "{problem}"
    );
}

#[test]
fn models_that_could_not_be_loaded_are_refused_with_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let model = TinyModel::new("llama", 1);
    let check = |file: &GgufWriter, code: Code, words: &[&str]| {
        file.write(&path);
        let problem = refusal(&path);
        assert_eq!(problem.code, code, "{problem}");
        for word in words {
            assert!(
                problem.what.contains(word) || problem.remedy.contains(word),
                "{word}: {problem}"
            );
        }
        assert!(problem.place.is_some(), "{problem}");
    };
    let whole = || model.gguf();
    check(
        &whole()
            .without("blk.1.ffn_up.weight")
            .without("output_norm.weight"),
        Code::ModelMalformed,
        &[
            "2 of the tensors",
            "`blk.1.ffn_up.weight` [96, 64] is missing",
            "`output_norm.weight` [64]",
        ],
    );
    check(
        &whole()
            .without("blk.0.attn_k.weight")
            .tensor_f32("blk.0.attn_k.weight", &[64, 32], &[0.0; 2048]),
        Code::ModelMalformed,
        &["`blk.0.attn_k.weight` has shape [64, 32], needs [32, 64]"],
    );
    check(
        &whole().tensor_f32("blk.0.attn_q.bias", &[64], &[0.0; 64]),
        Code::ModelUnsupported,
        &[
            "1 tensors that the llama family does not know",
            "blk.0.attn_q.bias",
        ],
    );
    check(
        &whole().tensor("extra", &[64, 256], 16, vec![0; 64 * 66]),
        Code::ModelUnsupported,
        &["`extra` (IQ2_XXS)"],
    );
    check(
        &whole().tensor("extra", &[64, 256], 77, vec![0; 64]),
        Code::ModelUnsupported,
        &["unknown type 77"],
    );
    check(
        &whole()
            .without("output_norm.weight")
            .tensor("output_norm.weight", &[64], 2, vec![0; 36]),
        Code::ModelMalformed,
        &["norm of type Q4_0"],
    );
    check(
        &whole().tensor("odd", &[4, 48], 2, vec![0; 108]),
        Code::ModelMalformed,
        &["48 elements, not a multiple of 32"],
    );
    check(
        &whole().text("general.name", "again"),
        Code::ModelMalformed,
        &["`general.name` stands twice"],
    );
    check(
        &whole().tensor_f32("output.weight", &[1], &[0.0]),
        Code::ModelMalformed,
        &["`output.weight` stands twice"],
    );
    check(
        &whole().u32("llama.expert_count", 8),
        Code::ModelUnsupported,
        &["mixture of experts"],
    );
    check(
        &whole().text("llama.rope.scaling.type", "yarn"),
        Code::ModelUnsupported,
        &["`llama.rope.scaling.type` is `yarn`"],
    );
    check(
        &whole().tensor_f32(
            "rope_freqs.weight",
            &[8],
            &[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 0.0, 4.0],
        ),
        Code::ModelMalformed,
        &["not positive"],
    );
    check(
        &GgufWriter::new("rwkv7"),
        Code::ModelUnsupported,
        &["`rwkv7`", "llama, qwen3, gemma3, spark2_5"],
    );
    check(
        &GgufWriter::new("llama"),
        Code::ModelMalformed,
        &["llama.block_count"],
    );
    check(
        &GgufWriter::new("llama").text("llama.block_count", "many"),
        Code::ModelMalformed,
        &["`llama.block_count` is a text, not an integer"],
    );
    check(
        &GgufWriter::new("llama").u32("llama.block_count", 4_000_000_000),
        Code::ModelMalformed,
        &["4000000000 layers"],
    );
    // Stored rope divisors reach every layer.
    whole()
        .tensor_f32(
            "rope_freqs.weight",
            &[8],
            &[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0],
        )
        .write(&path);
    let card = model::inspect(&path).unwrap();
    assert_eq!(card.decoder.layers[1].rope.frequency_divisors.last(), Some(&4.0));
    // Cut anywhere in its data, a file says how much is missing.
    let bytes = whole().bytes();
    std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let problem = refusal(&path);
    assert_eq!(problem.code, Code::ModelTruncated);
    assert!(problem.what.contains("100 are missing"), "{problem}");
}

#[test]
fn per_layer_lists_are_taken_when_they_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let file = |counts: &[i32]| {
        GgufWriter::new("llama")
            .u32("llama.block_count", 2)
            .i32s("llama.embedding_length", counts)
    };
    file(&[64, 64]).write(&path);
    assert!(
        refusal(&path)
            .what
            .contains("no key `llama.attention.head_count`")
    );
    file(&[64, 32]).write(&path);
    let problem = refusal(&path);
    assert_eq!(problem.code, Code::ModelUnsupported);
    assert!(problem.what.contains("differs from layer to layer"), "{problem}");
    file(&[-1, -1]).write(&path);
    assert!(refusal(&path).what.contains("negative"));
}

#[test]
fn a_file_that_changed_after_planning_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = TinyModel::new("llama", 1).write_gguf(folder.path());
    let card = model::inspect(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // One byte longer.
    bytes.push(0);
    std::fs::write(&path, &bytes).unwrap();
    let problem = Weights::open(&card).unwrap_err();
    assert!(problem.what.contains("no longer the file"), "{problem}");
    // The same size, another network.
    bytes.pop();
    let at = bytes
        .windows(17)
        .position(|w| w == b"rms_norm_epsilon\x06" || w.ends_with(b"rms_epsilon\x06"))
        .unwrap();
    bytes[at + 17 + 3] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let problem = Weights::open(&card).unwrap_err();
    assert!(problem.what.contains("headers differ"), "{problem}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Weights::open(&card).unwrap_err().code, Code::ModelNotFound);
}

#[test]
fn what_was_saved_in_place_of_a_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = crate::support::tiny::safetensors(&[("w".to_owned(), &[1], &[1.0])]);
    for (file, bytes, word) in [
        ("m.gguf", b"<?xml version='1.0'?><Error/>".as_slice(), "XML"),
        ("m.gguf", b"\xef\xbb\xbf\n <HTML lang=en>", "HTML"),
        ("m.gguf", b"PK\x03\x04rest", "ZIP"),
        ("m.gguf", b"\x1f\x8b\x08rest", "gzip"),
        ("m.gguf", b"tjgg\x03\x00\x00\x00", "before GGUF"),
        ("m.gguf", b"#!/bin/sh\n", "starts with `#!/b`"),
        ("m.gguf", &tiny, "a safetensors file"),
        ("model.safetensors", b"GGUF\x03\x00\x00\x00\x00", "a GGUF file"),
        ("model.safetensors", b"<!DOCTYPE html>", "HTML"),
        ("model.safetensors", b"PK\x03\x04rest", "ZIP"),
        ("model.safetensors", b"", "empty"),
    ] {
        let path = folder.path().join(file);
        std::fs::write(&path, bytes).unwrap();
        let problem = refusal(&path);
        assert_eq!(problem.code, Code::ModelNotAModel, "{problem}");
        assert!(problem.what.contains(word), "{word}: {problem}");
    }
}

#[test]
fn safetensors_headers_of_every_size_and_fault_are_told_apart() {
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let one = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    // Sizes around those of read buffers; a published reader once lost the last byte of 100,000.
    for size in [4095, 4096, 4097, 65_535, 65_536, 65_537, 99_999, 100_000, 100_001] {
        let header = one.to_owned() + &" ".repeat(size - one.len());
        let tensors = safetensors::parse(&file(&header, 8), "m").unwrap();
        assert_eq!((tensors[0].offset, tensors[0].bytes), (size as u64 + 8, 8));
        let cut = file(&header, 0);
        let problem = safetensors::parse(&cut[..cut.len() - 1], "m").unwrap_err();
        assert_eq!(problem.code, Code::ModelTruncated);
        assert!(
            problem
                .what
                .contains(&format!("promises {size} bytes, {} are", size - 1)),
            "{problem}"
        );
    }
    let deep = format!(r#"{{"__metadata__":{}}}"#, "[".repeat(10_000));
    let wide = format!(
        r#"{{"w":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#,
        "1,".repeat(100)
    );
    for (header, data, word) in [
        (one, 9, "1 bytes follow the last tensor"),
        (
            r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            4,
            "8 bytes, but has 4",
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
            8,
            "8..0",
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
            8,
            "overflows",
        ),
        (
            r#"{"w":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}"#,
            4,
            "unknown type `Q9`",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
            2,
            "follows a gap",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
            3,
            "overlaps",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
            "stands twice",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
            1,
            "invalid",
        ),
        (r#"{"w":7}"#, 0, "`w`"),
        ("[]", 0, "does not start with"),
        ("{", 0, "EOF"),
        (&deep, 0, "expected value"),
        (&wide, 1, "more than 8 dimensions"),
    ] {
        let problem = safetensors::parse(&file(header, data), "m").unwrap_err();
        assert_eq!(problem.code, Code::ModelMalformed, "{problem}");
        assert!(problem.what.contains(word), "{word}: {problem}");
    }
    let mut huge = 200_000_000u64.to_le_bytes().to_vec();
    huge.push(b'{');
    assert!(
        safetensors::parse(&huge, "m")
            .unwrap_err()
            .what
            .contains("at most 100000000")
    );
    assert!(
        safetensors::parse(b"abc", "m")
            .unwrap_err()
            .what
            .contains("3 bytes")
    );
}
