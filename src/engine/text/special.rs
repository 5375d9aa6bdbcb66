//! Cuts special tokens out of raw text, and keeps text that only looks like them from becoming them.
//!
//! In: text and the vocabulary's control and user-defined tokens. Out: fragments, each plain text or one token.
//! Invariant: the longest token wins, then the leftmost; memory and time are at most n·log n in the text's length.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::vocabulary::{TokenKind, Vocabulary};

/// Stands inside text that spells a special token but must stay text. A Unicode noncharacter: no text means it.
/// It is removed after the cut and before tokenising, so the model sees the text as it was sent.
pub const GUARD: char = '\u{FDD0}';

/// A piece of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Bytes of the input that are ordinary text.
    Text(Range<usize>),
    /// One special token.
    Token(u32),
}

/// The special tokens, ordered for a walk byte by byte.
#[derive(Debug)]
pub struct Specials {
    /// Ids in order of their text; the ones starting with a given prefix stand together.
    sorted: Vec<u32>,
    /// Which bytes start any of them.
    starts: [bool; 256],
}

impl Specials {
    /// Collects the control and user-defined tokens.
    pub fn of(vocabulary: &Vocabulary) -> Self {
        let mut sorted: Vec<u32> = (0..vocabulary.len() as u32)
            .filter(|&id| {
                matches!(vocabulary.kind(id), TokenKind::Control | TokenKind::UserDefined)
                    && !vocabulary.text(id).is_empty()
            })
            .collect();
        sorted.sort_by(|&a, &b| vocabulary.text(a).cmp(vocabulary.text(b)));
        let mut starts = [false; 256];
        for &id in &sorted {
            starts[usize::from(vocabulary.text(id).as_bytes()[0])] = true;
        }
        sorted.shrink_to_fit();
        Self { sorted, starts }
    }

    /// Ids in order of their text.
    pub fn ids(&self) -> &[u32] {
        &self.sorted
    }

    /// The longest token of at most `limit` bytes that starts at `at` and is `wanted`.
    fn longest_at(
        &self,
        vocabulary: &Vocabulary,
        text: &[u8],
        at: usize,
        limit: usize,
        wanted: &dyn Fn(u32) -> bool,
    ) -> Option<(usize, u32)> {
        let mut range = self.sorted.as_slice();
        let mut best = None;
        let rest = &text[at..text.len().min(at.saturating_add(limit))];
        if !self.starts[usize::from(*rest.first()?)] {
            return None;
        }
        for (depth, &byte) in rest.iter().enumerate() {
            let byte_at = |id: u32| vocabulary.text(id).as_bytes().get(depth).copied();
            let low = range.partition_point(|&id| byte_at(id) < Some(byte));
            let high = range.partition_point(|&id| byte_at(id) <= Some(byte));
            range = &range[low..high];
            let Some(&first) = range.first() else { break };
            // The shortest of a common prefix sorts first.
            if vocabulary.text(first).len() == depth + 1 && wanted(first) {
                best = Some((depth + 1, first));
            }
        }
        best
    }

    /// Cuts `text`: user-defined tokens always, control tokens when `control`. Longest first over the whole text.
    pub fn split(&self, vocabulary: &Vocabulary, text: &str, control: bool) -> Vec<Fragment> {
        let wanted = |id: u32| control || vocabulary.kind(id) == TokenKind::UserDefined;
        let bytes = text.as_bytes();
        // One candidate a position, its longest; a shorter one replaces it when a longer neighbour took its end.
        let mut queue: BinaryHeap<(usize, Reverse<usize>, u32)> = BinaryHeap::new();
        for at in 0..bytes.len() {
            if self.starts[usize::from(bytes[at])]
                && let Some((length, id)) = self.longest_at(vocabulary, bytes, at, usize::MAX, &wanted)
            {
                queue.push((length, Reverse(at), id));
            }
        }
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        while let Some((length, Reverse(at), id)) = queue.pop() {
            let inside = taken
                .range(..=at)
                .next_back()
                .is_some_and(|(_, &(end, _))| end > at);
            if inside {
                continue;
            }
            match taken.range(at..at + length).next().map(|(&start, _)| start) {
                None => {
                    taken.insert(at, (at + length, id));
                }
                Some(next) => {
                    if let Some((length, id)) = self.longest_at(vocabulary, bytes, at, next - at, &wanted) {
                        queue.push((length, Reverse(at), id));
                    }
                }
            }
        }
        let mut fragments = Vec::with_capacity(taken.len() * 2 + 1);
        let mut done = 0;
        for (start, (end, id)) in taken {
            if start > done {
                fragments.push(Fragment::Text(done..start));
            }
            fragments.push(Fragment::Token(id));
            done = end;
        }
        if done < bytes.len() {
            fragments.push(Fragment::Text(done..bytes.len()));
        }
        fragments
    }

    /// `text` with a [`GUARD`] inside everything that spells a token for which `guarded` holds, so that
    /// [`Self::split`] does not see one. Guards already in the text are dropped. A token of one character cannot
    /// be guarded and stays as it is.
    pub fn guard(&self, vocabulary: &Vocabulary, text: &str, guarded: &dyn Fn(u32) -> bool) -> String {
        let text = unguard(text);
        let bytes = text.as_bytes();
        let mut out = String::with_capacity(text.len() + 16);
        for (at, character) in text.char_indices() {
            out.push(character);
            if self.starts[usize::from(bytes[at])]
                && let Some((length, _)) = self.longest_at(vocabulary, bytes, at, usize::MAX, guarded)
                && length > character.len_utf8()
            {
                out.push(GUARD);
            }
        }
        out
    }
}

/// `text` without guards.
pub fn unguard(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(GUARD) {
        text.replace(GUARD, "").into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenKind::{Control, Normal, UserDefined};

    fn vocabulary() -> (Vocabulary, Specials) {
        let tokens = [
            ("<a>", Control),
            ("<a", UserDefined),
            ("\n", UserDefined),
            ("\n\n", UserDefined),
            ("\n\n\n", UserDefined),
            ("ab", UserDefined),
            ("bcd", UserDefined),
            ("x", Normal),
        ];
        let vocabulary = Vocabulary::build(
            tokens.iter().map(|(text, _)| *text),
            tokens.iter().map(|(_, kind)| *kind).collect(),
        )
        .unwrap();
        let specials = Specials::of(&vocabulary);
        (vocabulary, specials)
    }

    fn show(text: &str, control: bool) -> Vec<String> {
        let (vocabulary, specials) = vocabulary();
        let fragments = specials.split(&vocabulary, text, control);
        fragments
            .iter()
            .map(|fragment| match fragment {
                Fragment::Text(range) => text[range.clone()].to_owned(),
                Fragment::Token(id) => format!("#{id}"),
            })
            .collect()
    }

    #[test]
    fn longest_first_then_leftmost() {
        assert_eq!(
            show("abcd", true),
            ["a", "#6"],
            "the longer one later in the text wins"
        );
        assert_eq!(show("ab", true), ["#5"]);
        assert_eq!(show("\n\n\n\n\n", true), ["#4", "#3"]);
        assert_eq!(show("x\nx", true), ["x", "#2", "x"]);
        assert_eq!(show("", true), Vec::<String>::new());
    }

    #[test]
    fn control_tokens_only_on_request() {
        assert_eq!(show("<a>", true), ["#0"]);
        assert_eq!(show("<a>", false), ["#1", ">"]);
    }

    #[test]
    fn guarded_text_is_not_cut() {
        let (vocabulary, specials) = vocabulary();
        let guarded = specials.guard(&vocabulary, "é<a><a\u{FDD0}>\n\n", &|id| id == 0);
        assert_eq!(guarded, "é<\u{FDD0}a><\u{FDD0}a>\n\n");
        let fragments = specials.split(&vocabulary, &guarded, true);
        assert!(!fragments.contains(&Fragment::Token(0)) && fragments.contains(&Fragment::Token(3)));
        assert_eq!(unguard(&guarded), "é<a><a>\n\n");
    }

    #[test]
    fn a_long_run_costs_no_more_than_its_length() {
        let (vocabulary, specials) = vocabulary();
        let text = "\n".repeat(300_000);
        assert_eq!(specials.split(&vocabulary, &text, true).len(), 100_000);
    }
}
