//! `auto`, `verify` and `run` with a small model: from the command line to answers and back to the shell.

use std::process::{Child, Stdio};

use edge_deploy::fetch::http::{Http, Patience};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Sandbox;
use crate::support::tiny::{FAMILIES, TinyModel};

/// A running `auto`; killed if a test fails before it is stopped.
struct Serving {
    child: Child,
    said: Value,
}

impl Serving {
    /// Starts it on a free port and waits until it says that it is ready.
    fn start(sandbox: &Sandbox, key: Option<&str>) -> Self {
        Self::start_with(sandbox, key, &[])
    }

    fn start_with(sandbox: &Sandbox, key: Option<&str>, more: &[&str]) -> Self {
        let model = TinyModel::new("llama", 7).write_gguf(sandbox.path());
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("edge-deploy"));
        command
            .args(["auto", "--strict", "--json", "--port", "0", "-m"])
            .arg(model)
            .args(more)
            .env_clear()
            .env("HOME", sandbox.path())
            .envs(key.map(|key| ("EDGE_DEPLOY_API_KEY", key)))
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let said = serde_json::Deserializer::from_reader(stdout)
            .into_iter()
            .next()
            .expect("a document on stdout")
            .unwrap();
        Self { child, said }
    }

    fn url(&self) -> &str {
        self.said["url"].as_str().unwrap()
    }

    /// Sends SIGTERM and returns the exit code.
    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Already gone after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn auto_serves_as_planned_and_stops_when_told() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, None);
    assert_eq!(serving.said["differences"], Value::Array(Vec::new()));
    let http = Http::new(None, Patience::default()).unwrap();
    let (_, _, models) = http
        .page(
            &format!("{}/v1/models", serving.url()),
            "application/json",
            None,
            1 << 20,
        )
        .unwrap();
    let models: Value = serde_json::from_slice(&models).unwrap();
    assert_eq!(models["data"][0]["id"], serving.said["plan"]["model"]["name"]);
    let verified = sandbox.json(&["verify", serving.url(), "--json"]);
    assert_eq!(verified["matches"], true);
    assert_eq!(verified["digest"], serving.said["plan"]["digest"]);
    for row in verified["keys"].as_array().unwrap() {
        assert_eq!(row["matches"], true, "{row}");
        assert!(
            row["in_use"].is_null() != row["fact"].is_null(),
            "read back or a fact: {row}"
        );
    }
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn verify_takes_an_address_in_every_form_and_shows_every_key() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, None);
    let address = serving.url().strip_prefix("http://").unwrap();
    let port = address.rsplit(':').next().unwrap();
    for args in [
        &[address][..],
        &[port],
        &["--port", port],
        &["localhost", "--port", port],
    ] {
        let output = sandbox.command(&[&["verify"], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for shown in [
            "stages.decoder.worker",
            "stages.decoder.threads",
            "server.max_queue",
            "runs as planned",
        ] {
            assert_eq!(
                text.contains(shown),
                shown != "stages.decoder.worker",
                "{shown}: {text}"
            );
        }
    }
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn a_busy_port_is_said_before_anything_is_shown_or_loaded() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let model = TinyModel::new("llama", 7).write_gguf(sandbox.path());
    let model = model.display().to_string();
    let output = sandbox
        .command(&["auto", "-m", &model, "--port", &port])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("address_in_use")
    );
}

#[test]
fn a_server_offers_itself_when_memory_runs_out() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, None);
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", serving.child.id())).unwrap();
    assert_eq!(score.trim(), "500");
    assert_eq!(serving.stop(), Some(0));
}

/// Anonymous resident memory of a process, in MiB.
fn resident_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Sends a body and gives the status, whether or not the server reads all of it.
fn status_of(address: &str, path: &str, body: &str) -> u16 {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // A refused body is not read to its end, so writing it may fail.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()));
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).map_or(0, |()| {
        std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
    })
}

#[test]
fn large_requests_leave_no_memory_behind() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, None);
    let address = serving.url().strip_prefix("http://").unwrap();
    let before = resident_mib(serving.child.id());
    let long = |bytes: usize| format!(r#"{{"prompt": "{}"}}"#, "hello world ".repeat(bytes / 12));
    let numbers = format!(r#"{{"prompt": [{}5]}}"#, "5,".repeat(450_000));
    let messages = format!(
        r#"{{"messages": [{}{{}}]}}"#,
        r#"{"role":"user","content":"a"},"#.repeat(30_000)
    );
    for (path, body) in [
        ("/v1/completions", long(15_000_000)),
        ("/v1/completions", long(1_000_000)),
        ("/v1/completions", numbers),
        ("/v1/chat/completions", messages),
    ] {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let status = status_of(address, path, &body);
                    // 0: the connection was cut while the body was still being sent.
                    assert!([0, 400, 413, 429].contains(&status), "{status}");
                });
            }
        });
    }
    let after = resident_mib(serving.child.id());
    assert!(after < before + 64, "{before} MiB before, {after} MiB after");
    assert_eq!(
        status_of(address, "/v1/completions", r#"{"prompt": "a", "max_tokens": 1}"#),
        200
    );
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn an_address_in_brackets_is_bound() {
    let sandbox = Sandbox::new();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        skipped!("SKIPPED: this machine has no IPv6 loopback");
        return;
    }
    let serving = Serving::start_with(&sandbox, None, &["--host", "[::1]"]);
    assert!(serving.url().starts_with("http://[::1]:"), "{}", serving.url());
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn a_key_is_wanted_from_verify_too() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, Some("a-key-of-this-test"));
    let (code, error) = sandbox.refused(&["verify", serving.url(), "--json"]);
    assert_eq!(code, 6, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("401") && text.contains("EDGE_DEPLOY_API_KEY"),
        "{text}"
    );
    let verified = sandbox.json(&[
        "verify",
        serving.url(),
        "--api-key",
        "a-key-of-this-test",
        "--json",
    ]);
    assert_eq!(verified["matches"], true);
    assert!(!verified.to_string().contains("a-key-of-this-test"));
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn verify_without_a_server_says_what_to_do() {
    let sandbox = Sandbox::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let (code, error) = sandbox.refused(&["verify", &url, "--json"]);
    assert_eq!(
        (code, &error["error"]["code"]),
        (6, &Value::from("server_unreachable"))
    );
    assert!(
        error["error"]["remedy"].as_str().unwrap().contains("server runs"),
        "{error}"
    );
}

#[test]
fn run_answers_the_same_from_a_folder_and_from_a_gguf_file() {
    for family in FAMILIES {
        let sandbox = Sandbox::new();
        let model = TinyModel::new(family, 9);
        let folder = sandbox.path().join("checkpoint");
        std::fs::create_dir(&folder).unwrap();
        model.write_safetensors(&folder, 2);
        let file = model.write_gguf(sandbox.path());
        let [from_folder, from_file] = [folder, file].map(|model| {
            let model = model.display().to_string();
            let rest = [
                "--raw",
                "--json",
                "--max-tokens",
                "6",
                "--temperature",
                "0",
                "-m",
                &model,
            ];
            sandbox.json(&[&["run", "the in"], &rest[..]].concat())
        });
        assert_eq!(from_folder["text"], from_file["text"], "{family}");
        for count in ["prompt_tokens", "completion_tokens"] {
            let [of_folder, of_file] = [&from_folder, &from_file].map(|said| said["usage"][count].as_u64());
            assert!(
                of_folder.is_some_and(|count| count > 0),
                "{family}: {from_folder}"
            );
            assert_eq!(of_folder, of_file, "{family}");
        }
    }
}

#[test]
fn run_answers_and_the_same_seed_answers_the_same() {
    let sandbox = Sandbox::new();
    let model = TinyModel::new("llama", 7).write_gguf(sandbox.path());
    let model = model.display().to_string();
    let ask = |seed: &str| {
        sandbox.json(&[
            "run",
            "ab",
            "--raw",
            "--json",
            "-m",
            &model,
            "--max-tokens",
            "5",
            "--temperature",
            "1.5",
            "--seed",
            seed,
        ])
    };
    let first = ask("1");
    assert_eq!(first["text"], ask("1")["text"]);
    let count = first["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((1..=5).contains(&count), "{first}");
    let text = sandbox
        .command(&["run", "ab", "--raw", "-m", &model, "--max-tokens", "2"])
        .output()
        .unwrap();
    assert!(text.status.success(), "{text:?}");
    assert!(String::from_utf8(text.stderr).unwrap().contains("tok/s"));
}
