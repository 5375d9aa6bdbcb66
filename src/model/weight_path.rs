//! Weight paths: the form in which a stage holds its matrices, whatever the file stores.
//!
//! In: a path, a matrix's stored type, width and place in the network. Out: the type it is held in.
//! Invariant: one rule, used by the memory ledger and by the loader alike. A matrix that is quantised already is held
//! as stored on every path: quantising twice would lose twice.

use super::card::TensorType;

/// How weights are held and multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightPath {
    /// As the file stores them.
    #[default]
    Native,
    /// F32 and F16 weights rounded to BF16.
    Bf16,
    /// Float weights as 8-bit blocks of 32 (Q8_0) against 8-bit activations.
    W8a8,
    /// Float weights as 4-bit blocks of 32 (IQ4_NL), embedding table and output head as Q8_0, against 8-bit
    /// activations.
    W4a8,
}

impl WeightPath {
    /// Every path.
    pub const ALL: [Self; 4] = [Self::Native, Self::Bf16, Self::W8a8, Self::W4a8];

    /// The name that profiles and plans use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Bf16 => "bf16",
            Self::W8a8 => "w8a8",
            Self::W4a8 => "w4a8",
        }
    }

    /// The path of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }

    /// The type in which a matrix stored as `stored`, `cols` wide, is held. `table` says whether it is an embedding
    /// table or an output head, whose errors reach the result unfiltered.
    #[must_use]
    pub fn held(self, stored: TensorType, cols: u64, table: bool) -> TensorType {
        let float = matches!(stored, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        let wanted = match self {
            Self::Native => stored,
            Self::Bf16 => TensorType::BF16,
            Self::W8a8 => TensorType::Q8_0,
            Self::W4a8 if table => TensorType::Q8_0,
            Self::W4a8 => TensorType::IQ4_NL,
        };
        if float && cols.is_multiple_of(wanted.block_len() as u64) {
            wanted
        } else {
            stored
        }
    }
}

/// Whether the tensor `name` is an embedding table or an output head, in the names of GGUF files and of safetensors.
/// The fifteen heads of a code predictor are not: their errors touch one code of sixteen.
#[must_use]
pub fn is_table(name: &str) -> bool {
    let heads = ["output.weight", "lm_head.weight", "talker.codec_head.weight"];
    name.contains("embd") || name.contains("embed") || heads.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for path in WeightPath::ALL {
            assert_eq!(WeightPath::parse(path.name()), Some(path));
        }
        assert_eq!(WeightPath::parse("w2a2"), None);
    }

    #[test]
    fn tables_and_heads_are_known_by_name() {
        for (name, table) in [
            ("token_embd.weight", true),
            ("output.weight", true),
            ("blk.3.attn_output.weight", false),
            ("model.embed_tokens.weight", true),
            ("lm_head.weight", true),
            ("talker.codec_head.weight", true),
            ("talker.code_predictor.lm_head.3.weight", false),
            ("model.layers.0.self_attn.o_proj.weight", false),
        ] {
            assert_eq!(is_table(name), table, "{name}");
        }
    }

    #[test]
    fn only_float_matrices_of_whole_blocks_change() {
        use TensorType::{BF16, F16, F32, IQ4_NL, Q4_K, Q8_0};
        for (path, stored, cols, table, held) in [
            (WeightPath::Native, F32, 64, false, F32),
            (WeightPath::Bf16, F16, 7, false, BF16),
            (WeightPath::W8a8, BF16, 64, false, Q8_0),
            (WeightPath::W8a8, BF16, 48, false, BF16),
            (WeightPath::W8a8, Q4_K, 256, false, Q4_K),
            (WeightPath::W4a8, F32, 64, false, IQ4_NL),
            (WeightPath::W4a8, F32, 64, true, Q8_0),
        ] {
            assert_eq!(path.held(stored, cols, table), held, "{path:?} {stored:?} {cols}");
        }
    }
}
