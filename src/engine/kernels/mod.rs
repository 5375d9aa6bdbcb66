//! Kernels: packed weights, and every operation a network does on them, for the best instruction set at hand.
//!
//! In: tensors as model files hold them, rows of `f32`. Out: rows of `f32`.
//! Invariant: a token's results are the same bit for bit whatever the number of tokens in the pass, of threads, or the
//! way work is split; the instruction set is chosen once, at run time, and can be lowered but never raised.
//!
//! ```text
//! let kernels: &'static Kernels = select("best")?;            // or "scalar", "avx2", …, see CAPS
//! let team = Team::new("decoder", &cpus, threads, pin)?;      // worker 0 = the calling thread
//! team.adopt_current_thread()?;
//!
//! let qkv = PackedMatrix::pack(&[PackSource { dtype, held: dtype, rows, cols, bytes, row_order: None }, …], huge_pages)?;
//! // the same in parallel: PackedMatrix::pack_with(&team, &[…], huge_pages)?
//! qkv.row_f32(token, &mut embedding);                         // exact; for embedding tables
//! let needs = qkv.needs().and(other.needs());                 // all matrices that read the same input
//!
//! let mut x = Activations::new();                             // kept between passes
//! x.load(kernels, &team, &rows /* T × cols */, T, cols, needs);
//! kernels.linear(&team, &qkv, &x, &mut out /* T × qkv.rows() */);
//!
//! kernels.rms_norm(&team, x, w, eps, out);    kernels.rms_norm_here(x /* rows of w.len() */, w, eps);
//! kernels.rope(heads /* one token: n × head_dim */, head_dim, cos, sin);
//! kernels.gated(&team, activation, gate_up /* T × 2F, gate‖up */, F, out /* T × F */);
//! kernels.add_assign(&team, x, y);   kernels.scale(x, factor);   kernels.softcap(&team, x, cap);   kernels.argmax(x);
//!
//! let shape = KvShape::new(kv_heads, head_dim, positions, Dtype::F16)?;    // one layer, one sequence
//! shape.store(&mut keys /* shape.key_bytes() */, &mut values /* shape.value_bytes() */, position, k, v);
//! kernels.attention(&team, &AttentionSpec { shape, heads, window, scale }, &[AttentionInput { keys, values, position,
//!     tokens, row }, …], queries, query_stride, out /* rows × heads·head_dim */);
//! ```
//!
//! Errors are for what files and machines can cause; a shape that does not fit is a bug of the caller and panics.

mod activations;
mod attention;
mod conv;
pub mod dequant;
mod layout;
mod ops;
mod pack;
mod requantise;
mod scalar;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

pub use activations::{Activations, Needs};
pub use attention::{AttentionInput, AttentionSpec, KV_BLOCK, KvShape};
pub use conv::{ConvSpec, Store};
pub use pack::{PackSource, PackedMatrix};
pub use requantise::converts;

use crate::base::{Code, Problem};
use crate::model::card::TensorType;

/// One instruction set's functions. Only the `table()` of its file makes one, after checking every CPU feature its
/// functions use; so holding a `&Kernels` proves that calling them is sound.
pub struct Kernels {
    /// `x86_64-avx512_vnni`, …
    name: &'static str,
    /// The name a plan's `isa_cap` uses.
    cap: &'static str,
    /// Products of a run of tiles with a panel, `[tile][token][16 rows]`.
    dot: fn(&Run<'_>, &mut [f32]),
    /// The inner loop of attention.
    accumulate: fn(&attention::Accumulate<'_>, &mut [f32]),
    /// The table whose products serve all types but BF16, where that is another one.
    extends: Option<&'static str>,
    /// Whether `dot` reads activations that meet BF16 weights rounded to BF16, two columns to a word.
    bf16_pairs: bool,
    /// Element-wise functions.
    vector: vector::Vector,
}

/// Tiles of one type and the tokens to multiply them with: for each tap, columns `tap · cols ..` of each tile with
/// tokens `first + tap · dilation ..` of the panel, `tokens` of them. `tiles` is `count × tile_bytes` long, `tile_bytes`
/// is what the layout says for `dtype` and `taps × cols` columns, and the panel holds what `dtype` needs for `cols`.
struct Run<'a> {
    dtype: TensorType,
    tiles: &'a [u8],
    count: usize,
    tile_bytes: usize,
    taps: usize,
    dilation: usize,
    cols: usize,
    panel: &'a activations::Panel,
    first: usize,
    tokens: usize,
}

impl Run<'_> {
    /// Proves the bounds every kernel relies on.
    ///
    /// # Panics
    /// If tiles, panel or output do not have the lengths `dtype`, `taps` and `cols` imply.
    fn check(&self, out: usize) {
        let all = self.cols.checked_mul(self.taps);
        // An odd column of BF16 shares its word with the next tap's first.
        let whole = self.taps == 1 || self.dtype != TensorType::BF16 || self.cols.is_multiple_of(2);
        let last = self
            .taps
            .checked_sub(1)
            .and_then(|before| before.checked_mul(self.dilation))
            .and_then(|shift| shift.checked_add(self.first)?.checked_add(self.tokens));
        let fits = all.and_then(|all| layout::tile_bytes(self.dtype, all)) == Some(self.tile_bytes)
            && whole
            && self.cols.is_multiple_of(self.dtype.block_len())
            && Some(self.tiles.len()) == self.count.checked_mul(self.tile_bytes)
            && out == self.count * self.tokens * layout::TILE_ROWS
            && last.is_some_and(|end| end <= self.panel.width)
            && self.panel.holds(self.dtype, self.cols);
        assert!(fits, "a kernel's input does not have the shape it says");
    }

    /// Bytes of a tile from tap to tap. Call only after [`Self::check`].
    fn tap_bytes(&self) -> usize {
        self.tile_bytes / self.taps
    }
}

impl Kernels {
    /// Architecture and instruction set, such as `x86_64-avx512_vnni`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Name of the table whose product multiplies weights of this type, when this table is in use.
    #[must_use]
    pub fn product_of(&self, dtype: TensorType) -> &'static str {
        match self.extends {
            Some(base) if dtype != TensorType::BF16 => base,
            _ => self.name,
        }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Kernels").field(&self.name).finish()
    }
}

/// Caps a plan may name, lowest first. A cap whose table this CPU lacks gives the best one below it.
const CAPS: &[&str] = &["scalar", "avx2", "avx_vnni", "avx512_vnni", "avx512_bf16"];

fn tables() -> &'static [Kernels] {
    static TABLES: OnceLock<Vec<Kernels>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = vec![scalar::table()];
        #[cfg(target_arch = "x86_64")]
        tables.extend(x86_64::tables());
        tables
    })
}

/// Names of the tables this CPU can run, lowest first.
#[must_use]
pub fn available() -> Vec<&'static str> {
    tables().iter().map(Kernels::name).collect()
}

/// The best table this CPU can run that does not exceed `cap`: `best`, or a name such as `avx2` or `x86_64-avx2`.
///
/// # Errors
/// `bad_value` for a name that does not exist.
pub fn select(cap: &str) -> Result<&'static Kernels, Problem> {
    let wanted = cap.rsplit('-').next().unwrap_or(cap);
    let rank = |name: &str| CAPS.iter().position(|cap| *cap == name);
    let limit = if cap == "best" {
        Some(CAPS.len())
    } else {
        rank(wanted)
    };
    limit
        .and_then(|limit| {
            tables()
                .iter()
                .rev()
                .find(|table| rank(table.cap).is_some_and(|rank| rank <= limit))
        })
        .ok_or_else(|| {
            Problem::new(
                Code::BadValue,
                format!("there is no instruction set `{cap}`"),
                format!("use `best` or one of `{}`", CAPS.join("`, `")),
            )
        })
}
