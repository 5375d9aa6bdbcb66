//! `Source` and `Spot`: a text a person wrote, and a stretch of it.
//!
//! In: a name (file path, variable, flag) and its text. Out: `Place` with 1-based line and column, in characters.
//! Invariant: a spot's range lies on character boundaries of its source.

use std::ops::Range;
use std::sync::Arc;

use super::render;
use crate::base::Place;

/// A text with the name people know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// File path, variable name or flag.
    pub name: String,
    /// The text, without a byte-order mark, lines ending in `\n`.
    pub text: String,
    /// Whether line numbers mean something: true for files.
    pub has_lines: bool,
}

/// A stretch of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The source.
    pub source: Arc<Source>,
    /// Bytes of the text.
    pub range: Range<usize>,
}

impl Source {
    /// A file's text.
    #[must_use]
    pub fn file(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
            has_lines: true,
        })
    }

    /// A value of a variable or flag.
    #[must_use]
    pub fn value(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
            has_lines: false,
        })
    }

    /// 1-based line and column, in characters, of byte `at`.
    #[must_use]
    pub fn line_column(&self, at: usize) -> (u32, u32) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line as u32, column as u32)
    }
}

impl Spot {
    /// A stretch of `source`, widened to character boundaries and cut to the text.
    #[must_use]
    pub fn new(source: &Arc<Source>, range: Range<usize>) -> Self {
        let text = &source.text;
        let start = text.floor_char_boundary(range.start.min(text.len()));
        let end = text.ceil_char_boundary(range.end.clamp(start, text.len()));
        Self {
            source: Arc::clone(source),
            range: start..end,
        }
    }

    /// The whole source.
    #[must_use]
    pub fn whole(source: &Arc<Source>) -> Self {
        Self::new(source, 0..source.text.len())
    }

    /// 1-based line, where the source has lines.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        self.source
            .has_lines
            .then(|| self.source.line_column(self.range.start).0)
    }

    /// Name, line and column, without an excerpt.
    #[must_use]
    pub fn place(&self) -> Place {
        let mut place = Place::of(self.source.name.clone());
        if self.source.has_lines {
            let (line, column) = self.source.line_column(self.range.start);
            place.line = Some(line);
            place.column = Some(column);
        }
        place
    }

    /// The place with an excerpt that marks this spot with `label`, and `others` with theirs.
    #[must_use]
    pub fn shown(&self, label: &str, others: &[(&Self, &str)]) -> Place {
        let mut place = self.place();
        if self.source.has_lines {
            place.snippet = Some(render::excerpt(self, label, others, false));
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let source = Source::file("a.yaml", "ä: 1\nb: ü x\n");
        assert_eq!(source.line_column(0), (1, 1));
        assert_eq!(source.line_column(6), (2, 1));
        let x = source.text.find('x').unwrap();
        assert_eq!(source.line_column(x), (2, 6));
        assert_eq!(Spot::new(&source, x..x + 1).place().to_string(), "a.yaml:2:6");
    }

    #[test]
    fn spots_outside_the_text_or_inside_a_character_are_moved() {
        let source = Source::file("a.yaml", "ä");
        assert_eq!(Spot::new(&source, 1..1).range, 0..2);
        assert_eq!(Spot::new(&source, 50..90).range, 2..2);
    }
}
