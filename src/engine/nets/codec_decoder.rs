//! The codec's decoder (code2wav): frames of 16 codes to sound, exactly, however the stream is cut.
//!
//! In: a stream's state, the codes of one or more frames. Out: samples, `samples_per_frame` a frame, in −1..=1.
//! Invariant: nothing looks ahead and everything that looks back is carried: any cutting of a stream gives the same
//! samples bit for bit. A stream's state has one size for good; a pass allocates nothing once buffers have grown.
//!
//! Rows are time, columns channels. One frame is 1 row, then 2, 4, 32, 160, 640 and 1920 rows.

mod load;
mod state;
mod transformer;

use std::collections::BTreeMap;

pub use state::CodecState;
use transformer::{Transformer, TransformerBuffers};

use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{Activations, Kernels, Store};
use crate::engine::nn::conv::{Conv, ConvRun};
use crate::engine::nn::norm::layer_norm_here;
use crate::engine::team::Team;
use crate::model::card::Activation;
use crate::model::speech::{CODEC_PASS_FRAMES, CodecSpec};
use crate::sys::memory::Region;

/// Epsilon of the LayerNorms of the upsampling.
const UPSAMPLE_NORM_EPS: f32 = 1e-6;
/// Taps of a depthwise convolution.
const DEPTHWISE_TAPS: usize = 7;

/// A loaded decoder: weights only, no state.
#[derive(Debug)]
pub struct CodecDecoder {
    spec: CodecSpec,
    quantizer: Quantizer,
    pre_conv: Conv,
    transformer: Transformer,
    upsamplers: Vec<Upsampler>,
    first: Conv,
    blocks: Vec<Block>,
    last_snake: Snake,
    last: Conv,
    format_bytes: BTreeMap<String, Bytes>,
    huge_pages: bool,
}

/// Codes to vectors.
#[derive(Debug)]
struct Quantizer {
    /// For each codebook, its rows: `codebook_size × code_dim`.
    tables: Vec<Vec<f32>>,
    /// Of codebook 0.
    first: Conv,
    /// Of the sum of all others.
    rest: Conv,
}

/// Doubles the rows, then one ConvNeXt block.
#[derive(Debug)]
struct Upsampler {
    expand: Conv,
    /// `[tap][channel]`, oldest tap first.
    depthwise: Vec<f32>,
    depthwise_bias: Vec<f32>,
    norm: (Vec<f32>, Vec<f32>),
    widen: Conv,
    /// With the block's scale folded in.
    narrow: Conv,
}

/// Multiplies the rows, then three residual units.
#[derive(Debug)]
struct Block {
    snake: Snake,
    expand: Conv,
    units: Vec<Unit>,
}

#[derive(Debug)]
struct Unit {
    snakes: [Snake; 2],
    dilated: Conv,
    mix: Conv,
}

/// `x + inverse_beta · sin²(alpha · x)`, per channel.
#[derive(Debug)]
struct Snake {
    alpha: Vec<f32>,
    inverse_beta: Vec<f32>,
}

/// Buffers of a pass, kept from pass to pass and shared by all streams of a stage.
#[derive(Debug, Default)]
pub struct CodecWorkspace {
    input: Activations,
    transformer: TransformerBuffers,
    /// Current rows.
    x: Vec<f32>,
    /// Next rows.
    y: Vec<f32>,
    /// Input of a convolution: carried rows, then new ones.
    padded: Vec<f32>,
    /// Between the convolutions of a unit.
    between: Vec<f32>,
    /// The same, activated.
    inner: Vec<f32>,
}

/// Told the rows after each stage: name, rows, width. For tests and for timing.
pub type Observer<'o> = dyn FnMut(&'static str, &[f32], usize) + 'o;

impl CodecDecoder {
    /// The network's shape.
    #[must_use]
    pub fn spec(&self) -> &CodecSpec {
        &self.spec
    }

    /// Bytes of weights held, by format as held.
    #[must_use]
    pub fn format_bytes(&self) -> &BTreeMap<String, Bytes> {
        &self.format_bytes
    }

    /// Memory of every matrix.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        let ends = [
            &self.quantizer.first,
            &self.quantizer.rest,
            &self.pre_conv,
            &self.first,
            &self.last,
        ];
        let upsamplers = self
            .upsamplers
            .iter()
            .flat_map(|upsampler| [&upsampler.expand, &upsampler.widen, &upsampler.narrow]);
        let blocks = self.blocks.iter().flat_map(|block| {
            let units = block.units.iter().flat_map(|unit| [&unit.dilated, &unit.mix]);
            units.chain([&block.expand])
        });
        ends.into_iter()
            .chain(self.transformer.matrices())
            .chain(upsamplers)
            .chain(blocks)
            .map(Conv::region)
    }

    /// Whether huge pages were asked for on every matrix.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Decodes the next frames of a stream and appends their samples to `pcm`. `codes` is frames × codebooks.
    ///
    /// # Errors
    /// When `codes` is no whole number of frames or a code lies outside its codebook; the state is untouched then.
    pub fn decode(
        &self,
        kernels: &Kernels,
        team: &Team,
        state: &mut CodecState,
        workspace: &mut CodecWorkspace,
        codes: &[u32],
        pcm: &mut Vec<f32>,
    ) -> Result<(), Problem> {
        self.decode_observed(kernels, team, state, workspace, codes, pcm, &mut |_, _, _| {})
    }

    /// [`Self::decode`], telling `observer` the rows after each stage.
    ///
    /// # Errors
    /// As [`Self::decode`].
    #[expect(clippy::too_many_arguments, reason = "decode and who watches")]
    pub fn decode_observed(
        &self,
        kernels: &Kernels,
        team: &Team,
        state: &mut CodecState,
        workspace: &mut CodecWorkspace,
        codes: &[u32],
        pcm: &mut Vec<f32>,
        observer: &mut Observer<'_>,
    ) -> Result<(), Problem> {
        let codebooks = self.spec.codebooks;
        let wild = codes
            .iter()
            .find(|&&code| code as usize >= self.spec.codebook_size);
        if let Some(code) = wild {
            return Err(internal(format!(
                "code {code} is outside codebooks of {} rows",
                self.spec.codebook_size
            )));
        }
        if !codes.len().is_multiple_of(codebooks) {
            return Err(internal(format!(
                "{} codes are no whole number of frames of {codebooks}",
                codes.len()
            )));
        }
        for frames in codes.chunks(CODEC_PASS_FRAMES * codebooks) {
            self.pass(kernels, team, state, workspace, frames, observer);
            pcm.extend(workspace.x.iter().map(|sample| sample.clamp(-1.0, 1.0)));
        }
        Ok(())
    }

    /// One pass; leaves unclamped samples in `workspace.x`.
    fn pass(
        &self,
        kernels: &Kernels,
        team: &Team,
        state: &mut CodecState,
        workspace: &mut CodecWorkspace,
        codes: &[u32],
        observer: &mut Observer<'_>,
    ) {
        let CodecWorkspace {
            input,
            transformer,
            x,
            y,
            padded,
            between,
            inner,
        } = workspace;
        let run = &mut ConvRun { kernels, team, input };
        let frames = codes.len() / self.spec.codebooks;
        self.quantizer
            .look_up(run, codes, self.spec.code_dim, x, y, inner, observer);
        observer("quantized", x, self.spec.quantized);

        let mut carried = state.histories.iter_mut();
        let mut history = || carried.next().map_or(&mut [][..], |rows| &mut rows[..]);
        y.resize(frames * self.pre_conv.output(), 0.0);
        let fill = |rows: &mut [f32]| rows.copy_from_slice(x);
        self.pre_conv
            .stream(run, history(), padded, fill, y, Store::Replace);
        observer("pre_conv", y, self.spec.latent);

        let position = state.position;
        self.transformer
            .forward(run, &mut state.attention, position, y, x, transformer);
        state.position += frames;
        observer("pre_transformer", x, self.spec.latent);

        for (index, upsampler) in self.upsamplers.iter().enumerate() {
            let names = UPSAMPLE_STAGES.get(index).copied().unwrap_or(["upsample"; 2]);
            y.resize(
                x.len() / upsampler.expand.input() * upsampler.expand.output(),
                0.0,
            );
            let fill = |rows: &mut [f32]| rows.copy_from_slice(x);
            upsampler
                .expand
                .stream(run, history(), padded, fill, y, Store::Replace);
            std::mem::swap(x, y);
            observer(names[0], x, self.spec.latent);
            upsampler.refine(run, history(), padded, x, y, inner);
            observer(names[1], x, self.spec.latent);
        }

        y.resize(x.len() / self.first.input() * self.first.output(), 0.0);
        let fill = |rows: &mut [f32]| rows.copy_from_slice(x);
        self.first.stream(run, history(), padded, fill, y, Store::Replace);
        std::mem::swap(x, y);
        observer("decoder0_conv", x, self.first.output());

        let mut carried = carried.into_slice();
        for (index, block) in self.blocks.iter().enumerate() {
            let names = BLOCK_STAGES.get(index).copied().unwrap_or(["block"; 2]);
            let (own, others) = carried.split_at_mut(1 + block.units.len());
            carried = others;
            y.resize(x.len() / block.expand.input() * block.expand.output(), 0.0);
            // In slices, so that the rows between two convolutions stay in the cache; what they carry joins them.
            let rows = block.rows_of_slice();
            let slices = x.chunks(rows * block.expand.input());
            for (x, y) in slices.zip(y.chunks_mut(rows * block.expand.output())) {
                block.forward(run, own, padded, x, y, (between, inner), names, observer);
            }
            std::mem::swap(x, y);
        }
        let [carried] = carried else {
            return;
        };

        y.resize(x.len() / self.last.input(), 0.0);
        let fill = |rows: &mut [f32]| self.last_snake.apply(kernels, team, x, rows);
        self.last.stream(run, carried, padded, fill, y, Store::Replace);
        std::mem::swap(x, y);
        observer("samples", x, 1);
    }
}

const UPSAMPLE_STAGES: [[&str; 2]; 2] = [
    ["upsample0_convt", "upsample0_convnext"],
    ["upsample1_convt", "upsample1_convnext"],
];
const BLOCK_STAGES: [[&str; 2]; 4] = [
    ["decoder1_convt", "decoder1_block"],
    ["decoder2_convt", "decoder2_block"],
    ["decoder3_convt", "decoder3_block"],
    ["decoder4_convt", "decoder4_block"],
];

impl CodecWorkspace {
    /// Bytes of the buffers as they have grown.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let own = [&self.x, &self.y, &self.padded, &self.between, &self.inner];
        let floats: usize = own.iter().map(|buffer| buffer.capacity()).sum();
        Bytes(self.input.bytes().0 + ((floats + self.transformer.floats()) * 4) as u64)
    }
}

impl Quantizer {
    /// Rows of `quantized` into `x`; `y` and `scratch` are overwritten.
    #[expect(clippy::too_many_arguments, reason = "three buffers of the pass")]
    fn look_up(
        &self,
        run: &mut ConvRun<'_>,
        codes: &[u32],
        width: usize,
        x: &mut Vec<f32>,
        y: &mut Vec<f32>,
        scratch: &mut Vec<f32>,
        observer: &mut Observer<'_>,
    ) {
        let frames = codes.len() / self.tables.len();
        let row = |book: usize, code: u32| {
            let at = code as usize * width;
            &self.tables[book][at..at + width]
        };
        scratch.resize(frames * width, 0.0);
        x.resize(frames * self.first.output(), 0.0);
        y.resize(x.len(), 0.0);
        for (codes, out) in codes
            .chunks_exact(self.tables.len())
            .zip(scratch.chunks_exact_mut(width))
        {
            out.copy_from_slice(row(0, codes[0]));
        }
        self.first.run(run, scratch, x, Store::Replace);
        observer("rvq_first", x, self.first.output());
        scratch.fill(0.0);
        for (codes, out) in codes
            .chunks_exact(self.tables.len())
            .zip(scratch.chunks_exact_mut(width))
        {
            for (book, &code) in codes.iter().enumerate().skip(1) {
                for (sum, value) in out.iter_mut().zip(row(book, code)) {
                    *sum += value;
                }
            }
        }
        self.rest.run(run, scratch, y, Store::Replace);
        observer("rvq_rest", y, self.rest.output());
        for (x, y) in x.iter_mut().zip(y.iter()) {
            *x += y;
        }
    }
}

impl Upsampler {
    /// `x += narrow(gelu(widen(norm(depthwise(x)))))`.
    fn refine(
        &self,
        run: &mut ConvRun<'_>,
        history: &mut [f32],
        padded: &mut Vec<f32>,
        x: &mut [f32],
        y: &mut Vec<f32>,
        inner: &mut Vec<f32>,
    ) {
        let channels = self.depthwise_bias.len();
        padded.resize(history.len() + x.len(), 0.0);
        padded[..history.len()].copy_from_slice(history);
        padded[history.len()..].copy_from_slice(x);
        history.copy_from_slice(&padded[x.len()..]);
        y.resize(x.len(), 0.0);
        for (row, out) in y.chunks_exact_mut(channels).enumerate() {
            out.copy_from_slice(&self.depthwise_bias);
            let seen = &padded[row * channels..(row + DEPTHWISE_TAPS) * channels];
            for (weights, seen) in self
                .depthwise
                .chunks_exact(channels)
                .zip(seen.chunks_exact(channels))
            {
                for (out, (weight, value)) in out.iter_mut().zip(weights.iter().zip(seen)) {
                    *out += weight * value;
                }
            }
        }
        layer_norm_here(y, &self.norm.0, &self.norm.1, UPSAMPLE_NORM_EPS);
        inner.resize(x.len() / channels * self.widen.output(), 0.0);
        self.widen.run(run, y, inner, Store::Replace);
        run.kernels.activate(run.team, Activation::GeluErf, inner);
        self.narrow.run(run, inner, x, Store::Add);
    }
}

/// Rows of a slice at least: enough panels for a team.
const SLICE_ROWS: usize = 512;

impl Block {
    fn channels(&self) -> usize {
        self.units.first().map_or(1, |unit| unit.mix.output())
    }

    /// Input rows of a slice: as many that its rows weigh about as much as the weights that meet them.
    fn rows_of_slice(&self) -> usize {
        let channels = self.channels();
        let rows = (4 * channels).max(SLICE_ROWS);
        (rows * channels / self.expand.output()).max(1)
    }

    /// A slice of rows `x` to its rows `y`.
    #[expect(
        clippy::too_many_arguments,
        reason = "a slice, what it carries, and buffers of the pass"
    )]
    fn forward(
        &self,
        run: &mut ConvRun<'_>,
        carried: &mut [Vec<f32>],
        padded: &mut Vec<f32>,
        x: &[f32],
        y: &mut [f32],
        (between, inner): (&mut Vec<f32>, &mut Vec<f32>),
        names: [&'static str; 2],
        observer: &mut Observer<'_>,
    ) {
        let (kernels, team) = (run.kernels, run.team);
        let [first, others @ ..] = carried else {
            return;
        };
        let fill = |rows: &mut [f32]| self.snake.apply(kernels, team, x, rows);
        self.expand.stream(run, first, padded, fill, y, Store::Replace);
        observer(names[0], y, self.channels());
        for (unit, history) in self.units.iter().zip(others) {
            unit.add(run, history, padded, y, between, inner);
        }
        observer(names[1], y, self.channels());
    }
}

impl Unit {
    /// `x += mix(snake(dilated(snake(x))))`.
    fn add(
        &self,
        run: &mut ConvRun<'_>,
        history: &mut [f32],
        padded: &mut Vec<f32>,
        x: &mut [f32],
        y: &mut Vec<f32>,
        inner: &mut Vec<f32>,
    ) {
        let (kernels, team) = (run.kernels, run.team);
        y.resize(x.len(), 0.0);
        inner.resize(x.len(), 0.0);
        let fill = |rows: &mut [f32]| self.snakes[0].apply(kernels, team, x, rows);
        self.dilated.stream(run, history, padded, fill, y, Store::Replace);
        self.snakes[1].apply(kernels, team, y, inner);
        self.mix.run(run, inner, x, Store::Add);
    }
}

impl Snake {
    fn apply(&self, kernels: &Kernels, team: &Team, x: &[f32], out: &mut [f32]) {
        kernels.snake(team, x, &self.alpha, &self.inverse_beta, out);
    }
}

fn internal(what: String) -> Problem {
    Problem::new(
        Code::Internal,
        what,
        "report this with the request that caused it",
    )
}
