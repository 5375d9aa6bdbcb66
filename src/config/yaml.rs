//! Strict YAML: a text becomes a tree of maps, lists and scalars that keep their source text and place.
//!
//! In: bytes of a file, or the value of a variable. Out: `Node`, or problems with line and excerpt.
//! Invariant: nothing is typed here, nothing is dropped, and neither time nor memory grows faster than the text:
//! aliases are measured before they are followed. `serde_yaml` is named only here, and only for writing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span};

use super::spans::{Source, Spot};
use crate::base::{Code, Problem};

/// Largest text accepted. Profiles are a few KiB; this is far beyond any and far below what could hurt.
pub const MAX_BYTES: usize = 1 << 20;
/// Most nodes after aliases and merge keys are written out.
const MAX_NODES: u64 = 50_000;
/// Most bytes of scalar text after aliases are written out.
const MAX_TEXT: u64 = 4 << 20;
/// Deepest nesting, also through aliases. The profile language itself is four deep.
const MAX_DEPTH: usize = 32;
/// Repeated keys shown with an excerpt; more have one cause.
const MAX_REPEATED: usize = 20;

/// A value as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Where it stands. Behind an alias: where it is defined.
    pub spot: Spot,
}

/// The three kinds of YAML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A scalar with its text exactly as written (after unquoting).
    Scalar {
        /// The text.
        text: String,
        /// Whether it was written plain, without quotes or block markers.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A map in the order written, merge keys applied, no key twice.
    Map(Vec<Entry>),
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// Where the key stands.
    pub key_spot: Spot,
    /// The value.
    pub value: Node,
}

/// Turns bytes of a file into a source: UTF-8 only, one byte-order mark stripped, `\r\n` and `\r` made `\n`.
pub fn source(name: &str, bytes: &[u8]) -> Result<Arc<Source>, Problem> {
    let refuse = |what: String, remedy: &str| {
        Problem::new(Code::YamlSyntax, what, remedy).at(crate::base::Place::of(name))
    };
    if bytes.len() > MAX_BYTES {
        return Err(refuse(
            format!("the file has more than {MAX_BYTES} bytes, the most that is read"),
            "check that this is a profile and not another kind of file",
        ));
    }
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Err(refuse("the file is UTF-16".into(), "save it as UTF-8"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (good, _) = bytes.split_at(error.valid_up_to());
        let before = Source::file(name, String::from_utf8_lossy(good));
        let (line, column) = before.line_column(before.text.len());
        let mut problem = refuse(
            format!("line {line} holds bytes that are not UTF-8"),
            "save the file as UTF-8",
        );
        if let Some(place) = &mut problem.place {
            place.line = Some(line);
            place.column = Some(column);
        }
        problem
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Ok(Source::file(name, text.replace("\r\n", "\n").replace('\r', "\n")))
}

/// Reads one document. `None` as the value means an empty one. Problems are errors; the value is then partial.
pub fn read(source: &Arc<Source>) -> (Option<Node>, Vec<Problem>) {
    let mut composer = Composer::new(source);
    let composed = composer.compose();
    if composer.unshown > 0 {
        composer.problems.push(
            Problem::new(
                Code::YamlDuplicateKey,
                format!("{} more repeated keys are not shown", composer.unshown),
                "correct the first ones and run again",
            )
            .at(crate::base::Place::of(source.name.clone())),
        );
    }
    if let Err(problem) = composed {
        composer.problems.push(problem);
        return (None, composer.problems);
    }
    let node = composer.root.map(|root| composer.write_out(root));
    (node, composer.problems)
}

/// Writes any value as YAML, for `profiles show` and `plan --emit`.
pub fn write(value: &impl Serialize) -> Result<String, Problem> {
    serde_yaml::to_string(value).map_err(|error| {
        Problem::new(
            Code::Internal,
            format!("a value could not be written as YAML: {error}"),
            "please report this",
        )
    })
}

/// A node before aliases are written out: children by index, so that an alias costs one index.
struct Flat {
    kind: FlatKind,
    range: Range<usize>,
    /// Nodes, text bytes and depth of the tree below when written out.
    nodes: u64,
    text: u64,
    depth: usize,
}

enum FlatKind {
    Scalar { text: String, plain: bool },
    List(Vec<usize>),
    Map(Vec<FlatEntry>),
}

#[derive(Clone)]
struct FlatEntry {
    key: String,
    key_range: Range<usize>,
    value: usize,
}

/// A collection whose end has not been seen.
struct Open {
    is_map: bool,
    anchor: usize,
    start: usize,
    children: Vec<usize>,
}

struct Composer<'a> {
    source: &'a Arc<Source>,
    nodes: Vec<Flat>,
    anchors: BTreeMap<usize, usize>,
    open: Vec<Open>,
    root: Option<usize>,
    merged: u64,
    problems: Vec<Problem>,
    unshown: usize,
}

impl<'a> Composer<'a> {
    fn new(source: &'a Arc<Source>) -> Self {
        Self {
            source,
            nodes: Vec::new(),
            anchors: BTreeMap::new(),
            open: Vec::new(),
            root: None,
            merged: 0,
            problems: Vec::new(),
            unshown: 0,
        }
    }

    fn spot(&self, range: &Range<usize>) -> Spot {
        Spot::new(self.source, range.clone())
    }

    fn compose(&mut self) -> Result<(), Problem> {
        let mut options = Options::default();
        options.set_emit_comments(false);
        options.flow_nesting_limit = MAX_DEPTH;
        options.block_nesting_limit = MAX_DEPTH;
        let source = Arc::clone(self.source);
        let mut documents = 0;
        for event in Parser::new_from_str_with_options(&source.text, options) {
            let (event, span) = event.map_err(|error| syntax(&source, &error))?;
            let range = byte_range(&source, &span);
            match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(fault(
                            &self.spot(&range),
                            "a second document starts here; a profile is one document",
                            "second document",
                            "remove the `---` line, or move what follows into a file of its own",
                        ));
                    }
                }
                Event::Scalar(text, style, anchor, tag) => {
                    self.refuse_tag(tag.is_some(), &range)?;
                    let plain = style == ScalarStyle::Plain;
                    let text = text.into_owned();
                    let length = text.len() as u64;
                    self.add(FlatKind::Scalar { text, plain }, range, anchor, (1, length, 1))?;
                }
                Event::SequenceStart(_, anchor, tag) | Event::MappingStart(_, anchor, tag) => {
                    self.refuse_tag(tag.is_some(), &range)?;
                    // Told apart by the end event; the start needs only the place.
                    self.open.push(Open {
                        is_map: false,
                        anchor,
                        start: range.start,
                        children: Vec::new(),
                    });
                }
                Event::SequenceEnd => self.close(false, range.end)?,
                Event::MappingEnd => self.close(true, range.end)?,
                Event::Alias(id) => {
                    let target = self.anchors.get(&id).copied().ok_or_else(|| {
                        fault(
                            &self.spot(&range),
                            "an alias stands inside the value it refers to",
                            "refers to itself",
                            "write the value out",
                        )
                    })?;
                    self.attach(target);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn refuse_tag(&self, tagged: bool, range: &Range<usize>) -> Result<(), Problem> {
        if !tagged {
            return Ok(());
        }
        Err(fault(
            &self.spot(range),
            "a value has a YAML tag (`!…`); the key already says what kind of value it takes",
            "tagged value",
            "remove the tag; quote the value if it is meant as text",
        ))
    }

    fn attach(&mut self, node: usize) {
        match self.open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => self.root = Some(node),
        }
    }

    fn add(
        &mut self,
        kind: FlatKind,
        range: Range<usize>,
        anchor: usize,
        size: (u64, u64, usize),
    ) -> Result<(), Problem> {
        let (nodes, text, depth) = size;
        if nodes > MAX_NODES || text > MAX_TEXT || depth > MAX_DEPTH {
            return Err(fault(
                &self.spot(&(range.start..range.start + 1)),
                &format!(
                    "with its aliases written out this value has {nodes} parts, {text} bytes of text and is {depth} \
                     deep; at most {MAX_NODES} parts, {MAX_TEXT} bytes and depth {MAX_DEPTH} are taken"
                ),
                "too large when its aliases are written out",
                "a profile needs nothing of this size; remove the aliases (`*name`)",
            ));
        }
        if self.nodes.len() as u64 >= MAX_NODES {
            return Err(fault(
                &self.spot(&range),
                &format!("the file has more than {MAX_NODES} values"),
                "one value too many",
                "check that this is a profile and not another kind of file",
            ));
        }
        let id = self.nodes.len();
        self.nodes.push(Flat {
            kind,
            range,
            nodes,
            text,
            depth,
        });
        if anchor != 0 {
            self.anchors.insert(anchor, id);
        }
        self.attach(id);
        Ok(())
    }

    fn close(&mut self, is_map: bool, end: usize) -> Result<(), Problem> {
        let Some(mut open) = self.open.pop() else {
            return Ok(());
        };
        open.is_map = is_map;
        let range = open.start..end.max(open.start);
        let anchor = open.anchor;
        let kind = if open.is_map {
            FlatKind::Map(self.entries(&open.children)?)
        } else {
            FlatKind::List(open.children)
        };
        let (mut nodes, mut text, mut depth) = (1u64, 0u64, 0usize);
        let mut count = |child: &Flat, key: usize| {
            nodes = nodes.saturating_add(child.nodes);
            text = text.saturating_add(child.text).saturating_add(key as u64);
            depth = depth.max(child.depth);
        };
        match &kind {
            FlatKind::List(children) => children.iter().for_each(|&c| count(&self.nodes[c], 0)),
            FlatKind::Map(entries) => entries
                .iter()
                .for_each(|entry| count(&self.nodes[entry.value], entry.key.len())),
            FlatKind::Scalar { .. } => {}
        }
        self.add(kind, range, anchor, (nodes, text, depth + 1))
    }

    /// Pairs keys with values, refuses repeated keys, applies `<<`.
    fn entries(&mut self, children: &[usize]) -> Result<Vec<FlatEntry>, Problem> {
        let mut own: Vec<FlatEntry> = Vec::new();
        let mut merge: Option<(Range<usize>, usize)> = None;
        let mut seen: BTreeMap<String, Range<usize>> = BTreeMap::new();
        for pair in children.chunks(2) {
            let &[key, value] = pair else { break };
            let key = &self.nodes[key];
            let key_range = key.range.clone();
            let FlatKind::Scalar { text, plain } = &key.kind else {
                return Err(fault(
                    &self.spot(&key_range),
                    "a map or a list stands where a key is expected",
                    "not a key",
                    "write a plain name before the `:`; quote text that starts with `{`, `[` or `*`",
                ));
            };
            let (text, plain) = (text.clone(), *plain);
            if let Some(first) = seen.insert(text.clone(), key_range.clone()) {
                self.repeated(&text, &key_range, &first);
                continue;
            }
            if plain && text == "<<" {
                merge = Some((key_range, value));
            } else {
                own.push(FlatEntry {
                    key: text,
                    key_range,
                    value,
                });
            }
        }
        if let Some((range, value)) = merge {
            self.merge(&mut own, &seen, &range, value)?;
        }
        Ok(own)
    }

    fn repeated(&mut self, key: &str, second: &Range<usize>, first: &Range<usize>) {
        if self.problems.len() >= MAX_REPEATED {
            self.unshown += 1;
            return;
        }
        let (second, first) = (self.spot(second), self.spot(first));
        let line = |spot: &Spot| spot.source.line_column(spot.range.start).0;
        let problem = Problem::new(
            Code::YamlDuplicateKey,
            format!(
                "duplicate key `{key}` in line {}; it stands in line {} already",
                line(&second),
                line(&first)
            ),
            "keep one of the two",
        )
        .why("which of the two values would hold cannot be seen from the file")
        .at(second.shown("again here", &[(&first, "first here")]));
        self.problems.push(problem);
    }

    /// YAML's merge key: own keys win, then earlier maps of a list.
    fn merge(
        &mut self,
        own: &mut Vec<FlatEntry>,
        own_keys: &BTreeMap<String, Range<usize>>,
        range: &Range<usize>,
        value: usize,
    ) -> Result<(), Problem> {
        let sources: Vec<usize> = match &self.nodes[value].kind {
            FlatKind::List(items) => items.clone(),
            FlatKind::Map(_) => vec![value],
            FlatKind::Scalar { .. } => Vec::new(),
        };
        let mut added: BTreeSet<String> = BTreeSet::new();
        let not_a_map = |composer: &Self| {
            fault(
                &composer.spot(range),
                "the merge key `<<` takes a map or a list of maps",
                "merges something else",
                "write `<<: *name`, where `&name` marks a map",
            )
        };
        if sources.is_empty() {
            return Err(not_a_map(self));
        }
        for source in sources {
            let FlatKind::Map(entries) = &self.nodes[source].kind else {
                return Err(not_a_map(self));
            };
            self.merged += entries.len() as u64 + 1;
            if self.merged > MAX_NODES {
                return Err(fault(
                    &self.spot(range),
                    &format!("merge keys would write out more than {MAX_NODES} values"),
                    "too large",
                    "a profile needs nothing of this size; remove the merge keys",
                ));
            }
            for entry in entries {
                if !own_keys.contains_key(&entry.key) && added.insert(entry.key.clone()) {
                    own.push(entry.clone());
                }
            }
        }
        Ok(())
    }

    /// The tree below `id`, aliases written out. Sizes were checked when each node was added.
    fn write_out(&self, id: usize) -> Node {
        let flat = &self.nodes[id];
        let kind = match &flat.kind {
            FlatKind::Scalar { text, plain } => Kind::Scalar {
                text: text.clone(),
                plain: *plain,
            },
            FlatKind::List(children) => {
                Kind::List(children.iter().map(|&child| self.write_out(child)).collect())
            }
            FlatKind::Map(entries) => Kind::Map(
                entries
                    .iter()
                    .map(|entry| Entry {
                        key: entry.key.clone(),
                        key_spot: self.spot(&entry.key_range),
                        value: self.write_out(entry.value),
                    })
                    .collect(),
            ),
        };
        Node {
            kind,
            spot: self.spot(&flat.range),
        }
    }
}

fn fault(spot: &Spot, what: &str, label: &str, remedy: &str) -> Problem {
    let line = spot
        .line()
        .map_or_else(String::new, |line| format!("line {line}: "));
    Problem::new(Code::YamlSyntax, format!("{line}{what}"), remedy).at(spot.shown(label, &[]))
}

fn byte_range(source: &Source, span: &Span) -> Range<usize> {
    let start = span.start.byte_offset().unwrap_or(0);
    let end = span.end.byte_offset().unwrap_or(start).max(start);
    // Block scalars and collections end where the next token starts; the mark should not.
    let text = source.text.get(start..end).unwrap_or("");
    start..start + text.trim_end().len()
}

/// The parser's complaint, or the tab that caused it.
fn syntax(source: &Arc<Source>, error: &ScanError) -> Problem {
    let at = error.marker();
    let mut offset = 0;
    for (index, line) in source.text.split_inclusive('\n').enumerate() {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let tab = line[..indent].find('\t');
        if let Some(tab) = tab
            && !line.trim().is_empty()
            && index < at.line() + 1
        {
            let spot = Spot::new(source, offset + tab..offset + tab + 1);
            return fault(
                &spot,
                "the line is indented with a tab",
                "tab",
                "indent with spaces; YAML allows no tabs there",
            );
        }
        offset += line.len();
    }
    let start = at.byte_offset().unwrap_or(source.text.len());
    let info = error.info();
    fault(
        &Spot::new(source, start..start + 1),
        &format!("this is not YAML: {info}"),
        "here",
        "correct the line; text with `: `, `#`, `{`, `[` or `*` needs quotes",
    )
}

#[cfg(test)]
mod tests;
