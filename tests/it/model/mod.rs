//! Models from files: real and small ones, whole and damaged.

mod damaged;
mod folders;
mod mutated;
mod readable;
mod speech;

use std::path::Path;

use edge_deploy::base::Problem;
use edge_deploy::model;

/// The problem that refuses the model at `path`.
fn refusal(path: impl AsRef<Path>) -> Problem {
    match model::inspect(path.as_ref()) {
        Ok(card) => panic!(
            "{} was taken for a {} model",
            path.as_ref().display(),
            card.family
        ),
        Err(problem) => problem,
    }
}
