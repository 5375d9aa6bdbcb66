//! Refusals for want of memory: each remedy, followed, leads to a plan.

use crate::base::{Bytes, Code, Problem, Problems};
use crate::derive::samples::{Shape, card, pin, plain, policy, qwen_like};
use crate::derive::{Asked, DECODER, Options, decide};
use crate::model::card::TensorType;
use crate::probe::Hardware;

fn nothing() -> Asked {
    Asked::nothing(policy())
}

fn small() -> Shape {
    Shape {
        weights: (TensorType::Q8_0, 64 << 20),
        ..qwen_like()
    }
}

fn refused(hardware: &Hardware, asked: &Asked) -> Problem {
    let Problems(mut problems) =
        decide(hardware, &card(&small()), asked, Options::default()).expect_err("a refusal");
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

fn fits(hardware: &Hardware, asked: &Asked) -> bool {
    decide(hardware, &card(&small()), asked, Options::default()).is_ok()
}

fn detail(problem: &Problem, key: &str) -> Option<u64> {
    problem.details.as_ref().expect("numbers")[key].as_u64()
}

/// The number after `key` and one sign in a remedy.
fn offered(problem: &Problem, key: &str) -> u64 {
    let (_, rest) = problem
        .remedy
        .split_once(&format!("--set {key}="))
        .unwrap_or_else(|| panic!("{key}: {problem}"));
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|text| text.parse().ok()).expect("a number")
}

#[test]
fn what_has_to_be_freed_fits_once_it_is_free() {
    let machine = |available: Bytes| {
        let mut hardware = plain(4, available);
        hardware.memory.total_bytes = Bytes::gib(2);
        hardware
    };
    let problem = refused(&machine(Bytes::mib(100)), &nothing());
    let free = detail(&problem, "free_bytes").expect("enough can be freed");
    assert!(
        free > detail(&problem, "short_bytes").unwrap(),
        "the reserve grows: {problem}"
    );
    assert!(problem.remedy.contains("free "), "{problem}");
    assert!(fits(&machine(Bytes((100 << 20) + free)), &nothing()));
    assert!(!fits(&machine(Bytes((100 << 20) + free - (1 << 20))), &nothing()));

    let tiny = refused(&plain(4, Bytes::mib(100)), &nothing());
    assert!(
        detail(&tiny, "free_bytes").is_none() && !tiny.remedy.contains("free 1"),
        "nothing more can be freed: {tiny}"
    );
}

#[test]
fn a_limit_on_memory_is_blamed_by_its_key_and_its_smallest_value_fits() {
    let hardware = plain(4, Bytes::gib(16));
    let mut asked = nothing();
    let key = "limits.memory_bytes";
    asked.limits.memory_bytes = Some(pin(key, Bytes::mib(100)));
    let problem = refused(&hardware, &asked);
    assert!(problem.what.contains("`limits.memory_bytes` (--set"), "{problem}");
    assert!(
        problem.place.is_some() && !problem.remedy.contains("free "),
        "{problem}"
    );
    let smallest = offered(&problem, key);
    asked.limits.memory_bytes = Some(pin(key, Bytes(smallest)));
    assert!(fits(&hardware, &asked));
    asked.limits.memory_bytes = Some(pin(key, Bytes(smallest - 1)));
    assert!(!fits(&hardware, &asked));
}

#[test]
fn a_cache_that_is_set_too_small_is_told_with_what_it_has_to_be() {
    let hardware = plain(4, Bytes::gib(16));
    for key in ["stages.decoder.kv_bytes", "limits.kv_cache_bytes"] {
        let with = |bytes: u64| {
            let mut asked = nothing();
            let set = Some(pin(key, Bytes(bytes)));
            if key.starts_with("limits") {
                asked.limits.kv_cache_bytes = set;
            } else {
                asked.decoder().kv_bytes = set;
            }
            asked
        };
        let problem = refused(&hardware, &with(1 << 20));
        assert_eq!(problem.code, Code::MemoryShort);
        assert!(problem.place.is_some() && problem.what.contains(key), "{problem}");
        assert!(!problem.remedy.contains("free "), "{problem}");
        let smallest = offered(&problem, key);
        assert_eq!(detail(&problem, "short_bytes"), Some(smallest - (1 << 20)));
        assert!(fits(&hardware, &with(smallest)) && !fits(&hardware, &with(smallest - 1)));
    }
}

#[test]
fn a_pin_that_takes_too_much_is_offered_with_the_largest_value_that_fits() {
    let hardware = plain(4, Bytes::gib(2));
    type Set = fn(&mut Asked, u64);
    let cases: [(&str, u64, Set); 3] = [
        ("stages.decoder.kv_bytes", 4 << 30, |asked, value| {
            asked.decoder().kv_bytes = Some(pin("stages.decoder.kv_bytes", Bytes(value)));
        }),
        ("stages.decoder.prefill_batch", 60_000, |asked, value| {
            asked.decoder().prefill_batch = Some(pin("stages.decoder.prefill_batch", value as usize));
        }),
        ("policy.reserve_bytes", 2 << 30, |asked, value| {
            let reserve = pin("policy.reserve_bytes", Bytes(value));
            asked.policy.reserve_bytes = Bytes(value);
            asked.reserve = Some(reserve.named());
            asked.reserve_bytes = Some(reserve);
        }),
    ];
    for (key, value, set) in cases {
        let with = |value| {
            let mut asked = nothing();
            set(&mut asked, value);
            asked
        };
        let problem = refused(&hardware, &with(value));
        let largest = offered(&problem, key);
        assert!(fits(&hardware, &with(largest)), "{key}: {problem}");
        assert!(!fits(&hardware, &with(largest + 1)), "{key}: {problem}");
    }
}

#[test]
fn unknown_memory_is_told_as_unknown_and_a_limit_says_how_much_there_is() {
    let hardware = plain(4, Bytes(0));
    let problem = refused(&hardware, &nothing());
    assert!(
        problem.what.contains("unknown") && !problem.what.contains("0 B"),
        "{problem}"
    );
    assert!(problem.remedy.contains("`--hardware FILE`"), "{problem}");
    let mut asked = nothing();
    let least = Bytes(offered(&problem, "limits.memory_bytes"));
    asked.limits.memory_bytes = Some(pin("limits.memory_bytes", least));
    assert!(fits(&hardware, &asked));
}

#[test]
fn a_context_that_a_limit_caps_is_lengthened_by_that_limit() {
    let mut asked = nothing();
    let hint = |asked: &Asked| {
        let draft = decide(
            &plain(4, Bytes::gib(16)),
            &card(&small()),
            asked,
            Options::default(),
        )
        .expect("fits");
        let capped = |warning: &&Problem| warning.code == Code::ContextCapped;
        assert!(draft.stages.contains_key(DECODER));
        draft
            .warnings
            .iter()
            .find(capped)
            .expect("a warning")
            .remedy
            .clone()
    };
    assert!(hint(&asked).contains("`--context N`"));
    asked.limits.max_context = Some(pin("limits.max_context", 1024));
    let by_limit = hint(&asked);
    assert!(
        by_limit.contains("--set limits.max_context=") && !by_limit.contains("--context"),
        "{by_limit}"
    );
    // The policy caps below the limit, up to which `--context` may go.
    asked.limits.max_context = Some(pin("limits.max_context", 16_384));
    assert!(hint(&asked).contains("up to 16384"), "{}", hint(&asked));
}
