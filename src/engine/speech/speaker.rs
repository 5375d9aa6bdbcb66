//! `Speaker`: talker and code predictor with their caches, stepping any number of utterances together.
//!
//! In: utterances in slots. Out: a frame of codes for each in every step. Invariant: one pass through the talker's
//! weights and one through the predictor's for each sub-step serve all utterances; an utterance's codes do not depend
//! on the others.

use super::prompt::Prompt;
use super::utterance::{Ended, Pick, TRAILING_BATCH, Utterance, unusable_numbers};
use crate::base::{Code, Problem};
use crate::engine::kernels::Kernels;
use crate::engine::kv_cache::{KvCache, KvSizes};
use crate::engine::nets::body::Place;
use crate::engine::nets::code_predictor::{CodePredictor, FIRST_ROWS, PredictorBuffers};
use crate::engine::nets::talker::{Talker, TalkerBuffers};
use crate::engine::team::Team;
use crate::model::speech::{SpeechCard, predictor_positions};

/// Sees what the networks gave, and may replace what was chosen: for parity checks, which follow given codes.
pub trait Witness {
    /// The talker's state and raw logits for a pick.
    fn talker(&mut self, _slot: usize, _state: &[f32], _logits: &[f32]) {}
    /// The predictor's raw logits for a codebook.
    fn predictor(&mut self, _slot: usize, _book: usize, _logits: &[f32]) {}
    /// The scores that the code of a codebook was chosen by; returns the code to go on with.
    fn settle(&mut self, _slot: usize, _book: usize, _scores: &[f32], chosen: u32) -> u32 {
        chosen
    }
    /// The row the talker hears after a frame.
    fn input(&mut self, _slot: usize, _row: &[f32]) {}
}

/// Nobody looks.
#[derive(Clone, Copy, Debug)]
pub struct NoWitness;

impl Witness for NoWitness {}

/// How a network is run, and the size of its cache.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Its kernels.
    pub kernels: &'static Kernels,
    /// Its cache.
    pub sizes: KvSizes,
}

/// The two networks with their state.
#[derive(Debug)]
pub struct Speaker {
    /// Of the talker, then of the predictor.
    kernels: [&'static Kernels; 2],
    talker: Talker,
    talker_cache: KvCache,
    talker_buffers: TalkerBuffers,
    predictor: CodePredictor,
    predictor_cache: KvCache,
    predictor_buffers: PredictorBuffers,
    /// The vector of the text pad.
    pad: Vec<f32>,
    places: Vec<Place>,
    inputs: Vec<f32>,
    /// Slots whose last row of the pass is wanted, in row order.
    asked: Vec<usize>,
    /// Slots that begin a frame, the talker's states for them, and the code each chose last.
    speaking: Vec<usize>,
    states: Vec<f32>,
    codes: Vec<u32>,
    scratch: Vec<f32>,
}

impl Speaker {
    /// Allocates caches as the seats of talker and predictor say.
    ///
    /// # Errors
    /// `pin_unmet` for a predictor's cache that does not hold a frame of every sequence; `memory_short`, or what the
    /// caches refuse.
    pub fn new(
        team: &Team,
        card: &SpeechCard,
        talker: Talker,
        predictor: CodePredictor,
        seats: [Seat; 2],
    ) -> Result<Self, Problem> {
        let [talker_seat, predictor_seat] = seats;
        let (own, positions) = (predictor_seat.sizes, predictor_positions(card.codebooks));
        if own.context < positions
            || own.prefill_batch < FIRST_ROWS
            || own.max_seqs < talker_seat.sizes.max_seqs
        {
            return Err(Problem::new(
                Code::PinUnmet,
                format!(
                    "the code predictor has room for {} sequences of {} positions, {} in a pass; it needs {} of {positions}, \
                     {FIRST_ROWS} in a pass",
                    own.max_seqs, own.context, own.prefill_batch, talker_seat.sizes.max_seqs
                ),
                "remove `context`, `max_seqs` and `prefill_batch` of `stages.code_predictor`",
            ));
        }
        let mut talker_buffers = TalkerBuffers::new(&talker);
        let width = talker.spec().hidden;
        let mut pad = vec![0.0; width];
        talker.text_rows(
            talker_seat.kernels,
            team,
            &mut talker_buffers,
            &[card.ids.tts_pad],
            &mut pad,
        )?;
        Ok(Self {
            kernels: seats.map(|seat| seat.kernels),
            talker_cache: KvCache::new(talker.spec(), talker_seat.sizes)?,
            predictor_cache: KvCache::new(predictor.spec(), predictor_seat.sizes)?,
            talker_buffers,
            predictor_buffers: PredictorBuffers::new(&predictor),
            talker,
            predictor,
            pad,
            places: Vec::new(),
            inputs: Vec::new(),
            asked: Vec::new(),
            speaking: Vec::new(),
            states: Vec::new(),
            codes: Vec::new(),
            scratch: vec![0.0; width],
        })
    }

    /// The talker.
    #[must_use]
    pub fn talker(&self) -> &Talker {
        &self.talker
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(&self) -> &CodePredictor {
        &self.predictor
    }

    /// Kernels of talker and predictor.
    #[must_use]
    pub fn kernels(&self) -> [&'static Kernels; 2] {
        self.kernels
    }

    /// Caches of talker and predictor.
    #[must_use]
    pub fn caches(&self) -> [&KvCache; 2] {
        [&self.talker_cache, &self.predictor_cache]
    }

    /// The vector of the text pad.
    #[must_use]
    pub fn pad(&self) -> &[f32] {
        &self.pad
    }

    /// Embeds a prompt.
    ///
    /// # Errors
    /// For an id outside the text embedding.
    pub fn embed(&mut self, team: &Team, prompt: &Prompt) -> Result<Vec<f32>, Problem> {
        prompt.embed(self.kernels[0], team, &self.talker, &mut self.talker_buffers)
    }

    /// One step of every utterance that has not ended: at most `prompt_rows` rows of prompts in all, and a frame for
    /// each that is past its prompt. `slots[i]` uses sequence i of the caches.
    ///
    /// # Errors
    /// When a pass cannot be run; every utterance in it must be given up.
    pub fn step(
        &mut self,
        team: &Team,
        slots: &mut [Option<Utterance>],
        prompt_rows: usize,
        witness: &mut dyn Witness,
    ) -> Result<(), Problem> {
        self.listen(team, slots, prompt_rows, witness)?;
        if self.speaking.is_empty() {
            return Ok(());
        }
        self.complete_frames(team, slots, witness)?;
        self.prepare_inputs(team, slots, witness)
    }

    /// The talker's pass, and its picks.
    fn listen(
        &mut self,
        team: &Team,
        slots: &mut [Option<Utterance>],
        mut prompt_rows: usize,
        witness: &mut dyn Witness,
    ) -> Result<(), Problem> {
        let width = self.talker.spec().hidden;
        let most = self.talker_cache.sizes().prefill_batch;
        self.places.clear();
        self.inputs.clear();
        self.asked.clear();
        self.speaking.clear();
        self.states.clear();
        self.codes.clear();
        for (slot, utterance) in slots.iter_mut().enumerate() {
            let Some(utterance) = utterance.as_mut().filter(|utterance| utterance.ended.is_none()) else {
                continue;
            };
            let left = utterance.prompt_left();
            let rows = if left > 0 {
                left.min(prompt_rows).min(most)
            } else {
                1
            };
            if left > 0 {
                let from = utterance.heard * width;
                self.inputs
                    .extend_from_slice(&utterance.prompt[from..from + rows * width]);
                utterance.heard += rows;
                prompt_rows -= rows;
            } else {
                self.inputs.extend_from_slice(&utterance.input);
            }
            for row in 0..rows {
                let wanted = row + 1 == rows && utterance.prompt_left() == 0;
                self.places.push(Place {
                    sequence: slot,
                    position: utterance.position + row,
                    wanted,
                });
                if wanted {
                    self.asked.push(slot);
                }
            }
            utterance.position += rows;
        }
        if self.places.is_empty() {
            return Ok(());
        }
        let heard = self.talker.forward(
            self.kernels[0],
            team,
            &mut self.talker_cache,
            &mut self.talker_buffers,
            &self.places,
            &self.inputs,
        )?;
        let vocab = self.talker.spec().vocab;
        let rows = heard
            .states
            .chunks_exact(width)
            .zip(heard.logits.chunks_exact_mut(vocab));
        for (&slot, (state, logits)) in self.asked.iter().zip(rows) {
            let Some(utterance) = slots[slot].as_mut() else {
                continue;
            };
            // Its memory is needed no more.
            utterance.prompt = Vec::new();
            witness.talker(slot, state, logits);
            let pick = utterance.pick(logits, |scores, code| witness.settle(slot, 0, scores, code));
            if let Pick::Code(code) = pick {
                utterance.frame[0] = code as u16;
                self.speaking.push(slot);
                self.states.extend_from_slice(state);
                self.codes.push(code);
            }
        }
        Ok(())
    }

    /// The predictor's passes for every utterance that begins a frame.
    fn complete_frames(
        &mut self,
        team: &Team,
        slots: &mut [Option<Utterance>],
        witness: &mut dyn Witness,
    ) -> Result<(), Problem> {
        let vocab = self.predictor.spec().vocab;
        let books = self.talker.tables().codebooks();
        for book in 1..books {
            let logits = if book == 1 {
                self.predictor.begin(
                    self.kernels[1],
                    team,
                    &mut self.predictor_cache,
                    &mut self.predictor_buffers,
                    &self.speaking,
                    &self.states,
                    &self.codes,
                )?
            } else {
                self.predictor.next(
                    self.kernels[1],
                    team,
                    &mut self.predictor_cache,
                    &mut self.predictor_buffers,
                    &self.speaking,
                    book - 1,
                    &self.codes,
                )?
            };
            let rows = logits.chunks_exact_mut(vocab);
            for ((&slot, code), logits) in self.speaking.iter().zip(&mut self.codes).zip(rows) {
                let Some(utterance) = slots[slot].as_mut() else {
                    continue;
                };
                witness.predictor(slot, book, logits);
                match utterance.predictor.choose(logits) {
                    Ok(chosen) => *code = witness.settle(slot, book, logits, chosen),
                    Err(broken) => {
                        // It keeps its place until the frame is through; the others need theirs.
                        utterance.end(Ended::Failed(unusable_numbers(broken)));
                        *code = 0;
                    }
                }
                utterance.frame[book] = *code as u16;
            }
        }
        Ok(())
    }

    /// What the talker hears next: the frame's codes and the text that goes with it.
    fn prepare_inputs(
        &mut self,
        team: &Team,
        slots: &mut [Option<Utterance>],
        witness: &mut dyn Witness,
    ) -> Result<(), Problem> {
        let width = self.scratch.len();
        for &slot in &self.speaking {
            let Some(utterance) = slots[slot].as_mut().filter(|utterance| utterance.ended.is_none()) else {
                continue;
            };
            utterance.input.fill(0.0);
            let tables = self.talker.tables();
            tables.add_frame(&utterance.frame, &mut self.scratch, &mut utterance.input);
            let at = utterance.frames();
            let in_batch = |first: usize, rows: &[f32]| at >= first && at < first + rows.len() / width;
            if at < utterance.trailing.len() && !in_batch(utterance.trailing_first, &utterance.trailing_rows)
            {
                let end = utterance.trailing.len().min(at + TRAILING_BATCH);
                let ids = &utterance.trailing[at..end];
                utterance.trailing_rows.resize(ids.len() * width, 0.0);
                self.talker.text_rows(
                    self.kernels[0],
                    team,
                    &mut self.talker_buffers,
                    ids,
                    &mut utterance.trailing_rows,
                )?;
                utterance.trailing_first = at;
            }
            let text = if at < utterance.trailing.len() {
                let from = (at - utterance.trailing_first) * width;
                &utterance.trailing_rows[from..from + width]
            } else {
                &self.pad
            };
            for (value, text) in utterance.input.iter_mut().zip(text) {
                *value += text;
            }
            witness.input(slot, &utterance.input);
            utterance.completed();
        }
        Ok(())
    }
}
