//! The stages that speak: the talker, and the code predictor within each of its steps.
//!
//! In: their parts of the plan, a card, opened weights. Out: steps of utterances on one team.
//! Invariant: built on the thread that will run it; what it reports is read back, not copied from the plan.

use std::sync::Arc;

use super::decoder::{unmet, weight_path};
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels;
use crate::engine::kv_cache::KvSizes;
use crate::engine::nets::code_predictor::CodePredictor;
use crate::engine::nets::load::{Held, LoadProgress, OnProgress};
use crate::engine::nets::talker::Talker;
use crate::engine::speech::speaker::Seat;
use crate::engine::speech::{NoWitness, Prompt, Speaker, Utterance};
use crate::engine::team::Team;
use crate::model::card::ModelCard;
use crate::model::speech::{CODE_PREDICTOR, SpeechCard, TALKER, TensorUse};
use crate::model::weight_path::WeightPath;
use crate::model::weights::Weights;
use crate::plan::{Dtype, EffectiveStage, StagePlan};

/// Talker and predictor with their caches and their team.
#[derive(Debug)]
pub struct TalkerStage {
    team: Team,
    speaker: Speaker,
    prompt_rows: usize,
    paths: [WeightPath; 2],
}

/// Bytes of a stage's tensors in the file.
fn held_bytes(card: &ModelCard, stage: &'static str) -> u64 {
    let held = card
        .tensors
        .iter()
        .filter(|tensor| card.tensor_use(tensor) == Some((stage, TensorUse::Held)));
    held.map(|tensor| tensor.bytes.0).sum()
}

impl TalkerStage {
    /// Starts the team, loads the weights, allocates the caches. The calling thread becomes worker 0.
    ///
    /// # Errors
    /// When a plan asks for what is not built, a tensor does not fit, memory is short or a thread cannot be placed.
    pub fn build(
        plans: [&StagePlan; 2],
        card: &ModelCard,
        speech: &SpeechCard,
        weights: &Weights,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let [talker_plan, predictor_plan] = plans;
        for (name, plan) in [(TALKER, talker_plan), (CODE_PREDICTOR, predictor_plan)] {
            if plan.dtype != Dtype::F32 {
                return Err(unmet(name, "dtype", &format!("{:?}", plan.dtype), "f32"));
            }
        }
        if predictor_plan.threads != talker_plan.threads || predictor_plan.cpus != talker_plan.cpus {
            return Err(Problem::new(
                Code::PinUnmet,
                format!(
                    "`stages.{CODE_PREDICTOR}` is planned on {} threads of CPUs {}, `stages.{TALKER}` on {} of {}",
                    predictor_plan.threads, predictor_plan.cpus, talker_plan.threads, talker_plan.cpus
                ),
                format!("remove `threads` and `cpus` of `stages.{CODE_PREDICTOR}`"),
            )
            .why("the predictor runs within each step of the talker, on its team"));
        }
        let seat = |plan: &StagePlan, name: &str| {
            Ok::<Seat, Problem>(Seat {
                kernels: kernels::select(&plan.isa_cap).map_err(|mut problem| {
                    problem.what = format!("`stages.{name}.isa_cap`: {}", problem.what);
                    problem
                })?,
                sizes: KvSizes {
                    context: plan.context,
                    max_seqs: plan.max_seqs,
                    prefill_batch: plan.prefill_batch,
                    dtype: plan.kv_dtype,
                },
            })
        };
        let held = |name: &str, plan: &StagePlan| {
            Ok::<Held, Problem>(Held {
                path: weight_path(name, plan)?,
                huge_pages: plan.huge_pages,
            })
        };
        let paths = [
            weight_path(TALKER, talker_plan)?,
            weight_path(CODE_PREDICTOR, predictor_plan)?,
        ];
        let seats = [seat(talker_plan, TALKER)?, seat(predictor_plan, CODE_PREDICTOR)?];
        let team = Team::of_plan(TALKER, talker_plan)?;
        let total = Bytes(held_bytes(card, TALKER) + held_bytes(card, CODE_PREDICTOR));
        let mut done = Bytes(0);
        let mut tell = |seen: LoadProgress| {
            done = seen.done;
            on_progress(LoadProgress { done, total });
        };
        let talker = Talker::load(card, speech, weights, held(TALKER, talker_plan)?, &mut tell)?;
        let first = done;
        let mut tell = |seen: LoadProgress| {
            let done = Bytes(first.0 + seen.done.0);
            on_progress(LoadProgress { done, total });
        };
        let tables = Arc::clone(talker.tables());
        let predictor = CodePredictor::load(
            card,
            speech,
            weights,
            tables,
            held(CODE_PREDICTOR, predictor_plan)?,
            &mut tell,
        )?;
        let speaker = Speaker::new(&team, speech, talker, predictor, seats)?;
        Ok(Self {
            team,
            prompt_rows: talker_plan.prefill_batch,
            paths,
            speaker,
        })
    }

    /// Positions an utterance has room for, prompt and frames.
    #[must_use]
    pub fn context(&self) -> usize {
        self.speaker.caches()[0].sizes().context
    }

    /// Utterances at once.
    #[must_use]
    pub fn max_seqs(&self) -> usize {
        self.speaker.caches()[0].sizes().max_seqs
    }

    /// Length of a row of the talker's logits.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.speaker.talker().spec().vocab
    }

    /// Embeds a prompt.
    ///
    /// # Errors
    /// For an id outside the text embedding.
    pub fn embed(&mut self, prompt: &Prompt) -> Result<Vec<f32>, Problem> {
        self.speaker.embed(&self.team, prompt)
    }

    /// One step; prompts wait in it unless `listen`.
    ///
    /// # Errors
    /// When a pass cannot be run; every utterance in it must be given up.
    pub fn step(&mut self, slots: &mut [Option<Utterance>], listen: bool) -> Result<(), Problem> {
        let rows = if listen { self.prompt_rows } else { 0 };
        self.speaker.step(&self.team, slots, rows, &mut NoWitness)
    }

    /// What the two stages really use, read back now: talker, then predictor.
    ///
    /// # Errors
    /// When the operating system cannot be asked.
    pub fn effective(&self) -> Result<[EffectiveStage; 2], Problem> {
        let (talker, predictor) = (self.speaker.talker(), self.speaker.predictor());
        let [talker_cache, predictor_cache] = self.speaker.caches();
        let [talker_kernels, predictor_kernels] = self.speaker.kernels();
        let worker_cpus = self.team.worker_cpus()?;
        let stage = |cache: &crate::engine::kv_cache::KvCache, kernels: &kernels::Kernels| EffectiveStage {
            threads: self.team.threads(),
            worker_cpus: worker_cpus.clone(),
            kernels: kernels.name().to_owned(),
            dtype: Dtype::F32,
            kv_dtype: cache.sizes().dtype,
            context: cache.sizes().context,
            max_seqs: cache.sizes().max_seqs,
            kv_bytes: cache.bytes(),
            kv_tokens_by_layer: cache.tokens_by_layer(),
            prefill_batch: cache.sizes().prefill_batch,
            kv_block: kernels::KV_BLOCK,
            ..EffectiveStage::default()
        };
        Ok([
            EffectiveStage {
                huge_pages: talker.huge_pages(),
                weight_path: self.paths[0].name().to_owned(),
                weight_bytes_by_format: talker.format_bytes().clone(),
                ..stage(talker_cache, talker_kernels)
            },
            EffectiveStage {
                huge_pages: predictor.huge_pages(),
                weight_path: self.paths[1].name().to_owned(),
                weight_bytes_by_format: predictor.format_bytes().clone(),
                ..stage(predictor_cache, predictor_kernels)
            },
        ])
    }
}
