//! The stage of a language model.
//!
//! In: its part of the plan, a card, opened weights. Out: passes of its decoder over its KV cache with its team.
//! Invariant: built on the thread that will run it, so that memory is first touched where it is used; what it reports
//! is read back, not copied from the plan.

use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{self, KV_BLOCK, Kernels};
use crate::engine::kv_cache::{KvCache, KvSizes};
use crate::engine::nets::Row;
use crate::engine::nets::decoder::{Decoder, Workspace};
use crate::engine::nets::load::{Held, HeldTensor, OnProgress};
use crate::engine::stage::{Stage, StageSizes};
use crate::engine::team::Team;
use crate::model::card::ModelCard;
use crate::model::weight_path::WeightPath;
use crate::model::weights::Weights;
use crate::plan::{Dtype, EffectivePages, EffectiveStage, EffectiveTensor, StagePlan};
use crate::sys::memory::Region;
use crate::sys::pages::{PageMap, Pages};

/// A decoder with its cache and its team.
#[derive(Debug)]
pub struct DecoderStage {
    kernels: &'static Kernels,
    team: Team,
    decoder: Decoder,
    cache: KvCache,
    workspace: Workspace,
    path: WeightPath,
}

impl DecoderStage {
    /// Starts the team, loads the weights, allocates the cache. The calling thread becomes worker 0.
    ///
    /// # Errors
    /// When the plan asks for what is not built, a tensor does not fit, memory is short or a thread cannot be placed.
    pub fn build(
        name: &str,
        plan: &StagePlan,
        card: &ModelCard,
        weights: &Weights,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        if plan.dtype != Dtype::F32 {
            return Err(unmet(name, "dtype", &format!("{:?}", plan.dtype), "f32"));
        }
        let path = weight_path(name, plan)?;
        let kernels = kernels::select(&plan.isa_cap)?;
        let team = Team::of_plan(name, plan)?;
        let cache = KvCache::new(
            &card.decoder,
            KvSizes {
                context: plan.context,
                max_seqs: plan.max_seqs,
                prefill_batch: plan.prefill_batch,
                dtype: plan.kv_dtype,
            },
        )?;
        let decoder = Decoder::load(
            card,
            weights,
            Held {
                path,
                huge_pages: plan.huge_pages,
            },
            on_progress,
        )?;
        Ok(Self {
            workspace: Workspace::new(&decoder),
            kernels,
            team,
            decoder,
            cache,
            path,
        })
    }
}

/// The weight path a plan names.
pub(in crate::engine) fn weight_path(name: &str, plan: &StagePlan) -> Result<WeightPath, Problem> {
    WeightPath::parse(&plan.weight_path).ok_or_else(|| {
        let known = WeightPath::ALL.map(WeightPath::name).join("` or `");
        unmet(name, "weight_path", &plan.weight_path, &known)
    })
}

/// A knob that cannot be followed.
pub(in crate::engine) fn unmet(stage: &str, key: &str, seen: &str, wanted: &str) -> Problem {
    Problem::new(
        Code::PinUnmet,
        format!("`stages.{stage}.{key}` is `{seen}`, which this engine cannot do"),
        format!("set it to `{wanted}`"),
    )
}

impl Stage for DecoderStage {
    fn sizes(&self) -> StageSizes {
        let sizes = self.cache.sizes();
        StageSizes {
            vocab: self.decoder.spec().vocab,
            context: sizes.context,
            max_seqs: sizes.max_seqs,
            prefill_batch: sizes.prefill_batch,
        }
    }

    fn pass(&mut self, rows: &[Row]) -> Result<&mut [f32], Problem> {
        self.decoder.forward(
            self.kernels,
            &self.team,
            &mut self.cache,
            &mut self.workspace,
            rows,
        )
    }

    fn effective(&self) -> Result<EffectiveStage, Problem> {
        let sizes = self.cache.sizes();
        let map = PageMap::read()?;
        let weights = map.of(self.decoder.regions().map(Region::range));
        let cache = map.of(self.cache.regions().map(Region::range));
        let (activation_bytes, rope_bytes) = self.workspace.bytes();
        Ok(EffectiveStage {
            threads: self.team.threads(),
            worker_cpus: self.team.worker_cpus()?,
            kernels: self.kernels.name().to_owned(),
            dtype: Dtype::F32,
            weight_path: self.path.name().to_owned(),
            kv_dtype: sizes.dtype,
            context: sizes.context,
            max_seqs: sizes.max_seqs,
            kv_bytes: self.cache.bytes(),
            kv_resident_bytes: resident(self.cache.regions())?,
            kv_block: KV_BLOCK,
            kv_tokens_by_layer: self.cache.tokens_by_layer(),
            kv_pages: pages(&cache),
            prefill_batch: sizes.prefill_batch,
            huge_pages: weights.huge_advised.unwrap_or(false),
            weight_bytes_by_format: self.decoder.format_bytes().clone(),
            weight_resident_bytes: resident(self.decoder.regions())?,
            weight_pages: pages(&weights),
            activation_bytes,
            rope_bytes,
            tensors: self
                .decoder
                .held()
                .iter()
                .map(|held| tensor(held, self.kernels))
                .collect(),
        })
    }
}

pub(super) fn resident<'r>(regions: impl Iterator<Item = &'r Region>) -> Result<Bytes, Problem> {
    let mut sum = 0;
    for region in regions {
        sum += region.resident()?.0;
    }
    Ok(Bytes(sum))
}

pub(super) fn pages(pages: &Pages) -> EffectivePages {
    EffectivePages {
        huge_bytes: pages.huge,
        nodes: pages.nodes.clone(),
    }
}

fn tensor(held: &HeldTensor, kernels: &Kernels) -> EffectiveTensor {
    EffectiveTensor {
        name: held.name.clone(),
        stored: held.stored.as_str().to_owned(),
        held: held
            .held
            .map_or_else(|| "F32".to_owned(), |dtype| format!("{} (R16)", dtype.as_str())),
        bytes: held.bytes,
        kernel: held.held.map(|dtype| kernels.product_of(dtype).to_owned()),
    }
}
