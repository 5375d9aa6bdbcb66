//! From a plan and opened weights to a running engine.
//!
//! In: a settled [`Plan`] with its card, [`Weights`]. Out: a [`Handle`].
//! Invariant: either everything the plan says runs, or nothing does and the reason is returned.

use std::sync::{Arc, mpsc};

use super::handle::{Handle, ModelFacts, Parts};
use super::nets::load::LoadProgress;
use super::pipeline::{self, Line};
use super::stage::Stage;
use super::stages::DecoderStage;
use super::text::{ChatTemplate, Tokenizer};
use crate::base::{Bytes, Code, Problem};
use crate::model::weights::Weights;
use crate::plan::{EffectiveModel, Plan};
use crate::sys::memory::heap_in_use;

/// The stage of a language model.
pub const DECODER: &str = "decoder";

/// What happens while an engine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartProgress {
    /// The tokenizer and the chat template are ready.
    Text,
    /// A tensor was packed.
    Weights(LoadProgress),
}

/// Builds the tokenizer, loads the weights on the stage's own thread, and starts it.
///
/// `on_progress` is called on the calling thread.
///
/// # Errors
/// Whatever keeps the plan from running as it stands.
pub fn start(
    plan: &Plan,
    weights: Weights,
    on_progress: &mut dyn FnMut(StartProgress),
) -> Result<Handle, Problem> {
    let card = plan.model.card.as_deref().ok_or_else(|| {
        Problem::new(
            Code::Internal,
            "the plan carries no model card",
            "make the plan again from the model; a plan read back from a file has none",
        )
    })?;
    let heap = heap_in_use();
    let tokenizer = Arc::new(Tokenizer::open(card, &weights)?);
    let tokenizer_bytes = heap
        .zip(heap_in_use())
        .map(|(before, after)| Bytes(after.0.saturating_sub(before.0)));
    let chat_template = match ChatTemplate::new(card.chat_template.as_deref(), &card.family, &tokenizer) {
        Ok(template) => Some(Arc::new(template)),
        // A shipped template that does not compile is a fault; none at all is a fact the server tells.
        Err(problem) if card.chat_template.is_some() => return Err(problem),
        Err(_) => None,
    };
    on_progress(StartProgress::Text);
    let stage_plan = plan.stages.get(DECODER).cloned().ok_or_else(|| {
        Problem::new(
            Code::Internal,
            format!("the plan has no stage `{DECODER}`"),
            "make the plan again from the model",
        )
    })?;
    let facts = ModelFacts {
        name: plan.model.name.clone(),
        family: card.family.clone(),
        parameters: card.parameters,
        vocab: card.decoder.vocab,
        context: stage_plan.context,
        context_train: card.context_train,
        max_seqs: stage_plan.max_seqs,
        stop_ids: tokenizer.roles().stop.clone(),
    };
    let opened = EffectiveModel {
        name: facts.name.clone(),
        family: facts.family.clone(),
        files: weights.files().to_vec(),
        chat_template: match (&card.chat_template, weights.chat_template()) {
            (None, _) => "family",
            (Some(used), Some(own)) if used == own => "model",
            (Some(_), _) => "pinned",
        }
        .to_owned(),
    };
    let timeout = plan.server.request_timeout_ms.0;
    let line = Arc::new(Line::new(
        stage_plan.max_seqs.saturating_add(plan.server.max_queue),
    ));
    let (reports, progress) = mpsc::channel::<Report>();
    let thread = {
        let (line, tokenizer, card) = (Arc::clone(&line), Arc::clone(&tokenizer), card.clone());
        std::thread::Builder::new()
            .name(format!("{DECODER}-0"))
            .spawn(move || {
                let mut tell = |progress| {
                    // The starter waits for `Ready`, so it cannot be gone.
                    let _ = reports.send(Report::Progress(progress));
                };
                let built = DecoderStage::build(DECODER, &stage_plan, &card, &weights, &mut tell);
                drop(weights);
                let (mut stage, ready) = match built {
                    Ok(stage) => (Some(stage), Ok(())),
                    Err(problem) => (None, Err(problem)),
                };
                // As above.
                let _ = reports.send(Report::Ready(ready));
                drop(reports);
                if let Some(stage) = &mut stage {
                    pipeline::run(&line, stage as &mut dyn Stage, tokenizer);
                }
            })
            .map_err(|error| {
                Problem::new(
                    Code::HardwareLimit,
                    format!("the engine's thread cannot be started: {error}"),
                    "raise the process limit",
                )
            })?
    };
    loop {
        match progress.recv() {
            Ok(Report::Progress(progress)) => on_progress(StartProgress::Weights(progress)),
            Ok(Report::Ready(Ok(()))) => break,
            Ok(Report::Ready(Err(problem))) => return Err(problem),
            Err(mpsc::RecvError) => {
                return Err(Problem::new(
                    Code::Internal,
                    "the engine's thread failed while loading",
                    "report this with the log",
                ));
            }
        }
    }
    Ok(Handle::new(Parts {
        stage_name: DECODER.to_owned(),
        line,
        thread,
        tokenizer,
        chat_template,
        facts,
        opened,
        tokenizer_bytes,
        request_timeout: (timeout > 0).then(|| std::time::Duration::from_millis(timeout)),
    }))
}

enum Report {
    Progress(LoadProgress),
    Ready(Result<(), Problem>),
}
