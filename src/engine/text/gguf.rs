//! A tokenizer from GGUF metadata.
//!
//! In: [`GgufTokenizer`], the `tokenizer.ggml.*` keys as borrowed values. Out: a [`Tokenizer`].
//! Invariant: arrays of different length, ids outside the vocabulary and unknown kinds are refused.

use super::byte_level::ByteLevel;
use super::pretokenizer::PreTokenizer;
use super::sentencepiece::SentencePiece;
use super::tokenizer::{RoleIds, Scheme, Spelling, Tokenizer};
use super::vocabulary::{TokenKind, Vocabulary, unusable};
use crate::base::{Code, Problem};
use crate::model::formats::gguf::Gguf;

/// The `tokenizer.ggml.*` keys of one file; `None` where a key is absent.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each field is the key of the same name")]
pub struct GgufTokenizer<'a> {
    pub model: Option<&'a str>,
    pub pre: Option<&'a str>,
    pub tokens: Option<Vec<&'a str>>,
    pub token_type: Option<Vec<i32>>,
    pub scores: Option<Vec<f32>>,
    pub merges: Option<Vec<&'a str>>,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub eot_token_id: Option<u32>,
    pub eom_token_id: Option<u32>,
    pub unknown_token_id: Option<u32>,
    pub add_bos_token: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl<'a> GgufTokenizer<'a> {
    /// The keys of an opened file; nothing is copied but references.
    ///
    /// # Errors
    /// `ModelMalformed` for a key of another kind; `TokenizerUnusable` for a token or merge that is not UTF-8.
    pub fn of(file: &'a Gguf) -> Result<Self, Problem> {
        let texts = |key: &str| -> Result<Option<Vec<&'a str>>, Problem> {
            let Some(found) = file.texts(key)? else {
                return Ok(None);
            };
            let utf8 = |(at, bytes): (usize, &'a [u8])| {
                std::str::from_utf8(bytes).map_err(|_| unusable(format!("entry {at} of {key} is not UTF-8")))
            };
            found.enumerate().map(utf8).collect::<Result<_, _>>().map(Some)
        };
        let types = file.i64s("tokenizer.ggml.token_type")?;
        Ok(Self {
            model: file.str("tokenizer.ggml.model")?,
            pre: file.str("tokenizer.ggml.pre")?,
            tokens: texts("tokenizer.ggml.tokens")?,
            // A number beyond i32 is no type either; −1 says so.
            token_type: types.map(|all| all.map(|n| i32::try_from(n).unwrap_or(-1)).collect()),
            scores: file.f32s("tokenizer.ggml.scores")?.map(Iterator::collect),
            merges: texts("tokenizer.ggml.merges")?,
            bos_token_id: file.u32("tokenizer.ggml.bos_token_id")?,
            eos_token_id: file.u32("tokenizer.ggml.eos_token_id")?,
            eot_token_id: file.u32("tokenizer.ggml.eot_token_id")?,
            eom_token_id: file.u32("tokenizer.ggml.eom_token_id")?,
            unknown_token_id: file.u32("tokenizer.ggml.unknown_token_id")?,
            add_bos_token: file.bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?,
        })
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// `TokenizerUnusable` for a kind or pre-tokenizer we do not know, missing or uneven arrays, duplicate tokens,
    /// ids outside the vocabulary.
    pub fn build(&self) -> Result<Tokenizer, Problem> {
        let tokens = needed(self.tokens.as_ref(), "tokens")?;
        let kinds = needed(self.token_type.as_ref(), "token_type")?
            .iter()
            .enumerate()
            .map(|(id, &number)| {
                TokenKind::from_gguf(number)
                    .ok_or_else(|| unusable(format!("token {id} has the unknown type {number}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let vocabulary = Vocabulary::build(tokens.iter().copied(), kinds)?;
        let unknown = self.unknown_token_id;
        if let Some(id) = unknown.filter(|&id| id as usize >= vocabulary.len()) {
            return Err(unusable(format!(
                "the unknown token has the id {id}, but the vocabulary ends at {}",
                vocabulary.len() - 1
            )));
        }
        let (scheme, spelling, default_add_bos, strips) = match self.model {
            Some("gpt2") => {
                let merges = needed(self.merges.as_ref(), "merges")?;
                let pre = PreTokenizer::named(self.pre)?;
                let scheme = ByteLevel::build(&vocabulary, merges.iter().copied(), pre)?;
                let add_bos = scheme.default_add_bos();
                (Scheme::ByteLevel(scheme), Spelling::ByteLevel, add_bos, false)
            }
            Some("llama") => {
                let scores = needed(self.scores.as_ref(), "scores")?;
                let prefix = self.add_space_prefix.unwrap_or(true);
                let scheme = SentencePiece::build(&vocabulary, scores.iter().copied(), unknown, prefix)?;
                let strips = scheme.strips_first_blank();
                (
                    Scheme::SentencePiece(scheme),
                    Spelling::SentencePiece,
                    true,
                    strips,
                )
            }
            other => {
                let seen = other.map_or_else(
                    || "no kind".to_owned(),
                    |kind| format!("the kind `{}`", kind.escape_debug()),
                );
                return Err(Problem::new(
                    Code::TokenizerUnusable,
                    format!("the file's tokenizer has {seen} (tokenizer.ggml.model)"),
                    "use a model whose tokenizer is `gpt2` (byte-level BPE) or `llama` (SentencePiece)",
                ));
            }
        };
        let stop = [self.eot_token_id, self.eom_token_id]
            .into_iter()
            .flatten()
            .collect();
        let add_bos = self.add_bos_token.unwrap_or(default_add_bos);
        let roles = RoleIds {
            bos: self.bos_token_id,
            eos: self.eos_token_id,
            add_bos,
            stop,
        };
        Tokenizer::assemble(vocabulary, scheme, spelling, strips, roles)
    }
}

fn needed<'v, T>(value: Option<&'v T>, key: &str) -> Result<&'v T, Problem> {
    value.ok_or_else(|| {
        unusable(format!(
            "the file has no tokenizer.ggml.{key}, or not as the array it should be"
        ))
    })
}
