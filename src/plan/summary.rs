//! The plan on one screen: sections of key, value and reason.
//!
//! In: a plan. Out: lines for a printer to lay out. Invariant: every value is one of the plan's own.

use super::Plan;
use crate::base::KeyPath;

/// One line: key, value, reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Short name within its section.
    pub key: String,
    /// The value as text with its unit.
    pub value: String,
    /// Why, in one sentence.
    pub because: String,
}

impl Plan {
    /// Sections in reading order: model, one for each stage, memory, server, deadlines.
    #[must_use]
    pub fn summary(&self) -> Vec<(String, Vec<Line>)> {
        let mut sections = Vec::new();
        sections.push((
            "model".to_owned(),
            vec![
                self.line("model.name", &self.model.name),
                self.line("model.family", &self.model.family),
                self.line("model.profile", &self.model.profile),
                self.line("model.chat_template", &self.model.chat_template),
            ],
        ));
        for (name, stage) in &self.stages {
            let at = |knob: &str| format!("stages.{name}.{knob}");
            let yes = |value: bool| if value { "yes" } else { "no" };
            sections.push((
                format!("stage {name}"),
                vec![
                    self.line(&at("threads"), stage.threads),
                    self.line(&at("cpus"), &stage.cpus),
                    self.line(&at("pin"), yes(stage.pin)),
                    self.line(&at("confine"), yes(stage.confine)),
                    self.line(&at("isa_cap"), &stage.isa_cap),
                    self.line(&at("weight_path"), &stage.weight_path),
                    self.line(&at("dtype"), stage.dtype),
                    self.line(&at("context"), format!("{} tokens", stage.context)),
                    self.line(&at("max_seqs"), stage.max_seqs),
                    self.line(
                        &at("kv_bytes"),
                        format!("{} ({})", stage.kv_bytes, stage.kv_dtype),
                    ),
                    self.line(&at("prefill_batch"), format!("{} tokens", stage.prefill_batch)),
                    self.line(&at("huge_pages"), yes(stage.huge_pages)),
                ],
            ));
        }
        let several = self.memory.several_stages();
        let mut memory: Vec<Line> = self
            .memory
            .items
            .iter()
            .filter(|item| item.anonymous && item.steady && item.bytes.0 > 0)
            .map(|item| Line {
                key: item.label(several),
                value: item.bytes.to_string(),
                because: item.because.clone(),
            })
            .collect();
        memory.push(self.line("memory.peak_bytes", self.memory.peak_bytes));
        memory.push(self.line("memory.reserve_bytes", self.memory.reserve_bytes));
        memory.push(self.line("memory.available_bytes", self.memory.available_bytes));
        sections.push(("memory".to_owned(), memory));
        let key = if self.server.api_key_required {
            "required"
        } else {
            "not required"
        };
        sections.push((
            "server".to_owned(),
            vec![
                self.line("server.host", &self.server.host),
                self.line("server.port", self.server.port),
                self.line("server.api_key_required", key),
                self.line("server.max_queue", self.server.max_queue),
                self.line("server.default_max_tokens", self.server.default_max_tokens),
            ],
        ));
        sections.push((
            "deadlines".to_owned(),
            vec![
                self.line("deadlines.load_ms", self.deadlines.load_ms),
                self.line("deadlines.warmup_ms", self.deadlines.warmup_ms),
                self.line("deadlines.shutdown_ms", self.deadlines.shutdown_ms),
            ],
        ));
        sections
    }

    fn line(&self, key: &str, value: impl ToString) -> Line {
        let because = self
            .explanations
            .get(&KeyPath::new(key))
            .map(|explanation| explanation.because.clone())
            .unwrap_or_default();
        Line {
            key: key.rsplit('.').next().unwrap_or(key).to_owned(),
            value: value.to_string(),
            because,
        }
    }

    /// The explanation of a knob, or a problem that names the nearest ones.
    pub fn explain(&self, key: &str) -> Result<&super::Explanation, crate::base::Problem> {
        super::explain::find(&self.explanations, key)
    }
}
