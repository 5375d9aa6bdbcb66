//! The routes, in one table.
//!
//! In: nothing. Out: the router, and what the OpenAPI document and the key check need of it.
//! Invariant: every endpoint stands here once; what is not here answers 404, a wrong method 405, both as error bodies.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get, post};

use super::errors::ApiError;
use super::state::ServerState;
use super::{endpoints, facts, speech};
use crate::base::{Code, Problem};

type Endpoint = MethodRouter<Arc<ServerState>>;

/// One endpoint.
#[derive(Debug)]
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Path, with `{id}` for a part that varies.
    pub path: &'static str,
    /// Works without a key.
    pub open: bool,
    /// One line on what it does.
    pub about: &'static str,
    /// The handler.
    pub(super) endpoint: fn() -> Endpoint,
}

/// All endpoints.
pub const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/",
        open: true,
        about: "A short text on what is served.",
        endpoint: || get(facts::root),
    },
    Route {
        method: "GET",
        path: "/health",
        open: true,
        about: "200 while the process is alive.",
        endpoint: || get(facts::health),
    },
    Route {
        method: "GET",
        path: "/ready",
        open: true,
        about: "200 when requests are served, 503 while loading and stopping.",
        endpoint: || get(facts::ready),
    },
    Route {
        method: "GET",
        path: "/metrics",
        open: false,
        about: "Counters and histograms in the OpenMetrics text format.",
        endpoint: || get(facts::metrics),
    },
    Route {
        method: "GET",
        path: "/v1/models",
        open: false,
        about: "The loaded model.",
        endpoint: || get(facts::models),
    },
    Route {
        method: "GET",
        path: "/v1/models/{id}",
        open: false,
        about: "The loaded model by name.",
        endpoint: || get(facts::one_model),
    },
    Route {
        method: "POST",
        path: "/v1/chat/completions",
        open: false,
        about: "Answers a chat.",
        endpoint: || post(endpoints::chat),
    },
    Route {
        method: "POST",
        path: "/v1/completions",
        open: false,
        about: "Continues a prompt.",
        endpoint: || post(endpoints::completions),
    },
    Route {
        method: "POST",
        path: "/v1/audio/speech",
        open: false,
        about: "Speaks a text, with a speech model.",
        endpoint: || post(speech::speak),
    },
    Route {
        method: "GET",
        path: "/v1/audio/voices",
        open: false,
        about: "Voices and languages of the loaded speech model.",
        endpoint: || get(speech::voices),
    },
    Route {
        method: "GET",
        path: "/v1/edge/plan",
        open: false,
        about: "The plan that runs, with reasons.",
        endpoint: || get(facts::plan),
    },
    Route {
        method: "GET",
        path: "/v1/edge/effective",
        open: false,
        about: "What the engine really uses, read back now.",
        endpoint: || get(facts::effective),
    },
];

/// Whether a path works without a key.
pub fn is_open(path: &str) -> bool {
    ROUTES.iter().any(|route| route.open && route.path == path)
}

/// The table as a router, with answers for everything else.
pub fn router() -> Router<Arc<ServerState>> {
    ROUTES
        .iter()
        .fold(Router::new(), |router, route| {
            router.route(route.path, (route.endpoint)())
        })
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
}

fn shown(request: &Request) -> String {
    let path: String = request.uri().path().chars().take(100).collect();
    format!("{} {path}", request.method())
}

async fn unknown(request: Request) -> ApiError {
    Problem::new(
        Code::UnknownRoute,
        format!("{} is not served", shown(&request)),
        "GET / lists what is",
    )
    .into()
}

async fn wrong_method(request: Request) -> ApiError {
    let methods: Vec<_> = ROUTES
        .iter()
        .filter(|route| route.path == request.uri().path())
        .map(|r| r.method)
        .collect();
    let remedy = if methods.is_empty() {
        "GET / lists what is served".to_owned()
    } else {
        format!("use {}", methods.join(" or "))
    };
    ApiError::from(Problem::new(
        Code::UnknownRoute,
        format!("{} is not served", shown(&request)),
        remedy,
    ))
    .with_status(StatusCode::METHOD_NOT_ALLOWED)
}
