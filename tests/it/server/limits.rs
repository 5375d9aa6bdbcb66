//! What bad, large, slow, unwelcome and leaving clients get.

use super::*;
use http::events;

fn code_of(response: &Response) -> String {
    let body = response.json();
    for field in ["message", "type", "param", "code"] {
        assert!(body["error"].as_object().unwrap().contains_key(field), "{body}");
    }
    body["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn hostile_requests_get_error_bodies_and_the_server_goes_on() {
    let server = Server::start(Wishes::default());
    let chat = "/v1/chat/completions";
    let message = r#""messages": [{"role": "user", "content": "a"}]"#;
    let with = |fields: &str| format!("{{{message}, {fields}}}");
    let long = format!("{{\"prompt\": \"{}\", \"max_tokens\": 1}}", "a ".repeat(9000));
    let deep = format!("{{\"tools\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let big = format!("{{\"prompt\": \"{}\"}}", "a".repeat(1 << 20));
    for (method, path, body, status, code) in [
        ("GET", "/nothing", String::new(), 404, "unknown_route"),
        ("GET", "/v1/../../etc/passwd", String::new(), 404, "unknown_route"),
        ("GET", chat, String::new(), 405, "unknown_route"),
        ("DELETE", "/v1/models", String::new(), 405, "unknown_route"),
        ("POST", "/health", "{}".to_owned(), 405, "unknown_route"),
        ("POST", chat, String::new(), 400, "request_malformed"),
        ("POST", chat, "{".to_owned(), 400, "request_malformed"),
        ("POST", chat, "null".to_owned(), 400, "request_malformed"),
        ("POST", chat, "\u{0}".to_owned(), 400, "request_malformed"),
        ("POST", chat, deep, 400, "request_malformed"),
        ("POST", chat, "{}".to_owned(), 400, "request_invalid"),
        (
            "POST",
            chat,
            with(r#""temperature": "x""#),
            400,
            "request_invalid",
        ),
        ("POST", chat, with(r#""temperature": -1"#), 400, "request_invalid"),
        ("POST", chat, with(r#""model": "other""#), 404, "model_not_loaded"),
        (
            "POST",
            chat,
            with(r#""model": "default", "n": 99"#),
            400,
            "request_invalid",
        ),
        (
            "POST",
            chat,
            with(r#""max_tokens": 100000"#),
            400,
            "context_length_exceeded",
        ),
        (
            "POST",
            chat,
            with(r#""tools": [{"type": "function"}]"#),
            400,
            "request_unsupported",
        ),
        (
            "POST",
            chat,
            with(
                r#""response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "^a\\!$"}}}"#,
            ),
            400,
            "request_unsupported",
        ),
        (
            "POST",
            chat,
            with(r#""logit_bias": {"999999": 1}"#),
            400,
            "request_invalid",
        ),
        (
            "POST",
            chat,
            with(r#""chat_template_kwargs": {"messages": []}"#),
            400,
            "request_invalid",
        ),
        ("POST", "/v1/completions", "{}".to_owned(), 400, "request_invalid"),
        (
            "POST",
            "/v1/completions",
            r#"{"prompt": ""}"#.to_owned(),
            400,
            "request_invalid",
        ),
        (
            "POST",
            "/v1/completions",
            r#"{"prompt": [4000000]}"#.to_owned(),
            400,
            "request_invalid",
        ),
        ("POST", "/v1/completions", long, 400, "context_length_exceeded"),
        ("POST", "/v1/completions", big, 413, "body_too_large"),
    ] {
        let response = send(server.address, method, path, &[], body.as_bytes()).finish();
        let shown: String = body.chars().take(80).collect();
        assert_eq!(
            (response.status, code_of(&response).as_str()),
            (status, code),
            "{method} {path} {shown}: {}",
            response.text()
        );
    }
    let form = send(server.address, "POST", chat, &["Content-Type: text/plain"], b"{}").finish();
    assert_eq!((form.status, code_of(&form).as_str()), (400, "request_malformed"));
    let many: Vec<String> = (0..200).map(|number| format!("X-{number}: y")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        send(server.address, "GET", "/health", &many, b"").finish().status,
        431
    );
    // Tools are refused in streams just the same, before any event.
    let streamed = server.post(
        chat,
        &json!({"stream": true, "messages": [{"role": "user", "content": "a"}], "tools": [{}]}),
    );
    assert_eq!(
        (streamed.status, code_of(&streamed).as_str()),
        (400, "request_unsupported")
    );
    assert_eq!(
        server
            .post(
                chat,
                &json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
            )
            .status,
        200
    );
}

#[test]
fn a_body_that_does_not_arrive_is_given_up() {
    let server = Server::start(Wishes {
        change: Box::new(|plan| plan.server.read_timeout_ms = Millis(50)),
        ..Wishes::default()
    });
    let headers = ["Content-Length: 100"];
    let response = send(server.address, "POST", "/v1/completions", &headers, b"").finish();
    assert_eq!(
        (response.status, code_of(&response).as_str()),
        (408, "deadline_passed")
    );
}

#[test]
fn a_client_that_holds_back_its_request_does_not_hold_up_the_end() {
    let mut server = Server::start(Wishes {
        change: Box::new(|plan| {
            plan.server.read_timeout_ms = Millis(3_600_000);
            plan.deadlines.shutdown_ms = Millis(3_600_000);
        }),
        ..Wishes::default()
    });
    let headers = ["Content-Length: 100"];
    let mut held = send(server.address, "POST", "/v1/completions", &headers, b"");
    assert!(held.write(b"{"));
    server.until("ready", 1.0);
    drop(server.stop.take());
    // The limit only turns a hang into a failure.
    let limit = Instant::now() + Duration::from_mins(1);
    while !server
        .served
        .as_ref()
        .is_some_and(std::thread::JoinHandle::is_finished)
    {
        assert!(Instant::now() < limit, "still waiting for the request");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_body_that_breaks_off_is_not_called_too_large() {
    let server = Server::start(Wishes::default());
    for broken in ["zz\r\n{}\r\n", "ffffffffffffffffff\r\n{}\r\n"] {
        let headers = ["Transfer-Encoding: chunked"];
        let mut call = send(server.address, "POST", "/v1/completions", &headers, b"");
        assert!(call.write(broken.as_bytes()));
        let response = call.finish();
        assert_eq!(
            (response.status, code_of(&response).as_str()),
            (400, "request_malformed"),
            "{broken:?}"
        );
    }
}

#[test]
fn a_chunked_body_is_limited_too() {
    let server = Server::start(Wishes::default());
    let mut call = send(
        server.address,
        "POST",
        "/v1/completions",
        &["Transfer-Encoding: chunked"],
        b"",
    );
    let piece = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
    for _ in 0..32 {
        if !call.write(piece.as_bytes()) {
            break;
        }
    }
    let response = call.finish();
    assert_eq!(
        (response.status, code_of(&response).as_str()),
        (413, "body_too_large")
    );
}

#[test]
fn a_key_is_asked_for_where_it_is_set() {
    let options = ServerOptions {
        api_key: Some("s3cret".to_owned()),
        ..ServerOptions::default()
    };
    let server = Server::start(Wishes {
        options,
        ..Wishes::default()
    });
    for (header, status) in [
        (None, 401),
        (Some("Authorization: Bearer wrong"), 401),
        (Some("Authorization: Basic s3cret"), 401),
        (Some("Authorization: s3cret"), 401),
        (Some("Authorization: Bearer s3cret"), 200),
        (Some("authorization: bearer s3cret"), 200),
    ] {
        let response = send(server.address, "GET", "/v1/models", header.as_slice(), b"").finish();
        assert_eq!(response.status, status, "{header:?}");
        if status == 401 {
            assert_eq!(code_of(&response), "unauthorized");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert_eq!(
        (server.get("/health").status, server.get("/ready").status),
        (200, 200)
    );
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/nothing").status, 401, "nothing is told to strangers");
}

#[test]
fn browsers_are_let_in_only_when_asked() {
    let origin = ["Origin: https://example.org"];
    let plain = Server::start(Wishes::default());
    let response = send(plain.address, "GET", "/health", &origin, b"").finish();
    assert_eq!(response.header("access-control-allow-origin"), None);
    let cors_origins = vec!["https://example.org".to_owned()];
    let open = Server::start(Wishes {
        options: ServerOptions {
            api_key: None,
            cors_origins,
        },
        ..Wishes::default()
    });
    let response = send(open.address, "GET", "/health", &origin, b"").finish();
    assert_eq!(
        response.header("access-control-allow-origin"),
        Some("https://example.org")
    );
    let other = send(
        open.address,
        "GET",
        "/health",
        &["Origin: https://other.org"],
        b"",
    )
    .finish();
    assert_ne!(
        other.header("access-control-allow-origin"),
        Some("https://other.org")
    );
}

#[test]
fn a_full_queue_answers_429_and_recovers() {
    let server = Server::start(Wishes {
        max_seqs: 1,
        max_queue: 0,
        ..Wishes::default()
    });
    let mut running = server.begin("/v1/chat/completions", &long_chat(8000));
    running.wait_for("assistant");
    let refused = server.post("/v1/chat/completions", &long_chat(1));
    assert_eq!((refused.status, code_of(&refused).as_str()), (429, "queue_full"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert!(server.metric("requests_rejected_total") >= 1.0);
    drop(running);
    server.until("requests_cancelled_total", 1.0);
    assert_eq!(server.post("/v1/chat/completions", &long_chat(1)).status, 200);
}

#[test]
fn a_client_that_leaves_frees_its_sequence() {
    let server = Server::start(Wishes {
        max_seqs: 1,
        ..Wishes::default()
    });
    let mut streamed = server.begin("/v1/chat/completions", &long_chat(8000));
    streamed.wait_for("assistant");
    server.until("requests_running", 1.0);
    drop(streamed);
    server.until("requests_running", 0.0);
    server.until("requests_cancelled_total", 1.0);

    let mut body = long_chat(8000);
    body["stream"] = json!(false);
    let waiting = server.begin("/v1/chat/completions", &body);
    server.until("requests_running", 1.0);
    drop(waiting);
    server.until("requests_running", 0.0);
    server.until("requests_cancelled_total", 2.0);
    assert!(server.metric("requests_finished_total").abs() < 1e-9);
}

#[test]
fn while_loading_it_is_alive_but_not_ready() {
    let server = Server::start(Wishes {
        unloaded: true,
        ..Wishes::default()
    });
    assert_eq!(
        (server.get("/health").status, server.get("/ready").status),
        (200, 503)
    );
    let early = server.post("/v1/chat/completions", &long_chat(1));
    assert_eq!((early.status, code_of(&early).as_str()), (503, "not_ready"));
    assert_eq!(early.header("retry-after"), Some("1"));
    assert!(server.metric("ready").abs() < 1e-9);
    server.load();
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.post("/v1/chat/completions", &long_chat(1)).status, 200);
}

#[test]
fn a_failed_load_is_told() {
    let server = Server::start(Wishes {
        unloaded: true,
        ..Wishes::default()
    });
    server.state.set_failed(edge_deploy::base::Problem::new(
        edge_deploy::base::Code::MemoryShort,
        "no room",
        "buy some",
    ));
    let ready = server.get("/ready");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("no room"), "{}", ready.text());
}

#[test]
fn stopping_finishes_what_runs() {
    let mut server = Server::start(Wishes::default());
    let mut running = server.begin("/v1/chat/completions", &long_chat(2000));
    running.wait_for(TEXT);
    server.stop();
    let data = events(&running.finish().body);
    assert_eq!(data.last().unwrap(), "[DONE]");
    assert!(
        data[data.len() - 2].contains("\"finish_reason\":\"length\""),
        "{}",
        data[data.len() - 2]
    );
    assert!(
        std::net::TcpStream::connect(server.address).is_err(),
        "nobody listens any more"
    );
}

#[test]
fn stopping_without_grace_ends_streams_with_an_error() {
    let mut server = Server::start(Wishes {
        change: Box::new(|plan| plan.deadlines.shutdown_ms = Millis(0)),
        ..Wishes::default()
    });
    let mut running = server.begin("/v1/chat/completions", &long_chat(8000));
    running.wait_for(TEXT);
    server.stop();
    let data = events(&running.finish().body);
    let last: Value = serde_json::from_str(data.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "deadline_passed", "{last}");
}

#[test]
fn a_required_key_must_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = TinyModel::new("llama", 7).write_gguf(folder.path());
    let mut plan = plan(&path, stage_plan(1), 0);
    plan.server.api_key_required = true;
    let problem = ServerState::new(&plan, ServerOptions::default()).unwrap_err();
    assert!(problem.remedy.contains("--api-key"));
}
