//! The sampler against slow and plain references.
//!
//! In: random logits, including NaN and infinities. Out: properties that hold for every choice.
//! Invariant: the reference sorts everything and uses the standard library's exponential.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn settings(temperature: f32, seed: u64) -> Sampling {
    Sampling {
        temperature,
        seed,
        ..Sampling::default()
    }
}

fn pick(settings: &Sampling, prompt: &[u32], logits: &[f32]) -> Choice {
    Sampler::new(settings.clone(), prompt)
        .choose(&mut logits.to_vec(), None)
        .unwrap()
}

/// Tokens that may be drawn, by the rules as written in the module's head.
fn allowed(settings: &Sampling, logits: &[f32]) -> BTreeSet<u32> {
    let mut ranked: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .filter(|(_, x)| !x.is_nan() && **x > f32::NEG_INFINITY)
        .map(|(id, &x)| (id as u32, f64::from(x)))
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if settings.top_k > 0 {
        ranked.truncate(settings.top_k as usize);
    }
    let max = ranked[0].1;
    for (_, x) in &mut ranked {
        *x = ((*x - max) / f64::from(settings.temperature)).exp();
    }
    if settings.top_p < 1.0 {
        // A little slack: single and double precision may disagree at the edge itself.
        let goal = ranked.iter().map(|r| r.1).sum::<f64>() * (f64::from(settings.top_p) + 1e-4);
        let mut reached = 0.0;
        let mut keep = 0;
        for (_, weight) in &ranked {
            keep += 1;
            reached += weight;
            if reached >= goal {
                break;
            }
        }
        ranked.truncate(keep);
    }
    ranked.retain(|r| r.1 >= f64::from(settings.min_p) * (1.0 - 1e-4));
    ranked.into_iter().map(|r| r.0).collect()
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        20 => -30f32..30.0,
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        2 => Just(3.5f32),
    ]
}

proptest! {
    #[test]
    fn what_is_drawn_is_allowed_and_repeats(
        logits in prop::collection::vec(logit(), 1..400),
        temperature in 0.05f32..3.0,
        top_k in prop_oneof![Just(0u32), 1u32..50],
        top_p in prop_oneof![Just(1f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0f32), 0.0f32..1.0],
        seed: u64,
    ) {
        let set = Sampling { top_k, top_p, min_p, ..settings(temperature, seed) };
        let drawn = Sampler::new(set.clone(), &[]).choose(&mut logits.clone(), None);
        if logits.iter().all(|x| x.is_nan() || *x == f32::NEG_INFINITY) {
            prop_assert_eq!(drawn, Err(NoFiniteLogit { vocab: logits.len() }));
        } else {
            let id = drawn.unwrap().id;
            prop_assert!(allowed(&set, &logits).contains(&id), "{} not allowed", id);
            prop_assert_eq!(pick(&set, &[], &logits).id, id);
        }
    }

    #[test]
    fn greedy_is_the_first_highest(logits in prop::collection::vec(logit(), 1..100)) {
        let mut best: Option<usize> = None;
        for (at, &x) in logits.iter().enumerate() {
            if !x.is_nan() && x > f32::NEG_INFINITY && best.is_none_or(|b| x > logits[b]) {
                best = Some(at);
            }
        }
        prop_assert_eq!(argmax(&logits), best.map(|at| at as u32));
    }

    #[test]
    fn bias_and_penalties_are_as_written(
        logits in prop::collection::vec(-10f32..10.0, 8),
        prompt in prop::collection::vec(0u32..8, 0..4),
        bias in prop::collection::vec((0u32..10, -5f32..5.0), 0..3),
        repetition in 0.5f32..2.0,
        presence in -2f32..2.0,
        frequency in -2f32..2.0,
    ) {
        let set = Sampling {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            logit_bias: bias.clone(),
            ..settings(0.0, 0)
        };
        let mut sampler = Sampler::new(set, &prompt);
        let mut answer: Vec<u32> = Vec::new();
        for _ in 0..5 {
            let mut row = logits.clone();
            for &(id, by) in bias.iter().filter(|b| b.0 < 8) {
                row[id as usize] += by;
            }
            for id in 0..8u32 {
                let count = answer.iter().filter(|&&x| x == id).count() as f32;
                let x = &mut row[id as usize];
                if count > 0.0 || prompt.contains(&id) {
                    *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
                }
                if count > 0.0 {
                    *x -= presence;
                    *x -= frequency * count;
                }
            }
            let id = sampler.choose(&mut logits.clone(), None).unwrap().id;
            prop_assert_eq!(Some(id), argmax(&row));
            answer.push(id);
        }
    }

    #[test]
    fn the_exponential_is_close(x in -87f32..0.0) {
        let exact = f64::from(x).exp();
        prop_assert!((f64::from(exp_nonpositive(x)) - exact).abs() <= exact * 3e-7);
    }
}

#[test]
fn the_random_stream_is_fixed_for_ever() {
    let mut rng = CounterRng::new(42);
    let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
    // Computed apart from this code with arbitrary-precision integers.
    assert_eq!(first, KNOWN_STREAM);
    let unit = CounterRng::new(7).next_unit();
    assert!((0.0..1.0).contains(&unit));
}

const KNOWN_STREAM: [u64; 3] = [
    0x02e2_7a83_ece5_2600,
    0x8c66_67ca_4cab_d1be,
    0x7f74_6e5c_dc4f_05f4,
];

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [0.0f32, 1.0, 2.0, f32::NAN];
    let mut sampler = Sampler::new(settings(1.0, 3), &[]);
    let draws = 60_000;
    let mut counts = [0u32; 4];
    for _ in 0..draws {
        counts[sampler.choose(&mut logits.clone(), None).unwrap().id as usize] += 1;
    }
    let total: f64 = (0..3).map(|i| f64::from(i).exp()).sum();
    for (i, &count) in counts.iter().take(3).enumerate() {
        let share = f64::from(count) / f64::from(draws);
        let expected = (i as f64).exp() / total;
        // Five standard deviations of a binomial share.
        let bound = 5.0 * (expected * (1.0 - expected) / f64::from(draws)).sqrt();
        assert!(
            (share - expected).abs() < bound,
            "token {i}: {share} for {expected}"
        );
    }
    assert_eq!(counts[3], 0);
}

#[test]
fn different_seeds_differ_and_extremes_do_not_break() {
    let logits: Vec<f32> = vec![0.0; 1000];
    let ids: BTreeSet<u32> = (0..50)
        .map(|seed| pick(&settings(1.0, seed), &[], &logits).id)
        .collect();
    assert!(ids.len() > 30, "{ids:?}");
    let extreme = [f32::MIN, f32::INFINITY, f32::INFINITY, f32::NAN, 5.0];
    for temperature in [0.0, 1e-30, 1.0, 1e30] {
        let id = pick(&settings(temperature, 1), &[], &extreme).id;
        assert!(id == 1 || id == 2 || temperature > 1e29, "{id} at {temperature}");
    }
}

#[test]
fn a_large_vocabulary_gives_the_same_nucleus_as_sorting_all() {
    let mut rng = CounterRng::new(1);
    let logits: Vec<f32> = (0..20_000).map(|_| (rng.next_unit() * 4.0) as f32).collect();
    for top_p in [0.001, 0.3, 0.9, 0.999] {
        let set = Sampling {
            top_p,
            ..settings(1.0, 9)
        };
        let ok = allowed(&set, &logits);
        for seed in 0..20 {
            let set = Sampling { seed, ..set.clone() };
            assert!(ok.contains(&pick(&set, &[], &logits).id));
        }
    }
}

#[test]
fn log_probabilities_are_of_the_logits_as_they_came() {
    let logits = [1.0f32, 3.0, 2.0, f32::NAN];
    let set = Sampling {
        logit_bias: vec![(0, 100.0)],
        ..settings(0.0, 0)
    };
    let choice = Sampler::new(set, &[])
        .choose(&mut logits.clone(), Some(2))
        .unwrap();
    assert_eq!(choice.id, 0);
    let total: f64 = [1f64, 3.0, 2.0].iter().map(|x| x.exp()).sum::<f64>().ln();
    let report = choice.logprobs.unwrap();
    assert!((f64::from(report.chosen) - (1.0 - total)).abs() < 1e-6);
    assert_eq!(report.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    assert!((f64::from(report.top[0].1) - (3.0 - total)).abs() < 1e-6);
}
