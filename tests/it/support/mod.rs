//! What several tests need: where shared data lies, and how a skipped test says so.

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
    eprintln!(
        "SKIPPED {test}: {} is not there (set EDGE_DEPLOY_SHARED)",
        found.display()
    );
    None
}
