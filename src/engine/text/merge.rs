//! The merge loop that byte-level BPE and SentencePiece-BPE share.
//!
//! In: symbols (characters or bytes) and a rule that says what two neighbours may become, and how urgently.
//! Out: the symbols left when no pair may merge. Invariant: always the most urgent pair, then the leftmost; time is
//! n·log n, so a megabyte without a blank cannot stall a request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A run of the text, and its token if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// First byte in the text.
    pub start: u32,
    /// One past the last byte. Equal to `start` once merged into its left neighbour.
    pub end: u32,
    /// Its token; [`NO_TOKEN`] for a character outside the vocabulary.
    pub id: u32,
}

/// The id of a symbol that is no token.
pub const NO_TOKEN: u32 = u32::MAX;

const NONE: u32 = u32::MAX;

/// One possible merge. Ordered by urgency (smaller first), then by place.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// Working memory of the loop, kept between pieces.
#[derive(Debug, Default)]
pub struct Merger {
    symbols: Vec<Symbol>,
    next: Vec<u32>,
    previous: Vec<u32>,
    queue: BinaryHeap<Candidate>,
}

impl Merger {
    /// Starts a new piece.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Adds a symbol at the end.
    pub fn push(&mut self, symbol: Symbol) {
        self.symbols.push(symbol);
    }

    /// Merges until no pair may. `rule(left, right)` gives the urgency (smaller is more urgent) and the token of the
    /// pair. Returns what is left, in order.
    pub fn run(
        &mut self,
        rule: impl Fn(Symbol, Symbol) -> Option<(u32, u32)>,
    ) -> impl Iterator<Item = Symbol> + '_ {
        let count = self.symbols.len() as u32;
        self.next.clear();
        self.previous.clear();
        self.next
            .extend((1..=count).map(|i| if i < count { i } else { NONE }));
        self.previous
            .extend((0..count).map(|i| if i > 0 { i - 1 } else { NONE }));
        for left in 1..count {
            self.offer(left - 1, left, &rule);
        }
        while let Some(Reverse((_, left, right, end, id))) = self.queue.pop() {
            let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
            // Stale when either side has merged since: then they no longer touch or no longer end there.
            let fresh = a.start < a.end && a.end == b.start && b.start < b.end && b.end == end;
            if !fresh || self.next[left as usize] != right {
                continue;
            }
            self.symbols[left as usize] = Symbol {
                start: a.start,
                end,
                id,
            };
            self.symbols[right as usize].start = end;
            let after = self.next[right as usize];
            self.next[left as usize] = after;
            if after != NONE {
                self.previous[after as usize] = left;
                self.offer(left, after, &rule);
            }
            let before = self.previous[left as usize];
            if before != NONE {
                self.offer(before, left, &rule);
            }
        }
        self.symbols
            .iter()
            .copied()
            .filter(|symbol| symbol.start < symbol.end)
    }

    fn offer(&mut self, left: u32, right: u32, rule: &impl Fn(Symbol, Symbol) -> Option<(u32, u32)>) {
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        if let Some((urgency, id)) = rule(a, b) {
            self.queue.push(Reverse((urgency, left, right, b.end, id)));
        }
    }
}
