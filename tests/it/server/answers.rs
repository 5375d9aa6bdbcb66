//! What well-formed requests get.

use super::*;
use http::events;

fn chunks(body: &[u8]) -> (Vec<Value>, String) {
    let mut data = events(body);
    let last = data.pop().unwrap();
    (
        data.iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect(),
        last,
    )
}

#[test]
fn t58_chat_streams_conform_when_read_byte_by_byte() {
    let server = Server::start(Wishes::default());
    let mut body = long_chat(12);
    body["stream_options"] = json!({"include_usage": true});
    let response = server.begin("/v1/chat/completions", &body).finish_by(1);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    let (chunks, last) = chunks(&response.body);
    assert_eq!(last, "[DONE]");
    let first = &chunks[0];
    assert!(first["id"].as_str().unwrap().starts_with("chatcmpl-"));
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for same in ["id", "created", "model", "system_fingerprint"] {
            assert_eq!(chunk[same], first[same]);
        }
        assert!(chunk.as_object().unwrap().contains_key("usage"));
    }
    assert_eq!(
        (&first["model"], &first["system_fingerprint"]),
        (&json!(MODEL), &json!("0123456789abcdef"))
    );
    assert_eq!(
        first["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let (usage, answers) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 12);
    let total = usage["usage"]["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(usage["usage"]["total_tokens"], total);
    let (end, middle) = answers.split_last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "length");
    assert_eq!(end["choices"][0]["delta"], json!({}));
    for chunk in middle {
        assert!(chunk["usage"].is_null() && chunk["choices"][0]["finish_reason"].is_null());
    }
    for chunk in &middle[1..] {
        let delta = chunk["choices"][0]["delta"].as_object().unwrap();
        assert!(delta.keys().eq(["content"]) && !delta["content"].as_str().unwrap().is_empty());
    }
}

#[test]
fn without_stream_options_no_chunk_has_usage() {
    let server = Server::start(Wishes::default());
    let response = server.post("/v1/chat/completions", &long_chat(3));
    let (chunks, last) = chunks(&response.body);
    assert_eq!(last, "[DONE]");
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn streamed_and_whole_answers_are_the_same_text() {
    let server = Server::start(Wishes::default());
    for (path, prompt) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "the thing"}]}),
        ),
        ("/v1/completions", json!({"prompt": "the thing"})),
    ] {
        let mut body = prompt;
        for (key, value) in [
            ("max_tokens", json!(20)),
            ("temperature", json!(1.5)),
            ("seed", json!(-3)),
            ("logit_bias", endless()),
        ] {
            body[key] = value;
        }
        let whole = server.post(path, &body).json();
        assert_eq!(whole, {
            let mut again = server.post(path, &body).json();
            again["id"] = whole["id"].clone();
            again["created"] = whole["created"].clone();
            again
        });
        let choice = &whole["choices"][0];
        let text = if path.contains("chat") {
            &choice["message"]["content"]
        } else {
            &choice["text"]
        };
        assert_eq!(
            (&whole["usage"]["completion_tokens"], &choice["finish_reason"]),
            (&json!(20), &json!("length"))
        );
        body["stream"] = json!(true);
        let (chunks, _) = chunks(&server.post(path, &body).body);
        let pieces: String = chunks
            .iter()
            .map(|chunk| {
                let choice = &chunk["choices"][0];
                choice["delta"]["content"]
                    .as_str()
                    .or(choice["text"].as_str())
                    .unwrap_or("")
                    .to_owned()
            })
            .collect();
        assert_eq!(pieces, text.as_str().unwrap(), "{path}");
        let object = if path.contains("chat") {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        assert!(chunks.iter().all(|chunk| chunk["object"] == object));
        body["seed"] = json!(4);
        body["stream"] = json!(false);
        let other = server.post(path, &body).json();
        assert_ne!(other["choices"], whole["choices"], "another seed, another answer");
    }
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_part_of_it() {
    let server = Server::start(Wishes::default());
    let mut body = json!({"prompt": "abc", "max_tokens": 30, "temperature": 0, "logit_bias": endless()});
    let full = server.post("/v1/completions", &body).json();
    let text = full["choices"][0]["text"].as_str().unwrap().to_owned();
    let middle: String = text.chars().skip(8).take(3).collect();
    let before = &text[..text.find(&middle).unwrap()];
    for stop in [json!(middle), json!(["\u{1}never", middle])] {
        body["stop"] = stop;
        let cut = server.post("/v1/completions", &body).json();
        assert_eq!(cut["choices"][0]["text"], before);
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn log_probabilities_have_each_endpoints_shape() {
    let server = Server::start(Wishes::default());
    let chat = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0, "logprobs": true,
        "top_logprobs": 2, "logit_bias": endless(),
    });
    let whole = server.post("/v1/chat/completions", &chat).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    for token in content {
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(token["token"], String::from_utf8_lossy(&bytes).as_ref());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert!(top[0]["logprob"].as_f64().unwrap() >= top[1]["logprob"].as_f64().unwrap());
    }
    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    let (chunks, _) = chunks(&server.post("/v1/chat/completions", &streamed).body);
    let in_chunks: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert!(in_chunks.into_iter().eq(content));

    let plain =
        json!({"prompt": "x", "max_tokens": 4, "temperature": 0, "logprobs": 1, "logit_bias": endless()});
    let lists = server.post("/v1/completions", &plain).json()["choices"][0]["logprobs"].clone();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().unwrap().len(), 4, "{list}");
    }
    assert_eq!(lists["text_offset"][0], 0);
    assert!(
        lists["top_logprobs"][0]
            .as_object()
            .unwrap()
            .contains_key(lists["tokens"][0].as_str().unwrap())
    );
    assert!(
        server
            .post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1}))
            .json()["choices"][0]["logprobs"]
            .is_null()
    );
}

#[test]
fn an_end_token_ends_the_answer_unless_ignored() {
    let server = Server::start(Wishes::default());
    // The bias makes <|im_end|> the first choice.
    let mut body = json!({"prompt": "abc", "max_tokens": 5, "temperature": 0, "logit_bias": {"2": 100}});
    let ended = server.post("/v1/completions", &body).json();
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(ended["choices"][0]["text"], "");
    body["ignore_eos"] = json!(true);
    let gone_on = server.post("/v1/completions", &body).json();
    assert_eq!(gone_on["choices"][0]["finish_reason"], "length");
    assert_eq!(gone_on["usage"]["completion_tokens"], 5);
}

#[test]
fn several_answers_and_several_prompts() {
    let server = Server::start(Wishes::default());
    let body = json!({
        "prompt": ["a", "in the"], "n": 2, "max_tokens": 3, "temperature": 2, "seed": 9, "echo": true,
        "logit_bias": endless(),
    });
    let whole = server.post("/v1/completions", &body).json();
    let choices = whole["choices"].as_array().unwrap();
    let indexes: Vec<_> = choices
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    for (choice, prompt) in choices.iter().zip(["a", "a", "in the", "in the"]) {
        assert!(choice["text"].as_str().unwrap().starts_with(prompt), "{choice}");
    }
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    // "a" is one token, "in the" is `in` and `Ġthe`: each prompt counts once.
    assert_eq!(whole["usage"]["prompt_tokens"], 3);
    let tokens = json!({"prompt": [[100, 101], [102]], "max_tokens": 1, "temperature": 0});
    assert_eq!(
        server.post("/v1/completions", &tokens).json()["usage"]["prompt_tokens"],
        3
    );
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let (chunks, last) = chunks(&server.post("/v1/completions", &streamed).body);
    assert_eq!(last, "[DONE]");
    for (index, choice) in choices.iter().enumerate() {
        let of_this = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|c| c["index"] == index);
        let text: String = of_this.map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
    }
}

#[test]
fn facts_about_the_server() {
    let server = Server::start(Wishes::default());
    let list = server.get("/v1/models").json();
    assert_eq!(
        (&list["object"], &list["data"][0]["id"]),
        (&json!("list"), &json!(MODEL))
    );
    assert_eq!(
        server.get(&format!("/v1/models/{MODEL}")).json()["object"],
        "model"
    );
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert!(server.get("/").text().contains(MODEL));
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/ready").json()["status"], "ready");
    let plan = server.get("/v1/edge/plan").json();
    assert_eq!(
        (&plan["digest"], &plan["model"]["name"]),
        (&json!("0123456789abcdef"), &json!(MODEL))
    );
    let effective = server.get("/v1/edge/effective").json();
    assert_eq!(effective["stages"]["decoder"]["threads"], 2);
    server.post(
        "/v1/completions",
        &json!({"prompt": "a", "max_tokens": 2, "logit_bias": endless()}),
    );
    server.until("requests_finished_total", 1.0);
    assert!((server.metric("completion_tokens_total") - 2.0).abs() < 1e-9);
    assert!((server.metric("time_to_first_token_seconds_count") - 1.0).abs() < 1e-9);
}

#[test]
fn the_openapi_document_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/openapi.json");
    let made = edge_deploy::server::openapi::document();
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &made).unwrap();
        return;
    }
    assert!(
        made == committed,
        "{path} is stale; run this test once with UPDATE_REFERENCE=1"
    );
}
