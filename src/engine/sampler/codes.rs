//! Choosing codes of sound: the talker's and the predictor's order of steps.
//!
//! In: one row of logits. Out: a code; the row holds the scores it was chosen by.
//! Invariant: as of [`Sampler`](super::Sampler): basic operations only, so the same everywhere; a code without a
//! finite logit is never chosen.
//!
//! Order: repetition penalty over what was chosen so far, temperature, top-k (equals of the last one stay), top-p
//! (the least likely go while their sum is at most 1 − p; one always stays), draw. Without sampling: the penalty, then
//! the most likely.

use super::{CounterRng, NoFiniteLogit, argmax, draw_index, exp_nonpositive, finite};
use crate::model::speech::SpeechSampling;

/// One stream's chooser for one of the two networks.
#[derive(Debug)]
pub struct CodeSampler {
    settings: SpeechSampling,
    rng: CounterRng,
    /// Whether a code was chosen; empty without a penalty.
    seen: Vec<bool>,
    /// Values of the step, sorted as needed.
    order: Vec<(f32, u32)>,
    weights: Vec<f32>,
}

impl CodeSampler {
    /// A chooser among `rows` codes. The same seed gives the same choices from the same logits.
    #[must_use]
    pub fn new(settings: SpeechSampling, seed: u64, rows: usize) -> Self {
        let penalised = settings.repetition_penalty.to_bits() != 1f32.to_bits();
        Self {
            settings,
            rng: CounterRng::new(seed),
            seen: if penalised { vec![false; rows] } else { Vec::new() },
            order: Vec::with_capacity(rows),
            weights: Vec::with_capacity(rows),
        }
    }

    /// Chooses a code; `logits` become the scores of the step. What was chosen in the end is told by
    /// [`Self::remember`].
    ///
    /// # Errors
    /// When no logit is a finite number.
    pub fn choose(&mut self, logits: &mut [f32]) -> Result<u32, NoFiniteLogit> {
        for (logit, _) in logits.iter_mut().zip(&self.seen).filter(|(_, seen)| **seen) {
            let penalty = self.settings.repetition_penalty;
            *logit = if *logit < 0.0 {
                *logit * penalty
            } else {
                *logit / penalty
            };
        }
        let broken = NoFiniteLogit { vocab: logits.len() };
        let code = if self.settings.sample {
            self.warp(logits);
            self.draw(logits)
        } else {
            argmax(logits)
        };
        code.ok_or(broken)
    }

    /// Counts a code as chosen.
    pub fn remember(&mut self, code: u32) {
        if let Some(seen) = self.seen.get_mut(code as usize) {
            *seen = true;
        }
    }

    /// Temperature, top-k, top-p.
    fn warp(&mut self, logits: &mut [f32]) {
        for logit in logits.iter_mut() {
            *logit = finite(*logit / self.settings.temperature);
        }
        let top_k = self.settings.top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            self.weights.clear();
            self.weights.extend_from_slice(logits);
            let (_, least, _) = self
                .weights
                .select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            let least = *least;
            for logit in logits.iter_mut().filter(|logit| **logit < least) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if self.settings.top_p < 1.0 {
            self.keep_nucleus(logits);
        }
    }

    fn keep_nucleus(&mut self, logits: &mut [f32]) {
        self.order.clear();
        let alive = logits
            .iter()
            .zip(0u32..)
            .filter(|(logit, _)| **logit > f32::NEG_INFINITY);
        self.order.extend(alive.map(|(&logit, id)| (logit, id)));
        self.order
            .sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let Some(&(most, _)) = self.order.last() else {
            return;
        };
        let weight = |logit: f32| f64::from(exp_nonpositive((logit - most).min(0.0)));
        let total: f64 = self.order.iter().map(|&(logit, _)| weight(logit)).sum();
        let bound = (1.0 - f64::from(self.settings.top_p)) * total;
        let mut sum = 0.0;
        for &(logit, id) in &self.order[..self.order.len() - 1] {
            sum += weight(logit);
            if sum > bound {
                return;
            }
            logits[id as usize] = f32::NEG_INFINITY;
        }
    }

    fn draw(&mut self, scores: &[f32]) -> Option<u32> {
        let most = scores[argmax(scores)? as usize];
        self.weights.clear();
        let weight = |&score: &f32| exp_nonpositive((score - most).min(0.0));
        self.weights.extend(scores.iter().map(weight));
        draw_index(&self.weights, self.rng.next_unit()).and_then(|at| u32::try_from(at).ok())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "exact by construction")]

    use super::*;

    const GREEDY: SpeechSampling = SpeechSampling {
        sample: false,
        temperature: 0.9,
        top_k: 50,
        top_p: 1.0,
        repetition_penalty: 2.0,
    };

    #[test]
    fn the_penalty_is_for_the_set_of_codes_chosen_and_holds_without_sampling() {
        let mut sampler = CodeSampler::new(GREEDY, 0, 3);
        let row = [3.0, 2.0, -1.0];
        let mut step = || {
            let mut logits = row;
            let code = sampler.choose(&mut logits).unwrap();
            sampler.remember(code);
            (code, logits)
        };
        assert_eq!(step(), (0, [3.0, 2.0, -1.0]));
        assert_eq!(step(), (1, [1.5, 2.0, -1.0]));
        // Chosen once or twice, the penalty is the same.
        assert_eq!(step(), (0, [1.5, 1.0, -1.0]));
        assert_eq!(step(), (0, [1.5, 1.0, -1.0]));
        let mut sampler = CodeSampler::new(GREEDY, 0, 1);
        sampler.remember(0);
        let mut logits = [-2.0];
        sampler.choose(&mut logits).unwrap();
        assert_eq!(logits, [-4.0]);
    }

    #[test]
    fn equals_of_the_last_one_stay_and_the_nucleus_keeps_one() {
        let sampling = SpeechSampling {
            sample: true,
            temperature: 0.5,
            top_k: 2,
            top_p: 1.0,
            repetition_penalty: 1.0,
        };
        let mut logits = [1.0, 2.0, 1.0, 0.0];
        CodeSampler::new(sampling, 7, 4).choose(&mut logits).unwrap();
        assert_eq!(logits, [2.0, 4.0, 2.0, f32::NEG_INFINITY]);
        let narrow = SpeechSampling {
            top_k: 0,
            top_p: 1e-6,
            ..sampling
        };
        let mut logits = [1.0, 2.0, 1.0, 0.0];
        assert_eq!(CodeSampler::new(narrow, 7, 4).choose(&mut logits).unwrap(), 1);
        assert_eq!(logits.iter().filter(|score| score.is_finite()).count(), 1);
        // Probabilities 0.1, 0.2, 0.7: with p = 0.85 the least likely goes (0.1 ≤ 0.15), the next stays (0.3 > 0.15).
        let some = SpeechSampling {
            temperature: 1.0,
            top_p: 0.85,
            ..narrow
        };
        let mut logits = [0.1f32.ln(), 0.2f32.ln(), 0.7f32.ln()];
        CodeSampler::new(some, 7, 3).choose(&mut logits).unwrap();
        assert!(logits[0] == f32::NEG_INFINITY && logits[1].is_finite() && logits[2].is_finite());
    }

    #[test]
    fn draws_follow_the_scores_and_the_seed() {
        let sampling = SpeechSampling {
            sample: true,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
        };
        let row = [0.25f32.ln(), f32::NEG_INFINITY, 0.75f32.ln()];
        let draws = |seed| -> Vec<u32> {
            let mut sampler = CodeSampler::new(sampling, seed, 3);
            (0..4000)
                .map(|_| sampler.choose(&mut row.clone()).unwrap())
                .collect()
        };
        let first = draws(1);
        assert_eq!(first, draws(1));
        assert_ne!(first, draws(2));
        let twos = first.iter().filter(|&&code| code == 2).count();
        assert!(
            !first.contains(&1) && (2900..3100).contains(&twos),
            "{twos} of 4000"
        );
    }

    #[test]
    fn broken_numbers_are_told() {
        let mut sampler = CodeSampler::new(GREEDY, 0, 2);
        assert!(sampler.choose(&mut [f32::NAN, f32::NEG_INFINITY]).is_err());
        let sampling = SpeechSampling {
            sample: true,
            ..GREEDY
        };
        let mut sampler = CodeSampler::new(sampling, 0, 2);
        assert!(sampler.choose(&mut [f32::NAN, f32::NEG_INFINITY]).is_err());
    }
}
