//! Continuous batching: who gets a sequence, and which rows make up the next pass.
//!
//! In: orders in the sequence they were submitted. Out: passes of a [`Stage`], events of the orders.
//! Invariant: a sequence, once given, is kept to the end (the KV cache is allocated for all of them, so nothing is
//! ever preempted); every running answer gets one row in every pass, whatever prompts are being processed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::nets::Row;
use super::session::{Order, Progress, Session};
use super::stage::{Stage, StageSizes, guarded_pass};
use super::status::Record;
use super::text::Tokenizer;
use crate::base::Problem;

/// Waiting and running requests of one stage.
#[derive(Debug)]
pub struct Scheduler {
    sizes: StageSizes,
    tokenizer: Arc<Tokenizer>,
    record: Arc<Mutex<Record>>,
    waiting: VecDeque<Order>,
    /// By sequence slot.
    running: Vec<Option<Session>>,
    /// Slots in the order they were given, oldest first.
    order: Vec<usize>,
    rows: Vec<Row>,
    /// Slot, rows of it in this pass, how many of them are prompt rows.
    shares: Vec<Share>,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    slot: usize,
    rows: usize,
    prompt_rows: usize,
    logits: bool,
}

impl Scheduler {
    /// An empty scheduler for a stage of these sizes.
    #[must_use]
    pub fn new(sizes: StageSizes, tokenizer: Arc<Tokenizer>, record: Arc<Mutex<Record>>) -> Self {
        Self {
            sizes,
            tokenizer,
            record,
            waiting: VecDeque::new(),
            running: (0..sizes.max_seqs).map(|_| None).collect(),
            order: Vec::with_capacity(sizes.max_seqs),
            rows: Vec::with_capacity(sizes.prefill_batch + sizes.max_seqs),
            shares: Vec::with_capacity(sizes.max_seqs),
        }
    }

    /// Takes an order; it waits for a sequence.
    pub fn add(&mut self, order: Order) {
        self.waiting.push_back(order);
    }

    /// Requests in here, waiting and running.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.order.len()
    }

    /// Requests with a sequence.
    #[must_use]
    pub fn running(&self) -> usize {
        self.order.len()
    }

    /// Ends whoever left or is late, admits, and runs one pass. Returns whether there is more to do.
    pub fn step(&mut self, stage: &mut dyn Stage) -> bool {
        self.end_early(Instant::now());
        self.admit(Instant::now());
        self.plan_pass();
        if !self.rows.is_empty() {
            self.run_pass(stage);
        }
        self.publish();
        self.in_flight() > 0
    }

    /// Fails everything that waits; what runs goes on.
    pub fn fail_waiting(&mut self, problem: &Problem) {
        for order in self.waiting.drain(..) {
            order.fail(problem.clone());
            lock(&self.record).totals.failed += 1;
        }
        self.publish();
    }

    /// Fails everything.
    pub fn fail_all(&mut self, problem: &Problem) {
        self.fail_waiting(problem);
        for slot in std::mem::take(&mut self.order) {
            if let Some(session) = self.running[slot].take() {
                session.order.fail(problem.clone());
                lock(&self.record).totals.failed += 1;
            }
        }
        self.publish();
    }

    fn end_early(&mut self, now: Instant) {
        let mut cancelled = 0;
        let mut late = 0;
        let mut count = |ending| match ending {
            super::session::Ending::Cancelled => cancelled += 1,
            super::session::Ending::DeadlinePassed => late += 1,
        };
        self.waiting.retain(|order| match order.ending(now) {
            Some(ending) => {
                order.end_waiting(ending, now);
                count(ending);
                false
            }
            None => true,
        });
        self.order.retain(|&slot| {
            let Some(session) = &mut self.running[slot] else {
                return false;
            };
            match session.order.ending(now) {
                Some(ending) => {
                    session.end(ending, now);
                    count(ending);
                    self.running[slot] = None;
                    false
                }
                None => true,
            }
        });
        if cancelled + late > 0 {
            let mut record = lock(&self.record);
            record.totals.cancelled += cancelled;
            record.totals.failed += late;
        }
    }

    fn admit(&mut self, now: Instant) {
        for slot in 0..self.running.len() {
            if self.running[slot].is_some() {
                continue;
            }
            let Some(order) = self.waiting.pop_front() else {
                return;
            };
            let session = Session::new(order, &self.tokenizer, now);
            lock(&self.record).totals.queue_time.observe(session.queue_time());
            self.running[slot] = Some(session);
            self.order.push(slot);
        }
    }

    /// One row for every answer that is being generated, then prompt rows up to the batch, shared equally between
    /// prompts so that a short one does not wait behind a long one.
    fn plan_pass(&mut self) {
        self.rows.clear();
        self.shares.clear();
        let mut prompts: Vec<(usize, usize)> = Vec::new();
        for &slot in &self.order {
            let Some(session) = &self.running[slot] else {
                continue;
            };
            let left = session.prompt_left();
            if left > 0 {
                prompts.push((slot, left));
                continue;
            }
            let rows = session.next_rows(slot, 0, &mut self.rows);
            self.shares.push(Share {
                slot,
                rows,
                prompt_rows: 0,
                logits: true,
            });
        }
        let mut budget = self.sizes.prefill_batch.max(1);
        // The shortest first, so that what it does not use of its part goes to the others; ties by age.
        prompts.sort_by_key(|&(_, left)| left);
        let mut others = prompts.len();
        for (slot, _) in prompts {
            let part = budget.div_ceil(others);
            others -= 1;
            let Some(session) = &self.running[slot] else {
                continue;
            };
            if part == 0 {
                continue;
            }
            let rows = session.next_rows(slot, part, &mut self.rows);
            budget -= rows;
            self.shares.push(Share {
                slot,
                rows,
                prompt_rows: rows,
                logits: rows == session.prompt_left(),
            });
        }
    }

    fn run_pass(&mut self, stage: &mut dyn Stage) {
        let vocab = self.sizes.vocab;
        let passed = guarded_pass(stage, &self.rows);
        let now = Instant::now();
        let mut record = lock(&self.record);
        let mut logits = match passed {
            Ok(logits) => logits,
            Err(problem) => {
                record.totals.passes += 1;
                for share in &self.shares {
                    if let Some(session) = self.running[share.slot].take() {
                        session.order.fail(problem.clone());
                        record.totals.failed += 1;
                    }
                }
                self.order.clear();
                record.totals.running = 0;
                return;
            }
        };
        let prompt_rows = self.shares.iter().map(|share| share.prompt_rows).sum();
        let tokens = self.shares.iter().filter(|share| share.logits).count();
        record.passed(now, prompt_rows, tokens);
        for share in &self.shares {
            let Some(session) = &mut self.running[share.slot] else {
                continue;
            };
            let row = if share.logits {
                let (row, rest) = std::mem::take(&mut logits).split_at_mut(vocab);
                logits = rest;
                match session.last_token_at() {
                    None => {
                        let waited = now.saturating_duration_since(session.order.submitted);
                        record.totals.time_to_first_token.observe(waited);
                    }
                    Some(before) => {
                        let gap = now.saturating_duration_since(before);
                        record.totals.time_between_tokens.observe(gap);
                    }
                }
                Some(row)
            } else {
                None
            };
            match session.advance(share.rows, row, &self.tokenizer, now) {
                Progress::Going => continue,
                Progress::Finished => record.totals.finished += 1,
                Progress::Failed => record.totals.failed += 1,
            }
            self.running[share.slot] = None;
        }
        self.order.retain(|&slot| self.running[slot].is_some());
        // Under the same lock as the events: who reads his last event finds himself no longer counted.
        record.totals.running = self.order.len();
    }

    fn publish(&self) {
        let mut record = lock(&self.record);
        record.totals.queued = self.waiting.len();
        record.totals.running = self.order.len();
    }
}

/// The record, also after a panic elsewhere: its numbers stay meaningful.
fn lock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests;
