//! Speed of matrix products per format, beside a plain read of the same bytes.
//!
//! `cargo run --release --example kernels -- [threads] [rows] [cols] [cap]`
//!
//! For each format: decode (1 token) in GB/s of weights and as a share of the plain read, prefill (512 tokens) in
//! GOP/s (2 operations a multiply-add). Best of many rounds, with product and read taking turns, so that drift
//! of the machine meets both alike.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use edge_deploy::base::{CpuSet, Problem};
use edge_deploy::engine::kernels::{Activations, PackSource, PackedMatrix, available, select};
use edge_deploy::engine::team::Team;
use edge_deploy::model::card::TensorType;

const TYPES: [TensorType; 16] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q4_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];
const PREFILL: usize = 512;
/// Time for each format.
const ROUNDS: Duration = Duration::from_secs(1);

fn main() -> Result<(), Problem> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (threads, rows, cols) = (number(0, 2), number(1, 32_768), number(2, 2048));
    let cap = arguments.get(3).map_or("best", String::as_str);
    let kernels = select(cap)?;
    let team = Team::new("bench", &CpuSet::new(), threads, false)?;
    println!(
        "{} of {:?}, {threads} threads, {rows} × {cols}",
        kernels.name(),
        available()
    );
    println!(
        "{:8} {:>10} {:>12} {:>8} {:>14} {:>10}",
        "format", "MB", "decode GB/s", "of read", "prefill GOP/s", "pack MB/s"
    );
    for dtype in TYPES {
        let row_bytes = cols / dtype.block_len() * dtype.block_bytes();
        // Bytes whose every reading as a float or a scale is an ordinary number near 1: special values are slow.
        let bytes: Vec<u8> = (0..row_bytes * rows)
            .map(|at| if at % 2 == 0 { 0x3c } else { 0x3b })
            .collect();
        let source = PackSource {
            dtype,
            held: dtype,
            rows,
            cols,
            bytes: &bytes,
            row_order: None,
        };
        let start = Instant::now();
        let matrix = PackedMatrix::pack_with(&team, &[source], true)?;
        let packing = bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
        // A few rows of the same kind, small enough to stay in cache, for the compute-bound case.
        let few = rows.min(512);
        let small = PackSource {
            rows: few,
            bytes: &bytes[..few * row_bytes],
            ..source
        };
        let small = PackedMatrix::pack(&[small], true)?;
        let packed = matrix.bytes().0 as usize;
        let plain = vec![1u64; packed / 8];
        drop(bytes);
        let x: Vec<f32> = (0..PREFILL * cols)
            .map(|at| ((at * 37) % 101) as f32 - 50.0)
            .collect();
        let mut one = Activations::new();
        one.load(kernels, &team, &x[..cols], 1, cols, matrix.needs());
        let mut many = Activations::new();
        many.load(kernels, &team, &x, PREFILL, cols, matrix.needs());
        let mut out_one = vec![0.0; rows];
        let mut out_many = vec![0.0; PREFILL * few];
        let mut best = [f64::MAX; 3];
        let start = Instant::now();
        while start.elapsed() < ROUNDS {
            let times = [
                seconds(|| kernels.linear(&team, &matrix, &one, &mut out_one)),
                seconds(|| read(&team, &plain, threads)),
                seconds(|| kernels.linear(&team, &small, &many, &mut out_many)),
            ];
            for (best, time) in best.iter_mut().zip(times) {
                *best = best.min(time);
            }
        }
        black_box((&out_one, &out_many));
        println!(
            "{:8} {:10.1} {:12.1} {:7.0}% {:14.0} {packing:10.0}",
            dtype.as_str(),
            packed as f64 / 1e6,
            packed as f64 / best[0] / 1e9,
            100.0 * best[1] / best[0],
            2.0 * (few * cols * PREFILL) as f64 / best[2] / 1e9,
        );
    }
    Ok(())
}

fn seconds(job: impl FnOnce()) -> f64 {
    let start = Instant::now();
    job();
    start.elapsed().as_secs_f64()
}

/// Adds up all words, each worker its share.
fn read(team: &Team, words: &[u64], threads: usize) {
    team.run(&|worker| {
        let each = words.len().div_ceil(threads);
        let part = &words[(worker * each).min(words.len())..((worker + 1) * each).min(words.len())];
        let mut sums = [0u64; 32];
        let (blocks, _) = part.as_chunks::<32>();
        for block in blocks {
            for (sum, word) in sums.iter_mut().zip(block) {
                *sum = sum.wrapping_add(*word);
            }
        }
        black_box(sums);
    });
}
