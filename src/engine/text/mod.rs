//! Text to tokens and back, and chats to prompts.
//!
//! In: tokenizer facts from a model file, texts, messages. Out: token ids, text as it becomes final, rendered prompts.
//! Invariant: encoding is exactly the model's own (checked against reference ids), or loading fails; nothing here
//! reads the network or the environment, and no input makes it panic or grow without bound.

pub mod chat_template;
pub mod detokenizer;
pub mod gguf;
pub mod tokenizer;
pub mod tokenizer_json;
pub mod vocab_merges;

mod byte_level;
mod default_templates;
mod merge;
mod pretokenizer;
mod python;
mod sentencepiece;
mod special;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use chat_template::{ChatMessage, ChatOptions, ChatTemplate};
pub use detokenizer::Detokenizer;
pub use gguf::GgufTokenizer;
pub use tokenizer::{Encoding, Tokenizer};
