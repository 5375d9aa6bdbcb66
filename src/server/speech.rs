//! The speech endpoints.
//!
//! In: a text and how to say it. Out: sound, whole with exact sizes or as it is made; the voices there are.
//! Invariant: dropping the response ends the request; a fault after the first bytes breaks the transfer off, so that a
//! client never takes half of a sound for all of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer::KEEP_ALIVE;
use super::body;
use super::endpoints::blocking;
use super::errors::ApiError;
use super::state::ServerState;
use crate::base::{Code, Problem};
use crate::engine::audio::wav;
use crate::engine::speech::{SpeechRequest, Voice};
use crate::engine::speech_pipeline::{Speaking, SpeechEvent, SpeechSubmission};

/// Largest text of one request, as OpenAI has it.
const MAX_CHARACTERS: usize = 4096;
/// Most frames that can be asked for.
const MAX_FRAMES: u64 = 1 << 20;

/// Body of `POST /v1/audio/speech`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SpeechBody {
    /// The loaded model's name, or `default`.
    pub model: Option<String>,
    /// What is said; at most 4096 characters.
    pub input: Option<String>,
    /// One of `GET /v1/audio/voices`; the model's first if absent.
    pub voice: Option<String>,
    /// How it is said, in words, for models that take instructions.
    pub instructions: Option<String>,
    /// `wav` (if absent) or `pcm`: 16 bits, one channel, at the model's rate.
    pub response_format: Option<String>,
    /// Refused unless 1.
    pub speed: Option<f64>,
    /// `audio`: sound as it is made; `sse`: the same as server-sent events. If absent, the whole sound at once.
    pub stream_format: Option<String>,
    /// The same as `stream_format: audio`.
    pub stream: Option<bool>,
    /// One of the model's languages, or `auto`.
    pub language: Option<String>,
    /// Same seed and request, same sound.
    pub seed: Option<u64>,
    /// Frames of 80 ms in the first chunk of a streamed answer.
    pub first_chunk_frames: Option<u64>,
    /// Least frames; the end is held back.
    pub min_frames: Option<u64>,
    /// Most frames; by the length of the text if absent.
    pub max_frames: Option<u64>,
    /// Give the text token by token while speaking.
    pub stream_text: Option<bool>,
}

/// `GET /v1/audio/voices`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VoiceList {
    /// Names for `voice`.
    pub voices: Vec<String>,
    /// Names for `language`.
    pub languages: Vec<String>,
    /// Samples a second of the sound.
    pub sample_rate: u32,
}

/// How sound is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Wav,
    Pcm,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
        }
    }
}

/// How sound is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Whole,
    Audio,
    Events,
}

/// `GET /v1/audio/voices`
pub async fn voices(State(state): State<Arc<ServerState>>) -> Result<Json<VoiceList>, ApiError> {
    let facts = state.speech()?.facts();
    Ok(Json(VoiceList {
        voices: facts.voices.clone(),
        languages: facts.languages.clone(),
        sample_rate: facts.sample_rate,
    }))
}

/// `POST /v1/audio/speech`
pub async fn speak(State(state): State<Arc<ServerState>>, request: Request) -> Result<Response, ApiError> {
    let (request, held) = body::read::<SpeechBody>(&state, request).await?;
    state.check_model(request.model.as_deref())?;
    let (format, delivery) = (format(&request)?, delivery(&request)?);
    let speaking = speaking(&request, state.fresh_number())?;
    let handle = state.speech()?.clone();
    let rate = handle.facts().sample_rate;
    let mut submission = blocking(move || {
        let submitted = handle.submit(speaking);
        drop(held);
        submitted.map_err(ApiError::from)
    })
    .await?;
    // What fails before the first sound can still be said with a status.
    let first = match submission.events.recv().await {
        Some(SpeechEvent::Failed(problem)) => return Err(problem.into()),
        Some(event) => event,
        None => return Err(broken_off().into()),
    };
    let sound = Sound {
        submission,
        first: Some(first),
        ended: false,
    };
    match delivery {
        Delivery::Whole => whole(sound, format, rate).await,
        Delivery::Audio => Ok(streamed(sound, format, rate)),
        Delivery::Events => Ok(events(sound)),
    }
}

fn broken_off() -> Problem {
    Problem::new(
        Code::StageFailed,
        "the engine ended without finishing the sound",
        "send the request again; if it fails again, report it with the log",
    )
}

fn format(request: &SpeechBody) -> Result<Format, ApiError> {
    match request.response_format.as_deref() {
        None | Some("wav") => Ok(Format::Wav),
        Some("pcm") => Ok(Format::Pcm),
        Some(other) => Err(ApiError::unsupported(
            "response_format",
            format!("`response_format` {other:?} is not served"),
            "ask for wav or pcm",
        )),
    }
}

fn delivery(request: &SpeechBody) -> Result<Delivery, ApiError> {
    match (request.stream_format.as_deref(), request.stream) {
        (None, None | Some(false)) => Ok(Delivery::Whole),
        (Some("audio"), _) | (None, Some(true)) => Ok(Delivery::Audio),
        (Some("sse"), _) => Ok(Delivery::Events),
        (Some(other), _) => Err(ApiError::invalid(
            "stream_format",
            format!("`stream_format` is {other:?}"),
            "send audio or sse",
        )),
    }
}

fn speaking(request: &SpeechBody, fresh: u64) -> Result<Speaking, ApiError> {
    if request.speed.is_some_and(|speed| (speed - 1.0).abs() > 1e-9) {
        return Err(ApiError::unsupported(
            "speed",
            "`speed` other than 1 is not served",
            "leave it out; `instructions` can ask some models to speak faster",
        ));
    }
    let text = request.input.clone().unwrap_or_default();
    let characters = text.chars().count();
    if characters > MAX_CHARACTERS {
        return Err(ApiError::invalid(
            "input",
            format!("`input` has {characters} characters"),
            format!("send at most {MAX_CHARACTERS} at once"),
        ));
    }
    let count = |name: &str, value: Option<u64>| match value {
        Some(frames) if frames > MAX_FRAMES => Err(ApiError::invalid(
            name,
            format!("`{name}` is {frames}"),
            format!("send at most {MAX_FRAMES}"),
        )),
        other => Ok(other.map(|frames| frames as usize)),
    };
    let wanted = SpeechRequest {
        text,
        voice: request.voice.clone().map_or(Voice::Default, Voice::Named),
        language: request.language.clone().unwrap_or_else(|| "auto".to_owned()),
        instructions: request.instructions.clone(),
        text_at_once: request.stream_text.map(|stream| !stream),
    };
    Ok(Speaking {
        seed: request.seed.unwrap_or(fresh),
        min_frames: count("min_frames", request.min_frames)?.unwrap_or(0),
        max_frames: count("max_frames", request.max_frames)?,
        first_chunk: count("first_chunk_frames", request.first_chunk_frames)?,
        ..Speaking::new(wanted)
    })
}

/// The events of one request; dropping it ends the request.
struct Sound {
    submission: SpeechSubmission,
    first: Option<SpeechEvent>,
    ended: bool,
}

impl Sound {
    /// The next samples; `None` at the end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, Problem>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.first.take() {
            Some(event) => Some(event),
            None => match self.submission.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => event,
            },
        };
        Poll::Ready(match event {
            Some(SpeechEvent::Audio { samples, .. }) => Some(Ok(samples)),
            Some(SpeechEvent::Done { .. }) => {
                self.ended = true;
                None
            }
            Some(SpeechEvent::Failed(problem)) => {
                self.ended = true;
                Some(Err(problem))
            }
            None => {
                self.ended = true;
                Some(Err(broken_off()))
            }
        })
    }
}

async fn whole(mut sound: Sound, format: Format, rate: u32) -> Result<Response, ApiError> {
    let mut all = Vec::new();
    while let Some(samples) = std::future::poll_fn(|context| sound.poll(context)).await {
        wav::pcm16(&samples?, &mut all);
    }
    let body = match format {
        Format::Wav => {
            let mut bytes = wav::file_header(rate, all.len())?.to_vec();
            bytes.append(&mut all);
            bytes
        }
        Format::Pcm => all,
    };
    let headers = [
        (CONTENT_TYPE, format.content_type().to_owned()),
        (CONTENT_LENGTH, body.len().to_string()),
    ];
    Ok((headers, body).into_response())
}

/// Sound as bytes, as it is made.
struct Streamed {
    sound: Sound,
    header: Option<[u8; wav::HEADER_BYTES]>,
}

impl Stream for Streamed {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sound.poll(context).map(|samples| {
            samples.map(|samples| {
                let samples = samples.map_err(|problem| std::io::Error::other(problem.what))?;
                let mut bytes = self.header.take().map_or_else(Vec::new, |header| header.to_vec());
                wav::pcm16(&samples, &mut bytes);
                Ok(bytes.into())
            })
        })
    }
}

fn streamed(sound: Sound, format: Format, rate: u32) -> Response {
    let header = (format == Format::Wav).then(|| wav::stream_header(rate));
    let body = Body::from_stream(Streamed { sound, header });
    let mut response = ([(CONTENT_TYPE, format.content_type())], body).into_response();
    unbuffered(&mut response);
    response
}

/// Reverse proxies must not collect what is sent.
fn unbuffered(response: &mut Response) {
    let no = axum::http::HeaderValue::from_static("no");
    response.headers_mut().insert("x-accel-buffering", no);
}

/// Sound as server-sent events: PCM in Base64.
struct Events(Sound, bool);

impl Stream for Events {
    type Item = Result<sse::Event, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.1 {
            return Poll::Ready(None);
        }
        self.0.poll(context).map(|samples| {
            let data = match samples {
                Some(Ok(samples)) => {
                    let mut bytes = Vec::with_capacity(samples.len() * 2);
                    wav::pcm16(&samples, &mut bytes);
                    serde_json::json!({"type": "speech.audio.delta", "audio": base64(&bytes)}).to_string()
                }
                Some(Err(problem)) => {
                    self.1 = true;
                    serde_json::to_string(&ApiError::from(problem).body()).unwrap_or_default()
                }
                None => {
                    self.1 = true;
                    serde_json::json!({"type": "speech.audio.done"}).to_string()
                }
            };
            Some(Ok(sse::Event::default().data(data)))
        })
    }
}

fn events(sound: Sound) -> Response {
    let mut response = Sse::new(Events(sound, false))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive"))
        .into_response();
    unbuffered(&mut response);
    response
}

/// Base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let word = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for letter in 0..4 {
            let index = (word >> (18 - 6 * letter)) & 63;
            text.push(if letter <= part.len() {
                char::from(LETTERS[index as usize])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn what_is_not_served_is_named() {
        let body = |text: &str| serde_json::from_str::<SpeechBody>(text).unwrap();
        assert_eq!(format(&body("{}")).unwrap(), Format::Wav);
        assert_eq!(
            format(&body(r#"{"response_format":"pcm"}"#)).unwrap(),
            Format::Pcm
        );
        assert!(format(&body(r#"{"response_format":"mp3"}"#)).is_err());
        assert_eq!(delivery(&body("{}")).unwrap(), Delivery::Whole);
        assert_eq!(delivery(&body(r#"{"stream":true}"#)).unwrap(), Delivery::Audio);
        assert_eq!(
            delivery(&body(r#"{"stream_format":"sse"}"#)).unwrap(),
            Delivery::Events
        );
        assert!(delivery(&body(r#"{"stream_format":"tape"}"#)).is_err());
        assert!(speaking(&body(r#"{"speed":1.0}"#), 5).is_ok_and(|asked| asked.seed == 5));
        assert!(speaking(&body(r#"{"speed":2}"#), 5).is_err());
        let long = serde_json::json!({"input": "a".repeat(4097)}).to_string();
        assert!(speaking(&body(&long), 5).is_err());
        assert!(speaking(&body(r#"{"max_frames":99999999}"#), 5).is_err());
    }
}
