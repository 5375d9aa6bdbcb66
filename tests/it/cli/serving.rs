//! `auto`, `verify` and `run` with a small model: from the command line to answers and back to the shell.

use std::process::{Child, Stdio};

use edge_deploy::fetch::http::{Http, Patience};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Sandbox;
use crate::support::tiny::TinyModel;

/// A running `auto`; killed if a test fails before it is stopped.
struct Serving {
    child: Child,
    said: Value,
}

impl Serving {
    /// Starts it on a free port and waits until it says that it is ready.
    fn start(sandbox: &Sandbox, key: Option<&str>) -> Self {
        let model = TinyModel::new("llama", 7).write_gguf(sandbox.path());
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("edge-deploy"));
        command
            .args(["auto", "--strict", "--json", "--port", "0", "-m"])
            .arg(model)
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
    assert_eq!(code, 6);
    assert!(
        error["error"]["remedy"].as_str().unwrap().contains("server runs"),
        "{error}"
    );
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
