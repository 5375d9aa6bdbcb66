//! The smaller knobs of a stage: prompt batch, KV block, huge pages, device.
//!
//! In: policy, the kernel's huge-page mode, pins. Out: one decision each.
//! Invariant: a pin is kept; where the machine cannot follow it, a warning says so.

use super::decision::{Decision, Pin, pin_or};
use crate::base::{Code, Problem};
use crate::config::Policy;
use crate::config::schema::Device;
use crate::model::kv;
use crate::probe::Hardware;

/// Tokens of prompt in one pass: the policy's, never more than the context.
#[must_use]
pub fn prefill_batch(policy: &Policy, context: usize, pin: Option<&Pin<usize>>) -> Decision<usize> {
    let value = policy.prefill_batch.clamp(1, context.max(1));
    let bound = (policy.prefill_batch > context).then(|| format!("context of {context} tokens"));
    let because = format!(
        "`policy.prefill_batch` is {}: enough rows to read each weight once for many tokens",
        policy.prefill_batch
    );
    let decision = pin_or(pin, "prefill.batch", value, because);
    if pin.is_some() {
        decision
    } else {
        decision.bounded(bound)
    }
}

/// Tokens in a block of the KV cache: the unit that attention works on.
pub fn kv_block(stage: &str, pin: Option<&Pin<usize>>) -> Result<Decision<usize>, Problem> {
    match pin {
        Some(pin) if pin.value != kv::BLOCK => Err(Problem::new(
            Code::PinUnmet,
            format!(
                "{} asks for blocks of {} tokens, but the attention of stage `{stage}` works on blocks of {}",
                pin.named(),
                pin.value,
                kv::BLOCK
            ),
            format!("use {}, or remove the key", kv::BLOCK),
        )
        .at(pin.place.clone())),
        Some(pin) => Ok(Decision::pinned(pin, format!("set by {}", pin.layer))),
        None => Ok(own_block()),
    }
}

/// The block of the engine's attention.
#[must_use]
pub fn own_block() -> Decision<usize> {
    Decision::derived(
        kv::BLOCK,
        "kv.block",
        "the unit that attention works on; the context is rounded up to it for the cache",
    )
}

/// Whether weights and cache ask for transparent huge pages.
#[must_use]
pub fn huge_pages(
    hardware: &Hardware,
    policy: &Policy,
    pin: Option<&Pin<bool>>,
) -> (Decision<bool>, Option<Problem>) {
    let mode = hardware.memory.thp.as_deref();
    let possible = matches!(mode, Some("always" | "madvise"));
    let shown = mode.unwrap_or("unknown");
    if let Some(pin) = pin {
        let warning = (pin.value && !possible).then(|| {
            Problem::warning(
                Code::HardwareLimit,
                format!(
                    "{} asks for huge pages, but the kernel's mode is `{shown}`",
                    pin.named()
                ),
                "set /sys/kernel/mm/transparent_hugepage/enabled to `madvise`, or remove the key",
            )
            .at(pin.place.clone())
        });
        return (Decision::pinned(pin, format!("set by {}", pin.layer)), warning);
    }
    let decision = if !policy.huge_pages {
        Decision::derived(false, "huge_pages", "`policy.huge_pages` is off")
    } else if possible {
        Decision::derived(
            true,
            "huge_pages",
            format!(
                "the kernel's mode is `{shown}`; large pages save address look-ups while weights stream by"
            ),
        )
    } else {
        Decision::derived(
            false,
            "huge_pages",
            format!("the kernel's mode for huge pages is `{shown}`"),
        )
        .bounded(Some("/sys/kernel/mm/transparent_hugepage/enabled".to_owned()))
    };
    (decision, None)
}

/// Refuses a device that has no engine.
pub fn check_device(pin: Option<&Pin<Device>>, stage: &str) -> Result<(), Problem> {
    match pin {
        Some(pin) if pin.value != Device::Cpu => Err(Problem::new(
            Code::PinUnmet,
            format!(
                "{} puts stage `{stage}` on a device that the engine cannot use",
                pin.named()
            ),
            "use `cpu`, or remove the key",
        )
        .at(pin.place.clone())),
        _ => Ok(()),
    }
}
