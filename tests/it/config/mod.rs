//! Configuration: what people write, layer by layer, and what they are told when it is wrong.

mod documents;
mod inputs;
mod layers;
mod reports;

use std::path::PathBuf;

use edge_deploy::base::Problems;
use edge_deploy::config::{self, Layered, Sources};

/// A folder with one file, kept while the test runs.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Loads one user file with nothing else.
fn load_text(text: &str) -> Result<Layered, Problems> {
    let desk = Desk::new();
    config::load(&Sources {
        user_file: Some(desk.file("input.yaml", text)),
        ..Sources::default()
    })
}

/// All problems of a load that must fail, as one text.
fn refusal(result: Result<Layered, Problems>) -> String {
    match result {
        Ok(layered) => panic!("was taken: {layered:?}"),
        Err(problems) => problems.to_string(),
    }
}
