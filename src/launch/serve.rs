//! From a decided plan to answering requests, until told to stop.
//!
//! In: a plan, its bound address, the model to fetch. Out: the end of serving. Invariant: `/health` and `/ready`
//! answer from the first moment; a first SIGINT or SIGTERM lets running answers finish, a second ends at once.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{Decided, Ready, start_served};
use crate::base::{Code, Problem, Problems, Severity};
use crate::config::Secret;
use crate::fetch::{Cache, ModelRef, Progress};
use crate::model;
use crate::plan::readback;
use crate::server::{self, Served, ServerOptions, ServerState};
use crate::sys::limits;

/// Threads that read requests and write answers; the work is done by the engine's own.
const HTTP_THREADS: usize = 2;
/// Threads that turn prompts into tokens. More would only hold more long prompts in memory at once.
const TEXT_THREADS: usize = 4;

/// How much sooner than others the kernel ends this process when memory runs out (−1000 to 1000; 0 is usual).
const OOM_SCORE: i32 = 500;

/// Told the engine and the address once everything is ready.
pub type Announce<'a> = dyn FnMut(&Ready<Served>, SocketAddr) -> Result<(), Problem> + 'a;

/// Fetches, loads and serves `decided` on `listener`. `announce` is called once everything is ready.
pub fn serve(
    decided: Decided,
    listener: TcpListener,
    model: (&ModelRef, &Cache),
    strict: bool,
    progress: &mut dyn Progress,
    announce: &mut Announce<'_>,
) -> Result<(), Problems> {
    let address = listener.local_addr().map_err(|error| system(&error))?;
    listener.set_nonblocking(true).map_err(|error| system(&error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .max_blocking_threads(TEXT_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(|error| system(&error))?;
    // A model can be loaded again; the system and whoever is logged in cannot.
    if let Err(problem) = limits::set_oom_score_adj(OOM_SCORE) {
        tracing::warn!("{problem}");
    }
    let options = ServerOptions {
        api_key: decided
            .layered
            .pin::<Secret>("server.api_key")?
            .map(|pin| pin.value.reveal().to_owned()),
        ..ServerOptions::default()
    };
    let state = ServerState::new(&decided.plan, options)?;
    state.bound_to(address);
    let loaded = Arc::new(AtomicBool::new(false));
    let stop = runtime.block_on(async { signals(Arc::clone(&loaded)) })?;
    let serving = {
        let (state, mut stop) = (Arc::clone(&state), stop);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| system(&error))?;
            server::serve(state, listener, async move {
                // The sender lives in the signal task, which never ends before the process does.
                let _ = stop.wait_for(|&stop| stop).await;
            })
            .await
        })
    };
    let mut ready = match fetch_and_start(decided, model, progress) {
        Ok(ready) => ready,
        Err(problem) => {
            state.set_failed(problem.clone());
            return Err(problem.into());
        }
    };
    if let Some(phases) = ready.effective.deadlines {
        state.started(phases);
    }
    ready.effective = state.effective(&ready.handle)?;
    ready.differences = readback::compare(&ready.decided.plan, &ready.effective);
    if strict && !ready.differences.is_empty() {
        let mut errors = ready.differences;
        for problem in &mut errors {
            problem.severity = Severity::Error;
        }
        return Err(Problems(errors));
    }
    // First ready, then announced: whoever reads the announcement may ask at once.
    loaded.store(true, Ordering::Relaxed);
    state.set_ready(ready.handle.clone())?;
    announce(&ready, address)?;
    runtime.block_on(serving).map_err(|error| {
        Problem::new(
            Code::Internal,
            format!("the server's task failed: {error}"),
            "please report this with the log",
        )
    })??;
    Ok(())
}

/// Gets the model's files, checks that they are what was planned for, and starts the engine.
fn fetch_and_start(
    decided: Decided,
    (model, cache): (&ModelRef, &Cache),
    progress: &mut dyn Progress,
) -> Result<Ready<Served>, Problem> {
    let card = model::inspect(model.ensure(cache, false, progress)?)?;
    let same = decided.plan.model.card.as_deref().is_some_and(|planned| {
        planned.files == card.files && planned.tensors == card.tensors && planned.decoder == card.decoder
    });
    if !same {
        return Err(Problem::new(
            Code::ModelMalformed,
            format!("{model} is not the model that was planned for: its headers differ"),
            "run it again; if a file is being replaced, wait until it is whole",
        ));
    }
    start_served(decided, progress)
}

/// Listens for SIGINT and SIGTERM; the returned value turns true at the first one. Before anything is loaded there is
/// nothing to finish, so the first one ends the process.
fn signals(loaded: Arc<AtomicBool>) -> Result<watch::Receiver<bool>, Problem> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| system(&error))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| system(&error))?;
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(async move {
        let mut count = 0;
        loop {
            let number = tokio::select! {
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
            };
            count += 1;
            if count > 1 || !loaded.load(Ordering::Relaxed) {
                // The shell's convention for an end by signal.
                std::process::exit(128 + number);
            }
            tracing::info!("stopping: running answers may finish; a second signal ends at once");
            stop.send_replace(true);
        }
    });
    Ok(stopping)
}

fn system(error: &std::io::Error) -> Problem {
    Problem::new(
        Code::FileAccess,
        format!("the system refuses what serving needs: {error}"),
        "check the limits on open files and threads (`ulimit -n`, `ulimit -u`)",
    )
}
