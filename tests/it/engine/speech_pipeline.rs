//! The whole speech pipeline: requests in, sound out, against the reference's sound and against itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use edge_deploy::base::Code;
use edge_deploy::engine::audio::Recording;
use edge_deploy::engine::speech::{SpeechEnd, SpeechRequest, Voice};
use edge_deploy::engine::speech_pipeline::{
    Speaking, SpeechEvent, SpeechHandle, SpeechSubmission, SpeechUsage, clone_voice, start,
};
use edge_deploy::engine::team::Team;
use edge_deploy::plan::{Dtype, Plan, StagePlan};

use super::serving::{plan, stage_plan};
use super::speech::{Case, EXACT, Model, assert_near, manner, request};

/// The bound on samples against the reference.
const SAMPLE: f32 = 1e-3;

/// A plan for a golden checkpoint.
pub fn speech_plan(model: &Model, max_seqs: usize, max_queue: usize) -> Plan {
    let stage = |context: usize, prefill_batch: usize| StagePlan {
        isa_cap: EXACT.to_owned(),
        kv_dtype: Dtype::F32,
        threads: 1,
        context,
        prefill_batch,
        ..stage_plan(max_seqs)
    };
    let mut plan = plan(&model.folder, stage(128, 16), max_queue);
    plan.stages = BTreeMap::from([
        ("talker".to_owned(), stage(128, 16)),
        ("code_predictor".to_owned(), stage(16, 2)),
        ("code2wav".to_owned(), stage(6, 4)),
    ]);
    plan.model.sampling.repetition_penalty = model.speech().talker_sampling.repetition_penalty;
    plan
}

pub fn started(model: &Model, max_seqs: usize, max_queue: usize) -> SpeechHandle {
    let plan = speech_plan(model, max_seqs, max_queue);
    start(&plan, model.weights.clone(), &mut |_| {}).unwrap()
}

/// A golden case as a request: its own sampling, its own number of frames.
fn speaking(model: &Model, case: &str) -> Speaking {
    let case = Case::open(model, case);
    let manner = manner(model, &case);
    Speaking {
        talker: Some(manner.talker),
        predictor: Some(manner.predictor),
        max_frames: Some(manner.limits.max_frames),
        ..Speaking::new(request(model, &case))
    }
}

/// The next event, within a time that no working engine needs.
fn next(submission: &mut SpeechSubmission) -> Option<SpeechEvent> {
    let end = Instant::now() + Duration::from_mins(2);
    loop {
        match submission.events.try_recv() {
            Ok(event) => return Some(event),
            Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return None,
            Err(tokio::sync::mpsc::error::TryRecvError::Empty) => {
                assert!(Instant::now() < end, "no event");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// All samples, and how it ended.
fn heard(mut submission: SpeechSubmission) -> (Vec<f32>, Result<(SpeechEnd, SpeechUsage), Code>) {
    let mut all = Vec::new();
    loop {
        match next(&mut submission).expect("a last event") {
            SpeechEvent::Audio { samples, frames } => {
                assert_eq!(samples.len(), frames * 1920);
                all.extend(samples);
            }
            SpeechEvent::Done { end, usage } => return (all, Ok((end, usage))),
            SpeechEvent::Failed(problem) => return (all, Err(problem.code)),
        }
    }
}

#[test]
fn sound_is_that_of_the_reference() {
    for (name, case, golden) in [
        ("custom-voice", "cv_english_nonstreaming", "api_wav_8frames"),
        ("base-wide", "clone_icl_streaming", "clone_icl_streaming_wav"),
    ] {
        let Some(model) = Model::open("engine::speech_pipeline::sound", name) else {
            return;
        };
        let wav = edge_deploy::model::formats::safetensors::File::open(
            &model.folder.join(format!("golden/{golden}.safetensors")),
        )
        .unwrap();
        let tensor = &wav.tensors()[0];
        let bytes = &wav.mapping().bytes()[tensor.offset as usize..][..tensor.bytes as usize];
        let wanted: Vec<f32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&word| f32::from_le_bytes(word))
            .collect();
        let handle = started(&model, 2, 4);
        for first_chunk in [None, Some(3)] {
            let speaking = Speaking {
                max_frames: Some(8),
                first_chunk,
                ..speaking(&model, case)
            };
            let (samples, end) = heard(handle.submit(speaking).unwrap());
            assert_near(golden, &samples, &wanted, SAMPLE);
            let (end, usage) = end.unwrap();
            assert_eq!((end, usage.frames), (SpeechEnd::MaxFrames, 8));
            assert!((usage.audio_ms - 640.0).abs() < 1e-6 && usage.prompt_rows > 10);
        }
        handle.shutdown(Duration::from_secs(5));
        assert_eq!(handle.in_flight(), 0);
    }
}

#[test]
fn many_requests_at_once_each_get_their_own_sound_or_a_clear_end() {
    let Some(model) = Model::open("engine::speech_pipeline::many", "custom-voice") else {
        return;
    };
    let handle = started(&model, 3, 64);
    let cases = [
        "cv_english_nonstreaming",
        "cv_dialect_auto_streaming",
        "cv_stops_on_eos",
    ];
    let alone: Vec<Vec<f32>> = cases
        .iter()
        .map(|case| heard(handle.submit(speaking(&model, case)).unwrap()).0)
        .collect();
    let mut kept = Vec::new();
    for round in 0..24 {
        let submission = handle.submit(speaking(&model, cases[round % 3])).unwrap();
        match round % 4 {
            // Nobody listens any more.
            1 => drop(submission),
            2 => {
                submission.cancel();
                kept.push((round, submission));
            }
            _ => kept.push((round, submission)),
        }
        let empty = Speaking::new(SpeechRequest {
            text: "  ".to_owned(),
            voice: Voice::Default,
            language: "auto".to_owned(),
            instructions: None,
            text_at_once: None,
        });
        assert_eq!(handle.submit(empty).unwrap_err().code, Code::RequestInvalid);
    }
    for (round, submission) in kept {
        let (samples, end) = heard(submission);
        let (end, _) = end.unwrap();
        if round % 4 == 2 {
            assert_eq!(end, SpeechEnd::Cancelled, "{round}");
            continue;
        }
        let wanted = &alone[round % 3];
        assert_eq!(samples.len(), wanted.len(), "{round}");
        assert_near("in company", &samples, wanted, 1e-5);
    }
    // The dropped ones are noticed at the next frame.
    let end = Instant::now() + Duration::from_mins(1);
    while handle.in_flight() > 0 {
        assert!(Instant::now() < end, "{} requests are stuck", handle.in_flight());
        std::thread::sleep(Duration::from_millis(1));
    }
    // Every slot and every state is free again: as many run at once as before.
    let last: Vec<SpeechSubmission> = (0..3)
        .map(|at| handle.submit(speaking(&model, cases[at])).unwrap())
        .collect();
    for (submission, wanted) in last.into_iter().zip(&alone) {
        assert_near("afterwards", &heard(submission).0, wanted, 1e-5);
    }
}

#[test]
fn what_cannot_be_said_is_refused_with_numbers_and_the_queue_has_an_end() {
    let Some(model) = Model::open("engine::speech_pipeline::refused", "custom-voice") else {
        return;
    };
    let handle = started(&model, 1, 1);
    let usual = || speaking(&model, "cv_english_nonstreaming");
    let refused = |speaking: Speaking| handle.submit(speaking).unwrap_err();
    let long = refused(Speaking {
        max_frames: Some(102),
        ..usual()
    });
    assert_eq!(long.code, Code::ContextOverflow);
    assert_eq!(long.details.unwrap()["room"], 101);
    let crossed = refused(Speaking {
        min_frames: 9,
        max_frames: Some(8),
        ..usual()
    });
    assert_eq!(crossed.code, Code::RequestInvalid);
    let mut nobody = usual();
    nobody.request.voice = Voice::Named("nobody".to_owned());
    assert!(refused(nobody).remedy.contains("vivian"));

    let slow = || Speaking {
        min_frames: 101,
        max_frames: Some(101),
        ..usual()
    };
    let running = handle.submit(slow()).unwrap();
    let waiting = handle.submit(slow()).unwrap();
    assert_eq!(refused(usual()).code, Code::QueueFull);
    waiting.cancel();
    let (samples, end) = heard(waiting);
    assert_eq!((samples.len(), end.unwrap().0), (0, SpeechEnd::Cancelled));
    let (samples, end) = heard(running);
    assert_eq!(
        (samples.len(), end.unwrap().0),
        (101 * 1920, SpeechEnd::MaxFrames)
    );
}

#[test]
fn a_stop_ends_everything_with_a_last_event() {
    let Some(model) = Model::open("engine::speech_pipeline::stop", "custom-voice") else {
        return;
    };
    let handle = started(&model, 1, 4);
    let long = || Speaking {
        min_frames: 101,
        max_frames: Some(101),
        ..speaking(&model, "cv_english_nonstreaming")
    };
    let mut running = handle.submit(long()).unwrap();
    let waiting = handle.submit(long()).unwrap();
    assert!(matches!(next(&mut running), Some(SpeechEvent::Audio { .. })));
    handle.shutdown(Duration::ZERO);
    assert_eq!(heard(waiting).1.unwrap_err(), Code::NotReady);
    // It may just have been done.
    assert!(matches!(
        heard(running).1,
        Err(Code::NotReady) | Ok((SpeechEnd::MaxFrames, _))
    ));
    assert_eq!(handle.submit(long()).unwrap_err().code, Code::NotReady);
    assert!(handle.effective().is_err());
    assert_eq!(handle.in_flight(), 0);
}

#[test]
fn a_voice_from_a_recording_is_that_of_the_reference() {
    let Some(model) = Model::open("engine::speech_pipeline::recording", "base-wide") else {
        return;
    };
    let golden = Case::open(&model, "reference_audio");
    let recording = Recording {
        sample_rate: 24_000,
        samples: golden.f32s("ref_wav").unwrap(),
    };
    let kernels = edge_deploy::engine::kernels::select(EXACT).unwrap();
    let team = Team::single().unwrap();
    let said = "The quick brown fox.";
    let cloned = clone_voice(
        model.speech(),
        &model.weights,
        kernels,
        &team,
        &recording,
        Some(said),
    )
    .unwrap();
    let Voice::Cloned { vector, reference } = &cloned else {
        panic!("{cloned:?}");
    };
    assert_near("vector", vector, &golden.f32s("speaker_embedding").unwrap(), 1e-3);
    let Voice::Cloned {
        reference: Some((frames, words)),
        ..
    } = request(&model, &Case::open(&model, "clone_icl_streaming")).voice
    else {
        panic!("the case continues a recording");
    };
    let (ours, our_words) = reference.as_ref().unwrap();
    assert_eq!((ours, our_words), (&frames, &words));
    // Without what is said in it, only the voice is taken.
    let alone = clone_voice(model.speech(), &model.weights, kernels, &team, &recording, None).unwrap();
    assert!(matches!(alone, Voice::Cloned { reference: None, .. }));
    // From the recording to sound: as many frames as asked for.
    let handle = started(&model, 1, 1);
    let mut speaking = speaking(&model, "clone_icl_streaming");
    speaking.request.voice = cloned;
    let (samples, end) = heard(handle.submit(speaking).unwrap());
    assert_eq!((samples.len(), end.unwrap().1.frames), (8 * 1920, 8));
    // A model with named voices has no networks for it.
    let Some(named) = Model::open("engine::speech_pipeline::recording", "custom-voice") else {
        return;
    };
    let refused = clone_voice(named.speech(), &named.weights, kernels, &team, &recording, None);
    assert_eq!(refused.unwrap_err().code, Code::RequestUnsupported);
}
