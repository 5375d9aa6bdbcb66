//! `say`: a text spoken by a speech model, into a WAV file.
//!
//! In: a text, a voice, the flags of planning. Out: a file; counts on stderr, or all of it as JSON.
//! Invariant: the same plan and pipeline as the server's; with the same seed, the same sound.

use super::args::{Listen, SayArgs};
use super::run::prompt;
use super::{Outcome, print, select};
use crate::base::{Code, ExitCode, Place, Problem};
use crate::engine::audio::wav;
use crate::engine::speech::{SpeechEnd, SpeechRequest, Voice};
use crate::engine::speech_pipeline::{Speaking, SpeechEvent, SpeechHandle, SpeechUsage};
use crate::fetch::Cache;
use crate::launch;

/// What was said.
struct Said {
    samples: Vec<f32>,
    end: SpeechEnd,
    usage: SpeechUsage,
}

pub(super) fn run(args: &SayArgs) -> Outcome {
    let wanted = select::wanted(&args.select, &Listen::default())?;
    let text = prompt(&args.text)?;
    let mut bar = print::Bar::quiet();
    let decided = launch::fetch_and_decide(&wanted, &Cache::open()?, &mut bar)?;
    let voice = match (&args.clone, &args.voice) {
        (Some(file), _) => launch::clone_voice(&decided, file, args.clone_text.as_deref())?,
        (None, Some(name)) => Voice::Named(name.clone()),
        (None, None) => Voice::Default,
    };
    let ready = launch::start_speech(decided, &mut bar)?;
    drop(bar);
    print::warnings(&ready.decided.plan.warnings);
    print::warnings(&ready.differences);
    let plan = &ready.decided.plan;
    let said = speak(&ready.handle, speaking(args, text, voice));
    ready
        .handle
        .shutdown(std::time::Duration::from_millis(plan.deadlines.shutdown_ms.0));
    let said = said?;
    let bytes = wav::file(ready.handle.facts().sample_rate, &said.samples)?;
    std::fs::write(&args.out, &bytes).map_err(|error| {
        Problem::new(
            Code::FileAccess,
            format!("`{}` cannot be written: {error}", args.out.display()),
            "give another path with -o",
        )
        .at(Place::of(args.out.display().to_string()))
    })?;
    if args.output.json {
        print::json(&serde_json::json!({
            "model": plan.model.name,
            "digest": plan.digest,
            "file": args.out,
            "sample_rate": ready.handle.facts().sample_rate,
            "samples": said.samples.len(),
            "end": said.end,
            "usage": said.usage,
            "differences": ready.differences,
        }))?;
    } else {
        print::note(&counts(&said, args));
    }
    Ok(ExitCode::Ok)
}

fn speaking(args: &SayArgs, text: String, voice: Voice) -> Speaking {
    let request = SpeechRequest {
        text,
        voice,
        language: args.language.clone(),
        instructions: args.instructions.clone(),
        text_at_once: args.stream_text.then_some(false),
    };
    Speaking {
        seed: args.seed,
        min_frames: args.min_frames,
        max_frames: args.max_frames,
        ..Speaking::new(request)
    }
}

/// Submits and waits for all of the sound.
fn speak(handle: &SpeechHandle, speaking: Speaking) -> Result<Said, Problem> {
    let mut submission = handle.submit(speaking)?;
    let mut all = Vec::new();
    while let Some(event) = submission.events.blocking_recv() {
        match event {
            SpeechEvent::Audio { samples, .. } => all.extend(samples),
            SpeechEvent::Done { end, usage } => {
                return Ok(Said {
                    samples: all,
                    end,
                    usage,
                });
            }
            SpeechEvent::Failed(problem) => return Err(problem),
        }
    }
    Err(Problem::new(
        Code::StageFailed,
        "the engine ended without finishing the sound",
        "run it again with `--log info`, and report this with the log",
    ))
}

/// One line of counts and rates.
fn counts(said: &Said, args: &SayArgs) -> String {
    let usage = &said.usage;
    format!(
        "`{}`: {:.2} s of sound ({} frames) of {} tokens, ended by {}; first sound after {:.0} ms, {:.2} s of work for \
         1 s of sound",
        args.out.display(),
        usage.audio_ms / 1e3,
        usage.frames,
        usage.text_tokens,
        match said.end {
            SpeechEnd::End => "the model",
            SpeechEnd::MaxFrames => "the limit of frames",
            SpeechEnd::Silence => "silence",
            SpeechEnd::Repetition => "repetition",
            SpeechEnd::Cancelled => "cancellation",
        },
        usage.first_audio_ms,
        usage.real_time_factor,
    )
}
