//! Tokenizers and chat templates of unknown origin.

use edge_deploy::engine::text::chat_template::{ChatMessage, ChatOptions, ChatTemplate};
use edge_deploy::engine::text::gguf::GgufTokenizer;
use edge_deploy::engine::text::tokenizer::{Encoding, RoleIds, Tokenizer};
use edge_deploy::engine::text::tokenizer_json;

use super::said;

/// Encodes and decodes some texts: ids stay in the vocabulary. (A file may name a control token as the one for unknown
/// text, so that nothing is said of those here.)
pub fn round_trip(tokenizer: &Tokenizer) {
    for text in [
        "",
        " hello  world\n",
        "<|im_end|></s><bos>",
        "\u{1F600}é\u{0}\u{301}",
    ] {
        for how in [Encoding::PLAIN, Encoding::PROMPT] {
            match tokenizer.encode(text, how) {
                Err(problem) => said(&problem),
                Ok(ids) => {
                    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_len()));
                    let _ = tokenizer.decode(&ids);
                }
            }
        }
    }
    let last = tokenizer.vocabulary_len() as u32;
    let _ = tokenizer.decode(&[0, last.saturating_sub(1), last, u32::MAX]);
}

/// Compiles a template and renders two chats with it.
pub fn chat(template: Option<&str>, tokenizer: &Tokenizer, content: &str) {
    let template = match ChatTemplate::new(template, "llama", tokenizer) {
        Ok(template) => template,
        Err(problem) => return said(&problem),
    };
    let chats = [
        vec![ChatMessage::new("user", content)],
        vec![
            ChatMessage::new("system", content),
            ChatMessage::new("user", "<|im_start|>"),
            ChatMessage::new("assistant", "<think>no</think>"),
            ChatMessage::new("tool", content),
        ],
    ];
    for messages in &chats {
        match template.prompt(tokenizer, messages, &ChatOptions::default()) {
            Err(problem) => said(&problem),
            Ok(ids) => assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_len())),
        }
    }
}

/// A template, then, after a NUL byte, the text of the messages.
pub fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (template, content) = text.split_once('\0').unwrap_or((&text, "hello"));
    chat(Some(template), &small_tokenizer(), content);
}

/// A byte-level vocabulary of single bytes and a few control tokens.
fn small_tokenizer() -> Tokenizer {
    // Printable bytes of Latin-1 stand for themselves, the others for letters from U+0100 on.
    let mut next = 0x100u32..;
    let letters: Vec<String> = (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => next
                .next()
                .and_then(char::from_u32)
                .expect("there are letters enough"),
        })
        .map(String::from)
        .collect();
    let mut tokens: Vec<&str> = letters.iter().map(String::as_str).collect();
    let mut kinds = vec![1; tokens.len()];
    for (token, kind) in [
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("<think>", 4),
        ("</think>", 4),
    ] {
        tokens.push(token);
        kinds.push(kind);
    }
    GgufTokenizer {
        model: Some("gpt2"),
        pre: Some("gpt-2"),
        bos_token_id: Some(letters.len() as u32),
        eos_token_id: Some(letters.len() as u32 + 1),
        tokens: Some(tokens),
        token_type: Some(kinds),
        merges: Some(Vec::new()),
        ..GgufTokenizer::default()
    }
    .build()
    .expect("the vocabulary of the fuzz targets is sound")
}

/// A `tokenizer.json`. The library that reads it may panic on a lying file, which is caught where it is called.
pub fn tokenizer_json(bytes: &[u8]) {
    match tokenizer_json::from_bytes(bytes, RoleIds::default()) {
        Err(problem) => said(&problem),
        Ok(tokenizer) => {
            round_trip(&tokenizer);
            chat(None, &tokenizer, "hello");
        }
    }
}
