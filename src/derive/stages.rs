//! What is decided about one stage beside its workers and its share of memory.
//!
//! In: the stage as the model declares it, machine, pins. Out: a [`Choice`], and with a team and a fit its draft.
//! Invariant: each value is that of a pin or of one rule; a pin that cannot be met is a problem, never another value.

use super::asked::{Asked, StagePins};
use super::context::{self, ContextPins, Fit};
use super::decision::{Decision, pin_or};
use super::memory::{Demand, Room, StageDemand};
use super::threads::Threads;
use super::weight_path::{self, HeldWeights};
use super::{Found, StageDraft, dtype, isa, knobs};
use crate::base::{Code, Dtype, Problem};
use crate::config::Priority;
use crate::model::{ModelCard, Rhythm, Span, StageSpec};
use crate::probe::Hardware;

/// What was chosen for a stage.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Its name.
    pub name: &'static str,
    spec: &'a StageSpec<'a>,
    pins: StagePins,
    held: HeldWeights,
    isa_cap: Decision<String>,
    dtype: Decision<Dtype>,
    weight_path: Decision<String>,
    kv_dtype: Decision<Dtype>,
    kv_block: Decision<usize>,
}

impl<'a> Choice<'a> {
    /// Chooses; where a pin cannot be met, what holds without it stands in while the rest is looked at.
    pub(super) fn of(
        hardware: &Hardware,
        spec: &'a StageSpec<'a>,
        card: &ModelCard,
        asked: &Asked,
        found: &mut Found,
    ) -> Self {
        let name = spec.name;
        let pins = asked.stage(name);
        let path = found
            .keep(weight_path::choose(
                spec,
                asked.priority(),
                pins.weight_path.as_ref(),
            ))
            .unwrap_or_else(|| weight_path::derived(spec, asked.priority()));
        let held = weight_path::held_weights(spec, card, path);
        found.keep(knobs::check_device(pins.device.as_ref(), name));
        let (isa_cap, warnings) = found
            .keep(isa::cap(hardware, pins.isa_cap.as_ref(), asked.priority(), &held))
            .unwrap_or_else(|| (isa::uncapped(hardware), Vec::new()));
        found.warnings.extend(warnings);
        let dtype = found
            .keep(dtype::compute(spec, &hardware.isa, pins.dtype.as_ref()))
            .unwrap_or_else(|| dtype::computed(spec, &hardware.isa));
        let kv_dtype = found
            .keep(dtype::kv(spec, asked.priority(), pins.kv_dtype.as_ref()))
            .unwrap_or_else(|| dtype::cached(spec, asked.priority()));
        let native = isa::running(hardware, &isa_cap.value);
        let weight_path = weight_path::decision(path, &held, &native, pins.weight_path.as_ref());
        let kv_block = found
            .keep(knobs::kv_block(name, pins.kv_block.as_ref()))
            .unwrap_or_else(knobs::own_block);
        Self {
            name,
            spec,
            pins,
            held,
            isa_cap,
            dtype,
            weight_path,
            kv_dtype,
            kv_block,
        }
    }

    /// Rows in one pass at most.
    fn rows(&self, asked: &Asked) -> usize {
        match (&self.pins.prefill_batch, self.spec.longest_pass) {
            (Some(pin), _) => pin.value.max(1),
            (None, Some(longest)) => longest.max(1),
            (None, None) => asked.policy.prefill_batch.max(1),
        }
    }

    /// Problems of pins on a stage that follows the first one.
    pub(super) fn check_against(
        &self,
        context: usize,
        max_seqs: usize,
        demand: &Demand<'_>,
        asked: &Asked,
        found: &mut Found,
    ) {
        let Some((first, stage)) = demand
            .stages
            .first()
            .zip(demand.stages.iter().find(|stage| stage.stage.name == self.name))
        else {
            return;
        };
        if let (Some(longest), Some(pin)) = (self.spec.longest_pass, &self.pins.prefill_batch)
            && pin.value > longest
        {
            found.problems.push(
                Problem::new(
                    Code::PinUnmet,
                    format!(
                        "{} asks for {} rows in a pass, but the longest pass of `{}` has {longest}",
                        pin.named(),
                        pin.value,
                        self.name
                    ),
                    format!("use at most {longest}, or remove the key"),
                )
                .at(pin.place.clone()),
            );
        }
        if first.stage.name == self.name {
            return;
        }
        let own = stage.context(context);
        if let Some(pin) = self.pins.context.as_ref().filter(|pin| pin.value != own) {
            let by = match self.spec.context {
                Span::Exactly(_) => "its network has exactly so many positions".to_owned(),
                Span::UpTo(_) => format!("it follows the context of `{}`", first.stage.name),
            };
            found.problems.push(
                Problem::new(
                    Code::PinUnmet,
                    format!(
                        "{} asks for {} positions, but `{}` has {own}",
                        pin.named(),
                        pin.value,
                        self.name
                    ),
                    "remove the key",
                )
                .why(by)
                .at(pin.place.clone()),
            );
        }
        if let Some(pin) = self.pins.max_seqs.as_ref().filter(|pin| pin.value != max_seqs) {
            found.problems.push(
                Problem::new(
                    Code::PinUnmet,
                    format!(
                        "{} asks for {} sequences, but `{}` runs {max_seqs}, and each passes through all stages",
                        pin.named(),
                        pin.value,
                        first.stage.name
                    ),
                    format!("set `stages.{}.max_seqs` instead", first.stage.name),
                )
                .at(pin.place.clone()),
            );
        }
        let computed = stage.kv_computed(context, max_seqs);
        if let Some(pin) = self.pins.kv_bytes.as_ref().filter(|pin| pin.value < computed) {
            found.problems.push(
                Problem::new(
                    Code::PinUnmet,
                    format!(
                        "{} allows {} of cache, but {max_seqs} × {own} positions need {computed}",
                        pin.named(),
                        pin.value
                    ),
                    format!("use {} or more, or remove the key", pin.written(computed.0)),
                )
                .at(pin.place.clone()),
            );
        }
        // Of the first stage the limit is checked with its own cache.
        if let (Some(pin), Some(limit)) = (&self.pins.kv_bytes, &asked.limits.kv_cache_bytes)
            && pin.value > limit.value
        {
            found.problems.push(
                Problem::new(
                    Code::PinUnmet,
                    format!(
                        "{} asks for {}, but {} allows {}",
                        pin.named(),
                        pin.value,
                        limit.named(),
                        limit.value
                    ),
                    "lower the one or raise the other",
                )
                .at(pin.place.clone()),
            );
        }
    }

    /// The stage's part of the draft.
    pub(super) fn settle(
        self,
        hardware: &Hardware,
        team: Threads,
        demand: &StageDemand<'_>,
        fit: &Fit,
        asked: &Asked,
        warnings: &mut Vec<Problem>,
    ) -> (&'static str, StageDraft) {
        let (context, max_seqs) = (fit.context.value, fit.max_seqs.value);
        let own = demand.context(context);
        let (huge_pages, warning) = knobs::huge_pages(hardware, &asked.policy, self.pins.huge_pages.as_ref());
        warnings.extend(warning);
        let prefill_batch = match self.spec.longest_pass {
            Some(longest) => pin_or(
                self.pins.prefill_batch.as_ref(),
                "prefill.network",
                longest,
                "the longest pass of this network",
            ),
            None => knobs::prefill_batch(&asked.policy, own, self.pins.prefill_batch.as_ref()),
        };
        let (own_context, own_seqs) = (self.context(own, fit), self.sequences(fit));
        let draft = StageDraft {
            threads: team.threads,
            cpus: team.cpus,
            pin: team.pin,
            confine: team.confine,
            isa_cap: self.isa_cap,
            dtype: self.dtype,
            weight_path: self.weight_path,
            kv_dtype: self.kv_dtype,
            context: own_context,
            max_seqs: own_seqs,
            kv_bytes: context::kv_bytes(demand, self.pins.kv_bytes.as_ref(), context, max_seqs),
            kv_block: self.kv_block,
            prefill_batch,
            huge_pages,
        };
        (self.name, draft)
    }

    fn context(&self, own: usize, fit: &Fit) -> Decision<usize> {
        match (self.spec.context, fit.first == self.name) {
            (_, true) => fit.context.clone(),
            (Span::Exactly(_), false) => pin_or(
                self.pins.context.as_ref(),
                "context.network",
                own,
                "its network has exactly so many positions",
            ),
            (Span::UpTo(_), false) => pin_or(
                self.pins.context.as_ref(),
                "context.first",
                own,
                format!("as `{}`, which it follows", fit.first),
            ),
        }
    }

    fn sequences(&self, fit: &Fit) -> Decision<usize> {
        if fit.first == self.name {
            return fit.max_seqs.clone();
        }
        pin_or(
            self.pins.max_seqs.as_ref(),
            "seqs.first",
            fit.max_seqs.value,
            format!("as `{}`: each sequence passes through all stages", fit.first),
        )
    }
}

/// What each stage's memory depends on.
pub(super) fn demands<'a>(choices: &[Choice<'a>], teams: &[Threads], asked: &Asked) -> Vec<StageDemand<'a>> {
    choices
        .iter()
        .zip(teams)
        .map(|(choice, team)| StageDemand {
            stage: choice.spec.clone(),
            held: choice.held.clone(),
            kv_dtype: choice.kv_dtype.value,
            kv_pinned: choice.pins.kv_bytes.as_ref().map(|pin| pin.value),
            prefill_batch: choice.rows(asked),
            threads: own_threads(choice.spec, team),
        })
        .collect()
}

/// Workers that a stage brings along: none where it runs on another's team.
pub(super) fn own_threads(spec: &StageSpec<'_>, team: &Threads) -> usize {
    match spec.rhythm {
        Rhythm::Own => team.threads.value,
        Rhythm::Within(_) => 0,
    }
}

/// With a priority on fidelity the cache keeps f32 where that costs neither context nor sequences. Gives the fit that
/// goes with it, and sets the type in the choices and the demand; else leaves both as they are.
pub(super) fn exact_cache(
    choices: &mut [Choice<'_>],
    demand: &mut Demand<'_>,
    asked: &Asked,
    pins: &ContextPins,
    room: &Room,
) -> Option<Fit> {
    if !matches!(asked.priority(), Priority::Quality | Priority::Agentic) {
        return None;
    }
    let open: Vec<usize> = (0..choices.len())
        .filter(|&at| choices[at].pins.kv_dtype.is_none() && choices[at].kv_dtype.value != Dtype::F32)
        .filter(|&at| choices[at].spec.network.is_some())
        .collect();
    if open.is_empty() {
        return None;
    }
    let mut wider = demand.clone();
    for &at in &open {
        wider.stages[at].kv_dtype = Dtype::F32;
    }
    let without_force = ContextPins {
        force: false,
        ..pins.clone()
    };
    let fit = context::fit(&wider, &asked.policy, &without_force, room)
        .ok()
        .filter(|fit| !fit.bound_by_memory);
    for &at in &open {
        choices[at].kv_dtype = dtype::exact(asked, fit.is_some());
    }
    if fit.is_some() {
        *demand = wider;
    }
    fit
}
