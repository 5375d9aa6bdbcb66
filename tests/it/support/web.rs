//! A small HTTP server for tests, able to misbehave.
//!
//! In: a function from request to [`Answer`]. Out: its address and the requests it saw. One thread a connection,
//! one request a connection, so that each fault hits exactly one request.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client asked for. Header names are in lower case.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first byte asked for by `Range: bytes=N-`.
    pub fn range(&self) -> Option<usize> {
        self.header("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// What to send back.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    length: Option<usize>,
    sent: usize,
    then_silent: Option<Duration>,
}

impl Answer {
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status: 200,
            headers: Vec::new(),
            length: Some(body.len()),
            sent: body.len(),
            body,
            then_silent: None,
        }
    }

    pub fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::ok("no")
        }
    }

    /// The rest of `body` from `from` with status 206.
    pub fn range(body: &[u8], from: usize) -> Self {
        Self {
            status: 206,
            ..Self::ok(&body[from..])
        }
        .with(
            "content-range",
            &format!("bytes {from}-{}/{}", body.len() - 1, body.len()),
        )
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302).with("location", to)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Closes the connection after `bytes` of the body.
    pub fn broken_after(mut self, bytes: usize) -> Self {
        self.sent = bytes;
        self
    }

    /// Says nothing for `time` after what is sent.
    pub fn then_silent(mut self, time: Duration) -> Self {
        self.then_silent = Some(time);
        self
    }

    /// States this length instead of the true one.
    pub fn claiming(mut self, length: usize) -> Self {
        self.length = Some(length);
        self
    }
}

/// A running server; its threads end with the test process.
pub struct Web {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    /// Serves with `answer`, which also gets the number of the request (from 0).
    pub fn new(answer: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), seen, answer) = (stream, Arc::clone(&seen), Arc::clone(&answer)) else {
                    continue;
                };
                std::thread::spawn(move || {
                    // A client that hangs up is part of some tests.
                    let _ = serve(stream, &seen, &*answer);
                });
            }
        });
        Self { url, asked }
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(usize, &Asked) -> Answer,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let asked = Asked { path, headers };
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(asked.clone());
        seen.len() - 1
    };
    let answer = answer(number, &asked);
    write!(stream, "HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status)?;
    if let Some(length) = answer.length {
        write!(stream, "content-length: {length}\r\n")?;
    }
    for (name, value) in &answer.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(&answer.body[..answer.sent.min(answer.body.len())])?;
    stream.flush()?;
    if let Some(time) = answer.then_silent {
        std::thread::sleep(time);
    }
    Ok(())
}
