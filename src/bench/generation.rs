//! Prefill and decode rates of one model.
//!
//! In: lengths, batch sizes, repeats. Out: tokens a second per kind, median and spread.
//! Invariant: what is timed is what a client gets: admission, prefill, sampling and text, from the engine's own
//! [`Usage`]; a warm-up request comes first and is not counted.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::base::{Code, Problem};
use crate::engine::handle::Handle;
use crate::engine::{Event, FinishReason, Request, Sampling, Usage};

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationSpec {
    /// Prompt lengths whose prefill is timed, tokens.
    pub prefill: Vec<usize>,
    /// Context lengths at which decoding is timed, tokens already there.
    pub depths: Vec<usize>,
    /// Tokens decoded for one sample.
    pub decode: usize,
    /// Sequences decoded together.
    pub batches: Vec<usize>,
    /// Samples of each kind.
    pub repeat: usize,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One entry a kind, length and batch.
    pub results: Vec<Measured>,
}

/// One kind of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// `prefill`, `decode` or `batch_decode`.
    pub kind: &'static str,
    /// Prompt tokens (`prefill`) or generated tokens of one sequence.
    pub tokens: usize,
    /// Tokens of context before the first timed one.
    pub depth: usize,
    /// Sequences at once.
    pub batch: usize,
    /// Tokens a second over all sequences.
    pub tok_s: Spread,
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Middle sample.
    pub median: f64,
    /// Lowest.
    pub min: f64,
    /// Highest.
    pub max: f64,
    /// How many.
    pub samples: usize,
}

impl Spread {
    /// Of at least one sample.
    #[must_use]
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            samples: sorted.len(),
        }
    }
}

/// A kind of work before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Prefill { tokens: usize },
    Decode { depth: usize, batch: usize },
}

/// Measures everything in `spec`, one sample of each kind in turn, `repeat` times.
///
/// # Errors
/// What the engine refuses (a context too short for the lengths, more sequences than planned), and failed requests.
pub fn generation(
    handle: &Handle,
    spec: &GenerationSpec,
    on_sample: &mut dyn FnMut(&str),
) -> Result<Report, Problem> {
    let mut works: Vec<Work> = spec
        .prefill
        .iter()
        .map(|&tokens| Work::Prefill { tokens })
        .collect();
    for &depth in &spec.depths {
        works.extend(spec.batches.iter().map(|&batch| Work::Decode { depth, batch }));
    }
    if spec.repeat == 0 || spec.decode < 2 || works.contains(&Work::Prefill { tokens: 0 }) {
        return Err(Problem::new(
            Code::BadValue,
            "a bench needs at least one sample, two decoded tokens and one token of prompt",
            "raise --repeat, --decode or --prefill",
        ));
    }
    let slots = handle.model_facts().max_seqs;
    if let Some(batch) = spec.batches.iter().find(|&&batch| batch > slots || batch == 0) {
        return Err(Problem::new(
            Code::BadValue,
            format!("a batch of {batch} was asked for and the plan runs {slots} sequences at once"),
            format!("plan for it with `--set stages.decoder.max_seqs={batch}`, or ask for smaller batches"),
        ));
    }
    let mut rates: BTreeMap<Work, Vec<f64>> = BTreeMap::new();
    let mut seed = 0;
    run(handle, 32, 4, 1, &mut seed)?;
    for round in 0..spec.repeat {
        for step in 0..works.len() {
            // The order rotates, so that drift of the machine does not favour one kind.
            let work = works[(step + round) % works.len()];
            let rate = match work {
                Work::Prefill { tokens } => {
                    let usage = run(handle, tokens, 1, 1, &mut seed)?.remove(0).0;
                    tokens as f64 / (usage.prefill_ms / 1e3)
                }
                Work::Decode { depth, batch } => {
                    decode_rate(&run(handle, depth.max(1), spec.decode, batch, &mut seed)?)
                }
            };
            on_sample(&format!(
                "{work:?} {rate:.1} tok/s ({} of {})",
                round + 1,
                spec.repeat
            ));
            rates.entry(work).or_default().push(rate);
        }
    }
    let results = rates
        .into_iter()
        .map(|(work, samples)| {
            let (kind, tokens, depth, batch) = match work {
                Work::Prefill { tokens } => ("prefill", tokens, 0, 1),
                Work::Decode { depth, batch: 1 } => ("decode", spec.decode, depth, 1),
                Work::Decode { depth, batch } => ("batch_decode", spec.decode, depth, batch),
            };
            Measured {
                kind,
                tokens,
                depth,
                batch,
                tok_s: Spread::of(&samples),
            }
        })
        .collect();
    Ok(Report { results })
}

/// Tokens a second over all sequences, in the span in which all of them decode.
fn decode_rate(runs: &[(Usage, Vec<Instant>)]) -> f64 {
    if let [(usage, _)] = runs {
        return usage.completion_tokens.saturating_sub(1) as f64 / (usage.decode_ms / 1e3);
    }
    let first = runs.iter().filter_map(|(_, times)| times.first()).max();
    let last = runs.iter().filter_map(|(_, times)| times.last()).min();
    let (Some(&first), Some(&last)) = (first, last) else {
        return f64::NAN;
    };
    let tokens: usize = runs
        .iter()
        .map(|(_, times)| times.iter().filter(|&&at| at > first && at <= last).count())
        .sum();
    tokens as f64 / last.saturating_duration_since(first).as_secs_f64()
}

/// Runs `batch` requests at once; counts, and when each token came.
fn run(
    handle: &Handle,
    prompt: usize,
    tokens: usize,
    batch: usize,
    seed: &mut u64,
) -> Result<Vec<(Usage, Vec<Instant>)>, Problem> {
    let vocab = handle.model_facts().vocab as u64;
    let submissions = (0..batch)
        .map(|_| {
            *seed += 1;
            // Different tokens each time, so that no cache of prefixes can serve them.
            let prompt = (0..prompt as u64)
                .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(*seed * 40_503) % vocab) as u32)
                .collect();
            handle.submit(Request {
                prompt,
                sampling: Sampling::default(),
                max_tokens: tokens,
                stop: Vec::new(),
                ignore_eos: true,
                logprobs: None,
                echo: false,
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    // One reader a sequence: arrival times must not wait for another sequence's.
    std::thread::scope(|scope| {
        let readers: Vec<_> = submissions
            .into_iter()
            .map(|submission| scope.spawn(|| collect(submission.events)))
            .collect();
        readers
            .into_iter()
            .map(|reader| {
                reader.join().unwrap_or_else(|_| {
                    Err(Problem::new(
                        Code::Internal,
                        "a bench reader panicked",
                        "please report this",
                    ))
                })
            })
            .collect()
    })
}

fn collect(mut events: UnboundedReceiver<Event>) -> Result<(Usage, Vec<Instant>), Problem> {
    let mut times = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Prefilled { .. } => {}
            Event::Token { .. } => times.push(Instant::now()),
            Event::Done {
                finish: FinishReason::Length,
                usage,
                ..
            } => return Ok((usage, times)),
            Event::Done { finish, .. } => {
                return Err(Problem::new(
                    Code::StageFailed,
                    format!("a bench request ended by {finish:?} instead of its length"),
                    "run the bench again on an idle engine",
                ));
            }
            Event::Failed(problem) => return Err(problem),
        }
    }
    Err(Problem::new(
        Code::StageFailed,
        "the engine closed a bench request",
        "see the log; run again",
    ))
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_is_the_middle_and_the_extremes_are_kept() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((spread.median.to_bits(), spread.samples), (2.0f64.to_bits(), 3));
        let spread = Spread::of(&[4.0, 1.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
    }
}
