//! Threads: a table of machines, quotas and pins.

use super::*;
use crate::base::{Bytes, Severity};
use crate::derive::samples::{cpus, machine, pin, plain, policy};

fn on(hardware: &Hardware, pins: &ThreadPins) -> Threads {
    choose(hardware, &policy(), pins, None).expect("a choice")
}

fn refused(hardware: &Hardware, pins: &ThreadPins) -> Problem {
    let mut problems = choose(hardware, &policy(), pins, None).expect_err("a refusal");
    problems.remove(0)
}

fn smt_eight() -> Hardware {
    machine(
        &[(
            "all",
            &["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"],
        )],
        Bytes::gib(16),
    )
}

fn with_quota(mut hardware: Hardware, cpus: f64) -> Hardware {
    hardware.quota.cpus = Some(cpus);
    hardware.quota.source = Some("/sys/fs/cgroup/cpu.max".to_owned());
    hardware
}

#[test]
fn one_worker_for_each_physical_core_less_one_for_the_server_on_larger_machines() {
    for (count, threads, list) in [
        (1, 1, "0"),
        (2, 2, "0-1"),
        (3, 3, "0-2"),
        (4, 3, "1-3"),
        (8, 7, "1-7"),
    ] {
        let chosen = on(&plain(count, Bytes::gib(8)), &ThreadPins::default());
        assert_eq!(chosen.threads.value, threads, "{count} cores");
        assert_eq!(chosen.cpus.value, cpus(list), "{count} cores");
        assert!(chosen.pin.value, "{count} cores");
        assert!(!chosen.confine.value);
    }
    let chosen = on(&smt_eight(), &ThreadPins::default());
    assert_eq!(
        (chosen.threads.value, chosen.cpus.value),
        (7, cpus("1-7")),
        "siblings stay idle"
    );
}

#[test]
fn the_quota_is_rounded_down_and_never_below_one() {
    for (quota, threads) in [(7.65, 7), (4.0, 4), (1.99, 1), (0.5, 1), (0.01, 1)] {
        let chosen = on(
            &with_quota(plain(16, Bytes::gib(8)), quota),
            &ThreadPins::default(),
        );
        assert_eq!(chosen.threads.value, threads, "quota {quota}");
        assert_eq!(chosen.cpus.value.len(), threads, "quota {quota}");
        assert!(
            chosen
                .threads
                .bounded_by
                .as_deref()
                .is_some_and(|by| by.contains("cpu.max")),
            "quota {quota}"
        );
        assert!(!chosen.pin.value, "time is limited, not CPUs");
        let warned = starved(&with_quota(plain(16, Bytes::gib(8)), quota)).is_some();
        assert_eq!(warned, quota < 1.0, "quota {quota}");
    }
    for odd in [f64::NAN, f64::INFINITY, 0.0, -3.0] {
        let chosen = on(&with_quota(plain(2, Bytes::gib(8)), odd), &ThreadPins::default());
        assert_eq!(chosen.threads.value, 2, "a quota of {odd} is none");
    }
}

#[test]
fn the_most_capable_kind_alone_where_it_is_enough() {
    let p_and_e: &[(&str, &[&str])] = &[
        ("P", &["0-1", "2-3", "4-5", "6-7", "8-9", "10-11"]),
        ("E", &["12", "13", "14", "15", "16", "17", "18", "19"]),
        ("LP-E", &["20", "21"]),
    ];
    let chosen = on(&machine(p_and_e, Bytes::gib(32)), &ThreadPins::default());
    assert_eq!(
        (chosen.threads.value, chosen.cpus.value),
        (6, cpus("0,2,4,6,8,10"))
    );
    assert!(
        chosen.threads.because.contains("kind P"),
        "{}",
        chosen.threads.because
    );

    // Two big cores are too few: the small ones join.
    let phone: &[(&str, &[&str])] = &[("big", &["6", "7"]), ("little", &["0", "1", "2", "3", "4", "5"])];
    let chosen = on(&machine(phone, Bytes::gib(8)), &ThreadPins::default());
    assert_eq!(chosen.threads.value, 7, "8 cores less one");

    let mut unsure = machine(p_and_e, Bytes::gib(32));
    unsure.topology.kinds_confidence = Confidence::Low;
    let chosen = on(&unsure, &ThreadPins::default());
    assert_eq!(chosen.threads.value, 15, "all 16 cores less one");
    assert!(!chosen.pin.value && chosen.threads.because.contains("cannot be told apart"));
}

#[test]
fn cpus_that_are_offline_forbidden_or_isolated_are_never_chosen() {
    let mut hardware = plain(8, Bytes::gib(8));
    hardware.cpus.online = cpus("0-5");
    hardware.cpus.allowed = cpus("2-7");
    hardware.cpus.isolated = cpus("4");
    let chosen = on(&hardware, &ThreadPins::default());
    assert_eq!(chosen.cpus.value, cpus("2-3,5"));
    assert_eq!(chosen.threads.value, 3);

    hardware.cpus.isolated = cpus("0-7");
    assert_eq!(
        on(&hardware, &ThreadPins::default()).threads.value,
        3,
        "a process put on isolated CPUs only is meant to use them: 4 less one"
    );
    hardware.cpus.allowed = cpus("6-7");
    assert_eq!(refused(&hardware, &ThreadPins::default()).code, Code::ProbeFailed);
}

#[test]
fn cpus_without_a_known_core_count_as_cores() {
    let mut hardware = plain(4, Bytes::gib(4));
    hardware.topology = crate::probe::hardware::Topology::default();
    assert_eq!(on(&hardware, &ThreadPins::default()).threads.value, 3);
}

#[test]
fn a_pinned_count_is_met_with_siblings_last_or_refused() {
    let pins = |count| ThreadPins {
        threads: Some(pin("stages.decoder.threads", count)),
        ..ThreadPins::default()
    };
    for (count, list) in [(1, "0"), (8, "0-7"), (10, "0-9"), (16, "0-15")] {
        let chosen = on(&smt_eight(), &pins(count));
        assert_eq!((chosen.threads.value, chosen.cpus.value), (count, cpus(list)));
        assert!(matches!(
            chosen.threads.origin,
            crate::derive::Origin::Pinned { .. }
        ));
    }
    for count in [0, 17] {
        let problem = refused(&smt_eight(), &pins(count));
        assert!(matches!(problem.code, Code::PinUnmet | Code::BadValue), "{count}");
        assert!(problem.place.is_some());
    }
    let mut limited = pins(6);
    limited.max_threads = Some(pin("limits.max_threads", 4));
    assert_eq!(refused(&smt_eight(), &limited).code, Code::PinUnmet);
    limited.threads = None;
    assert_eq!(on(&smt_eight(), &limited).threads.value, 4);
}

#[test]
fn a_pinned_count_above_the_quota_is_refused_unless_forced() {
    let hardware = with_quota(plain(8, Bytes::gib(8)), 4.5);
    let mut pins = ThreadPins {
        threads: Some(pin("stages.decoder.threads", 6)),
        ..ThreadPins::default()
    };
    let problem = refused(&hardware, &pins);
    assert!(problem.remedy.contains("at most 4"), "{problem}");
    pins.force = true;
    let chosen = on(&hardware, &pins);
    assert_eq!(chosen.threads.value, 6);
    assert!(
        chosen
            .warnings
            .iter()
            .any(|w| w.severity == Severity::Warning && w.code == Code::HardwareLimit)
    );
}

#[test]
fn pinned_cpus_are_kept_or_refused() {
    let on_cpus = |list: &str, threads: Option<usize>| ThreadPins {
        cpus: Some(pin("stages.decoder.cpus", cpus(list))),
        threads: threads.map(|count| pin("stages.decoder.threads", count)),
        ..ThreadPins::default()
    };
    let mut hardware = smt_eight();
    hardware.cpus.online = hardware.cpus.online.difference(&cpus("5-7"));
    hardware.cpus.allowed = cpus("0-4,8-15");
    for (list, threads, count, pinned) in [
        ("2-3", None, 2, true),
        ("2-3,10-11", None, 4, true),
        ("2-3,10-11", Some(2), 2, false),
        ("1", Some(1), 1, true),
    ] {
        let chosen = on(&hardware, &on_cpus(list, threads));
        assert_eq!(
            (chosen.threads.value, chosen.cpus.value),
            (count, cpus(list)),
            "{list}"
        );
        assert_eq!(chosen.pin.value, pinned, "{list}");
        assert!(chosen.confine.value, "{list}");
    }
    for (list, threads, says) in [
        ("5-7", None, "not online"),
        ("", None, "names no CPU"),
        ("0-1", Some(3), "only 2 CPUs"),
    ] {
        let problem = refused(&hardware, &on_cpus(list, threads));
        assert!(problem.what.contains(says), "{list}: {problem}");
    }
    hardware.cpus.allowed = cpus("2-3");
    let problem = refused(&hardware, &on_cpus("2-4", None));
    assert!(
        problem.what.contains("CPU 4, which this process may not use"),
        "{problem}"
    );

    let chosen = on(&with_quota(smt_eight(), 2.5), &on_cpus("0-3", None));
    assert_eq!(
        (chosen.threads.value, chosen.cpus.value),
        (2, cpus("0-3")),
        "the quota bounds the count, not the list"
    );
    assert!(!chosen.pin.value);
}

#[test]
fn workers_are_not_bound_where_the_topology_is_hidden_unless_asked() {
    for environment in [Environment::Wsl2, Environment::Gvisor] {
        let mut hardware = plain(10, Bytes::gib(8));
        hardware.environment = environment;
        let chosen = on(&hardware, &ThreadPins::default());
        assert!(!chosen.pin.value && chosen.pin.because.contains("hides"));
        let pins = ThreadPins {
            pin: Some(pin("stages.decoder.pin", true)),
            ..ThreadPins::default()
        };
        let chosen = on(&hardware, &pins);
        assert!(chosen.pin.value, "a pin is kept");
        assert!(chosen.warnings.iter().any(|w| w.code == Code::HardwareUnsure));
    }
}
