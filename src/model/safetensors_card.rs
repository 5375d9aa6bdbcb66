//! From a folder with `config.json` and safetensors to a card.
//!
//! In: a folder. Out: tensors of the language model with their places, tokenizer facts, every default stated.
//! Invariant: every shard is checked before `config.json` is believed; weights are never read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::card::{ModelCard, ModelFormat, SamplingDefaults, TensorFact, TokenizerFact};
use super::families::{Family, TensorRole, by_hf_config, tensor_name};
use super::formats::hf_config::{self, HfConfig};
use super::formats::safetensors::File;
use super::formats::{file_name, listing, malformed, unreadable};
use super::{check, hf_decoder, speech_card};
use crate::base::{Bytes, Code, Place, Problem};

/// Inspects the checkpoint in `folder`: its card and the files it was read from, still mapped.
pub(crate) fn open(folder: &Path) -> Result<(ModelCard, Vec<File>), Problem> {
    read(folder).map_err(|problem| {
        if problem.place.is_some() {
            return problem;
        }
        problem.at(Place::of(folder.display().to_string()))
    })
}

fn read(folder: &Path) -> Result<(ModelCard, Vec<File>), Problem> {
    let files = shards(folder)?;
    let config = HfConfig::read(folder)?;
    let architectures = config.texts("architectures")?.unwrap_or_default();
    let family = by_hf_config(config.text("model_type")?, &architectures)?;
    if family.speech {
        return speech_card::read(folder, files, &config, family);
    }
    if let Some(quantised) = config.object("quantization_config")? {
        let method = quantised
            .get("quant_method")
            .and_then(|m| m.as_str())
            .unwrap_or("unnamed");
        return Err(config.refuse(
            format!("its weights are quantised by `{method}`"),
            "use the unquantised checkpoint, or a GGUF file of the quantisation you want",
        ));
    }
    let mut tensors = facts(&files)?;
    let vocab_rows = super::embedding_rows(&tensors, family, ModelFormat::Safetensors)?;
    let decoder = hf_decoder::decoder(&config, family, vocab_rows)?;
    check::numbers(config.name(), &decoder)?;
    if decoder.tied_embeddings {
        // Some checkpoints store the embedding a second time as the head; it is not used, so it is not counted.
        let head = tensor_name(ModelFormat::Safetensors, family.name, TensorRole::Output, 0);
        tensors.retain(|tensor| Some(&tensor.name) != head.as_ref());
    }
    let context = match (config.size("max_position_embeddings")?, config.nested) {
        (Some(n), _) => n,
        // The published default of Gemma 3's text part, which wrapped checkpoints leave out.
        (None, true) => 131_072,
        (None, false) => config.required_size("max_position_embeddings")?,
    };
    let tokenizer_config = hf_config::tokenizer_config(folder)?;
    let generation = hf_config::generation_config(folder)?;
    let card = ModelCard {
        name: folder_name(folder),
        family: family.name.to_owned(),
        format: ModelFormat::Safetensors,
        files: files.iter().map(|file| file.path().to_path_buf()).collect(),
        file_bytes: Bytes(files.iter().map(|file| file.mapping().len() as u64).sum()),
        parameters: super::parameters(&tensors),
        tokenizer: tokenizer(
            folder,
            &config,
            generation.as_ref(),
            &tokenizer_config,
            decoder.vocab,
        )?,
        decoder,
        tensors,
        chat_template: hf_config::chat_template(folder, &tokenizer_config)?,
        sampling: sampling(generation.as_ref())?,
        context_train: context as u64,
        speech: None,
    };
    check_types(&card, &files, family)?;
    check::tensors(&card)?;
    Ok((card, files))
}

pub(super) fn folder_name(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    file_name(&full)
}

/// Opens every shard; all that are missing or empty are named at once.
pub(super) fn shards(folder: &Path) -> Result<Vec<File>, Problem> {
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(vec![File::open(&single)?]);
    }
    let Some(index) = hf_config::shard_index(folder)? else {
        return without_index(folder);
    };
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let index_place = Place::of(folder.join("model.safetensors.index.json").display().to_string());
    let index_fault =
        |what: String| Err(malformed("model.safetensors.index.json", what).at(index_place.clone()));
    if names.is_empty() {
        return index_fault("it lists no tensors".to_owned());
    }
    if let Some(bad) = names
        .iter()
        .find(|name| name.contains(['/', '\\']) || **name == ".." || name.is_empty())
    {
        return index_fault(format!("`{bad}` is not the name of a file in this folder"));
    }
    let mut unusable = Vec::new();
    for name in &names {
        let path = folder.join(name);
        match std::fs::metadata(&path) {
            Ok(facts) if facts.len() > 0 => {}
            Ok(_) => unusable.push(format!("`{name}` (empty)")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                unusable.push(format!("`{name}` (missing)"));
            }
            Err(error) => return Err(unreadable(&path, &error)),
        }
    }
    if !unusable.is_empty() {
        return Err(Problem::new(
            Code::ModelPartMissing,
            format!(
                "`{}` has {} weight files, of which {} cannot be used: {}",
                folder.display(),
                names.len(),
                unusable.len(),
                listing(&unusable)
            ),
            "download the missing files into this folder",
        )
        .why("every file holds some of the weights; all are checked before any is loaded")
        .at(index_place));
    }
    let files = names
        .iter()
        .map(|name| File::open(&folder.join(name)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut absent = Vec::new();
    let held: std::collections::HashSet<(&str, String)> = files
        .iter()
        .flat_map(|file| {
            file.tensors()
                .iter()
                .map(|t| (t.name.as_str(), file_name(file.path())))
        })
        .collect();
    for (tensor, file) in &index.weight_map {
        if !held.contains(&(tensor.as_str(), file.clone())) {
            absent.push(format!("`{tensor}` (in `{file}`)"));
        }
    }
    if absent.is_empty() {
        return Ok(files);
    }
    index_fault(format!(
        "{} tensors are not in the files it says: {}",
        absent.len(),
        listing(&absent)
    ))
}

/// One safetensors file of any name stands for `model.safetensors`; several need an index.
fn without_index(folder: &Path) -> Result<Vec<File>, Problem> {
    let mut found: Vec<PathBuf> = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            found.push(path);
        }
    }
    found.sort();
    let place = Place::of(folder.display().to_string());
    match found.as_slice() {
        [one] => Ok(vec![File::open(one)?]),
        [] => Err(Problem::new(
            Code::ModelNotFound,
            format!("`{}` holds no safetensors file", folder.display()),
            "download the whole model folder, or use a GGUF file",
        )
        .at(place)),
        several => {
            let names: Vec<String> = several.iter().map(|p| format!("`{}`", file_name(p))).collect();
            Err(Problem::new(
                Code::ModelPartMissing,
                format!(
                    "`model.safetensors.index.json` is missing beside {}",
                    listing(&names)
                ),
                "download the index file as well",
            )
            .why("it says which file holds which tensor")
            .at(place))
        }
    }
}

/// Name of a tensor without the prefix of a multimodal wrapper; `None` for tensors outside the language model.
fn text_name(name: &str, wrapped: bool) -> Option<String> {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return Some(format!("model.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("language_model.") {
        return Some(rest.to_owned());
    }
    (!wrapped || name == "lm_head.weight").then(|| name.to_owned())
}

/// Facts of the language model's tensors of types the engine knows, in file order.
fn facts(files: &[File]) -> Result<Vec<TensorFact>, Problem> {
    let is_wrapped =
        |name: &str| name.starts_with("model.language_model.") || name.starts_with("language_model.");
    let wrapped = files.iter().flat_map(File::tensors).any(|t| is_wrapped(&t.name));
    let mut facts = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (index, file) in files.iter().enumerate() {
        for tensor in file.tensors() {
            let Some(name) = text_name(&tensor.name, wrapped) else {
                continue;
            };
            if !seen.insert(name.clone()) {
                return Err(malformed(
                    &file_name(file.path()),
                    format!("the tensor `{}` is also in an earlier file", tensor.name),
                )
                .at(Place::of(file.path().display().to_string())));
            }
            // Tensors of other types are looked for by `check_types` once it is known what is needed.
            let Some(dtype) = tensor.tensor_type() else {
                continue;
            };
            facts.push(TensorFact {
                name,
                dtype,
                shape: tensor.shape.clone(),
                bytes: Bytes(tensor.bytes),
                file: index,
                offset: tensor.offset,
            });
        }
    }
    Ok(facts)
}

/// Tensors of the network whose type cannot be used, all at once.
fn check_types(card: &ModelCard, files: &[File], family: &Family) -> Result<(), Problem> {
    let names = check::names(card.format, family, &card.decoder);
    let mut unserved = Vec::new();
    for tensor in files.iter().flat_map(File::tensors) {
        let named = text_name(&tensor.name, false).is_some_and(|name| names.contains(&name));
        if named && tensor.tensor_type().is_none() {
            unserved.push(format!("`{}` ({})", tensor.name, tensor.dtype));
        }
    }
    if unserved.is_empty() {
        return Ok(());
    }
    Err(super::formats::unsupported(
        &card.name,
        format!(
            "{} tensors have a type that is not served: {}",
            unserved.len(),
            listing(&unserved)
        ),
        "use a checkpoint in BF16, F16 or F32, or a GGUF file of the quantisation you want",
    ))
}

fn tokenizer(
    folder: &Path,
    config: &HfConfig,
    generation: Option<&HfConfig>,
    tokenizer_config: &hf_config::TokenizerConfig,
    vocab: usize,
) -> Result<TokenizerFact, Problem> {
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        return Err(Problem::new(
            Code::TokenizerUnusable,
            format!("`{}` has no tokenizer.json", folder.display()),
            "download tokenizer.json as well; a tokenizer.model alone is not served",
        )
        .at(Place::of(path.display().to_string())));
    }
    let mut stop_ids = config.token_ids("eos_token_id")?;
    if let Some(generation) = generation {
        stop_ids.extend(generation.token_ids("eos_token_id")?);
    }
    stop_ids.extend(tokenizer_config.stop_ids());
    stop_ids.sort_unstable();
    stop_ids.dedup();
    let bos_id = config
        .token_ids("bos_token_id")?
        .first()
        .copied()
        .or(tokenizer_config.bos_id());
    for id in stop_ids.iter().chain(&bos_id) {
        if *id as usize >= vocab {
            return Err(config.fault(format!(
                "token {id} is named, but the vocabulary has {vocab} entries"
            )));
        }
    }
    Ok(TokenizerFact {
        kind: "tokenizer_json".to_owned(),
        pre: None,
        vocab,
        stop_ids,
        bos_id,
        add_bos: tokenizer_config.add_bos_token.unwrap_or(false),
    })
}

fn sampling(generation: Option<&HfConfig>) -> Result<SamplingDefaults, Problem> {
    let Some(generation) = generation else {
        return Ok(SamplingDefaults::default());
    };
    let greedy = generation.flag("do_sample")? == Some(false);
    let temperature = generation.real("temperature")?.map(|t| t as f32);
    // -1 is written for "off", which is 0 here.
    let top_k = match generation.get("top_k").and_then(serde_json::Value::as_i64) {
        Some(n) if n < 0 => Some(0),
        _ => generation
            .size("top_k")?
            .map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
    };
    Ok(SamplingDefaults {
        repetition_penalty: generation.real("repetition_penalty")?.map(|p| p as f32),
        temperature: if greedy { Some(0.0) } else { temperature },
        top_p: generation.real("top_p")?.map(|p| p as f32),
        top_k,
    })
}
