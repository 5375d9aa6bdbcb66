//! The HTTP side: an OpenAI-compatible API over a running engine.
//!
//! In: [`ServerState`] (a plan's facts, an engine once it is loaded), a bound listener. Out: answers until told to
//! stop. Invariant: no weights, no configuration, no environment in here; every answer that is not a success is an
//! OpenAI error body.

mod answer;
mod auth;
pub mod body;
mod endpoints;
pub mod errors;
mod facts;
mod generation;
mod layers;
pub mod openapi;
mod patience;
mod reply;
pub mod routes;
mod speech;
pub mod state;
pub mod validate;
pub mod wire;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Method, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::base::{Code, Problem};
use patience::Patient;
pub use state::{Served, ServerOptions, ServerState};

/// Connections held at once; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 512;
/// Longest wait for a request's headers, and for the next request on a kept connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time a client may take no byte of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// Most header lines.
const MAX_HEADERS: usize = 64;
/// Most bytes of request line and headers.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// After the engine's own grace, what connections get to send their last bytes.
const LAST_BYTES: Duration = Duration::from_secs(5);
/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves on `listener` until `shutdown` completes, then refuses new work, lets running answers finish within the
/// plan's grace, and cancels what is left. The listener is bound before the model is loaded, so `/health` and
/// `/ready` answer from the first moment; [`ServerState::set_ready`] opens the rest.
///
/// # Errors
/// `BadValue` for a CORS origin that is not one.
pub async fn serve(
    state: Arc<ServerState>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Problem> {
    match listener.local_addr() {
        Ok(address) => state.bound_to(address),
        Err(error) => tracing::warn!(%error, "the system does not say where the server listens"),
    }
    let service = TowerToHyperService::new(app(&state)?);
    let (stop, stopping) = watch::channel(false);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => {
                if let Err(failure) = ended {
                    tracing::error!(%failure, "a connection's task failed");
                }
                continue;
            }
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (service, stopping) = (service.clone(), stopping.clone());
        connections.spawn(async move {
            connection(stream, service, stopping).await;
            drop(place);
        });
    }
    drop(listener);
    state.stop();
    stop.send_replace(true);
    let grace = Duration::from_millis(state.shutdown_grace.0);
    let engine = state.served().cloned();
    let finish = tokio::task::spawn_blocking(move || {
        if let Some(engine) = engine {
            engine.shutdown(grace);
        }
    });
    // A client that holds back its request must not hold up the end: without work left, only last bytes are waited for.
    let finished = finish.await;
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_BYTES, drained).await.is_err() {
        tracing::warn!("connections were still open after the last answer; they are cut");
    }
    connections.shutdown().await;
    finished.map_err(|failure| panicked(&failure))
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    mut stopping: watch::Receiver<bool>,
) {
    // Each token is one small packet; waiting to fill a larger one would show as stutter.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream, WRITE_TIMEOUT)), service);
    let mut connection = std::pin::pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            // The sender lives as long as the server; its end counts as stopping too.
            _ = stopping.wait_for(|&stop| stop), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The routes with everything that surrounds them, innermost first.
fn app(state: &Arc<ServerState>) -> Result<Router, Problem> {
    let mut router = routes::router()
        .layer(axum::middleware::from_fn(layers::catch_panics))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(state),
            auth::check,
        ))
        .with_state(Arc::clone(state));
    if !state.cors_origins.is_empty() {
        router = router.layer(cors(&state.cors_origins)?);
    }
    Ok(router.layer(axum::middleware::from_fn_with_state(
        Arc::clone(state),
        layers::count,
    )))
}

fn cors(origins: &[String]) -> Result<CorsLayer, Problem> {
    let bad = |origin: &str| {
        Problem::new(
            Code::BadValue,
            format!("`{}` is not an origin", origin.escape_debug()),
            "write origins such as https://example.org, or * for all",
        )
    };
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE]);
    if origins.iter().any(|origin| origin == "*") {
        return Ok(layer.allow_origin(AllowOrigin::any()));
    }
    let values = origins
        .iter()
        .map(|origin| {
            let plausible = origin.contains("://") && !origin.ends_with('/');
            let value = HeaderValue::from_str(origin).ok().filter(|_| plausible);
            value.ok_or_else(|| bad(origin))
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(layer.allow_origin(AllowOrigin::list(values)))
}

/// A task of ours that panicked.
fn panicked(failure: &tokio::task::JoinError) -> Problem {
    Problem::new(
        Code::Internal,
        format!("a task failed: {failure}"),
        "report this with the log",
    )
}
