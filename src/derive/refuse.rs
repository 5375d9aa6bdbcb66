//! Refusals for want of memory: what is short, by item, and what would fit.
//!
//! In: a ledger that does not fit, computed alternatives. Out: one problem with numbers for people and machines.
//! Invariant: a remedy names only values that were computed to fit.

use serde_json::json;

use super::decision::Pin;
use super::memory::Ledger;
use super::room::Bounds;
use crate::base::{Bytes, Code, Problem, Severity};

/// A plan that does not fit.
#[derive(Clone, Debug)]
pub struct Shortage {
    /// Its ledger, with each cache as large as it has to be.
    pub ledger: Ledger,
    /// What bounds the memory.
    pub bounds: Bounds,
    /// The limit on memory that somebody set.
    pub memory_limit: Option<Pin<Bytes>>,
    /// Its context.
    pub context: usize,
    /// Its sequences.
    pub max_seqs: usize,
    /// Sizes of caches that somebody set and that are too small, each with what it has to be.
    pub small_caches: Vec<(Pin<Bytes>, Bytes)>,
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
    /// Pins with the largest value with which the plan fits, as they are written.
    pub smaller_pins: Vec<String>,
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

    /// What is missing of memory, or of the cache that somebody set.
    fn short(&self) -> Bytes {
        let (needed, allowed) = match self.small_caches.first() {
            Some((pin, needed)) => (*needed, pin.value),
            None => (self.needed(), self.ledger.available_bytes),
        };
        Bytes(needed.0.saturating_sub(allowed.0))
    }

    /// The limit on memory that somebody set, where the plan exceeds it.
    fn exceeded_limit(&self) -> Option<&Pin<Bytes>> {
        let limit = self.memory_limit.as_ref();
        limit.filter(|pin| pin.value < self.ledger.peak_bytes)
    }

    /// Whether the machine itself, without a limit that somebody set, has too little.
    fn machine_is_short(&self) -> bool {
        !self.bounds.unknown() && self.bounds.without_set().room().usable() < self.ledger.peak_bytes
    }

    /// The key that alone is to blame.
    fn blamed(&self) -> Option<&Pin<Bytes>> {
        let cache = self.small_caches.first().map(|(pin, _)| pin);
        cache.or_else(|| self.exceeded_limit().filter(|_| !self.machine_is_short()))
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
        let tokens = format!("{} × {} tokens", self.max_seqs, self.context);
        if let Some((pin, needed)) = self.small_caches.first() {
            let [needed, allowed, _] = agreeing(*needed, pin.value);
            return format!(
                "{tokens} need {needed} of KV cache, but {} allows {allowed}",
                pin.named()
            );
        }
        let [needed, available, short] = agreeing(self.needed(), self.ledger.available_bytes);
        if let Some(pin) = self.blamed() {
            return format!(
                "{tokens} need {needed}, but {} allows {available}: {short} short",
                pin.named()
            );
        }
        if self.bounds.unknown() && self.memory_limit.is_none() {
            return format!(
                "{tokens} need {}, but how much memory this machine has is unknown",
                self.ledger.peak_bytes
            );
        }
        format!("{tokens} need {needed}, but {available} is available: {short} short")
    }

    fn why(&self) -> String {
        let held = format!("the plan would hold {}", self.items());
        if self.ledger.reserve_bytes.0 == 0 {
            return held;
        }
        format!("{held}; {} stay free for the system", self.ledger.reserve_bytes)
    }

    fn details(&self, largest: Option<usize>) -> serde_json::Value {
        json!({
            "needed_bytes": self.needed(),
            "available_bytes": self.ledger.available_bytes,
            "short_bytes": self.short(),
            "free_bytes": self.machine_is_short().then(|| self.bounds.to_free(self.ledger.peak_bytes)).flatten(),
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
        let mut remedies: Vec<String> = self
            .small_caches
            .iter()
            .map(|(pin, needed)| format!("{} is the smallest that holds them", pin.written(needed.0)))
            .collect();
        if let Some(limit) = self.exceeded_limit() {
            let smallest = limit.written(self.ledger.peak_bytes.0);
            remedies.push(format!("{smallest} is the smallest limit that fits"));
        }
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
        remedies.extend(self.smaller_pins.iter().cloned());
        if largest.is_none() && self.seqs_with_less.is_none() {
            remedies.extend(self.more_memory());
        }
        if let Some(by) = self
            .reserve_by
            .as_ref()
            .filter(|_| self.small_caches.is_empty() && self.machine_is_short())
            .filter(|_| self.bounds.fits_without_reserve(self.ledger.peak_bytes))
        {
            remedies.push(format!("let less stay free: {by}"));
        }
        if !self.forced {
            remedies.push("`--force` goes on all the same".to_owned());
        }
        remedies.join("; ")
    }

    /// How the machine comes to have more memory, where it has too little.
    fn more_memory(&self) -> Option<String> {
        if self.bounds.unknown() && self.memory_limit.is_none() {
            return Some(format!(
                "pass a saved machine with `--hardware FILE`, or say how much may be used: `--set limits.memory_bytes={}` is the least that fits",
                self.ledger.peak_bytes.0
            ));
        }
        if !self.machine_is_short() {
            return None;
        }
        let smaller = "use a smaller model or one with fewer bits a weight";
        Some(match self.bounds.to_free(self.ledger.peak_bytes) {
            Some(bytes) => format!("free {}, or {smaller}", tenths(bytes, unit(bytes), true)),
            None => format!("all that this machine or its control group could free is not enough: {smaller}"),
        })
    }
}

const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];

/// The unit in which an amount is at least 1.
fn unit(bytes: Bytes) -> (u32, &'static str) {
    let fits = |(shift, _): &(u32, &str)| bytes.0 >> shift > 0;
    UNITS.into_iter().find(fits).unwrap_or((0, "B"))
}

/// An amount with one decimal, rounded up or down.
fn tenths(bytes: Bytes, (shift, unit): (u32, &str), up: bool) -> String {
    if shift == 0 {
        return format!("{} {unit}", bytes.0);
    }
    let tenths = in_tenths(bytes, shift, up);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

fn in_tenths(bytes: Bytes, shift: u32, up: bool) -> u128 {
    let (scaled, size) = (u128::from(bytes.0) * 10, 1u128 << shift);
    if up { scaled.div_ceil(size) } else { scaled / size }
}

/// What is needed, what there is and the difference, in one unit fine enough to show it, so that they add up as shown.
fn agreeing(needed: Bytes, available: Bytes) -> [String; 3] {
    let short = Bytes(needed.0.saturating_sub(available.0));
    let smallest = if available.0 == 0 {
        short
    } else {
        short.min(available)
    };
    let (shift, name) = unit(smallest);
    if shift == 0 {
        return [needed, available, short].map(|bytes| format!("{} B", bytes.0));
    }
    let (needed, available) = (in_tenths(needed, shift, true), in_tenths(available, shift, false));
    [needed, available, needed.saturating_sub(available)]
        .map(|tenths| format!("{}.{} {name}", tenths / 10, tenths % 10))
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
    let mut problem = Problem::new(Code::MemoryShort, shortage.what(), shortage.remedies(largest))
        .why(shortage.why())
        .with(shortage.details(largest));
    problem.place = shortage.blamed().map(|pin| pin.place.clone());
    problem
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_add_up_as_shown() {
        let (needed, available) = (Bytes(4_294_967_296), Bytes(4_263_405_158));
        assert_eq!(
            agreeing(needed, available),
            ["4096.0 MiB", "4065.8 MiB", "30.2 MiB"].map(str::to_owned)
        );
        assert_eq!(
            agreeing(Bytes(1030), Bytes(1025)),
            ["1030 B", "1025 B", "5 B"].map(str::to_owned)
        );
        assert_eq!(
            agreeing(Bytes::gib(5), Bytes::mib(100)),
            ["5120.0 MiB", "100.0 MiB", "5020.0 MiB"].map(str::to_owned)
        );
        let up = Bytes((13 << 20) + 1);
        assert_eq!(
            tenths(up, unit(up), true),
            "13.1 MiB",
            "rounded down it would not fit"
        );
    }
}
