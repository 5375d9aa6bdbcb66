//! Facts about a model file or folder, read from headers only.
//!
//! In: a path. Out: [`ModelCard`] and, for the engine, [`weights::Weights`].
//! Invariant: nothing here allocates by a number read from a file before checking it against the file's size.

pub mod card;
mod check;
pub mod embedded;
mod end_tokens;
pub mod families;
pub mod formats;
mod gguf_card;
mod hf_decoder;
pub mod kv;
mod safetensors_card;
pub mod speech;
mod speech_card;
mod speech_networks;
pub mod speech_tensors;
pub mod stages;
pub mod weight_path;
pub mod weights;

use std::path::{Path, PathBuf};

pub use card::ModelCard;
pub use families::{TensorRole, tensor_name};
pub use stages::{Rhythm, Span, StageSpec};
pub use weights::{TensorView, Weights};

use crate::base::{Code, Place, Problem};
use families::Family;

/// Reads what `path` says about a model: a GGUF file (any part of a set), a folder with `config.json` and
/// safetensors, a file in such a folder, or a folder with one GGUF model.
///
/// Every fault of a kind is named in one problem, and a model that passes can be loaded: all tensors the family
/// needs are there with their shapes.
pub fn inspect(path: impl AsRef<Path>) -> Result<ModelCard, Problem> {
    let path = path.as_ref();
    let facts = std::fs::metadata(path).map_err(|error| formats::unreadable(path, &error))?;
    if facts.is_dir() {
        return inspect_folder(path);
    }
    let name = formats::file_name(path);
    let in_folder =
        name == "config.json" || has_extension(path, "safetensors") || name.ends_with(".index.json");
    if in_folder {
        if has_extension(path, "safetensors") {
            // What was saved in its place is said before a missing config.json is.
            formats::safetensors::File::open(path)?;
        }
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        return safetensors_card::open(folder).map(|(card, _)| card);
    }
    gguf_card::inspect(path)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

fn inspect_folder(folder: &Path) -> Result<ModelCard, Problem> {
    let mut ggufs: Vec<PathBuf> = Vec::new();
    let mut safetensors = false;
    let mut pickles = false;
    let entries = std::fs::read_dir(folder).map_err(|error| formats::unreadable(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| formats::unreadable(folder, &error))?.path();
        safetensors |= has_extension(&path, "safetensors") || path.ends_with("model.safetensors.index.json");
        pickles |= has_extension(&path, "bin") || has_extension(&path, "pt");
        // `mmproj-*.gguf` is the vision part that some publishers put beside the language model.
        let vision = formats::file_name(&path).starts_with("mmproj");
        if has_extension(&path, "gguf") && !vision {
            ggufs.push(path);
        }
    }
    if safetensors || folder.join("config.json").exists() && ggufs.is_empty() {
        return safetensors_card::open(folder).map(|(card, _)| card);
    }
    ggufs.sort();
    // Of a set, the first part found stands for all.
    let mut stems = std::collections::HashSet::new();
    ggufs.retain(|path| {
        let name = formats::file_name(path);
        formats::gguf_split::PartName::parse(&name).is_none_or(|part| stems.insert(part.stem))
    });
    let place = Place::of(folder.display().to_string());
    match ggufs.as_slice() {
        [one] => gguf_card::inspect(one),
        [] => Err(Problem::new(
            Code::ModelNotAModel,
            format!(
                "`{}` holds no GGUF file and no safetensors{}",
                folder.display(),
                if pickles {
                    ", only PyTorch pickles, which are not served"
                } else {
                    ""
                }
            ),
            "pass a GGUF file, or a folder with config.json and safetensors",
        )
        .at(place)),
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|path| format!("`{}`", formats::file_name(path)))
                .collect();
            Err(Problem::new(
                Code::ModelNotAModel,
                format!(
                    "`{}` holds several models: {}",
                    folder.display(),
                    formats::listing(&names)
                ),
                "pass the path of the one to serve",
            )
            .at(place))
        }
    }
}

/// Sum of elements over all tensors.
fn parameters(tensors: &[card::TensorFact]) -> u64 {
    let elements =
        |tensor: &card::TensorFact| tensor.shape.iter().fold(1u64, |all, &n| all.saturating_mul(n));
    tensors.iter().map(elements).fold(0, u64::saturating_add)
}

/// Factor on embedding rows.
fn embedding_scale(family: &Family, hidden: usize) -> f32 {
    if family.gemma_scaling {
        (hidden as f32).sqrt()
    } else {
        1.0
    }
}

/// Factor on queries where the file does not say. Gemma 3 of 62 layers (27B) scales by hidden / heads instead of
/// the head width.
fn attention_scale(family: &Family, hidden: usize, heads: usize, head_dim: usize, layers: usize) -> f32 {
    let width = if family.gemma_scaling && layers == 62 {
        hidden.checked_div(heads).unwrap_or(0)
    } else {
        head_dim
    };
    1.0 / (width as f32).sqrt()
}

/// Rows of the embedding table, or a problem that says it is missing.
fn embedding_rows(
    tensors: &[card::TensorFact],
    family: &Family,
    format: card::ModelFormat,
) -> Result<usize, Problem> {
    let name = tensor_name(format, family.name, TensorRole::TokenEmbedding, 0).unwrap_or_default();
    let found = tensors.iter().find(|tensor| tensor.name == name);
    let rows = found
        .and_then(|tensor| tensor.shape.first().copied())
        .ok_or_else(|| {
            formats::malformed(
                "the model",
                format!("it has no embedding table `{name}` of a type that is served"),
            )
        })?;
    Ok(usize::try_from(rows).unwrap_or(usize::MAX))
}
