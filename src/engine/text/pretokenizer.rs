//! Pre-tokenizers by GGUF name: how text is cut into pieces before byte-level BPE merges inside each.
//!
//! In: the `tokenizer.ggml.pre` name and text. Out: pieces (byte ranges) in order, covering the text.
//! Invariant: an unknown name is refused, never guessed; matching takes time linear in the text for every input.

use std::ops::Range;

use regex::Regex;

use super::vocabulary::unusable;
use crate::base::{Code, Problem};

/// The published patterns end in `\s+(?!\S)|\s+`: a run of blanks leaves its last one to the word that follows.
/// The linear-time engine has no look-ahead, so the patterns here end in `\s+` and `leave_last_blank` does the rest.
/// The two agree because a run of blanks that a non-blank follows is matched by that last branch only, or, in the
/// patterns that have it, by `\s*[\r\n]+`, whose matches are known by the line break at their end.
struct Rule {
    pattern: &'static str,
    blanks: Blanks,
}

/// What happens to a run of blanks that a non-blank follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blanks {
    /// The pattern has no look-ahead.
    AsMatched,
    /// Its last blank goes to what follows.
    LeaveLast,
    /// The same, unless the run ends in a line break.
    LeaveLastAfterLineBreaks,
}

const fn plain(pattern: &'static str) -> Rule {
    Rule {
        pattern,
        blanks: Blanks::AsMatched,
    }
}

const fn words(pattern: &'static str) -> Rule {
    Rule {
        pattern,
        blanks: Blanks::LeaveLast,
    }
}

const fn lines(pattern: &'static str) -> Rule {
    Rule {
        pattern,
        blanks: Blanks::LeaveLastAfterLineBreaks,
    }
}

const ONE_DIGIT: Rule = plain(r"\p{N}");
const THREE_DIGITS: Rule = plain(r"\p{N}{1,3}");
const CJK: Rule = plain(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
const GPT2: Rule = words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+");
const QWEN2: Rule = lines(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const QWEN35: Rule = lines(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const LLAMA3: Rule = lines(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const SPARK: Rule = words(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##,
);
const DEEPSEEK3: Rule = lines(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
);

/// One known pre-tokenizer.
struct Known {
    names: &'static [&'static str],
    rules: &'static [Rule],
    /// A whole piece that is a token needs no merges.
    ignore_merges: bool,
    /// Whether a BOS token is added when the model does not say.
    add_bos: bool,
}

const TABLE: &[Known] = &[
    Known {
        names: &["spark2_5"],
        rules: &[THREE_DIGITS, CJK, SPARK, ONE_DIGIT],
        ignore_merges: false,
        add_bos: false,
    },
    Known {
        names: &["deepseek-v3", "hunyuan-dense"],
        rules: &[THREE_DIGITS, CJK, DEEPSEEK3],
        ignore_merges: false,
        add_bos: false,
    },
    Known {
        names: &["qwen2", "deepseek-r1-qwen"],
        rules: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Known {
        names: &["qwen35"],
        rules: &[QWEN35],
        ignore_merges: false,
        add_bos: false,
    },
    Known {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"],
        rules: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Known {
        names: &["smollm", "starcoder", "refact", "command-r"],
        rules: &[ONE_DIGIT, GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Known {
        names: &["gpt-2", "mpt", "olmo", "phi-2"],
        rules: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
];

/// A pre-tokenizer ready to cut.
#[derive(Debug)]
pub struct PreTokenizer {
    rules: Vec<(Regex, Blanks)>,
    /// A whole piece that is a token needs no merges.
    pub ignore_merges: bool,
    /// Whether a BOS token is added when the model does not say.
    pub add_bos: bool,
}

/// Every name [`PreTokenizer::named`] knows.
pub fn known_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|known| known.names.iter().copied())
}

impl PreTokenizer {
    /// The pre-tokenizer of that GGUF name.
    ///
    /// # Errors
    /// `TokenizerUnusable` for a name we do not know, with the list of those we do.
    pub fn named(name: Option<&str>) -> Result<Self, Problem> {
        let known = name.and_then(|name| TABLE.iter().find(|known| known.names.contains(&name)));
        let Some(known) = known else {
            let seen = name.map_or_else(
                || "no pre-tokenizer is named".to_owned(),
                |name| format!("pre-tokenizer `{}` is not known", name.escape_debug()),
            );
            let names: Vec<_> = known_names().collect();
            return Err(Problem::new(
                Code::TokenizerUnusable,
                format!("{seen} (tokenizer.ggml.pre)"),
                format!("use a model whose pre-tokenizer is one of: {}", names.join(", ")),
            )
            .why("a guessed pre-tokenizer cuts words elsewhere, and the model silently answers worse"));
        };
        let rules = known
            .rules
            .iter()
            .map(|rule| {
                Regex::new(rule.pattern)
                    .map(|regex| (regex, rule.blanks))
                    .map_err(|error| unusable(format!("pre-tokenizer pattern {:?}: {error}", rule.pattern)))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            rules,
            ignore_merges: known.ignore_merges,
            add_bos: known.add_bos,
        })
    }

    /// Cuts `text`. Each rule works on the pieces the one before left; what a rule does not match stays a piece.
    pub fn pieces(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces: Vec<_> = std::iter::once(0..text.len()).collect();
        for (regex, blanks) in &self.rules {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                cut(&text[piece.clone()], piece.start, regex, *blanks, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

fn cut(piece: &str, offset: usize, regex: &Regex, blanks: Blanks, out: &mut Vec<Range<usize>>) {
    let mut done = 0;
    while let Some(found) = regex.find_at(piece, done) {
        let mut end = found.end();
        if blanks != Blanks::AsMatched && end < piece.len() {
            end = before_last_blank(found.as_str(), &piece[end..], blanks)
                .map_or(end, |length| found.start() + length);
        }
        if end <= done {
            break; // an empty match; no pattern here has one
        }
        if found.start() > done {
            out.push(offset + done..offset + found.start());
        }
        out.push(offset + found.start()..offset + end);
        done = end;
    }
    if done < piece.len() {
        out.push(offset + done..offset + piece.len());
    }
}

/// Length of a run of blanks without its last one, if that one goes to `rest`.
fn before_last_blank(run: &str, rest: &str, blanks: Blanks) -> Option<usize> {
    let followed = rest.chars().next().is_some_and(|c| !c.is_whitespace());
    let (last_at, last) = run.char_indices().next_back()?;
    let bound = blanks == Blanks::LeaveLastAfterLineBreaks && matches!(last, '\r' | '\n');
    (followed && !bound && last_at > 0 && run.chars().all(char::is_whitespace)).then_some(last_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_with(name: &str, text: &str) -> Vec<String> {
        let pre = PreTokenizer::named(Some(name)).unwrap();
        pre.pieces(text)
            .into_iter()
            .map(|range| text[range].to_owned())
            .collect()
    }

    #[test]
    fn blanks_leave_the_last_one_to_the_word() {
        assert_eq!(cut_with("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(cut_with("gpt-2", "a   "), ["a", "   "]);
        assert_eq!(cut_with("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(cut_with("qwen2", "a \n\n  b"), ["a", " \n\n", " ", " b"]);
        assert_eq!(cut_with("qwen2", " \na"), [" \n", "a"]);
        assert_eq!(cut_with("gpt-2", " \na"), [" ", "\n", "a"]);
        assert_eq!(cut_with("qwen2", "it'S 12"), ["it", "'S", " ", "1", "2"]);
        assert_eq!(cut_with("llama3", "1234"), ["123", "4"]);
        assert_eq!(cut_with("smollm", "x  5"), ["x", "  ", "5"]);
        assert_eq!(
            cut_with("spark2_5", "a \n b\nc 漢字かな,x"),
            ["a", " \n", " b", "\n", "c", " ", "漢字かな", ",x"]
        );
    }

    #[test]
    fn every_row_compiles_and_covers_the_text() {
        for name in known_names() {
            assert_eq!(
                cut_with(name, "Ab 12\n\n  ñ漢字…\u{85}\u{a0}\u{3000}!? \t end ").concat(),
                "Ab 12\n\n  ñ漢字…\u{85}\u{a0}\u{3000}!? \t end "
            );
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_list() {
        let problem = PreTokenizer::named(Some("viking")).unwrap_err();
        assert_eq!(problem.code, Code::TokenizerUnusable);
        assert!(problem.what.contains("viking") && problem.remedy.contains("qwen2"));
        assert!(PreTokenizer::named(None).is_err() && PreTokenizer::named(Some("default")).is_err());
    }
}
