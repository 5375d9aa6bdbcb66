//! Fuzz target `documents`.

#![no_main]

mod common;
