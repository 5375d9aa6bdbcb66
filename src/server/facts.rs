//! Endpoints that only tell: models, health, readiness, metrics, the plan and what really runs.
//!
//! In: the state. Out: JSON or text. Invariant: none of them waits for generation, so they answer under full load
//! (`/v1/edge/effective` waits for one pass of the network).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::endpoints::blocking;
use super::errors::ApiError;
use super::reply::{ModelBody, ModelList};
use super::state::ServerState;
use crate::base::{Code, Problem};
use crate::engine::status::{BUCKET_BOUNDS_MS, Histogram, Status};
use crate::observe::metrics::{self, EngineNumbers, HistogramNumbers};
use crate::observe::throttling;

type Shared = State<Arc<ServerState>>;

fn model(state: &ServerState) -> ModelBody {
    ModelBody {
        id: state.model.clone(),
        object: "model",
        created: state.created,
        owned_by: "edge-deploy",
        family: state.family.clone(),
        context_length: state.context,
        ready: state.ready().is_ok(),
    }
}

/// `GET /`
pub async fn root(State(state): Shared) -> String {
    format!(
        "edge-deploy {} serves {} as an OpenAI-compatible API under /v1.\n\
         GET /health  /ready  /metrics  /v1/models  /v1/edge/plan  /v1/edge/effective\n\
         POST /v1/chat/completions  /v1/completions  /v1/audio/speech\n",
        env!("CARGO_PKG_VERSION"),
        state.model
    )
}

/// `GET /v1/models`
pub async fn models(State(state): Shared) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: vec![model(&state)],
    })
}

/// `GET /v1/models/{id}`
pub async fn one_model(State(state): Shared, Path(id): Path<String>) -> Result<Json<ModelBody>, ApiError> {
    state.check_model(Some(&id))?;
    Ok(Json(model(&state)))
}

/// `GET /health`: the process is alive.
pub async fn health() -> Json<serde_json::Value> {
    Json(json!({"status": "alive"}))
}

/// `GET /ready`: requests are served.
pub async fn ready(State(state): Shared) -> Result<Json<serde_json::Value>, ApiError> {
    let handle = state.ready()?;
    if handle.stopping() {
        return Err(Problem::new(Code::NotReady, "the engine has stopped", "restart the server").into());
    }
    Ok(Json(json!({"status": "ready", "model": state.model})))
}

/// `GET /v1/edge/plan`
pub async fn plan(State(state): Shared) -> Response {
    ([(CONTENT_TYPE, "application/json")], state.plan_json.clone()).into_response()
}

/// `GET /v1/edge/effective`
pub async fn effective(State(state): Shared) -> Result<Response, ApiError> {
    let handle = state.ready()?.clone();
    let effective = blocking(move || Ok(state.effective(&handle)?)).await?;
    Ok(Json(effective).into_response())
}

fn histogram(histogram: &Histogram) -> HistogramNumbers {
    HistogramNumbers {
        bounds_seconds: BUCKET_BOUNDS_MS.iter().map(|ms| ms / 1e3).collect(),
        counts: histogram.counts.to_vec(),
        sum_seconds: histogram.sum_ms / 1e3,
    }
}

fn numbers(status: &Status) -> EngineNumbers {
    EngineNumbers {
        queued: status.queued,
        running: status.running,
        accepted: status.accepted,
        refused: status.refused,
        finished: status.finished,
        failed: status.failed,
        cancelled: status.cancelled,
        prompt_tokens: status.prompt_tokens,
        completion_tokens: status.completion_tokens,
        passes: status.passes,
        prompt_tokens_per_second: status.prompt_tokens_per_second,
        completion_tokens_per_second: status.completion_tokens_per_second,
        time_to_first_token: histogram(&status.time_to_first_token),
        time_between_tokens: histogram(&status.time_between_tokens),
        queue_time: histogram(&status.queue_time),
    }
}

/// `GET /metrics`
pub async fn metrics(State(state): Shared) -> Result<Response, ApiError> {
    let engine = state.engine().map(|handle| numbers(&handle.status()));
    let text = blocking(move || {
        let throttling = throttling::of_own_group();
        metrics::page(&state.http, engine, throttling).map_err(|error| {
            ApiError::from(Problem::new(
                Code::Internal,
                format!("metrics cannot be written: {error}"),
                "report this",
            ))
        })
    })
    .await?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
