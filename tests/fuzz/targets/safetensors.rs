//! Any bytes as a safetensors file: parsed headers keep their promises, everything else is a problem.
//!
//! In: bytes. Out: nothing. Invariant: tensors fill the data section without gap or overlap.

#![no_main]

use edge_deploy::model::formats::safetensors::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let tensors = match parse(bytes, "fuzz.safetensors") {
        Ok(tensors) => tensors,
        Err(problem) => return assert!(!problem.remedy.is_empty()),
    };
    let data: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    let start = bytes.len() as u64 - data;
    for tensor in &tensors {
        assert!(tensor.offset >= start && tensor.offset + tensor.bytes <= bytes.len() as u64);
    }
});
