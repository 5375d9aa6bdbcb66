//! Published cases: KV arithmetic, automatic and explicit context, types, deadlines, NUMA.

use crate::base::{Bytes, Code, Dtype, Millis, Problem, Problems, Severity};
use crate::derive::samples::{Shape, card, cpus, machine, pin, plain, policy, qwen_like, with_nodes};
use crate::derive::{Asked, DECODER, Draft, Options, StageDraft, decide, memory, weight_path};
use crate::model::card::TensorType;
use crate::model::weight_path::WeightPath;

fn drafted(hardware: &crate::probe::Hardware, shape: &Shape, asked: &Asked) -> Draft {
    decide(hardware, &card(shape), asked, Options::default()).expect("a draft")
}

fn refused(hardware: &crate::probe::Hardware, shape: &Shape, asked: &Asked) -> Problem {
    let Problems(problems) =
        decide(hardware, &card(shape), asked, Options::default()).expect_err("a refusal");
    problems.into_iter().next().expect("one problem")
}

fn stage(draft: &Draft) -> &StageDraft {
    &draft.stages[DECODER]
}

fn nothing() -> Asked {
    Asked::nothing(policy())
}

fn with_context(tokens: usize) -> Asked {
    let mut asked = nothing();
    asked.decoder().context = Some(pin("model.context", tokens));
    asked
}

#[test]
fn t50_an_automatic_context_is_capped_with_both_numbers() {
    let draft = drafted(&plain(8, Bytes::gib(16)), &qwen_like(), &nothing());
    assert_eq!(stage(&draft).context.value, 8192);
    let warning = draft
        .warnings
        .iter()
        .find(|w| w.code == Code::ContextCapped)
        .expect("a warning");
    assert!(
        warning.what.contains("8192") && warning.what.contains("131072"),
        "{warning}"
    );
    let details = warning.details.as_ref().expect("numbers");
    assert_eq!(details["kv_bytes_at_train"], 15_032_385_536u64);
    assert!(
        details["largest_context"]
            .as_u64()
            .is_some_and(|n| n > 8192 && n < 131_072)
    );

    // An absurd training context: 167 GB of cache on 32 GiB is capped, not refused.
    let absurd = Shape {
        layers: 40,
        context: 1_024_000,
        ..qwen_like()
    };
    let draft = drafted(&plain(8, Bytes::gib(32)), &absurd, &nothing());
    assert_eq!(stage(&draft).context.value, 8192);

    // Without the policy's cap memory decides, and what it decides really fits.
    let mut asked = nothing();
    asked.policy.context_cap = usize::MAX;
    let draft = drafted(&plain(8, Bytes::gib(16)), &qwen_like(), &asked);
    let context = stage(&draft).context.value;
    assert!(context > 100_000 && context < 131_072, "{context}");
    assert!(draft.memory.peak_bytes.0 + draft.memory.reserve_bytes.0 <= draft.memory.available_bytes.0);
    assert!(
        stage(&draft)
            .context
            .bounded_by
            .as_deref()
            .is_some_and(|by| by.starts_with("memory"))
    );
    let sample = card(&qwen_like());
    let spec = sample.stages().remove(0);
    let demand = memory::Demand::new(
        &sample,
        vec![memory::StageDemand {
            held: weight_path::held_weights(&spec, &sample, WeightPath::Native),
            stage: spec,
            kv_dtype: Dtype::F16,
            kv_pinned: None,
            prefill_batch: asked.policy.prefill_batch,
            threads: stage(&draft).threads.value,
        }],
        &asked.policy,
    );
    assert!(
        demand.peak(context + 1, 1).0 + draft.memory.reserve_bytes.0 > draft.memory.available_bytes.0,
        "and no longer one does"
    );
}

#[test]
fn t51_an_explicit_context_is_honoured_or_refused_with_the_largest_that_fits() {
    let four = plain(8, Bytes::gib(4));
    assert_eq!(
        stage(&drafted(&four, &qwen_like(), &with_context(4096)))
            .context
            .value,
        4096
    );
    let problem = refused(&four, &qwen_like(), &with_context(65_536));
    assert_eq!(
        (problem.code, problem.code.exit_code().number()),
        (Code::ContextTooLong, 5)
    );
    let details = problem.details.clone().expect("numbers");
    let largest = details["largest_context"].as_u64().expect("a number") as usize;
    assert!(
        problem
            .remedy
            .contains(&format!("`--set model.context={largest}`")),
        "{problem}"
    );
    assert!(details["needed_bytes"].as_u64() > details["available_bytes"].as_u64());
    assert_eq!(
        stage(&drafted(&four, &qwen_like(), &with_context(largest)))
            .context
            .value,
        largest,
        "the remedy works"
    );
    assert_eq!(
        refused(&four, &qwen_like(), &with_context(largest + 1)).code,
        Code::ContextTooLong
    );

    // Zero means the model's maximum, and is refused the same way.
    let problem = refused(&four, &qwen_like(), &with_context(0));
    assert!(problem.what.contains("131072"), "{problem}");
    let all = drafted(&plain(8, Bytes::gib(64)), &qwen_like(), &with_context(0));
    assert_eq!(stage(&all).context.value, 131_072);

    // With force: exactly as asked, and the risk is said.
    let force = Options {
        force: true,
        ..Options::default()
    };
    let draft = decide(&four, &card(&qwen_like()), &with_context(65_536), force).expect("forced");
    assert_eq!(stage(&draft).context.value, 65_536);
    let warning = draft
        .warnings
        .iter()
        .find(|w| w.code == Code::ContextTooLong)
        .expect("a warning");
    assert!(
        warning.severity == Severity::Warning && warning.why.contains("swap"),
        "{warning}"
    );
}

#[test]
fn t51_a_longer_context_than_the_model_was_trained_for_is_refused() {
    let short = Shape {
        context: 8192,
        ..qwen_like()
    };
    let problem = refused(&plain(8, Bytes::gib(64)), &short, &with_context(8193));
    assert!(
        problem.code == Code::ContextTooLong && problem.remedy.contains("8192"),
        "{problem}"
    );
}

#[test]
fn t51_memory_that_will_be_freed_is_credited() {
    let big = Shape {
        weights: (TensorType::Q8_0, 13 << 30),
        ..qwen_like()
    };
    let mut hardware = plain(8, Bytes::gib(11));
    hardware.memory.total_bytes = Bytes::gib(24);
    assert_eq!(refused(&hardware, &big, &nothing()).code, Code::MemoryShort);
    let credit = Options {
        credit: Bytes::gib(12),
        ..Options::default()
    };
    assert!(decide(&hardware, &card(&big), &nothing(), credit).is_ok());
}

#[test]
fn a_model_that_does_not_fit_is_refused_by_item() {
    let problem = refused(&plain(4, Bytes::gib(1)), &qwen_like(), &nothing());
    assert_eq!(
        (problem.code, problem.code.exit_code().number()),
        (Code::MemoryShort, 5)
    );
    assert!(problem.why.contains("weights 1.4 GiB"), "{problem}");
    let details = problem.details.expect("numbers");
    let sum: u64 = ["needed_bytes", "available_bytes"]
        .iter()
        .filter_map(|k| details[*k].as_u64())
        .sum();
    assert!(sum > 0 && details["short_bytes"].as_u64() > Some(400 << 20));
    assert!(details["largest_context"].is_null());
}

#[test]
fn t52_windows_bound_the_cache_of_their_layers() {
    let windowed = Shape {
        layers: 30,
        window: Some(4096),
        ..qwen_like()
    };
    let full = Shape {
        layers: 30,
        ..qwen_like()
    };
    let asked = with_context(65_536);
    let (less, more) = (
        drafted(&plain(8, Bytes::gib(64)), &windowed, &asked),
        drafted(&plain(8, Bytes::gib(64)), &full, &asked),
    );
    let token = 8 * (128 + 128) * 2u64;
    // The ring of a window holds 4096 - 1 + 256 tokens, in blocks of 64: 4352.
    let per_seq = token * (25 * 4352 + 5 * 65_536);
    assert_eq!(
        stage(&less).kv_bytes.value,
        Bytes(per_seq * stage(&less).max_seqs.value as u64)
    );
    assert_eq!(
        stage(&more).kv_bytes.value,
        Bytes(token * 30 * 65_536 * stage(&more).max_seqs.value as u64)
    );
}

#[test]
fn sequences_are_admitted_only_with_room_for_their_whole_context() {
    for (gib, seqs) in [(3, 1), (4, 2), (5, 3), (6, 4), (64, 4)] {
        let draft = drafted(&plain(8, Bytes::gib(gib)), &qwen_like(), &nothing());
        let stage = stage(&draft);
        assert_eq!(
            (stage.context.value, stage.max_seqs.value),
            (8192, seqs),
            "{gib} GiB"
        );
        assert_eq!(stage.max_seqs.bounded_by.is_some(), seqs < 4);
    }
    let mut asked = with_context(8192);
    asked.decoder().max_seqs = Some(pin("stages.decoder.max_seqs", 4));
    let problem = refused(&plain(8, Bytes::gib(4)), &qwen_like(), &asked);
    assert!(
        problem.remedy.contains("`--set stages.decoder.max_seqs=2` fits"),
        "{problem}"
    );
    // Only the sequences pinned: the context gives way.
    asked.decoder().context = None;
    let draft = drafted(&plain(8, Bytes::gib(4)), &qwen_like(), &asked);
    assert_eq!(stage(&draft).max_seqs.value, 4);
    assert!(stage(&draft).context.value < 8192);
}

#[test]
fn limits_bound_what_is_derived_and_refuse_what_is_pinned() {
    let hardware = plain(8, Bytes::gib(16));
    let mut asked = nothing();
    asked.limits.kv_cache_bytes = Some(pin("limits.kv_cache_bytes", Bytes::mib(448)));
    let draft = drafted(&hardware, &qwen_like(), &asked);
    assert_eq!(stage(&draft).context.value, 4096);
    assert_eq!(
        (stage(&draft).max_seqs.value, stage(&draft).kv_bytes.value),
        (1, Bytes::mib(448))
    );

    let mut asked = nothing();
    asked.limits.max_context = Some(pin("limits.max_context", 1024));
    assert_eq!(
        stage(&drafted(&hardware, &qwen_like(), &asked)).context.value,
        1024
    );
    asked.decoder().context = Some(pin("model.context", 2048));
    assert_eq!(refused(&hardware, &qwen_like(), &asked).code, Code::PinUnmet);

    let mut asked = nothing();
    asked.limits.memory_bytes = Some(pin("limits.memory_bytes", Bytes::gib(3)));
    let draft = drafted(&hardware, &qwen_like(), &asked);
    assert_eq!(draft.memory.available_bytes, Bytes::gib(3));
    assert_eq!(stage(&draft).max_seqs.value, 1);
}

#[test]
fn a_pinned_cache_is_kept_and_bounds_context_and_sequences() {
    let mut asked = nothing();
    asked.decoder().kv_bytes = Some(pin("stages.decoder.kv_bytes", Bytes::mib(600)));
    let draft = drafted(&plain(8, Bytes::gib(16)), &qwen_like(), &asked);
    let stage = stage(&draft);
    assert_eq!(stage.kv_bytes.value, Bytes::mib(600));
    assert_eq!(
        (stage.context.value, stage.max_seqs.value),
        (5440, 1),
        "85 blocks of 64 tokens use 595 MiB"
    );
    asked.decoder().context = Some(pin("model.context", 6000));
    let problem = refused(&plain(8, Bytes::gib(16)), &qwen_like(), &asked);
    assert!(problem.what.contains("`stages.decoder.kv_bytes`"), "{problem}");
    assert!(problem.remedy.contains("`--set model.context=5440`"), "{problem}");
}

#[test]
fn t53_types_are_what_the_engine_has_or_refused_by_stage() {
    let bf16 = Shape {
        weights: (TensorType::BF16, 1 << 30),
        ..qwen_like()
    };
    let hardware = plain(8, Bytes::gib(16));
    let draft = drafted(&hardware, &bf16, &nothing());
    assert_eq!(
        (stage(&draft).dtype.value, stage(&draft).kv_dtype.value),
        (Dtype::F32, Dtype::F16)
    );
    assert!(stage(&draft).dtype.because.contains("no BF16 arithmetic"));
    let f32_weights = Shape {
        weights: (TensorType::F32, 1 << 30),
        ..qwen_like()
    };
    assert_eq!(
        stage(&drafted(&hardware, &f32_weights, &nothing()))
            .kv_dtype
            .value,
        Dtype::F32
    );

    let mut asked = nothing();
    asked.decoder().dtype = Some(pin("stages.decoder.dtype", Dtype::Bf16));
    asked.decoder().kv_dtype = Some(pin("stages.decoder.kv_dtype", Dtype::Bf16));
    asked.decoder().weight_path = Some(pin("stages.decoder.weight_path", "w4a8-amx".to_owned()));
    let Problems(problems) =
        decide(&hardware, &card(&bf16), &asked, Options::default()).expect_err("a refusal");
    assert_eq!(problems.len(), 3, "all at once");
    for problem in problems {
        let code = if problem.what.contains("weight path") {
            Code::BadValue
        } else {
            Code::PinUnmet
        };
        assert!(
            problem.code == code && problem.what.contains("stage `decoder`"),
            "{problem}"
        );
    }
}

#[test]
fn bits_per_weight_come_from_the_bytes_as_held() {
    for (kind, bits) in [
        (TensorType::Q8_0, 8.5),
        (TensorType::Q4_K, 4.625),
        (TensorType::Q2_K, 4.625),
        (TensorType::F16, 16.0),
    ] {
        let shape = Shape {
            weights: (kind, 1 << 28),
            ..qwen_like()
        };
        let sample = card(&shape);
        let held = weight_path::held_weights(&sample.stages()[0], &sample, WeightPath::Native);
        assert!(
            (weight_path::bits_per_weight(&held) - bits).abs() < 1e-9,
            "{kind:?}"
        );
    }
}

#[test]
fn an_isa_cap_lowers_and_never_raises() {
    let hardware = plain(4, Bytes::gib(16));
    for (cap, wanted) in [
        ("avx2", Ok(false)),
        ("x86_64-avx2", Ok(false)),
        ("scalar", Ok(false)),
        ("best", Ok(false)),
        ("avx512_vnni", Ok(true)),
        ("avx512_bf16", Ok(true)),
        ("sse9", Err(Code::BadValue)),
    ] {
        let result = crate::derive::isa::cap(
            &hardware,
            Some(&pin("stages.decoder.isa_cap", cap.to_owned())),
            crate::config::Priority::Balanced,
            &weight_path::HeldWeights::default(),
        );
        match (result, wanted) {
            (Ok((decision, warnings)), Ok(warns)) => {
                assert_eq!(decision.value, cap, "a pin is kept");
                assert_eq!(!warnings.is_empty(), warns, "{cap}");
            }
            (Err(problem), Err(code)) => assert_eq!(problem.code, code, "{cap}"),
            (got, _) => panic!("{cap}: {got:?}"),
        }
    }
}

#[test]
fn t55_deadlines_follow_the_bytes_and_a_pin_wins() {
    let mut asked = nothing();
    let hardware = plain(4, Bytes::gib(64));
    let draft = drafted(&hardware, &qwen_like(), &asked);
    assert_eq!(
        draft.deadlines.load.value,
        Millis(60_000),
        "(1.5 GB / 500 MB/s + 1.5 GB / 100 MB/s) × 3 is 54 s; the floor holds"
    );
    let big = Shape {
        weights: (TensorType::Q8_0, 20_000_000_000),
        ..qwen_like()
    };
    let computed = drafted(&hardware, &big, &asked).deadlines.load.value;
    assert!(
        // 40 s of reading and 200 s of laying out, × 3.
        (Millis(719_000)..=Millis(721_000)).contains(&computed),
        "{computed}"
    );
    asked.deadlines.load = Some(pin("deadlines.load_ms", Millis(5)));
    assert_eq!(drafted(&hardware, &big, &asked).deadlines.load.value, Millis(5));
}

#[test]
fn workers_stay_on_one_numa_node_that_holds_them_and_the_memory() {
    let cores: Vec<String> = (0..64).map(|core| format!("{core},{}", core + 64)).collect();
    let cores: Vec<&str> = cores.iter().map(String::as_str).collect();
    let hardware = |node: u64| {
        with_nodes(
            machine(&[("all", &cores)], Bytes(node * 2)),
            &[("0-31,64-95", node), ("32-63,96-127", node)],
        )
    };
    let draft = drafted(&hardware(64 << 30), &qwen_like(), &nothing());
    assert_eq!(
        stage(&draft).cpus.value,
        cpus("0-31"),
        "one node's cores, never a sibling; the other node is free for the system"
    );
    assert_eq!(
        draft.memory.available_bytes,
        Bytes::gib(64),
        "the node's memory is the budget"
    );

    let large = Shape {
        weights: (TensorType::Q8_0, 40 << 30),
        ..qwen_like()
    };
    let draft = drafted(&hardware(32 << 30), &large, &nothing());
    assert_eq!(
        stage(&draft).threads.value,
        32,
        "policy.max_threads over both nodes"
    );
    assert!(
        draft
            .warnings
            .iter()
            .any(|w| w.code == Code::HardwareLimit && w.what.contains("NUMA"))
    );

    // Eight nodes of one core, as some virtual machines show: all are used.
    let vm = with_nodes(
        plain(8, Bytes::gib(16)),
        &[
            ("0", 2 << 30),
            ("1", 2 << 30),
            ("2", 2 << 30),
            ("3", 2 << 30),
            ("4", 2 << 30),
            ("5", 2 << 30),
            ("6", 2 << 30),
            ("7", 2 << 30),
        ],
    );
    assert_eq!(stage(&drafted(&vm, &qwen_like(), &nothing())).threads.value, 7);
}

#[test]
fn an_open_server_without_a_key_is_said() {
    let mut asked = nothing();
    asked.server.host = Some(pin("server.host", "0.0.0.0".to_owned()));
    let hardware = plain(4, Bytes::gib(16));
    let warning = |asked: &Asked| {
        let warnings = drafted(&hardware, &qwen_like(), asked).warnings;
        warnings.into_iter().find(|w| w.code == Code::ServerOpen)
    };
    let warns = |asked: &Asked| warning(asked).is_some();
    let place = asked.server.host.as_ref().map(|pin| pin.place.clone());
    assert_eq!(warning(&asked).unwrap().place, place, "where the address was set");
    asked.server.api_key = Some(pin("server.api_key", true));
    assert!(!warns(&asked));
    assert!(!warns(&nothing()), "loopback by default");
}

#[test]
fn huge_pages_follow_the_kernel_and_a_pin_that_it_cannot_follow_is_said() {
    let mut hardware = plain(4, Bytes::gib(16));
    for (mode, wanted) in [
        (Some("always"), true),
        (Some("madvise"), true),
        (Some("never"), false),
        (None, false),
    ] {
        hardware.memory.thp = mode.map(str::to_owned);
        let draft = drafted(&hardware, &qwen_like(), &nothing());
        assert_eq!(stage(&draft).huge_pages.value, wanted, "{mode:?}");
    }
    let mut asked = nothing();
    asked.decoder().huge_pages = Some(pin("stages.decoder.huge_pages", true));
    let draft = drafted(&hardware, &qwen_like(), &asked);
    assert!(stage(&draft).huge_pages.value && draft.warnings.iter().any(|w| w.what.contains("huge pages")));
}

#[test]
fn a_priority_changes_what_it_says() {
    use crate::config::Priority;
    let mut hardware = plain(8, Bytes::gib(64));
    hardware.isa = [
        "avx2",
        "avx512_bf16",
        "avx512_vnni",
        "avx512bw",
        "avx512dq",
        "avx512f",
        "avx512vl",
        "f16c",
        "fma",
    ]
    .map(str::to_owned)
    .to_vec();
    let with = |hardware: &crate::probe::Hardware, kind, priority| {
        let shape = Shape {
            weights: (kind, 1 << 30),
            ..qwen_like()
        };
        let mut asked = nothing();
        asked.priority = Some(pin("priority", priority));
        let draft = drafted(hardware, &shape, &asked);
        let stage = stage(&draft).clone();
        (
            stage.isa_cap.value,
            stage.kv_dtype.value,
            stage.max_seqs.value,
            stage.context.value,
        )
    };
    use TensorType::{BF16, F32, Q8_0};
    let chosen = |kind, priority| with(&hardware, kind, priority);
    let (exact, best) = ("avx512_vnni".to_owned(), "best".to_owned());
    assert_eq!(
        chosen(BF16, Priority::Balanced),
        (best.clone(), Dtype::F16, 4, 8192)
    );
    assert_eq!(chosen(BF16, Priority::Fast), (best.clone(), Dtype::F16, 4, 8192));
    assert_eq!(
        chosen(BF16, Priority::Quality),
        (exact.clone(), Dtype::F32, 4, 8192)
    );
    assert_eq!(chosen(BF16, Priority::Agentic), (exact, Dtype::F32, 1, 131_072));
    assert_eq!(chosen(Q8_0, Priority::Quality).0, best, "no BF16 weight meets it");
    assert_eq!(chosen(F32, Priority::Balanced).1, Dtype::F32);
    assert_eq!(chosen(F32, Priority::Fast).1, Dtype::F16);
    // Fidelity of the cache never costs context or sequences.
    let small = plain(8, Bytes::gib(16));
    let agentic = with(&small, Q8_0, Priority::Agentic);
    assert_eq!((agentic.1, agentic.2), (Dtype::F16, 1));
    assert!(agentic.3 > 100_000, "one sequence with all that fits");
    let five = plain(8, Bytes::gib(5));
    let balanced = with(&five, Q8_0, Priority::Balanced);
    assert_eq!(with(&five, Q8_0, Priority::Quality), balanced);
}
