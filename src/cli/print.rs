//! The only place that prints: results on stdout, everything else on stderr.
//!
//! In: texts, JSON values, problems, progress. Out: what a person or a script sees.
//! Invariant: stdout carries results only; a closed pipe ends the program quietly with 0, as readers like `head`
//! expect; no meaning is carried by colour, and none is used.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::base::{Bytes, Problem, Problems, Severity};
use crate::fetch::Progress;

/// Prints a text on stdout, with a line end if it has none.
pub fn text(text: &str) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    stream(&format!("{text}{end}"));
}

/// Prints a part of a text on stdout at once.
pub fn stream(part: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(part.as_bytes()).and_then(|()| out.flush()) {
        closed(&error);
    }
}

/// Prints a text on stdout for a command that goes on whether or not somebody reads it.
pub fn announce(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush());
    drop(out);
    if let Err(error) = written {
        note(&format!(
            "stdout cannot be written ({error}); going on without it"
        ));
    }
}

/// Prints a value on stdout as indented JSON.
pub fn json<T: Serialize>(value: &T) -> Result<(), Problem> {
    text(&pretty(value)?);
    Ok(())
}

/// A value as indented JSON.
pub fn pretty<T: Serialize>(value: &T) -> Result<String, Problem> {
    serde_json::to_string_pretty(value).map_err(|error| {
        Problem::new(
            crate::base::Code::Internal,
            format!("the result cannot be written as JSON: {error}"),
            "please report this",
        )
    })
}

/// Prints one line on stderr.
pub fn note(line: &str) {
    // With stderr closed there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints warnings on stderr.
pub fn warnings(problems: &[Problem]) {
    for problem in problems {
        note(&for_reader(&problem.to_string()));
    }
}

/// Widest line of a message on a terminal.
const MESSAGE_WIDTH: usize = 80;

/// A message as it is, or for a terminal with its sentences in lines of at most 80 columns. Excerpts stay as they are.
fn for_reader(message: &str) -> String {
    if std::io::stderr().is_terminal() {
        in_columns(message)
    } else {
        message.to_owned()
    }
}

fn in_columns(message: &str) -> String {
    let sentence = |line: &str| {
        ["error[", "warning[", "  why: ", "  do: "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let lines: Vec<String> = message
        .lines()
        .map(|line| {
            if line.chars().count() <= MESSAGE_WIDTH || !sentence(line) {
                return line.to_owned();
            }
            let start = line.len() - line.trim_start().len();
            let indent = " ".repeat(start + 4);
            let words = wrapped(line, MESSAGE_WIDTH - indent.len(), &indent);
            format!("{}{words}", &line[..start])
        })
        .collect();
    lines.join("\n")
}

/// Prints why a command failed: text on stderr, or JSON on stdout where results go.
pub fn failure(problems: &Problems, as_json: bool) {
    if as_json {
        let body = match problems.0.as_slice() {
            [one] => serde_json::json!({ "error": one }),
            several => serde_json::json!({ "problems": several }),
        };
        text(&format!("{body:#}"));
    } else {
        let errors = problems
            .0
            .iter()
            .filter(|p| p.severity == Severity::Error)
            .count();
        note(&for_reader(&problems.to_string()));
        if errors > 1 {
            note(&format!("{errors} errors"));
        }
    }
}

/// Ends the program after stdout could not be written.
fn closed(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    note(&format!("error: stdout cannot be written: {error}"));
    std::process::exit(crate::base::ExitCode::Io.number().into());
}

/// Columns, each as wide as its widest cell; the last is not padded. Two spaces between.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = width - cell.chars().count();
            line.push_str(cell);
            line.push_str(&" ".repeat(padding + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Words in lines of at most `width` characters, each but the first behind `indent`.
#[must_use]
pub fn wrapped(words: &str, width: usize, indent: &str) -> String {
    let mut out = String::new();
    let mut line = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if line > 0 && line + 1 + length > width {
            out.push('\n');
            out.push_str(indent);
            line = 0;
        } else if line > 0 {
            out.push(' ');
            line += 1;
        }
        out.push_str(word);
        line += length;
    }
    out
}

/// Draws a download on stderr: one line that changes on a terminal, else a line every tenth.
#[derive(Debug)]
pub struct Bar {
    terminal: bool,
    label: String,
    started: Instant,
    first: u64,
    drawn: Option<Instant>,
    tenth: u64,
    /// Show only what takes longer than a moment: amounts, no steps.
    quiet: bool,
}

impl Default for Bar {
    fn default() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            label: String::new(),
            started: Instant::now(),
            first: 0,
            drawn: None,
            tenth: 0,
            quiet: false,
        }
    }
}

impl Bar {
    /// One that shows downloads but no other steps.
    #[must_use]
    pub fn quiet() -> Self {
        let mut bar = Self::default();
        bar.quiet = true;
        bar
    }

    /// The line for this state: name, amount, share, rate.
    fn line(&self, done: u64, total: Option<u64>) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = if seconds > 0.2 {
            format!(
                "  {}/s",
                Bytes(((done - self.first.min(done)) as f64 / seconds) as u64)
            )
        } else {
            String::new()
        };
        match total {
            Some(total) if total > 0 => format!(
                "{}: {} of {} ({} %){rate}",
                self.label,
                Bytes(done),
                Bytes(total),
                done.saturating_mul(100) / total
            ),
            _ => format!("{}: {}{rate}", self.label, Bytes(done)),
        }
    }

    fn end_line(&mut self) {
        if self.drawn.take().is_some() && self.terminal {
            note("");
        }
    }
}

impl Progress for Bar {
    fn step(&mut self, text: &str) {
        self.end_line();
        if !self.quiet {
            note(text);
        }
    }

    fn bytes(&mut self, label: &str, done: u64, total: Option<u64>) {
        if self.quiet && label == crate::launch::LOADING {
            return;
        }
        if label != self.label {
            self.end_line();
            label.clone_into(&mut self.label);
            self.started = Instant::now();
            self.first = done;
            self.tenth = 0;
        }
        let finished = total == Some(done);
        if self.terminal {
            let due = self
                .drawn
                .is_none_or(|at| at.elapsed() >= Duration::from_millis(100));
            if due || finished {
                let line = self.line(done, total);
                let _ = write!(std::io::stderr().lock(), "\r{line}\x1b[K");
                self.drawn = Some(Instant::now());
            }
            if finished {
                self.end_line();
            }
        } else {
            let tenth = total.map_or(done >> 24, |total| done.saturating_mul(10) / total.max(1));
            if tenth > self.tenth {
                self.tenth = tenth;
                note(&self.line(done, total));
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_texts_wrap() {
        let rows = [
            vec!["a".to_owned(), "é".to_owned()],
            vec!["bcd".to_owned(), "x".to_owned()],
        ];
        assert_eq!(table(&rows), "a    é\nbcd  x\n");
        assert_eq!(table(&[]), "");
        assert_eq!(wrapped("aa bb cc", 5, "  "), "aa bb\n  cc");
        assert_eq!(wrapped("", 5, "  "), "");
        let long = format!(
            "error[bad_value]: {}\n  | {}\n  do: this",
            "word ".repeat(30).trim(),
            "x".repeat(90)
        );
        let shown = in_columns(&long);
        assert!(
            shown
                .lines()
                .all(|line| line.len() <= 80 || line.starts_with("  | ")),
            "{shown}"
        );
        assert_eq!(
            shown.split_whitespace().collect::<Vec<_>>(),
            long.split_whitespace().collect::<Vec<_>>()
        );
    }
}
