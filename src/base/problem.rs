//! `Problem`: everything we refuse or warn about, in one shape.
//!
//! In: what was seen, why it matters, what to do next, and where. Out: the same for terminal, JSON and HTTP.
//! Invariant: every problem has a stable code and a remedy a person can act on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::code::Code;

/// Whether work stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Work stops.
    #[default]
    Error,
    /// Work goes on; the person should know.
    Warning,
}

/// Where in a text or file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// File path, environment variable or `--set`.
    pub source: String,
    /// 1-based line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// 1-based column, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The rendered source excerpt with a marker, ready to print.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
}

impl Place {
    /// A whole file or other named source.
    #[must_use]
    pub fn of(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Place {
    /// `file:line:column`, as editors and terminals understand it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.source)?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
            if let Some(column) = self.column {
                write!(out, ":{column}")?;
            }
        }
        Ok(())
    }
}

/// One thing that is wrong, or that a person should know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable kind.
    pub code: Code,
    /// Error or warning.
    #[serde(default)]
    pub severity: Severity,
    /// What was seen, with the numbers.
    pub what: String,
    /// Why it matters. May be empty where it is plain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// What to do next.
    pub remedy: String,
    /// Where, if it has a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Machine-readable numbers (needed and available bytes, largest fit, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

impl Problem {
    /// An error with what was seen and what to do.
    #[must_use]
    pub fn new(code: Code, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            what: what.into(),
            why: String::new(),
            remedy: remedy.into(),
            place: None,
            details: None,
        }
    }

    /// The same, as a warning.
    #[must_use]
    pub fn warning(code: Code, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::new(code, what, remedy)
        }
    }

    /// Adds why it matters.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Adds where.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds machine-readable numbers.
    #[must_use]
    pub fn with(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details);
        self
    }
}

impl fmt::Display for Problem {
    /// Several lines: severity and code with place, what, why, remedy, snippet.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(out, "{word}[{}]: {}", self.code, self.what)?;
        if let Some(place) = &self.place {
            write!(out, "\n  at: {place}")?;
            if let Some(snippet) = &place.snippet {
                for line in snippet.lines() {
                    write!(out, "\n  {line}")?;
                }
            }
        }
        if !self.why.is_empty() {
            write!(out, "\n  why: {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(out, "\n  do: {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// Several problems found in one pass. Never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl From<Vec<Problem>> for Problems {
    fn from(problems: Vec<Problem>) -> Self {
        Self(problems)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            write!(out, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
