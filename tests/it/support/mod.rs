//! What several tests need: where shared data lies, and how a skipped test says so.

pub mod cards;
pub mod gguf;
pub mod speech;
pub mod tiny;
pub mod tiny_tokenizer;
pub mod web;

use std::path::PathBuf;

/// A folder or file under the shared data (`EDGE_DEPLOY_SHARED`, else `../shared`), or `None` with a line that says
/// which test was skipped and why.
pub fn shared(test: &str, path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EDGE_DEPLOY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"),
        PathBuf::from,
    );
    let found = root.join(path);
    if found.exists() {
        return Some(found);
    }
    skipped!(
        "SKIPPED {test}: {} is not there (set EDGE_DEPLOY_SHARED)",
        found.display()
    );
    None
}

/// A published model file, if it is in the cache of models (`EDGE_DEPLOY_CACHE_DIR`, else the user's), or `None` with
/// a line that says which test was skipped and why.
pub fn model_file(test: &str, name: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("EDGE_DEPLOY_CACHE_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir()?.join("edge-deploy"),
    };
    let mut folders = vec![(root.clone(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && depth < 4 {
                folders.push((path, depth + 1));
            } else if entry.file_name() == name && path.is_file() {
                return Some(path);
            }
        }
    }
    skipped!(
        "SKIPPED {test}: {name} is not under {} (set EDGE_DEPLOY_CACHE_DIR)",
        root.display()
    );
    None
}

/// Resident memory of this process, in bytes.
pub fn rss_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Whether this process runs `test` and nothing else, so that its memory can be measured. If not, runs it so in a
/// child process, fails if the child fails, and answers `false`: the caller has nothing left to do.
pub fn alone(test: &str) -> bool {
    const ALONE: &str = "EDGE_DEPLOY_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{test} alone: {}\n{said}\n{}",
        run.status,
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// Highest resident memory of this process so far, in bytes.
pub fn peak_rss_bytes() -> u64 {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
