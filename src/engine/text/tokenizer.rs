//! `Tokenizer`: one model's tokenizer, whatever it was built from.
//!
//! In: text. Out: token ids, and for each id its bytes. Shared by all requests (`&self` only).
//! Invariant: control tokens appear only where the caller allows them or asks for BOS; ids are below
//! [`Tokenizer::vocabulary_len`].

use std::path::Path;

use super::byte_level::{Alphabet, ByteLevel};
use super::gguf::GgufTokenizer;
use super::merge::Merger;
use super::sentencepiece::{self, SentencePiece};
use super::special::{Fragment, Specials, unguard};
use super::tokenizer_json::{self, JsonEncoder};
use super::vocab_merges;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::base::{Code, Problem};
use crate::model::speech::TOKENIZER_KIND;
use crate::model::{ModelCard, Weights};

/// Longest text that is encoded, in bytes. A context of a million tokens is about 4 MiB.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// How to read a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Text that spells a control token becomes that token. On for prompts the application wrote or rendered; off
    /// for text of unknown origin, which must not open or close turns.
    pub control_tokens: bool,
    /// Put the BOS token in front if the model wants one and the text does not begin with it.
    pub add_bos: bool,
}

impl Encoding {
    /// A prompt for plain completion: markup is the caller's business, BOS by the model's rule.
    pub const PROMPT: Self = Self {
        control_tokens: true,
        add_bos: true,
    };
    /// A rendered chat: the template wrote the BOS itself.
    pub const RENDERED: Self = Self {
        control_tokens: true,
        add_bos: false,
    };
    /// Text of unknown origin, as it stands inside a prompt.
    pub const PLAIN: Self = Self {
        control_tokens: false,
        add_bos: false,
    };
}

/// How plain text becomes tokens.
#[derive(Debug)]
pub(super) enum Scheme {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
    Json(Box<JsonEncoder>),
}

/// How a normal token's text becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Letters of the byte alphabet.
    ByteLevel,
    /// U+2581 for blanks, `<0x41>` for bytes.
    SentencePiece,
}

/// Ids with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleIds {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence, as templates write it.
    pub eos: Option<u32>,
    /// Whether plain prompts get the BOS token.
    pub add_bos: bool,
    /// Tokens that end generation, sorted.
    pub stop: Vec<u32>,
}

/// A model's tokenizer.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    specials: Specials,
    scheme: Scheme,
    spelling: Spelling,
    alphabet: Alphabet,
    /// Decoding drops one blank at the very start.
    strips_first_blank: bool,
    roles: RoleIds,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tokenizer")
            .field("tokens", &self.vocabulary.len())
            .field("spelling", &self.spelling)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

/// Texts of tokens that end a turn in some family; any of them stops generation when the vocabulary has it as a
/// special token.
const END_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",
];

impl Tokenizer {
    /// The tokenizer of an opened model: from GGUF metadata, or from the files beside safetensors.
    ///
    /// # Errors
    /// `TokenizerUnusable` when it cannot be built, or has more tokens than the model has embedding rows;
    /// `FileAccess` and `ModelMalformed` for files that cannot be read.
    pub fn open(card: &ModelCard, weights: &Weights) -> Result<Self, Problem> {
        let built = if let Some(file) = weights.gguf_metadata() {
            GgufTokenizer::of(file)?.build()?
        } else {
            let folder = card
                .files
                .first()
                .and_then(|file| file.parent())
                .unwrap_or(Path::new("."));
            if card.tokenizer.kind == TOKENIZER_KIND {
                vocab_merges::load(folder, card.tokenizer.pre.as_deref())?
            } else {
                let roles = RoleIds {
                    bos: card.tokenizer.bos_id,
                    eos: None,
                    add_bos: card.tokenizer.add_bos,
                    stop: Vec::new(),
                };
                tokenizer_json::load(&folder.join("tokenizer.json"), roles)?
            }
        };
        let (tokens, rows) = (built.vocabulary_len(), card.text_rows());
        if tokens > rows {
            return Err(super::vocabulary::unusable(format!(
                "the tokenizer has {tokens} tokens but the model has embeddings for {rows}"
            )));
        }
        built.with_stops(&card.tokenizer.stop_ids)
    }

    /// Adds stop tokens that other files of the model name.
    ///
    /// # Errors
    /// `TokenizerUnusable` for an id outside the vocabulary.
    pub fn with_stops(mut self, ids: &[u32]) -> Result<Self, Problem> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocabulary.len()) {
            return Err(super::vocabulary::unusable(format!(
                "the model names the stop token {id}, but the vocabulary ends at {}",
                self.vocabulary.len() - 1
            )));
        }
        self.roles.stop.extend_from_slice(ids);
        self.roles.stop.sort_unstable();
        self.roles.stop.dedup();
        Ok(self)
    }

    /// Puts the parts together, checks the roles and completes the stop tokens.
    ///
    /// # Errors
    /// `TokenizerUnusable` when a role names an id outside the vocabulary.
    pub(super) fn assemble(
        vocabulary: Vocabulary,
        scheme: Scheme,
        spelling: Spelling,
        strips_first_blank: bool,
        mut roles: RoleIds,
    ) -> Result<Self, Problem> {
        let specials = Specials::of(&vocabulary);
        let is_special = |id: u32| matches!(vocabulary.kind(id), TokenKind::Control | TokenKind::UserDefined);
        let ends = END_TEXTS.iter().filter_map(|text| vocabulary.find(text));
        roles.stop.extend(ends.filter(|&id| is_special(id)));
        roles.stop.extend(roles.eos);
        roles.stop.sort_unstable();
        roles.stop.dedup();
        let outside = roles
            .stop
            .iter()
            .chain(&roles.bos)
            .find(|&&id| id as usize >= vocabulary.len());
        if let Some(id) = outside {
            return Err(super::vocabulary::unusable(format!(
                "a special token has the id {id}, but the vocabulary ends at {}",
                vocabulary.len() - 1
            )));
        }
        Ok(Self {
            vocabulary,
            specials,
            scheme,
            spelling,
            alphabet: Alphabet::new(),
            strips_first_blank,
            roles,
        })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// `RequestInvalid` for a text above [`MAX_TEXT_BYTES`]; `TokenizerUnusable` if a `tokenizer.json` fails on it.
    pub fn encode(&self, text: &str, how: Encoding) -> Result<Vec<u32>, Problem> {
        self.encode_with(text, how, false)
    }

    /// The tokens of a rendered chat whose messages went through [`Self::guard`]: guards keep control tokens out of
    /// them and are then dropped.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(super) fn encode_guarded(&self, text: &str) -> Result<Vec<u32>, Problem> {
        self.encode_with(text, Encoding::RENDERED, true)
    }

    fn encode_with(&self, text: &str, how: Encoding, guarded: bool) -> Result<Vec<u32>, Problem> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Problem::new(
                Code::RequestInvalid,
                format!(
                    "the text has {} bytes; at most {MAX_TEXT_BYTES} are tokenised",
                    text.len()
                ),
                "send a shorter text",
            ));
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut merger = Merger::default();
        for fragment in self.specials.split(&self.vocabulary, text, how.control_tokens) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(range) => {
                    let plain = if guarded {
                        unguard(&text[range])
                    } else {
                        text[range].into()
                    };
                    match &self.scheme {
                        Scheme::ByteLevel(scheme) => {
                            scheme.encode(&self.vocabulary, &plain, &mut merger, &mut ids);
                        }
                        Scheme::SentencePiece(scheme) => {
                            scheme.encode(&self.vocabulary, &plain, &mut merger, &mut ids);
                        }
                        Scheme::Json(scheme) => scheme.encode(&plain, &mut ids)?,
                    }
                }
            }
        }
        if how.add_bos
            && self.roles.add_bos
            && let Some(bos) = self.roles.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids`, control tokens left out. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = super::Detokenizer::new(self);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&detokenizer.push(self, id));
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// Appends the bytes that a token stands for in an answer. Control and unknown tokens stand for nothing unless
    /// `with_control`; ids outside the vocabulary stand for nothing.
    pub fn bytes_of(&self, id: u32, with_control: bool, out: &mut Vec<u8>) {
        let text = self.vocabulary.text(id);
        match (self.vocabulary.kind(id), self.spelling) {
            (TokenKind::Control | TokenKind::Unknown, _) if !with_control => {}
            (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => {
                out.extend_from_slice(text.as_bytes());
            }
            (TokenKind::Byte, Spelling::SentencePiece) => {
                out.extend(sentencepiece::byte_of(text));
            }
            (_, Spelling::SentencePiece) => {
                for character in text.chars() {
                    let character = if character == sentencepiece::BLANK {
                        ' '
                    } else {
                        character
                    };
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            (_, Spelling::ByteLevel) => self.alphabet.spell(text, out),
        }
    }

    /// The token's bytes, control tokens as they are spelled: what `logprobs` shows.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.bytes_of(id, true, &mut bytes);
        bytes
    }

    /// `text` made safe to stand inside a rendered prompt: what spells a control token, or one of `markers`, will be
    /// read as text by [`Self::encode_guarded`].
    pub(super) fn guard(&self, text: &str, markers: &[u32]) -> String {
        let guarded = |id: u32| self.vocabulary.kind(id) == TokenKind::Control || markers.contains(&id);
        self.specials.guard(&self.vocabulary, text, &guarded)
    }

    /// User-defined tokens whose text occurs in `template` and looks like markup (no blank, not one character).
    pub fn markers_in(&self, template: &str) -> Vec<u32> {
        let markup = |text: &str| text.len() > 1 && !text.contains(char::is_whitespace);
        let user_defined = |id: &u32| self.vocabulary.kind(*id) == TokenKind::UserDefined;
        let ids = self.specials.ids().iter().copied().filter(user_defined);
        ids.filter(|&id| markup(self.vocabulary.text(id)) && template.contains(self.vocabulary.text(id)))
            .collect()
    }

    /// The token with exactly this text, as the model file spells it.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocabulary.find(text)
    }

    /// The token's text as the model file spells it; empty for an id outside the vocabulary.
    pub fn text_of(&self, id: u32) -> &str {
        self.vocabulary.text(id)
    }

    /// Whether the token is structure, not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == TokenKind::Control
    }

    /// Whether the token ends generation.
    pub fn is_stop(&self, id: u32) -> bool {
        self.roles.stop.binary_search(&id).is_ok()
    }

    /// BOS, EOS and stop tokens.
    pub fn roles(&self) -> &RoleIds {
        &self.roles
    }

    /// How many tokens there are.
    pub fn vocabulary_len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether an answer loses one blank at its very start.
    pub fn strips_first_blank(&self) -> bool {
        self.strips_first_blank
    }

    /// Bytes of memory held by our tables. `None` for `tokenizer.json`, whose library does not say.
    pub fn heap_bytes(&self) -> Option<usize> {
        let scheme = match &self.scheme {
            Scheme::ByteLevel(scheme) => scheme.heap_bytes(),
            Scheme::SentencePiece(scheme) => scheme.heap_bytes(),
            Scheme::Json(_) => return None,
        };
        Some(self.vocabulary.heap_bytes() + scheme + self.specials.ids().len() * 4)
    }
}
