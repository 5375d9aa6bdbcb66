//! The speech endpoints: whole and streamed sound, the voices, what is refused, a client who leaves.

use std::time::{Duration, Instant};

use edge_deploy::base::{Bytes, Millis};
use edge_deploy::engine::speech_pipeline::SpeechHandle;
use edge_deploy::server::ServerOptions;
use serde_json::{Value, json};

use super::Server;
use crate::engine::speech::Model;
use crate::engine::speech_pipeline::{speech_plan, started};

fn serving(test: &str) -> Option<(Server, SpeechHandle)> {
    let model = Model::open(test, "custom-voice")?;
    let mut plan = speech_plan(&model, 2, 4);
    plan.server.max_body_bytes = Bytes::mib(1);
    plan.server.read_timeout_ms = Millis(20_000);
    plan.deadlines.shutdown_ms = Millis(60_000);
    let server = Server::serve(plan, ServerOptions::default(), tempfile::tempdir().unwrap());
    let handle = started(&model, 2, 4);
    server.state.set_ready(handle.clone()).unwrap();
    Some((server, handle))
}

/// A request for `frames` frames, the same sound each time.
fn body(frames: usize) -> Value {
    json!({
        "model": "default", "input": "Hello world.", "voice": "Ryan", "language": "English", "seed": 3,
        "max_frames": frames,
    })
}

fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const FRAME_BYTES: usize = 1920 * 2;

#[test]
fn whole_and_streamed_sound_is_the_same_in_every_form() {
    let Some((server, _)) = serving("server::speech::forms") else {
        return;
    };
    let path = "/v1/audio/speech";
    let whole = server.post(path, &body(6));
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert_eq!(whole.header("content-type"), Some("audio/wav"));
    let wav = whole.body.clone();
    let samples = &wav[44..];
    assert!(
        !samples.is_empty() && samples.len().is_multiple_of(FRAME_BYTES) && samples.len() <= 6 * FRAME_BYTES
    );
    let size = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    assert_eq!(
        (size(&wav[4..8]), size(&wav[40..44])),
        (wav.len() - 8, samples.len())
    );

    let pcm = server.post(path, &with(body(6), json!({"response_format": "pcm"})));
    assert_eq!(pcm.header("content-type"), Some("audio/pcm"));
    assert!(pcm.body == samples, "PCM is the same samples");

    for more in [
        json!({"stream_format": "audio"}),
        json!({"stream": true, "first_chunk_frames": 2}),
    ] {
        let streamed = server.post(path, &with(body(6), more));
        assert_eq!(streamed.status, 200);
        assert!(streamed.body[44..] == *samples, "streamed samples");
        assert_eq!(size(&streamed.body[40..44]), u32::MAX as usize);
    }

    let events = server.post(path, &with(body(6), json!({"stream_format": "sse"})));
    let text = events.text();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (last, deltas) = events.split_last().unwrap();
    assert_eq!(last["type"], "speech.audio.done");
    assert!(deltas.iter().all(|event| event["type"] == "speech.audio.delta"));
    let letters: usize = deltas
        .iter()
        .map(|event| event["audio"].as_str().unwrap().trim_end_matches('=').len() * 3 / 4)
        .sum();
    assert_eq!(letters, samples.len());
}

#[test]
fn voices_are_listed_and_what_cannot_be_is_refused() {
    let Some((server, _)) = serving("server::speech::refused") else {
        return;
    };
    let voices: Value = serde_json::from_str(&server.get("/v1/audio/voices").text()).unwrap();
    assert_eq!(voices["voices"].as_array().unwrap().len(), 9);
    assert!(voices["languages"].as_array().unwrap().contains(&json!("auto")));
    assert_eq!(voices["sample_rate"], 24_000);
    for (more, status, code) in [
        (json!({"input": " "}), 400, "request_invalid"),
        (json!({"input": null}), 400, "request_invalid"),
        (json!({"voice": "alloy"}), 400, "request_invalid"),
        (json!({"language": "klingon"}), 400, "request_invalid"),
        (json!({"instructions": "be glad"}), 400, "request_invalid"),
        (json!({"response_format": "mp3"}), 400, "request_unsupported"),
        (json!({"speed": 1.5}), 400, "request_unsupported"),
        (json!({"max_frames": 100_000}), 400, "context_length_exceeded"),
        (json!({"model": "other"}), 404, "model_not_loaded"),
    ] {
        let answer = server.post("/v1/audio/speech", &with(body(2), more.clone()));
        let said: Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(answer.status, status, "{more}: {said}");
        assert_eq!(said["error"]["code"], code, "{more}: {said}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let answer = server.post("/v1/chat/completions", &chat);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("/v1/audio/speech"));
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn a_client_who_leaves_frees_everything() {
    let Some((server, handle)) = serving("server::speech::leaves") else {
        return;
    };
    let long = with(body(100), json!({"min_frames": 100, "stream_format": "audio"}));
    drop(server.begin("/v1/audio/speech", &long));
    let limit = Instant::now() + Duration::from_mins(1);
    while handle.in_flight() > 0 {
        assert!(Instant::now() < limit, "the request goes on without a listener");
        std::thread::sleep(Duration::from_millis(5));
    }
}
