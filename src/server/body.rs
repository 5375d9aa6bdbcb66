//! Request bodies: bytes off the wire, within limits, into typed JSON.
//!
//! In: a request. Out: the wire struct. Invariant: no more than the plan's limit is ever held, slow senders are cut
//! off, and a wrong field is named.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use futures_core::Stream as _;
use serde::de::DeserializeOwned;

use super::errors::ApiError;
use super::state::ServerState;
use crate::base::{Code, Problem};

/// Reads the body as JSON. What is held for it counts until [`Held`] is dropped.
///
/// # Errors
/// `RequestMalformed`, `RequestInvalid`, `BodyTooLarge`, `QueueFull` when too many large ones arrive at once, or 408
/// for a body that does not arrive in time.
pub async fn read<T: DeserializeOwned>(state: &ServerState, request: Request) -> Result<(T, Held), ApiError> {
    check_headers(state, request.headers())?;
    let wait = Duration::from_millis(state.plan.read_timeout_ms.0);
    let mut held = Held::of(&state.bodies, state.max_body());
    let Ok(outcome) = tokio::time::timeout(wait, collect(state, request.into_body(), &mut held)).await else {
        let problem = Problem::new(
            Code::DeadlinePassed,
            format!(
                "the request body did not arrive within {}",
                state.plan.read_timeout_ms
            ),
            "send it faster, or raise `server.read_timeout_ms`",
        );
        return Err(ApiError::from(problem).with_status(StatusCode::REQUEST_TIMEOUT));
    };
    let bytes = outcome?;
    Ok((parse(&bytes)?, held))
}

/// The whole body. No more than the limit is ever held.
async fn collect(state: &ServerState, body: Body, held: &mut Held) -> Result<Vec<u8>, ApiError> {
    let mut chunks = pin!(body.into_data_stream());
    let mut bytes = Vec::new();
    while let Some(chunk) = poll_fn(|context| chunks.as_mut().poll_next(context)).await {
        let chunk = chunk.map_err(|error| malformed(&format_args!("it broke off: {error}")))?;
        if bytes.len() + chunk.len() > state.max_body() {
            return Err(too_large(state));
        }
        held.grow(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Bytes of large bodies that are held for requests whose prompts are not yet tokens.
pub type Bodies = Arc<AtomicUsize>;

/// The first bytes of a body, which are not counted: ordinary requests are never refused because of large ones.
const UNCOUNTED: usize = 64 << 10;
/// Most counted bytes at once; what is read from them takes several times as much.
const ALL_BODIES: usize = 16 << 20;

/// One request's part of [`Bodies`]; given back when dropped.
#[derive(Debug)]
pub struct Held {
    all: Bodies,
    most: usize,
    read: usize,
    counted: usize,
}

impl Held {
    /// Nothing yet. At least two of the largest bodies fit.
    fn of(all: &Bodies, largest: usize) -> Self {
        Self {
            all: Arc::clone(all),
            most: ALL_BODIES.max(largest.saturating_mul(2)),
            read: 0,
            counted: 0,
        }
    }

    /// Counts more bytes.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.read += bytes;
        let more = self.read.saturating_sub(UNCOUNTED) - self.counted;
        if more == 0 {
            return Ok(());
        }
        self.counted += more;
        if self.all.fetch_add(more, Ordering::Relaxed) + more > self.most {
            return Err(Problem::new(
                Code::QueueFull,
                "too many large requests arrive at once",
                "send it again in a moment",
            )
            .into());
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

fn too_large(state: &ServerState) -> ApiError {
    Problem::new(
        Code::BodyTooLarge,
        format!("the request body is larger than {}", state.plan.max_body_bytes),
        "send less, or raise `server.max_body_bytes`",
    )
    .into()
}

/// Refuses what the headers already give away.
fn check_headers(state: &ServerState, headers: &HeaderMap) -> Result<(), ApiError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // Other types can be sent by any web page without asking; JSON cannot.
    let kind = header(CONTENT_TYPE).unwrap_or("application/json");
    if !kind
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    {
        return Err(Problem::new(
            Code::RequestMalformed,
            "the request's content type is not application/json",
            "send `Content-Type: application/json`",
        )
        .into());
    }
    let announced = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > state.max_body() as u64) {
        return Err(too_large(state));
    }
    Ok(())
}

/// A whole body as one JSON object.
///
/// # Errors
/// `RequestMalformed`, or `RequestInvalid` naming the field.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // An array would be taken for the fields in order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(malformed(&"it is an array"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() && path != "." {
            ApiError::invalid(&*path, format!("`{path}`: {inner}"), "correct this field")
        } else {
            malformed(&inner)
        }
    })?;
    reader.end().map_err(|error| malformed(&error))?;
    Ok(parsed)
}

fn malformed(error: &dyn std::fmt::Display) -> ApiError {
    Problem::new(
        Code::RequestMalformed,
        format!("the body is not the JSON object it should be: {error}"),
        "send one JSON object",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::wire::{ChatRequest, CompletionRequest};
    use super::*;

    #[test]
    fn large_bodies_share_a_bound_and_small_ones_always_pass() {
        let bodies = Bodies::default();
        let largest = 1 << 20;
        let mut held = Vec::new();
        let refused = loop {
            let mut next = Held::of(&bodies, largest);
            if let Err(error) = next.grow(largest) {
                break error;
            }
            held.push(next);
            assert!(held.len() < 100);
        };
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(held.len() * largest >= ALL_BODIES, "{}", held.len());
        let mut small = Held::of(&bodies, largest);
        small.grow(UNCOUNTED / 2).unwrap();
        small.grow(UNCOUNTED / 2).unwrap();
        drop(held);
        assert_eq!(bodies.load(Ordering::Relaxed), 0);
        assert!(Held::of(&bodies, 64 << 20).grow(64 << 20).is_ok());
    }

    #[test]
    fn faults_are_told_apart() {
        for (body, code, param) in [
            ("", "request_malformed", None),
            ("{", "request_malformed", None),
            ("[]", "request_malformed", None),
            ("{} {}", "request_malformed", None),
            ("{\"n\": 1e999}", "request_malformed", None),
            (
                "{\"temperature\": \"hot\"}",
                "request_invalid",
                Some("temperature"),
            ),
            ("{\"max_tokens\": -1}", "request_invalid", Some("max_tokens")),
            ("{\"max_tokens\": 1.5}", "request_invalid", Some("max_tokens")),
            (
                "{\"messages\": [{\"content\": \"x\"}]}",
                "request_invalid",
                Some("messages[0]"),
            ),
            (
                "{\"messages\": [{\"role\": 1}]}",
                "request_invalid",
                Some("messages[0].role"),
            ),
            ("{\"stop\": 5}", "request_invalid", Some("stop")),
            // Arrays in the place of objects.
            (
                "{\"messages\": [[\"user\", \"hi\"]]}",
                "request_invalid",
                Some("messages[0]"),
            ),
            (
                "{\"messages\": [{\"role\": \"user\", \"content\": [[\"text\", \"hi\"]]}]}",
                "request_invalid",
                Some("messages[0].content"),
            ),
            (
                "{\"stream_options\": [true]}",
                "request_invalid",
                Some("stream_options"),
            ),
        ] {
            let error = parse::<ChatRequest>(body.as_bytes())
                .expect_err(body)
                .body()
                .error;
            assert_eq!(
                (error.code.as_str(), error.param.as_deref()),
                (code, param),
                "{body}: {}",
                error.message
            );
        }
        let deep = "[".repeat(100_000);
        assert!(parse::<ChatRequest>(format!("{{\"tools\": {deep}").as_bytes()).is_err());
        for body in [
            "{\"prompt\": [1, -5]}",
            "{\"prompt\": [[\"a\"]]}",
            "{\"prompt\": {}}",
        ] {
            let error = parse::<CompletionRequest>(body.as_bytes())
                .expect_err(body)
                .body()
                .error;
            assert_eq!(error.param.as_deref(), Some("prompt"), "{body}");
        }
    }
}
