//! Speech model folders: the published shapes with holes instead of weights, for what reads headers only.
//!
//! In: the fixtures' own copy of the releases' shapes and configurations. Out: a folder that `inspect` takes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::tiny::write_json;

/// Names and shapes of one weight file.
pub type Shapes = BTreeMap<String, Vec<u64>>;

fn fixture(name: &str) -> Value {
    let path = format!("{}/tests/fixtures/qwen3_tts/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The configuration of a release, of its codec (`speech_tokenizer`) or of its sampling (`generation`).
pub fn config(name: &str) -> Value {
    fixture("configs.json")[name].clone()
}

/// Every tensor of a release or of the codec; `{0..27}` in a name of the fixture stands for a range.
pub fn shapes(name: &str) -> Shapes {
    let all = fixture("shapes.json");
    let mut shapes = Shapes::new();
    for (pattern, shape) in all[name].as_object().unwrap() {
        let shape: Vec<u64> = serde_json::from_value(shape.clone()).unwrap();
        for name in expanded(pattern) {
            shapes.insert(name, shape.clone());
        }
    }
    shapes
}

fn expanded(pattern: &str) -> Vec<String> {
    let Some((head, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (range, tail) = rest.split_once('}').unwrap();
    let (first, last) = range.split_once("..").unwrap();
    let numbers = first.parse::<u32>().unwrap()..=last.parse::<u32>().unwrap();
    numbers
        .flat_map(|number| expanded(&format!("{head}{number}{tail}")))
        .collect()
}

/// A safetensors file with these tensors and a hole for their data.
pub fn write_hollow(path: &Path, dtype: &str, shapes: &Shapes) {
    let width = if dtype == "F32" { 4 } else { 2 };
    let mut header = serde_json::Map::new();
    let mut at = 0u64;
    for (name, shape) in shapes {
        let end = at + shape.iter().product::<u64>() * width;
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

/// A release's folder: configurations, hollow weights, and tokenizer files that are there but empty.
pub struct Release {
    pub config: Value,
    pub generation: Value,
    pub codec: Value,
    pub shapes: Shapes,
    pub codec_shapes: Shapes,
}

impl Release {
    pub fn new(name: &str) -> Self {
        let shapes_of = if name == "1.7B-VoiceDesign" {
            "1.7B-CustomVoice"
        } else {
            name
        };
        Self {
            config: config(name),
            generation: config("generation"),
            codec: config("speech_tokenizer"),
            shapes: shapes(shapes_of),
            codec_shapes: shapes("speech_tokenizer"),
        }
    }

    pub fn write(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("speech_tokenizer")).unwrap();
        write_json(&at("config.json"), &self.config);
        write_json(&at("generation_config.json"), &self.generation);
        write_json(&at("speech_tokenizer/config.json"), &self.codec);
        for name in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
            std::fs::write(at(name), "{}").unwrap();
        }
        write_hollow(&at("model.safetensors"), "BF16", &self.shapes);
        write_hollow(
            &at("speech_tokenizer/model.safetensors"),
            "F32",
            &self.codec_shapes,
        );
        folder
    }
}
