//! From a model file's tensors to packed weights.
//!
//! In: [`Weights`], the card's names and shapes. Out: [`PackedMatrix`] and norm vectors.
//! Invariant: tensor by tensor; the file's pages of a tensor are given back once it is packed, so loading needs the
//! packed weights and one tensor, never the file twice. A missing or mis-shaped tensor is named with both shapes.

use std::collections::BTreeMap;

use crate::base::{Bytes, Code, Problem};
use crate::engine::kernels::{PackSource, PackedMatrix};
use crate::model::card::{DecoderSpec, ModelCard, ModelFormat, RopeSpec, TensorType};
use crate::model::families::{TensorRole, required_shape, tensor_name};
use crate::model::weight_path::{WeightPath, is_table};
use crate::model::weights::{TensorView, Weights};

/// How far loading has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the file that are packed.
    pub done: Bytes,
    /// Bytes of all tensors.
    pub total: Bytes,
}

/// Called after each tensor.
pub type OnProgress<'p> = dyn FnMut(LoadProgress) + 'p;

/// How matrices are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In which types.
    pub path: WeightPath,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

/// One network of a model's files: its shape, and how its tensors are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network<'a> {
    pub spec: &'a DecoderSpec,
    pub format: ModelFormat,
    pub family: &'a str,
    /// What stands before the family's names.
    pub prefix: &'a str,
}

/// One tensor of the file as it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldTensor {
    /// Its name in the file.
    pub name: String,
    /// Its type in the file.
    pub stored: TensorType,
    /// Bytes held for it.
    pub bytes: Bytes,
    /// The type it is held as; `None` for a vector, held as F32 and not multiplied by a product kernel.
    pub held: Option<TensorType>,
}

/// Reads the tensors of one network.
pub(super) struct Loader<'a, 'p> {
    network: Network<'a>,
    weights: &'a Weights,
    held: Held,
    on_progress: &'a mut OnProgress<'p>,
    progress: LoadProgress,
    formats: BTreeMap<String, Bytes>,
    tensors: Vec<HeldTensor>,
}

impl<'a, 'p> Loader<'a, 'p> {
    /// A loader of the one network of a model of text.
    pub(super) fn of_card(
        card: &'a ModelCard,
        weights: &'a Weights,
        held: Held,
        on_progress: &'a mut OnProgress<'p>,
    ) -> Self {
        let network = Network {
            spec: &card.decoder,
            format: card.format,
            family: &card.family,
            prefix: "",
        };
        let total = Bytes(card.tensors.iter().map(|tensor| tensor.bytes.0).sum());
        Self::new(network, weights, held, total, on_progress)
    }

    /// A loader of `network`, which has `total` bytes to load.
    pub(super) fn new(
        network: Network<'a>,
        weights: &'a Weights,
        held: Held,
        total: Bytes,
        on_progress: &'a mut OnProgress<'p>,
    ) -> Self {
        Self {
            network,
            weights,
            held,
            on_progress,
            progress: LoadProgress {
                done: Bytes(0),
                total,
            },
            formats: BTreeMap::new(),
            tensors: Vec::new(),
        }
    }

    /// The network's shape.
    pub(super) fn spec(&self) -> &'a DecoderSpec {
        self.network.spec
    }

    /// Every tensor read so far.
    pub(super) fn take_held(&mut self) -> Vec<HeldTensor> {
        std::mem::take(&mut self.tensors)
    }

    /// Bytes held so far, by format as held.
    pub(super) fn into_format_bytes(self) -> BTreeMap<String, Bytes> {
        self.formats
    }

    /// A norm's weights, with the family's offset added.
    pub(super) fn norm(&mut self, role: TensorRole, layer: usize) -> Result<Vec<f32>, Problem> {
        let (name, view) = self.find(role, layer)?;
        let mut values = float_values(&name, view)?;
        for value in &mut values {
            *value += self.network.spec.norm_weight_offset;
        }
        self.hold_vector(&name, view.dtype, values.len());
        self.packed(&name, view.bytes.len());
        Ok(values)
    }

    /// One matrix of the rows of several tensors, one below the other. `rope` gives the rotated rows of q and k
    /// where the file has them interleaved.
    pub(super) fn matrix(
        &mut self,
        roles: &[TensorRole],
        layer: usize,
        rope: Option<&RopeSpec>,
    ) -> Result<PackedMatrix, Problem> {
        let spec = self.network.spec;
        let mut found = Vec::with_capacity(roles.len());
        for &role in roles {
            let (name, view) = self.find(role, layer)?;
            let order = rope
                .filter(|_| spec.qk_rows_interleaved && matches!(role, TensorRole::Q | TensorRole::K))
                .map(|rope| uninterleaved_rows(view.shape[0] as usize, spec.head_dim, rope.dims));
            found.push((name, view, order));
        }
        let sources: Vec<PackSource<'_>> = found
            .iter()
            .map(|(name, view, order)| PackSource {
                dtype: view.dtype,
                held: self.held.path.held(view.dtype, view.shape[1], is_table(name)),
                rows: view.shape[0] as usize,
                cols: view.shape[1] as usize,
                bytes: view.bytes,
                row_order: order.as_deref(),
            })
            .collect();
        let matrix = PackedMatrix::pack(&sources, self.held.huge_pages).map_err(|mut problem| {
            let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
            problem.what = format!("`{}`: {}", names.join("`, `"), problem.what);
            problem
        })?;
        self.hold_matrix(
            &matrix,
            found.iter().map(|(name, view, _)| (name.as_str(), view.dtype)),
        );
        for (name, view, _) in &found {
            self.packed(name, view.bytes.len());
        }
        Ok(matrix)
    }

    /// A matrix by name.
    pub(super) fn named_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<PackedMatrix, Problem> {
        let view = self.view(name, &[rows as u64, cols as u64])?;
        let source = PackSource {
            dtype: view.dtype,
            held: self.held.path.held(view.dtype, cols as u64, is_table(name)),
            rows,
            cols,
            bytes: view.bytes,
            row_order: None,
        };
        let matrix = PackedMatrix::pack(&[source], self.held.huge_pages).map_err(|mut problem| {
            problem.what = format!("`{name}`: {}", problem.what);
            problem
        })?;
        self.hold_matrix(&matrix, std::iter::once((name, view.dtype)));
        self.packed(name, view.bytes.len());
        Ok(matrix)
    }

    /// A vector by name, such as a bias.
    pub(super) fn named_vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, Problem> {
        let view = self.view(name, &[len as u64])?;
        let values = float_values(name, view)?;
        self.hold_vector(name, view.dtype, values.len());
        self.packed(name, view.bytes.len());
        Ok(values)
    }

    /// Notes a vector for read-back.
    fn hold_vector(&mut self, name: &str, stored: TensorType, len: usize) {
        let bytes = Bytes((len * size_of::<f32>()) as u64);
        self.formats.entry("F32".to_owned()).or_default().0 += bytes.0;
        self.tensors.push(HeldTensor {
            name: name.to_owned(),
            stored,
            bytes,
            held: None,
        });
    }

    /// Notes the parts of a matrix for read-back; `stored` in the order they were packed.
    fn hold_matrix<'n>(
        &mut self,
        matrix: &PackedMatrix,
        stored: impl Iterator<Item = (&'n str, TensorType)>,
    ) {
        for (format, bytes) in matrix.format_bytes() {
            self.formats.entry(format).or_default().0 += bytes.0;
        }
        for ((name, stored), (held, _, bytes)) in stored.zip(matrix.parts()) {
            self.tensors.push(HeldTensor {
                name: name.to_owned(),
                stored,
                bytes,
                held: Some(held),
            });
        }
    }

    /// The tensor of a role, of the shape the network needs.
    fn find(&self, role: TensorRole, layer: usize) -> Result<(String, TensorView<'a>), Problem> {
        let network = &self.network;
        let wanted = required_shape(role, network.spec);
        let name = tensor_name(network.format, network.family, role, layer);
        let (Some(wanted), Some(name)) = (wanted, name) else {
            return Err(Problem::new(
                Code::Internal,
                format!(
                    "family `{}` has no tensor for {role:?}, but its network asks for one",
                    network.family
                ),
                "report this with the model's name",
            ));
        };
        let name = format!("{}{name}", network.prefix);
        let view = self.view(&name, &wanted)?;
        Ok((name, view))
    }

    /// A tensor by name, of the shape the network needs.
    fn view(&self, name: &str, wanted: &[u64]) -> Result<TensorView<'a>, Problem> {
        let Some(view) = self.weights.tensor(name) else {
            return Err(Problem::new(
                Code::ModelMalformed,
                format!("the tensor `{name}` of shape {wanted:?} is missing"),
                "fetch the model again, or use another conversion of it",
            )
            .why("the network cannot be computed without it"));
        };
        if view.shape != wanted {
            return Err(Problem::new(
                Code::ModelMalformed,
                format!(
                    "the tensor `{name}` has the shape {:?}; the network needs {wanted:?}",
                    view.shape
                ),
                "fetch the model again, or use another conversion of it",
            )
            .why("the file's sizes and its tensors contradict each other"));
        }
        Ok(view)
    }

    fn packed(&mut self, name: &str, bytes: usize) {
        if let Err(error) = self.weights.release(name) {
            // The system keeps the pages until it needs them: more memory for a while, nothing wrong.
            tracing::warn!(tensor = name, %error, "could not give back file pages");
        }
        self.progress.done.0 += bytes as u64;
        (self.on_progress)(self.progress);
    }
}

/// Where each row of a q or k matrix with pairs (i, i + rotated/2) stands in a file with pairs (2i, 2i + 1).
fn uninterleaved_rows(rows: usize, head_dim: usize, rotated: usize) -> Vec<u32> {
    let half = rotated / 2;
    (0..rows)
        .map(|row| {
            let (head, within) = (row / head_dim, row % head_dim);
            let from = match within {
                first if first < half => 2 * first,
                second if second < rotated => 2 * (second - half) + 1,
                unrotated => unrotated,
            };
            (head * head_dim + from) as u32
        })
        .collect()
}

pub(super) fn float_values(name: &str, view: TensorView<'_>) -> Result<Vec<f32>, Problem> {
    let pairs = || view.bytes.as_chunks::<2>().0.iter();
    Ok(match view.dtype {
        TensorType::F32 => view
            .bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect(),
        TensorType::F16 => pairs().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
        TensorType::BF16 => pairs().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        other => {
            return Err(Problem::new(
                Code::ModelUnsupported,
                format!("the norm `{name}` is stored as {}", other.as_str()),
                "use a file whose norms are F32, F16 or BF16, as every common converter writes them",
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_uninterleaved_within_each_head() {
        assert_eq!(uninterleaved_rows(8, 4, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(uninterleaved_rows(6, 6, 4), [0, 2, 1, 3, 4, 5]);
    }

    #[test]
    fn float_vectors_are_read_in_every_type_and_others_refused() {
        let view = |dtype, bytes| TensorView {
            dtype,
            shape: &[2],
            bytes,
        };
        let f32s: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(
            float_values("n", view(TensorType::F32, &f32s)).unwrap(),
            [1.5, -2.0]
        );
        let halves: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|&x| half::f16::from_f32(x).to_le_bytes())
            .collect();
        assert_eq!(
            float_values("n", view(TensorType::F16, &halves)).unwrap(),
            [1.5, -2.0]
        );
        let brains: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
            .collect();
        assert_eq!(
            float_values("n", view(TensorType::BF16, &brains)).unwrap(),
            [1.5, -2.0]
        );
        let problem = float_values("blk.0.attn_norm.weight", view(TensorType::Q8_0, &brains)).unwrap_err();
        assert!(problem.what.contains("blk.0.attn_norm.weight"), "{problem}");
    }
}
