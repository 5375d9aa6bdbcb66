//! Fuzz target `safetensors`.

#![no_main]

mod common;
