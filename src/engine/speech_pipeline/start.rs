//! From a plan and opened weights to a running speech engine.
//!
//! In: a settled [`Plan`] with its card, [`Weights`]. Out: a [`SpeechHandle`].
//! Invariant: the two threads load at the same time, each on its own CPUs; either everything the plan says runs, or
//! nothing does and the reason is returned.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, mpsc};

use super::handle::{Parts, SpeechFacts, SpeechHandle};
use super::language::Language;
use super::sound::{self, Sound};
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels;
use crate::engine::nets::codec_decoder::{CodecDecoder, CodecState};
use crate::engine::nets::load::LoadProgress;
use crate::engine::nn::conv::Held;
use crate::engine::speech::SpeechTexts;
use crate::engine::stages::TalkerStage;
use crate::engine::stages::decoder::{unmet, weight_path};
use crate::engine::team::Team;
use crate::engine::text::Tokenizer;
use crate::model::ModelCard;
use crate::model::speech::{CODE_PREDICTOR, CODE2WAV, SpeechCard, SpeechSampling, TALKER};
use crate::model::weights::Weights;
use crate::pacing::{AdaptiveSettings, Chunking, MAX_CHUNK};
use crate::plan::{Dtype, EffectiveModel, Plan, SamplingPlan, StagePlan};

/// Messages between the threads, for each sequence: a beginning, an end, and frames the codec is behind.
const MESSAGES_PER_SEQ: usize = 8;
/// Weight of the newest measurement in the chunk controller.
const NEWEST_WEIGHT: f64 = 0.3;
/// How early a chunk is to arrive, seconds.
const CHUNK_MARGIN_S: f64 = 0.04;

/// What a loading thread says.
enum Report {
    Progress(usize, LoadProgress),
    Ready(Result<(), Problem>),
}

/// Builds the tokenizer, loads talker, predictor and codec on their own threads, and starts them.
///
/// `on_progress` is called on the calling thread, with the sum over all parts.
///
/// # Errors
/// Whatever keeps the plan from running as it stands.
pub fn start(
    plan: &Plan,
    weights: Weights,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<SpeechHandle, Problem> {
    let card = plan
        .model
        .card
        .as_deref()
        .ok_or_else(|| internal("the plan carries no model card"))?;
    let speech = card
        .speech
        .as_deref()
        .ok_or_else(|| internal("the plan's model is not a speech model"))?;
    let stage_plan = |name: &str| {
        plan.stages
            .get(name)
            .cloned()
            .ok_or_else(|| internal(&format!("the plan has no stage `{name}`")))
    };
    let (talker, predictor, codec) = (
        stage_plan(TALKER)?,
        stage_plan(CODE_PREDICTOR)?,
        stage_plan(CODE2WAV)?,
    );
    let tokenizer = Arc::new(Tokenizer::open(card, &weights)?);
    let texts = SpeechTexts::new(speech.ids, &tokenizer)?;
    let facts = facts(plan, card, speech, &talker);
    let opened = EffectiveModel {
        name: facts.name.clone(),
        family: facts.family.clone(),
        files: weights.files().to_vec(),
        // Speech models have none; the plan calls that the family's.
        chat_template: "family".to_owned(),
    };
    let most_in_flight = talker.max_seqs.saturating_add(plan.server.max_queue);
    let shared = Arc::new(speech.clone());
    let width = card.decoder.hidden;
    let card = Arc::new(card.clone());

    let (to_sound, from_language) =
        mpsc::sync_channel(talker.max_seqs.saturating_mul(MESSAGES_PER_SEQ).max(1));
    let (commands, orders) = mpsc::channel();
    let (reports, progress) = mpsc::channel();
    let slack = Arc::new(AtomicI64::new(i64::MAX));

    let sound_thread = {
        let (reports, weights, slack) = (reports.clone(), weights.clone(), Arc::clone(&slack));
        let shared = Arc::clone(&shared);
        spawn(CODE2WAV, move || {
            let built = build_sound(&codec, &shared, &weights, &reports);
            drop(weights);
            if let Some(sound) = tell_ready(reports, built) {
                sound::run(sound, &from_language, &slack);
            }
        })?
    };
    let language_thread = {
        let (to_sound, shared) = (to_sound.clone(), Arc::clone(&shared));
        let reports = reports.clone();
        spawn(TALKER, move || {
            let mut tell = |seen| {
                // The starter waits for both, so it cannot be gone.
                let _ = reports.send(Report::Progress(0, seen));
            };
            let built = TalkerStage::build([&talker, &predictor], &card, &shared, &weights, &mut tell);
            drop(weights);
            if let Some(stage) = tell_ready(reports, built) {
                Language::new(stage, shared, to_sound, slack).run(&orders);
            }
        })?
    };
    drop(reports);
    let handle = SpeechHandle::new(Parts {
        commands,
        sound: to_sound,
        threads: vec![language_thread, sound_thread],
        talker_sampling: talker_sampling(speech, &plan.model.sampling),
        card: shared,
        width,
        tokenizer,
        texts,
        chunking: Chunking::Adaptive(AdaptiveSettings {
            frame_audio_s: facts.samples_per_frame as f64 / f64::from(facts.sample_rate),
            first: 1,
            largest: MAX_CHUNK,
            margin_s: CHUNK_MARGIN_S,
            weight: NEWEST_WEIGHT,
        }),
        facts,
        opened,
        request_timeout: (plan.server.request_timeout_ms.0 > 0)
            .then(|| std::time::Duration::from_millis(plan.server.request_timeout_ms.0)),
        most_in_flight,
    });
    // On a fault the handle is dropped, which ends the thread that did start.
    wait(&progress, on_progress)?;
    Ok(handle)
}

fn internal(what: &str) -> Problem {
    Problem::new(Code::Internal, what, "make the plan again from the model")
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>, Problem> {
    std::thread::Builder::new()
        .name(format!("{name}-0"))
        .spawn(body)
        .map_err(|error| {
            Problem::new(
                Code::HardwareLimit,
                format!("the thread of `{name}` cannot be started: {error}"),
                "raise the process limit",
            )
        })
}

/// Says whether a part is ready and gives it back if so.
fn tell_ready<T>(reports: mpsc::Sender<Report>, built: Result<T, Problem>) -> Option<T> {
    let (part, ready) = match built {
        Ok(part) => (Some(part), Ok(())),
        Err(problem) => (None, Err(problem)),
    };
    // The starter may have given up on the other part's fault.
    let _ = reports.send(Report::Ready(ready));
    part
}

/// Waits for both parts.
fn wait(progress: &mpsc::Receiver<Report>, on_progress: &mut dyn FnMut(LoadProgress)) -> Result<(), Problem> {
    let mut parts = [LoadProgress::default(); 2];
    let mut ready = 0;
    while ready < parts.len() {
        match progress.recv() {
            Ok(Report::Progress(part, seen)) => {
                parts[part] = seen;
                on_progress(LoadProgress {
                    done: Bytes(parts.iter().map(|part| part.done.0).sum()),
                    total: Bytes(parts.iter().map(|part| part.total.0).sum()),
                });
            }
            Ok(Report::Ready(result)) => {
                result?;
                ready += 1;
            }
            Err(mpsc::RecvError) => {
                return Err(Problem::new(
                    Code::Internal,
                    "a thread of the speech engine failed while loading",
                    "report this with the log",
                ));
            }
        }
    }
    Ok(())
}

fn facts(plan: &Plan, card: &ModelCard, speech: &SpeechCard, talker: &StagePlan) -> SpeechFacts {
    SpeechFacts {
        name: plan.model.name.clone(),
        family: card.family.clone(),
        sample_rate: speech.codec.sample_rate,
        samples_per_frame: speech.codec.samples_per_frame,
        context: talker.context,
        max_seqs: talker.max_seqs,
        voices: speech.speakers.keys().cloned().collect(),
        languages: speech.language_names().into_iter().map(str::to_owned).collect(),
    }
}

/// The plan's sampling; a temperature of 0 takes the likeliest code.
fn talker_sampling(speech: &SpeechCard, plan: &SamplingPlan) -> SpeechSampling {
    SpeechSampling {
        sample: plan.temperature > 0.0,
        temperature: if plan.temperature > 0.0 {
            plan.temperature
        } else {
            speech.talker_sampling.temperature
        },
        top_k: plan.top_k,
        top_p: plan.top_p,
        repetition_penalty: plan.repetition_penalty,
    }
}

fn build_sound(
    plan: &StagePlan,
    speech: &SpeechCard,
    weights: &Weights,
    reports: &mpsc::Sender<Report>,
) -> Result<Sound, Problem> {
    if plan.dtype != Dtype::F32 {
        return Err(unmet(CODE2WAV, "dtype", &format!("{:?}", plan.dtype), "f32"));
    }
    let path = weight_path(CODE2WAV, plan)?;
    let kernels = kernels::select(&plan.isa_cap)?;
    let team = Team::of_plan(CODE2WAV, plan)?;
    let mut tell = |seen| {
        // The starter may have given up on the other part's fault.
        let _ = reports.send(Report::Progress(1, seen));
    };
    let held = Held {
        path,
        huge_pages: plan.huge_pages,
    };
    let decoder = CodecDecoder::load(&speech.codec, weights, held, &mut tell)?;
    let free = (0..plan.max_seqs)
        .map(|_| CodecState::new(&decoder))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Sound {
        kernels,
        team,
        decoder,
        max_streams: free.len(),
        path,
        free,
    })
}
