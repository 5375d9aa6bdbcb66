//! The program itself, serving a small model, looked at from outside through `/proc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::server::http::{Response, send};
use crate::support::tiny::TinyModel;

/// A home of its own and a small model in it.
pub struct Home {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Home {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = TinyModel::new("llama", 7).write_gguf(folder.path());
        Self { folder, model }
    }

    /// With this model.
    pub fn of(model: &Path) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            model: model.to_owned(),
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn model(&self) -> &Path {
        &self.model
    }

    /// A command with this model; nothing of the surroundings gets in.
    pub fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut program = Command::new(assert_cmd::cargo::cargo_bin("edge-deploy"));
        program
            .args([command, "--json", "-m"])
            .arg(&self.model)
            .args(args)
            .env_clear()
            .env("HOME", self.folder.path());
        program
    }

    /// Exit code and JSON of a command.
    pub fn json(&self, command: &str, args: &[&str]) -> (i32, Value) {
        let output = self.command(command, args).output().unwrap();
        let said =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code().unwrap(), said)
    }
}

/// A running server; killed if a test fails before it is stopped.
pub struct Program {
    child: Child,
    pub said: Value,
    _home: Home,
}

impl Program {
    /// Starts on a free port with `--set` for each of `set`, and waits until it is ready.
    pub fn start(set: &[&str]) -> Self {
        let sets: Vec<&str> = set.iter().flat_map(|pair| ["--set", *pair]).collect();
        Self::start_with(&[&["--port", "0"], &sets[..]].concat())
    }

    pub fn start_with(args: &[&str]) -> Self {
        let home = Home::new();
        let mut command = home.command("auto", args);
        command.arg("--strict");
        Self::run(home, &mut command)
    }

    /// Runs a command that serves, and waits until it is ready.
    pub fn run(home: Home, command: &mut Command) -> Self {
        // What it says on stderr is shown with a test that fails.
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let said: Option<Value> = serde_json::Deserializer::from_reader(stdout)
            .into_iter()
            .next()
            .map(Result::unwrap);
        let said = said.expect("a document on stdout");
        assert!(said.get("url").is_some(), "{command:?}: {said}");
        Self {
            child,
            said,
            _home: home,
        }
    }

    pub fn url(&self) -> &str {
        self.said["url"].as_str().unwrap()
    }

    pub fn stage(&self) -> &Value {
        &self.said["plan"]["stages"]["decoder"]
    }

    pub fn effective(&self) -> &Value {
        &self.said["effective"]["stages"]["decoder"]
    }

    pub fn call(&self, method: &str, path: &str, body: &str) -> Response {
        let address = self.url().strip_prefix("http://").unwrap().parse().unwrap();
        send(address, method, path, &[], body.as_bytes()).finish()
    }

    pub fn get(&self, path: &str) -> Value {
        let response = self.call("GET", path, "");
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json()
    }

    /// `/proc/<pid>/<file>`.
    pub fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// `Cpus_allowed_list` of every worker of the decoder, by thread name.
    pub fn workers(&self) -> BTreeMap<String, String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let mut found = BTreeMap::new();
        for task in tasks {
            let task = task.unwrap().path();
            let name = std::fs::read_to_string(task.join("comm")).unwrap();
            let Some(number) = name.trim().strip_prefix("decoder-") else {
                continue;
            };
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let list = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.insert(number.to_owned(), list.unwrap().trim().to_owned());
        }
        found
    }

    /// Bytes of address space in areas with this flag (`VmFlags` of `smaps`); `None` where the kernel shows none.
    pub fn bytes_flagged(&self, flag: &str) -> Option<u64> {
        let (mut size, mut sum, mut seen) = (0, 0, false);
        for line in self.proc("smaps").lines() {
            if let Some(value) = line.strip_prefix("Size:") {
                size = value.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                seen = true;
                if flags.split_whitespace().any(|word| word == flag) {
                    sum += size;
                }
            }
        }
        seen.then_some(sum)
    }

    /// Sends SIGTERM and returns the exit code.
    pub fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Already gone after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPUs that this process may use, lowest first.
pub fn allowed() -> Vec<u32> {
    use edge_deploy::sys::affinity::{allowed_cpus, current_thread_id};
    allowed_cpus(current_thread_id()).unwrap().iter().collect()
}
