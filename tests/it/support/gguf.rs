//! Writes GGUF files for tests, whole ones and, byte by byte, wrong ones.
//!
//! In: keys and tensors. Out: the bytes of a version 3 file. The layout is the format's own: keys, tensor records,
//! padding to the alignment, data.

use std::path::Path;

use edge_deploy::model::card::TensorType;

/// A file being put together. Every method appends; nothing is checked, so that faults can be written too.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    /// Keys with kind and value, encoded.
    entries: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
    /// Alignment of the data; change it together with the key `general.alignment`.
    pub alignment: usize,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<u64>,
    type_id: u32,
    data: Vec<u8>,
}

/// The format's number of a tensor type.
pub fn type_id(dtype: TensorType) -> u32 {
    match dtype {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q8_0 => 8,
        TensorType::Q2_K => 10,
        TensorType::Q3_K => 11,
        TensorType::Q4_K => 12,
        TensorType::Q5_K => 13,
        TensorType::Q6_K => 14,
        TensorType::IQ4_NL => 20,
        TensorType::IQ4_XS => 23,
        TensorType::BF16 => 30,
        TensorType::MXFP4 => 39,
    }
}

/// Values as a float type stores them.
pub fn encode(dtype: TensorType, values: &[f32]) -> Vec<u8> {
    match dtype {
        TensorType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        TensorType::F16 => values
            .iter()
            .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
            .collect(),
        TensorType::BF16 => values
            .iter()
            .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
            .collect(),
        other => panic!("{other:?} is no float type"),
    }
}

/// Blocks of a quantised type with random codes; their values have a mean near 0 and about this root mean square.
pub fn random_blocks(dtype: TensorType, values: usize, rms: f32, random: &mut dyn FnMut() -> u64) -> Vec<u8> {
    // Root mean square of the values when d is 1; where d and the min stand, and the min that centres the codes.
    let (unit, d, min): (f32, usize, Option<(usize, f32)>) = match dtype {
        TensorType::Q4_0 => (4.6, 0, None),
        TensorType::Q4_1 => (4.6, 0, Some((2, -7.5))),
        TensorType::Q5_0 => (9.2, 0, None),
        TensorType::Q5_1 => (9.2, 0, Some((2, -15.5))),
        TensorType::Q8_0 => (74.0, 0, None),
        TensorType::Q2_K => (14.0, 80, Some((82, 1.5))),
        TensorType::Q3_K => (43.0, 108, None),
        TensorType::Q4_K => (258.0, 0, Some((2, 7.5))),
        TensorType::Q5_K => (520.0, 0, Some((2, 15.5))),
        TensorType::Q6_K => (1366.0, 208, None),
        TensorType::IQ4_NL => (70.0, 0, None),
        TensorType::IQ4_XS => (1300.0, 0, None),
        TensorType::MXFP4 => (5.9, 0, None),
        other => panic!("{other:?} has no blocks"),
    };
    let mut out = Vec::new();
    for _ in 0..values / dtype.block_len() {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| random() as u8).collect();
        let scale = rms / unit * (0.5 + (random() % 1000) as f32 / 1000.0);
        if dtype == TensorType::MXFP4 {
            block[0] = (128.0 + scale.log2().round()) as u8;
        } else {
            block[d..d + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            if let Some((at, factor)) = min {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(factor * scale).to_le_bytes());
            }
        }
        out.extend(block);
    }
    out
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl GgufWriter {
    /// An empty file of this architecture.
    pub fn new(architecture: &str) -> Self {
        let empty = Self {
            entries: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        };
        empty.text("general.architecture", architecture)
    }

    /// A key with its value as the format encodes it, kind included.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut entry = Vec::new();
        put_text(&mut entry, key.as_bytes());
        entry.extend(kind.to_le_bytes());
        entry.extend(value);
        self.entries.push(entry);
        self
    }

    fn array(self, key: &str, element: u32, count: usize, values: &[u8]) -> Self {
        let mut value = element.to_le_bytes().to_vec();
        value.extend((count as u64).to_le_bytes());
        value.extend(values);
        self.raw(key, 9, &value)
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value.as_bytes());
        self.raw(key, 8, &bytes)
    }

    pub fn texts<T: AsRef<[u8]>>(self, key: &str, values: &[T]) -> Self {
        let mut bytes = Vec::new();
        for value in values {
            put_text(&mut bytes, value.as_ref());
        }
        self.array(key, 8, values.len(), &bytes)
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &bytes)
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.array(key, 6, values.len(), &bytes)
    }

    pub fn bools(self, key: &str, values: &[bool]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v)).collect();
        self.array(key, 7, values.len(), &bytes)
    }

    /// A tensor of ggml type `type_id` with its data as stored; `shape` outermost first.
    pub fn tensor(mut self, name: &str, shape: &[u64], type_id: u32, data: Vec<u8>) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            type_id,
            data,
        });
        self
    }

    /// An F32 tensor; `shape` outermost first.
    pub fn tensor_f32(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        self.tensor(name, shape, 0, encode(TensorType::F32, values))
    }

    /// Takes tensors out again by name.
    pub fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_text(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().rev().flat_map(|n| n.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }

    /// Writes the whole file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }

    /// Writes the model as a set of `count` parts beside each other and answers their paths.
    pub fn write_split(&self, folder: &Path, stem: &str, count: u32) -> Vec<std::path::PathBuf> {
        let per_part = self.tensors.len().div_ceil(count as usize).max(1);
        let mut paths = Vec::new();
        for number in 0..count {
            let mut part = self.clone();
            let all = std::mem::take(&mut part.tensors);
            part.tensors = all
                .into_iter()
                .skip(number as usize * per_part)
                .take(per_part)
                .collect();
            if number > 0 {
                part.entries.clear();
            }
            let path = folder.join(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1));
            part.raw("split.no", 2, &(number as u16).to_le_bytes())
                .raw("split.count", 2, &(count as u16).to_le_bytes())
                .raw(
                    "split.tensors.count",
                    5,
                    &(self.tensors.len() as i32).to_le_bytes(),
                )
                .write(&path);
            paths.push(path);
        }
        paths
    }
}
