//! The HTTP side's knobs and the sampling defaults.
//!
//! In: pins, context and sequences, what the model states. Out: decisions for the server's part of the plan.
//! Invariant: the API key itself never enters; without a pin the server listens on loopback only.

use super::decision::{Decision, Pin, pin_or};
use crate::base::{Bytes, Code, Millis, Problem};
use crate::model::card::SamplingDefaults;
use crate::probe::hardware::Environment;

/// Requests that may wait for each one running.
const QUEUE_PER_SEQ: usize = 16;
/// Body that is always taken: a million characters are more than most contexts hold. What is read from it can take
/// many times its size, so more is allowed only where the context needs it.
const LEAST_BODY: Bytes = Bytes::mib(1);
/// Bytes of a request that one token of context can stand for, JSON escapes included.
const BODY_BYTES_PER_TOKEN: u64 = 64;
const READ_TIMEOUT: Millis = Millis(30_000);
const REQUEST_TIMEOUT: Millis = Millis(600_000);
const DEFAULT_MAX_TOKENS: usize = 1024;
const HOST: &str = "127.0.0.1";
const PORT: u16 = 8080;

/// What somebody set about the server.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each is the pin of the key of its name")]
pub struct ServerPins {
    pub host: Option<Pin<String>>,
    pub port: Option<Pin<u16>>,
    /// Whether a key is set; the key stays behind.
    pub api_key: Option<Pin<bool>>,
    pub max_queue: Option<Pin<usize>>,
    pub max_body_bytes: Option<Pin<Bytes>>,
    pub read_timeout: Option<Pin<Millis>>,
    pub request_timeout: Option<Pin<Millis>>,
    pub default_max_tokens: Option<Pin<usize>>,
    /// `limits.request_timeout_s`.
    pub request_limit: Option<Pin<u64>>,
}

/// The HTTP side.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the plan's own names")]
pub struct ServerDraft {
    pub host: Decision<String>,
    pub port: Decision<u16>,
    pub api_key_required: Decision<bool>,
    pub max_queue: Decision<usize>,
    pub max_body_bytes: Decision<Bytes>,
    pub read_timeout_ms: Decision<Millis>,
    pub request_timeout_ms: Decision<Millis>,
    pub default_max_tokens: Decision<usize>,
}

/// The server's knobs for a context and a number of sequences, with what a person should know.
pub fn choose(
    environment: Environment,
    pins: &ServerPins,
    context: usize,
    max_seqs: usize,
) -> Result<(ServerDraft, Vec<Problem>), Vec<Problem>> {
    let mut warnings = Vec::new();
    let mut problems = Vec::new();
    let loopback = match environment {
        Environment::Docker | Environment::Podman | Environment::Kubernetes => {
            "only this container can connect; `server.host: 0.0.0.0` with a key opens it to a published port"
        }
        _ => "only this machine can connect unless said otherwise",
    };
    let host = pin_or(pins.host.as_ref(), "server.loopback", HOST.to_owned(), loopback);
    let api_key_required = match &pins.api_key {
        Some(pin) => Decision::pinned(pin, format!("a key is set by {}", pin.layer)),
        None => Decision::derived(false, "server.api_key", "no key is set"),
    };
    if !api_key_required.value && !is_loopback(&host.value) {
        let mut open = Problem::warning(
            Code::ServerOpen,
            format!("the server listens on {} without an API key", host.value),
            "set `server.api_key`, or `server.host: 127.0.0.1`",
        )
        .why("anybody who reaches this address can use the model");
        open.place = pins.host.as_ref().map(|pin| pin.place.clone());
        warnings.push(open);
    }
    let request_timeout_ms = request_timeout(pins).map_err(|problem| problems.push(problem));
    let fitting = DEFAULT_MAX_TOKENS.min((context / 2).max(1));
    if let Some(pin) = pins.default_max_tokens.as_ref().filter(|pin| pin.value > context) {
        problems.push(
            Problem::new(
                Code::PinUnmet,
                format!(
                    "{} asks for {} tokens, but the context has {context}",
                    pin.named(),
                    pin.value
                ),
                format!("use less than {context}, or set a longer context"),
            )
            .at(pin.place.clone()),
        );
    }
    let (Ok(request_timeout_ms), true) = (request_timeout_ms, problems.is_empty()) else {
        return Err(problems);
    };
    let body = Bytes(
        LEAST_BODY
            .0
            .max((context as u64).saturating_mul(BODY_BYTES_PER_TOKEN)),
    );
    let draft = ServerDraft {
        host,
        port: pin_or(
            pins.port.as_ref(),
            "server.port",
            PORT,
            "the usual port for a second web server",
        ),
        api_key_required,
        max_queue: pin_or(
            pins.max_queue.as_ref(),
            "server.queue",
            max_seqs.saturating_mul(QUEUE_PER_SEQ),
            format!("{QUEUE_PER_SEQ} waiting for each of {max_seqs} running; more would wait too long"),
        ),
        max_body_bytes: pin_or(
            pins.max_body_bytes.as_ref(),
            "server.body",
            body,
            format!(
                "the greater of {LEAST_BODY} and {BODY_BYTES_PER_TOKEN} bytes for each of {context} tokens"
            ),
        ),
        read_timeout_ms: pin_or(
            pins.read_timeout.as_ref(),
            "server.read_timeout",
            READ_TIMEOUT,
            "a client that sends no more has gone",
        ),
        request_timeout_ms,
        default_max_tokens: pin_or(
            pins.default_max_tokens.as_ref(),
            "server.max_tokens",
            fitting,
            format!("{DEFAULT_MAX_TOKENS}, and at most half of the {context} tokens of context"),
        ),
    };
    Ok((draft, warnings))
}

fn request_timeout(pins: &ServerPins) -> Result<Decision<Millis>, Problem> {
    let limit = pins
        .request_limit
        .as_ref()
        .map(|limit| (limit, Millis(limit.value.saturating_mul(1000))));
    match (&pins.request_timeout, limit) {
        (Some(pin), Some((limit, most))) if pin.value > most => Err(Problem::new(
            Code::PinUnmet,
            format!(
                "{} is {}, but {} allows {most}",
                pin.named(),
                pin.value,
                limit.named()
            ),
            "lower the one or raise the other",
        )
        .at(pin.place.clone())),
        (Some(pin), _) => Ok(Decision::pinned(pin, format!("set by {}", pin.layer))),
        (None, Some((limit, most))) if most < REQUEST_TIMEOUT => Ok(Decision::derived(
            most,
            "server.request_timeout",
            format!("{REQUEST_TIMEOUT}, bounded"),
        )
        .bounded(Some(limit.named()))),
        (None, _) => Ok(Decision::derived(
            REQUEST_TIMEOUT,
            "server.request_timeout",
            "long enough for a long answer on a slow machine",
        )),
    }
}

/// Whether only this machine can connect to the address.
fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// What somebody set about sampling.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct SamplingPins {
    pub temperature: Option<Pin<f32>>,
    pub top_p: Option<Pin<f32>>,
    pub top_k: Option<Pin<u32>>,
    pub min_p: Option<Pin<f32>>,
    pub repetition_penalty: Option<Pin<f32>>,
}

/// Sampling for requests that do not say.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the field's own terms")]
pub struct SamplingDraft {
    pub temperature: Decision<f32>,
    pub top_p: Decision<f32>,
    pub top_k: Decision<u32>,
    pub min_p: Decision<f32>,
    pub repetition_penalty: Decision<f32>,
}

/// Pins, else what the model states, else values that suit most chat models.
#[must_use]
pub fn sampling(pins: &SamplingPins, model: &SamplingDefaults) -> SamplingDraft {
    fn either<T: Copy>(pin: Option<&Pin<T>>, stated: Option<T>, fallback: T) -> Decision<T> {
        match stated {
            Some(value) => pin_or(pin, "sampling.model", value, "stated by the model's own files"),
            None => pin_or(
                pin,
                "sampling.usual",
                fallback,
                "the model states none; suits most chat models",
            ),
        }
    }
    SamplingDraft {
        temperature: either(pins.temperature.as_ref(), model.temperature, 0.7),
        top_p: either(pins.top_p.as_ref(), model.top_p, 0.95),
        top_k: either(pins.top_k.as_ref(), model.top_k, 40),
        min_p: either(pins.min_p.as_ref(), None, 0.0),
        repetition_penalty: either(pins.repetition_penalty.as_ref(), model.repetition_penalty, 1.0),
    }
}
