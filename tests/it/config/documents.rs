//! Generated files and embedded tables are current.

use std::collections::BTreeMap;
use std::path::Path;

use edge_deploy::config::{builtin, reference};

#[test]
fn embedded_tables_equal_the_folders() {
    for (folder, table) in [("profiles", builtin::PROFILES), ("hardware", builtin::HARDWARE)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut files = BTreeMap::new();
        for file in std::fs::read_dir(path).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            files.insert(name, std::fs::read_to_string(path).unwrap());
        }
        let table: BTreeMap<_, _> = table
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        assert_eq!(files, table, "src/config/builtin.rs and {folder}/ differ");
    }
}

#[test]
fn committed_reference_files_are_current() {
    for (path, text) in [
        (reference::SCHEMA_PATH, reference::json_schema()),
        (reference::PAGE_PATH, reference::markdown()),
    ] {
        let committed =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_default();
        assert!(committed == text, "{path} is stale; run `edge-deploy generate`");
    }
}
