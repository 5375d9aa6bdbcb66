//! Fuzz target `gguf`.

#![no_main]

mod common;
