//! Tokenizers against reference ids: every recorded string of both published models, token by token, and against the
//! `tokenizers` library on random text.

use std::collections::BTreeMap;

use edge_deploy::engine::text::{Detokenizer, Encoding, GgufTokenizer, Tokenizer};
use edge_deploy::model::formats::gguf::Gguf;
use edge_deploy::model::{Weights, inspect};
use proptest::prelude::*;

use crate::support::tiny::{FAMILIES, TinyModel};
use crate::support::{model_file, shared};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

fn cases(test: &str, model: &str) -> Option<Vec<Case>> {
    let path = shared(test, "golden/llm/tokenize.json")?;
    let mut all: BTreeMap<String, Vec<Case>> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = all.remove(model).unwrap();
    assert!(cases.len() >= 80, "the recorded cases are there");
    Some(cases)
}

/// SmolLM2's vocabulary as the tiny reference models carry it, under the pre-tokenizer `pre`.
fn smollm2(test: &str, pre: &str) -> Option<Tokenizer> {
    let file = Gguf::open(&shared(test, "golden/llm/tiny-qwen3-f32.gguf")?).unwrap();
    let mut parts = GgufTokenizer::of(&file).unwrap();
    parts.pre = Some(pre);
    Some(parts.build().unwrap())
}

fn agrees(tokenizer: &Tokenizer, cases: &[Case]) {
    let how = Encoding {
        control_tokens: true,
        add_bos: false,
    };
    let mut wrong = Vec::new();
    for case in cases {
        let ids = tokenizer.encode(&case.text, how).unwrap();
        if ids != case.ids {
            wrong.push(format!("{:?}: {ids:?}, reference {:?}", case.text, case.ids));
        }
        let mut bytes = Vec::new();
        for id in ids {
            bytes.extend(tokenizer.token_bytes(id));
        }
        if bytes != case.text.as_bytes() {
            wrong.push(format!(
                "{:?} decodes to {:?}",
                case.text,
                String::from_utf8_lossy(&bytes)
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn smollm2_reference_ids() {
    let test = "smollm2_reference_ids";
    let (Some(cases), Some(tokenizer)) = (cases(test, SMOLLM2), smollm2(test, "smollm")) else {
        return;
    };
    agrees(&tokenizer, &cases);
}

#[test]
fn published_files_reference_ids() {
    let test = "published_files_reference_ids";
    for (name, bytes) in [(SMOLLM2, 6 << 20), (GEMMA, 12 << 20)] {
        let (Some(cases), Some(path)) = (cases(test, name), model_file(test, name)) else {
            continue;
        };
        let file = Gguf::open(&path).unwrap();
        let tokenizer = GgufTokenizer::of(&file).unwrap().build().unwrap();
        agrees(&tokenizer, &cases);
        let held = tokenizer.heap_bytes().unwrap();
        assert!(held < bytes, "{name}: the tables hold {held} bytes");
    }
}

/// The same tokenizer built with the `tokenizers` library, with its published look-ahead patterns.
fn library(test: &str, patterns: &[&str]) -> Option<tokenizers::Tokenizer> {
    use tokenizers::models::bpe::BPE;
    use tokenizers::pre_tokenizers::PreTokenizerWrapper;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    let file = Gguf::open(&shared(test, "golden/llm/tiny-qwen3-f32.gguf")?).unwrap();
    let parts = GgufTokenizer::of(&file).unwrap();
    let vocab: serde_json::Map<String, serde_json::Value> = (0..)
        .zip(parts.tokens.unwrap())
        .map(|(id, text)| (text.to_owned(), u32::into(id)))
        .collect();
    let model = serde_json::json!({"type": "BPE", "vocab": vocab, "merges": parts.merges.unwrap()});
    let bpe: BPE = serde_json::from_str(&model.to_string()).unwrap();
    let mut steps: Vec<PreTokenizerWrapper> = patterns
        .iter()
        .map(|pattern| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            Split::new(pattern, tokenizers::SplitDelimiterBehavior::Isolated, false)
                .unwrap()
                .into()
        })
        .collect();
    steps.push(ByteLevel::new(false, true, false).into());
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    Some(tokenizer)
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPARK: [&str; 4] = [
    r"\p{N}{1,3}",
    "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
    r"\p{N}",
];

#[test]
fn agrees_with_the_tokenizers_library_on_random_text() {
    let test = "agrees_with_the_tokenizers_library_on_random_text";
    let mut pairs = Vec::new();
    for (pre, patterns) in [
        ("smollm", &[r"\p{N}", GPT2][..]),
        ("qwen2", &[QWEN2]),
        ("spark2_5", &SPARK),
    ] {
        let (Some(ours), Some(theirs)) = (smollm2(test, pre), library(test, patterns)) else {
            return;
        };
        pairs.push((pre, ours, theirs));
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let words =
        "([ \n\r\t]{1,4}|[a-zA-Z]{1,8}|[0-9]{1,5}|'[sStT]|[漢字かなカナ]{1,4}|[.,!?<>|_-]{1,3}|\\PC){0,20}";
    runner
        .run(&words, |text| {
            for (pre, ours, theirs) in &pairs {
                let ids = ours
                    .encode(
                        &text,
                        Encoding {
                            control_tokens: false,
                            add_bos: false,
                        },
                    )
                    .unwrap();
                let reference = theirs.encode_fast(text.as_str(), false).unwrap();
                prop_assert_eq!(&ids[..], reference.get_ids(), "{}", pre);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn both_containers_of_a_model_have_one_tokenizer() {
    let text = "The thing in the house, 12 of <|im_start|> them\n\n  é漢🤖 <|im_end|>";
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let model = TinyModel::new(family, 3);
        let gguf = inspect(model.write_gguf(folder.path())).unwrap();
        let other = tempfile::tempdir().unwrap();
        model.write_safetensors(other.path(), 1);
        let safetensors = inspect(other.path()).unwrap();
        let [first, second] = [gguf, safetensors].map(|card| {
            let weights = Weights::open(&card).unwrap();
            Tokenizer::open(&card, &weights).unwrap()
        });
        assert_eq!(first.vocabulary_len(), second.vocabulary_len(), "{family}");
        assert_eq!(first.roles().stop, second.roles().stop, "{family}");
        assert_eq!(
            first.heap_bytes().is_some(),
            second.heap_bytes().is_none(),
            "{family}"
        );
        for how in [Encoding::PLAIN, Encoding::RENDERED, Encoding::PROMPT] {
            let ids = first.encode(text, how).unwrap();
            assert_eq!(ids, second.encode(text, how).unwrap(), "{family} {how:?}");
            assert_eq!(first.decode(&ids), second.decode(&ids), "{family} {how:?}");
            let control = ids.iter().filter(|&&id| first.is_control(id)).count();
            let wanted =
                usize::from(how.control_tokens) * 2 + usize::from(how.add_bos && first.roles().add_bos);
            assert_eq!(control, wanted, "{family} {how:?}");
        }
    }
}

#[test]
fn incremental_text_is_the_whole_text() {
    let test = "incremental_text_is_the_whole_text";
    let (Some(cases), Some(tokenizer)) = (cases(test, SMOLLM2), smollm2(test, "smollm")) else {
        return;
    };
    for case in cases {
        let mut detokenizer = Detokenizer::new(&tokenizer).with_control();
        let mut text = String::new();
        for id in case.ids {
            let part = detokenizer.push(&tokenizer, id);
            assert!(!part.contains('\u{FFFD}'), "{:?}", case.text);
            text.push_str(&part);
        }
        text.push_str(&detokenizer.finish());
        assert_eq!(text, case.text);
    }
}

#[test]
#[ignore = "a measurement, for people: cargo test --release --test it text::load_times -- --ignored --nocapture"]
fn load_times() {
    for name in [SMOLLM2, GEMMA] {
        let Some(path) = model_file("load_times", name) else {
            continue;
        };
        let file = Gguf::open(&path).unwrap();
        for _ in 0..3 {
            let start = std::time::Instant::now();
            let tokenizer = GgufTokenizer::of(&file).unwrap().build().unwrap();
            let built = start.elapsed();
            let text = "The quick brown fox jumps over the lazy dog. 12345 привет 世界\n".repeat(2000);
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, Encoding::PLAIN).unwrap().len();
            println!(
                "{name}: built in {built:?}, {} bytes held; {} bytes to {ids} tokens in {:?}",
                tokenizer.heap_bytes().unwrap(),
                text.len(),
                start.elapsed()
            );
        }
    }
}
