//! The instruction-set cap: which kernel table the engine may choose at best.
//!
//! In: the features of the allowed CPUs and a pin. Out: `best` or the name of a cap.
//! Invariant: a cap lowers the choice and never raises it; the engine checks the live CPU again.

use super::decision::{Decision, Pin};
use crate::base::{Code, Problem};
use crate::probe::Hardware;

/// No limit.
pub const BEST: &str = "best";

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

/// The cap for a stage, and a warning when the cap asks for more than the processor has.
pub fn cap(
    hardware: &Hardware,
    pin: Option<&Pin<String>>,
) -> Result<(Decision<String>, Vec<Problem>), Problem> {
    let has = |feature: &&str| hardware.isa.iter().any(|f| f == feature);
    let Some(pin) = pin else {
        let because = format!(
            "no cap: the engine takes the best kernels for {} with {}",
            hardware.arch,
            listed(&hardware.isa)
        );
        return Ok((
            Decision::derived(BEST.to_owned(), "isa.best", because),
            Vec::new(),
        ));
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
    let best = of_arch()
        .rfind(|(_, _, needs)| needs.iter().all(&has))
        .map_or("scalar", |(_, name, _)| name);
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
