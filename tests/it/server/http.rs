//! A small HTTP client for tests: blocking, one request a connection, reading as little as one byte at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for bytes; a test that needs it has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// A response, or its beginning.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// An open connection whose request was sent.
#[derive(Debug)]
pub struct Call {
    stream: TcpStream,
    raw: Vec<u8>,
}

/// Sends a request; `headers` are whole lines without their ends.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Call {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    if !body.is_empty() {
        head = format!("{head}Content-Length: {}\r\n", body.len());
    }
    if !headers
        .iter()
        .any(|line| line.to_ascii_lowercase().starts_with("content-type"))
        && method == "POST"
    {
        head += "Content-Type: application/json\r\n";
    }
    for line in headers {
        head += line;
        head += "\r\n";
    }
    head += "\r\n";
    // A server that refuses early may close before everything is sent.
    let _refused_early = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
    Call {
        stream,
        raw: Vec::new(),
    }
}

impl Call {
    /// Reads at most `size` bytes more; `false` at the end.
    fn more(&mut self, size: usize) -> bool {
        let mut buffer = vec![0; size];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.raw.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&self.raw)),
        }
    }

    /// Reads byte by byte until what was received contains `text`.
    pub fn wait_for(&mut self, text: &str) {
        while !self
            .raw
            .windows(text.len())
            .any(|window| window == text.as_bytes())
        {
            assert!(
                self.more(1),
                "ended before {text:?}: {:?}",
                String::from_utf8_lossy(&self.raw)
            );
        }
    }

    /// Sends more of the request.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Reads to the end, `size` bytes at a time.
    pub fn finish_by(mut self, size: usize) -> Response {
        while self.more(size) {}
        let text = String::from_utf8_lossy(&self.raw).into_owned();
        let head_end = self
            .raw
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no head: {text:?}"));
        let head = String::from_utf8(self.raw[..head_end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let split = |line: &str| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
        let headers: Vec<_> = lines.filter_map(split).collect();
        let mut body = self.raw[head_end + 4..].to_vec();
        if headers
            .iter()
            .any(|(key, value)| key == "transfer-encoding" && value == "chunked")
        {
            body = unchunked(&body);
        }
        Response {
            status,
            headers,
            body,
        }
    }

    /// Reads to the end.
    pub fn finish(self) -> Response {
        self.finish_by(64 << 10)
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let start = line + 2;
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[start..start + size]);
        rest = &rest[start + size + 2..];
    }
    panic!(
        "the chunked body has no end: {:?}",
        String::from_utf8_lossy(&body)
    );
}

/// The data of each event, after checking the form of the stream.
pub fn events(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.ends_with("\n\n"), "the last event is complete: {text:?}");
    let blocks = text.split("\n\n").filter(|block| !block.is_empty());
    let mut data = Vec::new();
    for block in blocks {
        if block.starts_with(':') {
            continue;
        }
        let found = block
            .strip_prefix("data: ")
            .unwrap_or_else(|| panic!("not an event: {block:?}"));
        assert!(!found.contains('\n'), "one line of data an event: {block:?}");
        data.push(found.to_owned());
    }
    data
}
