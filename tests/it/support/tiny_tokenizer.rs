//! Tokenizers of the small models: a byte-level BPE for three families, an SPM with byte fallback for Gemma.
//!
//! In: a family. Out: the same vocabulary as GGUF keys and as `tokenizer.json`.

use std::path::Path;

use serde_json::{Value, json};

use super::gguf::GgufWriter;
use super::tiny::write_json;

/// ChatML, which every small model speaks.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}\
     {{ '<|im_start|>assistant\n' }}{% endif %}";
const BPE_SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const BPE_MERGES: [(&str, &str); 5] = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("o", "u")];
const SPM_SPECIAL: [&str; 6] = ["<pad>", "<eos>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>"];
const SPM_WORDS: [&str; 5] = ["he", "the", "▁the", "in", "ou"];

/// The printable stand-in of every byte (GPT-2's alphabet).
fn byte_alphabet() -> Vec<String> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let mut stand_in = |b: u32| {
        let code = if printable(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap().to_string()
    };
    (0..256).map(&mut stand_in).collect()
}

/// Every token with its GGUF type (1 normal, 2 unknown, 3 control, 6 byte).
fn tokens(family: &str) -> Vec<(String, i32)> {
    let mut all: Vec<(String, i32)> = Vec::new();
    if family == "gemma3" {
        all.extend(
            SPM_SPECIAL
                .iter()
                .map(|t| ((*t).to_owned(), if *t == "<unk>" { 2 } else { 3 })),
        );
        all.extend((0..256).map(|b| (format!("<0x{b:02X}>"), 6)));
        all.extend(('a'..='z').map(|c| (c.to_string(), 1)));
        all.push(("▁".to_owned(), 1));
        all.extend(SPM_WORDS.map(|t| (t.to_owned(), 1)));
    } else {
        all.extend(BPE_SPECIAL.map(|t| (t.to_owned(), 3)));
        all.extend(byte_alphabet().into_iter().map(|t| (t, 1)));
        all.extend(BPE_MERGES.map(|(a, b)| (format!("{a}{b}"), 1)));
    }
    all
}

/// Token texts in the order of their ids.
pub fn vocabulary(family: &str) -> Vec<String> {
    tokens(family).into_iter().map(|(text, _)| text).collect()
}

/// Adds the tokenizer's keys.
pub fn add_to_gguf(file: GgufWriter, family: &str) -> GgufWriter {
    let all = tokens(family);
    let (texts, kinds): (Vec<String>, Vec<i32>) = all.into_iter().unzip();
    let file = file
        .texts("tokenizer.ggml.tokens", &texts)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .text("tokenizer.chat_template", CHAT_TEMPLATE);
    if family == "gemma3" {
        let score = |(id, kind): (usize, &i32)| match kind {
            1 => -(id as f32),
            6 => 0.0,
            _ => -1000.0,
        };
        let scores: Vec<f32> = kinds.iter().enumerate().map(score).collect();
        return file
            .text("tokenizer.ggml.model", "llama")
            .f32s("tokenizer.ggml.scores", &scores)
            .u32("tokenizer.ggml.bos_token_id", 2)
            .u32("tokenizer.ggml.eos_token_id", 1)
            .u32("tokenizer.ggml.unknown_token_id", 3)
            .bool("tokenizer.ggml.add_bos_token", true)
            .bool("tokenizer.ggml.add_space_prefix", false);
    }
    let pre = match family {
        "qwen3" => "qwen2",
        "spark2_5" => "spark2_5",
        _ => "smollm",
    };
    let merges: Vec<String> = BPE_MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect();
    file.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_bos_token", false)
}

/// `tokenizer.json` with the same vocabulary.
fn tokenizer_json(family: &str) -> Value {
    let all = tokens(family);
    let vocab: serde_json::Map<String, Value> = all
        .iter()
        .enumerate()
        .map(|(id, (text, _))| (text.clone(), json!(id)))
        .collect();
    let special = all
        .iter()
        .enumerate()
        .filter(|(_, (_, kind))| matches!(kind, 2 | 3));
    let added: Vec<Value> = special
        .map(|(id, (text, _))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": true});
    let spm = family == "gemma3";
    // SPM words by rank: each is made from the halves that merge first.
    let spm_merges = [["h", "e"], ["t", "he"], ["▁", "the"], ["i", "n"], ["o", "u"]];
    let merges = if spm { json!(spm_merges) } else { json!(BPE_MERGES) };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": if spm { json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}) }
            else { Value::Null },
        "pre_tokenizer": if spm { Value::Null } else { json!({"type": "Sequence", "pretokenizers":
            [{"type": "Digits", "individual_digits": true}, byte_level]}) },
        "post_processor": if spm { json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}}) }
            else { Value::Null },
        "decoder": if spm { json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]}) } else { byte_level.clone() },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": if spm { json!("<unk>") } else { Value::Null },
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": spm,
            "byte_fallback": spm, "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

/// Writes `tokenizer.json` and `tokenizer_config.json`.
pub fn write_hf(folder: &Path, family: &str) {
    write_json(&folder.join("tokenizer.json"), &tokenizer_json(family));
    let (bos, eos) = if family == "gemma3" {
        ("<bos>", "<eos>")
    } else {
        ("<|im_start|>", "<|im_end|>")
    };
    let special = tokens(family)
        .into_iter()
        .enumerate()
        .filter(|(_, (_, kind))| *kind == 3);
    let added: serde_json::Map<String, Value> = special
        .map(|(id, (text, _))| (id.to_string(), json!({"content": text, "special": true})))
        .collect();
    write_json(
        &folder.join("tokenizer_config.json"),
        &json!({"added_tokens_decoder": added, "bos_token": bos, "eos_token": {"content": eos},
                "add_bos_token": family == "gemma3", "chat_template": CHAT_TEMPLATE}),
    );
}
