//! The official Python client against the server.

use std::path::PathBuf;
use std::process::Command;

use super::*;

/// A Python that has the `openai` package: `EDGE_DEPLOY_TEST_PYTHON`, else `target/pyvenv` as the Makefile makes it.
fn python(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("EDGE_DEPLOY_TEST_PYTHON").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/pyvenv/bin/python"),
        PathBuf::from,
    );
    let works = Command::new(&python).args(["-c", "import openai"]).output();
    if works.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skipped!(
        "SKIPPED {test}: {} has no openai package (set EDGE_DEPLOY_TEST_PYTHON)",
        python.display()
    );
    None
}

#[test]
fn the_official_openai_client_is_content() {
    let Some(python) = python("the_official_openai_client_is_content") else {
        return;
    };
    let options = ServerOptions {
        api_key: Some("k3y".to_owned()),
        ..ServerOptions::default()
    };
    let server = Server::start(Wishes {
        max_seqs: 2,
        max_queue: 0,
        options,
        ..Wishes::default()
    });
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/py/openai_client.py"))
        .arg(format!("http://{}/v1", server.address))
        .args(["k3y", MODEL])
        .output()
        .unwrap();
    let (said, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{failed}");
    assert!(said.trim_end().ends_with("all checks passed"), "{said}");
}
