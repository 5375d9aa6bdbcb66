//! Where the codec's decoder spends its time, on the published shapes with random weights. Not a check: run it with
//! `cargo test --release --test it codec_speed -- --ignored --nocapture`.

#![allow(
    clippy::print_stdout,
    reason = "a table for whoever asked for it; nothing else runs this"
)]

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use edge_deploy::base::CpuSet;
use edge_deploy::engine::kernels;
use edge_deploy::engine::nets::codec_decoder::{CodecDecoder, CodecState, CodecWorkspace};
use edge_deploy::engine::nn::conv::Held;
use edge_deploy::engine::team::Team;
use edge_deploy::model::weight_path::WeightPath;
use edge_deploy::model::{self, Weights};
use serde_json::{Value, json};

use crate::support::speech::{Release, Shapes};

const CALLS: usize = 12;

struct Random(u64);

impl Random {
    /// Mean 0, deviation 1, nearly normal.
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            sum += (self.0 >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        }
        sum * 1.732
    }
}

/// Deviation and mean of a tensor's values: as in a network at the start of its training.
fn kind(name: &str, shape: &[u64]) -> (f32, f32) {
    let ends = |end: &str| name.ends_with(end);
    if ends("cluster_usage") || ends("norm.weight") {
        (0.0, 1.0)
    } else if ends(".scale") || ends("gamma") {
        (0.0, 0.2)
    } else if ends("alpha") || ends("beta") {
        (0.3, 0.0)
    } else if ends("bias") {
        (0.02, 0.0)
    } else if ends("embedding_sum") {
        (1.0, 0.0)
    } else {
        let transposed = ends("block.1.conv.weight") || ends(".0.conv.weight") && name.contains("upsample");
        let fan = if transposed {
            shape[0] * 2
        } else {
            shape[1..].iter().product()
        };
        // Residual branches are kept small, as training does.
        let factor = if ends("conv2.conv.weight") { 0.3 } else { 1.0 };
        (factor / (fan as f32).sqrt(), 0.0)
    }
}

fn write_random(path: &Path, shapes: &Shapes) {
    let mut header = serde_json::Map::new();
    let mut at = 0u64;
    for (name, shape) in shapes {
        let end = at + shape.iter().product::<u64>() * 4;
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut random = Random(0x1234_5678_9abc_def1);
    for (name, shape) in shapes {
        let (deviation, mean) = kind(name, shape);
        for _ in 0..shape.iter().product::<u64>() {
            let value = mean + deviation * random.next();
            file.write_all(&value.to_le_bytes()).unwrap();
        }
    }
    file.flush().unwrap();
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "prints times of the published shapes; needs 1 GiB of disk and of memory"]
fn where_the_codec_spends_its_time() {
    let release = Release::new("0.6B-CustomVoice");
    let folder = release.write();
    let decoder_only: Shapes = release
        .codec_shapes
        .iter()
        .filter(|(name, _)| name.starts_with("decoder."))
        .map(|(name, shape)| (name.clone(), shape.clone()))
        .collect();
    write_random(
        &folder.path().join("speech_tokenizer/model.safetensors"),
        &decoder_only,
    );
    let card = model::inspect(folder.path()).unwrap();
    let weights = Weights::open(&card).unwrap();
    let spec = &card.speech.as_ref().unwrap().codec;
    let kernels = kernels::select("best").unwrap();
    let mut random = Random(42);
    let codes: Vec<u32> = (0..CALLS * 4 * spec.codebooks)
        .map(|_| (random.next().to_bits() >> 5) % spec.codebook_size as u32)
        .collect();
    let mut exact: Option<Vec<f32>> = None;
    for path in WeightPath::ALL {
        let held = Held {
            path,
            huge_pages: true,
        };
        let decoder = CodecDecoder::load(spec, &weights, held, &mut |_| {}).unwrap();
        for (threads, frames) in [(1, 1), (1, 4), (2, 1)] {
            let team = Team::new("codec", &CpuSet::new(), threads, false).unwrap();
            let mut state = CodecState::new(&decoder).unwrap();
            let mut workspace = CodecWorkspace::default();
            let mut stages: Vec<&'static str> = Vec::new();
            let mut times: HashMap<&'static str, Vec<Duration>> = HashMap::new();
            let mut whole = Vec::new();
            let mut pcm = Vec::new();
            for codes in codes[..CALLS * frames * spec.codebooks].chunks(frames * spec.codebooks) {
                let began = Instant::now();
                let mut last = began;
                let mut call: HashMap<&'static str, Duration> = HashMap::new();
                decoder
                    .decode_observed(
                        kernels,
                        &team,
                        &mut state,
                        &mut workspace,
                        codes,
                        &mut pcm,
                        &mut |name, _, _| {
                            if !stages.contains(&name) {
                                stages.push(name);
                            }
                            *call.entry(name).or_default() += last.elapsed();
                            last = Instant::now();
                        },
                    )
                    .unwrap();
                whole.push(began.elapsed());
                for (name, time) in call {
                    times.entry(name).or_default().push(time);
                }
            }
            let each = |time: Duration| time.as_secs_f64() * 1e3 / frames as f64;
            println!(
                "{} {} {threads} threads, {frames} frames a call: {:.2} ms a frame",
                kernels.name(),
                path.name(),
                each(median(&mut whole))
            );
            let total: f64 = times.values_mut().map(|times| each(median(times))).sum();
            for name in &stages {
                let time = each(median(times.get_mut(name).unwrap()));
                println!("  {name:20} {time:7.3} ms {:5.1} %", 100.0 * time / total);
            }
            if (threads, frames) == (1, 4) {
                if let Some(exact) = &exact {
                    let power: f64 = exact.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let noise: f64 = exact
                        .iter()
                        .zip(&pcm)
                        .map(|(&a, &b)| f64::from(a - b).powi(2))
                        .sum();
                    println!("  signal to noise {:.1} dB", 10.0 * (power / noise).log10());
                } else {
                    exact = Some(pcm);
                }
            }
        }
    }
}
