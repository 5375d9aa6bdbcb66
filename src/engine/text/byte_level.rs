//! Byte-level BPE, from GGUF (`tokenizer.ggml.model = gpt2`) or from `vocab.json` and `merges.txt`.
//!
//! In: the vocabulary in the byte alphabet, merges in order of rank, a pre-tokenizer. Out: tokens of plain text.
//! Invariant: every byte of ordinary text has a token, or building fails; decoding gives back the same bytes.

use std::collections::HashMap;

use super::merge::{Merger, NO_TOKEN, Symbol};
use super::pretokenizer::PreTokenizer;
use super::vocabulary::{Vocabulary, unusable};
use crate::base::Problem;

/// The encoder.
#[derive(Debug)]
pub struct ByteLevel {
    pre: PreTokenizer,
    /// Token of each byte; [`NO_TOKEN`] only where [`may_be_missing`] allows it.
    bytes: [u32; 256],
    /// Left and right token → (rank, merged token).
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Text is brought to Unicode's composed form (NFC) first.
    composing: bool,
}

/// The character that stands for `byte` in token texts: itself where it is visible, else from U+0100 on.
pub(super) fn letter_of(byte: u8) -> char {
    let visible = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        char::from(byte)
    } else {
        let hidden_before = (0..byte).filter(|&b| !visible(b)).count() as u32;
        char::from_u32(0x100 + hidden_before).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// The byte alphabet, both ways.
#[derive(Debug)]
pub struct Alphabet {
    /// Byte of each letter up to U+0143; `None` for letters outside the alphabet.
    bytes: [Option<u8>; 0x144],
}

impl Alphabet {
    /// The table.
    pub fn new() -> Self {
        let mut bytes = [None; 0x144];
        for byte in 0..=u8::MAX {
            if let Some(entry) = bytes.get_mut(letter_of(byte) as usize) {
                *entry = Some(byte);
            }
        }
        Self { bytes }
    }

    /// Appends the bytes that `text` spells; characters outside the alphabet stand for themselves.
    pub fn spell(&self, text: &str, out: &mut Vec<u8>) {
        for character in text.chars() {
            match self.bytes.get(character as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

/// Bytes a vocabulary may lack: control characters, and lead bytes that are invalid or open planes without text.
/// SmolLM2's lacks nineteen of them. Text with such a byte loses it, as in the model's own tokenizer.
fn may_be_missing(byte: u8) -> bool {
    let control = byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
    control || matches!(byte, 0x7F | 0xC0 | 0xC1 | 0xF1..=0xFF)
}

impl ByteLevel {
    /// Builds the tables.
    ///
    /// # Errors
    /// `TokenizerUnusable` for a merge of unknown tokens, or a byte that no token spells.
    pub fn build<'a>(
        vocabulary: &Vocabulary,
        merges: impl ExactSizeIterator<Item = &'a str>,
        pre: PreTokenizer,
    ) -> Result<Self, Problem> {
        let mut bytes = [NO_TOKEN; 256];
        for byte in 0..=u8::MAX {
            let letter = letter_of(byte);
            match vocabulary.find(letter.encode_utf8(&mut [0; 4])) {
                Some(id) => bytes[usize::from(byte)] = id,
                None if may_be_missing(byte) => {}
                None => {
                    return Err(unusable(format!(
                        "no token of the vocabulary spells the byte 0x{byte:02X}"
                    )));
                }
            }
        }
        let mut table = HashMap::with_capacity(merges.len());
        let mut joined = String::new();
        for (rank, merge) in (0u32..).zip(merges) {
            let sides = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty());
            let Some((left, right)) = sides else {
                return Err(unusable(format!(
                    "merge {rank} is {merge:?}, not two tokens with a blank between"
                )));
            };
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let find = |text: &str| {
                vocabulary.find(text).ok_or_else(|| {
                    unusable(format!(
                        "merge {rank} needs the token {text:?}, which is not in the vocabulary"
                    ))
                })
            };
            // A pair given twice keeps its first rank, as the reference implementation of GGUF has it.
            table
                .entry((find(left)?, find(right)?))
                .or_insert((rank, find(&joined)?));
        }
        table.shrink_to_fit();
        Ok(Self {
            pre,
            bytes,
            merges: table,
            composing: false,
        })
    }

    /// The same, with text brought to Unicode's composed form (NFC) first.
    pub fn composing(mut self) -> Self {
        self.composing = true;
        self
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let composed = self.composing.then(|| composed(text)).flatten();
        let text = composed.as_deref().unwrap_or(text);
        let mut spelled = String::new();
        for piece in self.pre.pieces(text) {
            let piece = &text.as_bytes()[piece];
            if self.pre.ignore_merges {
                spelled.clear();
                spelled.extend(piece.iter().map(|&byte| letter_of(byte)));
                if let Some(id) = vocabulary.find(&spelled) {
                    out.push(id);
                    continue;
                }
            }
            merger.clear();
            for (at, &byte) in (0u32..).zip(piece) {
                merger.push(Symbol {
                    start: at,
                    end: at + 1,
                    id: self.bytes[usize::from(byte)],
                });
            }
            let left = merger.run(|left, right| self.merges.get(&(left.id, right.id)).copied());
            out.extend(left.map(|symbol| symbol.id).filter(|&id| id != NO_TOKEN));
        }
    }

    /// Whether a BOS token is added when the model does not say.
    pub fn default_add_bos(&self) -> bool {
        self.pre.add_bos
    }

    /// Bytes of memory held by the merge table.
    pub fn heap_bytes(&self) -> usize {
        self.merges.capacity() * (size_of::<((u32, u32), (u32, u32))>() + 1)
    }
}

/// The composed form (NFC) of a text that may differ from it.
fn composed(text: &str) -> Option<String> {
    if text.is_ascii() {
        return None;
    }
    let mut normalised = tokenizers::NormalizedString::from(text);
    normalised.nfc();
    Some(normalised.get().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_the_published_one() {
        for (byte, letter) in [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'a', 'a'),
            (0xAD, 'Ń'),
            (0x7F, 'ġ'),
            (0xA0, 'ł'),
        ] {
            assert_eq!(letter_of(byte), letter);
        }
        let alphabet = Alphabet::new();
        for byte in 0..=u8::MAX {
            let mut spelled = Vec::new();
            alphabet.spell(&letter_of(byte).to_string(), &mut spelled);
            assert_eq!(spelled, [byte]);
        }
    }
}
