//! Refusals for want of memory: what is short, by item, and what would fit.
//!
//! In: a ledger that does not fit, computed alternatives. Out: one problem with numbers for people and machines.
//! Invariant: a remedy names only values that were computed to fit.

use serde_json::json;

use super::decision::Pin;
use super::memory::Ledger;
use crate::base::{Bytes, Code, Problem, Severity};

/// A plan that does not fit.
#[derive(Clone, Debug)]
pub struct Shortage {
    /// Its ledger.
    pub ledger: Ledger,
    /// Its context.
    pub context: usize,
    /// Its sequences.
    pub max_seqs: usize,
    /// A bound on the cache that somebody set.
    pub kv_limit: Option<(String, Bytes)>,
    /// Cache that context and sequences need.
    pub kv_needed: Bytes,
    /// Fewer sequences that would fit the same context.
    pub seqs_with_less: Option<usize>,
    /// Where sequences were set.
    pub seqs_pin: Option<Pin<usize>>,
    /// Where the context was set.
    pub context_pin: Option<Pin<usize>>,
    /// The stage whose context it is.
    pub stage: &'static str,
    /// The key that says how much stays free, where a person set it.
    pub reserve_by: Option<String>,
    /// Whether going on was asked for already.
    pub forced: bool,
}

impl Shortage {
    fn needed(&self) -> Bytes {
        Bytes(
            self.ledger
                .peak_bytes
                .0
                .saturating_add(self.ledger.reserve_bytes.0),
        )
    }

    fn short(&self) -> Bytes {
        Bytes(self.needed().0.saturating_sub(self.ledger.available_bytes.0))
    }

    /// `weights 1.2 GiB, kv 448.0 MiB, …`, anonymous items only.
    fn items(&self) -> String {
        let several = self.ledger.several_stages();
        let listed: Vec<String> = self
            .ledger
            .items
            .iter()
            .filter(|item| item.anonymous && item.steady && item.bytes.0 > 0)
            .map(|item| format!("{} {}", item.label(several), item.bytes))
            .collect();
        listed.join(", ")
    }

    /// What is short, in one sentence.
    fn what(&self) -> String {
        if let Some((name, limit)) = &self.kv_limit
            && self.kv_needed > *limit
        {
            return format!(
                "{} × {} tokens need {} of KV cache, but {name} allows {limit}",
                self.max_seqs, self.context, self.kv_needed
            );
        }
        format!(
            "{} × {} tokens need {}, but {} is available: {} short",
            self.max_seqs,
            self.context,
            self.needed(),
            self.ledger.available_bytes,
            self.short()
        )
    }

    fn why(&self) -> String {
        format!(
            "the plan would hold {}; {} stay free for the system",
            self.items(),
            self.ledger.reserve_bytes
        )
    }

    fn details(&self, largest: Option<usize>) -> serde_json::Value {
        json!({
            "needed_bytes": self.needed(),
            "available_bytes": self.ledger.available_bytes,
            "short_bytes": self.short(),
            "reserve_bytes": self.ledger.reserve_bytes,
            "context": self.context,
            "max_seqs": self.max_seqs,
            "kv_bytes": self.kv_needed,
            "largest_context": largest,
            "fewer_seqs_that_fit": self.seqs_with_less,
            "items": self.ledger.items.iter().map(|item| json!({
                "name": item.name, "stage": item.stage, "bytes": item.bytes, "anonymous": item.anonymous, "steady": item.steady,
            })).collect::<Vec<_>>(),
        })
    }

    /// What would fit, in the words of whoever set what does not.
    fn remedies(&self, largest: Option<usize>) -> String {
        let mut remedies = Vec::new();
        if let Some(largest) = largest.filter(|&n| n < self.context) {
            let written = self
                .context_pin
                .as_ref()
                .map_or_else(|| format!("`--context {largest}`"), |pin| pin.written(largest));
            remedies.push(format!("{written} is the longest that fits"));
        }
        if let Some(seqs) = self.seqs_with_less {
            let written = self.seqs_pin.as_ref().map_or_else(
                || format!("`--set stages.{}.max_seqs={seqs}`", self.stage),
                |pin| pin.written(seqs),
            );
            remedies.push(format!("{written} fits with {} tokens", self.context));
        }
        if largest.is_none() && self.seqs_with_less.is_none() {
            remedies.push(format!(
                "free {}, or use a smaller model or one with fewer bits a weight",
                self.short()
            ));
        }
        if let Some(by) = &self.reserve_by {
            remedies.push(format!("let less stay free: {by}"));
        }
        if !self.forced {
            remedies.push("`--force` goes on all the same".to_owned());
        }
        remedies.join("; ")
    }
}

/// An explicit context that does not fit.
#[must_use]
pub fn context(shortage: &Shortage, pin: &Pin<usize>, largest: Option<usize>) -> Problem {
    Problem::new(
        Code::ContextTooLong,
        format!("{} cannot be met: {}", pin.named(), shortage.what()),
        shortage.remedies(largest),
    )
    .why(shortage.why())
    .at(pin.place.clone())
    .with(shortage.details(largest))
}

/// A model that does not fit with any context worth serving.
#[must_use]
pub fn memory(shortage: &Shortage, largest: Option<usize>) -> Problem {
    Problem::new(Code::MemoryShort, shortage.what(), shortage.remedies(largest))
        .why(shortage.why())
        .with(shortage.details(largest))
}

/// The same as a warning, because somebody asked to go on.
#[must_use]
pub fn forced(problem: Problem) -> Problem {
    Problem {
        severity: Severity::Warning,
        why: format!(
            "{}; going on as asked: the system may swap, or kill this process or another",
            problem.why
        ),
        ..problem
    }
}
