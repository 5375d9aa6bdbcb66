//! Every kept input of the fuzz targets, run through the same code as the fuzzer runs.
//!
//! In: `tests/fuzz/seeds/<target>/*`. Out: passes where no body panics.
//! Invariant: each target has inputs, and no folder of inputs is without a target.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

#[test]
fn kept_inputs_of_every_fuzz_target_pass() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds");
    let manifest = fs::read_to_string(seeds.with_file_name("Cargo.toml")).unwrap();
    let folders: BTreeSet<String> = fs::read_dir(&seeds)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let targets: BTreeSet<String> = bodies::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(folders, targets);
    for name in &targets {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is no target of the fuzz package"
        );
        let mut inputs: Vec<_> = fs::read_dir(seeds.join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            let result = std::panic::catch_unwind(|| bodies::run(name, &bytes));
            assert!(result.is_ok(), "{} fails", input.display());
            // Half of it is an input, too: what is cut off anywhere must be met.
            bodies::run(name, &bytes[..bytes.len() / 2]);
        }
    }
}
