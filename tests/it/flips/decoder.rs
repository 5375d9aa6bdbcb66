//! Keys of the decoder: an engine with one value against an engine with another.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use edge_deploy::base::{Code, Problem};
use edge_deploy::engine::kernels::available;
use edge_deploy::engine::{Handle, start};
use edge_deploy::model::{Weights, kv};
use edge_deploy::plan::{Dtype, EffectiveStage, Plan, StagePlan};

use super::program::Program;
use crate::engine::serving::{Answer, answer, plan, request, stage_plan};
use crate::support::tiny::TinyModel;

/// A small model in a folder of its own.
struct Small {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Small {
    fn new(family: &'static str, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = TinyModel::new(family, seed).write_gguf(folder.path());
        Self {
            _folder: folder,
            path,
        }
    }

    fn try_start(&self, change: impl FnOnce(&mut Plan)) -> Result<Handle, Problem> {
        try_start(&self.path, change)
    }

    fn start(&self, change: impl FnOnce(&mut StagePlan)) -> Handle {
        self.try_start(|plan| change(plan.stages.get_mut("decoder").unwrap()))
            .unwrap()
    }
}

fn try_start(path: &Path, change: impl FnOnce(&mut Plan)) -> Result<Handle, Problem> {
    let mut plan = plan(path, stage_plan(1), 8);
    let weights = Weights::open(plan.model.card.as_deref().unwrap()).unwrap();
    change(&mut plan);
    start(&plan, weights, &mut |_| {})
}

fn used(handle: &Handle) -> EffectiveStage {
    handle.effective().unwrap().stages.remove("decoder").unwrap()
}

fn ids(length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| 10 + at * 7 % 200).collect()
}

fn ask(handle: &Handle, prompt: usize, tokens: usize) -> Answer {
    let mut wanted = request(ids(prompt), tokens);
    wanted.logprobs = Some(1);
    answer(handle.submit(wanted).unwrap())
}

fn chosen(answer: &Answer) -> Vec<f32> {
    answer.logprobs.iter().map(|logprobs| logprobs.chosen).collect()
}

pub fn family_chooses_the_network() {
    let [llama, gemma] = ["llama", "gemma3"].map(|family| {
        let handle = Small::new(family, 7).start(|_| {});
        let effective = handle.effective().unwrap();
        assert_eq!(effective.model.family, family);
        used(&handle).kv_tokens_by_layer
    });
    assert_eq!(llama, [256; 2], "every layer sees all");
    assert_eq!(
        (gemma.len(), gemma[0], gemma[5]),
        (7, 64, 256),
        "five of six see a window"
    );
    let other = Small::new("llama", 7).try_start(|plan| {
        "gemma3".clone_into(&mut plan.model.card.as_mut().unwrap().family);
        plan.model.card.as_mut().unwrap().decoder.post_norms = true;
    });
    assert_eq!(
        other.unwrap_err().code,
        Code::ModelMalformed,
        "another network needs other tensors"
    );
}

pub fn files_are_what_is_loaded() {
    let answers = [7, 8].map(|seed| {
        let small = Small::new("llama", seed);
        let handle = small.start(|_| {});
        assert_eq!(
            handle.effective().unwrap().model.files,
            std::slice::from_ref(&small.path)
        );
        chosen(&ask(&handle, 20, 4))
    });
    assert_ne!(answers[0], answers[1]);
}

pub fn isa_cap_changes_the_table() {
    let small = Small::new("llama", 7);
    for table in available() {
        let handle = small.start(|stage| table.clone_into(&mut stage.isa_cap));
        let used = used(&handle);
        assert_eq!(used.kernels, table);
        let kernels: Vec<&str> = used
            .tensors
            .iter()
            .filter_map(|tensor| tensor.kernel.as_deref())
            .collect();
        assert!(!kernels.is_empty());
        if table == available()[0] {
            assert!(kernels.iter().all(|kernel| *kernel == table), "{kernels:?}");
        }
    }
    if available().len() == 1 {
        skipped!("SKIPPED flips isa_cap, in part: this processor has one table only");
    }
}

pub fn dtype_that_cannot_run_is_refused() {
    let small = Small::new("llama", 7);
    assert_eq!(used(&small.start(|_| {})).dtype, Dtype::F32);
    let other = small.try_start(|plan| plan.stages.get_mut("decoder").unwrap().dtype = Dtype::Bf16);
    assert_eq!(other.unwrap_err().code, Code::PinUnmet);
}

pub fn weight_path_changes_how_weights_are_held() {
    let small = Small::new("llama", 7);
    let [whole, eighth] = ["native", "w8a8"].map(|path| {
        let handle = small.start(|stage| path.clone_into(&mut stage.weight_path));
        let logits = chosen(&ask(&handle, 30, 4));
        let used = used(&handle);
        assert_eq!(used.weight_path, path);
        let tensor = used
            .tensors
            .iter()
            .find(|tensor| tensor.name == "blk.0.ffn_down.weight");
        let tensor = tensor.unwrap().clone();
        assert_eq!(tensor.stored, "F32");
        (tensor, logits)
    });
    assert_eq!(
        (whole.0.held.as_str(), eighth.0.held.as_str()),
        ("F32 (R16)", "Q8_0 (R16)")
    );
    assert!(eighth.0.bytes.0 * 3 < whole.0.bytes.0, "{eighth:?} {whole:?}");
    assert_ne!(whole.1, eighth.1);
    let unknown =
        small.try_start(|plan| "int4".clone_into(&mut plan.stages.get_mut("decoder").unwrap().weight_path));
    assert_eq!(unknown.unwrap_err().code, Code::PinUnmet);
}

pub fn kv_dtype_changes_bytes_and_logits() {
    let small = Small::new("llama", 7);
    let [narrow, wide] = [Dtype::F16, Dtype::F32].map(|dtype| {
        let handle = small.start(|stage| stage.kv_dtype = dtype);
        let logits = chosen(&ask(&handle, 60, 8));
        let used = used(&handle);
        assert_eq!(used.kv_dtype, dtype);
        assert!(used.kv_resident_bytes.0 > 0 && used.kv_resident_bytes <= used.kv_bytes);
        (used.kv_bytes.0, logits)
    });
    assert_eq!(narrow.0 * 2, wide.0);
    assert_ne!(narrow.1, wide.1, "rounded keys and values show");
    let gap = narrow
        .1
        .iter()
        .zip(&wide.1)
        .map(|(a, b)| (a - b).abs())
        .fold(0f32, f32::max);
    assert!(gap < 0.05, "{gap}");
}

pub fn context_bounds_requests_and_slots() {
    let small = Small::new("llama", 7);
    for context in [64, 200] {
        let handle = small.start(|stage| stage.context = context);
        assert_eq!(ask(&handle, context - 2, 2).ids.len(), 2);
        let beyond = handle.submit(request(ids(context - 2), 3)).unwrap_err();
        assert_eq!(beyond.code, Code::ContextOverflow);
        let used = used(&handle);
        assert_eq!(used.context, context);
        assert_eq!(used.kv_tokens_by_layer, [context.next_multiple_of(64); 2]);
    }
}

pub fn max_seqs_run_at_once() {
    let small = Small::new("llama", 7);
    for seqs in [1, 2] {
        let handle = small.start(|stage| {
            stage.max_seqs = seqs;
            stage.context = 8192;
        });
        assert_eq!(used(&handle).max_seqs, seqs);
        let asked: Vec<_> = (0..3)
            .map(|_| handle.submit(request(ids(4), 8000)).unwrap())
            .collect();
        // The limit only turns a hang into a failure.
        let limit = Instant::now() + Duration::from_mins(1);
        loop {
            let status = handle.status();
            assert!(status.running <= seqs && Instant::now() < limit, "{status:?}");
            // For a moment a request is in neither count, while it goes from the queue to a sequence.
            if (status.running, status.queued) == (seqs, 3 - seqs) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(asked);
    }
}

pub fn kv_bytes_are_allocated_to_the_byte() {
    let small = Small::new("gemma3", 7);
    for (context, seqs) in [(100, 1), (256, 3)] {
        let handle = small.start(|stage| {
            stage.context = context;
            stage.max_seqs = seqs;
        });
        let card = edge_deploy::model::inspect(&small.path).unwrap();
        assert_eq!(
            used(&handle).kv_bytes,
            kv::kv_bytes(&card.decoder, context, seqs, 2, 16)
        );
    }
    // A size that is set bounds what is taken; the program's own areas show what the kernel gave.
    let [less, more] = [512 << 10, 1 << 20].map(|bound: u64| {
        let program = Program::start(&[
            &format!("stages.decoder.kv_bytes={bound}"),
            "stages.decoder.threads=1",
        ]);
        let bytes = program.effective()["kv_bytes"].as_u64().unwrap();
        assert!(bytes <= bound, "{bytes} of {bound}");
        let sparse = program.bytes_flagged("nh");
        assert_eq!(program.stop(), Some(0));
        (bytes, sparse)
    });
    assert!(less.0 < more.0, "{less:?} {more:?}");
    // Stacks carry the mark too, the same ones in both.
    if let (Some(before), Some(after)) = (less.1, more.1) {
        assert_eq!(after - before, more.0 - less.0);
    }
}

pub fn kv_block_is_what_slots_are_rounded_to() {
    let small = Small::new("llama", 7);
    for (context, slots) in [(64, 64), (65, 128)] {
        let used = used(&small.start(|stage| stage.context = context));
        assert_eq!((used.kv_block, used.kv_tokens_by_layer[0]), (64, slots));
    }
    let home = super::program::Home::new();
    let (code, said) = home.json("plan", &["--set", "stages.decoder.kv_block=16"]);
    assert_eq!(code, i32::from(Code::PinUnmet.exit_code().number()), "{said}");
    assert_eq!(said["error"]["code"], "pin_unmet");
}

pub fn prefill_batch_changes_the_number_of_passes() {
    let small = Small::new("llama", 7);
    for (batch, passes) in [(16, 4), (32, 2), (64, 1)] {
        let handle = small.start(|stage| stage.prefill_batch = batch);
        let answer = ask(&handle, 64, 3);
        assert_eq!(answer.ids.len(), 3);
        assert_eq!(handle.status().passes, passes + 2, "and one for each later token");
        assert_eq!(used(&handle).prefill_batch, batch);
    }
}
