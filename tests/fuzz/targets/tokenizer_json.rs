//! Fuzz target `tokenizer_json`.

#![no_main]

mod common;
