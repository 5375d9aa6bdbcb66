//! Fuzz target `yaml`.

#![no_main]

mod common;
