//! Choosing the next token from logits.
//!
//! In: one row of logits, [`Sampling`], what was seen so far. Out: a token id, log-probabilities if asked for.
//! Invariant: only IEEE basic operations decide, so the same logits, settings and seed give the same token on
//! every platform; a token without a finite logit is never chosen.
//!
//! Order: logit bias, penalties, temperature, top-k, top-p, min-p, draw. Ties go to the lower id.

mod codes;

use std::collections::HashMap;

pub use codes::CodeSampler;

use super::{Sampling, TokenLogprobs};

/// Draws by counter: value `n` depends on the seed and `n` alone, not on how many draws came before it.
#[derive(Clone, Copy, Debug)]
pub struct CounterRng {
    seed: u64,
    counter: u64,
}

impl CounterRng {
    /// A stream of draws for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    /// The next 64 bits: two rounds of the SplitMix64 finaliser over seed and counter.
    pub fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        mix(mix(self.seed) ^ self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number in `0.0..1.0` with 53 random bits.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What one step chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// Log-probabilities, if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Every logit was NaN or minus infinity: the network's numbers are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of {vocab} logits is a finite number")]
pub struct NoFiniteLogit {
    /// Length of the row.
    pub vocab: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    in_answer: u32,
}

/// One sequence's sampler: its settings, its random stream and the tokens it has seen.
#[derive(Debug)]
pub struct Sampler {
    settings: Sampling,
    rng: CounterRng,
    seen: HashMap<u32, Seen>,
    /// The best of the current step when top-k is on, kept to avoid an allocation per token.
    best: Vec<Candidate>,
    /// Probabilities of the current step, unnormalised: of `best`, or of every token. 0 = out of the draw.
    weights: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
}

impl Sampler {
    /// A sampler for a sequence that starts with `prompt`.
    #[must_use]
    pub fn new(settings: Sampling, prompt: &[u32]) -> Self {
        let mut seen = HashMap::new();
        if has_penalties(&settings) {
            seen.extend(prompt.iter().map(|&id| (id, Seen::default())));
        }
        Self {
            rng: CounterRng::new(settings.seed),
            settings,
            seen,
            best: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Chooses a token and remembers it. `logits` is used as scratch space.
    ///
    /// `alternatives`: report log-probabilities of the choice and of this many best tokens, from the softmax of
    /// the logits as they came.
    ///
    /// # Errors
    /// When no logit is a finite number (plus infinity counts as the largest one).
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        alternatives: Option<usize>,
    ) -> Result<Choice, NoFiniteLogit> {
        let greedy = self.settings.temperature <= 0.0;
        let plain = !has_penalties(&self.settings) && self.settings.logit_bias.is_empty();
        let report = alternatives.map(|count| Report::new(logits, count));
        if !plain {
            self.adjust(logits);
        }
        let id = if greedy { argmax(logits) } else { self.draw(logits) }
            .ok_or(NoFiniteLogit { vocab: logits.len() })?;
        if has_penalties(&self.settings) {
            self.seen.entry(id).or_default().in_answer += 1;
        }
        Ok(Choice {
            id,
            logprobs: report.map(|report| report.of(id)),
        })
    }

    /// Logit bias, then penalties.
    fn adjust(&self, logits: &mut [f32]) {
        for &(id, bias) in &self.settings.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        for (&id, seen) in &self.seen {
            let Some(logit) = logits.get_mut(id as usize) else {
                continue;
            };
            let factor = self.settings.repetition_penalty;
            *logit = if *logit > 0.0 {
                *logit / factor
            } else {
                *logit * factor
            };
            if seen.in_answer > 0 {
                *logit -= self.settings.presence_penalty;
                *logit -= self.settings.frequency_penalty * seen.in_answer as f32;
            }
        }
    }

    fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        let max = finite(logits[argmax(logits)? as usize]);
        let weights = &mut self.weights;
        weights.clear();
        let top_k = self.settings.top_k as usize;
        if top_k > 0 {
            best_of(logits, top_k, &mut self.best);
            weights.extend(self.best.iter().map(|candidate| candidate.logit));
        } else {
            weights.extend(logits.iter().map(|&logit| finite(logit)));
        }
        // Temperature as weights relative to the best token: exp((logit - max) / temperature), best = 1.
        let inverse = 1.0 / self.settings.temperature;
        for weight in weights.iter_mut() {
            let below = *weight - max;
            *weight = exp_nonpositive(if below < 0.0 { below * inverse } else { 0.0 });
        }
        if self.settings.top_p < 1.0 {
            keep_nucleus(weights, f64::from(self.settings.top_p));
        }
        if self.settings.min_p > 0.0 {
            // The best weight is 1, so the bound is min-p itself; the best always stays.
            let bound = self.settings.min_p.min(1.0);
            for weight in weights.iter_mut() {
                *weight = if *weight < bound { 0.0 } else { *weight };
            }
        }
        let at = draw_index(weights, self.rng.next_unit())?;
        if top_k > 0 {
            self.best.get(at).map(|candidate| candidate.id)
        } else {
            u32::try_from(at).ok()
        }
    }
}

/// Draws an index in proportion to the weights: the first at which their running sum exceeds `unit` of the total.
fn draw_index(weights: &[f32], unit: f64) -> Option<usize> {
    let mut left = unit * sum(weights);
    let mut last = None;
    for (block, part) in weights.chunks(DRAW_BLOCK).enumerate() {
        let in_block = sum(part);
        if in_block <= 0.0 {
            continue;
        }
        if left >= in_block {
            left -= in_block;
            // Where rounding lets the sum end before `left` does, the last possible one is meant.
            last = part
                .iter()
                .rposition(|&w| w > 0.0)
                .map(|at| block * DRAW_BLOCK + at);
            continue;
        }
        for (at, &weight) in part.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            last = Some(block * DRAW_BLOCK + at);
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
        return last;
    }
    last
}

/// Weights whose sum is taken at once when looking for the drawn one.
const DRAW_BLOCK: usize = 4096;

fn has_penalties(settings: &Sampling) -> bool {
    settings.repetition_penalty.to_bits() != 1f32.to_bits()
        || settings.presence_penalty != 0.0
        || settings.frequency_penalty != 0.0
}

/// NaN counts as minus infinity; plus infinity as the largest number, so that differences stay numbers.
fn finite(logit: f32) -> f32 {
    if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit.min(f32::MAX)
    }
}

/// The id of the highest logit, the lowest on ties; `None` if none is above minus infinity.
#[must_use]
pub fn argmax(logits: &[f32]) -> Option<u32> {
    // Two passes: the first, without an index, becomes vector code. NaN loses every comparison.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, tail) = logits.as_chunks::<16>();
    for block in blocks {
        for (lane, &logit) in lanes.iter_mut().zip(block) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let best = lanes
        .iter()
        .chain(tail)
        .fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
    if best == f32::NEG_INFINITY {
        return None;
    }
    logits
        .iter()
        .position(|&x| x >= best)
        .and_then(|at| u32::try_from(at).ok())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature sorting takes")]
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Keeps the `count` best candidates, sorted.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, by_rank);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(by_rank);
}

/// The `count` best of all logits, sorted.
fn best_of(logits: &[f32], count: usize, best: &mut Vec<Candidate>) {
    best.clear();
    // Few of a large vocabulary are better than the worst of the best so far; the others cost one comparison. Ids
    // rise, so an equal logit ranks below those already there.
    let room = count.saturating_mul(4).max(256);
    let mut bound = f32::NEG_INFINITY;
    for (&logit, id) in logits.iter().zip(0u32..) {
        let logit = finite(logit);
        if logit > bound || best.len() < count {
            best.push(Candidate { id, logit });
            if best.len() >= room {
                keep_best(best, count);
                bound = best.last().map_or(bound, |worst| worst.logit);
            }
        }
    }
    keep_best(best, count);
}

/// Keeps the fewest best weights (0 to 1) whose share of the total is at least `top_p`, at least one; the others
/// become 0. Of equal ones, the first stay.
///
/// Sums by bucket of magnitude find the bucket in which the share is reached, so only that one is sorted: a flat
/// distribution over a large vocabulary costs no more than a steep one.
fn keep_nucleus(weights: &mut [f32], top_p: f64) {
    // Of a number from 0 to 1, the exponent and three bits of the fraction: at most 0x3f8.
    let bucket = |weight: f32| (weight.to_bits() >> 20) as usize;
    let mut sums = [0f64; 0x3f9];
    for &weight in weights.iter() {
        sums[bucket(weight)] += f64::from(weight);
    }
    let goal = sums.iter().sum::<f64>() * top_p;
    let mut reached = 0.0;
    let mut edge = 0;
    for (at, sum) in sums.iter().enumerate().rev() {
        edge = at;
        if reached + sum >= goal && *sum > 0.0 {
            break;
        }
        reached += sum;
    }
    let mut at_edge: Vec<(usize, f32)> = weights
        .iter()
        .copied()
        .enumerate()
        .filter(|&(_, weight)| bucket(weight) == edge)
        .collect();
    at_edge.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut kept = 0;
    for (_, weight) in &at_edge {
        kept += 1;
        reached += f64::from(*weight);
        if reached >= goal {
            break;
        }
    }
    for &(at, _) in &at_edge[kept..] {
        weights[at] = 0.0;
    }
    for weight in weights.iter_mut() {
        *weight = if bucket(*weight) < edge { 0.0 } else { *weight };
    }
}

/// The sum in eight lanes: fast, and the same everywhere.
fn sum(weights: &[f32]) -> f64 {
    let (blocks, tail) = weights.as_chunks::<8>();
    let mut lanes = [0f64; 8];
    for block in blocks {
        for (lane, &weight) in lanes.iter_mut().zip(block) {
            *lane += f64::from(weight);
        }
    }
    lanes.iter().sum::<f64>() + tail.iter().map(|&w| f64::from(w)).sum::<f64>()
}

/// `e^x` for `x ≤ 0` with basic operations only (the C library's differs between systems); relative error < 3e-7.
fn exp_nonpositive(x: f32) -> f32 {
    // Below this the result is smaller than the smallest normal number; it counts as zero.
    if x < -87.0 {
        return 0.0;
    }
    let steps = (x * std::f32::consts::LOG2_E - 0.5) as i32;
    // ln 2 in two parts, the first with enough trailing zeros that `steps * HIGH` is exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    let n = steps as f32;
    let r = (x - n * HIGH) - n * LOW;
    let series = 1.0
        + r * (1.0
            + r * (1.0 / 2.0 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    series * f32::from_bits(((127 + steps) << 23) as u32)
}

/// Log-probabilities of the logits as they came.
struct Report {
    raw: Vec<f32>,
    log_total: f64,
    top: Vec<(u32, f32)>,
}

impl Report {
    fn new(logits: &[f32], count: usize) -> Self {
        let raw: Vec<f32> = logits.iter().map(|&x| finite(x)).collect();
        let max = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = raw
            .iter()
            .map(|&x| f64::from(exp_nonpositive((x - max).min(0.0))))
            .sum();
        let log_total = f64::from(max) + total.ln();
        let mut ranked = Vec::new();
        best_of(&raw, count, &mut ranked);
        let top = ranked
            .iter()
            .take(count)
            .map(|c| (c.id, (f64::from(c.logit) - log_total) as f32))
            .collect();
        Self { raw, log_total, top }
    }

    fn of(self, id: u32) -> TokenLogprobs {
        TokenLogprobs {
            chosen: (f64::from(self.raw[id as usize]) - self.log_total) as f32,
            top: self.top,
        }
    }
}

#[cfg(test)]
mod tests;
