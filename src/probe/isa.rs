//! ISA features under one set of names, per CPU.
//!
//! In: the `flags`/`Features` words of `/proc/cpuinfo`, or CPUID leaves. Out: sorted names
//! (`avx2`, `avx512_vnni`, `amx_int8`, `neon`, `dotprod`, …).
//! Invariant: a feature is listed for a set of CPUs only if every one of them has it, because a thread may run on
//! any of them.

use std::collections::BTreeSet;

use raw_cpuid::{CpuId, CpuIdReader};

use super::cpuinfo::CpuInfo;
use crate::base::{Code, CpuSet, Place, Problem};

/// Kernel word → our name, x86. Names that are equal are listed too: what is not in the table is not reported.
const X86: &[(&str, &str)] = &[
    ("sse4_2", "sse4_2"),
    ("avx", "avx"),
    ("avx2", "avx2"),
    ("fma", "fma"),
    ("f16c", "f16c"),
    ("bmi2", "bmi2"),
    ("avx_vnni", "avx_vnni"),
    ("avx_vnni_int8", "avx_vnni_int8"),
    ("avx512f", "avx512f"),
    ("avx512bw", "avx512bw"),
    ("avx512vl", "avx512vl"),
    ("avx512dq", "avx512dq"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_fp16", "avx512_fp16"),
    ("avx512vbmi", "avx512_vbmi"),
    ("gfni", "gfni"),
    ("amx_tile", "amx_tile"),
    ("amx_int8", "amx_int8"),
    ("amx_bf16", "amx_bf16"),
    ("amx_fp16", "amx_fp16"),
];

/// Kernel word → our name, Arm (64-bit words first, then 32-bit `neon`).
const ARM: &[(&str, &str)] = &[
    ("asimd", "neon"),
    ("neon", "neon"),
    ("asimdhp", "fp16"),
    ("asimdfhm", "fhm"),
    ("asimddp", "dotprod"),
    ("i8mm", "i8mm"),
    ("bf16", "bf16"),
    ("sve", "sve"),
    ("sve2", "sve2"),
    ("svei8mm", "sve_i8mm"),
    ("svebf16", "sve_bf16"),
    ("sme", "sme"),
    ("sme2", "sme2"),
];

/// Features in a space-separated word list of `/proc/cpuinfo`.
#[must_use]
pub fn from_words(words: &str) -> BTreeSet<String> {
    let words: BTreeSet<&str> = words.split_whitespace().collect();
    X86.iter()
        .chain(ARM)
        .filter(|(kernel, _)| words.contains(kernel))
        .map(|(_, ours)| (*ours).to_owned())
        .collect()
}

/// Features of one CPU by `/proc/cpuinfo`; `None` if it says nothing of that CPU.
#[must_use]
pub fn of_cpu(info: &CpuInfo, cpu: u32) -> Option<BTreeSet<String>> {
    let words = info.field(cpu, "flags").or_else(|| info.field(cpu, "features"))?;
    Some(from_words(words))
}

/// Features that every one of `cpus` has. CPUs of which nothing is known do not count against a feature; if
/// nothing is known of any (a container may renumber the file), the features common to all listed CPUs are used.
#[must_use]
pub fn common(info: &CpuInfo, cpus: &CpuSet) -> Vec<String> {
    let known: Vec<_> = cpus.iter().filter_map(|cpu| of_cpu(info, cpu)).collect();
    let known = if known.is_empty() {
        info.cpus.keys().filter_map(|&cpu| of_cpu(info, cpu)).collect()
    } else {
        known
    };
    intersection(known.into_iter())
}

/// What all sets have, sorted; nothing if there is no set.
#[must_use]
pub fn intersection(mut sets: impl Iterator<Item = BTreeSet<String>>) -> Vec<String> {
    let Some(first) = sets.next() else {
        return Vec::new();
    };
    sets.fold(first, |all, next| all.intersection(&next).cloned().collect())
        .into_iter()
        .collect()
}

/// Features by CPUID: what the processor can do. What the operating system enabled is for the live kernel's flags.
#[must_use]
pub fn from_cpuid<R: CpuIdReader + Clone>(cpuid: &CpuId<R>) -> BTreeSet<String> {
    answers(cpuid)
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Every feature that CPUID could be asked for, and its answer.
#[must_use]
pub fn answers<R: CpuIdReader + Clone>(cpuid: &CpuId<R>) -> Vec<(&'static str, bool)> {
    let mut found = Vec::new();
    let mut add = |name: &'static str, has: bool| found.push((name, has));
    if let Some(f) = cpuid.get_feature_info() {
        add("sse4_2", f.has_sse42());
        add("avx", f.has_avx());
        add("fma", f.has_fma());
        add("f16c", f.has_f16c());
    }
    if let Some(f) = cpuid.get_extended_feature_info() {
        add("avx2", f.has_avx2());
        add("bmi2", f.has_bmi2());
        add("avx512f", f.has_avx512f());
        add("avx512bw", f.has_avx512bw());
        add("avx512vl", f.has_avx512vl());
        add("avx512dq", f.has_avx512dq());
        add("avx512_vnni", f.has_avx512vnni());
        add("avx512_bf16", f.has_avx512_bf16());
        add("avx512_fp16", f.has_avx512_fp16());
        add("avx512_vbmi", f.has_avx512vbmi());
        add("gfni", f.has_gfni());
        add("avx_vnni", f.has_avx_vnni());
        add("avx_vnni_int8", f.has_avx_vnni_int8());
        add("amx_tile", f.has_amx_tile());
        add("amx_int8", f.has_amx_int8());
        add("amx_bf16", f.has_amx_bf16());
    }
    found
}

/// CPUID of the CPU that this runs on; nothing on other architectures.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn running_cpu() -> Vec<(&'static str, bool)> {
    answers(&CpuId::new())
}

/// CPUID of the CPU that this runs on; nothing on other architectures.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn running_cpu() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// Holds the kernel's list (`common` to all allowed CPUs) against what the running CPU answers. What the processor
/// denies is taken out of the list; what the kernel does not list stays out, because it may not save those
/// registers. Either is a warning. A kernel that lists nothing is no witness: then CPUID's answer is the list.
pub fn confirm(
    common: &mut Vec<String>,
    listed_anywhere: &BTreeSet<String>,
    answers: &[(&'static str, bool)],
    warnings: &mut Vec<Problem>,
) {
    if listed_anywhere.is_empty() {
        let mut has: Vec<String> = answers.iter().filter(|a| a.1).map(|a| a.0.to_owned()).collect();
        has.sort();
        *common = has;
        return;
    }
    let denied: Vec<&str> = answers
        .iter()
        .filter(|(name, has)| !has && common.iter().any(|known| known == name))
        .map(|(name, _)| *name)
        .collect();
    let unlisted: Vec<&str> = answers
        .iter()
        .filter(|(name, has)| *has && !listed_anywhere.contains(*name))
        .map(|(name, _)| *name)
        .collect();
    common.retain(|name| !denied.contains(&name.as_str()));
    if !denied.is_empty() {
        warnings.push(
            Problem::warning(
                Code::HardwareUnsure,
                format!("/proc/cpuinfo lists {}, which the processor itself denies", denied.join(", ")),
                "nothing: they are not used; a container or emulator may show another machine's /proc/cpuinfo",
            )
            .why("using an instruction that is not there ends the process")
            .at(Place::of("/proc/cpuinfo")),
        );
    }
    if !unlisted.is_empty() {
        warnings.push(
            Problem::warning(
                Code::HardwareUnsure,
                format!(
                    "the processor has {}, which the kernel does not list",
                    unlisted.join(", ")
                ),
                "a newer kernel, or one started without `clearcpuid=` or `noxsave`, may allow them",
            )
            .why("they are not used, because the kernel may not save their registers")
            .at(Place::of("/proc/cpuinfo")),
        );
    }
}

/// Features that any CPU has by `/proc/cpuinfo`.
#[must_use]
pub fn anywhere(info: &CpuInfo) -> BTreeSet<String> {
    info.cpus
        .keys()
        .filter_map(|&cpu| of_cpu(info, cpu))
        .fold(BTreeSet::new(), |mut all, next| {
            all.extend(next);
            all
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arm_combinations_stay_apart() {
        let names = |words| from_words(words).into_iter().collect::<Vec<_>>();
        // SME does not imply SVE; 32-bit `neon` and 64-bit `asimd` are the same baseline.
        assert_eq!(
            names("fp asimd sme sme2 smei16i64 i8mm bf16"),
            ["bf16", "i8mm", "neon", "sme", "sme2"]
        );
        assert_eq!(
            names("asimd sve sve2 svei8mm"),
            ["neon", "sve", "sve2", "sve_i8mm"]
        );
        assert_eq!(names("swp neon vfpv3"), ["neon"]);
        assert_eq!(names("fp asimd asimddp asimdhp"), ["dotprod", "fp16", "neon"]);
    }

    #[test]
    fn the_kernel_and_the_processor_are_compared() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let run = |listed: &[&str], answers: &[(&'static str, bool)]| {
            let mut common: Vec<String> = set(listed).into_iter().collect();
            let mut warnings = Vec::new();
            confirm(&mut common, &set(listed), answers, &mut warnings);
            (common.join(" "), warnings.len())
        };
        let same = run(&["avx2", "amx_fp16"], &[("avx2", true), ("avx512f", false)]);
        // A feature that CPUID was not asked for stays.
        assert_eq!(same, ("amx_fp16 avx2".to_owned(), 0));
        assert_eq!(run(&["avx2"], &[("avx2", false)]), (String::new(), 1));
        assert_eq!(
            run(&["avx2"], &[("avx2", true), ("avx512f", true)]),
            ("avx2".to_owned(), 1)
        );
        assert_eq!(
            run(&["fma"], &[("fma", false), ("avx512f", true)]),
            (String::new(), 2)
        );
        assert_eq!(
            run(&[], &[("fma", true), ("avx2", true), ("gfni", false)]),
            ("avx2 fma".to_owned(), 0)
        );
        assert_eq!(run(&["neon"], &running_cpu()[..0]), ("neon".to_owned(), 0));
    }

    #[test]
    fn only_what_all_cpus_have() {
        let info = CpuInfo::parse(
            "processor : 0\nFeatures : asimd asimddp i8mm\n\nprocessor : 1\nFeatures : asimd asimddp\n",
        );
        assert_eq!(common(&info, &CpuSet::range(0, 1)), ["dotprod", "neon"]);
        assert_eq!(common(&info, &CpuSet::range(0, 0)), ["dotprod", "i8mm", "neon"]);
        assert_eq!(common(&info, &CpuSet::range(8, 9)), ["dotprod", "neon"]);
        assert!(common(&CpuInfo::default(), &CpuSet::range(0, 0)).is_empty());
    }
}
