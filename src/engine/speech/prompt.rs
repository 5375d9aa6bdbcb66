//! The rows a talker hears before its first frame, and the text it hears while it speaks.
//!
//! In: ids of the texts, the voice, the language. Out: rows as sums of an embedded text id and an embedded code.
//! Invariant: rows are described, not computed, so that a prompt costs nothing until a stream has a slot.

use std::sync::Arc;

use crate::base::Problem;
use crate::engine::kernels::Kernels;
use crate::engine::nets::talker::{Talker, TalkerBuffers};
use crate::engine::team::Team;
use crate::model::speech::SpeechIds;

/// One frame's codes, codebook 0 first.
pub type Frame = Vec<u16>;

/// Whose voice.
#[derive(Clone, Debug, PartialEq)]
pub enum VoicePart {
    /// None is given; the model makes one up, or follows an instruction.
    None,
    /// A row of the talker's embedding.
    Row(u32),
    /// A voice vector of the talker's width.
    Vector(Arc<[f32]>),
}

/// A recording whose voice and manner are continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Its codes.
    pub frames: Arc<[Frame]>,
    /// Ids of what is said in it.
    pub text: Vec<u32>,
}

/// Everything a prompt is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptParts {
    /// Ids of the instruction with its turn marks, or none.
    pub instruction: Vec<u32>,
    /// Ids that stand before what is said: the turn and its role.
    pub role: Vec<u32>,
    /// Ids of what is said.
    pub spoken: Vec<u32>,
    /// Whose voice.
    pub voice: VoicePart,
    /// Codec id of the language; `None` = the model finds out.
    pub language: Option<u32>,
    /// A recording to continue.
    pub reference: Option<Reference>,
    /// All text before the first frame (`true`), or one id with each frame.
    pub text_at_once: bool,
}

/// The codec's side of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodePart {
    None,
    Id(u32),
    /// The voice vector.
    Voice,
    /// The sum of a reference frame's codes.
    Reference(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromptRow {
    /// `None` only for a bare voice vector; every row of today's prompts has a text side.
    text: u32,
    code: CodePart,
}

/// A prompt as rows to be embedded.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    rows: Vec<PromptRow>,
    /// Text ids heard with frame 0, 1, …; after them, the pad.
    trailing: Vec<u32>,
    voice: VoicePart,
    reference: Option<Arc<[Frame]>>,
}

impl Prompt {
    /// Lays out the rows.
    #[must_use]
    pub fn new(ids: &SpeechIds, parts: PromptParts) -> Self {
        let row = |text: u32, code: CodePart| PromptRow { text, code };
        let bare = |&text: &u32| row(text, CodePart::None);
        let mut rows: Vec<PromptRow> = parts.instruction.iter().chain(&parts.role).map(bare).collect();
        // Tags: each with a text pad, the last with the mark that begins speech.
        let mut tags: Vec<CodePart> = match parts.language {
            Some(language) => vec![ids.think, ids.think_bos, language, ids.think_eos],
            None => vec![ids.nothink, ids.think_bos, ids.think_eos],
        }
        .into_iter()
        .map(CodePart::Id)
        .collect();
        match &parts.voice {
            VoicePart::None => {}
            VoicePart::Row(id) => tags.push(CodePart::Id(*id)),
            VoicePart::Vector(_) => tags.push(CodePart::Voice),
        }
        rows.extend(tags.into_iter().map(|tag| row(ids.tts_pad, tag)));
        rows.push(row(ids.tts_bos, CodePart::Id(ids.codec_pad)));

        let pad = CodePart::Id(ids.codec_pad);
        let begin = CodePart::Id(ids.codec_bos);
        let frames = parts
            .reference
            .as_ref()
            .map(|reference| Arc::clone(&reference.frames));
        let trailing = match (&parts.reference, parts.text_at_once) {
            (None, true) => {
                let texts = parts.spoken.iter().copied().chain([ids.tts_eos]);
                rows.extend(texts.map(|text| row(text, pad)));
                rows.push(row(ids.tts_pad, begin));
                vec![ids.tts_pad]
            }
            (None, false) => {
                let mut texts = parts.spoken.iter().copied().chain([ids.tts_eos]);
                rows.extend(texts.next().map(|text| row(text, begin)));
                texts.collect()
            }
            (Some(reference), at_once) => {
                let texts = reference
                    .text
                    .iter()
                    .chain(&parts.spoken)
                    .copied()
                    .chain([ids.tts_eos]);
                let mut texts: Vec<u32> = texts.collect();
                let heard = (0..reference.frames.len()).map(CodePart::Reference);
                let codes: Vec<CodePart> = std::iter::once(begin).chain(heard).collect();
                if at_once {
                    rows.extend(texts.iter().map(|&text| row(text, pad)));
                    rows.extend(codes.into_iter().map(|code| row(ids.tts_pad, code)));
                    vec![ids.tts_pad]
                } else {
                    let rest = texts.split_off(codes.len().min(texts.len()));
                    let padded = texts.into_iter().chain(std::iter::repeat(ids.tts_pad));
                    rows.extend(padded.zip(codes).map(|(text, code)| row(text, code)));
                    if rest.is_empty() { vec![ids.tts_pad] } else { rest }
                }
            }
        };
        Self {
            rows,
            trailing,
            voice: parts.voice,
            reference: frames,
        }
    }

    /// Rows before the first frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none; never so for a prompt made by [`Self::new`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Text ids heard with frame 0, 1, …; after them, the pad.
    #[must_use]
    pub fn trailing(&self) -> &[u32] {
        &self.trailing
    }

    /// Frames of the reference, if a recording is continued.
    #[must_use]
    pub fn reference(&self) -> Option<&Arc<[Frame]>> {
        self.reference.as_ref()
    }

    /// Computes the rows: `len()` × the talker's width. Each distinct text id is projected once.
    ///
    /// # Errors
    /// For an id outside the text embedding.
    pub fn embed(
        &self,
        kernels: &Kernels,
        team: &Team,
        talker: &Talker,
        buffers: &mut TalkerBuffers,
    ) -> Result<Vec<f32>, Problem> {
        let width = talker.spec().hidden;
        let mut distinct: Vec<u32> = self.rows.iter().map(|row| row.text).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let mut texts = vec![0.0; distinct.len() * width];
        talker.text_rows(kernels, team, buffers, &distinct, &mut texts)?;
        let mut scratch = vec![0.0; width];
        let mut sum = vec![0.0; width];
        let mut rows = vec![0.0; self.rows.len() * width];
        for (row, out) in self.rows.iter().zip(rows.chunks_exact_mut(width)) {
            let at = distinct.partition_point(|&id| id < row.text) * width;
            out.copy_from_slice(&texts[at..at + width]);
            let code: &[f32] = match row.code {
                CodePart::None => continue,
                CodePart::Id(id) => {
                    talker.tables().row(0, id, &mut scratch);
                    &scratch
                }
                CodePart::Voice => match &self.voice {
                    VoicePart::Vector(vector) => vector,
                    _ => continue,
                },
                CodePart::Reference(at) => {
                    sum.fill(0.0);
                    if let Some(frame) = self.reference.as_ref().and_then(|frames| frames.get(at)) {
                        talker.tables().add_frame(frame, &mut scratch, &mut sum);
                    }
                    &sum
                }
            };
            for (value, code) in out.iter_mut().zip(code) {
                *value += code;
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: SpeechIds = SpeechIds {
        im_start: 1,
        im_end: 2,
        assistant: 3,
        tts_pad: 4,
        tts_bos: 5,
        tts_eos: 6,
        codec_pad: 104,
        codec_bos: 105,
        codec_eos: 106,
        think: 107,
        nothink: 108,
        think_bos: 109,
        think_eos: 110,
    };

    fn parts(spoken: &[u32]) -> PromptParts {
        PromptParts {
            instruction: Vec::new(),
            role: vec![1, 3, 9],
            spoken: spoken.to_vec(),
            voice: VoicePart::Row(150),
            language: Some(120),
            reference: None,
            text_at_once: true,
        }
    }

    /// Text and code of every row; −1 for no code, −2 − i for reference frame i, −100 for the voice vector.
    fn shown(prompt: &Prompt) -> Vec<(u32, i64)> {
        let code = |part| match part {
            CodePart::None => -1,
            CodePart::Id(id) => i64::from(id),
            CodePart::Voice => -100,
            CodePart::Reference(at) => -2 - at as i64,
        };
        prompt.rows.iter().map(|row| (row.text, code(row.code))).collect()
    }

    #[test]
    fn rows_are_as_many_as_published_in_every_mode() {
        for (language, voice, at_once, count) in [
            (Some(120), VoicePart::Row(150), true, 11 + 7),
            (None, VoicePart::Row(150), true, 10 + 7),
            (Some(120), VoicePart::Row(150), false, 10),
            (None, VoicePart::Row(150), false, 9),
            (None, VoicePart::None, false, 8),
        ] {
            let prompt = Prompt::new(
                &IDS,
                PromptParts {
                    language,
                    voice,
                    text_at_once: at_once,
                    ..parts(&[20, 21, 22, 23, 24, 25, 26])
                },
            );
            assert_eq!(prompt.len(), count);
            let trailing: &[u32] = if at_once {
                &[4]
            } else {
                &[21, 22, 23, 24, 25, 26, 6]
            };
            assert_eq!(prompt.trailing(), trailing);
        }
    }

    #[test]
    fn a_continued_recording_runs_beside_the_text_or_behind_it() {
        let reference = |frames: usize| Reference {
            frames: vec![vec![0; 2]; frames].into(),
            text: vec![30, 31],
        };
        let body = |frames, at_once| {
            let prompt = Prompt::new(
                &IDS,
                PromptParts {
                    reference: Some(reference(frames)),
                    text_at_once: at_once,
                    voice: VoicePart::None,
                    ..parts(&[20])
                },
            );
            (shown(&prompt)[8..].to_vec(), prompt.trailing().to_vec())
        };
        // Text: 30 31 20 eos. Codes: begin, frames.
        assert_eq!(body(1, false), (vec![(30, 105), (31, -2)], vec![20, 6]));
        assert_eq!(
            body(5, false),
            (
                vec![(30, 105), (31, -2), (20, -3), (6, -4), (4, -5), (4, -6)],
                vec![4]
            )
        );
        assert_eq!(
            body(1, true),
            (
                vec![(30, 104), (31, 104), (20, 104), (6, 104), (4, 105), (4, -2)],
                vec![4]
            )
        );
    }
}
