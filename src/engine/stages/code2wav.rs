//! The stage that makes sound of codes: several streams, one network, one team.
//!
//! In: its part of the plan, opened weights, frames of codes from a [`SoundLine`]. Out: chunks of samples, in order.
//! Invariant: the stream whose player is nearest to running dry goes first, one pass at a time; a stream that fails
//! or is left fails or leaves alone; states are allocated once and go back at once when a stream ends.

pub mod line;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use line::{CodeSource, LineLimits, Push, SoundEvent, SoundLine, SoundOrder};

use super::decoder::{pages, resident};
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{self, KV_BLOCK, Kernels};
use crate::engine::nets::codec_decoder::{CodecDecoder, CodecState, CodecWorkspace};
use crate::engine::nets::load::OnProgress;
use crate::engine::nn::conv::Held;
use crate::engine::team::Team;
use crate::model::card::ModelCard;
use crate::model::speech::CODEC_PASS_FRAMES;
use crate::model::weight_path::WeightPath;
use crate::model::weights::Weights;
use crate::plan::{Dtype, EffectiveStage, StagePlan};
use crate::sys::memory::Region;
use crate::sys::pages::PageMap;

/// The network with its streams' states and its team.
#[derive(Debug)]
pub struct Code2wavStage {
    kernels: &'static Kernels,
    team: Team,
    decoder: CodecDecoder,
    workspace: CodecWorkspace,
    /// One a slot of the line.
    states: Vec<CodecState>,
    path: WeightPath,
}

impl Code2wavStage {
    /// Starts the team, loads the weights, allocates the states. The calling thread becomes worker 0.
    ///
    /// # Errors
    /// When the plan asks for what is not built, the card has no codec, a tensor does not fit, memory is short or a
    /// thread cannot be placed.
    pub fn build(
        name: &str,
        plan: &StagePlan,
        card: &ModelCard,
        weights: &Weights,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let unmet = |key: &str, seen: &str, wanted: &str| {
            Problem::new(
                Code::PinUnmet,
                format!("`stages.{name}.{key}` is `{seen}`, which this engine cannot do"),
                format!("set it to `{wanted}`"),
            )
        };
        if plan.dtype != Dtype::F32 {
            return Err(unmet("dtype", &format!("{:?}", plan.dtype), "f32"));
        }
        let Some(path) = WeightPath::parse(&plan.weight_path) else {
            let known = WeightPath::ALL.map(WeightPath::name).join("` or `");
            return Err(unmet("weight_path", &plan.weight_path, &known));
        };
        let Some(speech) = &card.speech else {
            return Err(Problem::new(
                Code::ModelUnsupported,
                format!("`{}` has no codec", card.name),
                "serve it as a model of text, or use a speech model",
            ));
        };
        let kernels = kernels::select(&plan.isa_cap)?;
        let team = Team::of_plan(name, plan)?;
        let held = Held {
            path,
            huge_pages: plan.huge_pages,
        };
        let decoder = CodecDecoder::load(&speech.codec, weights, held, on_progress)?;
        let states = (0..plan.max_seqs)
            .map(|_| CodecState::new(&decoder))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            kernels,
            team,
            decoder,
            workspace: CodecWorkspace::default(),
            states,
            path,
        })
    }

    /// A line that fits this stage.
    #[must_use]
    pub fn line(&self, frames_waiting: usize, chunks_waiting: usize) -> SoundLine {
        let spec = self.decoder.spec();
        SoundLine::new(LineLimits {
            streams: self.states.len(),
            codebooks: spec.codebooks,
            frame_samples: spec.samples_per_frame,
            sample_rate: spec.sample_rate,
            frames_waiting,
            chunks_waiting,
        })
    }

    /// Makes sound until the line is closed and empty. Runs on the thread that built the stage.
    pub fn run(&mut self, line: &SoundLine) {
        let mut pcm = Vec::new();
        while let Some(work) = line.next() {
            pcm.clear();
            let state = &mut self.states[work.slot];
            if work.first {
                state.reset();
            }
            let made = catch_unwind(AssertUnwindSafe(|| {
                self.decoder.decode(
                    self.kernels,
                    &self.team,
                    state,
                    &mut self.workspace,
                    &work.codes,
                    &mut pcm,
                )
            }));
            let made = made.unwrap_or_else(|_| {
                Err(Problem::new(
                    Code::StageFailed,
                    "the codec's decoder stopped on these codes",
                    "report this with the request that caused it; other requests go on",
                ))
            });
            let finite = pcm.iter().all(|sample| sample.is_finite());
            let made = made.and_then(|()| if finite { Ok(()) } else { Err(no_numbers()) });
            match made {
                Ok(()) => line.made(work, &pcm),
                Err(problem) => line.failed(&work, problem),
            }
        }
    }

    /// Bytes of all streams' states.
    #[must_use]
    pub fn state_bytes(&self) -> Bytes {
        Bytes(self.states.iter().map(|state| state.bytes().0).sum())
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        self.decoder.format_bytes()
    }

    /// What this stage really uses.
    ///
    /// # Errors
    /// `probe_failed` when `/proc` cannot be read.
    pub fn effective(&self) -> Result<EffectiveStage, Problem> {
        let map = PageMap::read()?;
        let weights = map.of(self.decoder.regions().map(Region::range));
        Ok(EffectiveStage {
            threads: self.team.threads(),
            worker_cpus: self.team.worker_cpus()?,
            kernels: self.kernels.name().to_owned(),
            dtype: Dtype::F32,
            weight_path: self.path.name().to_owned(),
            kv_dtype: Dtype::F32,
            context: self.decoder.spec().window,
            max_seqs: self.states.len(),
            // What a stream carries is no cache of keys and values alone; see `state_bytes`.
            kv_bytes: Bytes(0),
            kv_block: KV_BLOCK,
            prefill_batch: CODEC_PASS_FRAMES,
            huge_pages: weights.huge_advised.unwrap_or(false),
            weight_bytes_by_format: self.decoder.format_bytes().clone(),
            weight_resident_bytes: resident(self.decoder.regions())?,
            weight_pages: pages(&weights),
            activation_bytes: self.workspace.bytes(),
            ..EffectiveStage::default()
        })
    }
}

fn no_numbers() -> Problem {
    Problem::new(
        Code::StageFailed,
        "the codec's decoder produced no usable numbers",
        "check the model's files (`edge-deploy doctor`); they may be damaged",
    )
    .why("they cannot be played")
}
