//! The whole story: probe → model → config → derive → plan, and then engine → readback → serve.
//!
//! In: what the person asked for. Out: a decided [`Plan`], or a running server. Invariant: deciding reads headers
//! only and needs no network; nothing is loaded before a plan exists.

mod serve;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::base::{Bytes, Code, CpuSet, Millis, Place, Problem, Problems, env_vars};
use crate::config::{self, Flag, Kin, Layered, Library, Sources, search};
use crate::derive::{self, DECODER, Options};
use crate::engine::audio::wav;
use crate::engine::speech::Voice;
use crate::engine::speech_pipeline::{self, SpeechHandle};
use crate::engine::team::Team;
use crate::engine::{self, Event, Handle, Request, Sampling, StartProgress, kernels};
use crate::fetch::{Cache, ModelRef, Progress};
use crate::model::speech::TALKER;
use crate::model::{self, ModelCard, Weights, families};
use crate::plan::{Effective, EffectiveDeadlines, Plan, readback};
use crate::probe::{self, Hardware, Root, storage};
use crate::server::Served;
use crate::sys::process_memory;

pub use serve::serve;

/// Which machine to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// This one.
    Live,
    /// One captured as a folder with `proc` and `sys`.
    Captured(PathBuf),
    /// One saved by `probe --save`.
    Saved(PathBuf),
}

/// What the person asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The model.
    pub model: ModelRef,
    /// The machine.
    pub machine: Machine,
    /// `--profile`, in order: names, or files.
    pub profiles: Vec<String>,
    /// `--set`, in order.
    pub set: Vec<(String, String)>,
    /// Flags that stand for a key.
    pub flags: Vec<Flag>,
    /// Flags that stand for a knob of the model's first stage; their key is the knob's name alone.
    pub stage_flags: Vec<Flag>,
    /// Folder searched first for profiles and classes.
    pub config_dir: Option<PathBuf>,
    /// Unknown keys are warnings.
    pub lenient: bool,
    /// Go on although the plan does not fit.
    pub force: bool,
}

/// Everything decided, before anything is loaded.
#[derive(Debug)]
pub struct Decided {
    /// The machine planned for.
    pub hardware: Hardware,
    /// What people said.
    pub layered: Layered,
    /// What will be done.
    pub plan: Plan,
    /// What the model's files lie on; `None` where that is unknown or the plan is for another machine.
    pub storage: Option<storage::Storage>,
}

/// The machine to plan for.
pub fn machine(which: &Machine) -> Result<Hardware, Problem> {
    match which {
        Machine::Live => probe::probe(&Root::live()),
        Machine::Captured(folder) => probe::probe(&Root::snapshot(folder)?),
        Machine::Saved(file) => Hardware::load(file),
    }
}

/// What the model says about itself, without fetching it: from its files, or for a named model that is not in the
/// cache from the card that is built in.
pub fn card(model: &ModelRef, cache: &Cache) -> Result<ModelCard, Problem> {
    if let Some(path) = model.present(cache) {
        return model::inspect(path);
    }
    match model {
        ModelRef::Named(named) => {
            let mut card = model::embedded::card(named.file)?.ok_or_else(|| {
                Problem::new(
                    Code::Internal,
                    format!("there is no card for `{}`", named.name),
                    "run `edge-deploy pull` first, and please report this",
                )
            })?;
            card.files = vec![cache.models().join(named.file)];
            Ok(card)
        }
        ModelRef::Path(path) => model::inspect(path),
        ModelRef::Hub(hub) => Err(Problem::new(
            Code::ModelNotFound,
            format!("{hub} is not in the cache, and planning fetches nothing"),
            format!("run `edge-deploy pull {hub}` first"),
        )),
    }
}

/// Reads the configuration that applies to this machine and model, and plans.
pub fn decide(wanted: &Wanted, hardware: Hardware, card: &ModelCard) -> Result<Decided, Problems> {
    decide_with(wanted, hardware, card, held_already(&wanted.machine))
}

/// Two plans on one reading of the machine that both are for, so that they differ only by what was asked: memory
/// that is free, and memory held here, are other amounts with each reading.
pub fn decide_both(
    left: &Wanted,
    right: &Wanted,
    hardware: &Hardware,
    card: &ModelCard,
) -> Result<(Decided, Decided), Problems> {
    let held = held_already(&left.machine);
    Ok((
        decide_with(left, hardware.clone(), card, held)?,
        decide_with(right, hardware.clone(), card, held)?,
    ))
}

fn decide_with(
    wanted: &Wanted,
    hardware: Hardware,
    card: &ModelCard,
    held: Bytes,
) -> Result<Decided, Problems> {
    let layered = config::load(&sources(wanted, &hardware, card)?)?;
    let options = Options {
        force: wanted.force,
        credit: held,
    };
    let draft = derive::derive_with(&hardware, card, &layered, options)?;
    let mut plan = Plan::settle(draft);
    let storage = match wanted.machine {
        Machine::Live => card.files.first().and_then(|file| storage_of(file)),
        Machine::Captured(_) | Machine::Saved(_) => None,
    };
    plan.warnings.extend(storage.as_ref().and_then(storage::explain));
    plan.warnings.extend(unfetched(&wanted.model, card));
    Ok(Decided {
        hardware,
        layered,
        plan,
        storage,
    })
}

/// That the model is not here yet, where it was planned from the card that is built in.
fn unfetched(model: &ModelRef, card: &ModelCard) -> Option<Problem> {
    let ModelRef::Named(named) = model else {
        return None;
    };
    let missing = card.files.iter().any(|file| !file.exists());
    missing.then(|| {
        Problem::warning(
            Code::ModelNotFound,
            format!(
                "`{}` is not fetched yet: this is planned from what is known of its file ({})",
                named.name, card.file_bytes
            ),
            format!("`edge-deploy pull {}` fetches it, and so does `auto`", named.name),
        )
    })
}

/// Memory that this process holds already: counted as used on this machine, and part of the plan's `process` item.
fn held_already(machine: &Machine) -> Bytes {
    match machine {
        // Where it cannot be read it counts as used twice, on the safe side.
        Machine::Live => process_memory::own().map_or(Bytes(0), |memory| memory.anonymous),
        Machine::Captured(_) | Machine::Saved(_) => Bytes(0),
    }
}

/// What a file lies on, or will lie on once it is fetched. Links are followed: a cache may link to another disk.
#[must_use]
pub fn storage_of(file: &Path) -> Option<storage::Storage> {
    let real = file.ancestors().find_map(|path| {
        if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        }
        .canonicalize()
        .ok()
    })?;
    storage::of(&Root::live(), &real)
}

/// Every layer, lowest first. A name after `--profile`, or a file that extends a profile, stands in the place of the
/// family's own profile; any other file lies above it as the user's own.
fn sources(wanted: &Wanted, hardware: &Hardware, card: &ModelCard) -> Result<Sources, Problem> {
    let mut profiles = Vec::new();
    let mut user_file: Option<PathBuf> = None;
    for name in &wanted.profiles {
        if search::kin(name)? == Kin::Profile {
            profiles.push(name.clone());
        } else if let Some(first) = user_file.replace(PathBuf::from(name)) {
            return Err(Problem::new(
                Code::BadValue,
                format!(
                    "two files are given as your own: `{}` and `{name}`",
                    first.display()
                ),
                "give one file; let it extend the other's profile, or join them",
            )
            .at(Place::of("--profile")));
        }
    }
    if profiles.is_empty()
        && let Some(family) = families::by_name(&card.family)
    {
        profiles.push(family.profile.to_owned());
    }
    // A language model has one stage; of several the first is the one that sets the pace.
    let first = card.stages().first().map_or(DECODER, |stage| stage.name);
    let mut flags = wanted.flags.clone();
    flags.extend(wanted.stage_flags.iter().map(|flag| Flag {
        key: format!("stages.{first}.{}", flag.key),
        ..flag.clone()
    }));
    Ok(Sources {
        library: Library::usual(wanted.config_dir.as_deref())?,
        class: Some(hardware.class.as_str().to_owned()),
        profiles,
        user_file,
        env: env_vars::key_overrides(),
        set: wanted.set.clone(),
        flags,
        lenient: wanted.lenient,
    })
}

/// Whether a plan made for another machine may run on this one: the same architecture, no instruction this processor
/// lacks, and only CPUs that exist here.
pub fn may_run_here(planned_for: &Hardware, plan: &Plan, here: &Hardware) -> Result<(), Problem> {
    let mut faults = Vec::new();
    if planned_for.arch != here.arch {
        faults.push(format!("it is {} and this is {}", planned_for.arch, here.arch));
    }
    let missing: Vec<&str> = planned_for
        .isa
        .iter()
        .filter(|feature| !here.isa.contains(feature))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        faults.push(format!("this processor lacks {}", missing.join(", ")));
    }
    for (name, stage) in &plan.stages {
        let absent = stage.cpus.difference(&here.cpus.allowed);
        if !absent.is_empty() {
            faults.push(format!(
                "stage `{name}` is planned on CPUs {absent}, which are not usable here"
            ));
        }
    }
    if plan.memory.peak_bytes > here.memory.available_bytes {
        faults.push(format!(
            "it needs {} and {} are available here",
            plan.memory.peak_bytes, here.memory.available_bytes
        ));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Problem::new(
        Code::HardwareLimit,
        format!(
            "the plan for {} cannot run on this machine: {}",
            planned_for.source,
            faults.join("; ")
        ),
        "add --dry-run to see the plan only, or leave out --hardware and --sysroot to plan for this machine",
    ))
}

/// Makes sure the model is here, and plans from its own files.
pub fn fetch_and_decide(
    wanted: &Wanted,
    cache: &Cache,
    progress: &mut dyn Progress,
) -> Result<Decided, Problems> {
    let hardware = machine(&wanted.machine)?;
    let card = model::inspect(wanted.model.ensure(cache, false, progress)?)?;
    decide(wanted, hardware, &card)
}

/// Takes the planned address, before anything is loaded, so that a port in use costs no time.
pub fn bind(plan: &Plan) -> Result<TcpListener, Problem> {
    let (host, port) = (&plan.server.host, plan.server.port);
    // In URLs an IPv6 address stands in brackets.
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    TcpListener::bind((bare, port)).map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "stop what listens there (`ss -ltnp` shows it), or give another port: `--port 0` takes any free one"
            }
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need rights; give a higher one with --port",
            _ => "give an address of this machine with --host",
        };
        Problem::new(Code::AddressInUse, format!("{host}:{port} cannot be bound: {error}"), remedy)
    })
}

/// A running engine, and how it compares with its plan.
#[derive(Debug)]
pub struct Ready<H = Handle> {
    /// What it was started from.
    pub decided: Decided,
    /// The engine.
    pub handle: H,
    /// What it really uses.
    pub effective: Effective,
    /// Where that differs from the plan.
    pub differences: Vec<Problem>,
}

/// Label of the progress of loading.
pub const LOADING: &str = "loading weights";

/// Loads the weights, generates a first token, and reads back what really runs. Each phase has its own deadline.
pub fn start(decided: Decided, progress: &mut dyn Progress) -> Result<Ready, Problem> {
    if is_speech(&decided.plan) {
        return Err(Problem::new(
            Code::ModelUnsupported,
            format!(
                "`{}` is a speech model, which answers no prompts",
                decided.plan.model.name
            ),
            "speak with it: `edge-deploy say -m MODEL \"text\" -o out.wav`",
        ));
    }
    let began = Instant::now();
    let plan = &decided.plan;
    let handle = load(plan, progress, engine::start)?;
    let loaded = began.elapsed();
    progress.step(&format!("loaded in {:.2} s", loaded.as_secs_f64()));
    warm_up(&handle, plan.deadlines.warmup_ms)?;
    progress.step(&format!(
        "first token after {:.2} s",
        began.elapsed().saturating_sub(loaded).as_secs_f64()
    ));
    let warm = began.elapsed();
    let real = handle.effective()?;
    Ok(read_back(decided, handle, real, (loaded, warm)))
}

/// The same for a speech model: loads all its stages, speaks a first frame, and reads back what really runs.
pub fn start_speech(decided: Decided, progress: &mut dyn Progress) -> Result<Ready<SpeechHandle>, Problem> {
    if !is_speech(&decided.plan) {
        return Err(Problem::new(
            Code::ModelUnsupported,
            format!("`{}` is no speech model", decided.plan.model.name),
            "give the folder of a Qwen3-TTS release with -m",
        ));
    }
    let began = Instant::now();
    let plan = &decided.plan;
    let handle = load(plan, progress, |plan, weights, tell| {
        speech_pipeline::start(plan, weights, &mut |seen| tell(StartProgress::Weights(seen)))
    })?;
    let loaded = began.elapsed();
    progress.step(&format!("loaded in {:.2} s", loaded.as_secs_f64()));
    let deadline = plan.deadlines.warmup_ms;
    if !handle.warm_up(Duration::from_millis(deadline.0))? {
        return Err(late("the first frame", "warmup_ms", deadline));
    }
    progress.step(&format!(
        "first frame after {:.2} s",
        began.elapsed().saturating_sub(loaded).as_secs_f64()
    ));
    let warm = began.elapsed();
    let real = handle.effective()?;
    Ok(read_back(decided, handle, real, (loaded, warm)))
}

/// What runs as `real` says, with what each phase took, against the plan; `loaded` and `warm` count from the
/// start.
fn read_back<H>(
    decided: Decided,
    handle: H,
    real: Effective,
    (loaded, warm): (Duration, Duration),
) -> Ready<H> {
    let took = |time: Duration| Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let deadlines = decided.plan.deadlines;
    let effective = Effective {
        deadlines: Some(EffectiveDeadlines {
            load_ms: deadlines.load_ms,
            load_took_ms: took(loaded),
            warmup_ms: deadlines.warmup_ms,
            warmup_took_ms: took(warm.saturating_sub(loaded)),
            shutdown_ms: None,
        }),
        ..real
    };
    let differences = readback::compare(&decided.plan, &effective);
    Ready {
        decided,
        handle,
        effective,
        differences,
    }
}

/// The voice of a WAV file, for a model that clones; with `said`, what is said in it, its manner is continued too.
pub fn clone_voice(decided: &Decided, file: &Path, said: Option<&str>) -> Result<Voice, Problem> {
    let plan = &decided.plan;
    let card = plan.model.card.as_deref();
    let speech = card.and_then(|card| card.speech.as_deref());
    let (Some(card), Some(speech), Some(stage)) = (card, speech, plan.stages.get(TALKER)) else {
        return Err(Problem::new(
            Code::ModelUnsupported,
            format!("`{}` is no speech model", plan.model.name),
            "give the folder of a Qwen3-TTS release with -m",
        ));
    };
    let unreadable = |what: String| {
        Problem::new(
            Code::FileAccess,
            format!("`{}` cannot be read: {what}", file.display()),
            "give a WAV file of some seconds of speech",
        )
        .at(Place::of(file.display().to_string()))
    };
    let size = std::fs::metadata(file)
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if size > MAX_RECORDING_BYTES {
        return Err(unreadable(format!(
            "it has {size} bytes, more than {MAX_RECORDING_BYTES}"
        )));
    }
    let bytes = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    let recording = wav::read(&bytes, MAX_RECORDING_SECONDS)?;
    let team = Team::new("clone", &CpuSet::new(), stage.threads, false)?;
    let kernels = kernels::select(&stage.isa_cap)?;
    speech_pipeline::clone_voice(speech, &Weights::open(card)?, kernels, &team, &recording, said)
}

/// Largest recording to clone a voice from.
const MAX_RECORDING_BYTES: u64 = 64 << 20;
/// Longest one.
const MAX_RECORDING_SECONDS: u32 = 60;

/// Starts whichever engine the model needs.
fn start_served(decided: Decided, progress: &mut dyn Progress) -> Result<Ready<Served>, Problem> {
    if is_speech(&decided.plan) {
        start_speech(decided, progress).map(Ready::served)
    } else {
        start(decided, progress).map(Ready::served)
    }
}

impl<H: Into<Served>> Ready<H> {
    fn served(self) -> Ready<Served> {
        Ready {
            decided: self.decided,
            handle: self.handle.into(),
            effective: self.effective,
            differences: self.differences,
        }
    }
}

fn is_speech(plan: &Plan) -> bool {
    plan.model.card.as_ref().is_some_and(|card| card.speech.is_some())
}

/// What the loading thread says.
enum Told<H> {
    Progress(StartProgress),
    Ended(Result<H, Problem>),
}

/// Starts an engine of some kind from a plan and opened weights, telling how far it is.
type Begin<H> = fn(&Plan, Weights, &mut dyn FnMut(StartProgress)) -> Result<H, Problem>;

/// Starts an engine within the plan's deadline for it.
fn load<H: Send + 'static>(plan: &Plan, progress: &mut dyn Progress, begin: Begin<H>) -> Result<H, Problem> {
    let card = plan.model.card.as_deref().ok_or_else(|| {
        Problem::new(
            Code::Internal,
            "the plan carries no model card",
            "please report this",
        )
    })?;
    let weights = Weights::open(card)?;
    let deadline = plan.deadlines.load_ms;
    let end = Instant::now() + Duration::from_millis(deadline.0);
    let (tell, hear) = mpsc::channel();
    let plan = plan.clone();
    std::thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || {
            // Nobody listens any more only after the deadline, when the process ends.
            let started = begin(&plan, weights, &mut |seen| {
                let _ = tell.send(Told::Progress(seen));
            });
            let _ = tell.send(Told::Ended(started));
        })
        .map_err(|error| {
            Problem::new(
                Code::HardwareLimit,
                format!("the loading thread cannot be started: {error}"),
                "raise the limit on processes (`ulimit -u`, the cgroup's `pids.max`)",
            )
        })?;
    loop {
        match hear.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Told::Progress(StartProgress::Text)) => progress.step("tokenizer ready"),
            Ok(Told::Progress(StartProgress::Weights(seen))) => {
                progress.bytes(LOADING, seen.done.0, Some(seen.total.0));
            }
            Ok(Told::Ended(started)) => return started,
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(late("loading", "load_ms", deadline)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Problem::new(
                    Code::Internal,
                    "the loading thread ended without a result",
                    "please report this with the log",
                ));
            }
        }
    }
}

/// Generates one token, so that pages are touched and faults show before the first client does.
fn warm_up(handle: &Handle, deadline: Millis) -> Result<(), Problem> {
    let end = Instant::now() + Duration::from_millis(deadline.0);
    let mut submission = handle.submit(Request {
        prompt: vec![handle.tokenizer().roles().bos.unwrap_or(0)],
        sampling: Sampling::default(),
        max_tokens: 1,
        stop: Vec::new(),
        ignore_eos: true,
        logprobs: None,
        echo: false,
    })?;
    loop {
        match submission.events.try_recv() {
            Ok(Event::Done { .. }) => return Ok(()),
            Ok(Event::Failed(problem)) => return Err(problem),
            Ok(Event::Prefilled { .. } | Event::Token { .. }) => {}
            Err(tokio::sync::mpsc::error::TryRecvError::Empty) => {
                if Instant::now() > end {
                    return Err(late("the first token", "warmup_ms", deadline));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                return Err(Problem::new(
                    Code::StageFailed,
                    "the engine ended during its first token",
                    "please report this with the log",
                ));
            }
        }
    }
}

fn late(phase: &str, key: &str, deadline: Millis) -> Problem {
    Problem::new(
        Code::DeadlinePassed,
        format!("{phase} took longer than {deadline}"),
        format!(
            "give it more time with `--set deadlines.{key}=10min`, or check the disk and what else runs here"
        ),
    )
    .why("a start that does not end should say so instead of hanging")
}
