//! Speech models against vectors of the reference implementation: texts, prompts, states, logits, scores, codes.

#![allow(clippy::float_cmp, reason = "masked scores are equal bit for bit")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edge_deploy::base::CpuSet;
use edge_deploy::engine::kernels::{Kernels, select};
use edge_deploy::engine::kv_cache::{KvCache, KvSizes};
use edge_deploy::engine::nets::body::Place;
use edge_deploy::engine::nets::code_predictor::CodePredictor;
use edge_deploy::engine::nets::load::Held;
use edge_deploy::engine::nets::talker::{Talker, TalkerBuffers};
use edge_deploy::engine::speech::request::{language_id, prompt_parts};
use edge_deploy::engine::speech::speaker::Seat;
use edge_deploy::engine::speech::{
    Ended, Frame, Limits, Manner, NoWitness, Prompt, PromptParts, Speaker, SpeechEnd, SpeechRequest,
    SpeechTexts, Utterance, Voice, Witness,
};
use edge_deploy::engine::team::Team;
use edge_deploy::engine::text::{Encoding, Tokenizer};
use edge_deploy::model::formats::safetensors::File;
use edge_deploy::model::speech::SpeechCard;
use edge_deploy::model::{ModelCard, Weights, inspect};
use edge_deploy::plan::Dtype;
use serde_json::Value;

use super::support::max_difference;
use crate::support::shared;
use crate::support::speech::Release;

/// Tolerances against the reference in F32.
const EMBEDDING: f32 = 1e-5;
const STATE: f32 = 2e-4;
const LOGIT: f32 = 1e-3;

/// A golden checkpoint.
pub struct Model {
    pub folder: PathBuf,
    pub card: ModelCard,
    pub weights: Weights,
    tokenizer: Tokenizer,
}

impl Model {
    pub fn open(test: &str, name: &str) -> Option<Self> {
        let folder = shared(test, &format!("golden/qwen3-tts/{name}"))?;
        let card = inspect(&folder).unwrap();
        let weights = Weights::open(&card).unwrap();
        let tokenizer = Tokenizer::open(&card, &weights).unwrap();
        Some(Self {
            folder,
            card,
            weights,
            tokenizer,
        })
    }

    pub fn speech(&self) -> &SpeechCard {
        self.card.speech.as_ref().unwrap()
    }

    fn texts(&self) -> SpeechTexts {
        SpeechTexts::new(self.speech().ids, &self.tokenizer).unwrap()
    }

    fn talker(&self) -> Talker {
        Talker::load(
            &self.card,
            self.speech(),
            &self.weights,
            Held::default(),
            &mut |_| {},
        )
        .unwrap()
    }
}

/// One golden case: its tensors and its description.
pub struct Case {
    file: File,
    facts: Value,
}

impl Case {
    pub fn open(model: &Model, name: &str) -> Self {
        let path = |ending: &str| model.folder.join(format!("golden/{name}.{ending}"));
        Self {
            file: File::open(&path("safetensors")).unwrap(),
            facts: serde_json::from_slice(&std::fs::read(path("json")).unwrap()).unwrap(),
        }
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let tensor = self.file.tensors().iter().find(|tensor| tensor.name == name)?;
        let start = tensor.offset as usize;
        Some(&self.file.mapping().bytes()[start..start + tensor.bytes as usize])
    }

    pub fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        let words = self.bytes(name)?.as_chunks::<4>().0;
        Some(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }

    fn ids(&self, name: &str) -> Option<Vec<u32>> {
        let words = self.bytes(name)?.as_chunks::<4>().0;
        Some(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }

    fn frames(&self, name: &str) -> Vec<Frame> {
        let codes = self.ids(name).unwrap();
        codes
            .chunks_exact(16)
            .map(|frame| frame.iter().map(|&code| code as u16).collect())
            .collect()
    }

    fn arg(&self, name: &str) -> &Value {
        &self.facts["args"][name]
    }
}

/// The request a case describes. The reference calls gave the language only where it is named.
pub fn request(model: &Model, case: &Case) -> SpeechRequest {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let voice = if case.arg("x_vector_only_mode").is_boolean() {
        let recording = Case::open(model, "reference_audio");
        let alone = case.arg("x_vector_only_mode").as_bool().unwrap();
        Voice::Cloned {
            vector: recording.f32s("speaker_embedding").unwrap().into(),
            reference: (!alone).then(|| {
                (
                    recording.frames("ref_codes").into(),
                    text(&case.facts["ref_text"]),
                )
            }),
        }
    } else {
        Voice::Named(text(case.arg("speaker")))
    };
    SpeechRequest {
        text: text(case.facts.get("text").unwrap_or(case.arg("text"))),
        voice,
        language: case.arg("language").as_str().unwrap_or("English").to_owned(),
        instructions: None,
        text_at_once: case.arg("non_streaming_mode").as_bool(),
    }
}

/// The prompt a case describes.
fn parts(model: &Model, case: &Case) -> PromptParts {
    let texts = model.texts();
    if let Some(instruct) = case.facts["instruct"].as_str() {
        // Only the ids of what is said are given: what stands between the marks of the turn.
        let ids = case.ids("input_ids").unwrap();
        return PromptParts {
            instruction: texts.instruction(&model.tokenizer, instruct).unwrap(),
            role: texts.role(),
            spoken: ids[3..ids.len() - 5].to_vec(),
            voice: edge_deploy::engine::speech::VoicePart::None,
            language: language_id(model.speech(), "English", None).unwrap(),
            reference: None,
            text_at_once: true,
        };
    }
    prompt_parts(model.speech(), &texts, &model.tokenizer, &request(model, case)).unwrap()
}

pub fn manner(model: &Model, case: &Case) -> Manner {
    let mut talker = model.speech().talker_sampling;
    let mut predictor = model.speech().predictor_sampling;
    let number = |name: &str, default: f32| case.arg(name).as_f64().map_or(default, |x| x as f32);
    let count = |name: &str, default: u32| case.arg(name).as_u64().map_or(default, |x| x as u32);
    talker.sample = case.arg("do_sample").as_bool().unwrap();
    talker.temperature = number("temperature", talker.temperature);
    talker.top_k = count("top_k", talker.top_k);
    talker.top_p = number("top_p", talker.top_p);
    talker.repetition_penalty = number("repetition_penalty", talker.repetition_penalty);
    predictor.sample = case.arg("subtalker_dosample").as_bool().unwrap();
    predictor.temperature = number("subtalker_temperature", predictor.temperature);
    predictor.top_k = count("subtalker_top_k", predictor.top_k);
    predictor.top_p = number("subtalker_top_p", predictor.top_p);
    Manner {
        talker,
        predictor,
        seed: 1,
        limits: Limits {
            min_frames: 0,
            max_frames: case.arg("max_new_tokens").as_u64().unwrap() as usize - 1,
        },
    }
}

/// A speaker on a team, and how its prompts are cut.
struct Setup {
    speaker: Speaker,
    team: Team,
    kernels: &'static Kernels,
    prompt_rows: usize,
}

/// The best table that multiplies BF16 weights with unrounded values.
pub const EXACT: &str = "avx512_vnni";

impl Setup {
    fn new(model: &Model, cap: &str, threads: usize, prompt_rows: usize) -> Self {
        let kernels = select(cap).unwrap();
        let team = Team::new("test", &CpuSet::new(), threads, false).unwrap();
        let talker = model.talker();
        let tables = Arc::clone(talker.tables());
        let predictor = CodePredictor::load(
            &model.card,
            model.speech(),
            &model.weights,
            tables,
            Held::default(),
            &mut |_| {},
        )
        .unwrap();
        let sizes = KvSizes {
            context: 128,
            max_seqs: 4,
            prefill_batch: prompt_rows,
            dtype: Dtype::F32,
        };
        let frame = KvSizes {
            context: 16,
            prefill_batch: 2,
            ..sizes
        };
        let seats = [sizes, frame].map(|sizes| Seat { kernels, sizes });
        let speaker = Speaker::new(&team, model.speech(), talker, predictor, seats).unwrap();
        Self {
            speaker,
            team,
            kernels,
            prompt_rows,
        }
    }

    fn begin(&mut self, model: &Model, case: &Case) -> Utterance {
        let prompt = Prompt::new(&model.speech().ids, parts(model, case));
        let rows = self.speaker.embed(&self.team, &prompt).unwrap();
        let vocab = model.card.decoder.vocab;
        Utterance::new(model.speech(), vocab, &prompt, rows, &manner(model, case))
    }

    /// Steps until everything in `slots` has ended; the frames of each.
    fn run(&mut self, slots: &mut [Option<Utterance>], witness: &mut dyn Witness) -> Vec<Vec<Frame>> {
        let mut frames = vec![Vec::new(); slots.len()];
        while slots
            .iter()
            .flatten()
            .any(|utterance| utterance.ended().is_none())
        {
            self.speaker
                .step(&self.team, slots, self.prompt_rows, witness)
                .unwrap();
            for (utterance, frames) in slots.iter_mut().zip(&mut frames) {
                if let Some(frame) = utterance.as_mut().and_then(Utterance::take_frame) {
                    frames.push(frame.to_vec());
                }
            }
        }
        frames
    }
}

/// Everything a run showed of slot 0.
#[derive(Default)]
struct Record {
    states: Vec<f32>,
    logits: Vec<f32>,
    scores: Vec<f32>,
    inputs: Vec<f32>,
    predictor_logits: Vec<f32>,
    predictor_scores: Vec<f32>,
    /// Picks of the talker.
    tokens: Vec<u32>,
    /// Codes to go on with instead of those chosen, by pick and codebook.
    forced: Option<(Vec<u32>, Vec<Frame>)>,
}

impl Witness for Record {
    fn talker(&mut self, _: usize, state: &[f32], logits: &[f32]) {
        self.states.extend_from_slice(state);
        self.logits.extend_from_slice(logits);
    }

    fn predictor(&mut self, _: usize, _: usize, logits: &[f32]) {
        self.predictor_logits.extend_from_slice(logits);
    }

    fn settle(&mut self, _: usize, book: usize, scores: &[f32], chosen: u32) -> u32 {
        if book == 0 {
            self.scores.extend_from_slice(scores);
            let code = self
                .forced
                .as_ref()
                .map_or(chosen, |(tokens, _)| tokens[self.tokens.len()]);
            self.tokens.push(code);
            return code;
        }
        self.predictor_scores.extend_from_slice(scores);
        self.forced.as_ref().map_or(chosen, |(_, frames)| {
            u32::from(frames[self.tokens.len() - 1][book])
        })
    }

    fn input(&mut self, _: usize, row: &[f32]) {
        self.inputs.extend_from_slice(row);
    }
}

pub fn assert_near(what: &str, ours: &[f32], golden: &[f32], bound: f32) {
    let difference = max_difference(ours, golden);
    assert!(difference <= bound, "{what}: {difference}");
}

/// Scores are equal: masked in the same places, near elsewhere.
fn assert_scores(what: &str, ours: &[f32], golden: &[f32], bound: f32) {
    assert_eq!(ours.len(), golden.len(), "{what}");
    for (at, (x, y)) in ours.iter().zip(golden).enumerate() {
        let same = (x.to_bits() == y.to_bits()) || (x.is_finite() && y.is_finite() && (x - y).abs() <= bound);
        assert!(same, "{what}, value {at}: {x} and {y}");
    }
}

/// Rows of `all`, each `width` wide.
fn rows(all: &[f32], width: usize, wanted: &[u32]) -> Vec<f32> {
    let row = |&at: &u32| &all[at as usize * width..(at as usize + 1) * width];
    wanted.iter().flat_map(row).copied().collect()
}

fn check_case(model: &Model, name: &str, setup: &mut Setup) {
    let case = Case::open(model, name);
    let speech = model.speech();
    let (hidden, vocab) = (model.card.decoder.hidden, model.card.decoder.vocab);
    let parts = parts(model, &case);
    let prompt = Prompt::new(&speech.ids, parts);
    let embedded = setup.speaker.embed(&setup.team, &prompt).unwrap();
    assert_near(name, &embedded, &case.f32s("prefill_embeds").unwrap(), EMBEDDING);
    assert_near(
        name,
        setup.speaker.pad(),
        &case.f32s("tts_pad_embed").unwrap(),
        EMBEDDING,
    );

    let mut record = Record::default();
    let sampled = case.arg("do_sample").as_bool().unwrap();
    if sampled {
        record.forced = Some((case.ids("talker_tokens").unwrap(), case.frames("codes")));
    }
    let utterance = setup.begin(model, &case);
    let mut slots = [Some(utterance)];
    let frames = setup.run(&mut slots, &mut record).remove(0);

    assert_eq!(record.tokens, case.ids("talker_tokens").unwrap(), "{name}");
    assert_eq!(frames, case.frames("codes"), "{name}");
    let end = if record.tokens.last() == Some(&speech.ids.codec_eos) {
        SpeechEnd::End
    } else {
        SpeechEnd::MaxFrames
    };
    assert_eq!(
        slots[0].as_ref().unwrap().ended(),
        Some(&Ended::Said(end)),
        "{name}"
    );
    assert_near(
        name,
        &record.states[..hidden],
        &case.f32s("prefill_last_hidden").unwrap(),
        STATE,
    );
    assert_near(name, &record.states, &case.f32s("step_hidden").unwrap(), STATE);
    assert_near(
        name,
        &record.inputs,
        &case.f32s("step_inputs_embeds").unwrap(),
        EMBEDDING,
    );
    let logits = match case.ids("talker_logits_rows") {
        Some(wanted) => rows(&record.logits, vocab, &wanted),
        None => record.logits.clone(),
    };
    assert_near(name, &logits, &case.f32s("talker_logits").unwrap(), LOGIT);
    let golden = case.f32s("predictor_logits").unwrap();
    assert_near(name, &record.predictor_logits[..golden.len()], &golden, LOGIT);
    if let Some(golden) = case.f32s("talker_scores") {
        assert_scores(name, &record.scores, &golden, 2.0 * LOGIT);
    }
    if let Some(golden) = case.f32s("predictor_scores") {
        assert_scores(name, &record.predictor_scores, &golden, 2.0 * LOGIT);
    }
    // What is heard with the frames, each id projected.
    let trailing = prompt.trailing();
    let mut heard = vec![0.0; trailing.len() * hidden];
    let mut buffers = TalkerBuffers::new(setup.speaker.talker());
    setup
        .speaker
        .talker()
        .text_rows(setup.kernels, &setup.team, &mut buffers, trailing, &mut heard)
        .unwrap();
    assert_near(
        name,
        &heard,
        &case.f32s("trailing_text_hidden").unwrap(),
        EMBEDDING,
    );
}

const CUSTOM_VOICE: [&str; 6] = [
    "cv_english_nonstreaming",
    "cv_english_nopenalty",
    "cv_dialect_auto_streaming",
    "cv_auto_streaming",
    "cv_stops_on_eos",
    "cv_sampled_processors",
];
const BASE: [&str; 4] = [
    "clone_icl_streaming",
    "clone_icl_nonstreaming",
    "clone_xvector_streaming",
    "design_instruct_nonstreaming",
];

#[test]
fn named_voices_meet_the_reference_in_every_step() {
    let Some(model) = Model::open("engine::speech::named_voices", "custom-voice") else {
        return;
    };
    let mut setup = Setup::new(&model, EXACT, 1, 64);
    for name in CUSTOM_VOICE {
        check_case(&model, name, &mut setup);
    }
}

#[test]
fn cloned_and_designed_voices_meet_the_reference_in_every_step() {
    let Some(model) = Model::open("engine::speech::cloned_voices", "base-wide") else {
        return;
    };
    let mut setup = Setup::new(&model, EXACT, 1, 64);
    for name in BASE {
        check_case(&model, name, &mut setup);
    }
}

#[test]
fn every_layer_of_the_prompt_meets_the_reference() {
    let Some(model) = Model::open("engine::speech::every_layer", "custom-voice") else {
        return;
    };
    let case = Case::open(&model, "cv_english_nonstreaming");
    let talker = model.talker();
    let kernels = select(EXACT).unwrap();
    let team = Team::single().unwrap();
    let inputs = case.f32s("prefill_embeds").unwrap();
    let hidden = talker.spec().hidden;
    let sizes = KvSizes {
        context: 64,
        max_seqs: 1,
        prefill_batch: 64,
        dtype: Dtype::F32,
    };
    let mut cache = KvCache::new(talker.spec(), sizes).unwrap();
    let mut buffers = TalkerBuffers::new(&talker);
    let places: Vec<Place> = (0..inputs.len() / hidden)
        .map(|position| Place {
            sequence: 0,
            position,
            wanted: true,
        })
        .collect();
    let mut seen = Vec::new();
    let heard = talker
        .forward_observed(
            kernels,
            &team,
            &mut cache,
            &mut buffers,
            &places,
            &inputs,
            &mut |_, rows| {
                seen.extend_from_slice(rows);
            },
        )
        .unwrap();
    seen.extend_from_slice(heard.states);
    let golden = case.f32s("prefill_hidden_states").unwrap();
    assert_near("hidden states", &seen, &golden, STATE);
}

#[test]
fn codes_are_the_same_in_company_in_pieces_and_with_any_number_of_threads() {
    let Some(model) = Model::open("engine::speech::company", "custom-voice") else {
        return;
    };
    let greedy = &CUSTOM_VOICE[..5];
    let golden: HashMap<&str, Vec<Frame>> = greedy
        .iter()
        .map(|&name| (name, Case::open(&model, name).frames("codes")))
        .collect();
    for (cap, threads, prompt_rows) in [("scalar", 1, 64), (EXACT, 2, 5), (EXACT, 3, 1)] {
        let mut setup = Setup::new(&model, cap, threads, prompt_rows);
        // The first two begin together, the third joins after some steps, the last takes a slot that was used.
        let mut slots: Vec<Option<Utterance>> = greedy[..2]
            .iter()
            .map(|name| Some(setup.begin(&model, &Case::open(&model, name))))
            .collect();
        slots.push(None);
        let mut frames = vec![Vec::new(); 3];
        for _ in 0..7 {
            setup
                .speaker
                .step(&setup.team, &mut slots, prompt_rows, &mut NoWitness)
                .unwrap();
            for (utterance, frames) in slots.iter_mut().flatten().zip(&mut frames) {
                frames.extend(utterance.take_frame().map(<[u16]>::to_vec));
            }
        }
        slots[2] = Some(setup.begin(&model, &Case::open(&model, greedy[2])));
        for (frames, more) in frames.iter_mut().zip(setup.run(&mut slots, &mut NoWitness)) {
            frames.extend(more);
        }
        for (name, frames) in greedy.iter().zip(frames) {
            assert_eq!(
                frames, golden[name],
                "{name}, {cap}, {threads} threads, {prompt_rows} rows"
            );
        }
        slots[1] = Some(setup.begin(&model, &Case::open(&model, greedy[3])));
        slots[0] = Some(setup.begin(&model, &Case::open(&model, greedy[4])));
        let frames = setup.run(&mut slots, &mut NoWitness);
        assert_eq!(frames[1], golden[greedy[3]], "{cap}");
        assert_eq!(frames[0], golden[greedy[4]], "{cap}");
    }
}

#[test]
fn the_end_is_held_back_for_a_least_number_of_frames_and_sampling_follows_its_seed() {
    let Some(model) = Model::open("engine::speech::least_frames", "custom-voice") else {
        return;
    };
    let case = Case::open(&model, "cv_stops_on_eos");
    let mut setup = Setup::new(&model, EXACT, 1, 64);
    let prompt = Prompt::new(&model.speech().ids, parts(&model, &case));
    let mut spoken = |change: &dyn Fn(&mut Manner)| {
        let mut manner = manner(&model, &case);
        change(&mut manner);
        let rows = setup.speaker.embed(&setup.team, &prompt).unwrap();
        let utterance = Utterance::new(model.speech(), model.card.decoder.vocab, &prompt, rows, &manner);
        let mut slots = [Some(utterance)];
        let frames = setup.run(&mut slots, &mut NoWitness).remove(0);
        (frames, slots[0].as_ref().unwrap().ended().cloned())
    };
    let golden = case.frames("codes");
    let (frames, end) = spoken(&|manner| {
        manner.limits = Limits {
            min_frames: golden.len() + 3,
            max_frames: golden.len() + 9,
        };
    });
    assert!(
        frames.len() >= golden.len() + 3 && frames.len() <= golden.len() + 9,
        "{}",
        frames.len()
    );
    assert_eq!(frames[..golden.len()], golden[..]);
    assert!(matches!(
        end,
        Some(Ended::Said(SpeechEnd::End | SpeechEnd::MaxFrames))
    ));
    let sampled = |seed| {
        move |manner: &mut Manner| {
            manner.talker.sample = true;
            manner.predictor.sample = true;
            manner.seed = seed;
            manner.limits.max_frames = 6;
        }
    };
    let first = spoken(&sampled(1));
    assert_eq!(first, spoken(&sampled(1)));
    assert_ne!(first.0, spoken(&sampled(2)).0);
    // The predictor's switch is its own.
    let (greedy, _) = spoken(&|manner| manner.limits.max_frames = 6);
    let (half, _) = spoken(&|manner| {
        manner.predictor.sample = true;
        manner.limits.max_frames = 6;
    });
    assert_eq!(greedy[0][0], half[0][0]);
    assert_ne!(greedy, half);
}

#[test]
fn texts_become_the_ids_of_the_reference() {
    let Some(model) = Model::open("engine::speech::texts", "custom-voice") else {
        return;
    };
    let path: &Path = &model.folder.join("golden/tokenizer_cases.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let ids_of = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let (tokenizer, texts, ids) = (&model.tokenizer, model.texts(), model.speech().ids);
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode(text, Encoding::RENDERED).unwrap(),
            ids_of(&case["ids"]),
            "{text:?}"
        );
        let turn = format!("<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(
            tokenizer.encode(&turn, Encoding::RENDERED).unwrap(),
            ids_of(&case["assistant_ids"]),
            "{text:?}"
        );
        // Put together from parts, the turn is the same, except that text cannot spell a control token.
        if text.contains("<tts_pad>") {
            assert!(!texts.spoken(tokenizer, text).unwrap().contains(&ids.tts_pad));
            continue;
        }
        let mut joined = texts.role();
        joined.extend(texts.spoken(tokenizer, text).unwrap());
        joined.push(ids.im_end);
        joined.extend_from_slice(&texts.role()[2..]);
        joined.extend(texts.role());
        assert_eq!(joined, ids_of(&case["assistant_ids"]), "{text:?}");
    }
    for name in ["clone_icl_streaming", "design_instruct_nonstreaming"] {
        let Some(base) = Model::open("engine::speech::texts", "base-wide") else {
            return;
        };
        let facts = Case::open(&base, name).facts;
        if let Some(text) = facts["ref_text"].as_str() {
            let mut turn = texts.role();
            turn.extend(texts.spoken(tokenizer, text).unwrap());
            turn.push(ids.im_end);
            turn.extend_from_slice(&texts.role()[2..]);
            assert_eq!(turn, ids_of(&facts["ref_ids"]));
        }
        if let Some(text) = facts["instruct"].as_str() {
            assert_eq!(
                texts.instruction(tokenizer, text).unwrap(),
                ids_of(&facts["instruct_ids"])
            );
        }
    }
    for empty in ["", "  \n\t"] {
        assert!(texts.spoken(tokenizer, empty).is_err(), "{empty:?}");
    }
    let spoken = texts.spoken(tokenizer, "\n\nhello").unwrap();
    assert_eq!(texts.role().len(), 3);
    assert_eq!(tokenizer.decode(&spoken), "\n\nhello");
}

fn release(name: &str) -> Box<SpeechCard> {
    inspect(Release::new(name).write().path())
        .unwrap()
        .speech
        .unwrap()
}

#[test]
fn languages_follow_the_rule_of_dialects_and_unknown_names_are_refused() {
    let card = release("0.6B-CustomVoice");
    let id = |language: &str, voice: &str| language_id(&card, language, Some(voice)).unwrap();
    assert_eq!(id("auto", "ryan"), None);
    assert_eq!(id(" English ", "eric"), Some(2050));
    assert_eq!(id("Auto", "eric"), Some(2062));
    assert_eq!(id("chinese", "dylan"), Some(2074));
    assert_eq!(id("chinese", "vivian"), Some(2055));
    for unknown in ["klingon", "sichuan_dialect", ""] {
        let problem = language_id(&card, unknown, None).unwrap_err();
        assert!(problem.remedy.contains("auto, chinese, english"), "{problem}");
    }
}

#[test]
fn what_a_release_lacks_is_said_with_what_it_has() {
    let Some(model) = Model::open("engine::speech::lacks", "custom-voice") else {
        return;
    };
    let texts = model.texts();
    let ask = |card: &SpeechCard, voice: Voice, instructions: Option<&str>| {
        let request = SpeechRequest {
            text: "Hello".to_owned(),
            voice,
            language: "auto".to_owned(),
            instructions: instructions.map(str::to_owned),
            text_at_once: None,
        };
        prompt_parts(card, &texts, &model.tokenizer, &request)
    };
    let small = release("0.6B-CustomVoice");
    let named = |name: &str| Voice::Named(name.to_owned());
    assert!(ask(&small, named("RYAN"), None).unwrap().text_at_once);
    let unknown = ask(&small, named("nobody"), None).unwrap_err();
    assert!(unknown.remedy.contains("aiden, dylan"), "{unknown}");
    assert!(
        ask(&small, named("ryan"), Some("be glad"))
            .unwrap_err()
            .what
            .contains("0b6")
    );
    assert!(ask(&small, named("ryan"), Some("  ")).is_ok());
    let large = release("1.7B-CustomVoice");
    assert!(
        !ask(&large, named("ryan"), Some("be glad"))
            .unwrap()
            .instruction
            .is_empty()
    );
    let design = release("1.7B-VoiceDesign");
    assert!(
        ask(&design, named("ryan"), None)
            .unwrap_err()
            .remedy
            .contains("instructions")
    );
    assert!(ask(&design, Voice::Default, Some("an old man")).is_ok());
    let cloned = || Voice::Cloned {
        vector: vec![0.0; 1024].into(),
        reference: None,
    };
    assert!(ask(&small, cloned(), None).unwrap_err().remedy.contains("Base"));
    assert!(!ask(&release("0.6B-Base"), cloned(), None).unwrap().text_at_once);
}
