//! A tokenizer from a Hugging Face `tokenizer.json`.
//!
//! In: the file's bytes. Out: a [`Tokenizer`] whose plain text is encoded by the `tokenizers` library.
//! Invariant: control tokens are cut out by us and never found by the library, so that text of unknown origin cannot
//! contain them; a file whose decoder we do not know is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::decoders::DecoderWrapper;

use super::sentencepiece::byte_of;
use super::tokenizer::{RoleIds, Scheme, Spelling, Tokenizer};
use super::vocabulary::{MAX_TOKENS, TokenKind, Vocabulary, unusable};
use crate::base::{Code, Place, Problem};

/// Largest `tokenizer.json` read; the largest published ones have about 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Encodes plain text by the library.
#[derive(Debug)]
pub struct JsonEncoder {
    inner: tokenizers::Tokenizer,
}

impl JsonEncoder {
    /// Appends the tokens of `text`, which holds no control tokens.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Problem> {
        // The library indexes by what the file says; a file that lies can make it panic.
        let encoded = catch_unwind(AssertUnwindSafe(|| self.inner.encode_fast(text, false)));
        match encoded {
            Ok(Ok(encoding)) => {
                out.extend_from_slice(encoding.get_ids());
                Ok(())
            }
            Ok(Err(error)) => Err(unusable(format!("the tokenizer failed on a text: {error}"))),
            Err(_) => Err(unusable("the tokenizer library panicked on a text".to_owned())),
        }
    }
}

/// Reads `tokenizer.json`. `stop` are the stop tokens that other files of the model name; `bos` and `eos` likewise.
///
/// # Errors
/// `FileAccess` when it cannot be read; `TokenizerUnusable` when it cannot be used.
pub fn load(path: &Path, roles: RoleIds) -> Result<Tokenizer, Problem> {
    let access = |error: std::io::Error| {
        Problem::new(
            Code::FileAccess,
            format!("the tokenizer file cannot be read: {error}"),
            "check that the model folder is complete and readable",
        )
        .at(Place::of(path.display().to_string()))
    };
    let size = std::fs::metadata(path).map_err(access)?.len();
    if size > MAX_FILE_BYTES {
        return Err(unusable(format!(
            "the tokenizer file has {size} bytes; at most {MAX_FILE_BYTES} are read"
        ))
        .at(Place::of(path.display().to_string())));
    }
    let bytes = std::fs::read(path).map_err(access)?;
    from_bytes(&bytes, roles).map_err(|problem| problem.at(Place::of(path.display().to_string())))
}

/// Builds a tokenizer from the contents of a `tokenizer.json`.
///
/// # Errors
/// `TokenizerUnusable`.
pub fn from_bytes(bytes: &[u8], mut roles: RoleIds) -> Result<Tokenizer, Problem> {
    let parsed = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes)));
    let mut inner = parsed
        .map_err(|_| unusable("the tokenizer library panicked on the file".to_owned()))?
        .map_err(|error| unusable(format!("the file is not a tokenizer we can build: {error}")))?;
    let (spelling, strips) = inner.get_decoder().and_then(spelling_of).ok_or_else(|| {
        unusable("the file's decoder is neither byte-level nor SentencePiece with byte fallback".to_owned())
    })?;
    inner.with_padding(None);
    inner
        .with_truncation(None)
        .map_err(|error| unusable(format!("truncation cannot be switched off: {error}")))?;

    let file: File = serde_json::from_slice(bytes)
        .map_err(|error| unusable(format!("the added tokens cannot be read: {error}")))?;
    let renumbered = file
        .added_tokens
        .iter()
        .find(|token| inner.token_to_id(&token.content) != Some(token.id));
    if let Some(token) = renumbered {
        return Err(unusable(format!(
            "the added token {:?} has the id {}, which does not follow the vocabulary",
            token.content, token.id
        )));
    }
    let by_text = inner.get_vocab(true);
    let count = by_text.values().max().map_or(0, |&last| last as usize + 1);
    if count > MAX_TOKENS {
        return Err(unusable(format!(
            "the largest token id is {}; at most {MAX_TOKENS} tokens are possible",
            count - 1
        )));
    }
    let added = inner.get_added_tokens_decoder();
    let mut texts: Vec<String> = vec![String::new(); count];
    for (text, id) in by_text {
        if !texts[id as usize].is_empty() {
            return Err(unusable(format!("two tokens have the id {id}")));
        }
        texts[id as usize] = text;
    }
    let mut kinds = Vec::with_capacity(count);
    for (id, text) in (0u32..).zip(&mut texts) {
        let kind = match added.get(&id) {
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if text.is_empty() => TokenKind::Unused,
            None if spelling == Spelling::SentencePiece && byte_of(text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        if text.is_empty() {
            // A gap in the numbering: a text of its own that no input can spell.
            *text = format!("{}gap {id}", super::special::GUARD);
        }
        kinds.push(kind);
    }
    let vocabulary = Vocabulary::build(texts.iter().map(String::as_str), kinds)?;
    let prefix = inner
        .encode("", true)
        .map_err(|error| unusable(format!("the post-processor fails on an empty text: {error}")))?;
    if let Some(&first) = prefix.get_ids().first()
        && roles.bos.is_none_or(|bos| bos == first)
    {
        roles.bos = Some(first);
        roles.add_bos = true;
    }
    inner.set_encode_special_tokens(true);
    Tokenizer::assemble(
        vocabulary,
        Scheme::Json(Box::new(JsonEncoder { inner })),
        spelling,
        strips,
        roles,
    )
}

/// The part of the file that the library renumbers where its ids leave gaps.
#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(serde::Deserialize)]
struct Added {
    id: u32,
    content: String,
}

/// How the decoder spells tokens, and whether it drops one leading blank; `None` for one we do not know.
fn spelling_of(decoder: &DecoderWrapper) -> Option<(Spelling, bool)> {
    match decoder {
        DecoderWrapper::ByteLevel(_) => Some((Spelling::ByteLevel, false)),
        DecoderWrapper::Sequence(steps) => {
            let steps = steps.get_decoders();
            let byte_level = steps
                .iter()
                .any(|step| matches!(step, DecoderWrapper::ByteLevel(_)));
            let fallback = steps
                .iter()
                .any(|step| matches!(step, DecoderWrapper::ByteFallback(_)));
            let strips = steps
                .iter()
                .any(|step| matches!(step, DecoderWrapper::Strip(strip) if strip.content == ' ' && strip.start == 1));
            if byte_level {
                Some((Spelling::ByteLevel, false))
            } else {
                fallback.then_some((Spelling::SentencePiece, strips))
            }
        }
        _ => None,
    }
}
