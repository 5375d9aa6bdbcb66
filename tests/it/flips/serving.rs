//! Keys of the HTTP side and of sampling: a server with one value against a server with another.

use edge_deploy::base::{Bytes, Millis};
use edge_deploy::plan::{Plan, SamplingPlan};
use edge_deploy::server::ServerOptions;
use serde_json::{Value, json};

use crate::server::http::{events, send};
use crate::server::{Server, TEXT, Wishes, endless, long_chat};

const CHAT: &str = "/v1/chat/completions";

fn server(change: impl Fn(&mut Plan) + 'static) -> Server {
    Server::start(Wishes {
        change: Box::new(change),
        ..Wishes::default()
    })
}

fn in_use(server: &Server, field: &str) -> Value {
    server.get("/v1/edge/effective").json()["server"][field].clone()
}

/// An answer whose length only the server's defaults bound, with a fixed seed.
fn answer(server: &Server, max_tokens: Option<usize>) -> Value {
    let mut body = json!({"prompt": "the thing in you", "logit_bias": endless(), "seed": 5});
    if let Some(tokens) = max_tokens {
        body["max_tokens"] = json!(tokens);
    }
    let response = server.post("/v1/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

pub fn name_is_what_requests_must_say() {
    for (name, other) in [("first", "second"), ("second", "first")] {
        let server = server(move |plan| name.clone_into(&mut plan.model.name));
        assert_eq!(server.get("/v1/edge/effective").json()["model"]["name"], name);
        for (asked, status) in [(name, 200), (other, 404)] {
            let body = json!({"model": asked, "prompt": "a", "max_tokens": 1});
            assert_eq!(
                server.post("/v1/completions", &body).status,
                status,
                "{asked} of {name}"
            );
        }
    }
}

pub fn chat_template_writes_the_prompt() {
    let tokens = |template: Option<&'static str>| {
        let server = server(move |plan| {
            if let Some(text) = template {
                plan.model.card.as_mut().unwrap().chat_template = Some(text.to_owned());
            }
        });
        let body = json!({"messages": [{"role": "user", "content": "aaaa"}], "max_tokens": 1});
        let used = server.post(CHAT, &body).json()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap();
        let origin = server.get("/v1/edge/effective").json()["model"]["chat_template"].clone();
        (origin, used)
    };
    let (own, many) = tokens(None);
    let (pinned, few) = tokens(Some("{{ messages[0].content }}"));
    assert_eq!((own, pinned), (json!("model"), json!("pinned")));
    assert_eq!(few, 4);
    assert!(many > few, "{many}");
}

pub fn sampling_defaults_change_answers() {
    let greedy = SamplingPlan {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
    };
    let text = |sampling: SamplingPlan| {
        let server = server(move |plan| plan.model.sampling = sampling);
        let used: SamplingPlan = serde_json::from_value(in_use(&server, "sampling")).unwrap();
        assert_eq!(used, sampling);
        let texts = [(); 2].map(|()| answer(&server, Some(16))["choices"][0]["text"].clone());
        assert_eq!(texts[0], texts[1], "the same seed, the same answer");
        texts[0].clone()
    };
    let likeliest = text(greedy);
    let hot = SamplingPlan {
        temperature: 5.0,
        ..greedy
    };
    assert_ne!(text(hot), likeliest, "temperature");
    // Each of these leaves one token to choose from, whatever the temperature.
    assert_eq!(text(SamplingPlan { top_k: 1, ..hot }), likeliest);
    assert_eq!(text(SamplingPlan { top_p: 1e-6, ..hot }), likeliest);
    assert_eq!(text(SamplingPlan { min_p: 1.0, ..hot }), likeliest);
    let unlike = SamplingPlan {
        repetition_penalty: 10.0,
        ..greedy
    };
    assert_ne!(text(unlike), likeliest, "repetition_penalty");
}

pub fn a_key_is_asked_for_only_where_required() {
    for required in [false, true] {
        let server = Server::start(Wishes {
            options: ServerOptions {
                api_key: required.then(|| "k3y".to_owned()),
                ..ServerOptions::default()
            },
            change: Box::new(move |plan| plan.server.api_key_required = required),
            ..Wishes::default()
        });
        let status = |headers: &[&str]| {
            send(server.address, "GET", "/v1/models", headers, b"")
                .finish()
                .status
        };
        assert_eq!(status(&[]), if required { 401 } else { 200 });
        let key = ["Authorization: Bearer k3y"];
        assert_eq!(status(&key), 200);
        let effective = send(server.address, "GET", "/v1/edge/effective", &key, b"")
            .finish()
            .json();
        assert_eq!(effective["server"]["api_key_required"], required);
    }
}

pub fn max_queue_refuses_what_is_beyond() {
    for room in [0, 1] {
        let server = Server::start(Wishes {
            max_seqs: 1,
            max_queue: room,
            ..Wishes::default()
        });
        assert_eq!(in_use(&server, "max_queue"), room);
        let mut running = server.begin(CHAT, &long_chat(8000));
        running.wait_for(TEXT);
        let mut waiting = Vec::new();
        for number in 0..=room {
            let more = server.begin(CHAT, &long_chat(8000));
            if number < room {
                server.until("requests_queued", 1.0);
                waiting.push(more);
            } else {
                assert_eq!(more.finish().status, 429);
            }
        }
    }
}

pub fn max_body_bytes_refuses_larger_bodies() {
    let body = json!({"prompt": "a".repeat(3000), "max_tokens": 1});
    for (most, status) in [(2000, 413), (4000, 200)] {
        let server = server(move |plan| plan.server.max_body_bytes = Bytes(most));
        assert_eq!(in_use(&server, "max_body_bytes"), most);
        assert_eq!(server.post("/v1/completions", &body).status, status);
    }
}

pub fn read_timeout_gives_up_a_body() {
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    for (wait, status) in [(50, 408), (3_600_000, 200)] {
        let server = server(move |plan| plan.server.read_timeout_ms = Millis(wait));
        assert_eq!(in_use(&server, "read_timeout_ms"), wait);
        let length = format!("Content-Length: {}", body.len());
        let mut call = send(server.address, "POST", "/v1/completions", &[&length], b"");
        let (first, rest) = body.as_bytes().split_at(5);
        assert!(call.write(first));
        if status == 200 {
            // Long after the other server gave up.
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(call.write(rest));
        }
        assert_eq!(call.finish().status, status);
    }
}

pub fn request_timeout_ends_an_answer() {
    for (most, ended) in [(20, true), (0, false)] {
        let server = server(move |plan| plan.server.request_timeout_ms = Millis(most));
        assert_eq!(in_use(&server, "request_timeout_ms"), most);
        let body = json!({"prompt": "a", "max_tokens": 1500, "logit_bias": endless()});
        let response = server.post("/v1/completions", &body);
        if ended {
            assert_eq!(
                (response.status, &response.json()["error"]["code"]),
                (504, &json!("deadline_passed"))
            );
        } else {
            assert_eq!(response.json()["usage"]["completion_tokens"], 1500);
        }
    }
}

pub fn default_max_tokens_end_an_answer() {
    for tokens in [3, 11] {
        let server = server(move |plan| plan.server.default_max_tokens = tokens);
        assert_eq!(in_use(&server, "default_max_tokens"), tokens);
        let answer = answer(&server, None);
        assert_eq!(answer["usage"]["completion_tokens"], tokens);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

pub fn shutdown_grace_lets_answers_finish() {
    for (grace, finishes) in [(0, false), (3_600_000, true)] {
        let mut server = server(move |plan| plan.deadlines.shutdown_ms = Millis(grace));
        let mut running = server.begin(CHAT, &long_chat(2000));
        running.wait_for(TEXT);
        server.stop();
        let data = events(&running.finish().body);
        assert_eq!(data.last().unwrap() == "[DONE]", finishes);
        if !finishes {
            let last: Value = serde_json::from_str(data.last().unwrap()).unwrap();
            assert_eq!(last["error"]["code"], "deadline_passed", "{last}");
        }
    }
}
