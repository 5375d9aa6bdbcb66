//! Model files: headers alone, then whole files and folders up to the card, the tokenizer and the chat template.

use edge_deploy::engine::text::gguf::GgufTokenizer;
use edge_deploy::model;
use edge_deploy::model::formats::gguf::Gguf;
use edge_deploy::model::formats::gguf_header;
use edge_deploy::model::formats::gguf_split::PartName;
use edge_deploy::model::formats::gguf_value::Value;
use edge_deploy::model::formats::{hf_config, safetensors as tensors};

use super::{folder, said, texts};

/// A GGUF header: tensors lie inside the file, and every value can be walked.
pub fn gguf(bytes: &[u8]) {
    let header = match gguf_header::parse(bytes, "fuzz.gguf") {
        Ok(header) => header,
        Err(problem) => return said(&problem),
    };
    for tensor in &header.tensors {
        let end = tensor.offset.checked_add(tensor.bytes);
        assert!(end.is_some_and(|end| end <= bytes.len() as u64));
        assert_eq!(tensor.offset % header.alignment, 0);
    }
    for key in header.keys() {
        if let Some(Value::Array(array)) = header.value(bytes, key) {
            if let Some(texts) = array.texts() {
                assert_eq!(texts.count(), array.len());
            }
            if let Some(scalars) = array.scalars() {
                assert_eq!(scalars.count(), array.len());
            }
        }
    }
}

/// A whole GGUF file: card, vocabulary, tokens of a text, chat template.
pub fn gguf_model(bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join("fuzz.gguf");
    std::fs::write(&path, bytes).expect("a temporary file can be written");
    let template = match model::inspect(&path) {
        Ok(card) => {
            let end = card
                .tensors
                .iter()
                .map(|tensor| tensor.offset.saturating_add(tensor.bytes.0));
            assert!(end.max().unwrap_or(0) <= bytes.len() as u64);
            card.chat_template
        }
        Err(problem) => {
            said(&problem);
            None
        }
    };
    let file = match Gguf::open(&path) {
        Ok(file) => file,
        Err(problem) => return said(&problem),
    };
    match GgufTokenizer::of(&file).and_then(|keys| keys.build()) {
        Err(problem) => said(&problem),
        Ok(tokenizer) => {
            texts::round_trip(&tokenizer);
            texts::chat(template.as_deref(), &tokenizer, "hello");
        }
    }
}

/// A safetensors header: tensors fill the data section without gap or overlap.
pub fn safetensors(bytes: &[u8]) {
    let found = match tensors::parse(bytes, "fuzz.safetensors") {
        Ok(found) => found,
        Err(problem) => return said(&problem),
    };
    let data: u64 = found.iter().map(|tensor| tensor.bytes).sum();
    let start = bytes.len() as u64 - data;
    for tensor in &found {
        assert!(tensor.offset >= start && tensor.offset + tensor.bytes <= bytes.len() as u64);
    }
}

/// Files of a model folder that an input can hold, each after its number (`0` to `6`).
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "chat_template.json",
    "chat_template.jinja",
    "model.safetensors",
];

/// A folder of the hub's form. The input is its files, cut at NUL bytes, each with its number in front.
fn folder_of(bytes: &[u8]) -> tempfile::TempDir {
    let folder = folder();
    for part in bytes.split(|&byte| byte == 0).take(FILES.len()) {
        let (which, content) = super::choice(part, FILES.len() as u8);
        let path = folder.path().join(FILES[usize::from(which)]);
        std::fs::write(path, content).expect("a temporary file can be written");
    }
    folder
}

/// A model folder: a card whose tensors lie in its files, or a problem.
pub fn model_folder(bytes: &[u8]) {
    let folder = folder_of(bytes);
    let path = folder.path();
    match model::inspect(path) {
        Ok(card) => assert!(!card.tensors.is_empty() && card.decoder.vocab > 0),
        Err(problem) => said(&problem),
    }
    for result in [
        hf_config::HfConfig::read(path).map(drop),
        hf_config::generation_config(path).map(drop),
        hf_config::shard_index(path).map(drop),
    ] {
        if let Err(problem) = result {
            said(&problem);
        }
    }
    match hf_config::tokenizer_config(path) {
        Err(problem) => said(&problem),
        Ok(config) => {
            let _ = (config.bos_id(), config.stop_ids());
            if let Err(problem) = hf_config::chat_template(path, &config) {
                said(&problem);
            }
        }
    }
    let name = String::from_utf8_lossy(bytes);
    if let Some(split) = PartName::parse(&name) {
        assert!(!split.sibling(1).is_empty());
    }
}
