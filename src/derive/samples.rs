//! Machines, models and pins for the tests of this room and of `plan`.
//!
//! In: a few numbers. Out: complete `Hardware`, `ModelCard` and `Pin`. Invariant: built in tests only.

pub(crate) mod random;

use super::{Asked, DECODER, Pin, StagePins};
use crate::base::{Bytes, CpuSet, Place};
use crate::config::Policy;
use crate::model::ModelCard;
use crate::model::card::{
    Activation, AttentionKind, DecoderSpec, LayerSpec, ModelFormat, RopeSpec, SamplingDefaults, TensorFact,
    TensorType, TokenizerFact,
};
use crate::probe::Hardware;
use crate::probe::hardware::{
    Confidence, Core, CoreKind, CpuQuota, Cpus, Environment, HardwareClass, Memory, NumaNode, SCHEMA,
    Thermal, Topology,
};

impl Asked {
    /// The pins of the one stage of a language model, to be set.
    pub(crate) fn decoder(&mut self) -> &mut StagePins {
        self.stages.entry(DECODER.to_owned()).or_default()
    }
}

pub(crate) fn cpus(text: &str) -> CpuSet {
    text.parse().expect("a CPU list")
}

pub(crate) fn pin<T>(key: &str, value: T) -> Pin<T> {
    Pin {
        value,
        key: key.to_owned(),
        layer: "--set".to_owned(),
        place: Place::of(format!("--set {key}")),
    }
}

/// `cores` lists of siblings, in groups of one kind, most capable kind first.
pub(crate) fn machine(kinds: &[(&str, &[&str])], available: Bytes) -> Hardware {
    let mut topology = Topology {
        kinds_confidence: Confidence::High,
        ..Topology::default()
    };
    let mut all = CpuSet::new();
    for (index, (name, cores)) in kinds.iter().enumerate() {
        let mut of_kind = CpuSet::new();
        for core in *cores {
            let siblings = cpus(core);
            topology.smt |= siblings.len() > 1;
            of_kind = of_kind.union(&siblings);
            topology.cores.push(Core {
                cpus: siblings,
                kind: index,
                node: None,
                package: None,
            });
        }
        topology.kinds.push(CoreKind {
            name: (*name).to_owned(),
            cpus: of_kind.clone(),
            ..CoreKind::default()
        });
        all = all.union(&of_kind);
    }
    topology.cores.sort_by_key(|core| core.cpus.first());
    Hardware {
        schema: SCHEMA,
        source: "test".to_owned(),
        arch: "x86_64".to_owned(),
        cpu_model: None,
        cpus: Cpus {
            online: all.clone(),
            possible: all.clone(),
            present: all.clone(),
            allowed: all,
            isolated: CpuSet::new(),
        },
        topology,
        isa: ["avx2", "f16c", "fma"].map(str::to_owned).to_vec(),
        sve_bytes: None,
        amx_permission: None,
        quota: CpuQuota::default(),
        memory: Memory {
            total_bytes: available,
            available_bytes: available,
            available_source: "MemAvailable".to_owned(),
            thp: Some("madvise".to_owned()),
            ..Memory::default()
        },
        accelerators: Vec::new(),
        nvidia_smi_path: None,
        environment: Environment::Bare,
        thermal: Thermal::default(),
        class: HardwareClass::X86Cpu,
        fingerprint: "0123456789abcdef".to_owned(),
        warnings: Vec::new(),
    }
}

/// `count` cores of one kind without siblings.
pub(crate) fn plain(count: u32, available: Bytes) -> Hardware {
    let cores: Vec<String> = (0..count).map(|cpu| cpu.to_string()).collect();
    let cores: Vec<&str> = cores.iter().map(String::as_str).collect();
    machine(&[("all", &cores)], available)
}

/// Splits the CPUs into nodes.
pub(crate) fn with_nodes(mut hardware: Hardware, nodes: &[(&str, u64)]) -> Hardware {
    hardware.topology.nodes = nodes
        .iter()
        .enumerate()
        .map(|(id, (list, available))| NumaNode {
            id: id as u32,
            cpus: cpus(list),
            total_bytes: Some(Bytes(*available)),
            available_bytes: Some(Bytes(*available)),
            allowed: true,
        })
        .collect();
    hardware
}

/// A policy with round numbers.
pub(crate) fn policy() -> Policy {
    Policy {
        reserve_bytes: Bytes::mib(512),
        reserve_share: 0.05,
        process_bytes: Bytes::mib(64),
        activation_headroom: 1.25,
        kv_headroom: 1.0,
        max_seqs: 4,
        context_cap: 8192,
        context_floor: 512,
        prefill_batch: 256,
        max_threads: 32,
        io_cpus: 1,
        io_cpus_from: 4,
        huge_pages: true,
        read_bytes_per_s: Bytes(500_000_000),
        pack_bytes_per_s: Bytes(100_000_000),
        load_margin: 3.0,
        load_min_ms: crate::base::Millis(60_000),
        warmup_ms: crate::base::Millis(60_000),
        shutdown_ms: crate::base::Millis(30_000),
    }
}

/// What tests vary about a model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub context: u64,
    /// All weights in one matrix of this type and about so many bytes.
    pub weights: (TensorType, u64),
    /// Window of every layer but each sixth.
    pub window: Option<usize>,
}

/// 28 layers, 8 KV heads of 128, trained for 131072 tokens, 1.4 GiB of weights.
pub(crate) fn qwen_like() -> Shape {
    Shape {
        layers: 28,
        kv_heads: 8,
        head_dim: 128,
        context: 131_072,
        weights: (TensorType::Q8_0, 1_503_238_553),
        window: None,
    }
}

pub(crate) fn card(shape: &Shape) -> ModelCard {
    let (kind, bytes) = shape.weights;
    let columns = 2048u64;
    let row_bytes = columns / kind.block_len() as u64 * kind.block_bytes() as u64;
    let rows = (bytes / row_bytes / 16).max(1) * 16;
    let rope = RopeSpec {
        base: 10_000.0,
        dims: shape.head_dim,
        position_divisor: 1.0,
        frequency_divisors: Vec::new(),
    };
    let layer = |index: usize| LayerSpec {
        attention: match shape.window {
            Some(window) if !(index + 1).is_multiple_of(6) => AttentionKind::Sliding { window },
            _ => AttentionKind::Full,
        },
        rope: rope.clone(),
    };
    ModelCard {
        name: "sample".to_owned(),
        family: "qwen3".to_owned(),
        format: ModelFormat::Gguf,
        files: vec!["sample.gguf".into()],
        file_bytes: Bytes(rows * row_bytes),
        parameters: rows * columns,
        decoder: DecoderSpec {
            vocab: 151_936,
            hidden: 2048,
            heads: shape.kv_heads * 2,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            value_dim: shape.head_dim,
            ffn: 6144,
            layers: (0..shape.layers).map(layer).collect(),
            norm_eps: 1e-6,
            norm_weight_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: 0.1,
            activation: Activation::Silu,
            qk_norm: true,
            post_norms: false,
            head_gate: None,
            fused_qkv: false,
            qk_rows_interleaved: false,
            tied_embeddings: true,
            logit_softcap: None,
        },
        tensors: vec![TensorFact {
            name: "all".to_owned(),
            dtype: kind,
            shape: vec![rows, columns],
            bytes: Bytes(rows * row_bytes),
            file: 0,
            offset: 0,
        }],
        tokenizer: TokenizerFact {
            kind: "bpe".to_owned(),
            pre: None,
            vocab: 151_936,
            stop_ids: vec![0],
            bos_id: None,
            add_bos: false,
        },
        chat_template: None,
        sampling: SamplingDefaults::default(),
        context_train: shape.context,
        speech: None,
    }
}
