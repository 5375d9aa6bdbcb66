//! WAV files: written with exact sizes or as a stream, read from uploads.
//!
//! In: samples, or bytes. Out: bytes, or samples. Source: the RIFF/WAVE format as Microsoft documents it.
//! Invariant: a streamed file has one header, whose sizes say "until the end" (0xFFFFFFFF); a whole file has exact ones.

use super::{Recording, unusable};
use crate::base::{Code, Problem};

/// Bytes of the header that is written.
pub const HEADER_BYTES: usize = 44;
/// Size in a header that means "until the end".
const OPEN_END: u32 = u32::MAX;
/// Channels that are mixed down.
const MAX_CHANNELS: u16 = 32;
/// Sample rates that are read.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// Format tags.
const PCM: u16 = 1;
const FLOAT: u16 = 3;
const EXTENSIBLE: u16 = 0xfffe;

/// The header of a stream of 16-bit PCM, one channel, whose length is not known.
#[must_use]
pub fn stream_header(sample_rate: u32) -> [u8; HEADER_BYTES] {
    header(sample_rate, OPEN_END, OPEN_END)
}

/// A whole file of 16-bit PCM, one channel.
///
/// # Errors
/// `request_invalid` when the sound does not fit the format's 4 GiB.
pub fn file(sample_rate: u32, samples: &[f32]) -> Result<Vec<u8>, Problem> {
    let header = file_header(sample_rate, samples.len().saturating_mul(2))?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + samples.len() * 2);
    bytes.extend(header);
    pcm16(samples, &mut bytes);
    Ok(bytes)
}

/// Appends samples as 16-bit little-endian PCM, rounded; beyond −1..=1 they are clipped, and NaN is silence.
pub fn pcm16(samples: &[f32], bytes: &mut Vec<u8>) {
    bytes.extend(samples.iter().flat_map(|sample| {
        let value = (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16;
        value.to_le_bytes()
    }));
}

/// The header of a file of 16-bit PCM, one channel, with `bytes` bytes of samples.
///
/// # Errors
/// `request_invalid` when they do not fit the format's 4 GiB.
pub fn file_header(sample_rate: u32, bytes: usize) -> Result<[u8; HEADER_BYTES], Problem> {
    let data = u32::try_from(bytes).ok();
    let sizes = data.and_then(|data| Some((data, data.checked_add(HEADER_BYTES as u32 - 8)?)));
    let (data, riff) = sizes.ok_or_else(|| {
        Problem::new(
            Code::RequestInvalid,
            format!("{bytes} bytes of samples do not fit a WAV file"),
            "ask for `pcm`, or stream the answer",
        )
    })?;
    Ok(header(sample_rate, riff, data))
}

fn header(sample_rate: u32, riff: u32, data: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(b"RIFF");
    put(&riff.to_le_bytes());
    put(b"WAVEfmt ");
    put(&16u32.to_le_bytes());
    put(&PCM.to_le_bytes());
    put(&1u16.to_le_bytes());
    put(&sample_rate.to_le_bytes());
    put(&sample_rate.saturating_mul(2).to_le_bytes());
    put(&2u16.to_le_bytes());
    put(&16u16.to_le_bytes());
    put(b"data");
    put(&data.to_le_bytes());
    bytes
}

/// How samples are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    float: bool,
    bits: u16,
    channels: u16,
    sample_rate: u32,
}

/// Reads a WAV file of at most `max_seconds`; several channels are averaged.
///
/// # Errors
/// `request_invalid` for bytes that are no WAV file, are cut short, of another encoding, or longer than allowed.
pub fn read(bytes: &[u8], max_seconds: u32) -> Result<Recording, Problem> {
    if bytes.get(..4) != Some(b"RIFF") || bytes.get(8..12) != Some(b"WAVE") {
        return Err(unusable("the recording is no WAV file"));
    }
    let mut rest = &bytes[12..];
    let mut format = None;
    loop {
        let Some((head, body)) = rest.split_first_chunk::<8>() else {
            return Err(unusable(if rest.is_empty() {
                "the recording has no samples"
            } else {
                "the recording is cut short"
            }));
        };
        let (name, size) = (&head[..4], u32_at(head, 4));
        if name == b"data" {
            let format = format.ok_or_else(|| unusable("the recording does not say how it is encoded"))?;
            let data = match size {
                // What a streaming writer could not know.
                OPEN_END => body,
                size => body.get(..size as usize).ok_or_else(|| {
                    unusable(format!(
                        "the recording is cut short: {size} bytes of samples are promised, {} are there",
                        body.len()
                    ))
                })?,
            };
            return samples(data, format, max_seconds);
        }
        let end = u64::from(size) + u64::from(size % 2);
        let chunk = body
            .get(..size as usize)
            .ok_or_else(|| unusable("the recording is cut short"))?;
        if name == b"fmt " {
            format = Some(read_format(chunk)?);
        }
        rest = body.get(end as usize..).unwrap_or(&[]);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn read_format(chunk: &[u8]) -> Result<Format, Problem> {
    if chunk.len() < 16 {
        return Err(unusable("the recording's format is cut short"));
    }
    let (mut tag, bits) = (u16_at(chunk, 0), u16_at(chunk, 14));
    if tag == EXTENSIBLE && chunk.len() >= 26 {
        // The first two bytes of the sub-format.
        tag = u16_at(chunk, 24);
    }
    let format = Format {
        float: tag == FLOAT,
        bits,
        channels: u16_at(chunk, 2),
        sample_rate: u32_at(chunk, 4),
    };
    let known = match tag {
        PCM => matches!(bits, 8 | 16 | 24 | 32),
        FLOAT => matches!(bits, 32 | 64),
        _ => false,
    };
    if !known {
        return Err(unusable(format!(
            "the recording has encoding {tag} with {bits} bits"
        )));
    }
    if format.channels == 0 || format.channels > MAX_CHANNELS {
        return Err(unusable(format!(
            "the recording has {} channels; 1 to {MAX_CHANNELS} are read",
            format.channels
        )));
    }
    if !RATES.contains(&format.sample_rate) {
        return Err(unusable(format!(
            "the recording has {} samples a second; {} to {} are read",
            format.sample_rate,
            RATES.start(),
            RATES.end()
        )));
    }
    Ok(format)
}

fn samples(data: &[u8], format: Format, max_seconds: u32) -> Result<Recording, Problem> {
    let width = usize::from(format.bits / 8);
    let frame = width * usize::from(format.channels);
    let frames = data.len() / frame;
    let most = u64::from(max_seconds) * u64::from(format.sample_rate);
    if frames as u64 > most {
        return Err(Problem::new(
            Code::RequestInvalid,
            format!(
                "the recording is {:.1} s long; at most {max_seconds} s are taken",
                frames as f64 / f64::from(format.sample_rate)
            ),
            "send a shorter recording",
        ));
    }
    if frames == 0 {
        return Err(unusable("the recording has no samples"));
    }
    let share = 1.0 / f64::from(format.channels);
    let mut samples = Vec::with_capacity(frames);
    for frame in data.chunks_exact(frame) {
        let sum: f64 = frame
            .chunks_exact(width)
            .map(|bytes| value(bytes, format.float))
            .sum();
        let sample = (sum * share) as f32;
        if !sample.is_finite() {
            return Err(unusable("the recording holds samples that are no numbers"));
        }
        samples.push(sample);
    }
    Ok(Recording {
        sample_rate: format.sample_rate,
        samples,
    })
}

/// One sample; the widths are those [`read_format`] lets through.
fn value(bytes: &[u8], float: bool) -> f64 {
    match (bytes, float) {
        (&[a], _) => (f64::from(a) - 128.0) / 128.0,
        (&[a, b], _) => f64::from(i16::from_le_bytes([a, b])) / 32_768.0,
        (&[a, b, c], _) => f64::from(i32::from_le_bytes([0, a, b, c])) / 2_147_483_648.0,
        (&[a, b, c, d], false) => f64::from(i32::from_le_bytes([a, b, c, d])) / 2_147_483_648.0,
        (&[a, b, c, d], true) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (&[a, b, c, d, e, f, g, h], _) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(name: [u8; 4], body: &[u8]) -> Vec<u8> {
        let mut bytes = name.to_vec();
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        if body.len() % 2 == 1 {
            bytes.push(0);
        }
        bytes
    }

    fn wav(tag: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
        let mut format = Vec::new();
        format.extend(tag.to_le_bytes());
        format.extend(channels.to_le_bytes());
        format.extend(rate.to_le_bytes());
        format.extend(0u32.to_le_bytes());
        format.extend(0u16.to_le_bytes());
        format.extend(bits.to_le_bytes());
        if tag == EXTENSIBLE {
            format.extend(22u16.to_le_bytes());
            format.extend([0; 6]);
            format.extend(FLOAT.to_le_bytes());
            format.extend([0; 14]);
        }
        let mut body = b"WAVE".to_vec();
        body.extend(chunk(*b"LIST", b"odd"));
        body.extend(chunk(*b"fmt ", &format));
        body.extend(chunk(*b"data", data));
        chunk(*b"RIFF", &body)
    }

    #[test]
    fn a_written_file_has_exact_sizes_and_reads_back() {
        let samples: Vec<f32> = (0..1001).map(|i| (i as f32 * 0.05).sin() * 0.9).collect();
        let bytes = file(24_000, &samples).unwrap();
        assert_eq!(u32_at(&bytes, 4) as usize, bytes.len() - 8);
        assert_eq!(u32_at(&bytes, 40) as usize, bytes.len() - HEADER_BYTES);
        let back = read(&bytes, 10).unwrap();
        assert_eq!(back.sample_rate, 24_000);
        for (a, b) in samples.iter().zip(&back.samples) {
            // Half a step of rounding, and the full scales of writing (32,767) and reading (32,768).
            assert!((a - b).abs() <= 1.5 / 32_767.0);
        }
        let mut stream = stream_header(24_000).to_vec();
        assert_eq!((u32_at(&stream, 4), u32_at(&stream, 40)), (u32::MAX, u32::MAX));
        for part in samples.chunks(333) {
            pcm16(part, &mut stream);
        }
        assert_eq!(stream[HEADER_BYTES..], bytes[HEADER_BYTES..]);
        assert_eq!(read(&stream, 10).unwrap(), back);
    }

    #[test]
    fn samples_are_rounded_and_clipped() {
        let mut bytes = Vec::new();
        pcm16(&[0.0, 1.0, -1.0, 2.0, -3.0, f32::NAN, 0.5], &mut bytes);
        let values: Vec<i16> = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&b| i16::from_le_bytes(b))
            .collect();
        assert_eq!(values, [0, 32767, -32767, 32767, -32767, 0, 16384]);
    }

    #[test]
    fn every_encoding_is_read() {
        let cases: [(u16, u16, Vec<u8>, f32); 7] = [
            (PCM, 8, vec![192], 0.5),
            (PCM, 16, 16_384i16.to_le_bytes().to_vec(), 0.5),
            (PCM, 24, vec![0, 0, 0xc0], -0.5),
            (PCM, 32, (-1_073_741_824i32).to_le_bytes().to_vec(), -0.5),
            (FLOAT, 32, 0.25f32.to_le_bytes().to_vec(), 0.25),
            (FLOAT, 64, (-0.25f64).to_le_bytes().to_vec(), -0.25),
            (EXTENSIBLE, 32, 0.75f32.to_le_bytes().to_vec(), 0.75),
        ];
        for (tag, bits, data, wanted) in cases {
            let read = read(&wav(tag, bits, 1, 16_000, &data), 1).unwrap();
            assert!((read.samples[0] - wanted).abs() < 1e-6, "{tag} {bits}");
        }
        let stereo: Vec<u8> = [16_384i16, -8_192].iter().flat_map(|x| x.to_le_bytes()).collect();
        let mixed = read(&wav(PCM, 16, 2, 8_000, &stereo), 1).unwrap();
        assert_eq!(mixed.samples, [0.125]);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_a_reason() {
        let good = wav(PCM, 16, 1, 16_000, &[0; 64]);
        for (bytes, says) in [
            (b"ID3".to_vec(), "no WAV file"),
            (good[..30].to_vec(), "cut short"),
            (
                good[..good.len() - 3].to_vec(),
                "64 bytes of samples are promised",
            ),
            (wav(2, 4, 1, 16_000, &[0; 8]), "encoding 2"),
            (wav(PCM, 12, 1, 16_000, &[0; 8]), "12 bits"),
            (wav(PCM, 16, 0, 16_000, &[0; 8]), "0 channels"),
            (wav(PCM, 16, 99, 16_000, &[0; 8]), "99 channels"),
            (wav(PCM, 16, 1, 7, &[0; 8]), "7 samples a second"),
            (wav(PCM, 16, 1, 16_000, &[]), "no samples"),
            (wav(PCM, 16, 1, 4_000, &vec![0; 40_000]), "at most 2 s"),
            (wav(FLOAT, 32, 1, 16_000, &f32::NAN.to_le_bytes()), "no numbers"),
        ] {
            let problem = read(&bytes, 2).unwrap_err();
            assert_eq!(problem.code, Code::RequestInvalid);
            assert!(problem.what.contains(says), "{says}: {}", problem.what);
        }
        for cut in 0..good.len() {
            let _ = read(&good[..cut], 2);
        }
    }
}
