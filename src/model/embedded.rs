//! Cards of the default models, embedded so that planning needs neither network nor file.
//!
//! In: a file name. Out: the card as `inspect` would give it for that file, with an empty list of files.
//! Invariant: the JSON is generated from the real file; a test compares the two wherever the file is at hand.

use super::card::ModelCard;
use crate::base::{Code, Problem};

/// A published file whose card is built in.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModel {
    /// Name of the file as published.
    pub file_name: &'static str,
    /// The card as JSON.
    pub json: &'static str,
}

/// Every card built in.
pub const MODELS: &[EmbeddedModel] = &[
    EmbeddedModel {
        file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        json: include_str!("cards/SmolLM2-135M-Instruct.Q4_1.json"),
    },
    EmbeddedModel {
        file_name: "gemma-3-270m-q4_k_m.gguf",
        json: include_str!("cards/gemma-3-270m-q4_k_m.json"),
    },
];

/// The card of the file of this name, or `None` if it is not built in. Its `files` are empty: give it the path with
/// [`super::inspect`] once the file is there.
pub fn card(file_name: &str) -> Result<Option<ModelCard>, Problem> {
    let Some(model) = MODELS.iter().find(|model| model.file_name == file_name) else {
        return Ok(None);
    };
    serde_json::from_str(model.json).map(Some).map_err(|error| {
        Problem::new(
            Code::Internal,
            format!("the built-in card of `{file_name}` cannot be read: {error}"),
            "report this",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::check;

    #[test]
    fn every_card_parses_and_passes_its_checks() {
        for model in MODELS {
            let card = card(model.file_name).unwrap().unwrap();
            assert!(card.files.is_empty() && card.file_bytes.0 > 0);
            check::numbers(&card.name, &card.decoder).unwrap();
            check::tensors(&card).unwrap();
            let end = card.tensors.iter().map(|t| t.offset + t.bytes.0).max().unwrap();
            assert!(end <= card.file_bytes.0);
        }
        assert!(card("other.gguf").unwrap().is_none());
    }
}
