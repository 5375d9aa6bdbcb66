//! Derivation: a machine, a model and what somebody pinned in; every knob decided, with reasons, out.
//!
//! In: [`Hardware`], [`ModelCard`], `Layered`. Out: [`Draft`], which `Plan::settle` turns into a plan.
//! Invariant: pure (no file, clock or environment); fills blanks only: a pin is kept, or refused with a remedy.

pub mod asked;
pub mod context;
pub mod cores;
pub mod deadlines;
pub mod decision;
pub mod dtype;
pub mod isa;
pub mod knobs;
pub mod memory;
pub mod nodes;
pub mod refuse;
pub mod room;
pub mod server;
pub mod stages;
pub mod teams;
pub mod threads;
pub mod weight_path;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use asked::{Asked, DECODER, Options, StagePins};
pub use decision::{Decision, Origin, Pin};
pub use memory::{Ledger, LedgerItem};

use crate::base::{Bytes, Code, CpuSet, Dtype, Problem, Problems};
use crate::config::Layered;
use crate::model::{ModelCard, StageSpec};
use crate::probe::Hardware;
use crate::probe::hardware::NumaNode;
use decision::pin_or;

/// Every knob decided.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The model.
    pub model: ModelDraft,
    /// Class of the machine.
    pub hardware_class: Decision<String>,
    /// The probe's fingerprint.
    pub fingerprint: Decision<String>,
    /// Stages by name.
    pub stages: BTreeMap<String, StageDraft>,
    /// HTTP side.
    pub server: server::ServerDraft,
    /// Phase deadlines.
    pub deadlines: deadlines::DeadlineDraft,
    /// Where the memory goes.
    pub memory: Ledger,
    /// What bounds the memory, in words.
    pub memory_because: String,
    /// What a person should know.
    pub warnings: Vec<Problem>,
}

/// The model as planned for.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the plan's own names")]
pub struct ModelDraft {
    pub name: Decision<String>,
    pub family: Decision<String>,
    pub profile: Decision<String>,
    pub files: Decision<Vec<PathBuf>>,
    pub chat_template: Decision<String>,
    pub sampling: server::SamplingDraft,
    /// The card, with a pinned chat template in it.
    pub card: Box<ModelCard>,
}

/// One stage.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the plan's own names")]
pub struct StageDraft {
    pub threads: Decision<usize>,
    pub cpus: Decision<CpuSet>,
    pub pin: Decision<bool>,
    pub confine: Decision<bool>,
    pub isa_cap: Decision<String>,
    pub dtype: Decision<Dtype>,
    pub weight_path: Decision<String>,
    pub kv_dtype: Decision<Dtype>,
    pub context: Decision<usize>,
    pub max_seqs: Decision<usize>,
    pub kv_bytes: Decision<Bytes>,
    pub kv_block: Decision<usize>,
    pub prefill_batch: Decision<usize>,
    pub huge_pages: Decision<bool>,
}

/// Decides every knob from a machine, a model and the merged configuration.
pub fn derive(hardware: &Hardware, card: &ModelCard, layered: &Layered) -> Result<Draft, Problems> {
    derive_with(hardware, card, layered, Options::default())
}

/// [`derive`](fn@derive), going on or refusing as `options` say.
pub fn derive_with(
    hardware: &Hardware,
    card: &ModelCard,
    layered: &Layered,
    options: Options,
) -> Result<Draft, Problems> {
    let mut draft = decide(hardware, card, &Asked::from_layered(layered)?, options)?;
    draft.warnings.extend(layered.warnings.iter().cloned());
    Ok(draft)
}

/// Decides every knob. All problems are reported together: where a pin cannot be met, the search goes on as if it
/// were not there.
pub fn decide(
    hardware: &Hardware,
    card: &ModelCard,
    asked: &Asked,
    options: Options,
) -> Result<Draft, Problems> {
    let specs = card.stages();
    let mut found = Found::default();
    check_model(card, &specs, asked, &mut found);
    let mut choices: Vec<stages::Choice<'_>> = specs
        .iter()
        .map(|spec| stages::Choice::of(hardware, spec, card, asked, &mut found))
        .collect();
    let teams = found.keep_or(divide(hardware, &specs, asked, options, None), || {
        divide(hardware, &specs, &asked.without_workers(), options, None)
    })?;
    let room = memory::room(
        hardware,
        &asked.policy,
        asked.limits.memory_bytes.as_ref().map(|pin| pin.value),
        asked.reserve.is_some(),
        options.credit,
    );
    let mut demand = memory::Demand::new(card, stages::demands(&choices, &teams, asked), &asked.policy);
    let first = choices.first().map_or(DECODER, |choice| choice.name);
    let context_pins = asked.context(first, options.force);
    let exact = stages::exact_cache(&mut choices, &mut demand, asked, &context_pins, &room);
    let fit = match exact {
        Some(fit) => Some(fit),
        None => found.keep(context::fit(&demand, &asked.policy, &context_pins, &room)),
    };
    // Without a fit the rest is still checked, against the context that was asked for.
    let context = fit.as_ref().map_or_else(
        || context_pins.context.as_ref().map_or(usize::MAX, |pin| pin.value),
        |fit| fit.context.value,
    );
    let max_seqs = fit.as_ref().map_or(1, |fit| fit.max_seqs.value);
    for choice in &choices {
        choice.check_against(context, max_seqs, &demand, asked, &mut found);
    }
    let server = found.keep(server::choose(
        hardware.environment,
        &asked.server,
        context,
        max_seqs,
    ));
    let (Some(fit), Some((server, server_warnings)), true) = (fit, server, found.problems.is_empty()) else {
        return Err(Problems(found.problems));
    };

    let placed = place(
        hardware,
        &specs,
        asked,
        options,
        teams,
        &demand,
        (context, max_seqs),
        room,
    )?;
    for (stage, team) in demand.stages.iter_mut().zip(&placed.teams) {
        stage.threads = stages::own_threads(&stage.stage, team);
    }
    let ledger = demand.ledger(context, max_seqs, &placed.room);
    let held: u64 = demand.stages.iter().map(|stage| stage.held.bytes).sum();

    let mut warnings = found.warnings;
    warnings.extend(fit.warnings.iter().cloned());
    warnings.extend(placed.warnings);
    warnings.extend(server_warnings);
    let mut drafts = BTreeMap::new();
    for ((choice, team), stage) in choices.into_iter().zip(placed.teams).zip(&demand.stages) {
        let (name, draft) = choice.settle(hardware, team, stage, &fit, asked, &mut warnings);
        drafts.insert(name.to_owned(), draft);
    }
    Ok(Draft {
        model: model(card, asked),
        hardware_class: Decision::derived(
            hardware.class.as_str().to_owned(),
            "probe.class",
            "the kind of machine found",
        ),
        fingerprint: Decision::derived(
            hardware.fingerprint.clone(),
            "probe.fingerprint",
            "what must match for a measurement to be used again",
        ),
        stages: drafts,
        server,
        deadlines: deadlines::choose(card.file_bytes, Bytes(held), &asked.policy, &asked.deadlines),
        memory: ledger,
        memory_because: placed.because,
        warnings,
    })
}

/// Problems and warnings on the way to a draft.
#[derive(Debug, Default)]
struct Found {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Found {
    /// The value, or `None` after noting why there is none.
    fn keep<T>(&mut self, result: Result<T, impl Into<Problems>>) -> Option<T> {
        result
            .map_err(|problems| self.problems.extend(problems.into().0))
            .ok()
    }

    /// The value, or after noting why there is none what `without` the pins gives.
    fn keep_or<T>(
        &mut self,
        result: Result<T, Vec<Problem>>,
        without: impl FnOnce() -> Result<T, Vec<Problem>>,
    ) -> Result<T, Problems> {
        match self.keep(result) {
            Some(value) => Ok(value),
            None => without().map_err(|_| Problems(std::mem::take(&mut self.problems))),
        }
    }
}

fn check_model(card: &ModelCard, specs: &[StageSpec<'_>], asked: &Asked, found: &mut Found) {
    if let Some(pin) = asked.family.as_ref().filter(|pin| pin.value != card.family) {
        found.problems.push(
            Problem::new(
                Code::PinUnmet,
                format!(
                    "{} is for the family `{}`, but the model is of `{}`",
                    pin.named(),
                    pin.value,
                    card.family
                ),
                "use a profile for this model, or remove the key",
            )
            .at(pin.place.clone()),
        );
    }
    let known: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
    for name in asked.stages.keys().filter(|name| !known.contains(&name.as_str())) {
        let mut problem = Problem::new(
            Code::PinUnmet,
            format!("the configuration pins the stage `{name}`, which this model does not have"),
            format!(
                "this model's stages are `{}`: remove the others",
                known.join("`, `")
            ),
        );
        problem.place = asked.stage(name).any_place();
        found.problems.push(problem);
    }
}

fn divide(
    hardware: &Hardware,
    specs: &[StageSpec<'_>],
    asked: &Asked,
    options: Options,
    node: Option<&NumaNode>,
) -> Result<Vec<threads::Threads>, Vec<Problem>> {
    let members: Vec<teams::Member<'_>> = specs
        .iter()
        .map(|stage| teams::Member {
            stage,
            pins: asked.threads(stage.name, options.force),
        })
        .collect();
    teams::divide(hardware, &asked.policy, &members, node)
}

/// Workers in their final place and the memory that goes with it.
struct Placed {
    teams: Vec<threads::Threads>,
    room: memory::Room,
    because: String,
    warnings: Vec<Problem>,
}

/// Moves derived workers onto one NUMA node where that serves. The context was decided before and stays: binding
/// must never shorten it.
#[expect(clippy::too_many_arguments, reason = "one call, and each is its own thing")]
fn place(
    hardware: &Hardware,
    specs: &[StageSpec<'_>],
    asked: &Asked,
    options: Options,
    teams: Vec<threads::Threads>,
    demand: &memory::Demand<'_>,
    (context, max_seqs): (usize, usize),
    room: memory::Room,
) -> Result<Placed, Problems> {
    let source = if hardware.memory.available_source.is_empty() {
        "the kernel".to_owned()
    } else {
        hardware.memory.available_source.clone()
    };
    let kept = asked.kept(&room);
    let mut placed = Placed {
        teams,
        because: format!("{} may be used, by {source}; {kept}", room.available),
        room,
        warnings: Vec::new(),
    };
    if asked.stages.values().any(|pins| pins.cpus.is_some()) {
        return Ok(placed);
    }
    let usable = threads::usable(hardware)?;
    let own = |team: &threads::Threads, spec: &StageSpec<'_>| stages::own_threads(spec, team);
    let total: usize = placed
        .teams
        .iter()
        .zip(specs)
        .map(|(team, spec)| own(team, spec))
        .sum();
    let pinned = asked.stages.values().any(|pins| pins.threads.is_some());
    let wanted = if pinned {
        nodes::Wanted::Exactly(total)
    } else {
        nodes::Wanted::Derived(total)
    };
    let kept_share = room.reserve.0 as f64 / room.available.0.max(1) as f64;
    let peak = demand.peak(context, max_seqs);
    match nodes::choose(hardware, &usable, wanted, peak, kept_share) {
        nodes::Choice::Single => {}
        nodes::Choice::Node(node, because) => {
            placed.teams = divide(hardware, specs, asked, options, Some(node))?;
            if let Some(free) = node.available_bytes.filter(|free| *free < placed.room.available) {
                placed.room.available = free;
                placed.room.reserve = nodes::reserve(free, kept_share);
                placed.because = format!(
                    "{free} are free on NUMA node {}, where the workers stay; {} of it stay free, its share of the whole machine's",
                    node.id, placed.room.reserve
                );
            }
            for team in &mut placed.teams {
                team.cpus.because = format!("{}; {because}", team.cpus.because);
                team.cpus.bounded_by = Some(format!("NUMA node {}", node.id));
            }
        }
        nodes::Choice::All(because) => {
            let first = specs.first().map_or(DECODER, |spec| spec.name);
            placed.warnings.push(
                Problem::warning(
                    Code::HardwareLimit,
                    because.clone(),
                    format!("pin `stages.{first}.cpus` to the CPUs of one node if answers are faster so"),
                )
                .why("memory of another node is slower to read"),
            );
            for team in &mut placed.teams {
                team.cpus.because = format!("{}; {because}", team.cpus.because);
            }
        }
    }
    for team in &mut placed.teams {
        placed.warnings.append(&mut team.warnings);
    }
    Ok(placed)
}

fn model(card: &ModelCard, asked: &Asked) -> ModelDraft {
    let mut card = Box::new(card.clone());
    let chat_template = match (&asked.chat_template, &card.chat_template) {
        (Some(pin), _) => Decision {
            value: "pinned".to_owned(),
            because: format!("set by {}, instead of the model's own", pin.layer),
            bounded_by: None,
            origin: pin.origin(),
        },
        (None, Some(_)) => Decision::derived(
            "model".to_owned(),
            "model.chat_template",
            "the model's own files hold one",
        ),
        (None, None) => Decision::derived(
            "family".to_owned(),
            "model.chat_template",
            format!(
                "the model's own files hold none, so the usual one of the family `{}` is used; `model.chat_template` sets another",
                card.family
            ),
        ),
    };
    if let Some(pin) = &asked.chat_template {
        card.chat_template = Some(pin.value.clone());
    }
    ModelDraft {
        name: pin_or(
            asked.name.as_ref(),
            "model.name",
            card.name.clone(),
            "the file's or folder's own name",
        ),
        family: match &asked.family {
            Some(pin) => Decision::pinned(pin, format!("set by {}; the model is of this family", pin.layer)),
            None => Decision::derived(
                card.family.clone(),
                "model.family",
                "stated in the model's header",
            ),
        },
        profile: Decision::derived(
            asked.profile.clone(),
            "config.profile",
            "profiles that were read, lowest first",
        ),
        files: Decision::derived(
            card.files.clone(),
            "model.files",
            match card.files.len() {
                1 => format!("1 file with {} of weights", card.file_bytes),
                count => format!("{count} files with {} of weights", card.file_bytes),
            },
        ),
        chat_template,
        sampling: server::sampling(&asked.sampling, &card.sampling),
        card,
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
