//! The sound stage on its thread: several streams at once, each as if it were alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use edge_deploy::base::{Bytes, Code, CpuSet};
use edge_deploy::engine::kernels;
use edge_deploy::engine::nets::codec_decoder::{CodecDecoder, CodecState, CodecWorkspace};
use edge_deploy::engine::nn::conv::Held;
use edge_deploy::engine::stages::Code2wavStage;
use edge_deploy::engine::stages::code2wav::{Push, SoundEvent, SoundLine, SoundOrder};
use edge_deploy::engine::team::Team;
use edge_deploy::model::weight_path::WeightPath;
use edge_deploy::model::{self, ModelCard, Weights};
use edge_deploy::pacing::Chunking;
use edge_deploy::plan::{Dtype, EffectiveStage, StagePlan};

use super::codec::{Golden, difference};
use crate::support::shared;

fn plan(weight_path: &str) -> StagePlan {
    StagePlan {
        threads: 2,
        cpus: CpuSet::new(),
        pin: false,
        confine: false,
        isa_cap: "best".to_owned(),
        dtype: Dtype::F32,
        weight_path: weight_path.to_owned(),
        kv_dtype: Dtype::F32,
        context: 72,
        max_seqs: 2,
        kv_bytes: Bytes(0),
        kv_block: 64,
        prefill_batch: 4,
        huge_pages: false,
    }
}

struct Running {
    line: SoundLine,
    effective: EffectiveStage,
    state_bytes: Bytes,
    thread: std::thread::JoinHandle<()>,
}

fn start(folder: &Path, weight_path: &str) -> Running {
    let folder = folder.to_owned();
    let plan = plan(weight_path);
    let (report, reports) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let card = model::inspect(&folder).unwrap();
        let weights = Weights::open(&card).unwrap();
        let mut stage = Code2wavStage::build("code2wav", &plan, &card, &weights, &mut |_| {}).unwrap();
        let line = stage.line(8, 4);
        report
            .send((line.clone(), stage.effective().unwrap(), stage.state_bytes()))
            .unwrap();
        stage.run(&line);
    });
    let (line, effective, state_bytes) = reports.recv().unwrap();
    Running {
        line,
        effective,
        state_bytes,
        thread,
    }
}

impl Running {
    fn stop(self) {
        self.line.close();
        self.thread.join().unwrap();
    }

    /// Speaks `codes` and gives back what was heard, and the sizes of its chunks.
    fn say(&self, codes: &[u32], sizes: &[usize]) -> (Vec<f32>, Vec<usize>) {
        let order = SoundOrder {
            chunking: Chunking::Ramp {
                sizes: sizes.to_vec(),
            },
            first_chunk: None,
            unheard_frames: 0,
            began: Instant::now(),
            silent_frames: Arc::new(AtomicUsize::new(0)),
        };
        let (source, mut events) = self.line.open(order).unwrap();
        std::thread::scope(|scope| {
            let listening = scope.spawn(move || {
                let (mut pcm, mut frames) = (Vec::new(), Vec::new());
                loop {
                    match events.blocking_recv().unwrap() {
                        SoundEvent::Chunk { pcm: part, frames: n } => {
                            pcm.extend(part);
                            frames.push(n);
                        }
                        SoundEvent::Done { heard } => {
                            assert_eq!(heard.unwrap().chunks, frames.len());
                            return (pcm, frames);
                        }
                        SoundEvent::Failed(problem) => panic!("{problem}"),
                    }
                }
            });
            for frame in codes.chunks(16) {
                let frame: Vec<u16> = frame.iter().map(|&code| code as u16).collect();
                loop {
                    match source.push(&frame) {
                        Push::Taken => break,
                        Push::Full => self.line.wait_for_room(Duration::from_secs(10)),
                        Push::Gone => panic!("gone"),
                    }
                }
            }
            source.finish();
            listening.join().unwrap()
        })
    }
}

fn whole(card: &ModelCard, weights: &Weights, path: WeightPath, codes: &[u32]) -> Vec<f32> {
    let held = Held {
        path,
        huge_pages: false,
    };
    let spec = &card.speech.as_ref().unwrap().codec;
    let decoder = CodecDecoder::load(spec, weights, held, &mut |_| {}).unwrap();
    let mut state = CodecState::new(&decoder).unwrap();
    let mut workspace = CodecWorkspace::default();
    let mut pcm = Vec::new();
    let kernels = kernels::select("best").unwrap();
    let team = Team::single().unwrap();
    decoder
        .decode(kernels, &team, &mut state, &mut workspace, codes, &mut pcm)
        .unwrap();
    pcm
}

#[test]
fn streams_at_once_are_each_as_if_alone_and_slots_are_used_again() {
    let Some(root) = shared("engine::code2wav::streams_at_once", "golden/qwen3-tts") else {
        return;
    };
    let folder = root.join("custom-voice");
    let golden = Golden::open(&folder.join("golden/codec_chunks.safetensors"));
    let codes = &golden.codes["codes"];
    let card = model::inspect(&folder).unwrap();
    let weights = Weights::open(&card).unwrap();
    let wanted = whole(&card, &weights, WeightPath::Native, codes);
    let running = start(&folder, "native");
    assert_eq!(running.effective.weight_path, "native");
    assert_eq!(
        running.state_bytes.0,
        2 * card.speech.as_ref().unwrap().codec.stream_bytes()
    );
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let one = scope.spawn(|| running.say(codes, &[1, 2, 3, 6]));
            let two = scope.spawn(|| running.say(&codes[..37 * 16], &[5]));
            let (pcm, sizes) = one.join().unwrap();
            assert_eq!(pcm, wanted);
            assert_eq!(sizes[..4], [1, 2, 3, 6]);
            let (pcm, sizes) = two.join().unwrap();
            assert_eq!(pcm, wanted[..37 * 1920]);
            assert_eq!(sizes, [5, 5, 5, 5, 5, 5, 5, 2]);
        });
        assert_eq!(running.line.streams(), 0);
    }
    running.stop();
}

#[test]
fn a_wild_code_fails_its_stream_and_the_next_one_plays() {
    let Some(root) = shared("engine::code2wav::a_wild_code", "golden/qwen3-tts") else {
        return;
    };
    let folder = root.join("custom-voice");
    let golden = Golden::open(&folder.join("golden/codec_20frames.safetensors"));
    let running = start(&folder, "native");
    let order = SoundOrder {
        chunking: Chunking::Fixed { frames: 1 },
        first_chunk: None,
        unheard_frames: 0,
        began: Instant::now(),
        silent_frames: Arc::default(),
    };
    let (source, mut events) = running.line.open(order).unwrap();
    source.push(&[60_000; 16]);
    match events.blocking_recv().unwrap() {
        SoundEvent::Failed(problem) => assert_eq!(problem.code, Code::Internal),
        other => panic!("{other:?}"),
    }
    assert_eq!(source.push(&[0; 16]), Push::Gone);
    let (pcm, _) = running.say(&golden.codes["codes"], &[4]);
    assert!(difference(&pcm, golden.values("wav_full")) <= 1e-3);
    running.stop();
}

#[test]
fn the_weight_path_changes_what_is_held_and_heard() {
    let Some(root) = shared("engine::code2wav::the_weight_path", "golden/qwen3-tts") else {
        return;
    };
    let folder = root.join("custom-voice");
    let golden = Golden::open(&folder.join("golden/codec_20frames.safetensors"));
    let codes = &golden.codes["codes"];
    let exact = start(&folder, "native");
    let rounded = start(&folder, "bf16");
    let held =
        |running: &Running, format: &str| running.effective.weight_bytes_by_format.contains_key(format);
    assert!(held(&exact, "F32 (R16)") && !held(&exact, "BF16 (R16)"));
    assert!(held(&rounded, "BF16 (R16)"));
    let (a, b) = (exact.say(codes, &[4]).0, rounded.say(codes, &[4]).0);
    assert_ne!(a, b);
    let power: f32 = a.iter().map(|x| x * x).sum();
    let noise: f32 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
    assert!(10.0 * (power / noise).log10() > 15.0);
    exact.stop();
    rounded.stop();

    let card = model::inspect(&folder).unwrap();
    let weights = Weights::open(&card).unwrap();
    let refused = Code2wavStage::build("code2wav", &plan("w3"), &card, &weights, &mut |_| {});
    let problem = refused.unwrap_err();
    assert_eq!(problem.code, Code::PinUnmet);
    assert!(problem.what.contains("stages.code2wav.weight_path"), "{problem}");
}
