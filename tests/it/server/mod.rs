//! The server over a small random model: OpenAI's shapes, event streams, limits, refusals, cancelling, stopping.

mod answers;
mod clients;
pub mod http;
mod limits;
mod speech;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edge_deploy::base::{Bytes, Millis};
use edge_deploy::engine::start;
use edge_deploy::model::Weights;
use edge_deploy::plan::Plan;
use edge_deploy::server::{ServerOptions, ServerState, serve};
use serde_json::{Value, json};

use crate::engine::serving::{plan, stage_plan};
use crate::support::tiny::TinyModel;
use http::{Call, Response, send};

/// What a test wants different.
pub struct Wishes {
    pub max_seqs: usize,
    pub max_queue: usize,
    pub options: ServerOptions,
    /// Leave the engine out until [`Server::load`].
    pub unloaded: bool,
    pub change: Box<dyn Fn(&mut Plan)>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            max_seqs: 4,
            max_queue: 8,
            options: ServerOptions::default(),
            unloaded: false,
            change: Box::new(|_| {}),
        }
    }
}

/// A running server on a free port of the loopback interface.
pub struct Server {
    pub address: SocketAddr,
    state: Arc<ServerState>,
    plan: Plan,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    served: Option<std::thread::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// The model's name.
const MODEL: &str = "tiny-llama";

impl Server {
    pub fn start(wishes: Wishes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = TinyModel::new("llama", 7).write_gguf(folder.path());
        let mut stage = stage_plan(wishes.max_seqs);
        stage.context = 8192;
        let mut plan = plan(&path, stage, wishes.max_queue);
        "0123456789abcdef".clone_into(&mut plan.digest);
        plan.server.max_body_bytes = Bytes::mib(1);
        plan.server.read_timeout_ms = Millis(20_000);
        plan.server.request_timeout_ms = Millis(120_000);
        plan.deadlines.shutdown_ms = Millis(60_000);
        (wishes.change)(&mut plan);
        let server = Self::serve(plan, wishes.options, folder);
        if !wishes.unloaded {
            server.load();
        }
        server
    }

    /// A server of `plan` without an engine.
    fn serve(plan: Plan, options: ServerOptions, folder: tempfile::TempDir) -> Self {
        let state = ServerState::new(&plan, options).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let served = {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async move {
                    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                    tell.send(listener.local_addr().unwrap()).unwrap();
                    let shutdown = async move {
                        // A server that is dropped is stopped too.
                        let _told_or_dropped = stopped.await;
                    };
                    serve(state, listener, shutdown).await.unwrap();
                });
            })
        };
        Self {
            address: told.recv().unwrap(),
            state,
            plan,
            stop: Some(stop),
            served: Some(served),
            _folder: folder,
        }
    }

    fn load(&self) {
        let weights = Weights::open(self.plan.model.card.as_deref().unwrap()).unwrap();
        self.state
            .set_ready(start(&self.plan, weights, &mut |_| {}).unwrap())
            .unwrap();
    }

    pub fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], b"").finish()
    }

    pub fn begin(&self, path: &str, body: &Value) -> Call {
        send(self.address, "POST", path, &[], body.to_string().as_bytes())
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.begin(path, body).finish()
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        assert_eq!(page.status, 200, "{}", page.text());
        let text = page.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("edge_deploy_{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {text}"))
            .parse()
            .unwrap()
    }

    /// Waits until a metric has a value. The limit only turns a hang into a failure.
    pub fn until(&self, name: &str, value: f64) {
        let limit = Instant::now() + Duration::from_mins(1);
        while (self.metric(name) - value).abs() > 1e-9 {
            assert!(
                Instant::now() < limit,
                "{name} is {} and not {value}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops and waits until it has.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        self.join();
    }

    fn join(&mut self) {
        if let Some(served) = self.served.take() {
            served.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// In a stream once the engine works on it; the first event is sent before.
pub const TEXT: &str = r#""delta":{"content""#;

/// Biases that keep the model from ending its answer.
pub fn endless() -> Value {
    // <|endoftext|>, <|im_start|>, <|im_end|>
    json!({"0": -100, "1": -100, "2": -100})
}

/// A chat that streams `tokens` tokens.
pub fn long_chat(tokens: usize) -> Value {
    json!({
        "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "temperature": 0,
        "logit_bias": endless(), "stream": true,
    })
}
