//! SentencePiece-BPE from GGUF (`tokenizer.ggml.model = llama`), as Gemma and Llama 2 use it.
//!
//! In: a vocabulary with scores. Out: tokens of plain text.
//! Invariant: always merges the neighbours whose joined text is the normal token of highest score, leftmost first;
//! what no token spells becomes byte tokens. No merge list is built: the vocabulary's index answers each pair.

use super::merge::{Merger, NO_TOKEN, Symbol};
use super::vocabulary::{TokenKind, Vocabulary, unusable};
use crate::base::Problem;

/// Stands for a blank in token texts.
pub const BLANK: char = '\u{2581}';

/// The encoder.
#[derive(Debug)]
pub struct SentencePiece {
    /// By token: smaller means merged earlier (the score's order, reversed).
    urgency: Vec<u32>,
    /// Token of each byte.
    bytes: [u32; 256],
    unknown: Option<u32>,
    /// A blank is put in front of the text and of what follows a special token.
    add_space_prefix: bool,
}

/// An order-preserving number of a finite score, highest score first.
fn urgency_of(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // −0 and 0 are one score
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !rising
}

/// The byte that `<0x41>` stands for.
pub fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

impl SentencePiece {
    /// Builds the tables.
    ///
    /// # Errors
    /// `TokenizerUnusable` for scores that are missing or not finite, a byte token that names no byte, or a
    /// vocabulary with neither all byte tokens nor an unknown token.
    pub fn build(
        vocabulary: &Vocabulary,
        scores: impl ExactSizeIterator<Item = f32>,
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Result<Self, Problem> {
        if scores.len() != vocabulary.len() {
            return Err(unusable(format!(
                "the vocabulary has {} tokens but {} scores",
                vocabulary.len(),
                scores.len()
            )));
        }
        let mut urgency = Vec::with_capacity(vocabulary.len());
        let mut bytes = [NO_TOKEN; 256];
        for (id, score) in (0u32..).zip(scores) {
            if !score.is_finite() {
                return Err(unusable(format!("the score of token {id} is {score}")));
            }
            urgency.push(urgency_of(score));
            if vocabulary.kind(id) == TokenKind::Byte {
                let text = vocabulary.text(id);
                let byte = byte_of(text)
                    .ok_or_else(|| unusable(format!("byte token {id} is {text:?}, not such as <0x41>")))?;
                bytes[usize::from(byte)] = id;
            }
        }
        if unknown.is_none() && bytes.contains(&NO_TOKEN) {
            return Err(unusable(
                "the vocabulary has no unknown token and not all 256 byte tokens, so some text has no encoding".to_owned(),
            ));
        }
        Ok(Self {
            urgency,
            bytes,
            unknown,
            add_space_prefix,
        })
    }

    /// Appends the tokens of `text`, which holds no special tokens. Every fragment stands at the start of the text
    /// or after a special token, so each gets the prefix if the model wants one.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let mut spelled = String::with_capacity(text.len() + text.len() / 2);
        if self.add_space_prefix {
            spelled.push(BLANK);
        }
        spelled.extend(text.chars().map(|c| if c == ' ' { BLANK } else { c }));
        let normal = |start: u32, end: u32| {
            vocabulary
                .find(&spelled[start as usize..end as usize])
                .filter(|&id| vocabulary.kind(id) == TokenKind::Normal)
        };
        merger.clear();
        for (at, character) in spelled.char_indices() {
            let (start, end) = (at as u32, (at + character.len_utf8()) as u32);
            merger.push(Symbol {
                start,
                end,
                id: normal(start, end).unwrap_or(NO_TOKEN),
            });
        }
        let rule = |left: Symbol, right: Symbol| {
            normal(left.start, right.end).map(|id| (self.urgency[id as usize], id))
        };
        let mut after_unknown = false;
        for symbol in merger.run(rule) {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                after_unknown = false;
                continue;
            }
            let spelled = &spelled.as_bytes()[symbol.start as usize..symbol.end as usize];
            if spelled
                .iter()
                .all(|&byte| self.bytes[usize::from(byte)] != NO_TOKEN)
            {
                out.extend(spelled.iter().map(|&byte| self.bytes[usize::from(byte)]));
                after_unknown = false;
            } else if let Some(unknown) = self.unknown
                && !after_unknown
            {
                out.push(unknown); // neighbours without a token share one
                after_unknown = true;
            }
        }
    }

    /// Whether decoding drops one blank at the very start.
    pub fn strips_first_blank(&self) -> bool {
        self.add_space_prefix
    }

    /// Bytes of memory held.
    pub fn heap_bytes(&self) -> usize {
        self.urgency.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_are_more_urgent() {
        let scores = [-1000.0, -1.5, -0.0, 0.0, 3.0e-39, 2.0];
        assert!(scores.is_sorted_by_key(|&score| std::cmp::Reverse(urgency_of(score))));
        assert_eq!(urgency_of(-0.0), urgency_of(0.0));
    }

    #[test]
    fn byte_tokens_are_read_strictly() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x+A>", "0x0A", "<0xGG>"] {
            assert_eq!(byte_of(text), None, "{text}");
        }
    }
}
