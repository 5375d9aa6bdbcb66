//! The solver against brute force and against published timings.

use proptest::prelude::*;

use super::super::MAX_CHUNK;
use super::*;

fn stall(rates: &Rates, sizes: &[usize], total: usize) -> (f64, f64) {
    let heard = simulate(rates, sizes, total).heard().unwrap();
    (heard.ttfa_s, heard.longest_stall_s)
}

/// The time to first sound of the best schedule that has no underrun, over those `visit` is called with.
struct Best(Option<f64>);

impl Best {
    fn see(&mut self, ttfa: f64) {
        self.0 = Some(self.0.map_or(ttfa, |best| best.min(ttfa)));
    }
}

/// All non-decreasing schedules of sizes up to [`MAX_CHUNK`] with at most `steps` of them, the last repeating.
///
/// Steps are tried one by one; a chunk that is late ends every schedule that begins so, as does a first chunk later
/// than the best found.
fn ramps(rates: &Rates, total: usize, steps: usize) -> Option<f64> {
    fn more(
        rates: &Rates,
        total: usize,
        left: usize,
        (size, emitted, ready, ttfa): (usize, usize, f64, f64),
    ) -> bool {
        if emitted >= total {
            return true;
        }
        let played = ttfa + emitted as f64 * rates.frame_audio_s;
        let next = |frames: usize| {
            let frames = frames.min(total - emitted);
            let ready = rates.ready_s(frames, emitted, ready);
            (ready <= played + 1e-9).then_some((emitted + frames, ready))
        };
        if left == 0 {
            let (mut emitted, mut ready) = (emitted, ready);
            while emitted < total {
                let frames = size.min(total - emitted);
                ready = rates.ready_s(frames, emitted, ready);
                if ready > ttfa + emitted as f64 * rates.frame_audio_s + 1e-9 {
                    return false;
                }
                emitted += frames;
            }
            return true;
        }
        (size..=MAX_CHUNK).any(|size| {
            next(size)
                .is_some_and(|(emitted, ready)| more(rates, total, left - 1, (size, emitted, ready, ttfa)))
        })
    }
    let mut best = Best(None);
    for first in 1..=MAX_CHUNK.min(total) {
        let ttfa = rates.first_ready_s(first);
        if more(rates, total, steps - 1, (first, first, ttfa, ttfa)) {
            best.see(ttfa);
        }
    }
    best.0
}

/// Every way to cut `total` frames.
fn outright(rates: &Rates, total: usize) -> Option<f64> {
    let mut best = Best(None);
    for cuts in 0u32..1 << (total - 1) {
        let (mut sizes, mut size) = (Vec::new(), 1);
        for frame in 0..total - 1 {
            if cuts >> frame & 1 == 1 {
                sizes.push(size);
                size = 0;
            }
            size += 1;
        }
        sizes.push(size);
        let (ttfa, stall) = stall(rates, &sizes, total);
        if stall < 1e-9 {
            best.see(ttfa);
        }
    }
    best.0
}

prop_compose! {
    fn any_rates()(
        prefill in 0u32..400,
        frame in 5u32..120,
        chunk in 0u32..60,
        decode in 0u32..60,
        context in prop::sample::select(vec![0usize, 0, 25, 72]),
        shared: bool,
    ) -> Rates {
        Rates {
            frame_audio_s: 0.08,
            prefill_s: f64::from(prefill) / 1000.0,
            frame_s: f64::from(frame) / 1000.0,
            decode_chunk_s: f64::from(chunk) / 1000.0,
            decode_frame_s: f64::from(decode) / 2000.0,
            context_frames: context,
            shared,
        }
    }
}

fn no_worse(rates: &Rates, total: usize, brute: Option<f64>) -> Result<(), TestCaseError> {
    match (solve(rates, MAX_CHUNK, total, 0.0), brute) {
        (Answer::RealTime { sizes, ttfa_s }, best) => {
            let (ttfa, stall) = stall(rates, &sizes, total);
            prop_assert!(stall < 1e-8, "{sizes:?} stalls {stall}");
            prop_assert!((ttfa - ttfa_s).abs() < 1e-9);
            if let Some(best) = best {
                prop_assert!(ttfa <= best + 1e-9, "{ttfa} against {best}");
            }
        }
        (answer @ Answer::HeadStart { .. }, best) => {
            prop_assert_eq!(best, None, "{:?}", answer);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_ramp_starts_earlier(rates in any_rates(), total in 1usize..250) {
        no_worse(&rates, total, ramps(&rates, total, 6))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_at_all_starts_earlier(rates in any_rates(), total in 1usize..=16) {
        no_worse(&rates, total, outright(&rates, total))?;
    }

    #[test]
    fn a_head_start_is_enough_and_not_too_much(rates in any_rates(), total in 1usize..200) {
        if let Answer::HeadStart { sizes, start_s, .. } = solve(&rates, MAX_CHUNK, total, 0.0) {
            let heard = simulate(&rates, &sizes, total).heard().unwrap();
            prop_assert!(heard.playback_start_s <= start_s + 1e-6, "{heard:?} {start_s}");
            for size in 1..=MAX_CHUNK {
                let other = simulate(&rates, &[size], total).heard().unwrap();
                prop_assert!(other.playback_start_s >= start_s - 1e-6, "{size}: {other:?} {start_s}");
            }
        }
    }

    #[test]
    fn a_margin_is_kept(rates in any_rates(), total in 2usize..200) {
        if let Answer::RealTime { sizes, .. } = solve(&rates, MAX_CHUNK, total, 0.03) {
            let slower = Rates { decode_chunk_s: rates.decode_chunk_s, ..rates };
            let (mut emitted, mut ready, mut index) = (0, 0.0, 0);
            let mut first = 0.0;
            while emitted < total {
                let frames = super::super::simulation::size_at(&sizes, index).min(total - emitted);
                if emitted == 0 {
                    ready = slower.first_ready_s(frames);
                    first = ready;
                } else {
                    ready = slower.ready_s(frames, emitted, ready);
                    prop_assert!(ready + 0.03 <= first + emitted as f64 * 0.08 + 1e-8);
                }
                emitted += frames;
                index += 1;
            }
        }
    }
}

/// A start at the very bound, where rounding decides whether a chunk is in time.
#[test]
fn rounding_at_the_bound_does_not_grow_into_a_stall() {
    let rates = Rates {
        frame_audio_s: 0.08,
        prefill_s: 0.0,
        frame_s: 0.091,
        decode_chunk_s: 0.006,
        decode_frame_s: 0.011,
        context_frames: 0,
        shared: true,
    };
    let Answer::HeadStart { sizes, start_s, .. } = solve(&rates, MAX_CHUNK, 157, 0.0) else {
        panic!("this machine is slower than the sound");
    };
    let heard = simulate(&rates, &sizes, 157).heard().unwrap();
    assert!(heard.playback_start_s <= start_s + 1e-6, "{heard:?} {start_s}");
}

/// Timings of a machine at 0.375 of real time: a first chunk of 1 and then 25 leaves a hole of 0.69 s.
#[test]
fn a_fast_machine_starts_at_once_and_never_leaves_a_hole() {
    let rates = Rates {
        frame_audio_s: 0.08,
        prefill_s: 0.15,
        frame_s: 0.03,
        decode_chunk_s: 0.01,
        decode_frame_s: 0.0008,
        context_frames: 25,
        shared: false,
    };
    for (sizes, ttfa, hole) in [
        (&[1, 25][..], 0.191, 0.69),
        (&[4, 4, 8, 16, 25], 0.283, 0.0),
        (&[1, 1, 2, 3, 6, 12, 25], 0.191, 0.0),
    ] {
        let got = stall(&rates, sizes, 200);
        assert!(
            (got.0 - ttfa).abs() < 5e-4 && (got.1 - hole).abs() < 5e-3,
            "{sizes:?}: {got:?}"
        );
    }
    let Answer::RealTime { sizes, ttfa_s } = solve(&rates, MAX_CHUNK, 200, 0.0) else {
        panic!("not real time");
    };
    assert!(ttfa_s <= 0.191, "{ttfa_s}");
    let (_, hole) = stall(&rates, &sizes, 200);
    assert!(hole < 1e-9);
    assert_eq!(sizes.first(), Some(&1));
    assert_eq!(sizes.last(), Some(&MAX_CHUNK));
}

#[test]
fn a_slow_machine_gets_an_honest_answer() {
    let rates = Rates {
        frame_audio_s: 0.08,
        prefill_s: 0.15,
        frame_s: 0.104,
        decode_chunk_s: 0.01,
        decode_frame_s: 0.0008,
        context_frames: 25,
        shared: false,
    };
    let Answer::HeadStart {
        start_s,
        real_time_factor,
        ..
    } = solve(&rates, MAX_CHUNK, 200, 0.0)
    else {
        panic!("real time at 1.3");
    };
    assert!((real_time_factor - 1.3).abs() < 1e-9);
    // 200 frames take 20.8 s and play 16 s.
    assert!(start_s > 4.8 && start_s < 5.2, "{start_s}");
}
