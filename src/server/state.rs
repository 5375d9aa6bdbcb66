//! `ServerState`: what all handlers share.
//!
//! In: a plan, an optional key. Out: the plan's facts, the engine once it is loaded, counters.
//! Invariant: the engine is set at most once; the key is held as a digest only and never shown.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::auth::Key;
use super::body::Bodies;
use super::errors::ApiError;
use super::{HEADER_TIMEOUT, MAX_CONNECTIONS, WRITE_TIMEOUT};
use crate::base::{Bytes, Code, Millis, Problem};
use crate::engine::Handle;
use crate::engine::speech_pipeline::SpeechHandle;
use crate::observe::metrics::HttpCounters;
use crate::plan::{Effective, EffectiveDeadlines, EffectiveServer, Plan, SamplingPlan, ServerPlan};

/// What the plan does not hold.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Key that clients must send as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// Origins that browsers may call from; none = no CORS headers.
    pub cors_origins: Vec<String>,
}

/// The engine behind the API.
#[derive(Clone, Debug)]
pub enum Served {
    /// A language model.
    Text(Handle),
    /// A speech model.
    Speech(SpeechHandle),
}

impl From<Handle> for Served {
    fn from(handle: Handle) -> Self {
        Self::Text(handle)
    }
}

impl From<SpeechHandle> for Served {
    fn from(handle: SpeechHandle) -> Self {
        Self::Speech(handle)
    }
}

impl Served {
    /// What the engine really uses, asked now.
    ///
    /// # Errors
    /// `not_ready` after it has stopped; `probe_failed` when the system cannot be asked.
    pub fn effective(&self) -> Result<Effective, Problem> {
        match self {
            Self::Text(handle) => handle.effective(),
            Self::Speech(handle) => handle.effective(),
        }
    }

    /// Whether it takes no more requests.
    pub fn stopping(&self) -> bool {
        match self {
            Self::Text(handle) => handle.status().stopping,
            Self::Speech(handle) => handle.stopping(),
        }
    }

    /// Requests that may wait beyond those running.
    pub fn max_queue(&self) -> usize {
        match self {
            Self::Text(handle) => handle.max_queue(),
            Self::Speech(handle) => handle.max_queue(),
        }
    }

    /// Longest a request may take in all; `None` = no limit.
    pub fn request_timeout(&self) -> Option<Duration> {
        match self {
            Self::Text(handle) => handle.request_timeout(),
            Self::Speech(handle) => handle.request_timeout(),
        }
    }

    /// Lets running answers finish within `grace`, then ends. Blocks.
    pub fn shutdown(&self, grace: Duration) {
        match self {
            Self::Text(handle) => handle.shutdown(grace),
            Self::Speech(handle) => handle.shutdown(grace),
        }
    }
}

/// Shared by all handlers.
#[derive(Debug)]
pub struct ServerState {
    /// Name that `/v1/models` lists.
    pub model: String,
    /// Row of the family table.
    pub family: String,
    /// Digest of the plan; `system_fingerprint` of every answer.
    pub digest: String,
    /// Tokens a request may use, prompt and answer.
    pub context: usize,
    /// Sampling for requests that do not say.
    pub sampling: SamplingPlan,
    /// The plan's HTTP side.
    pub plan: ServerPlan,
    /// The whole plan as JSON.
    pub plan_json: String,
    /// Grace for running answers on shutdown.
    pub shutdown_grace: Millis,
    /// Unix seconds of the start.
    pub created: u64,
    /// Requests by route and status.
    pub http: HttpCounters,
    pub(super) bodies: Bodies,
    pub(super) key: Option<Key>,
    pub(super) cors_origins: Vec<String>,
    handle: OnceLock<Served>,
    bound: OnceLock<SocketAddr>,
    started: OnceLock<EffectiveDeadlines>,
    failure: OnceLock<Problem>,
    stopping: AtomicBool,
    ids: AtomicU64,
    randomness: RandomState,
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl ServerState {
    /// State for serving `plan`, still without an engine.
    ///
    /// # Errors
    /// `BadValue` when the plan wants a key and none is given, or the key could not be sent in a header.
    pub fn new(plan: &Plan, options: ServerOptions) -> Result<Arc<Self>, Problem> {
        let key = options.api_key.as_deref().map(Key::new).transpose()?;
        if plan.server.api_key_required && key.is_none() {
            return Err(Problem::new(
                Code::BadValue,
                "the plan requires an API key but none is given",
                "pass `--api-key` or set `EDGE_DEPLOY_API_KEY`",
            ));
        }
        Ok(Arc::new(Self {
            model: plan.model.name.clone(),
            family: plan.model.family.clone(),
            digest: plan.digest.clone(),
            context: plan.stages.values().map(|stage| stage.context).min().unwrap_or(0),
            sampling: plan.model.sampling,
            plan: plan.server.clone(),
            plan_json: plan.to_json()?,
            shutdown_grace: plan.deadlines.shutdown_ms,
            created: unix_seconds(),
            http: HttpCounters::default(),
            bodies: Bodies::default(),
            key,
            cors_origins: options.cors_origins,
            handle: OnceLock::new(),
            bound: OnceLock::new(),
            started: OnceLock::new(),
            failure: OnceLock::new(),
            stopping: AtomicBool::new(false),
            ids: AtomicU64::new(0),
            randomness: RandomState::new(),
        }))
    }

    /// The engine is loaded: from now on requests are served.
    ///
    /// # Errors
    /// `Internal` when an engine was set before.
    pub fn set_ready(&self, handle: impl Into<Served>) -> Result<(), Problem> {
        self.handle.set(handle.into()).map_err(|_| {
            Problem::new(
                Code::Internal,
                "an engine is already being served",
                "restart the server to serve another",
            )
        })
    }

    /// Where the listening socket is bound. Only the first call counts: there is one socket.
    pub fn bound_to(&self, address: SocketAddr) {
        self.bound.get_or_init(|| address);
    }

    /// What the phases of the start took. Only the first call counts.
    pub fn started(&self, phases: EffectiveDeadlines) {
        self.started.get_or_init(|| phases);
    }

    /// What `engine` and this server really use.
    ///
    /// # Errors
    /// As [`Served::effective`].
    pub fn effective(&self, engine: &Served) -> Result<Effective, Problem> {
        let millis = |time: Duration| Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let server = self.bound.get().map(|bound| EffectiveServer {
            host: bound.ip().to_string(),
            port: bound.port(),
            api_key_required: self.key.is_some(),
            max_queue: engine.max_queue(),
            max_body_bytes: Bytes(self.max_body() as u64),
            read_timeout_ms: self.plan.read_timeout_ms,
            request_timeout_ms: engine.request_timeout().map_or(Millis(0), millis),
            default_max_tokens: self.plan.default_max_tokens,
            sampling: Some(self.sampling),
            header_timeout_ms: millis(HEADER_TIMEOUT),
            write_timeout_ms: millis(WRITE_TIMEOUT),
            max_connections: MAX_CONNECTIONS,
        });
        Ok(Effective {
            server,
            deadlines: self.started.get().map(|phases| EffectiveDeadlines {
                shutdown_ms: Some(self.shutdown_grace),
                ..*phases
            }),
            ..engine.effective()?
        })
    }

    /// Loading failed: `/ready` says why until the process ends. Only the first failure counts.
    pub fn set_failed(&self, problem: Problem) {
        if let Err(later) = self.failure.set(problem) {
            tracing::warn!(code = %later.code, what = %later.what, "a second loading failure");
        }
    }

    /// The engine, if loaded.
    pub fn served(&self) -> Option<&Served> {
        self.handle.get()
    }

    /// The engine of a language model, if that is what is loaded.
    pub fn engine(&self) -> Option<&Handle> {
        match self.handle.get() {
            Some(Served::Text(handle)) => Some(handle),
            _ => None,
        }
    }

    /// The engine of a language model, for a request.
    ///
    /// # Errors
    /// As [`Self::ready`]; `RequestUnsupported` when a speech model is loaded.
    pub fn text(&self) -> Result<&Handle, ApiError> {
        match self.ready()? {
            Served::Text(handle) => Ok(handle),
            Served::Speech(_) => Err(Problem::new(
                Code::RequestUnsupported,
                format!("`{}` is a speech model, which answers no prompts", self.model),
                "use /v1/audio/speech",
            )
            .into()),
        }
    }

    /// The engine of a speech model, for a request.
    ///
    /// # Errors
    /// As [`Self::ready`]; `RequestUnsupported` when a language model is loaded.
    pub fn speech(&self) -> Result<&SpeechHandle, ApiError> {
        match self.ready()? {
            Served::Speech(handle) => Ok(handle),
            Served::Text(_) => Err(Problem::new(
                Code::RequestUnsupported,
                format!("`{}` is no speech model", self.model),
                "use /v1/chat/completions or /v1/completions",
            )
            .into()),
        }
    }

    /// The engine, for a request.
    ///
    /// # Errors
    /// `NotReady` while loading and while stopping; the loading failure if there was one.
    pub fn ready(&self) -> Result<&Served, ApiError> {
        if self.stopping.load(Ordering::Relaxed) {
            let what = "the server is stopping";
            return Err(Problem::new(
                Code::NotReady,
                what,
                "send the request to another server, or after the restart",
            )
            .into());
        }
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        Err(match self.failure.get() {
            Some(problem) => Problem::new(
                Code::NotReady,
                format!("the model could not be loaded: {}", problem.what),
                problem.remedy.clone(),
            )
            .into(),
            None => Problem::new(
                Code::NotReady,
                "the model is still loading",
                "try again when GET /ready answers 200",
            )
            .into(),
        })
    }

    /// New requests are refused from now on.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// A number no client can guess, different each time.
    pub(super) fn fresh_number(&self) -> u64 {
        self.randomness.hash_one(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// An id such as `chatcmpl-0f3c…`.
    pub(super) fn fresh_id(&self, prefix: &str) -> String {
        format!(
            "{prefix}-{:016x}{:016x}",
            self.fresh_number(),
            self.fresh_number()
        )
    }

    /// Unix seconds now.
    pub(super) fn now(&self) -> u64 {
        unix_seconds().max(self.created)
    }

    /// Whether `name` means the loaded model; absent counts as `default`.
    ///
    /// # Errors
    /// `UnknownModel` with the name that is loaded.
    pub(super) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            None | Some("default") => Ok(()),
            Some(name) if name == self.model => Ok(()),
            Some(other) => {
                let other: String = other.chars().take(100).collect();
                Err(ApiError::from(Problem::new(
                    Code::UnknownModel,
                    format!("the model {other:?} is not loaded"),
                    format!("use one of: {:?}, \"default\"", self.model),
                ))
                .naming("model"))
            }
        }
    }

    /// Largest request body.
    pub(super) fn max_body(&self) -> usize {
        let Bytes(most) = self.plan.max_body_bytes;
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}
