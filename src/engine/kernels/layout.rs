//! R16, the one packed layout: tiles of 16 output rows, lane = row, codes and their scales in one stream.
//!
//! In: a format name. Out: where its bytes lie and how they read; packing and reading of one row of one group.
//! Invariant: `scale · (code − offset) + min` gives bit for bit what the reference dequantiser gives.
//!
//! A tile of a quantised format is a sequence of records, one for every `groups_per_head` groups of 32 columns:
//!
//! ```text
//! record = head (per-row f16 d, dmin of a 256-block; empty for 32-blocks), then groups
//! group  = codes (lines of 64 bytes = 16 rows × 4 columns), high-bit plane, per-row scales
//! ```
//!
//! Column `c` of a group belongs to quad `c / 4`. Nibbles: line `c / 4 % 4`, low nibble for quads 0..4, high for 4..8.
//! One-bit plane: bit = quad. Two-bit plane: line `quad / 4`, bits `2 · (quad % 4)`. Bytes: line = quad. In each line
//! the byte of row r and column c is `4 r + c % 4`. Float tiles: F32 and F16 16 rows per column, BF16 16 rows × 2 columns.

use super::dequant::{IQ4_LEVELS, MXFP4_LEVELS, e8m0_halved, half_at, iq4_xs_scale, k_scale_min, q3_scale};
use crate::model::card::TensorType;

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Columns of a group: one scale of the activations, one step of every kernel.
pub const GROUP: usize = 32;

/// How the unsigned codes of a group are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// 4 bits: 256 bytes.
    Nibble,
    /// 4 bits that index this table of unsigned bytes.
    Table(&'static [u8; 16]),
    /// Nibbles and a one-bit plane: 320 bytes.
    Five,
    /// Nibbles and a two-bit plane: 384 bytes.
    Six,
    /// Bytes: 512.
    Eight,
}

/// How the scales of a group are stored, for 16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// f16 d.
    D,
    /// f16 d, f16 m.
    Dm,
    /// u8 exponent.
    E8m0,
    /// u8 scale, u8 min; head f16 d, f16 dmin.
    Bytes,
    /// i8 scale; head f16 d.
    Signed,
    /// i8 scale of columns 0..16, i8 of 16..32; head f16 d.
    SignedHalves,
    /// 4-bit scale and 4-bit min of columns 0..16, then of 16..32; head f16 d, f16 dmin.
    NibbleHalves,
}

/// The packed form of a quantised format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    pub codes: Codes,
    pub scales: Scales,
    /// Subtracted from the (looked up) code.
    pub offset: i32,
}

static IQ4_CODES: [u8; 16] = shifted(IQ4_LEVELS, 128);
static MXFP4_CODES: [u8; 16] = shifted(MXFP4_LEVELS, 12);

const fn shifted(levels: [i8; 16], by: i16) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (levels[i] as i16 + by) as u8;
        i += 1;
    }
    codes
}

impl Packing {
    /// The packed form of `dtype`; `None` for float types.
    pub const fn of(dtype: TensorType) -> Option<Self> {
        let (codes, scales, offset) = match dtype {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            TensorType::Q4_0 => (Codes::Nibble, Scales::D, 8),
            TensorType::Q4_1 => (Codes::Nibble, Scales::Dm, 0),
            TensorType::Q5_0 => (Codes::Five, Scales::D, 16),
            TensorType::Q5_1 => (Codes::Five, Scales::Dm, 0),
            TensorType::Q8_0 => (Codes::Eight, Scales::D, 128),
            TensorType::Q2_K => (Codes::Nibble, Scales::NibbleHalves, 0),
            TensorType::Q3_K => (Codes::Nibble, Scales::SignedHalves, 4),
            TensorType::Q4_K => (Codes::Nibble, Scales::Bytes, 0),
            TensorType::Q5_K => (Codes::Five, Scales::Bytes, 0),
            TensorType::Q6_K => (Codes::Six, Scales::SignedHalves, 32),
            TensorType::IQ4_NL => (Codes::Table(&IQ4_CODES), Scales::D, 128),
            TensorType::IQ4_XS => (Codes::Table(&IQ4_CODES), Scales::Signed, 128),
            TensorType::MXFP4 => (Codes::Table(&MXFP4_CODES), Scales::E8m0, 12),
        };
        Some(Self {
            codes,
            scales,
            offset,
        })
    }

    /// The packed form of the type whose discriminant is `index`; for kernels compiled per type.
    pub const fn of_index(index: u8) -> Option<Self> {
        Self::of(TensorType::ALL[index as usize])
    }

    /// Bytes of the codes of a group.
    pub const fn code_bytes(self) -> usize {
        match self.codes {
            Codes::Nibble | Codes::Table(_) => 256,
            Codes::Five => 320,
            Codes::Six => 384,
            Codes::Eight => 512,
        }
    }

    /// Bytes of a group: codes and scales.
    pub const fn group_bytes(self) -> usize {
        self.code_bytes()
            + match self.scales {
                Scales::E8m0 | Scales::Signed => 16,
                Scales::D | Scales::Bytes | Scales::SignedHalves | Scales::NibbleHalves => 32,
                Scales::Dm => 64,
            }
    }

    /// Bytes before the groups of a record.
    pub const fn head_bytes(self) -> usize {
        match self.scales {
            Scales::D | Scales::Dm | Scales::E8m0 => 0,
            Scales::Signed | Scales::SignedHalves => 32,
            Scales::Bytes | Scales::NibbleHalves => 64,
        }
    }

    /// Groups of a record.
    pub const fn groups_per_head(self) -> usize {
        if self.head_bytes() == 0 { 1 } else { 8 }
    }

    /// Bytes of a record.
    pub const fn record_bytes(self) -> usize {
        self.head_bytes() + self.groups_per_head() * self.group_bytes()
    }

    /// Whether columns 0..16 and 16..32 of a group have scales of their own.
    pub const fn halves(self) -> bool {
        matches!(self.scales, Scales::SignedHalves | Scales::NibbleHalves)
    }

    /// Whether there is a min.
    pub const fn has_min(self) -> bool {
        matches!(self.scales, Scales::Dm | Scales::Bytes | Scales::NibbleHalves)
    }
}

/// Bytes of one packed tile of `cols` columns; `cols` is a whole number of blocks. `None` on overflow.
pub(super) fn tile_bytes(dtype: TensorType, cols: usize) -> Option<usize> {
    match (Packing::of(dtype), dtype) {
        (Some(packing), _) => (cols / GROUP / packing.groups_per_head()).checked_mul(packing.record_bytes()),
        (None, TensorType::F32) => cols.checked_mul(64),
        (None, TensorType::F16) => cols.checked_mul(32),
        (None, _) => cols.div_ceil(2).checked_mul(64),
    }
}

/// Writes one row's block bytes into lane `lane` of a zeroed tile. `source` holds whole blocks.
pub(super) fn pack_row(dtype: TensorType, source: &[u8], lane: usize, tile: &mut [u8]) {
    let Some(packing) = Packing::of(dtype) else {
        let (width, step, inner) = match dtype {
            TensorType::F32 => (4, 64, 1),
            TensorType::F16 => (2, 32, 1),
            _ => (2, 64, 2),
        };
        for (column, value) in source.chunks_exact(width).enumerate() {
            let at = column / inner * step + lane * width * inner + column % inner * width;
            tile[at..at + width].copy_from_slice(value);
        }
        return;
    };
    let blocks = source.chunks_exact(dtype.block_bytes());
    for (block, record) in blocks.zip(tile.chunks_exact_mut(packing.record_bytes())) {
        let (head, groups) = record.split_at_mut(packing.head_bytes());
        let (d, dmin) = head_fields(dtype);
        for (slot, at) in [(0, d), (1, dmin)] {
            if let Some(at) = at
                && head.len() > 32 * slot
            {
                let to = 32 * slot + 2 * lane;
                head[to..to + 2].copy_from_slice(&block[at..at + 2]);
            }
        }
        for (index, group) in groups.chunks_exact_mut(packing.group_bytes()).enumerate() {
            let (codes, scales) = group.split_at_mut(packing.code_bytes());
            put_codes(packing.codes, codes, lane, &group_codes(dtype, block, index));
            put_scales(dtype, block, index, lane, scales);
        }
    }
}

/// Where d and dmin stand in a block, for the formats whose record has a head.
fn head_fields(dtype: TensorType) -> (Option<usize>, Option<usize>) {
    match dtype {
        TensorType::Q2_K => (Some(80), Some(82)),
        TensorType::Q3_K => (Some(108), None),
        TensorType::Q4_K | TensorType::Q5_K => (Some(0), Some(2)),
        TensorType::Q6_K => (Some(208), None),
        TensorType::IQ4_XS => (Some(0), None),
        _ => (None, None),
    }
}

fn put_scales(dtype: TensorType, block: &[u8], group: usize, lane: usize, scales: &mut [u8]) {
    let mut pair = |slot: usize, at: usize| {
        let to = 32 * slot + 2 * lane;
        scales[to..to + 2].copy_from_slice(&block[at..at + 2]);
    };
    match dtype {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::IQ4_NL => pair(0, 0),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            pair(0, 0);
            pair(1, 2);
        }
        TensorType::MXFP4 => scales[lane] = block[0],
        TensorType::Q4_K | TensorType::Q5_K => {
            let (scale, min) = k_scale_min(&block[4..16], group);
            scales[lane] = scale;
            scales[16 + lane] = min;
        }
        TensorType::Q2_K => {
            scales[lane] = block[2 * group];
            scales[16 + lane] = block[2 * group + 1];
        }
        TensorType::Q3_K => {
            scales[lane] = q3_scale(&block[96..108], 2 * group) as u8;
            scales[16 + lane] = q3_scale(&block[96..108], 2 * group + 1) as u8;
        }
        TensorType::Q6_K => {
            scales[lane] = block[192 + 2 * group];
            scales[16 + lane] = block[192 + 2 * group + 1];
        }
        TensorType::IQ4_XS => scales[lane] = iq4_xs_scale(block, group) as u8,
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {}
    }
}

/// The 32 stored codes of `group` (0..8) of a block.
fn group_codes(dtype: TensorType, b: &[u8], group: usize) -> [u8; GROUP] {
    let mut codes = [0u8; GROUP];
    let mut nibbles = |qs: usize| {
        for (i, &byte) in b[qs..qs + 16].iter().enumerate() {
            codes[i] = byte & 15;
            codes[16 + i] = byte >> 4;
        }
    };
    match dtype {
        TensorType::Q4_0 | TensorType::IQ4_NL => nibbles(2),
        TensorType::Q4_1 => nibbles(4),
        TensorType::MXFP4 => nibbles(1),
        TensorType::IQ4_XS => nibbles(8 + 16 * group),
        TensorType::Q5_0 => nibbles(6),
        TensorType::Q5_1 => nibbles(8),
        TensorType::Q8_0 => each(&mut codes, &b[2..34], |byte| byte ^ 0x80),
        TensorType::Q2_K | TensorType::Q3_K => {
            let qs = if dtype == TensorType::Q2_K { 16 } else { 32 } + 32 * (group / 4);
            each(&mut codes, &b[qs..qs + 32], |byte| {
                (byte >> (2 * (group % 4))) & 3
            });
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            let qs = if dtype == TensorType::Q4_K { 16 } else { 48 } + 32 * (group / 2);
            each(&mut codes, &b[qs..qs + 32], |byte| {
                (byte >> (4 * (group % 2))) & 15
            });
        }
        TensorType::Q6_K => {
            let qs = 64 * (group / 4) + 32 * (group % 2);
            let shift = if group % 4 < 2 { 0 } else { 4 };
            each(&mut codes, &b[qs..qs + 32], |byte| (byte >> shift) & 15);
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {}
    }
    // High bits, from where the format keeps them.
    match dtype {
        TensorType::Q5_0 | TensorType::Q5_1 => {
            let at = if dtype == TensorType::Q5_0 { 2 } else { 4 };
            for (column, code) in codes.iter_mut().enumerate() {
                *code |= ((b[at + column / 8] >> (column % 8)) & 1) << 4;
            }
        }
        TensorType::Q3_K => join(&mut codes, &b[..32], |high| ((high >> group) & 1) << 2),
        TensorType::Q5_K => join(&mut codes, &b[16..48], |high| ((high >> group) & 1) << 4),
        TensorType::Q6_K => {
            let qh = 128 + 32 * (group / 4);
            join(&mut codes, &b[qh..qh + 32], |high| {
                ((high >> (2 * (group % 4))) & 3) << 4
            });
        }
        _ => {}
    }
    codes
}

fn each(codes: &mut [u8; GROUP], bytes: &[u8], code: impl Fn(u8) -> u8) {
    for (slot, &byte) in codes.iter_mut().zip(bytes) {
        *slot = code(byte);
    }
}

fn join(codes: &mut [u8; GROUP], bytes: &[u8], bits: impl Fn(u8) -> u8) {
    for (slot, &byte) in codes.iter_mut().zip(bytes) {
        *slot |= bits(byte);
    }
}

/// Writes a row's 32 codes into the lines of a group, four columns at a time.
fn put_codes(form: Codes, plane: &mut [u8], lane: usize, codes: &[u8; GROUP]) {
    let (quads, _) = codes.as_chunks::<4>();
    let quads: [u32; 8] = std::array::from_fn(|quad| u32::from_le_bytes(quads[quad]));
    let mut put = |line: usize, word: u32| {
        let at = 64 * line + 4 * lane;
        plane[at..at + 4].copy_from_slice(&word.to_le_bytes());
    };
    if form == Codes::Eight {
        for (line, word) in quads.into_iter().enumerate() {
            put(line, word);
        }
        return;
    }
    for line in 0..4 {
        put(
            line,
            (quads[line] & 0x0f0f_0f0f) | ((quads[line + 4] & 0x0f0f_0f0f) << 4),
        );
    }
    let high = |quad: usize, mask: u32, shift: usize| ((quads[quad] >> 4) & mask) << shift;
    match form {
        Codes::Five => put(
            4,
            (0..8).fold(0, |word, quad| word | high(quad, 0x0101_0101, quad)),
        ),
        Codes::Six => {
            for half in 0..2 {
                let word = (0..4).fold(0, |word, quad| {
                    word | high(4 * half + quad, 0x0303_0303, 2 * quad)
                });
                put(4 + half, word);
            }
        }
        Codes::Nibble | Codes::Table(_) | Codes::Eight => {}
    }
}

/// The code of `column` (0..32) of row `lane`, looked up where the format has a table.
pub(super) fn code(packing: Packing, group: &[u8], lane: usize, column: usize) -> u8 {
    let quad = column / 4;
    let byte = 4 * lane + column % 4;
    if packing.codes == Codes::Eight {
        return group[64 * quad + byte];
    }
    let low = (group[64 * (quad % 4) + byte] >> (4 * (quad / 4))) & 15;
    match packing.codes {
        Codes::Table(table) => table[usize::from(low)],
        Codes::Five => low | (((group[256 + byte] >> quad) & 1) << 4),
        Codes::Six => low | (((group[256 + 64 * (quad / 4) + byte] >> (2 * (quad % 4))) & 3) << 4),
        Codes::Nibble | Codes::Eight => low,
    }
}

/// Scale and min of row `lane` for columns 0..16 (`half` 0) or 16..32 (`half` 1) of a group.
pub(super) fn scale_min(packing: Packing, head: &[u8], group: &[u8], lane: usize, half: usize) -> (f32, f32) {
    let scales = &group[packing.code_bytes()..];
    let signed = |at: usize| half_at(head, 2 * lane) * f32::from(scales[at] as i8);
    match packing.scales {
        Scales::D => (half_at(scales, 2 * lane), 0.0),
        Scales::Dm => (half_at(scales, 2 * lane), half_at(scales, 32 + 2 * lane)),
        Scales::E8m0 => (e8m0_halved(scales[lane]), 0.0),
        Scales::Bytes => (
            half_at(head, 2 * lane) * f32::from(scales[lane]),
            -(half_at(head, 32 + 2 * lane) * f32::from(scales[16 + lane])),
        ),
        Scales::Signed => (signed(lane), 0.0),
        Scales::SignedHalves => (signed(16 * half + lane), 0.0),
        Scales::NibbleHalves => {
            let byte = scales[16 * half + lane];
            (
                half_at(head, 2 * lane) * f32::from(byte & 15),
                -(half_at(head, 32 + 2 * lane) * f32::from(byte >> 4)),
            )
        }
    }
}

/// Reads row `lane` of a tile back as values: `out.len()` columns.
pub(super) fn unpack_row(dtype: TensorType, tile: &[u8], lane: usize, out: &mut [f32]) {
    let Some(packing) = Packing::of(dtype) else {
        for (column, out) in out.iter_mut().enumerate() {
            *out = match dtype {
                TensorType::F32 => {
                    let at = 64 * column + 4 * lane;
                    f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
                }
                TensorType::F16 => half_at(tile, 32 * column + 2 * lane),
                _ => {
                    let at = 64 * (column / 2) + 4 * lane + 2 * (column % 2);
                    half::bf16::from_le_bytes([tile[at], tile[at + 1]]).to_f32()
                }
            };
        }
        return;
    };
    let records = tile.chunks_exact(packing.record_bytes());
    for (record, out) in records.zip(out.chunks_exact_mut(GROUP * packing.groups_per_head())) {
        let (head, groups) = record.split_at(packing.head_bytes());
        let groups = groups.chunks_exact(packing.group_bytes());
        for (group, out) in groups.zip(out.chunks_exact_mut(GROUP)) {
            for (half, out) in out.chunks_exact_mut(16).enumerate() {
                let (scale, min) = scale_min(packing, head, group, lane, half);
                for (column, out) in out.iter_mut().enumerate() {
                    let code = i32::from(code(packing, group, lane, 16 * half + column));
                    let value = scale * (code - packing.offset) as f32;
                    // Adding a zero min would turn −0 into +0.
                    *out = if packing.has_min() { value + min } else { value };
                }
            }
        }
    }
}
