//! The log-mel spectrogram the speaker encoder hears.
//!
//! In: samples at 24 kHz. Out: 128 bands a frame of 256 samples, natural logarithms of magnitudes.
//! Invariant: computed in f64 and given as f32: Slaney's scale and normalisation, periodic Hann, reflected edges.

use std::f64::consts::TAU;

use super::unusable;
use crate::base::Problem;

/// Samples of a window.
const WINDOW: usize = 1024;
/// Samples from frame to frame.
const HOP: usize = 256;
/// Samples reflected at each end.
const EDGE: usize = (WINDOW - HOP) / 2;
/// Bands.
pub const BANDS: usize = 128;
/// Sample rate the bands are laid out for.
pub const SAMPLE_RATE: u32 = 24_000;
/// Added to the squared magnitude.
const POWER_FLOOR: f64 = 1e-9;
/// Least band value.
const BAND_FLOOR: f64 = 1e-5;

/// The spectrogram of `samples` at [`SAMPLE_RATE`]: rows of [`BANDS`], one a frame.
///
/// # Errors
/// `request_invalid` for fewer samples than a reflected edge needs.
pub fn log_mel(samples: &[f32]) -> Result<Vec<f32>, Problem> {
    if samples.len() <= EDGE {
        return Err(unusable(format!(
            "the recording has {} samples; a voice needs more than {EDGE}",
            samples.len()
        )));
    }
    let frames = 1 + (samples.len() + 2 * EDGE - WINDOW) / HOP;
    let window: Vec<f64> = (0..WINDOW)
        .map(|n| 0.5 - 0.5 * (TAU * n as f64 / WINDOW as f64).cos())
        .collect();
    let filters = filters();
    let mut rows = Vec::with_capacity(frames * BANDS);
    let (mut real, mut imaginary) = (vec![0.0; WINDOW], vec![0.0; WINDOW]);
    for frame in 0..frames {
        for (n, (slot, weight)) in real.iter_mut().zip(&window).enumerate() {
            *slot = weight * f64::from(samples[reflected(frame * HOP + n, samples.len())]);
        }
        imaginary.fill(0.0);
        fourier(&mut real, &mut imaginary);
        let magnitudes: Vec<f64> = real[..=WINDOW / 2]
            .iter()
            .zip(&imaginary)
            .map(|(re, im)| (re * re + im * im + POWER_FLOOR).sqrt())
            .collect();
        rows.extend(filters.iter().map(|(first, weights)| {
            let heard = magnitudes[*first..].iter().zip(weights);
            let band: f64 = heard.map(|(magnitude, weight)| magnitude * weight).sum();
            band.max(BAND_FLOOR).ln() as f32
        }));
    }
    Ok(rows)
}

/// Place in the recording of a place in the padded one; the edge sample itself is not repeated.
fn reflected(at: usize, length: usize) -> usize {
    if at < EDGE {
        return EDGE - at;
    }
    let at = at - EDGE;
    if at < length { at } else { 2 * (length - 1) - at }
}

/// Hertz to Slaney's mel: linear to 1000 Hz, then logarithmic.
fn mel(hertz: f64) -> f64 {
    if hertz < 1000.0 {
        hertz * 3.0 / 200.0
    } else {
        15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln()
    }
}

fn hertz(mel: f64) -> f64 {
    if mel < 15.0 {
        mel * 200.0 / 3.0
    } else {
        1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp()
    }
}

/// For each band, its first bin and its weights: triangles of equal area.
fn filters() -> Vec<(usize, Vec<f64>)> {
    let top = mel(f64::from(SAMPLE_RATE) / 2.0);
    let edge = |n: usize| hertz(top * n as f64 / (BANDS + 1) as f64);
    let bin = f64::from(SAMPLE_RATE) / WINDOW as f64;
    (0..BANDS)
        .map(|band| {
            let (low, middle, high) = (edge(band), edge(band + 1), edge(band + 2));
            let weight = |at: usize| {
                let at = at as f64 * bin;
                let rising = (at - low) / (middle - low);
                let falling = (high - at) / (high - middle);
                rising.min(falling).max(0.0) * 2.0 / (high - low)
            };
            let first = (low / bin).floor() as usize;
            let last = ((high / bin).ceil() as usize).min(WINDOW / 2);
            (first, (first..=last).map(weight).collect())
        })
        .collect()
}

/// Fast Fourier transform in place, radix 2; lengths are the same power of two.
fn fourier(real: &mut [f64], imaginary: &mut [f64]) {
    let length = real.len();
    let bits = length.trailing_zeros();
    for at in 0..length {
        let other = at.reverse_bits() >> (usize::BITS - bits);
        if at < other {
            real.swap(at, other);
            imaginary.swap(at, other);
        }
    }
    let mut half = 1;
    while half < length {
        for offset in 0..half {
            let (sine, cosine) = (-TAU * offset as f64 / (2 * half) as f64).sin_cos();
            for a in (offset..length).step_by(2 * half) {
                let b = a + half;
                let re = real[b] * cosine - imaginary[b] * sine;
                let im = real[b] * sine + imaginary[b] * cosine;
                (real[b], imaginary[b]) = (real[a] - re, imaginary[a] - im);
                real[a] += re;
                imaginary[a] += im;
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_the_definition() {
        let length = 64;
        let x: Vec<f64> = (0..length)
            .map(|n| (n as f64 * 1.7).sin() + 0.1 * n as f64)
            .collect();
        let (mut real, mut imaginary) = (x.clone(), vec![0.0; length]);
        fourier(&mut real, &mut imaginary);
        for bin in 0..length {
            let (mut re, mut im) = (0.0, 0.0);
            for (n, x) in x.iter().enumerate() {
                let (sine, cosine) = (-TAU * (n * bin) as f64 / length as f64).sin_cos();
                re += x * cosine;
                im += x * sine;
            }
            assert!((re - real[bin]).abs() < 1e-9 && (im - imaginary[bin]).abs() < 1e-9);
        }
    }

    #[test]
    fn a_tone_is_loudest_in_its_band_and_silence_is_the_floor() {
        let tone: Vec<f32> = (0..24_000)
            .map(|n| (TAU * 1000.0 * f64::from(n) / 24_000.0).sin() as f32)
            .collect();
        let rows = log_mel(&tone).unwrap();
        assert_eq!(rows.len() / BANDS, 1 + (24_000 + 768 - 1024) / 256);
        let row = &rows[40 * BANDS..41 * BANDS];
        let loudest = (0..BANDS).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let top = mel(12_000.0);
        let centre = hertz(top * (loudest + 1) as f64 / 129.0);
        assert!((centre - 1000.0).abs() < 40.0, "{centre}");
        assert!(log_mel(&[0.0; 4000]).unwrap().iter().all(|&x| x < -7.0));
        assert!(log_mel(&[0.0; EDGE]).is_err());
        assert!(log_mel(&[0.0; EDGE + 1]).is_ok());
    }

    #[test]
    fn edges_are_reflected_without_repeating_the_first_sample() {
        assert_eq!(reflected(0, 1000), EDGE);
        assert_eq!(reflected(EDGE, 1000), 0);
        assert_eq!(reflected(EDGE + 999, 1000), 999);
        assert_eq!(reflected(EDGE + 1000, 1000), 998);
    }
}
