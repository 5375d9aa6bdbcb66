//! Two plans side by side: every key whose value differs, with both reasons.
//!
//! In: two plans. Out: the keys that differ, in order. Invariant: the values and reasons are those of `explain`; a key
//! that only one plan has is listed with the other side empty.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Explanation, LedgerItem, Origin, Plan};
use crate::base::KeyPath;

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The key. Items of the memory ledger are keys of their own here: `memory.items.weights`.
    pub key: String,
    /// In the first plan.
    pub left: Option<Side>,
    /// In the other.
    pub right: Option<Side>,
}

/// A key in one plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The value.
    pub value: serde_json::Value,
    /// The rule or reason, with its numbers.
    pub because: String,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What bounded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounded_by: Option<String>,
}

impl Side {
    fn of(explanation: &Explanation) -> Self {
        Self {
            value: explanation.value.clone(),
            because: explanation.because.clone(),
            origin: Some(explanation.origin.clone()),
            bounded_by: explanation.bounded_by.clone(),
        }
    }

    fn item(item: &LedgerItem) -> Self {
        Self {
            value: serde_json::Value::from(item.bytes.to_string()),
            because: item.because.clone(),
            origin: None,
            bounded_by: None,
        }
    }
}

/// The list of items is compared item by item.
const ITEMS: &str = "memory.items";

/// Every key whose value differs. The digest, which follows from the others, is not among them.
#[must_use]
pub fn between(left: &Plan, right: &Plan) -> Vec<Difference> {
    let keys: BTreeSet<&KeyPath> = left
        .explanations
        .keys()
        .chain(right.explanations.keys())
        .collect();
    let mut found = Vec::new();
    for key in keys {
        match key.as_str() {
            "digest" => continue,
            ITEMS => {
                items(left, right, &mut found);
                continue;
            }
            _ => {}
        }
        let (a, b) = (left.explanations.get(key), right.explanations.get(key));
        if a.map(|a| &a.value) != b.map(|b| &b.value) {
            found.push(Difference {
                key: key.to_string(),
                left: a.map(Side::of),
                right: b.map(Side::of),
            });
        }
    }
    found
}

fn items(left: &Plan, right: &Plan, found: &mut Vec<Difference>) {
    let name = |item: &LedgerItem| (item.stage.clone(), item.name.clone());
    let names: BTreeSet<(Option<String>, String)> = left
        .memory
        .items
        .iter()
        .chain(&right.memory.items)
        .map(name)
        .collect();
    let in_plan = |plan: &Plan, wanted: &(Option<String>, String)| {
        let item = plan.memory.items.iter().find(|item| name(item) == *wanted);
        item.cloned()
    };
    for wanted in names {
        let (a, b) = (in_plan(left, &wanted), in_plan(right, &wanted));
        if a.as_ref().map(|a| a.bytes) != b.as_ref().map(|b| b.bytes) {
            let (stage, name) = &wanted;
            found.push(Difference {
                key: match stage {
                    Some(stage) => format!("{ITEMS}.{stage}.{name}"),
                    None => format!("{ITEMS}.{name}"),
                },
                left: a.as_ref().map(Side::item),
                right: b.as_ref().map(Side::item),
            });
        }
    }
}
