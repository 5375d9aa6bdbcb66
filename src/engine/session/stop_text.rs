//! Stop texts over token boundaries.
//!
//! In: pieces of decoded text. Out: text that is final, and whether a stop text was met.
//! Invariant: what comes out does not depend on how the text was cut into pieces; no part of a stop text comes out.

/// Finds stop texts over piece boundaries and holds back text that may still become one.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What became final by one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Final text.
    pub text: String,
    /// A stop text is complete; nothing may follow.
    pub stopped: bool,
}

impl StopMatcher {
    /// Watches for `stops`; empty ones are left out.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            held: String::new(),
        }
    }

    /// Takes the next piece. After `stopped`, further pieces give nothing.
    ///
    /// The stop text that is complete first wins; of two that end together, the one that starts first.
    pub fn push(&mut self, piece: &str) -> Released {
        if self.stops.is_empty() {
            return Released {
                text: piece.to_owned(),
                stopped: false,
            };
        }
        self.held.push_str(piece);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at)))
            .min();
        if let Some((_, start)) = first {
            let text = self.held[..start].to_owned();
            self.held.clear();
            return Released { text, stopped: true };
        }
        let keep_from = self
            .stops
            .iter()
            .map(|stop| self.held.len() - overlap(&self.held, stop))
            .min()
            .unwrap_or(self.held.len());
        let kept = self.held.split_off(keep_from);
        Released {
            text: std::mem::replace(&mut self.held, kept),
            stopped: false,
        }
    }

    /// Gives out what was held back: no more text will come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest proper prefix of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .rev()
        .find(|&length| text.ends_with(&stop[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[String], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = String::new();
        for piece in pieces {
            let released = matcher.push(piece);
            out.push_str(&released.text);
            if released.stopped {
                return (out, true);
            }
        }
        out.push_str(&matcher.finish());
        (out, false)
    }

    #[test]
    fn a_stop_text_over_three_tokens_is_found_and_cut() {
        let stops = ["\n\nUser:".to_owned(), "END".to_owned()];
        assert_eq!(
            run(&stops, &["Hello\n", "\nUs", "er: x"]),
            ("Hello".to_owned(), true)
        );
        assert_eq!(
            run(&stops, &["EN", "E", "ND"]),
            ("EN".to_owned(), true),
            "a failed start may overlap a real one"
        );
        assert_eq!(run(&stops, &["a EN"]), ("a EN".to_owned(), false));
    }

    #[test]
    fn text_that_cannot_become_a_stop_is_not_held() {
        let mut matcher = StopMatcher::new(&["xyz".to_owned()]);
        assert_eq!(matcher.push("abxy").text, "ab");
        assert_eq!(matcher.push("a").text, "xya");
        assert_eq!(StopMatcher::new(&[String::new()]).push("z").text, "z");
    }

    proptest! {
        #[test]
        fn cutting_into_pieces_changes_nothing(
            text in "[abcé]{0,30}",
            stops in prop::collection::vec("[abcé]{1,4}", 0..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            // The plain rule: the shortest beginning of the text that ends with a stop text, less that stop text.
            let mut expected = (text.clone(), false);
            'search: for (at, c) in text.char_indices() {
                let begun = &text[..at + c.len_utf8()];
                let longest = stops.iter().filter(|s| begun.ends_with(s.as_str())).map(String::len).max();
                if let Some(length) = longest {
                    expected = (begun[..begun.len() - length].to_owned(), true);
                    break 'search;
                }
            }
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut points: Vec<usize> = cuts.iter().map(|i| ends[i.index(ends.len())]).collect();
            points.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for point in points.into_iter().chain([text.len()]) {
                pieces.push(&text[from..point]);
                from = point;
            }
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
