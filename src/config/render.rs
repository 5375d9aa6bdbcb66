//! Excerpts of a source with the faulty part marked.
//!
//! In: spots with labels. Out: text, plain unless colour is asked for.
//! Invariant: an excerpt shows only the lines it marks and their neighbours, never a whole file.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::spans::Spot;

/// The lines around `spot`, with it and `others` of the same source marked. The caller names file and line.
#[must_use]
pub fn excerpt(spot: &Spot, label: &str, others: &[(&Spot, &str)], colour: bool) -> String {
    let text = spot.source.text.as_str();
    let mut snippet =
        Snippet::source(text).annotation(AnnotationKind::Primary.span(spot.range.clone()).label(label));
    for (other, label) in others.iter().filter(|(other, _)| other.source == spot.source) {
        snippet = snippet.annotation(AnnotationKind::Context.span(other.range.clone()).label(*label));
    }
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let report = [Group::with_level(Level::ERROR).element(snippet)];
    renderer
        .render(&report)
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::spans::Source;

    #[test]
    fn both_places_are_marked_without_colour() {
        let source = Source::file("p.yaml", "a:\n  threads: 4\n  dtype: f32\n  threads: 8\n");
        let first = Spot::new(&source, 5..12);
        let second = Spot::new(&source, 31..38);
        let shown = excerpt(&second, "again here", &[(&first, "first here")], false);
        assert!(shown.contains("4 |   threads: 8"), "{shown}");
        assert!(
            shown.contains("first here") && shown.contains("again here"),
            "{shown}"
        );
        assert!(!shown.contains('\u{1b}'), "{shown}");
        assert!(excerpt(&second, "x", &[], true).contains('\u{1b}'));
    }
}
