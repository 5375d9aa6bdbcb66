//! Where every value came from, and what it stands above.
//!
//! In: the merged values with figment's tags, and the layers. Out: one `Provenance` per key that a layer names.
//! Invariant: each entry names the layer that figment's merge took the value from, never one guessed again.

use std::collections::BTreeMap;

use figment::Figment;
use figment::value::{Dict, Value};
use serde::Serialize;

use super::layer::Layer;
use super::schema::{SECRETS, Secret};
use super::spans::Spot;
use crate::base::{KeyPath, Place};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenance {
    /// `built-in`, `class`, `profile`, `user file`, `environment`, `--set` or `command line`.
    pub layer: String,
    /// File with line and column, variable or flag.
    pub place: Place,
    /// The value; `null` where the layer un-pinned the key.
    pub value: serde_json::Value,
    /// What lower layers said, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadowed: Vec<Shadowed>,
}

/// What a lower layer said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shadowed {
    /// The layer.
    pub layer: String,
    /// Where in it.
    pub place: Place,
    /// Its value; `null` where it un-pinned the key.
    pub value: serde_json::Value,
}

/// A value that somebody pinned, with where.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin<T> {
    /// The value.
    pub value: T,
    /// Name of the layer.
    pub layer: String,
    /// File with line and column, variable or flag. Without an excerpt.
    pub place: Place,
}

/// Whether a key's value is never shown.
#[must_use]
pub fn is_secret(path: &KeyPath) -> bool {
    SECRETS.contains(&path.as_str())
}

/// The layer a merged value was taken from.
fn layer_of<'a>(figment: &Figment, layers: &'a [Layer], value: &Value) -> Option<&'a Layer> {
    let index: usize = figment
        .get_metadata(value.tag())?
        .source
        .as_ref()?
        .custom()?
        .parse()
        .ok()?;
    layers.get(index)
}

/// Provenance and spot of every leaf and every un-pinned key of the merged values.
#[must_use]
pub fn trace(figment: &Figment, layers: &[Layer], merged: &Dict) -> BTreeMap<KeyPath, (Provenance, Spot)> {
    let mut found = BTreeMap::new();
    let mut open: Vec<(KeyPath, &Value)> = merged
        .iter()
        .map(|(key, value)| (KeyPath::new("").child(key), value))
        .collect();
    while let Some((path, value)) = open.pop() {
        if let Value::Dict(_, values) = value {
            open.extend(values.iter().map(|(key, value)| (path.child(key), value)));
            continue;
        }
        let Some(layer) = layer_of(figment, layers, value) else {
            continue;
        };
        let Some(spot) = spot_at_or_above(layer, &path) else {
            continue;
        };
        let shadowed = layers[..layer.index]
            .iter()
            .rev()
            .flat_map(|lower| said(lower, &path))
            .collect();
        let provenance = Provenance {
            layer: layer.kin.as_str().to_owned(),
            place: spot.place(),
            value: shown(&path, value),
            shadowed,
        };
        found.insert(path, (provenance, spot.clone()));
    }
    found
}

/// What a layer says about a key: its leaf there, an un-pinned section above it, or leaves below it.
fn said<'a>(layer: &'a Layer, path: &'a KeyPath) -> impl Iterator<Item = Shadowed> + 'a {
    layer.spots.iter().filter_map(move |(at, spot)| {
        let value = find(&layer.values, at)?;
        let above = is_below(path, at) && matches!(value, Value::Empty(..));
        (at == path || above || is_below(at, path)).then(|| Shadowed {
            layer: layer.kin.as_str().to_owned(),
            place: spot.place(),
            value: shown(at, value),
        })
    })
}

fn is_below(path: &KeyPath, section: &KeyPath) -> bool {
    path.as_str()
        .strip_prefix(section.as_str())
        .is_some_and(|rest| rest.starts_with('.'))
}

fn spot_at_or_above<'a>(layer: &'a Layer, path: &KeyPath) -> Option<&'a Spot> {
    let mut text = path.as_str();
    loop {
        if let Some(spot) = layer.spots.get(&KeyPath::new(text)) {
            return Some(spot);
        }
        text = text.rsplit_once('.')?.0;
    }
}

/// The value at a path of a layer.
#[must_use]
pub fn find<'a>(values: &'a Dict, path: &KeyPath) -> Option<&'a Value> {
    let mut segments = path.segments();
    let mut value = values.get(segments.next()?)?;
    for segment in segments {
        let Value::Dict(_, values) = value else {
            return None;
        };
        value = values.get(segment)?;
    }
    Some(value)
}

/// A value as JSON, secrets replaced.
fn shown(path: &KeyPath, value: &Value) -> serde_json::Value {
    if is_secret(path) && !matches!(value, Value::Empty(..)) {
        return Secret::PLACEHOLDER.into();
    }
    serde_json::to_value(value).unwrap_or(serde_json::Value::Null)
}
