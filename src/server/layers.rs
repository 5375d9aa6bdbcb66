//! What surrounds every handler: counting, and answers to panics.
//!
//! In: a request. Out: its response. Invariant: a handler that panics costs its own request a 500 and nothing else.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::errors::ApiError;
use super::state::ServerState;
use crate::base::{Code, Problem};

/// Counts the request by route and status.
pub async fn count(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_owned();
    let response = next.run(request).await;
    state.http.count(route, response.status().as_u16());
    response
}

/// Turns a panic of the handler into a 500.
pub async fn catch_panics(request: Request, next: Next) -> Response {
    let mut handler = Box::pin(next.run(request));
    let outcome = poll_fn(move |context| {
        // The handler is dropped after a panic, so nothing sees its broken state.
        match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(response)) => Poll::Ready(Some(response)),
            Err(_) => Poll::Ready(None),
        }
    })
    .await;
    outcome.unwrap_or_else(|| {
        let problem = Problem::new(
            Code::Internal,
            "the request's handler panicked",
            "report this with the log",
        );
        ApiError::from(problem).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use hyper_util::service::TowerToHyperService;

    async fn panics() -> &'static str {
        panic!("planted")
    }

    #[tokio::test]
    async fn a_panic_is_an_error_body() {
        let router = Router::new()
            .route("/panics", get(panics))
            .route("/works", get(|| async { "yes" }))
            .layer(axum::middleware::from_fn(catch_panics));
        let service = TowerToHyperService::new(router);
        let ask = |path: &str| {
            let request = axum::http::Request::get(path).body(Body::empty()).unwrap();
            hyper::service::Service::call(&service, request)
        };
        let failed = ask("/panics").await.unwrap();
        assert_eq!(failed.status(), 500);
        let body = to_bytes(failed.into_body(), 10_000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "internal_error");
        assert_eq!(ask("/works").await.unwrap().status(), 200);
    }
}
