//! From what is asked for to the parts of a prompt.
//!
//! In: a request's text, voice, language and instruction. Out: ids of each part, or a problem that names what the
//! model has instead. Invariant: text of unknown origin never opens or closes a turn: it is read apart from the marks
//! around it, and spells no control token.

use std::sync::Arc;

use super::prompt::{Frame, PromptParts, Reference, VoicePart};
use crate::base::{Code, Problem};
use crate::engine::text::{Encoding, Tokenizer};
use crate::model::speech::{SpeechCard, SpeechIds, SpeechVariant};

/// Whose voice a request wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Voice {
    /// The model's own choice: the first by name of its voices, or what an instruction describes.
    Default,
    /// A built-in voice.
    Named(String),
    /// A voice taken from a recording.
    Cloned {
        /// The voice vector, of the talker's width.
        vector: Arc<[f32]>,
        /// Codes and words of the recording, to continue its manner as well.
        reference: Option<(Arc<[Frame]>, String)>,
    },
}

/// What is asked to be said, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechRequest {
    /// What is said.
    pub text: String,
    /// Whose voice.
    pub voice: Voice,
    /// Name of a language, or `auto`.
    pub language: String,
    /// How it is to be said, in words.
    pub instructions: Option<String>,
    /// All text before the first frame, or one token with each; `None` = the model's own way.
    pub text_at_once: Option<bool>,
}

/// Turns texts into ids: the marks of turns by id, the texts by the tokenizer.
#[derive(Clone, Debug)]
pub struct SpeechTexts {
    ids: SpeechIds,
    newline: Vec<u32>,
    user: Vec<u32>,
}

impl SpeechTexts {
    /// Finds the ids of the templates' own words.
    ///
    /// # Errors
    /// `tokenizer_unusable` when the tokenizer spells the role otherwise than the model's configuration says.
    pub fn new(ids: SpeechIds, tokenizer: &Tokenizer) -> Result<Self, Problem> {
        let plain = |text: &str| tokenizer.encode(text, Encoding::PLAIN);
        let assistant = plain("assistant")?;
        if assistant != [ids.assistant] {
            return Err(Problem::new(
                Code::TokenizerUnusable,
                format!(
                    "the tokenizer spells `assistant` {assistant:?}, the model's configuration says {}",
                    ids.assistant
                ),
                "download the tokenizer's files and config.json of one release",
            )
            .why("prompts would begin with a role the model does not know"));
        }
        Ok(Self {
            ids,
            newline: plain("\n")?,
            user: plain("user")?,
        })
    }

    /// The rows before what is said.
    #[must_use]
    pub fn role(&self) -> Vec<u32> {
        let mut ids = vec![self.ids.im_start, self.ids.assistant];
        ids.extend_from_slice(&self.newline);
        ids
    }

    /// An instruction with its turn.
    ///
    /// # Errors
    /// As of [`Tokenizer::encode`].
    pub fn instruction(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Problem> {
        let mut ids = vec![self.ids.im_start];
        ids.extend_from_slice(&self.user);
        ids.extend_from_slice(&self.newline);
        ids.extend(tokenizer.encode(text, Encoding::PLAIN)?);
        ids.push(self.ids.im_end);
        ids.extend_from_slice(&self.newline);
        Ok(ids)
    }

    /// What is said, or what was said in a recording.
    ///
    /// # Errors
    /// `request_invalid` for a text without a word; as of [`Tokenizer::encode`].
    pub fn spoken(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Problem> {
        let ids = tokenizer.encode(text, Encoding::PLAIN)?;
        if text.trim().is_empty() || ids.is_empty() {
            return Err(invalid(
                "the text to be said is empty",
                "send a text with at least one word",
            ));
        }
        Ok(ids)
    }
}

fn invalid(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem::new(Code::RequestInvalid, what, remedy)
}

impl SpeechCard {
    /// Names of languages a request may give, `auto` first.
    #[must_use]
    pub fn language_names(&self) -> Vec<&str> {
        let spoken = self.languages.keys().map(String::as_str);
        std::iter::once("auto")
            .chain(spoken.filter(|name| !name.contains("dialect")))
            .collect()
    }

    /// Whether instructions change how it speaks. The smallest release with named voices was not trained for them.
    #[must_use]
    pub fn takes_instructions(&self) -> bool {
        match self.variant {
            SpeechVariant::CustomVoice => self.size != "0b6",
            SpeechVariant::VoiceDesign => true,
            SpeechVariant::Base => false,
        }
    }
}

/// The language tag: what was asked for, or the voice's dialect where that is automatic or Chinese.
///
/// # Errors
/// `request_invalid` with the names there are.
pub fn language_id(card: &SpeechCard, language: &str, voice: Option<&str>) -> Result<Option<u32>, Problem> {
    let name = language.trim().to_lowercase();
    let names = card.language_names();
    if !names.contains(&name.as_str()) {
        return Err(invalid(
            format!("the model does not speak `{}`", language.escape_debug()),
            format!("ask for one of: {}", names.join(", ")),
        ));
    }
    let dialect = voice
        .and_then(|voice| card.speakers.get(voice))
        .and_then(|speaker| speaker.dialect.as_deref())
        .filter(|_| name == "auto" || name == "chinese");
    Ok(card.languages.get(dialect.unwrap_or(&name)).copied())
}

/// The parts of the prompt for a request.
///
/// # Errors
/// `request_invalid` when the model lacks what is asked for, or the text is empty.
pub fn prompt_parts(
    card: &SpeechCard,
    texts: &SpeechTexts,
    tokenizer: &Tokenizer,
    request: &SpeechRequest,
) -> Result<PromptParts, Problem> {
    let (voice, name) = voice_part(card, &request.voice)?;
    let instruction = match request
        .instructions
        .as_deref()
        .filter(|text| !text.trim().is_empty())
    {
        None => Vec::new(),
        Some(_) if !card.takes_instructions() => {
            return Err(invalid(
                format!(
                    "this model ({} {}) takes no instructions",
                    card.size,
                    card.variant.as_str()
                ),
                "leave `instructions` out, or use the 1.7B model with named or designed voices",
            ));
        }
        Some(text) => texts.instruction(tokenizer, text)?,
    };
    let reference = match &request.voice {
        Voice::Cloned {
            reference: Some((frames, said)),
            ..
        } => Some(Reference {
            frames: Arc::clone(frames),
            text: texts.spoken(tokenizer, said)?,
        }),
        _ => None,
    };
    Ok(PromptParts {
        instruction,
        role: texts.role(),
        spoken: texts.spoken(tokenizer, &request.text)?,
        voice,
        language: language_id(card, &request.language, name)?,
        reference,
        // What each release does by itself.
        text_at_once: request
            .text_at_once
            .unwrap_or(card.variant != SpeechVariant::Base),
    })
}

/// The voice as a row or a vector, and its name where it has one.
fn voice_part<'c>(card: &'c SpeechCard, voice: &Voice) -> Result<(VoicePart, Option<&'c str>), Problem> {
    let named = |name: &str| {
        let found = card.speakers.get_key_value(&name.trim().to_lowercase());
        found.map(|(name, speaker)| (VoicePart::Row(speaker.id), Some(name.as_str())))
    };
    match voice {
        Voice::Default if card.variant == SpeechVariant::Base => Err(invalid(
            "this model speaks with the voice of a recording, and none is given",
            "send a recording of the voice to clone",
        )),
        Voice::Default => Ok(match card.speakers.keys().next() {
            Some(first) => named(first).unwrap_or((VoicePart::None, None)),
            None => (VoicePart::None, None),
        }),
        Voice::Named(name) => named(name).ok_or_else(|| {
            let names: Vec<&str> = card.speakers.keys().map(String::as_str).collect();
            let remedy = match (names.as_slice(), card.variant) {
                ([], SpeechVariant::VoiceDesign) => "describe the voice in `instructions`".to_owned(),
                ([], _) => "send a recording of the voice; this model has no named ones".to_owned(),
                (names, _) => format!("ask for one of: {}", names.join(", ")),
            };
            invalid(format!("there is no voice `{}`", name.escape_debug()), remedy)
        }),
        Voice::Cloned { .. } if card.variant != SpeechVariant::Base => Err(invalid(
            format!("this model ({}) does not clone voices", card.variant.as_str()),
            "use a Base model for cloning",
        )),
        Voice::Cloned { vector, .. } => Ok((VoicePart::Vector(Arc::clone(vector)), None)),
    }
}
