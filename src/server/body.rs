//! Request bodies: bytes off the wire, within limits, into typed JSON.
//!
//! In: a request. Out: the wire struct. Invariant: no more than the plan's limit is ever held, slow senders are cut
//! off, and a wrong field is named.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::errors::ApiError;
use super::state::ServerState;
use crate::base::{Code, Problem};

/// Reads the body as JSON.
///
/// # Errors
/// `RequestMalformed`, `RequestInvalid`, `BodyTooLarge`, or 408 for a body that does not arrive in time.
pub async fn read<T: DeserializeOwned>(state: &ServerState, request: Request) -> Result<T, ApiError> {
    check_headers(state, request.headers())?;
    let wait = Duration::from_millis(state.plan.read_timeout_ms.0);
    let bytes = match tokio::time::timeout(wait, to_bytes(request.into_body(), state.max_body())).await {
        Ok(Ok(bytes)) => bytes,
        // The body ended by the limit, or the connection broke: then nobody reads the answer.
        Ok(Err(_)) => return Err(too_large(state)),
        Err(_) => {
            let problem = Problem::new(
                Code::DeadlinePassed,
                format!(
                    "the request body did not arrive within {}",
                    state.plan.read_timeout_ms
                ),
                "send it faster, or raise `server.read_timeout_ms`",
            );
            return Err(ApiError::from(problem).with_status(StatusCode::REQUEST_TIMEOUT));
        }
    };
    parse(&bytes)
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

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
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
