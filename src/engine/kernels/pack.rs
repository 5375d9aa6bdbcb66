//! `PackedMatrix`: weights as the kernels read them.
//!
//! In: one or more tensors of a model file, stacked by rows. Out: R16 tiles in one region of memory.
//! Invariant: lossless where a part is held as stored; every segment starts at a tile; rows are numbered through over
//! all parts without gaps.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::activations::Needs;
use super::dequant::row_bytes;
use super::layout::{TILE_ROWS, pack_row, tile_bytes, unpack_row};
use super::requantise::{converts, requantise};
use crate::base::{Bytes, Code, Problem};
use crate::engine::team::Team;
use crate::model::card::TensorType;
use crate::sys::memory::Region;

/// A tensor to pack: `rows × cols` values in row-major blocks.
#[derive(Clone, Copy, Debug)]
pub struct PackSource<'a> {
    /// Type of the bytes.
    pub dtype: TensorType,
    /// Type to hold them as; see [`converts`].
    pub held: TensorType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Exactly `rows × row_bytes(dtype, cols)` bytes.
    pub bytes: &'a [u8],
    /// Row `i` of the result is row `row_order[i]` of the source; `None` keeps the order.
    pub row_order: Option<&'a [u32]>,
}

/// Rows of one type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub dtype: TensorType,
    /// First logical row.
    pub first_row: usize,
    pub rows: usize,
    /// Where its tiles start in the region.
    pub start: usize,
    pub tile_bytes: usize,
}

impl Segment {
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }
}

/// A weight matrix in R16 tiles.
///
/// Type invariant: `segment.start + segment.tiles() × segment.tile_bytes ≤ region.len()` for every segment, and
/// `tile_bytes` is what `layout::tile_bytes` says for its type and `cols`.
#[derive(Debug)]
pub struct PackedMatrix {
    region: Region,
    segments: Vec<Segment>,
    rows: usize,
    cols: usize,
}

/// Packs the rows of `part`, checked before, into `tiles`.
fn fill_tiles(
    team: &Team,
    part: &PackSource<'_>,
    tile_bytes: usize,
    tiles: &mut [u8],
) -> Result<(), Problem> {
    let in_row = part.bytes.len() / part.rows;
    let held_row = row_bytes(part.held, part.cols).unwrap_or_default();
    let failed = Mutex::new(None);
    team.for_each_chunk(tiles, tile_bytes, &|index, tile| {
        let converted = part.held != part.dtype;
        let mut values = vec![0f32; if converted { part.cols } else { 0 }];
        let mut blocks = vec![0u8; if converted { held_row } else { 0 }];
        for lane in 0..TILE_ROWS.min(part.rows - index * TILE_ROWS) {
            let row = index * TILE_ROWS + lane;
            let from = part.row_order.map_or(row, |order| order[row] as usize);
            let source = &part.bytes[from * in_row..(from + 1) * in_row];
            if !converted {
                pack_row(part.held, source, lane, tile);
                continue;
            }
            match requantise(part.dtype, source, &mut values, part.held, &mut blocks) {
                Ok(()) => pack_row(part.held, &blocks, lane, tile),
                Err(problem) => {
                    *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(problem);
                }
            }
        }
    });
    match failed
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        Some(problem) => Err(problem),
        None => Ok(()),
    }
}

impl PackedMatrix {
    /// Packs `parts`, one below the other, on the calling thread.
    ///
    /// # Errors
    /// As [`Self::pack_with`].
    pub fn pack(parts: &[PackSource<'_>], huge_pages: bool) -> Result<Self, Problem> {
        Self::pack_with(&Team::single()?, parts, huge_pages)
    }

    /// Packs `parts`, one below the other, tiles shared out among the team.
    ///
    /// # Errors
    /// `model_malformed` when shapes, byte counts or row orders do not fit each other; `memory_short` when the
    /// system has no room.
    pub fn pack_with(team: &Team, parts: &[PackSource<'_>], huge_pages: bool) -> Result<Self, Problem> {
        let malformed = |what: String| {
            Problem::new(
                Code::ModelMalformed,
                what,
                "the file is damaged or of an unknown kind; fetch it again",
            )
        };
        let too_large = || malformed("a weight matrix is larger than memory can address".to_owned());
        let cols = parts.first().map_or(0, |part| part.cols);
        let (mut rows, mut end) = (0usize, 0usize);
        let mut segments = Vec::with_capacity(parts.len());
        for part in parts {
            let in_row = row_bytes(part.dtype, part.cols).ok_or_else(|| {
                malformed(format!(
                    "{} columns are not a whole number of {} blocks",
                    part.cols,
                    part.dtype.as_str()
                ))
            })?;
            if part.cols != cols || cols == 0 || part.rows == 0 {
                return Err(malformed(format!(
                    "a {}×{} tensor cannot be stacked with {cols} columns",
                    part.rows, part.cols
                )));
            }
            if in_row.checked_mul(part.rows) != Some(part.bytes.len()) {
                return Err(malformed(format!(
                    "{} bytes cannot hold a {}×{} tensor of {}",
                    part.bytes.len(),
                    part.rows,
                    part.cols,
                    part.dtype.as_str()
                )));
            }
            if let Some(order) = part.row_order
                && (order.len() != part.rows || order.iter().any(|&row| row as usize >= part.rows))
            {
                return Err(malformed(format!("a row order does not fit {} rows", part.rows)));
            }
            if !converts(part.dtype, part.held) || row_bytes(part.held, cols).is_none() {
                return Err(malformed(format!(
                    "{} columns of {} cannot be held as {}",
                    cols,
                    part.dtype.as_str(),
                    part.held.as_str()
                )));
            }
            let tile = tile_bytes(part.held, cols).ok_or_else(too_large)?;
            let segment = Segment {
                dtype: part.held,
                first_row: rows,
                rows: part.rows,
                start: end,
                tile_bytes: tile,
            };
            let bytes = tile.checked_mul(segment.tiles()).ok_or_else(too_large)?;
            end = end
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(64))
                .ok_or_else(too_large)?;
            rows = rows.checked_add(part.rows).ok_or_else(too_large)?;
            segments.push(segment);
        }
        if segments.is_empty() {
            return Err(malformed("a weight matrix has no parts".to_owned()));
        }
        let mut region = Region::new(end, huge_pages)?;
        for (part, segment) in parts.iter().zip(&segments) {
            let end = segment.start + segment.tiles() * segment.tile_bytes;
            fill_tiles(
                team,
                part,
                segment.tile_bytes,
                &mut region.bytes_mut()[segment.start..end],
            )?;
        }
        Ok(Self {
            region,
            segments,
            rows,
            cols,
        })
    }

    /// Output features, over all parts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes held, padding included.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.region.len() as u64)
    }

    /// Whether huge pages were asked for.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.region.huge_pages()
    }

    /// Bytes held by format, such as `Q4_K (R16)`; for read-back.
    #[must_use]
    pub fn format_bytes(&self) -> BTreeMap<String, Bytes> {
        let mut formats = BTreeMap::new();
        for segment in &self.segments {
            let bytes: &mut Bytes = formats
                .entry(format!("{} (R16)", segment.dtype.as_str()))
                .or_default();
            bytes.0 += (segment.tiles() * segment.tile_bytes) as u64;
        }
        formats
    }

    /// Type, rows and bytes held of each part, in order, tiles filled up; for read-back.
    pub fn parts(&self) -> impl Iterator<Item = (TensorType, usize, Bytes)> {
        self.segments.iter().map(|segment| {
            let bytes = segment.tiles() * segment.tile_bytes;
            (segment.dtype, segment.rows, Bytes(bytes as u64))
        })
    }

    /// The memory that holds it.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// What a multiplication with this matrix needs of its input; join several with [`Needs::and`].
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.segments.iter().fold(Needs::default(), |needs, segment| {
            needs.and(Needs::of(segment.dtype))
        })
    }

    /// Row `row` as values, exact (embedding look-up).
    ///
    /// # Panics
    /// If `row` is not below [`Self::rows`] or `out` is not [`Self::cols`] long.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "length of an embedding row");
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let at = self
            .segments
            .partition_point(|segment| segment.first_row + segment.rows <= row);
        let segment = &self.segments[at];
        let row = row - segment.first_row;
        let tile = self.tiles(segment, row / TILE_ROWS, 1);
        unpack_row(segment.dtype, tile, row % TILE_ROWS, out);
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bytes of `count` tiles from `first` of a segment.
    pub(super) fn tiles(&self, segment: &Segment, first: usize, count: usize) -> &[u8] {
        let start = segment.start + first * segment.tile_bytes;
        &self.region.bytes()[start..start + count * segment.tile_bytes]
    }
}
