//! Fuzz target `settings`.

#![no_main]

mod common;
