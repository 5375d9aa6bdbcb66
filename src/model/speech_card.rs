//! From a Qwen3-TTS folder to a card.
//!
//! In: `config.json`, `generation_config.json`, the weight files and `speech_tokenizer/`. Out: the card, with every
//! tensor that is read. Invariant: every fault of the configuration is named in one problem, then every fault of the
//! tensors in another; the codec's encoder is left out unless the model clones voices.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::card::{DecoderSpec, ModelCard, ModelFormat, SamplingDefaults, TensorFact, TokenizerFact};
use super::families::Family;
use super::formats::hf_config::{self, HfConfig};
use super::formats::safetensors::File;
use super::formats::{file_name, listing, malformed, unsupported};
use super::speech::{
    CONTROL_ROWS, Speaker, SpeechCard, SpeechIds, SpeechSampling, SpeechVariant, TOKENIZER_KIND,
};
use super::speech_networks::{self as networks, bounded};
use super::{check, hf_decoder, safetensors_card, speech_tensors};
use crate::base::{Bytes, Code, Place, Problem};

/// Folder of the codec.
const CODEC_FOLDER: &str = "speech_tokenizer";
/// The codec that is served.
const CODEC_KIND: &str = "qwen3_tts_tokenizer_12hz";

/// Faults of several sections, to be told at once.
#[derive(Default)]
struct Faults(Vec<Problem>);

impl Faults {
    fn keep<T>(&mut self, read: Result<T, Problem>) -> Option<T> {
        read.map_err(|problem| self.0.push(problem)).ok()
    }

    /// One problem for all: the first, with what the others say.
    fn into_problem(self) -> Option<Problem> {
        let texts: Vec<String> = self.0.iter().map(|problem| problem.what.clone()).collect();
        let mut first = self.0.into_iter().next()?;
        first.what = texts.join("; ");
        Some(first)
    }
}

/// Inspects the folder whose main weight files are `files`.
pub(super) fn read(
    folder: &Path,
    mut files: Vec<File>,
    config: &HfConfig,
    family: &Family,
) -> Result<(ModelCard, Vec<File>), Problem> {
    let codec_folder = folder.join(CODEC_FOLDER);
    if !codec_folder.is_dir() {
        return Err(Problem::new(
            Code::ModelPartMissing,
            format!("`{}` has no folder {CODEC_FOLDER}", folder.display()),
            "download the whole release, its speech tokenizer included",
        )
        .why("it holds the network that makes sound")
        .at(Place::of(codec_folder.display().to_string())));
    }
    let codec_files = safetensors_card::shards(&codec_folder)?;
    let codec_config = HfConfig::read(&codec_folder)?;
    let generation = hf_config::generation_config(folder)?;
    let main = files.len();
    files.extend(codec_files);

    let shapes = Shapes::of(&files);
    let mut faults = Faults::default();
    let parts = sections(
        config,
        &codec_config,
        generation.as_ref(),
        family,
        &shapes,
        &mut faults,
    );
    let (talker, speech) = match (parts, faults.into_problem()) {
        (Some(parts), None) => parts,
        (_, Some(problem)) => return Err(problem),
        (None, None) => return Err(config.fault("it cannot be read")),
    };
    let tokenizer = tokenizer(folder, &speech)?;
    let tensors = tensors(&files, main, family, &talker, &speech)?;
    let context = config
        .required_section("talker_config")?
        .required_size("max_position_embeddings")?;
    let chosen = speech.talker_sampling;
    let card = ModelCard {
        name: safetensors_card::folder_name(folder),
        family: family.name.to_owned(),
        format: ModelFormat::Safetensors,
        files: files.iter().map(|file| file.path().to_path_buf()).collect(),
        file_bytes: Bytes(files.iter().map(|file| file.mapping().len() as u64).sum()),
        parameters: super::parameters(&tensors),
        decoder: talker,
        tensors,
        tokenizer,
        chat_template: None,
        sampling: SamplingDefaults {
            temperature: Some(if chosen.sample { chosen.temperature } else { 0.0 }),
            top_p: Some(chosen.top_p),
            top_k: Some(chosen.top_k),
            repetition_penalty: Some(chosen.repetition_penalty),
        },
        context_train: context as u64,
        speech: Some(Box::new(speech)),
    };
    Ok((card, files))
}

/// Shapes by name, of every file.
struct Shapes<'f>(HashMap<&'f str, &'f [u64]>);

impl<'f> Shapes<'f> {
    fn of(files: &'f [File]) -> Self {
        let tensors = files.iter().flat_map(File::tensors);
        Self(tensors.map(|t| (t.name.as_str(), t.shape.as_slice())).collect())
    }

    /// Rows and columns of a matrix.
    fn matrix(&self, name: &str) -> Result<(usize, usize), Problem> {
        match self.0.get(name) {
            Some([rows, cols]) if (1..1 << 24).contains(rows) && (1..1 << 24).contains(cols) => {
                Ok((*rows as usize, *cols as usize))
            }
            Some(other) => Err(malformed("the model", format!("`{name}` has shape {other:?}"))),
            None => Err(malformed("the model", format!("`{name}` is missing"))),
        }
    }
}

fn sections(
    config: &HfConfig,
    codec_config: &HfConfig,
    generation: Option<&HfConfig>,
    family: &Family,
    shapes: &Shapes<'_>,
    faults: &mut Faults,
) -> Option<(DecoderSpec, SpeechCard)> {
    let variant = faults.keep(variant(config));
    faults.keep(codec_kind(config, codec_config));
    let talker_config = faults.keep(config.required_section("talker_config"))?;
    let talker = faults.keep(network(&talker_config, family));
    let predictor_config = faults.keep(talker_config.required_section("code_predictor_config"))?;
    let predictor = faults.keep(network(&predictor_config, family));
    let codebooks = faults.keep(codebooks(&talker_config, &predictor_config));
    let text = faults.keep(text_sizes(&talker_config));
    let size = faults.keep(size(config));
    let sampling = faults.keep(samplings(generation));
    let (talker, predictor, codebooks, (text_vocab, text_hidden)) = (talker?, predictor?, codebooks?, text?);
    faults.keep(codes_fit(&talker_config, &talker, &predictor));
    let ids = faults.keep(ids(config, &talker_config, text_vocab, talker.vocab));
    let languages = faults.keep(named_ids(&talker_config, "codec_language_id", talker.vocab));
    let speakers = faults.keep(speakers(&talker_config, talker.vocab, languages.as_ref()));
    let table = shapes.matrix("decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum");
    let codec = faults
        .keep(table)
        .and_then(|table| faults.keep(networks::codec(codec_config, codebooks, table)));
    let clones = variant == Some(SpeechVariant::Base);
    let (codec_encoder, speaker_encoder) = if clones {
        let table =
            shapes.matrix("encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum");
        let encoder = faults
            .keep(table)
            .and_then(|table| faults.keep(networks::codec_encoder(codec_config, codebooks, table)));
        let voice = faults.keep(networks::speaker_encoder(config, talker.hidden));
        (Some(encoder?), Some(voice?))
    } else {
        (None, None)
    };
    let (talker_sampling, predictor_sampling, max_new_tokens) = sampling?;
    let codec = codec?;
    if codec.codebook_size < predictor.vocab {
        faults.0.push(codec_config.fault(format!(
            "its codebooks have {} rows, but the predictor makes codes up to {}",
            codec.codebook_size, predictor.vocab
        )));
    }
    let speech = SpeechCard {
        variant: variant?,
        size: size?,
        text_vocab,
        text_hidden,
        predictor_projection: predictor.hidden != talker.hidden
            || shapes
                .0
                .contains_key(format!("{}.weight", speech_tensors::PREDICTOR_PROJECTION).as_str()),
        predictor,
        codebooks,
        ids: ids?,
        languages: languages?,
        speakers: speakers?,
        talker_sampling,
        predictor_sampling,
        max_new_tokens,
        codec,
        codec_encoder,
        speaker_encoder,
    };
    Some((talker, speech))
}

fn variant(config: &HfConfig) -> Result<SpeechVariant, Problem> {
    match config.text("tts_model_type")? {
        Some("custom_voice") => Ok(SpeechVariant::CustomVoice),
        Some("voice_design") => Ok(SpeechVariant::VoiceDesign),
        Some("base") => Ok(SpeechVariant::Base),
        Some(other) => Err(config.refuse(
            format!("its `tts_model_type` is `{other}`"),
            "use a release of type custom_voice, voice_design or base",
        )),
        None => Err(config.fault("it has no key `tts_model_type`")),
    }
}

fn size(config: &HfConfig) -> Result<String, Problem> {
    match config.text("tts_model_size")? {
        Some(size) if size.len() <= 16 => Ok(size.to_owned()),
        Some(size) => Err(config.fault(format!("`tts_model_size` has {} letters", size.len()))),
        None => Err(config.fault("it has no key `tts_model_size`")),
    }
}

fn codec_kind(config: &HfConfig, codec_config: &HfConfig) -> Result<(), Problem> {
    for (file, key) in [(config, "tokenizer_type"), (codec_config, "model_type")] {
        match file.text(key)? {
            Some(kind) if kind == CODEC_KIND => {}
            Some(other) => {
                return Err(file.refuse(
                    format!("its codec is `{other}`"),
                    "use a release with the 12 Hz codec",
                ));
            }
            None => return Err(file.fault(format!("it has no key `{key}`"))),
        }
    }
    Ok(())
}

/// One of the two decoders, its numbers checked.
fn network(config: &HfConfig, family: &Family) -> Result<DecoderSpec, Problem> {
    let rows = config.required_size("vocab_size")?;
    let spec = hf_decoder::decoder(config, family, rows)?;
    check::numbers(config.name(), &spec).map_err(|mut problem| {
        problem.what = format!("{} (in `{}`)", problem.what, config.within());
        problem
    })?;
    if spec.tied_embeddings {
        return Err(config.refuse(
            "its head is its embedding (`tie_word_embeddings` is true)",
            "use the release as its maker published it",
        ));
    }
    Ok(spec)
}

fn codebooks(talker: &HfConfig, predictor: &HfConfig) -> Result<usize, Problem> {
    let codebooks = bounded(talker, "num_code_groups", 64)?;
    let other = bounded(predictor, "num_code_groups", 64)?;
    if codebooks < 2 || other != codebooks {
        return Err(talker.fault(format!(
            "the talker has {codebooks} code groups and the predictor {other}; the same number of at least 2 is possible"
        )));
    }
    Ok(codebooks)
}

fn text_sizes(talker: &HfConfig) -> Result<(usize, usize), Problem> {
    Ok((
        bounded(talker, "text_vocab_size", 1 << 22)?,
        bounded(talker, "text_hidden_size", 1 << 20)?,
    ))
}

/// The talker's codes must be codes of a codebook, and its control rows must lie behind them.
fn codes_fit(config: &HfConfig, talker: &DecoderSpec, predictor: &DecoderSpec) -> Result<(), Problem> {
    let codes = talker.vocab.saturating_sub(CONTROL_ROWS);
    if codes == predictor.vocab && u16::try_from(codes).is_ok() {
        return Ok(());
    }
    Err(config.fault(format!(
        "its vocabulary of {} leaves {codes} codes before {CONTROL_ROWS} control rows, but a codebook has {}",
        talker.vocab, predictor.vocab
    )))
}

fn id_below(config: &HfConfig, key: &str, rows: usize) -> Result<u32, Problem> {
    let id = config.required_size(key)?;
    u32::try_from(id)
        .ok()
        .filter(|_| id < rows)
        .ok_or_else(|| config.fault(format!("`{key}` is {id}, but its table has {rows} rows")))
}

fn ids(
    config: &HfConfig,
    talker: &HfConfig,
    text_rows: usize,
    codec_rows: usize,
) -> Result<SpeechIds, Problem> {
    let mut faults = Faults::default();
    let mut text = |key| faults.keep(id_below(config, key, text_rows)).unwrap_or(0);
    let (im_start, im_end) = (text("im_start_token_id"), text("im_end_token_id"));
    let (assistant, tts_pad) = (text("assistant_token_id"), text("tts_pad_token_id"));
    let (tts_bos, tts_eos) = (text("tts_bos_token_id"), text("tts_eos_token_id"));
    let mut codec = |key| faults.keep(id_below(talker, key, codec_rows)).unwrap_or(0);
    let ids = SpeechIds {
        im_start,
        im_end,
        assistant,
        tts_pad,
        tts_bos,
        tts_eos,
        codec_pad: codec("codec_pad_id"),
        codec_bos: codec("codec_bos_id"),
        codec_eos: codec("codec_eos_token_id"),
        think: codec("codec_think_id"),
        nothink: codec("codec_nothink_id"),
        think_bos: codec("codec_think_bos_id"),
        think_eos: codec("codec_think_eos_id"),
    };
    if (ids.codec_eos as usize) < codec_rows.saturating_sub(CONTROL_ROWS) {
        faults.0.push(talker.fault(format!(
            "`codec_eos_token_id` is {}, which is also a code",
            ids.codec_eos
        )));
    }
    match faults.into_problem() {
        Some(problem) => Err(problem),
        None => Ok(ids),
    }
}

/// A map from names to rows of the talker's table; an id may stand in a list of one.
fn named_ids(config: &HfConfig, key: &str, rows: usize) -> Result<BTreeMap<String, u32>, Problem> {
    let Some(map) = config.object(key)? else {
        return Ok(BTreeMap::new());
    };
    let mut named = BTreeMap::new();
    for (name, value) in map {
        let single = match value.as_array().map(Vec::as_slice) {
            Some([one]) => one,
            _ => value,
        };
        let id = single
            .as_u64()
            .filter(|&id| id < rows as u64)
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| {
                config.fault(format!(
                    "`{key}.{name}` is {value}, not a row of a table of {rows}"
                ))
            })?;
        if named.insert(name.to_lowercase(), id).is_some() {
            return Err(config.fault(format!("`{key}` names `{name}` twice")));
        }
    }
    Ok(named)
}

fn speakers(
    config: &HfConfig,
    rows: usize,
    languages: Option<&BTreeMap<String, u32>>,
) -> Result<BTreeMap<String, Speaker>, Problem> {
    let dialects: HashMap<String, &serde_json::Value> = config
        .object("spk_is_dialect")?
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.to_lowercase(), value))
        .collect();
    let mut speakers = BTreeMap::new();
    for (name, id) in named_ids(config, "spk_id", rows)? {
        let dialect = match dialects.get(&name) {
            None | Some(serde_json::Value::Bool(false) | serde_json::Value::Null) => None,
            Some(serde_json::Value::String(dialect)) => Some(dialect.to_lowercase()),
            Some(other) => {
                return Err(config.fault(format!(
                    "`spk_is_dialect.{name}` is {other}, not false or a dialect"
                )));
            }
        };
        if let (Some(dialect), Some(languages)) = (&dialect, languages)
            && !languages.contains_key(dialect)
        {
            return Err(config.fault(format!(
                "`spk_is_dialect.{name}` is `{dialect}`, which `codec_language_id` does not have"
            )));
        }
        speakers.insert(name, Speaker { id, dialect });
    }
    Ok(speakers)
}

/// The two networks' defaults and the most picks.
fn samplings(generation: Option<&HfConfig>) -> Result<(SpeechSampling, SpeechSampling, usize), Problem> {
    let real = |key: &str, default: f32| -> Result<f32, Problem> {
        Ok(match generation {
            Some(file) => file.real(key)?.map_or(default, |x| x as f32),
            None => default,
        })
    };
    let flag = |key: &str| -> Result<bool, Problem> {
        Ok(match generation {
            Some(file) => file.flag(key)?.unwrap_or(true),
            None => true,
        })
    };
    let size = |key: &str, default: usize| -> Result<usize, Problem> {
        Ok(match generation {
            Some(file) => file.size(key)?.unwrap_or(default),
            None => default,
        })
    };
    let sampling = |prefix: &str, switch: &str, penalty: f32| -> Result<SpeechSampling, Problem> {
        let top_k = size(&format!("{prefix}top_k"), 50)?;
        let read = SpeechSampling {
            sample: flag(switch)?,
            temperature: real(&format!("{prefix}temperature"), 0.9)?,
            top_k: u32::try_from(top_k).unwrap_or(u32::MAX),
            top_p: real(&format!("{prefix}top_p"), 1.0)?,
            repetition_penalty: penalty,
        };
        let sane = read.temperature.is_finite()
            && read.temperature > 0.0
            && read.top_p > 0.0
            && read.top_p <= 1.0
            && read.repetition_penalty.is_finite()
            && read.repetition_penalty > 0.0;
        if sane {
            return Ok(read);
        }
        Err(malformed(
            "generation_config.json",
            format!(
                "{prefix}temperature {}, {prefix}top_p {} and repetition_penalty {penalty} are not all possible",
                read.temperature, read.top_p
            ),
        ))
    };
    Ok((
        sampling("", "do_sample", real("repetition_penalty", 1.05)?)?,
        sampling("subtalker_", "subtalker_dosample", 1.0)?,
        // What the reference implementation takes where the file does not say.
        size("max_new_tokens", 2048)?.clamp(2, 1 << 20),
    ))
}

fn tokenizer(folder: &Path, speech: &SpeechCard) -> Result<TokenizerFact, Problem> {
    let absent: Vec<String> = ["vocab.json", "merges.txt", "tokenizer_config.json"]
        .into_iter()
        .filter(|name| !folder.join(name).is_file())
        .map(str::to_owned)
        .collect();
    if !absent.is_empty() {
        return Err(Problem::new(
            Code::TokenizerUnusable,
            format!("`{}` has no {}", folder.display(), listing(&absent)),
            "download the files of the tokenizer as well",
        )
        .at(Place::of(folder.display().to_string())));
    }
    Ok(TokenizerFact {
        kind: TOKENIZER_KIND.to_owned(),
        pre: Some("qwen2".to_owned()),
        vocab: speech.text_vocab,
        stop_ids: Vec::new(),
        bos_id: None,
        add_bos: false,
    })
}

/// Every tensor that is read, in file order, each there once with its shape and a type that can be used.
fn tensors(
    files: &[File],
    main: usize,
    family: &Family,
    talker: &DecoderSpec,
    speech: &SpeechCard,
) -> Result<Vec<TensorFact>, Problem> {
    let mut wanted = speech_tensors::language_model(family, talker, speech);
    wanted.extend(speech_tensors::codec_decoder(&speech.codec));
    if let Some(encoder) = &speech.codec_encoder {
        wanted.extend(speech_tensors::codec_encoder(encoder));
    }
    let mut missing: HashMap<String, Vec<u64>> = wanted.into_iter().collect();
    let mut faults = Vec::new();
    let mut unserved = Vec::new();
    let mut extra = Vec::new();
    let mut seen = HashSet::new();
    let mut facts = Vec::new();
    for (index, file) in files.iter().enumerate() {
        for tensor in file.tensors() {
            if !seen.insert(tensor.name.clone()) {
                faults.push(format!(
                    "`{}` in `{}` is also in an earlier file",
                    tensor.name,
                    file_name(file.path())
                ));
                continue;
            }
            let Some(shape) = missing.remove(&tensor.name) else {
                let unread_encoder = index >= main && speech.codec_encoder.is_none();
                let skipped = speech_tensors::is_unread(&tensor.name)
                    || (unread_encoder && tensor.name.starts_with("encoder."))
                    || tensor.name.ends_with(".rotary_emb.inv_freq");
                if !skipped {
                    extra.push(format!("`{}`", tensor.name));
                }
                continue;
            };
            if shape != tensor.shape {
                faults.push(format!(
                    "`{}` has shape {:?}, needs {shape:?}",
                    tensor.name, tensor.shape
                ));
            }
            match tensor.tensor_type() {
                None => unserved.push(format!("`{}` ({})", tensor.name, tensor.dtype)),
                Some(dtype) => facts.push(TensorFact {
                    name: tensor.name.clone(),
                    dtype,
                    shape,
                    bytes: Bytes(tensor.bytes),
                    file: index,
                    offset: tensor.offset,
                }),
            }
        }
    }
    let mut absent: Vec<_> = missing.into_iter().collect();
    absent.sort();
    faults.extend(
        absent
            .iter()
            .map(|(name, shape)| format!("`{name}` {shape:?} is missing")),
    );
    let name = "the model";
    if !faults.is_empty() {
        return Err(malformed(
            name,
            format!(
                "{} of its tensors are at fault: {}",
                faults.len(),
                listing(&faults)
            ),
        ));
    }
    if !unserved.is_empty() {
        return Err(unsupported(
            name,
            format!(
                "{} tensors have a type that is not served: {}",
                unserved.len(),
                listing(&unserved)
            ),
            "use a checkpoint in BF16, F16 or F32",
        ));
    }
    if extra.is_empty() {
        return Ok(facts);
    }
    Err(unsupported(
        name,
        format!(
            "it has {} tensors that the {} family does not know: {}",
            extra.len(),
            family.name,
            listing(&extra)
        ),
        "use the release as its maker published it",
    )
    .why("leaving them out would give other answers than the model's own"))
}
