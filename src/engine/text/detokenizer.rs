//! `Detokenizer`: tokens in as they are generated, text out as soon as it is certain.
//!
//! In: one token at a time. Out: text that never changes later.
//! Invariant: all pushes and `finish` together give exactly the text of the whole sequence; a character split over
//! tokens is held until complete, so U+FFFD appears only for bytes that can never become a character.

use super::tokenizer::Tokenizer;

/// State of one answer.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// Bytes that do not end a character yet; at most three.
    held: Vec<u8>,
    /// The next text is the first of the answer and loses one blank.
    strip_blank: bool,
    with_control: bool,
}

impl Detokenizer {
    /// At the start of an answer. Control tokens give no text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            held: Vec::new(),
            strip_blank: tokenizer.strips_first_blank(),
            with_control: false,
        }
    }

    /// The same after a prompt: nothing is the first text, so no blank is dropped.
    pub fn after_prompt() -> Self {
        Self {
            held: Vec::new(),
            strip_blank: false,
            with_control: false,
        }
    }

    /// Also writes control tokens as text.
    #[must_use]
    pub fn with_control(mut self) -> Self {
        self.with_control = true;
        self
    }

    /// Takes one token; returns what became final, often empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        tokenizer.bytes_of(id, self.with_control, &mut self.held);
        if self.strip_blank && !self.held.is_empty() {
            self.strip_blank = false;
            if self.held[0] == b' ' {
                self.held.remove(0);
            }
        }
        let mut text = String::new();
        let mut done = 0;
        while done < self.held.len() {
            match std::str::from_utf8(&self.held[done..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.held.len();
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.held[done..valid]));
                    done = valid;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.held.drain(..done);
        text
    }

    /// Whether bytes of an unfinished character are held.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The end of the answer: what is held can no longer become a character.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}
