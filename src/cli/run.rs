//! `run`: one prompt answered in the terminal.
//!
//! In: a prompt and the flags of `auto`. Out: the answer on stdout as it grows, counts on stderr.
//! Invariant: the same plan, engine and template as the server's; with the same seed, the same answer.

use std::io::Read as _;

use super::args::{Listen, RunArgs};
use super::{Outcome, print, select};
use crate::base::{Code, ExitCode, Problem};
use crate::engine::text::{ChatMessage, ChatOptions, Encoding};
use crate::engine::{Event, FinishReason, Handle, Request, Sampling, Usage};
use crate::fetch::Cache;
use crate::launch;
use crate::plan::SamplingPlan;

/// Longest prompt read from stdin.
const MAX_PROMPT_BYTES: u64 = 4 << 20;

pub(super) fn run(args: &RunArgs) -> Outcome {
    let wanted = select::wanted(&args.select, &Listen::default())?;
    let prompt = prompt(&args.prompt)?;
    let mut bar = print::Bar::quiet();
    let decided = launch::fetch_and_decide(&wanted, &Cache::open()?, &mut bar)?;
    let ready = launch::start(decided, &mut bar)?;
    drop(bar);
    print::warnings(&ready.decided.plan.warnings);
    print::warnings(&ready.differences);
    let plan = &ready.decided.plan;
    let request = Request {
        prompt: tokens(&ready.handle, args, &prompt)?,
        sampling: sampling(args, &plan.model.sampling),
        max_tokens: args.max_tokens.unwrap_or(plan.server.default_max_tokens),
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        echo: false,
    };
    let answer = answer(&ready.handle, request, args.output.json);
    ready
        .handle
        .shutdown(std::time::Duration::from_millis(plan.deadlines.shutdown_ms.0));
    let (text, finish, usage) = answer?;
    if args.output.json {
        print::json(&serde_json::json!({
            "model": plan.model.name,
            "digest": plan.digest,
            "text": text,
            "finish": finish,
            "usage": usage,
        }))?;
    } else {
        if !text.ends_with('\n') {
            print::text("");
        }
        print::note(&counts(finish, &usage));
    }
    Ok(ExitCode::Ok)
}

/// The prompt as given, or all of stdin for `-`.
pub(super) fn prompt(given: &str) -> Result<String, Problem> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let bad = |what: String| {
        Problem::new(
            Code::BadValue,
            what,
            "give UTF-8 text on stdin, or the prompt itself",
        )
        .at(crate::base::Place::of("stdin"))
    };
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| bad(format!("the prompt cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(bad(format!("the prompt is longer than {MAX_PROMPT_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| bad(format!("the prompt is not UTF-8: {error}")))
}

fn tokens(handle: &Handle, args: &RunArgs, prompt: &str) -> Result<Vec<u32>, Problem> {
    let tokenizer = handle.tokenizer();
    if args.raw {
        return tokenizer.encode(prompt, Encoding::PROMPT);
    }
    let template = handle.chat_template().ok_or_else(|| {
        Problem::new(
            Code::TokenizerUnusable,
            "the model has no chat template",
            "add --raw to give it the prompt as it is",
        )
    })?;
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(ChatMessage::new("system", system.as_str()));
    }
    messages.push(ChatMessage::new("user", prompt));
    template.prompt(tokenizer, &messages, &ChatOptions::default())
}

/// The flags, and the plan's values where none is given.
fn sampling(args: &RunArgs, plan: &SamplingPlan) -> Sampling {
    Sampling {
        temperature: args.temperature.unwrap_or(plan.temperature),
        top_p: args.top_p.unwrap_or(plan.top_p),
        top_k: args.top_k.unwrap_or(plan.top_k),
        min_p: args.min_p.unwrap_or(plan.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(plan.repetition_penalty),
        seed: args.seed,
        ..Sampling::default()
    }
}

/// Submits and waits; shows the text as it comes unless `quiet`.
fn answer(handle: &Handle, request: Request, quiet: bool) -> Result<(String, FinishReason, Usage), Problem> {
    let mut submission = handle.submit(request)?;
    let mut whole = String::new();
    let mut show = |text: &str| {
        whole.push_str(text);
        if !quiet && !text.is_empty() {
            print::stream(text);
        }
    };
    while let Some(event) = submission.events.blocking_recv() {
        match event {
            Event::Prefilled { .. } => {}
            Event::Token { text, .. } => show(&text),
            Event::Done { finish, text, usage } => {
                show(&text);
                return Ok((whole, finish, usage));
            }
            Event::Failed(problem) => return Err(problem),
        }
    }
    Err(Problem::new(
        Code::StageFailed,
        "the engine ended without finishing the answer",
        "run it again with `--log info`, and report this with the log",
    ))
}

/// One line of counts and rates.
fn counts(finish: FinishReason, usage: &Usage) -> String {
    let rate = |tokens: usize, ms: f64| {
        if ms > 0.0 {
            format!("{:.1} tok/s", tokens as f64 * 1000.0 / ms)
        } else {
            "too short to tell".to_owned()
        }
    };
    // The first token comes with the prompt's pass; the time from it to the last covers the others.
    let later = usage.completion_tokens.saturating_sub(1);
    format!(
        "prompt: {} tokens, {}; answer: {} tokens, {}; ended by {}",
        usage.prompt_tokens,
        rate(usage.prompt_tokens, usage.prefill_ms),
        usage.completion_tokens,
        rate(later, usage.decode_ms),
        match finish {
            FinishReason::Stop => "the model",
            FinishReason::Length => "the limit of tokens",
            FinishReason::Cancelled => "cancellation",
        }
    )
}
