//! LayerNorm, and rows scaled or shifted by vectors: for networks where they are too small for kernels of their own.
//!
//! In: rows of channels. Out: rows of channels. Invariant: sums run in f64, in one order.

/// LayerNorm of each row of `x` (rows of `w.len()`) in place: `(x − mean) / sqrt(variance + eps) · w + b`.
///
/// # Panics
/// If `w` and `b` differ in length or `x` is not whole rows.
pub fn layer_norm_here(x: &mut [f32], w: &[f32], b: &[f32], eps: f32) {
    let width = w.len();
    assert!(
        width > 0 && b.len() == width && x.len().is_multiple_of(width),
        "whole rows of a norm"
    );
    for row in x.chunks_exact_mut(width) {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(eps)).sqrt();
        for (x, (w, b)) in row.iter_mut().zip(w.iter().zip(b)) {
            *x = ((f64::from(*x) - mean) * factor) as f32 * w + b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_gets_mean_and_variance_of_the_weights() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        layer_norm_here(&mut x, &[1.0, 1.0, 1.0, 2.0], &[0.0, 0.0, 0.5, 0.0], 0.0);
        let unit = 1.25f32.sqrt().recip();
        let wanted = [-1.5 * unit, -0.5 * unit, 0.5 * unit + 0.5, 3.0 * unit];
        for (x, wanted) in x.iter().zip(wanted) {
            assert!((x - wanted).abs() < 1e-6);
        }
        let mut level = [10.0; 8];
        layer_norm_here(&mut level, &[3.0; 4], &[0.25; 4], 1e-5);
        assert!(level.iter().all(|x| (x - 0.25).abs() < 1e-6));
    }
}
