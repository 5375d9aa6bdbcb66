//! The sound networks against vectors computed by the reference implementation, and streams against the whole.

use std::collections::HashMap;
use std::path::Path;

use edge_deploy::base::{CpuSet, Problem};
use edge_deploy::engine::audio::mel::{self, log_mel};
use edge_deploy::engine::kernels::{self, Kernels};
use edge_deploy::engine::nets::codec_decoder::{CodecDecoder, CodecState, CodecWorkspace};
use edge_deploy::engine::nets::codec_encoder::CodecEncoder;
use edge_deploy::engine::nets::speaker_encoder::SpeakerEncoder;
use edge_deploy::engine::nn::conv::Held;
use edge_deploy::engine::team::Team;
use edge_deploy::model::formats::safetensors::File;
use edge_deploy::model::weight_path::WeightPath;
use edge_deploy::model::{self, ModelCard, Weights};

use crate::support::shared;

const CHECKPOINTS: &str = "golden/qwen3-tts";

/// Tensors of a golden file: values and shape.
pub struct Golden {
    pub floats: HashMap<String, (Vec<f32>, Vec<usize>)>,
    pub codes: HashMap<String, Vec<u32>>,
}

impl Golden {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let bytes = file.mapping().bytes();
        let mut golden = Self {
            floats: HashMap::new(),
            codes: HashMap::new(),
        };
        for tensor in file.tensors() {
            let data = &bytes[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize];
            let words = data.as_chunks::<4>().0.iter();
            match tensor.dtype.as_str() {
                "F32" => {
                    let shape = tensor.shape.iter().map(|&n| n as usize).collect();
                    let values = words.map(|&b| f32::from_le_bytes(b)).collect();
                    golden.floats.insert(tensor.name.clone(), (values, shape));
                }
                "I32" => {
                    let values = words.map(|&b| i32::from_le_bytes(b) as u32).collect();
                    golden.codes.insert(tensor.name.clone(), values);
                }
                other => panic!("{}: {other}", tensor.name),
            }
        }
        golden
    }

    pub fn values(&self, name: &str) -> &[f32] {
        &self.floats[name].0
    }

    /// A `[channels, time]` tensor as rows of channels.
    pub fn rows(&self, name: &str) -> Vec<f32> {
        let (values, shape) = &self.floats[name];
        let [channels, time] = shape[..] else {
            panic!("{name} has shape {shape:?}");
        };
        (0..time)
            .flat_map(|t| (0..channels).map(move |c| values[c * time + t]))
            .collect()
    }
}

pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

struct Loaded {
    card: ModelCard,
    weights: Weights,
}

impl Loaded {
    fn open(path: &Path) -> Self {
        let card = model::inspect(path).unwrap();
        let weights = Weights::open(&card).unwrap();
        Self { card, weights }
    }

    fn decoder(&self, path: WeightPath) -> CodecDecoder {
        let held = Held {
            path,
            huge_pages: false,
        };
        let spec = &self.card.speech.as_ref().unwrap().codec;
        CodecDecoder::load(spec, &self.weights, held, &mut |_| {}).unwrap()
    }
}

/// One stream, decoded part by part.
struct Stream<'d> {
    decoder: &'d CodecDecoder,
    kernels: &'static Kernels,
    team: Team,
    state: CodecState,
    workspace: CodecWorkspace,
}

impl<'d> Stream<'d> {
    fn new(decoder: &'d CodecDecoder, cap: &str, threads: usize) -> Self {
        Self {
            decoder,
            kernels: kernels::select(cap).unwrap(),
            team: Team::new("codec", &CpuSet::new(), threads, false).unwrap(),
            state: CodecState::new(decoder).unwrap(),
            workspace: CodecWorkspace::default(),
        }
    }

    fn decode(&mut self, codes: &[u32]) -> Result<Vec<f32>, Problem> {
        let mut pcm = Vec::new();
        self.decoder.decode(
            self.kernels,
            &self.team,
            &mut self.state,
            &mut self.workspace,
            codes,
            &mut pcm,
        )?;
        Ok(pcm)
    }

    /// Frames in parts of these sizes, in turn.
    fn in_parts(&mut self, codes: &[u32], parts: &[usize]) -> Vec<f32> {
        let books = self.decoder.spec().codebooks;
        let mut pcm = Vec::new();
        let mut rest = codes;
        for part in parts.iter().cycle() {
            if rest.is_empty() {
                return pcm;
            }
            let (now, later) = rest.split_at((part * books).min(rest.len()));
            pcm.extend(self.decode(now).unwrap());
            rest = later;
        }
        pcm
    }
}

#[test]
fn every_stage_of_the_decoder_meets_the_reference() {
    let Some(root) = shared("engine::codec::every_stage", CHECKPOINTS) else {
        return;
    };
    let loaded = Loaded::open(&root.join("custom-voice"));
    let golden = Golden::open(&root.join("custom-voice/golden/codec_20frames.safetensors"));
    let decoder = loaded.decoder(WeightPath::Native);
    for cap in kernels::available() {
        let mut stream = Stream::new(&decoder, cap, 2);
        let mut stages: HashMap<&'static str, Vec<f32>> = HashMap::new();
        let mut pcm = Vec::new();
        decoder
            .decode_observed(
                stream.kernels,
                &stream.team,
                &mut stream.state,
                &mut stream.workspace,
                &golden.codes["codes"],
                &mut pcm,
                &mut |name, rows, _| stages.entry(name).or_default().extend_from_slice(rows),
            )
            .unwrap();
        for name in [
            "rvq_first",
            "rvq_rest",
            "quantized",
            "pre_conv",
            "pre_transformer",
            "upsample0_convt",
            "upsample0_convnext",
            "upsample1_convt",
            "upsample1_convnext",
            "decoder0_conv",
            "decoder1_convt",
            "decoder1_block",
        ] {
            let wanted = golden.rows(name);
            let largest = wanted.iter().fold(1f32, |most, x| most.max(x.abs()));
            let off = difference(&stages[name], &wanted) / largest;
            assert!(off <= 2e-5, "{cap} {name}: {off}");
        }
        let off = difference(&pcm, golden.values("wav_full"));
        assert!(off <= 1e-3, "{cap}: samples off by {off}");
        // Far closer than asked: what is left is the order of sums.
        assert!(off <= 1e-4, "{cap}: samples off by {off}");
    }
}

/// The reference cuts long speech into parts decoded afresh with some frames before them; doing the same must give
/// the same.
#[test]
fn decoding_afresh_with_context_meets_the_reference_too() {
    let Some(root) = shared("engine::codec::decoding_afresh", CHECKPOINTS) else {
        return;
    };
    let loaded = Loaded::open(&root.join("custom-voice"));
    let decoder = loaded.decoder(WeightPath::Native);
    let books = decoder.spec().codebooks;
    let afresh = |codes: &[u32], chunk: usize, context: usize| {
        let mut stream = Stream::new(&decoder, "best", 1);
        let frames = codes.len() / books;
        let mut pcm = Vec::new();
        for start in (0..frames).step_by(chunk) {
            let seen = if start > context { context } else { start };
            stream.state.reset();
            let part = &codes[(start - seen) * books..(start + chunk).min(frames) * books];
            let samples = stream.decode(part).unwrap();
            pcm.extend_from_slice(&samples[seen * decoder.spec().samples_per_frame..]);
        }
        pcm
    };
    let golden = Golden::open(&root.join("custom-voice/golden/codec_20frames.safetensors"));
    let off = difference(
        &afresh(&golden.codes["codes"], 7, 4),
        golden.values("wav_chunk7_ctx4"),
    );
    assert!(off <= 1e-3, "{off}");

    let golden = Golden::open(&root.join("custom-voice/golden/codec_chunks.safetensors"));
    let codes = &golden.codes["codes"];
    let thinned = |pcm: &[f32]| -> Vec<f32> { pcm.iter().copied().step_by(37).collect() };
    let whole = Stream::new(&decoder, "best", 2).decode(codes).unwrap();
    let cut = afresh(codes, 25, 10);
    for (pcm, name) in [(&whole, "full_stride37"), (&cut, "chunked_stride37")] {
        let off = difference(&thinned(pcm), golden.values(name));
        assert!(off <= 1e-3, "{name}: {off}");
    }
    let by_frame: Vec<f32> = whole
        .chunks(1920)
        .zip(cut.chunks(1920))
        .map(|(a, b)| difference(a, b))
        .collect();
    let off = difference(&by_frame, golden.values("frame_max_abs_diff"));
    assert!(off <= 1e-3, "{off}");
}

#[test]
fn a_stream_cut_anyhow_is_the_whole_bit_for_bit() {
    let Some(root) = shared("engine::codec::a_stream_cut_anyhow", CHECKPOINTS) else {
        return;
    };
    for checkpoint in ["custom-voice", "base-wide"] {
        let loaded = Loaded::open(&root.join(checkpoint));
        let golden = Golden::open(&root.join("custom-voice/golden/codec_chunks.safetensors"));
        let codes = &golden.codes["codes"];
        for path in WeightPath::ALL {
            let decoder = loaded.decoder(path);
            let whole = Stream::new(&decoder, "best", 1).decode(codes).unwrap();
            assert_eq!(whole.len(), 60 * 1920);
            for parts in [&[1][..], &[2, 1, 7], &[25], &[1, 2, 3, 6, 12, 25], &[59, 1]] {
                for threads in [1, 3] {
                    let mut stream = Stream::new(&decoder, "best", threads);
                    assert_eq!(
                        stream.in_parts(codes, parts),
                        whole,
                        "{checkpoint} {path:?} {parts:?}"
                    );
                    assert_eq!(stream.state.frames(), 60);
                }
            }
        }
    }
}

#[test]
fn a_stream_s_state_has_one_size_and_starts_anew_after_a_reset() {
    let Some(root) = shared("engine::codec::a_stream_s_state", CHECKPOINTS) else {
        return;
    };
    let loaded = Loaded::open(&root.join("base-wide"));
    let decoder = loaded.decoder(WeightPath::Native);
    let golden = Golden::open(&root.join("custom-voice/golden/codec_20frames.safetensors"));
    let codes = &golden.codes["codes"];
    let mut stream = Stream::new(&decoder, "best", 1);
    let bytes = stream.state.bytes();
    // What planning counts is what is held.
    assert_eq!(bytes.0, decoder.spec().stream_bytes());
    let first = stream.decode(codes).unwrap();
    assert_ne!(first, stream.decode(codes).unwrap());
    stream.state.reset();
    assert_eq!(first, stream.decode(codes).unwrap());
    assert_eq!(bytes, stream.state.bytes());
    // What is refused leaves the stream as it was.
    let before = stream.state.frames();
    assert!(stream.decode(&codes[..17]).is_err());
    let wild = vec![decoder.spec().codebook_size as u32; 16];
    assert!(stream.decode(&wild).is_err());
    assert_eq!(stream.state.frames(), before);
    assert!(stream.decode(&[]).unwrap().is_empty());
}

#[test]
fn a_recording_gives_the_reference_s_spectrum_voice_and_codes() {
    let Some(root) = shared("engine::codec::a_recording", CHECKPOINTS) else {
        return;
    };
    let loaded = Loaded::open(&root.join("base-wide"));
    let speech = loaded.card.speech.as_ref().unwrap();
    let golden = Golden::open(&root.join("base-wide/golden/reference_audio.safetensors"));
    let samples = golden.values("ref_wav");

    let spectrum = log_mel(samples).unwrap();
    let off = difference(&spectrum, &golden.rows("mel"));
    assert!(off <= 1e-3, "mel off by {off}");
    assert_eq!(spectrum.len() / mel::BANDS, 47);

    let encoder = SpeakerEncoder::load(
        speech.speaker_encoder.as_ref().unwrap(),
        &loaded.weights,
        false,
        &mut |_| {},
    )
    .unwrap();
    let codec = CodecEncoder::load(
        speech.codec_encoder.as_ref().unwrap(),
        &loaded.weights,
        false,
        &mut |_| {},
    )
    .unwrap();
    for threads in [1, 2] {
        let kernels = kernels::select("best").unwrap();
        let team = Team::new("voice", &CpuSet::new(), threads, false).unwrap();
        let voice = encoder.encode(kernels, &team, &spectrum).unwrap();
        let off = difference(&voice, golden.values("speaker_embedding"));
        assert!(off <= 2e-4, "voice off by {off}");

        let mut stages: HashMap<&'static str, Vec<f32>> = HashMap::new();
        let codes = codec
            .encode(kernels, &team, samples, &mut |name, rows, _| {
                stages.insert(name, rows.to_vec());
            })
            .unwrap();
        for name in ["enc_seanet", "enc_transformer", "enc_downsample"] {
            let off = difference(&stages[name], &golden.rows(name));
            assert!(off <= 2e-4, "{name} off by {off}");
        }
        assert_eq!(codes, golden.codes["ref_codes"]);
        assert!(encoder.encode(kernels, &team, &spectrum[..2 * 128]).is_err());
        assert!(codec.encode(kernels, &team, &[], &mut |_, _, _| {}).is_err());
    }
}

/// The encoder works part by part; a recording longer than a part must not show the seams.
#[test]
fn a_long_recording_is_encoded_without_seams() {
    let Some(root) = shared("engine::codec::a_long_recording", CHECKPOINTS) else {
        return;
    };
    let loaded = Loaded::open(&root.join("base-wide"));
    let spec = loaded
        .card
        .speech
        .as_ref()
        .unwrap()
        .codec_encoder
        .clone()
        .unwrap();
    let codec = CodecEncoder::load(&spec, &loaded.weights, false, &mut |_| {}).unwrap();
    let golden = Golden::open(&root.join("base-wide/golden/reference_audio.safetensors"));
    let kernels = kernels::select("best").unwrap();
    let team = Team::single().unwrap();
    let rows = |samples: &[f32]| {
        let mut found = Vec::new();
        codec
            .encode(kernels, &team, samples, &mut |name, rows, _| {
                if name == "enc_seanet" {
                    found = rows.to_vec();
                }
            })
            .unwrap();
        found
    };
    // Parts have 25 rows of 960 samples: behind 20 rows of silence the recording lies across the first seam.
    let mut long = vec![0.0; 20 * 960];
    long.extend_from_slice(golden.values("ref_wav"));
    let shifted = rows(&long);
    let mut short = vec![0.0; 960 * 5];
    short.extend_from_slice(golden.values("ref_wav"));
    let near = rows(&short);
    let tail = |all: &[f32]| all[all.len() - 13 * spec.hidden..].to_vec();
    assert_eq!(tail(&shifted), tail(&near));
}
