//! Any bytes as a GGUF file: parsed headers keep their promises, everything else is a problem.
//!
//! In: bytes. Out: nothing. Invariant: tensors lie inside the file, and every value can be walked.

#![no_main]

use edge_deploy::model::formats::gguf_header::parse;
use edge_deploy::model::formats::gguf_value::Value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let header = match parse(bytes, "fuzz.gguf") {
        Ok(header) => header,
        Err(problem) => return assert!(!problem.remedy.is_empty()),
    };
    for tensor in &header.tensors {
        assert!(
            tensor
                .offset
                .checked_add(tensor.bytes)
                .is_some_and(|end| end <= bytes.len() as u64)
        );
        assert_eq!(tensor.offset % header.alignment, 0);
    }
    for key in header.keys() {
        if let Some(Value::Array(array)) = header.value(bytes, key) {
            if let Some(texts) = array.texts() {
                assert_eq!(texts.count(), array.len());
            }
            if let Some(scalars) = array.scalars() {
                assert_eq!(scalars.count(), array.len());
            }
        }
    }
});
