//! The two generating endpoints.
//!
//! In: a request. Out: answers of the engine, whole or streamed. Invariant: tokenising happens off the reactor, and
//! nothing is submitted before the whole request has been checked.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::errors::ApiError;
use super::generation::Generation;
use super::state::ServerState;
use super::validate::{self, Asked};
use super::wire::{ChatRequest, CompletionRequest, Prompt};
use super::writer::{Shape, Writer};
use super::{answer, body};
use crate::base::{Code, Problem};
use crate::engine::Handle;
use crate::engine::text::{ChatOptions, Encoding};

/// Most prompts of one completion request.
const MAX_PROMPTS: usize = 16;

/// `POST /v1/chat/completions`
pub async fn chat(State(state): State<Arc<ServerState>>, request: Request) -> Result<Response, ApiError> {
    let (request, held) = body::read::<ChatRequest>(&state, request).await?;
    state.check_model(request.model.as_deref())?;
    let asked = validate::chat(&request, &state.sampling, state.fresh_number())?;
    let messages = validate::messages(&request.messages)?;
    let handle = state.text()?.clone();
    let engine = handle.clone();
    let variables = request.chat_template_kwargs.unwrap_or_default();
    let prompt = blocking(move || {
        let template = engine.chat_template().ok_or_else(|| {
            ApiError::from(Problem::new(
                Code::RequestUnsupported,
                "the loaded model has no chat template",
                "use /v1/completions with a prompt of your own",
            ))
        })?;
        let options = ChatOptions {
            add_generation_prompt: true,
            variables,
        };
        let prompt = template.prompt(engine.tokenizer(), &messages, &options);
        drop((messages, held));
        prompt.map_err(|problem| ApiError::from(problem).naming("messages"))
    })
    .await?;
    respond(&state, &handle, Shape::Chat, asked, vec![prompt], Vec::new()).await
}

/// `POST /v1/completions`
pub async fn completions(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (request, held) = body::read::<CompletionRequest>(&state, request).await?;
    state.check_model(request.model.as_deref())?;
    let asked = validate::completion(&request, &state.sampling, state.fresh_number())?;
    let prompts = match request.prompt {
        None => Vec::new(),
        Some(Prompt::Text(text)) => vec![Given::Text(text)],
        Some(Prompt::Texts(texts)) => texts.into_iter().map(Given::Text).collect(),
        Some(Prompt::Tokens(ids)) => vec![Given::Tokens(ids)],
        Some(Prompt::TokenLists(lists)) => lists.into_iter().map(Given::Tokens).collect(),
    };
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        return Err(ApiError::invalid(
            "prompt",
            format!("`prompt` has {} prompts", prompts.len()),
            format!("send 1 to {MAX_PROMPTS} prompts"),
        ));
    }
    let handle = state.text()?.clone();
    let engine = handle.clone();
    let (echo, n) = (request.echo.unwrap_or(false), asked.n);
    let (prompts, echoes) = blocking(move || {
        let outcome = tokenised(&engine, prompts, echo, n);
        drop(held);
        outcome
    })
    .await?;
    respond(&state, &handle, Shape::Completion, asked, prompts, echoes).await
}

/// A prompt as it came.
enum Given {
    Text(String),
    Tokens(Vec<u32>),
}

/// Prompts as tokens, and what each answer begins with when the prompt is to be echoed.
fn tokenised(
    engine: &Handle,
    given: Vec<Given>,
    echo: bool,
    answers: usize,
) -> Result<(Vec<Vec<u32>>, Vec<String>), ApiError> {
    let tokenizer = engine.tokenizer();
    let mut prompts = Vec::with_capacity(given.len());
    let mut echoes = Vec::new();
    for prompt in given {
        let (ids, text) = match prompt {
            Given::Text(text) => (tokenizer.encode(&text, Encoding::PROMPT)?, text),
            Given::Tokens(ids) => {
                let text = if echo {
                    tokenizer.decode(&ids)
                } else {
                    String::new()
                };
                (ids, text)
            }
        };
        if ids.is_empty() {
            return Err(ApiError::invalid(
                "prompt",
                "a prompt has no tokens",
                "send a prompt that is not empty",
            ));
        }
        if echo {
            echoes.extend(std::iter::repeat_n(text, answers));
        }
        prompts.push(ids);
    }
    Ok((prompts, echoes))
}

async fn respond(
    state: &Arc<ServerState>,
    handle: &Handle,
    shape: Shape,
    asked: Asked,
    prompts: Vec<Vec<u32>>,
    echoes: Vec<String>,
) -> Result<Response, ApiError> {
    let (prefix, field) = match shape {
        Shape::Chat => ("chatcmpl", "messages"),
        Shape::Completion => ("cmpl", "prompt"),
    };
    let generation = Generation::submit(handle, prompts, &asked, state.plan.default_max_tokens, field)?;
    let writer = Writer {
        shape,
        id: state.fresh_id(prefix),
        created: state.now(),
        model: state.model.clone(),
        fingerprint: state.digest.clone(),
        include_usage: asked.include_usage,
        tokenizer: Arc::clone(handle.tokenizer()),
    };
    if asked.stream {
        Ok(answer::streamed(generation, writer, &echoes))
    } else {
        answer::whole(generation, &writer, &echoes, asked.logprobs.is_some()).await
    }
}

/// Runs work that takes a while on a thread made for it.
///
/// # Errors
/// The work's own; `Internal` when it panicked.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|failure| Err(super::panicked(&failure).into()))
}
