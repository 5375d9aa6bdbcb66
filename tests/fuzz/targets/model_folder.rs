//! Fuzz target `model_folder`.

#![no_main]

mod common;
