//! Fuzz target `machine`.

#![no_main]

mod common;
