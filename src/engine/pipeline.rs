//! The stage's thread: takes orders from the handle, steps the scheduler, answers questions, stops when told.
//!
//! In: a stage built on this very thread (first touch of its memory), orders. Out: events.
//! Invariant: however the thread ends, every order gets a last event and every later one is refused with the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::scheduler::Scheduler;
use super::session::Order;
use super::stage::Stage;
use super::status::{Record, Status};
use super::text::Tokenizer;
use crate::base::{Code, Problem};
use crate::plan::EffectiveStage;

/// Where the answer to "what do you really use?" goes.
pub type Question = SyncSender<Result<EffectiveStage, Problem>>;

/// What waits for the stage's thread.
#[derive(Debug, Default)]
struct Inbox {
    orders: Vec<Order>,
    questions: Vec<Question>,
    /// Requests in the inbox and in the scheduler.
    in_flight: usize,
    /// Stop, and when at the latest.
    stop: Option<Instant>,
    /// The thread takes nothing more, and why.
    closed: Option<Problem>,
}

/// The line between handles and the stage's thread.
#[derive(Debug)]
pub struct Line {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    record: Arc<Mutex<Record>>,
    max_in_flight: usize,
}

impl Line {
    /// An open line for at most `max_in_flight` requests at once, running and waiting.
    #[must_use]
    pub fn new(max_in_flight: usize) -> Self {
        Self {
            inbox: Mutex::default(),
            wake: Condvar::new(),
            record: Arc::new(Mutex::new(Record::new(Instant::now()))),
            max_in_flight,
        }
    }

    /// Most requests at once, running and waiting.
    #[must_use]
    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and rates as of `now`.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let arriving = self.inbox().orders.len();
        let mut status = self.record().status(now);
        status.queued += arriving;
        status
    }

    /// Hands an order over.
    ///
    /// # Errors
    /// `queue_full`, or `not_ready` when the engine stops or has stopped.
    pub fn submit(&self, order: Order) -> Result<(), Problem> {
        let mut inbox = self.inbox();
        if let Some(problem) = &inbox.closed {
            return Err(problem.clone());
        }
        if inbox.stop.is_some() {
            return Err(stopping());
        }
        if inbox.in_flight >= self.max_in_flight {
            self.record().totals.refused += 1;
            return Err(Problem::new(
                Code::QueueFull,
                format!(
                    "{} requests are running or waiting, which is all there is room for",
                    inbox.in_flight
                ),
                "try again later, or raise `server.max_queue`",
            ));
        }
        inbox.in_flight += 1;
        inbox.orders.push(order);
        self.record().totals.accepted += 1;
        self.wake.notify_one();
        Ok(())
    }

    /// Asks what the stage really uses; the answer comes between two passes.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn ask(&self, question: Question) -> Result<(), Problem> {
        let mut inbox = self.inbox();
        if let Some(problem) = &inbox.closed {
            return Err(problem.clone());
        }
        inbox.questions.push(question);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes no more orders, fails what waits, lets what runs go on until `deadline`. A second call can only bring
    /// the end nearer.
    pub fn stop(&self, deadline: Instant) {
        let mut inbox = self.inbox();
        inbox.stop = Some(inbox.stop.map_or(deadline, |before| before.min(deadline)));
        self.record().totals.stopping = true;
        self.wake.notify_one();
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stopping() -> Problem {
    Problem::new(
        Code::NotReady,
        "the server is stopping and takes no more requests",
        "send the request again when it is back",
    )
}

/// Runs the stage until [`Line::stop`]; returns only then.
pub fn run(line: &Line, stage: &mut dyn Stage, tokenizer: Arc<Tokenizer>) {
    let mut scheduler = Scheduler::new(stage.sizes(), tokenizer, Arc::clone(&line.record));
    let ended = catch_unwind(AssertUnwindSafe(|| serve(line, stage, &mut scheduler)));
    let reason = match ended {
        Ok(()) => stopping(),
        Err(_) => Problem::new(
            Code::StageFailed,
            "the engine's scheduler failed and has stopped",
            "restart the server, and report this with the log",
        ),
    };
    let (orders, questions) = {
        let mut inbox = line.inbox();
        inbox.closed = Some(reason.clone());
        inbox.in_flight = 0;
        (
            std::mem::take(&mut inbox.orders),
            std::mem::take(&mut inbox.questions),
        )
    };
    for order in orders {
        scheduler.add(order);
    }
    scheduler.fail_all(&reason);
    for question in questions {
        // Whoever asked may have gone.
        let _ = question.send(Err(reason.clone()));
    }
}

fn serve(line: &Line, stage: &mut dyn Stage, scheduler: &mut Scheduler) {
    loop {
        let (orders, questions, stop) = {
            let mut inbox = line.inbox();
            inbox.in_flight = scheduler.in_flight() + inbox.orders.len();
            while inbox.orders.is_empty()
                && inbox.questions.is_empty()
                && inbox.stop.is_none()
                && scheduler.in_flight() == 0
            {
                inbox = line.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            }
            (
                std::mem::take(&mut inbox.orders),
                std::mem::take(&mut inbox.questions),
                inbox.stop,
            )
        };
        for order in orders {
            scheduler.add(order);
        }
        for question in questions {
            // Whoever asked may have gone.
            let _ = question.send(stage.effective());
        }
        if let Some(deadline) = stop {
            scheduler.fail_waiting(&stopping());
            if scheduler.running() > 0 && Instant::now() >= deadline {
                scheduler.fail_all(
                    &Problem::new(
                        Code::DeadlinePassed,
                        "the server stopped before this answer was complete",
                        "send the request again when it is back",
                    )
                    .why("the time for finishing running answers (`deadlines.shutdown_ms`) is over"),
                );
            }
            if scheduler.running() == 0 {
                return;
            }
        }
        scheduler.step(stage);
    }
}
