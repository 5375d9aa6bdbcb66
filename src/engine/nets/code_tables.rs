//! Embeddings of codes: the talker's table for codebook 0 and control rows, the predictor's for the other codebooks.
//!
//! In: codes of frames. Out: vectors of the talker's width. Invariant: shared by talker and predictor, held once.

use super::load::Loader;
use crate::base::Problem;
use crate::engine::kernels::PackedMatrix;
use crate::model::families::TensorRole;
use crate::model::speech::SpeechCard;
use crate::model::speech_tensors::predictor_embedding;

/// The tables.
#[derive(Debug)]
pub struct CodeTables {
    /// Codes of codebook 0, then control rows.
    first: PackedMatrix,
    /// Codes of codebook i + 1.
    others: Vec<PackedMatrix>,
}

impl CodeTables {
    /// Packs the tables; `loader` is the talker's.
    pub(super) fn load(loader: &mut Loader<'_, '_>, speech: &SpeechCard) -> Result<Self, Problem> {
        let hidden = loader.spec().hidden;
        let first = loader.matrix(&[TensorRole::TokenEmbedding], 0, None)?;
        let others = (0..speech.codebooks - 1)
            .map(|group| loader.named_matrix(&predictor_embedding(group), speech.predictor.vocab, hidden))
            .collect::<Result<_, _>>()?;
        Ok(Self { first, others })
    }

    /// Width of a row: the talker's.
    #[must_use]
    pub fn width(&self) -> usize {
        self.first.cols()
    }

    /// Codebooks of a frame.
    #[must_use]
    pub fn codebooks(&self) -> usize {
        self.others.len() + 1
    }

    /// Entries of codebook `book`; of the first, control rows included.
    #[must_use]
    pub fn rows(&self, book: usize) -> usize {
        self.table(book).rows()
    }

    fn table(&self, book: usize) -> &PackedMatrix {
        match book {
            0 => &self.first,
            other => &self.others[other - 1],
        }
    }

    /// The row of `code` in codebook `book`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another width.
    pub fn row(&self, book: usize, code: u32, out: &mut [f32]) {
        self.table(book).row_f32(code as usize, out);
    }

    /// Adds the rows of every code of a frame to `out`; `scratch` is as wide.
    ///
    /// # Panics
    /// If a code is outside its table or a width differs.
    pub fn add_frame(&self, codes: &[u16], scratch: &mut [f32], out: &mut [f32]) {
        for (book, &code) in codes.iter().enumerate() {
            self.row(book, u32::from(code), scratch);
            for (sum, &value) in out.iter_mut().zip(scratch.iter()) {
                *sum += value;
            }
        }
    }

    /// Whether huge pages were asked for on every table.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.first.huge_pages() && self.others.iter().all(PackedMatrix::huge_pages)
    }
}
