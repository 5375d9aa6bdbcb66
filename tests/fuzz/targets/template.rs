//! Fuzz target `template`.

#![no_main]

mod common;
