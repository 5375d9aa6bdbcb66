//! `Layer`: one file or one assignment, checked and typed, ready to be merged.
//!
//! In: a `Node` or a text with the shape of the language. Out: values for figment and the spot of every leaf.
//! Invariant: a layer holds only known keys with values of their kind; everything else became a problem.

use std::collections::BTreeMap;
use std::sync::Arc;

use figment::value::{Dict, Empty, Map, Tag, Value};
use figment::{Metadata, Provider};

use super::scalar;
use super::schema::{CLASS_KEYS, PROFILE_KEYS, SCHEMA};
use super::shape::{Field, Shape};
use super::spans::{Source, Spot};
use super::unknown_keys::{misplaced, stray_variable, unknown};
use super::yaml::{self, Entry, Kind, Node};
use crate::base::{Code, KeyPath, Problem, Severity, env_vars};

/// Problems shown per layer; a file with more has one cause, and more lines would hide it.
const MAX_PROBLEMS: usize = 50;

/// Where values come from, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kin {
    /// Compiled-in policy.
    BuiltIn,
    /// `hardware/<class>.yaml`.
    Class,
    /// `profiles/<name>.yaml` and what it extends.
    Profile,
    /// The user's own file.
    User,
    /// `EDGE_DEPLOY__…` variables.
    Environment,
    /// `--set key=value`.
    Set,
    /// Other flags that stand for a key.
    CommandLine,
}

impl Kin {
    /// The name in provenance and `explain`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BuiltIn => "built-in",
            Self::Class => "class",
            Self::Profile => "profile",
            Self::User => "user file",
            Self::Environment => "environment",
            Self::Set => "--set",
            Self::CommandLine => "command line",
        }
    }

    /// Whether a top-level key may stand in it; if not, where it belongs.
    fn refuses(self, key: &str) -> Option<&'static str> {
        let is_policy = key == "policy";
        match self {
            Self::BuiltIn | Self::Class if !CLASS_KEYS.contains(&key) => {
                Some("a profile (`profiles/<name>.yaml`) or your own file")
            }
            Self::Profile if is_policy => Some("a class file (`hardware/<class>.yaml`) or your own file"),
            Self::User | Self::Environment | Self::Set | Self::CommandLine if key == "extends" => {
                Some("a profile (`profiles/<name>.yaml`)")
            }
            Self::Environment | Self::Set | Self::CommandLine if key == "schema" => {
                Some("the file that it describes")
            }
            _ => None,
        }
    }

    fn file_kind(self) -> &'static str {
        match self {
            Self::BuiltIn | Self::Class => "hardware class file",
            Self::Profile => "profile",
            Self::User => "user file",
            Self::Environment => "variable",
            Self::Set => "`--set`",
            Self::CommandLine => "flag",
        }
    }
}

/// One file or assignment.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Where it comes from.
    pub kin: Kin,
    /// Typed values. `Empty` un-pins.
    pub values: Dict,
    /// Where each leaf, or un-pinned section, stands.
    pub spots: BTreeMap<KeyPath, Spot>,
    /// Position in the order of merging; lets a merged value name its layer.
    pub index: usize,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::from(self.kin.as_str(), figment::Source::Custom(self.index.to_string()))
    }

    fn data(&self) -> Result<Map<figment::Profile, Dict>, figment::Error> {
        Ok(figment::Profile::Default.collect(self.values.clone()))
    }
}

/// Turns nodes and texts into layers, collecting every problem.
#[derive(Debug)]
pub struct Reader<'a> {
    root: &'a Shape,
    lenient: bool,
    kin: Kin,
    newer: bool,
    spots: BTreeMap<KeyPath, Spot>,
    found: Vec<Problem>,
    hidden: usize,
}

impl<'a> Reader<'a> {
    /// A reader for one layer.
    #[must_use]
    pub fn new(root: &'a Shape, kin: Kin, lenient: bool) -> Self {
        Self {
            root,
            lenient,
            kin,
            newer: false,
            spots: BTreeMap::new(),
            found: Vec::new(),
            hidden: 0,
        }
    }

    /// Reads a file's text. The layer holds what could be understood, beside the problems.
    #[must_use]
    pub fn file(mut self, source: &Arc<Source>) -> (Layer, Vec<Problem>) {
        let (node, problems) = yaml::read(source);
        for problem in problems {
            self.note(problem);
        }
        let mut values = Dict::new();
        match node.map(|node| (node.kind, node.spot)) {
            None => {}
            Some((Kind::Scalar { text, plain: true }, _)) if scalar::unpins(&text) => {}
            Some((Kind::Map(entries), _)) => {
                self.newer = declares_newer(&entries);
                values = self.top(&entries);
            }
            Some((_, spot)) => self.note(
                Problem::new(
                    Code::YamlSyntax,
                    "the file is not a map of keys",
                    "start with a key, such as `model:`",
                )
                .at(spot.shown("expected `key:`", &[])),
            ),
        }
        self.finish(values)
    }

    /// Reads one assignment, such as a variable or `--set`. `key` is dotted.
    #[must_use]
    pub fn assignment(mut self, key: &str, source: &Arc<Source>) -> (Layer, Vec<Problem>) {
        let path = KeyPath::new(key);
        if path.as_str() != key || key.is_empty() {
            let what = format!("`{key}` names no key and has no effect");
            let remedy = "write the key's parts joined by single dots: `stages.decoder.threads`";
            self.note(Problem::new(Code::UnknownKey, what, remedy).at(Spot::whole(source).place()));
            return self.finish(Dict::new());
        }
        let values = self.assign(&path, source).unwrap_or_default();
        self.finish(values)
    }

    /// Reads one variable.
    #[must_use]
    pub fn variable(self, name: &str, text: &str) -> (Layer, Vec<Problem>) {
        let source = Source::value(name, text);
        let mut reader = self;
        let Some(path) = name.strip_prefix(env_vars::KEY_PREFIX) else {
            let mut problem = stray_variable(name, reader.root);
            problem.place = Some(Spot::whole(&source).place());
            reader.note(problem);
            return reader.finish(Dict::new());
        };
        let path = path.to_lowercase();
        let key = path.split("__").collect::<Vec<_>>().join(".");
        if path
            .split("__")
            .any(|segment| segment.is_empty() || segment.contains('.'))
        {
            reader.note(
                Problem::new(
                    Code::UnknownKey,
                    format!("the variable `{name}` names no key and has no effect"),
                    "write the key's parts in capitals, joined by two underscores: `EDGE_DEPLOY__STAGES__DECODER__THREADS`",
                )
                .at(Spot::whole(&source).place()),
            );
            return reader.finish(Dict::new());
        }
        if text.is_empty() {
            let mut problem = Problem::warning(
                Code::BadValue,
                format!("the variable `{name}` is empty and has no effect"),
                "write `auto` to un-pin the key, or unset the variable",
            );
            problem.place = Some(Spot::whole(&source).place());
            reader.note(problem);
            return reader.finish(Dict::new());
        }
        reader.assignment(&key, &source)
    }

    fn finish(mut self, mut values: Dict) -> (Layer, Vec<Problem>) {
        // Read before layering; they set nothing.
        for key in ["extends", "schema"] {
            values.remove(key);
            self.spots.remove(&KeyPath::new(key));
        }
        if self.hidden > 0 {
            self.found.push(Problem::new(
                Code::YamlSyntax,
                format!("{} more problems are not shown", self.hidden),
                "correct the first ones and run again",
            ));
        }
        let layer = Layer {
            kin: self.kin,
            values,
            spots: self.spots,
            index: 0,
        };
        (layer, self.found)
    }

    fn note(&mut self, problem: Problem) {
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(problem);
        } else if problem.severity == Severity::Error {
            self.hidden += 1;
        }
    }

    fn leniency(&self) -> Severity {
        if self.lenient || self.newer {
            Severity::Warning
        } else {
            Severity::Error
        }
    }

    fn room_for_more(&mut self) -> bool {
        if self.found.len() < MAX_PROBLEMS {
            return true;
        }
        self.hidden += usize::from(self.leniency() == Severity::Error);
        false
    }

    fn note_unknown(&mut self, path: &KeyPath, spot: &Spot, here: &Shape) {
        if self.room_for_more() {
            let problem = unknown(path, spot, here, self.root, self.leniency());
            self.found.push(problem);
        }
    }

    fn note_split(&mut self, path: &KeyPath, spot: &Spot, meant: &str) {
        if self.room_for_more() {
            let mut problem = Problem::new(
                Code::UnknownKey,
                format!("unknown key `{path}`: a list of CPUs is split here"),
                format!("quote the list: `{meant}`"),
            )
            .why("inside braces a comma starts the next key, so what follows it is not part of the list")
            .at(if spot.source.has_lines {
                spot.shown("read as a key", &[])
            } else {
                spot.place()
            });
            problem.severity = self.leniency();
            self.found.push(problem);
        }
    }

    fn top(&mut self, entries: &[Entry]) -> Dict {
        let mut values = Dict::new();
        let Shape::Map(fields) = self.root else {
            return values;
        };
        for entry in entries.iter().filter(|entry| !entry.key.starts_with("x-")) {
            let path = KeyPath::new("").child(&entry.key);
            let Some(field) = fields.get(&entry.key) else {
                self.note_unknown(&path, &entry.key_spot, self.root);
                continue;
            };
            if let Some(belongs) = self.kin.refuses(&entry.key) {
                if self.room_for_more() {
                    let kind = self.kin.file_kind();
                    let problem = misplaced(&path, &entry.key_spot, kind, belongs, self.leniency());
                    self.found.push(problem);
                }
                continue;
            }
            if let Some(value) = self.node(&entry.value, &field.shape, &path) {
                values.insert(entry.key.clone(), value);
            }
        }
        values
    }

    /// The typed value of a node, or `None` after noting why not.
    fn node(&mut self, node: &Node, shape: &Shape, path: &KeyPath) -> Option<Value> {
        match (&node.kind, shape) {
            (Kind::Scalar { text, plain }, _)
                if scalar::unpins(text) && (*plain || *shape != Shape::Text) =>
            {
                // A quoted empty text is a mistake where no text is meant.
                if !*plain && text.is_empty() {
                    return self.bad(
                        node,
                        shape,
                        path,
                        "is empty",
                        &format!("write {}", shape.wanted()),
                    );
                }
                self.spots.insert(path.clone(), node.spot.clone());
                Some(Value::Empty(Tag::Default, Empty::None))
            }
            (Kind::Map(entries), Shape::Map(fields)) => {
                let mut values = Dict::new();
                for (at, entry) in entries.iter().enumerate() {
                    let path = path.child(&entry.key);
                    match fields.get(&entry.key) {
                        None => match split_list(entries, at, fields) {
                            Some(meant) => self.note_split(&path, &entry.key_spot, &meant),
                            None => self.note_unknown(&path, &entry.key_spot, shape),
                        },
                        Some(field) => {
                            if let Some(value) = self.node(&entry.value, &field.shape, &path) {
                                values.insert(entry.key.clone(), value);
                            }
                        }
                    }
                }
                Some(Value::Dict(Tag::Default, values))
            }
            (Kind::List(items), Shape::List(item)) => {
                let mut values = Vec::new();
                for node in items {
                    let Kind::Scalar { text, plain } = &node.kind else {
                        return self.bad(
                            node,
                            shape,
                            path,
                            "holds a map or a list",
                            &format!("write {}", shape.wanted()),
                        );
                    };
                    if *plain && scalar::unpins(text) && !matches!(text.as_str(), "auto") {
                        return self.bad(node, shape, path, "holds an empty item", "remove the item");
                    }
                    values.push(self.scalar(node, text, item, path)?);
                }
                self.spots.insert(path.clone(), node.spot.clone());
                Some(Value::Array(Tag::Default, values))
            }
            (Kind::Scalar { text, .. }, Shape::Map(_)) => {
                let what = format!("is `{}` where a map of keys is expected", short(text));
                self.bad(
                    node,
                    shape,
                    path,
                    &what,
                    "write the keys below it, indented by two spaces",
                )
            }
            (Kind::Scalar { text, .. }, Shape::List(_)) => {
                let remedy = format!("write a list: `[{}]`", short(text));
                self.bad(node, shape, path, "is not a list", &remedy)
            }
            (Kind::Scalar { text, .. }, _) => {
                let value = self.scalar(node, text, shape, path)?;
                self.spots.insert(path.clone(), node.spot.clone());
                Some(value)
            }
            (Kind::Map(_), _) => self.bad(
                node,
                shape,
                path,
                "is a map",
                &format!("write {}", shape.wanted()),
            ),
            (Kind::List(_), _) => self.bad(
                node,
                shape,
                path,
                "is a list",
                &format!("write {}", shape.wanted()),
            ),
        }
    }

    fn scalar(&mut self, node: &Node, text: &str, shape: &Shape, path: &KeyPath) -> Option<Value> {
        match scalar::value(text, shape) {
            Ok(value) => Some(value),
            Err(refusal) => {
                let what = format!("`{}` {}", short(text), refusal.what);
                self.bad(node, shape, path, &what, &refusal.remedy)
            }
        }
    }

    fn bad(&mut self, node: &Node, shape: &Shape, path: &KeyPath, what: &str, remedy: &str) -> Option<Value> {
        if self.room_for_more() {
            let line = node
                .spot
                .line()
                .map_or_else(String::new, |line| format!("line {line}: "));
            let place = if node.spot.source.has_lines && !super::provenance::is_secret(path) {
                node.spot.shown(&format!("takes {}", shape.wanted()), &[])
            } else {
                node.spot.place()
            };
            self.found
                .push(Problem::new(Code::BadValue, format!("{line}`{path}`: {what}"), remedy).at(place));
        }
        None
    }

    fn assign(&mut self, key: &KeyPath, source: &Arc<Source>) -> Option<Dict> {
        let whole = Spot::whole(source);
        let segments: Vec<&str> = key.segments().collect();
        let mut here = self.root;
        let mut path = KeyPath::new("");
        for segment in &segments {
            path = path.child(segment);
            let next = match here {
                Shape::Map(fields) => fields.get(*segment),
                _ => None,
            };
            let Some(field) = next else {
                self.note_unknown(&path, &whole, here);
                return None;
            };
            here = &field.shape;
        }
        let top = *segments.first()?;
        if let Some(belongs) = self.kin.refuses(top) {
            let problem = misplaced(key, &whole, self.kin.file_kind(), belongs, self.leniency());
            self.note(problem);
            return None;
        }
        let text = source.text.as_str();
        let structured = text.trim_start().starts_with(['{', '[']);
        let node = match here {
            Shape::Map(_) | Shape::List(_) if structured => {
                let (node, problems) = yaml::read(source);
                for problem in problems {
                    self.note(problem);
                }
                node?
            }
            Shape::List(_) if !scalar::unpins(text) => Node {
                kind: Kind::List(
                    text.split(',')
                        .map(|item| Node {
                            kind: Kind::Scalar {
                                text: item.trim().to_owned(),
                                plain: true,
                            },
                            spot: whole.clone(),
                        })
                        .collect(),
                ),
                spot: whole.clone(),
            },
            _ => Node {
                kind: Kind::Scalar {
                    text: text.to_owned(),
                    plain: true,
                },
                spot: whole.clone(),
            },
        };
        let mut value = self.node(&node, here, key)?;
        for segment in segments.iter().skip(1).rev() {
            value = Value::Dict(Tag::Default, Dict::from([((*segment).to_owned(), value)]));
        }
        Some(Dict::from([(top.to_owned(), value)]))
    }
}

/// What was meant where the entry `at` is the rest of a CPU list that commas between braces have split, as in
/// `{cpus: 0-1,3}`: the key with the whole list in quotes.
fn split_list(entries: &[Entry], at: usize, fields: &BTreeMap<String, Field>) -> Option<String> {
    let is_rest = |entry: &&Entry| {
        let numbers = entry.key.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let bare = matches!(&entry.value.kind, Kind::Scalar { text, plain: true } if scalar::unpins(text));
        numbers && bare && entry.key.starts_with(|c: char| c.is_ascii_digit())
    };
    let run = entries[..=at].iter().rev().take_while(is_rest).count();
    let first = at.checked_sub(run).filter(|_| run > 0)?;
    let owner = &entries[first];
    let Kind::Scalar { text, plain: true } = &owner.value.kind else {
        return None;
    };
    if fields.get(&owner.key)?.shape != Shape::CpuSet {
        return None;
    }
    let rest = entries[first + 1..].iter().take_while(is_rest);
    let list: Vec<&str> = std::iter::once(text.as_str())
        .chain(rest.map(|entry| entry.key.as_str()))
        .collect();
    Some(format!("{}: \"{}\"", owner.key, list.join(",")))
}

/// Whether a file says it was written for a newer version of the language.
fn declares_newer(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| {
        entry.key == "schema"
            && matches!(&entry.value.kind, Kind::Scalar { text, .. } if text.parse::<u32>().is_ok_and(|v| v > SCHEMA))
    })
}

/// At most 60 characters of a text, for messages.
fn short(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    if cut.len() < text.len() {
        format!("{cut}…")
    } else {
        cut
    }
}

/// The parent that a profile names, with its place.
#[must_use]
pub fn parent(source: &Arc<Source>) -> Option<(String, Spot)> {
    let Kind::Map(entries) = yaml::read(source).0?.kind else {
        return None;
    };
    let entry = entries.into_iter().find(|entry| entry.key == "extends")?;
    match entry.value.kind {
        Kind::Scalar { text, plain } if !(plain && scalar::unpins(&text)) => Some((text, entry.value.spot)),
        _ => None,
    }
}

/// Top-level keys that a kind of file may hold, for the reference page.
#[must_use]
pub fn keys_of(kin: Kin) -> Vec<&'static str> {
    let all = PROFILE_KEYS.iter().chain(&["policy"]);
    all.copied().filter(|key| kin.refuses(key).is_none()).collect()
}
