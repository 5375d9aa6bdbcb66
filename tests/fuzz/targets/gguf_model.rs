//! Fuzz target `gguf_model`.

#![no_main]

mod common;
