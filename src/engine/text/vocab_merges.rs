//! A byte-level BPE tokenizer from `vocab.json`, `merges.txt` and the added tokens of `tokenizer_config.json`.
//!
//! In: a folder with the three files. Out: a [`Tokenizer`]. Invariant: the files are bounded before they are read; ids
//! are unique; text is brought to Unicode's composed form (NFC) before it is cut, as these tokenizers do.

use std::collections::HashMap;
use std::path::Path;

use super::byte_level::ByteLevel;
use super::pretokenizer::PreTokenizer;
use super::tokenizer::{RoleIds, Scheme, Spelling, Tokenizer};
use super::vocabulary::{MAX_TOKENS, TokenKind, Vocabulary, unusable};
use crate::base::{Code, Place, Problem};
use crate::model::formats::hf_config;

/// Largest `vocab.json` or `merges.txt`; published ones have a few megabytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Builds the tokenizer of `folder`; `pre` names its pre-tokenizer.
///
/// # Errors
/// `file_access` when a file cannot be read; `tokenizer_unusable` when it cannot be used, with its place.
pub fn load(folder: &Path, pre: Option<&str>) -> Result<Tokenizer, Problem> {
    let at = |name: &str| Place::of(folder.join(name).display().to_string());
    let vocab = read(&folder.join("vocab.json"))?;
    let merges = read(&folder.join("merges.txt"))?;
    let added: Vec<Added> = hf_config::tokenizer_config(folder)?
        .added_tokens()
        .map(|(id, text, special)| {
            let id = id.parse().map_err(|_| {
                unusable(format!("the added token {text:?} has the id {id:?}"))
                    .at(at("tokenizer_config.json"))
            })?;
            Ok(Added {
                id,
                text: text.to_owned(),
                special,
            })
        })
        .collect::<Result<_, Problem>>()?;
    let vocabulary = vocabulary(&vocab, &added).map_err(|problem| problem.at(at("vocab.json")))?;
    let lines = merge_lines(&merges);
    let scheme = ByteLevel::build(&vocabulary, lines.into_iter(), PreTokenizer::named(pre)?)
        .map_err(|problem| problem.at(at("merges.txt")))?
        .composing();
    Tokenizer::assemble(
        vocabulary,
        Scheme::ByteLevel(scheme),
        Spelling::ByteLevel,
        false,
        RoleIds::default(),
    )
}

struct Added {
    id: u32,
    text: String,
    special: bool,
}

fn read(path: &Path) -> Result<String, Problem> {
    let place = || Place::of(path.display().to_string());
    let access = |error: std::io::Error| {
        Problem::new(
            Code::FileAccess,
            format!("the tokenizer file cannot be read: {error}"),
            "check that the model folder is complete and readable",
        )
        .at(place())
    };
    let facts = std::fs::metadata(path).map_err(access)?;
    if !facts.is_file() || facts.len() > MAX_FILE_BYTES {
        return Err(unusable(format!(
            "the tokenizer file is no regular file of at most {MAX_FILE_BYTES} bytes ({} bytes)",
            facts.len()
        ))
        .at(place()));
    }
    let bytes = std::fs::read(path).map_err(access)?;
    String::from_utf8(bytes).map_err(|_| unusable("the tokenizer file is not UTF-8".to_owned()).at(place()))
}

/// Every token by id, the added ones with their kinds; a gap in the numbering becomes a token no text can spell.
fn vocabulary(vocab: &str, added: &[Added]) -> Result<Vocabulary, Problem> {
    let plain: HashMap<String, u32> = serde_json::from_str(vocab)
        .map_err(|error| unusable(format!("it is not a map from tokens to ids: {error}")))?;
    let ids = plain.values().copied().chain(added.iter().map(|token| token.id));
    let count = ids.max().map_or(0, |last| last as usize + 1);
    if count > MAX_TOKENS {
        return Err(unusable(format!(
            "the largest token id is {}; at most {MAX_TOKENS} tokens are possible",
            count - 1
        )));
    }
    let mut texts: Vec<Option<String>> = vec![None; count];
    let mut kinds = vec![TokenKind::Unused; count];
    for (text, id) in plain {
        let slot = &mut texts[id as usize];
        if slot.is_some() {
            return Err(unusable(format!("two tokens have the id {id}")));
        }
        *slot = Some(text);
        kinds[id as usize] = TokenKind::Normal;
    }
    for token in added {
        let id = token.id as usize;
        // An added token may repeat one of the vocabulary under its own id, never rename it.
        if let Some(other) = texts[id].as_ref().filter(|text| **text != token.text) {
            return Err(unusable(format!(
                "the added token {:?} has the id {id}, which is {other:?}",
                token.text
            )));
        }
        texts[id] = Some(token.text.clone());
        kinds[id] = if token.special {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
    }
    let texts: Vec<String> = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| text.unwrap_or_else(|| format!("{}gap {id}", super::special::GUARD)))
        .collect();
    Vocabulary::build(texts.iter().map(String::as_str), kinds)
}

/// The merges in order of rank; a first line that gives the format's version is none.
fn merge_lines(text: &str) -> Vec<&str> {
    text.lines()
        .enumerate()
        .filter(|(at, line)| !(line.is_empty() || *at == 0 && line.starts_with("#version")))
        .map(|(_, line)| line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::text::Encoding;

    /// A vocabulary of the byte letters, `extra` tokens behind them, and the files that describe it.
    fn folder(extra: &[&str], merges: &str, added: &serde_json::Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let letters: Vec<String> = (0..=u8::MAX)
            .map(|byte| crate::engine::text::byte_level::letter_of(byte).to_string())
            .collect();
        let all = letters.iter().map(String::as_str).chain(extra.iter().copied());
        let vocab: HashMap<&str, usize> = all.enumerate().map(|(id, text)| (text, id)).collect();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("vocab.json", serde_json::to_string(&vocab).unwrap());
        write("merges.txt", merges.to_owned());
        write(
            "tokenizer_config.json",
            serde_json::json!({ "added_tokens_decoder": added }).to_string(),
        );
        folder
    }

    #[test]
    fn text_is_composed_before_it_is_cut_and_control_tokens_need_permission() {
        let added = serde_json::json!({"300": {"content": "<|x|>", "special": true}});
        let folder = folder(&["Ã©", "ab"], "#version: 0.2\nÃ ©\na b\n", &added);
        let tokenizer = load(folder.path(), Some("qwen2")).unwrap();
        assert_eq!(tokenizer.vocabulary_len(), 301);
        // e and a combining acute accent are one letter, U+00E9.
        let ids = tokenizer.encode("e\u{301}ab", Encoding::PLAIN).unwrap();
        assert_eq!(ids, [256, 257]);
        assert_eq!(tokenizer.encode("<|x|>", Encoding::RENDERED).unwrap(), [300]);
        assert_eq!(tokenizer.encode("<|x|>", Encoding::PLAIN).unwrap().len(), 5);
        assert_eq!(tokenizer.decode(&[256, 257]), "éab");
    }

    #[test]
    fn damaged_files_are_refused_with_their_place() {
        let none = serde_json::json!({});
        let unknown = folder(&[], "a b\n", &none);
        let problem = load(unknown.path(), Some("qwen2")).unwrap_err();
        assert_eq!(problem.code, Code::TokenizerUnusable);
        assert!(problem.place.unwrap().source.ends_with("merges.txt"));
        let renamed = folder(
            &[],
            "",
            &serde_json::json!({"5": {"content": "zz", "special": true}}),
        );
        assert!(
            load(renamed.path(), Some("qwen2"))
                .unwrap_err()
                .what
                .contains("\"zz\"")
        );
        let huge = folder(
            &[],
            "",
            &serde_json::json!({"4000000000": {"content": "z", "special": true}}),
        );
        assert!(
            load(huge.path(), Some("qwen2"))
                .unwrap_err()
                .what
                .contains("4000000000")
        );
        let broken = folder(&[], "", &none);
        std::fs::write(broken.path().join("vocab.json"), "{\"a\": -1}").unwrap();
        assert_eq!(
            load(broken.path(), Some("qwen2")).unwrap_err().code,
            Code::TokenizerUnusable
        );
        std::fs::remove_file(broken.path().join("vocab.json")).unwrap();
        assert_eq!(
            load(broken.path(), Some("qwen2")).unwrap_err().code,
            Code::FileAccess
        );
    }
}
