//! The speaker encoder (ECAPA-TDNN): a recording's spectrogram to one vector that stands for the voice.
//!
//! In: log-mel rows. Out: the x-vector, as wide as the talker. Invariant: computed in F32 and in one order, whatever
//! the number of threads; edges are reflected, so a recording has to be longer than the widest reflection.

use std::collections::BTreeMap;

use super::load::OnProgress;
use super::tensors::Tensors;
use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, Kernels, Store};
use crate::engine::nn::conv::{Conv, ConvRun, Held};
use crate::engine::team::Team;
use crate::model::speech::SpeakerEncoderSpec;
use crate::model::weight_path::WeightPath;
use crate::model::weights::Weights;

/// What stands before the names of the encoder's tensors.
const PREFIX: &str = "speaker_encoder.";
/// Least variance in pooling.
const VARIANCE_FLOOR: f64 = 1e-12;

/// A loaded encoder.
#[derive(Debug)]
pub struct SpeakerEncoder {
    spec: SpeakerEncoderSpec,
    first: Conv,
    blocks: Vec<Block>,
    join: Conv,
    attention: [Conv; 2],
    output: Conv,
    format_bytes: BTreeMap<String, Bytes>,
}

/// `x + excite(tdnn2(res2net(tdnn1(x))))`.
#[derive(Debug)]
struct Block {
    enter: Conv,
    /// One for each group but the first.
    groups: Vec<Conv>,
    leave: Conv,
    squeeze: Conv,
    excite: Conv,
}

/// What the layers of one run share.
struct Run<'a> {
    run: ConvRun<'a>,
    padded: Vec<f32>,
}

impl SpeakerEncoder {
    /// Packs the encoder's weights.
    ///
    /// # Errors
    /// Names the tensor that is missing, mis-shaped or of a type that cannot be used; `model_unsupported` for sizes
    /// the network cannot have; `memory_short`.
    pub fn load(
        spec: &SpeakerEncoderSpec,
        weights: &Weights,
        huge_pages: bool,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, Problem> {
        let unsupported = |what: String| {
            Problem::new(
                Code::ModelUnsupported,
                what,
                "use a release of the model as published",
            )
        };
        let (channels, kernels, dilations) = (&spec.channels, &spec.kernels, &spec.dilations);
        let [width, .., joined] = channels[..] else {
            return Err(unsupported(
                "a speaker encoder of fewer than two layers".to_owned(),
            ));
        };
        let inner = &channels[..channels.len() - 1];
        if kernels.len() != channels.len()
            || dilations.len() != channels.len()
            || kernels.contains(&0)
            || spec.scale == 0
            || !width.is_multiple_of(spec.scale)
            || inner.iter().any(|&other| other != width)
        {
            return Err(unsupported(format!(
                "a speaker encoder with channels {channels:?}, kernels {kernels:?}, dilations {dilations:?} and scale {}",
                spec.scale
            )));
        }
        let held = Held {
            path: WeightPath::Native,
            huge_pages,
        };
        let mut tensors = Tensors::new(weights, PREFIX, Bytes(0), held, on_progress);
        let t = &mut tensors;
        let first = t.conv("blocks.0.conv", (width, spec.mel, kernels[0]), dilations[0])?;
        let mut blocks = Vec::new();
        for block in 1..inner.len() {
            let at = format!("blocks.{block}");
            let narrow = width / spec.scale;
            blocks.push(Block {
                enter: t.conv(&format!("{at}.tdnn1.conv"), (width, width, 1), 1)?,
                groups: (0..spec.scale - 1)
                    .map(|group| {
                        t.conv(
                            &format!("{at}.res2net_block.blocks.{group}.conv"),
                            (narrow, narrow, kernels[block]),
                            dilations[block],
                        )
                    })
                    .collect::<Result<_, _>>()?,
                leave: t.conv(&format!("{at}.tdnn2.conv"), (width, width, 1), 1)?,
                squeeze: t.conv(&format!("{at}.se_block.conv1"), (spec.squeeze, width, 1), 1)?,
                excite: t.conv(&format!("{at}.se_block.conv2"), (width, spec.squeeze, 1), 1)?,
            });
        }
        let last = channels.len() - 1;
        let join = t.conv(
            "mfa.conv",
            (joined, blocks.len() * width, kernels[last]),
            dilations[last],
        )?;
        let attention = [
            t.conv("asp.tdnn.conv", (spec.attention, 3 * joined, 1), 1)?,
            t.conv("asp.conv", (joined, spec.attention, 1), 1)?,
        ];
        let output = t.conv("fc", (spec.output, 2 * joined, 1), 1)?;
        Ok(Self {
            spec: spec.clone(),
            first,
            blocks,
            join,
            attention,
            output,
            format_bytes: tensors.into_held().0,
        })
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// The voice of a spectrogram: rows of [`SpeakerEncoderSpec::mel`] bands to [`SpeakerEncoderSpec::output`] values.
    ///
    /// # Errors
    /// `request_invalid` for a recording too short to have its edges reflected.
    pub fn encode(&self, kernels: &Kernels, team: &Team, mel: &[f32]) -> Result<Vec<f32>, Problem> {
        let frames = mel.len() / self.spec.mel;
        let halos = self
            .blocks
            .iter()
            .flat_map(|block| &block.groups)
            .chain([&self.first, &self.join]);
        let widest = halos.map(|conv| conv.halo().div_ceil(2)).max().unwrap_or(0);
        if frames <= widest || !mel.len().is_multiple_of(self.spec.mel) {
            return Err(Problem::new(
                Code::RequestInvalid,
                format!("the recording has {frames} frames of spectrum; a voice needs more than {widest}"),
                "send a recording of some seconds",
            ));
        }
        let mut input = Activations::new();
        let mut run = Run {
            run: ConvRun {
                kernels,
                team,
                input: &mut input,
            },
            padded: Vec::new(),
        };
        let mut x = run.same(&self.first, mel);
        relu(&mut x);
        let width = self.first.output();
        let mut joined = vec![0.0; frames * width * self.blocks.len()];
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(&mut run, &x);
            let stride = width * self.blocks.len();
            for (row, from) in joined.chunks_exact_mut(stride).zip(x.chunks_exact(width)) {
                row[index * width..(index + 1) * width].copy_from_slice(from);
            }
        }
        let mut h = run.same(&self.join, &joined);
        relu(&mut h);
        let pooled = self.pool(&mut run, &h);
        Ok(run.same(&self.output, &pooled))
    }

    /// Attentive statistics pooling: mean‖deviation of all rows, weighted by attention.
    fn pool(&self, run: &mut Run<'_>, h: &[f32]) -> Vec<f32> {
        let width = self.join.output();
        let frames = h.len() / width;
        let even = vec![1.0 / frames as f64; frames * width];
        let statistics = weighted(h, &even, width);
        let mut seen = Vec::with_capacity(3 * h.len());
        for row in h.chunks_exact(width) {
            seen.extend_from_slice(row);
            seen.extend_from_slice(&statistics);
        }
        let mut attended = run.same(&self.attention[0], &seen);
        for x in &mut attended {
            *x = x.max(0.0).tanh();
        }
        let scores = run.same(&self.attention[1], &attended);
        let mut weights = vec![0.0; scores.len()];
        for channel in 0..width {
            let of_channel = || scores.iter().skip(channel).step_by(width).map(|&x| f64::from(x));
            let most = of_channel().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = of_channel().map(|score| (score - most).exp()).sum();
            let places = weights[channel..].iter_mut().step_by(width);
            for (place, score) in places.zip(of_channel()) {
                *place = (score - most).exp() / total;
            }
        }
        weighted(h, &weights, width)
    }
}

impl Block {
    fn forward(&self, run: &mut Run<'_>, x: &[f32]) -> Vec<f32> {
        let width = self.enter.output();
        let frames = x.len() / width;
        let mut entered = run.same(&self.enter, x);
        relu(&mut entered);
        let narrow = width / (self.groups.len() + 1);
        let mut before: Vec<f32> = Vec::new();
        for (index, conv) in self.groups.iter().enumerate() {
            let columns = (index + 1) * narrow..(index + 2) * narrow;
            let mut group: Vec<f32> = entered
                .chunks_exact(width)
                .flat_map(|row| &row[columns.clone()])
                .copied()
                .collect();
            for (x, y) in group.iter_mut().zip(&before) {
                *x += y;
            }
            before = run.same(conv, &group);
            relu(&mut before);
            for (row, from) in entered.chunks_exact_mut(width).zip(before.chunks_exact(narrow)) {
                row[columns.clone()].copy_from_slice(from);
            }
        }
        let mut out = run.same(&self.leave, &entered);
        relu(&mut out);
        let mean: Vec<f32> = (0..width)
            .map(|channel| {
                let values = out.iter().skip(channel).step_by(width);
                (values.map(|&x| f64::from(x)).sum::<f64>() / frames as f64) as f32
            })
            .collect();
        let mut squeezed = run.same(&self.squeeze, &mean);
        relu(&mut squeezed);
        let gates: Vec<f32> = run
            .same(&self.excite, &squeezed)
            .into_iter()
            .map(|x| 1.0 / (1.0 + (-x).exp()))
            .collect();
        for (row, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            for ((value, gate), x) in row.iter_mut().zip(&gates).zip(x) {
                *value = *value * gate + x;
            }
        }
        out
    }
}

impl Run<'_> {
    /// A convolution that keeps the number of rows: edges reflected, the left one getting the smaller half.
    fn same(&mut self, conv: &Conv, x: &[f32]) -> Vec<f32> {
        let width = conv.input();
        let rows = x.len() / width;
        let left = conv.halo() / 2;
        self.padded.clear();
        for at in 0..rows + conv.halo() {
            let from = match at.checked_sub(left) {
                None => left - at,
                Some(at) if at < rows => at,
                Some(at) => 2 * (rows - 1) - at,
            };
            self.padded
                .extend_from_slice(&x[from * width..(from + 1) * width]);
        }
        let mut out = vec![0.0; rows * conv.output()];
        conv.run(&mut self.run, &self.padded, &mut out, Store::Replace);
        out
    }
}

fn relu(x: &mut [f32]) {
    for x in x {
        *x = x.max(0.0);
    }
}

/// Weighted mean‖deviation of each column; the weights of a column sum to one.
fn weighted(h: &[f32], weights: &[f64], width: usize) -> Vec<f32> {
    let mut mean = vec![0f64; width];
    for (row, weights) in h.chunks_exact(width).zip(weights.chunks_exact(width)) {
        for (mean, (x, weight)) in mean.iter_mut().zip(row.iter().zip(weights)) {
            *mean += f64::from(*x) * weight;
        }
    }
    let mut variance = vec![0f64; width];
    for (row, weights) in h.chunks_exact(width).zip(weights.chunks_exact(width)) {
        for ((variance, mean), (x, weight)) in variance.iter_mut().zip(&mean).zip(row.iter().zip(weights)) {
            *variance += (f64::from(*x) - mean).powi(2) * weight;
        }
    }
    let deviation = variance.into_iter().map(|x| x.max(VARIANCE_FLOOR).sqrt());
    mean.iter().copied().chain(deviation).map(|x| x as f32).collect()
}
