//! The scheduler with a stage whose next token is a rule, so that every answer is known beforehand.
//!
//! In: letters. Out: the following letters; after `z` the end. Invariant: the stage checks what a real network needs:
//! consecutive positions, sequences that start at 0, no more prompt rows than a pass may have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::base::Code;
use crate::engine::text::GgufTokenizer;
use crate::engine::{Event, FinishReason, Request, Sampling, Usage};
use crate::plan::EffectiveStage;

const END: u32 = 2;
const FIRST_LETTER: u32 = 4;
const VOCAB: usize = 30;

/// `a` … `z`, a blank, and the end.
pub(crate) fn letters() -> Arc<Tokenizer> {
    let mut tokens = vec!["<unk>", "<s>", "</s>", "\u{2581}"];
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    tokens.extend(letters.iter().map(String::as_str));
    let mut token_type = vec![1; tokens.len()];
    token_type[..3].copy_from_slice(&[2, 3, 3]);
    Arc::new(
        GgufTokenizer {
            model: Some("llama"),
            scores: Some(vec![0.0; tokens.len()]),
            tokens: Some(tokens),
            token_type: Some(token_type),
            eos_token_id: Some(END),
            unknown_token_id: Some(0),
            add_bos_token: Some(false),
            add_space_prefix: Some(false),
            ..GgufTokenizer::default()
        }
        .build()
        .unwrap(),
    )
}

/// The next letter; after `z` the end.
pub(crate) struct Alphabet {
    pub sizes: StageSizes,
    /// A pass with this token panics.
    pub poison: Option<u32>,
    /// This token gives logits that are no numbers.
    pub broken: Option<u32>,
    /// Passes wait while the test holds this.
    pub hold: Arc<Mutex<()>>,
    history: Vec<Vec<u32>>,
    passes: Vec<Vec<Row>>,
    logits: Vec<f32>,
}

impl Alphabet {
    pub(crate) fn new(max_seqs: usize, prefill_batch: usize) -> Self {
        Self {
            sizes: StageSizes {
                vocab: VOCAB,
                context: 100,
                max_seqs,
                prefill_batch,
            },
            poison: None,
            broken: None,
            hold: Arc::default(),
            history: vec![Vec::new(); max_seqs],
            passes: Vec::new(),
            logits: Vec::new(),
        }
    }
}

impl Stage for Alphabet {
    fn sizes(&self) -> StageSizes {
        self.sizes
    }

    fn pass(&mut self, rows: &[Row]) -> Result<&mut [f32], Problem> {
        drop(self.hold.lock());
        self.passes.push(rows.to_vec());
        assert!(rows.len() <= self.sizes.prefill_batch + self.sizes.max_seqs);
        self.logits.clear();
        for row in rows {
            assert_ne!(Some(row.token), self.poison, "the planted fault");
            let history = &mut self.history[row.sequence];
            if row.position == 0 {
                history.clear();
            }
            assert_eq!(history.len(), row.position, "positions without gaps");
            history.push(row.token);
            if row.logits {
                let next = if row.token + 1 < VOCAB as u32 {
                    row.token + 1
                } else {
                    END
                };
                let fill = if Some(row.token) == self.broken {
                    f32::NAN
                } else {
                    0.0
                };
                let start = self.logits.len();
                self.logits.resize(start + VOCAB, fill);
                if !fill.is_nan() {
                    self.logits[start + next as usize] = 9.0;
                }
            }
        }
        Ok(&mut self.logits)
    }

    fn effective(&self) -> Result<EffectiveStage, Problem> {
        Err(Problem::new(
            Code::Internal,
            "a rule uses nothing",
            "do not ask it",
        ))
    }
}

pub(crate) fn request(prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: prompt
            .chars()
            .map(|c| FIRST_LETTER + u32::from(c) - u32::from('a'))
            .collect(),
        sampling: Sampling::default(),
        max_tokens,
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        echo: false,
    }
}

struct Sent {
    events: UnboundedReceiver<Event>,
    cancel: Arc<AtomicBool>,
}

/// What came back: the text, the last event, the number of tokens.
#[derive(Debug)]
struct Answer {
    text: String,
    tokens: usize,
    last: Event,
}

impl Sent {
    fn answer(&mut self) -> Answer {
        let mut answer = Answer {
            text: String::new(),
            tokens: 0,
            last: Event::Prefilled { tokens: 0 },
        };
        while let Ok(event) = self.events.try_recv() {
            assert!(
                !matches!(answer.last, Event::Done { .. } | Event::Failed(_)),
                "an event after the last: {event:?}"
            );
            match &event {
                Event::Token { text, .. } => {
                    answer.text.push_str(text);
                    answer.tokens += 1;
                }
                Event::Done { text, .. } => answer.text.push_str(text),
                Event::Prefilled { .. } | Event::Failed(_) => {}
            }
            answer.last = event;
        }
        answer
    }
}

impl Answer {
    fn finish(&self) -> (FinishReason, Usage) {
        match &self.last {
            Event::Done { finish, usage, .. } => (*finish, *usage),
            other => panic!("not done: {other:?}"),
        }
    }

    fn problem(&self) -> Code {
        match &self.last {
            Event::Failed(problem) => problem.code,
            other => panic!("not failed: {other:?}"),
        }
    }
}

struct Bench {
    scheduler: Scheduler,
    stage: Alphabet,
    record: Arc<Mutex<Record>>,
    count: u64,
}

impl Bench {
    fn new(max_seqs: usize, prefill_batch: usize) -> Self {
        let stage = Alphabet::new(max_seqs, prefill_batch);
        let record = Arc::new(Mutex::new(Record::new(Instant::now())));
        Self {
            scheduler: Scheduler::new(stage.sizes(), letters(), Arc::clone(&record)),
            stage,
            record,
            count: 0,
        }
    }

    fn send(&mut self, request: Request) -> Sent {
        self.send_until(request, None)
    }

    fn send_until(&mut self, request: Request, deadline: Option<Instant>) -> Sent {
        let (sender, events) = unbounded_channel();
        let cancel = Arc::new(AtomicBool::new(false));
        self.count += 1;
        self.scheduler.add(Order {
            id: self.count,
            request,
            cancel: Arc::clone(&cancel),
            events: sender,
            submitted: Instant::now(),
            deadline,
        });
        Sent { events, cancel }
    }

    fn step(&mut self) -> bool {
        self.scheduler.step(&mut self.stage)
    }

    fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 10_000, "no end");
        }
    }

    fn totals(&self) -> super::super::status::Status {
        self.record.lock().unwrap().status(Instant::now())
    }
}

#[test]
fn answers_of_all_lengths_come_out_complete() {
    let mut bench = Bench::new(3, 4);
    let prompts = [
        "a",
        "abcdefghijk",
        "xy",
        "lmno",
        "z",
        "qqqqqqqqqqqqqqqqqqqq",
        "m",
        "ab",
    ];
    let mut sent: Vec<Sent> = prompts.iter().map(|p| bench.send(request(p, 12))).collect();
    bench.run();
    for (prompt, sent) in prompts.iter().zip(&mut sent) {
        let answer = sent.answer();
        let last = prompt.chars().last().unwrap();
        let expected: String = (last..='z').skip(1).take(12).collect();
        assert_eq!(answer.text, expected, "{prompt}");
        let (finish, usage) = answer.finish();
        let ended = expected.len() < 12;
        assert_eq!(
            finish,
            if ended {
                FinishReason::Stop
            } else {
                FinishReason::Length
            }
        );
        assert_eq!(usage.prompt_tokens, prompt.len());
        assert_eq!(usage.completion_tokens, expected.len() + usize::from(ended));
    }
    let totals = bench.totals();
    assert_eq!((totals.finished, totals.failed, totals.cancelled), (8, 0, 0));
    assert_eq!((totals.queued, totals.running), (0, 0));
    assert_eq!(totals.time_to_first_token.count(), 8);
    assert_eq!(
        totals.prompt_tokens as usize,
        prompts.iter().map(|p| p.len()).sum::<usize>()
    );
}

#[test]
fn running_answers_get_a_row_in_every_pass_while_prompts_are_processed() {
    let mut bench = Bench::new(3, 4);
    let mut first = bench.send(request("a", 20));
    bench.step();
    let _long = bench.send(request(&"b".repeat(40), 2));
    bench.run();
    assert_eq!(first.answer().text, "bcdefghijklmnopqrstu");
    let of = |rows: &[Row], sequence: usize| rows.iter().filter(|r| r.sequence == sequence).count();
    let both: Vec<_> = bench.stage.passes.iter().filter(|rows| of(rows, 1) > 0).collect();
    assert!(both.len() >= 10);
    for rows in &both[..10] {
        assert_eq!((of(rows, 0), of(rows, 1)), (1, 4), "{rows:?}");
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut bench = Bench::new(2, 8);
    let mut long = bench.send(request(&"b".repeat(90), 1));
    let mut short = bench.send(request("abcd", 1));
    bench.step();
    assert_eq!(short.answer().text, "e", "half of the first pass is its own");
    assert_eq!(bench.stage.passes[0].len(), 8);
    bench.run();
    assert_eq!(long.answer().text, "c");
}

#[test]
fn callers_who_leave_free_their_sequence() {
    let mut bench = Bench::new(1, 4);
    let mut cancelled = bench.send(request("a", 20));
    let dropped = bench.send(request("b", 20));
    let mut waiting = bench.send(request("c", 20));
    let mut last = bench.send(request("d", 3));
    bench.step();
    bench.step();
    cancelled.cancel.store(true, Ordering::Relaxed);
    waiting.cancel.store(true, Ordering::Relaxed);
    bench.step();
    drop(dropped);
    bench.run();
    let answer = cancelled.answer();
    assert_eq!(
        (answer.text.as_str(), answer.finish().0),
        ("bc", FinishReason::Cancelled)
    );
    let answer = waiting.answer();
    assert_eq!((answer.tokens, answer.finish().0), (0, FinishReason::Cancelled));
    assert_eq!(last.answer().text, "efg");
    let totals = bench.totals();
    assert_eq!((totals.finished, totals.cancelled), (1, 3));
}

#[test]
fn a_panic_fails_the_requests_in_the_pass_and_no_other() {
    let mut bench = Bench::new(2, 4);
    bench.stage.poison = Some(FIRST_LETTER + 5);
    let mut one = bench.send(request("a", 20));
    let mut beside = bench.send(request("m", 20));
    let mut after = bench.send(request("k", 3));
    bench.run();
    assert_eq!(one.answer().problem(), Code::StageFailed);
    let answer = beside.answer();
    assert_eq!(answer.problem(), Code::StageFailed);
    assert_eq!(answer.text, "nopqr", "what was certain before had been sent");
    assert_eq!(after.answer().text, "lmn");
    let totals = bench.totals();
    assert_eq!((totals.failed, totals.finished), (2, 1));
}

#[test]
fn logits_without_numbers_fail_only_their_request() {
    let mut bench = Bench::new(2, 4);
    bench.stage.broken = Some(FIRST_LETTER + 2);
    let mut broken = bench.send(request("a", 20));
    let mut beside = bench.send(request("m", 20));
    bench.run();
    assert_eq!(broken.answer().problem(), Code::StageFailed);
    assert_eq!(beside.answer().text, "nopqrstuvwxyz");
}

#[test]
fn deadlines_end_running_and_waiting_requests() {
    let mut bench = Bench::new(1, 4);
    let soon = Instant::now() + Duration::from_hours(1);
    let mut fine = bench.send_until(request("w", 20), Some(soon));
    let mut late = bench.send_until(request("a", 20), Some(Instant::now()));
    bench.run();
    assert_eq!(fine.answer().text, "xyz");
    assert_eq!(late.answer().problem(), Code::DeadlinePassed);
    let mut running = bench.send(request("a", 20));
    bench.step();
    let Some(session) = &mut bench.scheduler.running[0] else {
        panic!("no sequence");
    };
    session.order.deadline = Some(Instant::now());
    bench.run();
    let answer = running.answer();
    assert_eq!(answer.problem(), Code::DeadlinePassed);
    assert_eq!(answer.text, "b");
}

#[test]
fn stop_texts_echo_and_ignored_ends_are_honoured() {
    let mut bench = Bench::new(4, 8);
    let with = |stop: &[&str], echo: bool, ignore_eos: bool, prompt: &str, max: usize| Request {
        stop: stop.iter().map(|s| (*s).to_owned()).collect(),
        echo,
        ignore_eos,
        ..request(prompt, max)
    };
    let mut over_tokens = bench.send(with(&["efg", "zz"], false, false, "a", 20));
    let mut never = bench.send(with(&["defx"], false, false, "a", 4));
    let mut echo = bench.send(with(&["ab"], true, false, "ab", 2));
    let mut endless = bench.send(with(&[], false, true, "x", 5));
    bench.run();
    let answer = over_tokens.answer();
    assert_eq!(
        (answer.text.as_str(), answer.finish().0),
        ("bcd", FinishReason::Stop)
    );
    let answer = never.answer();
    assert_eq!(
        (answer.text.as_str(), answer.finish().0),
        ("bcde", FinishReason::Length)
    );
    assert_eq!(echo.answer().text, "abcd", "the prompt's own text stops nothing");
    let answer = endless.answer();
    assert_eq!((answer.tokens, answer.finish().0), (5, FinishReason::Length));
    assert!(answer.text.starts_with("yz"));
}

#[test]
fn stopping_fails_those_who_wait_and_then_the_rest() {
    let mut bench = Bench::new(1, 4);
    let mut running = bench.send(request("a", 20));
    let mut waiting = bench.send(request("b", 20));
    bench.step();
    let problem = Problem::new(Code::NotReady, "stopping", "wait");
    bench.scheduler.fail_waiting(&problem);
    assert_eq!(waiting.answer().problem(), Code::NotReady);
    bench.step();
    bench.scheduler.fail_all(&problem);
    assert_eq!(running.answer().problem(), Code::NotReady);
    assert!(!bench.step());
    assert_eq!(bench.totals().failed, 2);
}
