//! Derivation: a machine, a model and what somebody pinned in; every knob decided, with reasons, out.
//!
//! In: [`Hardware`], [`ModelCard`], `Layered`. Out: [`Draft`], which `Plan::settle` turns into a plan.
//! Invariant: pure (no file, clock or environment); fills blanks only: a pin is kept, or refused with a remedy.

pub mod asked;
pub mod context;
pub mod deadlines;
pub mod decision;
pub mod dtype;
pub mod isa;
pub mod knobs;
pub mod memory;
pub mod nodes;
pub mod refuse;
pub mod server;
pub mod threads;
pub mod weight_path;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use asked::{Asked, DECODER, Options};
pub use decision::{Decision, Origin, Pin};
pub use memory::{Ledger, LedgerItem};

use crate::base::{Bytes, Code, CpuSet, Dtype, Problem, Problems};
use crate::config::{Layered, Priority};
use crate::model::ModelCard;
use crate::probe::Hardware;
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

/// Decides every knob. Independent problems are reported together.
pub fn decide(
    hardware: &Hardware,
    card: &ModelCard,
    asked: &Asked,
    options: Options,
) -> Result<Draft, Problems> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut asked = asked.clone();
    asked.threads.force = options.force;
    asked.context.force = options.force;
    let asked = &asked;
    check_model(card, asked, &mut problems);
    warnings.extend(asked.priority.as_ref().and_then(without_effect));
    keep(knobs::check_device(asked.device.as_ref(), DECODER), &mut problems);
    let isa = keep(isa::cap(hardware, asked.isa_cap.as_ref()), &mut problems);
    let dtype = keep(
        dtype::compute(card, &hardware.isa, DECODER, asked.dtype.as_ref()),
        &mut problems,
    );
    let kv_dtype = keep(dtype::kv(card, DECODER, asked.kv_dtype.as_ref()), &mut problems);
    let held = weight_path::held_weights(card);
    let path = keep(
        weight_path::choose(&held, DECODER, asked.weight_path.as_ref()),
        &mut problems,
    );
    let workers = keep(
        threads::choose(hardware, &asked.policy, &asked.threads, None),
        &mut problems,
    );
    let kv_block = keep(knobs::kv_block(DECODER, asked.kv_block.as_ref()), &mut problems);
    let (
        Some((isa_cap, isa_warnings)),
        Some(dtype),
        Some(kv_dtype),
        Some(weight_path),
        Some(workers),
        Some(kv_block),
    ) = (isa, dtype, kv_dtype, path, workers, kv_block)
    else {
        return Err(Problems(problems));
    };
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    warnings.extend(isa_warnings);

    let mut demand = memory::Demand::new(card, &held, &asked.policy, kv_dtype.value, workers.threads.value);
    if let Some(pin) = &asked.prefill_batch {
        demand.prefill_batch = pin.value.max(1);
    }
    let limit = asked.memory_limit.as_ref().map(|pin| pin.value);
    let (available, reserve) = memory::room(hardware, &asked.policy, limit, options.credit);
    let fit = context::fit(&demand, &asked.policy, &asked.context, available, reserve)?;
    warnings.extend(fit.warnings);
    let (context, max_seqs) = (fit.context.value, fit.max_seqs.value);
    demand.kv_pinned = asked.context.kv_bytes.as_ref().map(|pin| pin.value);

    let placed = place(
        hardware,
        asked,
        workers,
        &demand,
        (context, max_seqs),
        (available, reserve),
    )?;
    warnings.extend(placed.warnings);
    demand.threads = placed.workers.threads.value;
    warnings.extend(placed.workers.warnings);
    let ledger = demand.ledger(context, max_seqs, placed.available, reserve);

    let prefill_batch = knobs::prefill_batch(&asked.policy, context, asked.prefill_batch.as_ref());
    let (huge_pages, huge_warning) = knobs::huge_pages(hardware, &asked.policy, asked.huge_pages.as_ref());
    warnings.extend(huge_warning);
    let server = server::choose(
        hardware.environment,
        &asked.server,
        context,
        max_seqs,
        &mut warnings,
    )?;
    let stage = StageDraft {
        threads: placed.workers.threads,
        cpus: placed.workers.cpus,
        pin: placed.workers.pin,
        confine: placed.workers.confine,
        isa_cap,
        dtype,
        weight_path,
        kv_dtype,
        context: fit.context,
        max_seqs: fit.max_seqs,
        kv_bytes: fit.kv_bytes,
        kv_block,
        prefill_batch,
        huge_pages,
    };
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
        stages: BTreeMap::from([(DECODER.to_owned(), stage)]),
        server,
        deadlines: deadlines::choose(card.file_bytes, &asked.policy, &asked.deadlines),
        memory: ledger,
        memory_because: placed.memory_because,
        warnings,
    })
}

/// The value, or `None` after noting the problem.
fn keep<T>(result: Result<T, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}

fn check_model(card: &ModelCard, asked: &Asked, problems: &mut Vec<Problem>) {
    if let Some(pin) = asked.family.as_ref().filter(|pin| pin.value != card.family) {
        problems.push(
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
}

/// A priority that nothing follows yet is said rather than swallowed.
fn without_effect(pin: &Pin<Priority>) -> Option<Problem> {
    matches!(pin.value, Priority::Quality | Priority::Fast).then(|| {
        Problem::warning(
            Code::PinUnmet,
            format!(
                "{} changes nothing: there is one weight path, which keeps the weights as they are",
                pin.named()
            ),
            "choose a model file with more or fewer bits a weight, or remove the key",
        )
        .at(pin.place.clone())
    })
}

/// Workers in their final place and the memory that goes with it.
struct Placed {
    workers: threads::Threads,
    available: Bytes,
    memory_because: String,
    warnings: Vec<Problem>,
}

/// Moves derived workers onto one NUMA node where that serves. The context was decided before and stays: binding
/// must never shorten it.
fn place(
    hardware: &Hardware,
    asked: &Asked,
    workers: threads::Threads,
    demand: &memory::Demand<'_>,
    (context, max_seqs): (usize, usize),
    (available, reserve): (Bytes, Bytes),
) -> Result<Placed, Problem> {
    let source = if hardware.memory.available_source.is_empty() {
        "the kernel".to_owned()
    } else {
        hardware.memory.available_source.clone()
    };
    let mut placed = Placed {
        workers,
        available,
        memory_because: format!(
            "{available} may be used, by {source}; {reserve} of it stay free for the system"
        ),
        warnings: Vec::new(),
    };
    if asked.threads.cpus.is_some() {
        return Ok(placed);
    }
    let usable = threads::usable(hardware)?;
    let wanted = match &asked.threads.threads {
        Some(pin) => nodes::Wanted::Exactly(pin.value),
        None => nodes::Wanted::Derived(placed.workers.threads.value),
    };
    let needed = Bytes(demand.peak(context, max_seqs).0.saturating_add(reserve.0));
    match nodes::choose(hardware, &usable, wanted, needed) {
        nodes::Choice::Single => {}
        nodes::Choice::Node(node, because) => {
            placed.workers = threads::choose(hardware, &asked.policy, &asked.threads, Some(node))?;
            if let Some(free) = node.available_bytes.filter(|free| *free < available) {
                placed.available = free;
                placed.memory_because = format!(
                    "{free} are free on NUMA node {}, where the workers stay; {reserve} of it stay free for the system",
                    node.id
                );
            }
            let cpus = &mut placed.workers.cpus;
            cpus.because = format!("{}; {because}", cpus.because);
            cpus.bounded_by = Some(format!("NUMA node {}", node.id));
        }
        nodes::Choice::All(because) => {
            placed.warnings.push(
                Problem::warning(
                    Code::HardwareLimit,
                    because.clone(),
                    "pin `stages.decoder.cpus` to the CPUs of one node if answers are faster so",
                )
                .why("memory of another node is slower to read"),
            );
            let cpus = &mut placed.workers.cpus;
            cpus.because = format!("{}; {because}", cpus.because);
        }
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
            format!("{} files with {} of weights", card.files.len(), card.file_bytes),
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
