//! The API key.
//!
//! In: the `Authorization` header. Out: passed or refused. Invariant: comparing takes the same time for every wrong
//! key, and the key itself is not kept.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::errors::ApiError;
use super::routes;
use super::state::ServerState;
use crate::base::{Code, Problem};

/// A key, as its SHA-256.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(…)")
    }
}

impl Key {
    /// A key that can be sent in a header.
    ///
    /// # Errors
    /// `BadValue` for an empty key or one with blanks or characters outside ASCII.
    pub fn new(key: &str) -> Result<Self, Problem> {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Problem::new(
                Code::BadValue,
                "the API key is empty or has characters a header cannot carry",
                "use visible ASCII characters without blanks",
            ));
        }
        Ok(Self(Sha256::digest(key).into()))
    }

    /// Whether `given` is the key. Digests have one length, and all of their bytes are compared.
    pub fn matches(&self, given: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(given).into();
        let differing = self.0.iter().zip(digest).fold(0u8, |seen, (a, b)| seen | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

/// Lets through what needs no key or has the right one.
pub async fn check(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let Some(key) = &state.key else {
        return next.run(request).await;
    };
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .map(axum::http::HeaderValue::as_bytes);
    let bearer = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme
            .eq_ignore_ascii_case(b"bearer ")
            .then(|| token.trim_ascii())
    });
    if routes::is_open(request.uri().path()) || bearer.is_some_and(|token| key.matches(token)) {
        return next.run(request).await;
    }
    let what = if given.is_some() {
        "the API key is wrong"
    } else {
        "no API key was sent"
    };
    ApiError::from(Problem::new(
        Code::Unauthorized,
        what,
        "send `Authorization: Bearer KEY`",
    ))
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_matches() {
        let key = Key::new("secret").unwrap();
        assert!(key.matches(b"secret"));
        for wrong in [&b""[..], b"secre", b"secret ", b"Secret"] {
            assert!(!key.matches(wrong));
        }
        for bad in ["", "a b", "ü", "a\n"] {
            assert!(Key::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(format!("{key:?}"), "Key(…)");
    }
}
