//! From submitted answers to a response: whole, or as server-sent events.
//!
//! In: a [`Generation`] and its [`Writer`]. Out: an HTTP response. Invariant: each event is `data: JSON` and a blank
//! line; the last is `data: [DONE]`, or an error, after which the stream closes. Nothing is held back to fill a
//! buffer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;

use super::errors::ApiError;
use super::generation::{Generation, finish_word};
use super::writer::{Answer, Writer};
use crate::engine::Event;

/// A comment is sent when nothing else was for this long, so that proxies keep the connection.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Waits for all answers and gives one body. Dropping the future cancels them.
///
/// # Errors
/// The first failure of any answer.
pub async fn whole(
    mut generation: Generation,
    writer: &Writer,
    echoes: &[String],
    with_logprobs: bool,
) -> Result<Response, ApiError> {
    let mut answers = vec![Answer::default(); generation.answers()];
    while let Some(event) = generation.event().await {
        let (index, event) = event?;
        let answer = &mut answers[index];
        match event {
            Event::Token { id, text, logprobs } => {
                answer.text.push_str(&text);
                answer.logprobs.extend(logprobs.map(|logprobs| (id, logprobs)));
            }
            Event::Done { finish, text, .. } => {
                answer.text.push_str(&text);
                answer.finish = finish_word(finish);
            }
            Event::Prefilled { .. } | Event::Failed(_) => {}
        }
    }
    let body = writer.body(answers, echoes, with_logprobs, generation.usage());
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The answers as they are made. Dropping the response's body cancels them.
pub fn streamed(generation: Generation, writer: Writer, echoes: &[String]) -> Response {
    let opened = (0..generation.answers())
        .filter_map(|index| writer.opening(index, echoes.get(index).map_or("", String::as_str)))
        .map(|chunk| sse::Event::default().data(chunk))
        .collect();
    let offsets = vec![0; generation.answers()];
    let events = Events {
        generation,
        writer,
        ready: opened,
        offsets,
        ended: false,
    };
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive"))
        .into_response();
    // Reverse proxies must not collect events.
    let headers = response.headers_mut();
    headers.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// The event stream of one request.
struct Events {
    generation: Generation,
    writer: Writer,
    ready: VecDeque<sse::Event>,
    /// Characters of token text so far, by answer.
    offsets: Vec<usize>,
    ended: bool,
}

impl Events {
    fn send(&mut self, data: String) {
        self.ready.push_back(sse::Event::default().data(data));
    }

    fn take(&mut self, index: usize, event: Event) {
        match event {
            Event::Token { id, text, logprobs } => {
                let token = logprobs.map(|logprobs| (id, logprobs));
                if token.is_some() || !text.is_empty() {
                    let chunk = self.writer.part(index, text, token.as_ref(), self.offsets[index]);
                    if token.is_some() {
                        let bytes = self.writer.tokenizer.token_bytes(id);
                        self.offsets[index] += String::from_utf8_lossy(&bytes).chars().count();
                    }
                    self.send(chunk);
                }
            }
            Event::Done { finish, text, .. } => {
                if !text.is_empty() {
                    let chunk = self.writer.part(index, text, None, self.offsets[index]);
                    self.send(chunk);
                }
                let chunk = self.writer.closing(index, finish_word(finish));
                self.send(chunk);
            }
            Event::Prefilled { .. } | Event::Failed(_) => {}
        }
    }

    fn end(&mut self) {
        if self.writer.include_usage {
            let chunk = self.writer.usage(self.generation.usage());
            self.send(chunk);
        }
        self.send("[DONE]".to_owned());
        self.ended = true;
    }

    fn fail(&mut self, error: &ApiError) {
        let body = serde_json::to_string(&error.body()).unwrap_or_default();
        self.send(body);
        self.ended = true;
    }
}

impl Stream for Events {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match self.generation.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.end(),
                Poll::Ready(Some(Ok((index, event)))) => self.take(index, event),
                Poll::Ready(Some(Err(error))) => self.fail(&error),
            }
        }
    }
}
