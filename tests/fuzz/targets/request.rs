//! Fuzz target `request`.

#![no_main]

mod common;
