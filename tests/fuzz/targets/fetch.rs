//! Fuzz target `fetch`.

#![no_main]

mod common;
