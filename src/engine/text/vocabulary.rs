//! `Vocabulary`: every token's text and kind, and the way back from text to token.
//!
//! In: token texts and kinds from a model file. Out: look-ups both ways.
//! Invariant: texts are unique; memory is one text arena, 4 bytes a token for its end, 1 for its kind and about
//! 8 for the index. No `String` per token: 262 144 tokens take about 7 MB instead of 30.

use std::hash::{BuildHasher, RandomState};

use crate::base::{Code, Problem};

/// What a token is for (GGUF `tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text the vocabulary cannot write.
    Unknown,
    /// Structure such as `<|im_end|>`; never part of an answer's text.
    Control,
    /// Always cut out of the text before tokenising (`<think>`, runs of newlines).
    UserDefined,
    /// Reserved and never produced.
    Unused,
    /// One byte, spelled `<0x41>`.
    Byte,
}

impl TokenKind {
    /// From GGUF's number; 0 ("undefined") counts as normal.
    pub fn from_gguf(number: i32) -> Option<Self> {
        Some(match number {
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Marks a free slot of the index; no vocabulary has this many tokens.
const FREE: u32 = u32::MAX;

/// Token texts and kinds by id, and ids by text.
#[derive(Debug)]
pub struct Vocabulary {
    arena: String,
    /// Where each token's text ends in the arena; it begins where the one before ends.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Open addressing with linear probing; at most two thirds full.
    slots: Vec<u32>,
    /// Randomly keyed, so that a hostile vocabulary cannot be built to collide.
    hasher: RandomState,
}

impl Vocabulary {
    /// Builds the tables.
    ///
    /// # Errors
    /// `TokenizerUnusable` for no token, too many, a text that stands twice, or lists of different length.
    pub fn build<'a, I>(texts: I, kinds: Vec<TokenKind>) -> Result<Self, Problem>
    where
        I: ExactSizeIterator<Item = &'a str>,
    {
        let count = texts.len();
        if count == 0 || count > MAX_TOKENS {
            return Err(unusable(format!(
                "the vocabulary has {count} tokens; 1 to {MAX_TOKENS} are possible"
            )));
        }
        if kinds.len() != count {
            return Err(unusable(format!(
                "the vocabulary has {count} tokens but {} token types",
                kinds.len()
            )));
        }
        let mut built = Self {
            arena: String::with_capacity(count * 8),
            ends: Vec::with_capacity(count),
            kinds,
            slots: vec![FREE; (count + count / 2 + 1).next_power_of_two()],
            hasher: RandomState::new(),
        };
        for (id, text) in (0u32..).zip(texts) {
            let slot = match built.probe(text) {
                Ok(other) => {
                    return Err(unusable(format!(
                        "tokens {other} and {id} have the same text {text:?}"
                    )));
                }
                Err(slot) => slot,
            };
            built.arena.push_str(text);
            let end = u32::try_from(built.arena.len())
                .map_err(|_| unusable("the token texts are larger than 4 GiB together".to_owned()))?;
            built.ends.push(end);
            if let Some(free) = built.slots.get_mut(slot) {
                *free = id;
            }
        }
        built.arena.shrink_to_fit();
        Ok(built)
    }

    /// The token of that text, or the free slot where it would stand.
    fn probe(&self, text: &str) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(text.as_bytes()) as usize & mask;
        loop {
            match self.slots[slot] {
                FREE => return Err(slot),
                id if self.text(id) == text => return Ok(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// The token with exactly this text.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.probe(text).ok()
    }

    /// The token's text as the model file spells it; empty for an id outside the vocabulary.
    pub fn text(&self, id: u32) -> &str {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return "";
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.arena[start as usize..end as usize]
    }

    /// What the token is for; `Unused` for an id outside the vocabulary.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// How many tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory held.
    pub fn heap_bytes(&self) -> usize {
        self.arena.capacity() + self.ends.capacity() * 4 + self.kinds.capacity() + self.slots.capacity() * 4
    }
}

/// Far above any real vocabulary (about 262 144 today); keeps hostile headers from asking for more.
pub const MAX_TOKENS: usize = 4 << 20;

/// A `TokenizerUnusable` problem with the remedy that fits every damaged tokenizer.
pub fn unusable(what: String) -> Problem {
    Problem::new(
        Code::TokenizerUnusable,
        what,
        "download the model again, or use another conversion of it",
    )
    .why("without an exact tokenizer the model would read other text than was sent")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(texts: &[&str]) -> Result<Vocabulary, Problem> {
        Vocabulary::build(texts.iter().copied(), vec![TokenKind::Normal; texts.len()])
    }

    #[test]
    fn looks_up_both_ways() {
        let vocabulary = normal(&["a", "bc", "", "ä"]).unwrap();
        for (id, text) in ["a", "bc", "", "ä"].into_iter().enumerate() {
            assert_eq!(vocabulary.text(id as u32), text);
            assert_eq!(vocabulary.find(text), Some(id as u32));
        }
        assert_eq!(vocabulary.find("b"), None);
        assert_eq!((vocabulary.text(4), vocabulary.kind(4)), ("", TokenKind::Unused));
    }

    #[test]
    fn refuses_what_cannot_be_a_vocabulary() {
        assert!(normal(&["a", "b", "a"]).unwrap_err().what.contains("0 and 2"));
        assert!(normal(&[]).unwrap_err().what.contains("0 tokens"));
        let uneven = Vocabulary::build(["a"].into_iter(), Vec::new()).unwrap_err();
        assert_eq!(uneven.code, Code::TokenizerUnusable);
    }
}
