//! Fuzz target `probe_text`.

#![no_main]

mod common;
