//! Rotary embedding: the angles of a pass.
//!
//! In: a [`RopeSpec`] and the positions of a pass's rows. Out: cosines and sines for [`Kernels::rope`].
//! Invariant: angles are computed in f64, so late positions are as exact as early ones; memory grows with the rows of
//! a pass, not with the context.
//!
//! [`Kernels::rope`]: crate::engine::kernels::Kernels::rope

use crate::base::Bytes;
use crate::model::card::RopeSpec;

/// Cosines and sines of the rows of one pass for one kind of rotation.
#[derive(Debug)]
pub struct RopeRows {
    spec: RopeSpec,
    /// Angle of one position, per pair of dimensions.
    frequencies: Vec<f64>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl RopeRows {
    /// An empty table for rotations of this kind.
    #[must_use]
    pub fn new(spec: &RopeSpec) -> Self {
        let pairs = spec.dims / 2;
        let frequencies = (0..pairs)
            .map(|pair| {
                let exponent = -2.0 * pair as f64 / spec.dims as f64;
                let divisor = spec.frequency_divisors.get(pair).map_or(1.0, |&d| f64::from(d));
                f64::from(spec.base).powf(exponent) / divisor / f64::from(spec.position_divisor)
            })
            .collect();
        Self {
            spec: spec.clone(),
            frequencies,
            cosines: Vec::new(),
            sines: Vec::new(),
        }
    }

    /// The kind of rotation.
    #[must_use]
    pub fn spec(&self) -> &RopeSpec {
        &self.spec
    }

    /// Bytes of the tables as they have grown.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let tables = (self.cosines.capacity() + self.sines.capacity()) * size_of::<f32>();
        Bytes((tables + self.frequencies.capacity() * size_of::<f64>()) as u64)
    }

    /// Computes the rows of a pass.
    pub fn set(&mut self, positions: impl Iterator<Item = usize>) {
        self.cosines.clear();
        self.sines.clear();
        for position in positions {
            for frequency in &self.frequencies {
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                self.cosines.push(cosine as f32);
                self.sines.push(sine as f32);
            }
        }
    }

    /// Cosines and sines of row `row` of the pass.
    #[must_use]
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let pairs = self.frequencies.len();
        let range = row * pairs..(row + 1) * pairs;
        (&self.cosines[range.clone()], &self.sines[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_follow_the_definition_at_late_positions_too() {
        let mut rows = RopeRows::new(&RopeSpec {
            base: 10_000.0,
            dims: 8,
            position_divisor: 8.0,
            frequency_divisors: vec![1.0, 2.0, 4.0, 8.0],
        });
        rows.set([0, 1_000_003].into_iter());
        assert_eq!(rows.row(0), (&[1f32; 4][..], &[0f32; 4][..]));
        let (cosines, sines) = rows.row(1);
        for pair in 0..4 {
            // base^(−2·pair/8) = 10^−pair
            let angle = 1_000_003.0 / 8.0 * 0.1f64.powi(pair) / f64::from(1 << pair);
            let at = pair as usize;
            assert!((f64::from(cosines[at]) - angle.cos()).abs() < 1e-6);
            assert!((f64::from(sines[at]) - angle.sin()).abs() < 1e-6);
        }
    }
}
