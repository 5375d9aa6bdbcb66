//! Speech: from a request to frames of codes, before they are made sound.
//!
//! In: text, a voice, a language. Out: what a talker hears, and utterances that speak frame by frame.
//! Invariant: nothing here knows of threads, channels or time.

pub mod prompt;
pub mod request;
pub mod speaker;
pub mod stop;
pub mod utterance;

pub use prompt::{Frame, Prompt, PromptParts, Reference, VoicePart};
pub use request::{SpeechRequest, SpeechTexts, Voice};
pub use speaker::{NoWitness, Speaker, Witness};
pub use stop::{Limits, SpeechEnd, frames_for_text};
pub use utterance::{Ended, Manner, Utterance};
