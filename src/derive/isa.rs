//! The instruction-set cap: which kernel table the engine may choose at best.
//!
//! In: the features of the allowed CPUs and a pin. Out: `best` or the name of a cap.
//! Invariant: a cap lowers the choice and never raises it; the engine checks the live CPU again.

use super::decision::{Decision, Pin};
use super::weight_path::HeldWeights;
use crate::base::{Code, Problem};
use crate::config::Priority;
use crate::probe::Hardware;

/// No limit.
pub const BEST: &str = "best";

/// The table that rounds activations which meet BF16 weights, and the one below it, which does not.
const ROUNDS_BF16: &str = "avx512_bf16";
const BELOW_ROUNDS_BF16: &str = "avx512_vnni";

/// Caps in rising order by architecture, each with the features that its kernels use.
const CAPS: &[(&str, &str, &[&str])] = &[
    ("x86_64", "scalar", &[]),
    ("x86_64", "avx2", &["avx2", "fma", "f16c"]),
    ("x86_64", "avx_vnni", &["avx2", "fma", "f16c", "avx_vnni"]),
    (
        "x86_64",
        "avx512_vnni",
        &["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"],
    ),
    (
        "x86_64",
        "avx512_bf16",
        &[
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512_vnni",
            "avx512_bf16",
        ],
    ),
    ("aarch64", "scalar", &[]),
];

/// Names that a pin may have on an architecture, in rising order; `scalar` alone where there are no other kernels.
#[must_use]
pub fn names(arch: &str) -> Vec<&'static str> {
    let names: Vec<&str> = CAPS
        .iter()
        .filter(|(own, ..)| *own == arch)
        .map(|(_, name, _)| *name)
        .collect();
    if names.is_empty() { vec!["scalar"] } else { names }
}

/// Whether kernels of the name `used` (with or without architecture) keep to the cap `cap`.
#[must_use]
pub fn within(used: &str, cap: &str) -> bool {
    let bare = |name: &str| name.rsplit('-').next().unwrap_or(name).to_owned();
    let rank = |name: &str| CAPS.iter().position(|(_, own, _)| *own == name);
    cap == BEST
        || match (rank(&bare(used)), rank(&bare(cap))) {
            (Some(used), Some(cap)) => used <= cap,
            _ => bare(used) == bare(cap),
        }
}

/// The kernel table, such as `x86_64-avx2`, that runs on the machine under a cap: the best one whose features it has.
#[must_use]
pub fn running(hardware: &Hardware, cap: &str) -> String {
    let has = |feature: &&str| hardware.isa.iter().any(|f| f == feature);
    let bare = cap.rsplit('-').next().unwrap_or(cap);
    let of_arch: Vec<_> = CAPS.iter().filter(|(arch, ..)| *arch == hardware.arch).collect();
    let limit = of_arch.iter().position(|(_, name, _)| *name == bare);
    let up_to = if cap == BEST {
        of_arch.len()
    } else {
        limit.map_or(1, |at| at + 1)
    };
    let best = of_arch
        .iter()
        .take(up_to)
        .rfind(|(_, _, needs)| needs.iter().all(&has));
    best.map_or_else(
        || "scalar".to_owned(),
        |(arch, name, _)| {
            if *name == "scalar" {
                (*name).to_owned()
            } else {
                format!("{arch}-{name}")
            }
        },
    )
}

/// No cap.
#[must_use]
pub fn uncapped(hardware: &Hardware) -> Decision<String> {
    let table = running(hardware, BEST);
    let portable = if table == "scalar" {
        format!(
            "; for {} there are portable kernels only, which are slow",
            hardware.arch
        )
    } else {
        String::new()
    };
    Decision::derived(
        BEST.to_owned(),
        "isa.best",
        format!(
            "no cap: the kernels `{table}` are the best for {} with {}{portable}",
            hardware.arch,
            listed(&hardware.isa)
        ),
    )
}

/// That there are no kernels for this processor but the portable ones.
fn portable_only(hardware: &Hardware) -> Option<Problem> {
    (running(hardware, BEST) == "scalar").then(|| {
        Problem::warning(
            Code::HardwareLimit,
            format!(
                "for {} with {} there are portable kernels only",
                hardware.arch,
                listed(&hardware.isa)
            ),
            "use a smaller model, or an x86-64 processor with AVX2 or better",
        )
        .why("answers will be several times slower than this processor could give them")
    })
}

/// With a priority on fidelity no table that rounds activations: the cap below the one that does, where that one
/// would run and the stage has weights that it is for.
fn exact(hardware: &Hardware, priority: Priority, held: &HeldWeights) -> Option<Decision<String>> {
    let wanted = matches!(priority, Priority::Quality | Priority::Agentic);
    let rounds = running(hardware, BEST).ends_with(ROUNDS_BF16) && held.by_format.contains_key("BF16");
    (wanted && rounds).then(|| {
        Decision::derived(
            BELOW_ROUNDS_BF16.to_owned(),
            "isa.fidelity",
            format!(
                "`{ROUNDS_BF16}` would round what meets BF16 weights to BF16; `priority` puts fidelity first, so those values stay f32"
            ),
        )
        .bounded(Some("`priority`".to_owned()))
    })
}

/// The cap for a stage, and a warning when the cap asks for more than the processor has.
pub fn cap(
    hardware: &Hardware,
    pin: Option<&Pin<String>>,
    priority: Priority,
    held: &HeldWeights,
) -> Result<(Decision<String>, Vec<Problem>), Problem> {
    let has = |feature: &&str| hardware.isa.iter().any(|f| f == feature);
    let Some(pin) = pin else {
        let decision = exact(hardware, priority, held).unwrap_or_else(|| uncapped(hardware));
        return Ok((decision, portable_only(hardware).into_iter().collect()));
    };
    if pin.value == BEST {
        return Ok((Decision::pinned(pin, "no cap"), Vec::new()));
    }
    // The engine shows its kernels as `x86_64-avx2`; what it shows may be written back.
    let name = pin
        .value
        .strip_prefix(hardware.arch.as_str())
        .and_then(|rest| rest.strip_prefix('-'))
        .unwrap_or(&pin.value);
    let of_arch = || CAPS.iter().filter(|(arch, ..)| *arch == hardware.arch);
    let Some((_, _, needs)) = of_arch().find(|(_, own, _)| *own == name) else {
        if name == "scalar" {
            return Ok((Decision::pinned(pin, "portable kernels only"), Vec::new()));
        }
        let elsewhere = CAPS.iter().any(|(_, own, _)| *own == name);
        let (code, what) = if elsewhere {
            (
                Code::PinUnmet,
                format!(
                    "{} asks for `{}`, which is not an instruction set of {}",
                    pin.named(),
                    pin.value,
                    hardware.arch
                ),
            )
        } else {
            (
                Code::BadValue,
                format!(
                    "{} names the instruction set `{}`, for which there are no kernels",
                    pin.named(),
                    pin.value
                ),
            )
        };
        let remedy = format!("use one of: {BEST}, {}", names(&hardware.arch).join(", "));
        return Err(Problem::new(code, what, remedy).at(pin.place.clone()));
    };
    let missing: Vec<&str> = needs.iter().filter(|f| !has(f)).copied().collect();
    if missing.is_empty() {
        return Ok((
            Decision::pinned(
                pin,
                format!("kernels up to `{}`, which this processor has", pin.value),
            ),
            Vec::new(),
        ));
    }
    let best = running(hardware, BEST);
    let warning = Problem::warning(
        Code::HardwareLimit,
        format!(
            "{} allows kernels up to `{}`, but the processor lacks {}",
            pin.named(),
            pin.value,
            missing.join(", ")
        ),
        format!(
            "nothing to do, `{best}` or below will run; `isa_cap: best` says the same without this message"
        ),
    )
    .why("a cap only lowers the choice; it cannot add what the processor does not have")
    .at(pin.place.clone());
    let decision = Decision::pinned(
        pin,
        format!("a cap above what the processor has; at best `{best}` runs"),
    )
    .bounded(Some(format!("processor without {}", missing.join(", "))));
    Ok((decision, vec![warning]))
}

/// A short list of features for a sentence.
fn listed(isa: &[String]) -> String {
    if isa.is_empty() {
        "no known extension".to_owned()
    } else {
        isa.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::ISA_CAPS;

    #[test]
    fn reading_a_profile_takes_exactly_the_caps_that_there_are() {
        let bare = CAPS.iter().map(|(_, name, _)| (*name).to_owned());
        let shown = CAPS.iter().map(|(arch, name, _)| format!("{arch}-{name}"));
        let mut real: Vec<String> = bare.chain(shown).chain([BEST.to_owned()]).collect();
        let mut read: Vec<String> = ISA_CAPS.iter().map(|&name| name.to_owned()).collect();
        real.sort();
        real.dedup();
        read.sort();
        assert_eq!(read, real);
    }
}
