//! Contradictions between keys that are each fine alone.
//!
//! In: the merged profile and policy, with the spot of each key. Out: problems that name both places.
//! Invariant: only contradictions between what people said; whether it fits the machine is for derivation.

use std::collections::BTreeMap;

use super::policy::Policy;
use super::schema::Profile;
use super::spans::Spot;
use crate::base::{Code, KeyPath, Place, Problem};

/// Every contradiction.
pub(super) fn check(profile: &Profile, policy: &Policy, spots: &BTreeMap<KeyPath, Spot>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut clash = |key: &str, other: &str, what: String, remedy: String| {
        found.push(Problem::new(Code::BadValue, what, remedy).at(both(key, other, spots)));
    };
    let model = &profile.model;
    if let (Some(language), Some(languages)) = (&model.default_language, &model.languages)
        && !languages.contains(language)
    {
        clash(
            "model.default_language",
            "model.languages",
            format!("`model.default_language` is `{language}`, which `model.languages` does not list"),
            format!("add `{language}` to `model.languages`, or choose one of them"),
        );
    }
    let limits = &profile.limits;
    let mut within = |key: &str, value: Option<u64>, bound_key: &str, bound: Option<u64>| {
        if let (Some(value), Some(bound)) = (value, bound)
            && value > bound
        {
            clash(
                key,
                bound_key,
                format!("`{key}` is {value}, above the bound `{bound_key}` of {bound}"),
                format!("lower `{key}` or raise `{bound_key}`"),
            );
        }
    };
    let count = |value: Option<usize>| value.map(|value| value as u64);
    within(
        "model.context",
        count(model.context),
        "limits.max_context",
        count(limits.max_context),
    );
    within(
        "server.request_timeout_ms",
        profile.server.request_timeout_ms.map(|millis| millis.0),
        "limits.request_timeout_s",
        limits
            .request_timeout_s
            .map(|seconds| seconds.saturating_mul(1000)),
    );
    for (name, stage) in &profile.stages {
        let key = |key: &str| format!("stages.{name}.{key}");
        within(
            &key("context"),
            count(stage.context),
            "limits.max_context",
            count(limits.max_context),
        );
        within(
            &key("threads"),
            count(stage.threads),
            "limits.max_threads",
            count(limits.max_threads),
        );
        let kv_bytes = stage.kv_bytes.map(|bytes| bytes.0);
        within(
            &key("kv_bytes"),
            kv_bytes,
            "limits.kv_cache_bytes",
            limits.kv_cache_bytes.map(|bytes| bytes.0),
        );
    }
    within(
        "policy.context_floor",
        Some(policy.context_floor as u64),
        "policy.context_cap",
        Some(policy.context_cap as u64),
    );
    for (name, stage) in &profile.stages {
        if let (Some(threads), Some(cpus), Some(true)) = (stage.threads, &stage.cpus, stage.pin)
            && threads > cpus.len()
        {
            let (threads_key, cpus_key) = (format!("stages.{name}.threads"), format!("stages.{name}.cpus"));
            clash(
                &threads_key,
                &cpus_key,
                format!(
                    "`{threads_key}` is {threads}, but `{cpus_key}` names {} CPUs and `pin` is true",
                    cpus.len()
                ),
                "name as many CPUs as threads, lower the threads, or set `pin: false`".to_owned(),
            );
        }
    }
    zero(profile, policy, spots, &mut found);
    found
}

/// Amounts and durations that mean nothing when zero.
fn zero(profile: &Profile, policy: &Policy, spots: &BTreeMap<KeyPath, Spot>, found: &mut Vec<Problem>) {
    let server = &profile.server;
    let deadlines = &profile.deadlines;
    let millis = |value: Option<crate::base::Millis>| value.map(|value| value.0);
    let mut values = vec![
        (
            "policy.read_bytes_per_s".to_owned(),
            Some(policy.read_bytes_per_s.0),
        ),
        (
            "policy.pack_bytes_per_s".to_owned(),
            Some(policy.pack_bytes_per_s.0),
        ),
        (
            "server.max_body_bytes".to_owned(),
            server.max_body_bytes.map(|bytes| bytes.0),
        ),
        (
            "server.read_timeout_ms".to_owned(),
            millis(server.read_timeout_ms),
        ),
        (
            "server.request_timeout_ms".to_owned(),
            millis(server.request_timeout_ms),
        ),
        ("deadlines.load_ms".to_owned(), millis(deadlines.load_ms)),
        ("deadlines.warmup_ms".to_owned(), millis(deadlines.warmup_ms)),
        (
            "limits.kv_cache_bytes".to_owned(),
            profile.limits.kv_cache_bytes.map(|bytes| bytes.0),
        ),
        (
            "limits.memory_bytes".to_owned(),
            profile.limits.memory_bytes.map(|bytes| bytes.0),
        ),
    ];
    let stages = profile.stages.iter();
    values.extend(stages.map(|(name, stage)| {
        (
            format!("stages.{name}.kv_bytes"),
            stage.kv_bytes.map(|bytes| bytes.0),
        )
    }));
    let contexts = profile
        .stages
        .iter()
        .map(|(name, stage)| (format!("stages.{name}.context"), stage.context));
    for (key, _) in std::iter::once(("model.context".to_owned(), profile.model.context))
        .chain(contexts)
        .filter(|(_, tokens)| *tokens == Some(1))
    {
        let mut problem = Problem::new(
            Code::BadValue,
            format!("`{key}` is 1, but a prompt and its answer take a token each"),
            "write at least 2",
        );
        problem.place = spots.get(&KeyPath::new(&key)).map(|spot| spot.shown("1", &[]));
        found.push(problem);
    }
    for (key, _) in values.iter().filter(|(_, value)| *value == Some(0)) {
        let place = spots.get(&KeyPath::new(key)).map(|spot| spot.shown("0", &[]));
        let mut problem = Problem::new(
            Code::BadValue,
            format!("`{key}` is 0, with which nothing could be served"),
            "write a larger value, or `auto`",
        );
        problem.place = place;
        found.push(problem);
    }
}

/// The place of `key`, with `other` marked too where both stand in one file.
fn both(key: &str, other: &str, spots: &BTreeMap<KeyPath, Spot>) -> Place {
    let other = spots.get(&KeyPath::new(other));
    let Some(spot) = spots.get(&KeyPath::new(key)) else {
        return other.map_or_else(Place::default, Spot::place);
    };
    match other {
        Some(other) if other.source == spot.source => spot.shown("this", &[(other, "contradicts this")]),
        Some(_) | None => spot.shown("contradicts a value set elsewhere", &[]),
    }
}
