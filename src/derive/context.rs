//! Context length and number of sequences: what fits is served, what was asked for is honoured or refused.
//!
//! In: what memory depends on, the room there is, pins, policy. Out: context, sequences, cache bytes, warnings.
//! Invariant: a pinned value is never changed; an automatic context never gets shorter with more memory; every
//! admitted sequence has room for its whole context, so none is ever pushed out.

use std::collections::BTreeMap;

use super::decision::{Decision, Pin};
use super::memory::{Demand, Room, StageDemand};
use super::refuse;
use crate::base::{Bytes, Code, Problem};
use crate::config::Policy;
use crate::config::schema::Priority;
use crate::model::kv;

/// How a bound by memory begins.
const MEMORY: &str = "memory";

/// What somebody set about context and sequences.
#[derive(Clone, Debug, Default)]
pub struct ContextPins {
    /// Tokens of context; 0 = the model's maximum.
    pub context: Option<Pin<usize>>,
    /// Sequences at once.
    pub max_seqs: Option<Pin<usize>>,
    /// Bytes of KV cache.
    pub kv_bytes: Option<Pin<Bytes>>,
    /// Longest context of any stage.
    pub max_context: Option<Pin<usize>>,
    /// Most bytes of KV cache of all stages.
    pub kv_limit: Option<Pin<Bytes>>,
    /// Bytes of KV cache of every stage that has them set, by its name.
    pub caches: BTreeMap<String, Pin<Bytes>>,
    /// Rows of a pass of every stage that has them set, by its name.
    pub batches: BTreeMap<String, Pin<usize>>,
    /// Most memory.
    pub memory_limit: Option<Pin<Bytes>>,
    /// How much stays free, where a person set it in bytes.
    pub reserve_bytes: Option<Pin<Bytes>>,
    /// The key that says how much stays free, where a person set it.
    pub reserve_by: Option<String>,
    /// What matters most.
    pub priority: Priority,
    /// Go on although it does not fit.
    pub force: bool,
}

/// Context and sequences.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Tokens each sequence may use.
    pub context: Decision<usize>,
    /// Sequences at once.
    pub max_seqs: Decision<usize>,
    /// The stage they were chosen for.
    pub first: &'static str,
    /// Whether memory, and nothing else, kept context or sequences down.
    pub bound_by_memory: bool,
    /// What a person should know.
    pub warnings: Vec<Problem>,
}

/// Chooses for the first stage within `room`. Problems that do not depend on each other are reported together.
pub fn fit(
    demand: &Demand<'_>,
    policy: &Policy,
    pins: &ContextPins,
    room: &Room,
) -> Result<Fit, Vec<Problem>> {
    let case = Case {
        demand,
        policy,
        pins,
        room,
    };
    case.check_pins()?;
    let mut warnings = Vec::new();
    let context = match &pins.context {
        Some(pin) => case.explicit_context(pin, &mut warnings)?,
        None => case.automatic_context(&mut warnings)?,
    };
    let max_seqs = case.sequences(context.value)?;
    let by_memory = |bound: &Option<String>| bound.as_deref().is_some_and(|by| by.starts_with(MEMORY));
    Ok(Fit {
        first: case.first(),
        bound_by_memory: by_memory(&context.bounded_by) || by_memory(&max_seqs.bounded_by),
        context,
        max_seqs,
        warnings,
    })
}

/// The cache of a stage, given the context and the sequences that were chosen.
#[must_use]
pub fn kv_bytes(
    stage: &StageDemand<'_>,
    pin: Option<&Pin<Bytes>>,
    context: usize,
    max_seqs: usize,
) -> Decision<Bytes> {
    let computed = stage.kv_computed(context, max_seqs);
    let own = stage.context(context);
    let sequences = counted(max_seqs, "sequence");
    match pin {
        Some(pin) => Decision::pinned(
            pin,
            format!(
                "set by {}; {max_seqs} × {own} tokens use {computed} of it",
                pin.layer
            ),
        ),
        None if stage.stage.network.is_none() => Decision::derived(
            computed,
            "kv.demand",
            "this network keeps no keys and values; what it carries along is in the ledger as `state`",
        ),
        None => Decision::derived(
            computed,
            "kv.demand",
            format!(
                "{sequences} × {own} tokens in blocks of {}, {} a sequence; every sequence owns its slots, so no headroom is needed",
                kv::BLOCK,
                stage.kv_computed(context, 1)
            ),
        ),
    }
}

struct Case<'a> {
    demand: &'a Demand<'a>,
    policy: &'a Policy,
    pins: &'a ContextPins,
    room: &'a Room,
}

impl Case<'_> {
    /// The stage that context and sequences are chosen for.
    fn first(&self) -> &'static str {
        self.demand.stages.first().map_or("", |stage| stage.stage.name)
    }

    /// The model's own longest context.
    fn model_maximum(&self) -> usize {
        let first = self.demand.stages.first();
        first.map_or(1, |stage| stage.context(usize::MAX)).max(1)
    }

    /// Sequences that must fit in any case.
    fn least_seqs(&self) -> usize {
        self.pins.max_seqs.as_ref().map_or(1, |pin| pin.value.max(1))
    }

    fn fits(&self, context: usize, seqs: usize) -> bool {
        self.fits_with(self.demand, context, seqs)
    }

    fn fits_with(&self, demand: &Demand<'_>, context: usize, seqs: usize) -> bool {
        demand.fits(context, seqs, self.room.usable())
            && self
                .pins
                .kv_limit
                .as_ref()
                .is_none_or(|limit| demand.kv(context, seqs) <= limit.value)
    }

    fn largest_context(&self, seqs: usize, limit: usize) -> Option<usize> {
        super::memory::largest(limit, |context| self.fits(context, seqs))
    }

    fn check_pins(&self) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        if let Some(pin) = self.pins.max_seqs.as_ref().filter(|pin| pin.value == 0) {
            problems.push(
                Problem::new(
                    Code::BadValue,
                    format!("{} asks for no sequence at all", pin.named()),
                    "use at least 1, or remove the key",
                )
                .at(pin.place.clone()),
            );
        }
        if let (Some(pin), Some(limit)) = (&self.pins.kv_bytes, &self.pins.kv_limit)
            && pin.value > limit.value
        {
            problems.push(above(
                pin,
                &pin.value.to_string(),
                limit,
                &limit.value.to_string(),
            ));
        }
        let wanted = self.pins.context.as_ref().map(|pin| (pin, self.wanted(pin)));
        if let (Some((pin, wanted)), Some(limit)) = (wanted, &self.pins.max_context)
            && wanted > limit.value
        {
            problems.push(above(
                pin,
                &format!("{wanted} tokens"),
                limit,
                &limit.value.to_string(),
            ));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// Tokens that a pin asks for; 0 is the model's own maximum.
    fn wanted(&self, pin: &Pin<usize>) -> usize {
        if pin.value == 0 {
            self.model_maximum()
        } else {
            pin.value
        }
    }

    fn explicit_context(
        &self,
        pin: &Pin<usize>,
        warnings: &mut Vec<Problem>,
    ) -> Result<Decision<usize>, Vec<Problem>> {
        let maximum = self.model_maximum();
        let wanted = self.wanted(pin);
        let mut decision = Decision::pinned(pin, format!("set by {}", pin.layer));
        if pin.value == 0 {
            decision.value = maximum;
            decision.because = format!("{} asks for the model's maximum, {maximum} tokens", pin.named());
        }
        if wanted > maximum {
            let problem = |severe: bool| {
                let make = if severe { Problem::new } else { Problem::warning };
                make(
                    Code::ContextTooLong,
                    format!(
                        "{} asks for {wanted} tokens, but the model was trained for {maximum}",
                        pin.named()
                    ),
                    format!(
                        "use {} or less{}",
                        pin.written(maximum),
                        if severe { ", or add `--force`" } else { "" }
                    ),
                )
                .why("beyond its training a model's answers fall apart")
                .at(pin.place.clone())
            };
            if !self.pins.force {
                return Err(vec![problem(true)]);
            }
            warnings.push(problem(false));
        }
        if !self.fits(wanted, self.least_seqs()) {
            let largest = self.largest_context(self.least_seqs(), wanted);
            let problem = refuse::context(&self.shortage(wanted), pin, largest);
            if !self.pins.force {
                return Err(vec![problem]);
            }
            warnings.push(refuse::forced(problem));
        }
        Ok(decision)
    }

    fn automatic_context(&self, warnings: &mut Vec<Problem>) -> Result<Decision<usize>, Vec<Problem>> {
        let maximum = self.model_maximum();
        let agentic = self.pins.priority == Priority::Agentic;
        let mut wanted = maximum;
        let mut bound = None;
        if let Some(limit) = self
            .pins
            .max_context
            .as_ref()
            .filter(|limit| limit.value < wanted)
        {
            wanted = limit.value.max(1);
            bound = Some(limit.named());
        }
        // With the priority `agentic` one sequence gets all the context that fits.
        if !agentic && self.policy.context_cap < wanted {
            wanted = self.policy.context_cap.max(1);
            bound = Some("`policy.context_cap`".to_owned());
        }
        let floor = self.policy.context_floor.min(wanted);
        let fitting = self.largest_context(self.least_seqs(), wanted);
        let context = match fitting {
            Some(fits) if fits >= floor => {
                if fits < wanted {
                    bound = Some(format!(
                        "{MEMORY}: {} available less {} reserve",
                        self.room.available, self.room.reserve
                    ));
                }
                fits
            }
            _ => {
                let problem = refuse::memory(&self.shortage(floor), fitting);
                if !self.pins.force {
                    return Err(vec![problem]);
                }
                warnings.push(refuse::forced(problem));
                bound = Some(format!("{MEMORY}: even the shortest context exceeds it"));
                floor
            }
        };
        if context < maximum {
            let by = bound.clone().unwrap_or_else(|| "a limit".to_owned());
            let fits = self.largest_context(self.least_seqs(), maximum);
            warnings.push(
                Problem::warning(
                    Code::ContextCapped,
                    format!("the context is {context} tokens, the model's own is {maximum}; bounded by {by}"),
                    self.longer(context, fits),
                )
                .with(serde_json::json!({
                    "context": context,
                    "context_train": maximum,
                    "largest_context": fits,
                    "kv_bytes": self.demand.kv(context, self.least_seqs()),
                    "kv_bytes_at_train": self.demand.kv_computed(maximum, self.least_seqs()),
                })),
            );
        }
        let because = format!(
            "the least of the model's {maximum}, {} and what fits ({}), for {} of cache",
            if agentic {
                "no policy cap (`priority: agentic`)".to_owned()
            } else {
                format!("the policy's {}", self.policy.context_cap)
            },
            fitting.map_or_else(
                || "nothing".to_owned(),
                |fits| if fits >= wanted {
                    "all of it".to_owned()
                } else {
                    fits.to_string()
                }
            ),
            self.demand.kv(context, self.least_seqs())
        );
        Ok(Decision::derived(context, "context.automatic", because).bounded(bound))
    }

    fn sequences(&self, context: usize) -> Result<Decision<usize>, Vec<Problem>> {
        if let Some(pin) = &self.pins.max_seqs {
            // The context was chosen with this many sequences; a pinned context was checked with them.
            return Ok(Decision::pinned(
                pin,
                format!("set by {}; each has room for {context} tokens", pin.layer),
            ));
        }
        let most = if self.pins.priority == Priority::Agentic {
            1
        } else {
            self.policy.max_seqs.max(1)
        };
        let fitting = super::memory::largest(most, |seqs| self.fits(context, seqs));
        let Some(fitting) = fitting else {
            // With `--force` the context was found too long above, and a warning says so.
            if !self.pins.force {
                return Err(vec![refuse::memory(
                    &self.shortage(context),
                    self.largest_context(1, context),
                )]);
            }
            return Ok(
                Decision::derived(1, "seqs.admission", "forced: not even one fits")
                    .bounded(Some(MEMORY.to_owned())),
            );
        };
        let bound = if fitting < most {
            Some(format!("{MEMORY}: {} more do not fit", most - fitting))
        } else {
            None
        };
        Ok(Decision::derived(
            fitting,
            "seqs.admission",
            format!(
                "each sequence owns its cache for {context} tokens ({}), so none is ever pushed out; policy allows {most}, {fitting} fit",
                self.demand.kv_computed(context, 1)
            ),
        )
        .bounded(bound))
    }

    /// How a longer context comes about than the `context` that was chosen, of which `fits` would fit.
    fn longer(&self, context: usize, fits: Option<usize>) -> String {
        let Some(fits) = fits.filter(|&fits| fits > context) else {
            return "more memory, a smaller model or fewer sequences allow a longer one".to_owned();
        };
        match self.pins.max_context.as_ref().filter(|limit| limit.value < fits) {
            Some(limit) if limit.value <= context => format!(
                "{} or less in its place allows a longer one; up to {fits} fit this machine",
                limit.written(fits)
            ),
            Some(limit) => format!(
                "`--context N` sets another, up to {} as {} says; up to {fits} fit this machine",
                limit.value,
                limit.named()
            ),
            None => format!("`--context N` sets another; up to {fits} fit this machine"),
        }
    }

    fn shortage(&self, context: usize) -> refuse::Shortage {
        let seqs = self.least_seqs();
        let (enlarged, small_caches) = self.enlarged(context, seqs);
        let peak = enlarged.peak(context, seqs);
        // Where the machine has too little too, it is the machine's memory that is told.
        let machine = self.room.bounds.without_set().room();
        let room = if machine.usable() < peak && !machine.bounds.unknown() {
            &machine
        } else {
            self.room
        };
        refuse::Shortage {
            ledger: enlarged.ledger(context, seqs, room),
            bounds: self.room.bounds,
            memory_limit: self.pins.memory_limit.clone(),
            context,
            max_seqs: seqs,
            seqs_pin: self.pins.max_seqs.clone(),
            context_pin: self.pins.context.clone(),
            stage: self.first(),
            forced: self.pins.force,
            reserve_by: (self.pins.reserve_by.clone()).filter(|_| self.pins.reserve_bytes.is_none()),
            kv_needed: self.demand.kv_computed(context, seqs),
            smaller_pins: if small_caches.is_empty() {
                self.smaller_pins(context, seqs)
            } else {
                Vec::new()
            },
            small_caches,
            seqs_with_less: (seqs > 1)
                .then(|| super::memory::largest(seqs - 1, |seqs| self.fits(context, seqs)))
                .flatten(),
        }
    }

    /// The demand with each cache at least as large as it has to be, and the sizes that somebody set too small.
    fn enlarged(&self, context: usize, seqs: usize) -> (Demand<'_>, Vec<(Pin<Bytes>, Bytes)>) {
        let mut demand = self.demand.clone();
        let mut small = Vec::new();
        for stage in &mut demand.stages {
            let needed = stage.kv_computed(context, seqs);
            let pin = self.pins.caches.get(stage.stage.name);
            if let Some(pin) = pin.filter(|pin| pin.value < needed) {
                stage.kv_pinned = Some(needed);
                small.push((pin.clone(), needed));
            }
        }
        let needed = demand.kv(context, seqs);
        let limit = self.pins.kv_limit.as_ref();
        small.extend(
            limit
                .filter(|pin| pin.value < needed)
                .map(|pin| (pin.clone(), needed)),
        );
        (demand, small)
    }

    /// Pins that cost memory, each with the largest value with which the plan fits, if there is one.
    fn smaller_pins(&self, context: usize, seqs: usize) -> Vec<String> {
        let peak = self.demand.peak(context, seqs);
        let over = peak.0.saturating_sub(self.room.usable().0);
        if over == 0 {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut fits = |written: String| found.push(format!("{written} is the largest that fits"));
        for (at, stage) in self.demand.stages.iter().enumerate() {
            if let Some(pin) = self.pins.caches.get(stage.stage.name) {
                let mut with = self.demand.clone();
                let value = Bytes(pin.value.0.saturating_sub(over));
                with.stages[at].kv_pinned = Some(value);
                if self.fits_with(&with, context, seqs) {
                    fits(pin.written(value.0));
                }
            }
            if let Some(pin) = self.pins.batches.get(stage.stage.name) {
                let largest = super::memory::largest(pin.value.saturating_sub(1), |rows| {
                    let mut with = self.demand.clone();
                    with.stages[at].prefill_batch = rows;
                    self.fits_with(&with, context, seqs)
                });
                if let Some(rows) = largest {
                    fits(pin.written(rows));
                }
            }
        }
        if let Some(pin) = &self.pins.reserve_bytes
            && let Some(bytes) = self.room.bounds.largest_reserve(peak)
        {
            fits(pin.written(bytes.0));
        }
        found
    }
}

/// A pin above a bound that somebody set too.
fn above<T, U>(pin: &Pin<T>, asked: &str, limit: &Pin<U>, allowed: &str) -> Problem {
    Problem::new(
        Code::PinUnmet,
        format!(
            "{} asks for {asked}, but {} allows {allowed}",
            pin.named(),
            limit.named()
        ),
        format!("use at most {}, or raise the limit", pin.written(allowed)),
    )
    .why("a pin above a limit contradicts it")
    .at(pin.place.clone())
}

/// `1 sequence`, `3 sequences`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
