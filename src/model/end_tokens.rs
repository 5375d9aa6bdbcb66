//! Token texts that end an answer in the chat formats of the families served.
//!
//! In: token texts. Out: which of them end generation.
//! Invariant: only whole, exact texts count; a token that merely contains one does not.

/// End-of-turn and end-of-text tokens by their text.
const ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<EOT>",
    "<|end_of_text|>",
];

/// Whether a token of this text ends generation.
pub(crate) fn is_end(text: &[u8]) -> bool {
    text.first() == Some(&b'<') && ENDS.iter().any(|end| end.as_bytes() == text)
}

/// Ids of the tokens that end generation.
pub(crate) fn positions<'a>(tokens: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = u32> {
    (0u32..)
        .zip(tokens)
        .filter_map(|(id, text)| is_end(text).then_some(id))
}
