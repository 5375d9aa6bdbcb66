//! From a recording to a voice: the networks that only cloning needs.
//!
//! In: a recording, what is said in it if that is known. Out: a [`Voice`] for any number of requests.
//! Invariant: the networks are loaded for the recording and dropped after it, so that a server that clones nothing
//! holds none of them.

use crate::base::{Code, Problem};
use crate::engine::audio::Recording;
use crate::engine::audio::mel::{self, log_mel};
use crate::engine::audio::resample::resample;
use crate::engine::kernels::Kernels;
use crate::engine::nets::codec_encoder::CodecEncoder;
use crate::engine::nets::speaker_encoder::SpeakerEncoder;
use crate::engine::speech::{Frame, Voice};
use crate::engine::team::Team;
use crate::model::speech::SpeechCard;
use crate::model::weights::Weights;

/// The voice of `recording`. With `said`, what is said in it, its manner is continued as well.
///
/// # Errors
/// `request_unsupported` for a model that does not clone; `request_invalid` for a recording too short to have a voice; `memory_short`, or a tensor that cannot be used.
pub fn clone_voice(
    speech: &SpeechCard,
    weights: &Weights,
    kernels: &Kernels,
    team: &Team,
    recording: &Recording,
    said: Option<&str>,
) -> Result<Voice, Problem> {
    let (Some(speaker), Some(codec)) = (&speech.speaker_encoder, &speech.codec_encoder) else {
        return Err(Problem::new(
            Code::RequestUnsupported,
            format!("this model ({}) does not clone voices", speech.variant.as_str()),
            "use a Base model for cloning",
        ));
    };
    if recording.sample_rate == 0 {
        return Err(Problem::new(
            Code::RequestInvalid,
            "the recording has a sample rate of 0",
            "send a WAV file of some seconds of speech",
        ));
    }
    let at = |rate: u32| resample(&recording.samples, recording.sample_rate, rate);
    let spectrum = log_mel(&at(mel::SAMPLE_RATE))?;
    let vector =
        SpeakerEncoder::load(speaker, weights, false, &mut |_| {})?.encode(kernels, team, &spectrum)?;
    let reference = said
        .map(|said| {
            let encoder = CodecEncoder::load(codec, weights, false, &mut |_| {})?;
            let codes = encoder.encode(kernels, team, &at(codec.sample_rate), &mut |_, _, _| {})?;
            // Below 65 536, as the card's check of codebooks has it.
            let frame = |codes: &[u32]| -> Frame { codes.iter().map(|&code| code as u16).collect() };
            let frames: Vec<Frame> = codes.chunks_exact(codec.codebooks).map(frame).collect();
            Ok::<_, Problem>((frames.into(), said.to_owned()))
        })
        .transpose()?;
    Ok(Voice::Cloned {
        vector: vector.into(),
        reference,
    })
}
