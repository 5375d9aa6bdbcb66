//! `/proc/cpuinfo`, in all the forms that kernels give it.
//!
//! In: the text. Out: one block of fields per CPU, fields that stand for all CPUs, and the architecture.
//! Invariant: never used to count usable CPUs where sysfs can say it: containers renumber this file.

use std::collections::BTreeMap;

use super::root::Root;

/// The largest CPU number taken from this file.
const MAX_CPU: u32 = crate::base::CpuSet::MAX_ID;

/// Arm cores by implementer and part number, as the makers' reference manuals give them.
const ARM_CORES: &[(u32, u32, &str)] = &[
    (0x41, 0xc07, "Cortex-A7"),
    (0x41, 0xc09, "Cortex-A9"),
    (0x41, 0xc0f, "Cortex-A15"),
    (0x41, 0xd03, "Cortex-A53"),
    (0x41, 0xd04, "Cortex-A35"),
    (0x41, 0xd05, "Cortex-A55"),
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd09, "Cortex-A73"),
    (0x41, 0xd0a, "Cortex-A75"),
    (0x41, 0xd0b, "Cortex-A76"),
    (0x41, 0xd0c, "Neoverse N1"),
    (0x41, 0xd0d, "Cortex-A77"),
    (0x41, 0xd40, "Neoverse V1"),
    (0x41, 0xd41, "Cortex-A78"),
    (0x41, 0xd42, "Cortex-A78AE"),
    (0x41, 0xd44, "Cortex-X1"),
    (0x41, 0xd46, "Cortex-A510"),
    (0x41, 0xd47, "Cortex-A710"),
    (0x41, 0xd48, "Cortex-X2"),
    (0x41, 0xd49, "Neoverse N2"),
    (0x41, 0xd4d, "Cortex-A715"),
    (0x41, 0xd4e, "Cortex-X3"),
    (0x41, 0xd4f, "Neoverse V2"),
    (0x41, 0xd80, "Cortex-A520"),
    (0x41, 0xd81, "Cortex-A720"),
    (0x41, 0xd82, "Cortex-X4"),
    (0x41, 0xd83, "Neoverse V3AE"),
    (0x41, 0xd84, "Neoverse V3"),
    (0x41, 0xd85, "Cortex-X925"),
    (0x41, 0xd87, "Cortex-A725"),
    (0x41, 0xd8e, "Neoverse N3"),
    (0x48, 0xd01, "TaiShan v110"),
    (0x4e, 0x004, "Carmel"),
    (0x61, 0x022, "Apple M1 Icestorm"),
    (0x61, 0x023, "Apple M1 Firestorm"),
    (0x61, 0x032, "Apple M2 Blizzard"),
    (0x61, 0x033, "Apple M2 Avalanche"),
    (0xc0, 0xac3, "Ampere-1"),
];

/// Implementer and part number in one CPU's block.
#[must_use]
pub fn arm_part(block: &BTreeMap<String, String>) -> Option<(u32, u32)> {
    let hex = |name: &str| u32::from_str_radix(block.get(name)?.trim_start_matches("0x"), 16).ok();
    Some((hex("cpu implementer")?, hex("cpu part")?))
}

/// The parsed file; empty if there is none.
#[derive(Clone, Debug, Default)]
pub struct CpuInfo {
    /// Fields by CPU number. Names are lower case with single blanks.
    pub cpus: BTreeMap<u32, BTreeMap<String, String>>,
    /// Fields outside any CPU's block (`Hardware`, `Features` of old Arm kernels, s390's header).
    pub shared: BTreeMap<String, String>,
}

impl CpuInfo {
    /// Reads it.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        root.read("/proc/cpuinfo")
            .map_or_else(Self::default, |text| Self::parse(&text))
    }

    /// Parses the text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let mut current = None;
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                if line.trim().is_empty() {
                    current = None;
                }
                continue;
            };
            let name = name
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .to_lowercase();
            let value = value.trim().to_owned();
            // s390 writes `processor 3: version = …`; others `processor : 3`.
            let number = match name.strip_prefix("processor") {
                Some("") => value.parse().ok(),
                Some(rest) => rest.trim().parse().ok(),
                None => None,
            };
            if let Some(number) = number.filter(|&n: &u32| n <= MAX_CPU) {
                current = Some(number);
                info.cpus.entry(number).or_default();
                continue;
            }
            let fields = match current {
                Some(number) => info.cpus.entry(number).or_default(),
                None => &mut info.shared,
            };
            fields.entry(name).or_insert(value);
        }
        info
    }

    /// A field of one CPU, or the shared one of that name.
    #[must_use]
    pub fn field(&self, cpu: u32, name: &str) -> Option<&str> {
        self.cpus
            .get(&cpu)
            .and_then(|fields| fields.get(name))
            .or_else(|| self.shared.get(name))
            .map(String::as_str)
    }

    /// The first value of a field over all CPUs and the shared part.
    #[must_use]
    pub fn any(&self, name: &str) -> Option<&str> {
        self.cpus
            .values()
            .find_map(|fields| fields.get(name))
            .or_else(|| self.shared.get(name))
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The processor's marketing name, or on Arm, whose kernels know none, the names of its cores.
    #[must_use]
    pub fn model_name(&self) -> Option<String> {
        ["model name", "cpu model", "cpu", "processor"]
            .iter()
            .find_map(|name| self.any(name))
            .map(str::to_owned)
            .or_else(|| self.arm_cores())
    }

    /// Each kind of Arm core by its name, or its implementer and part number, in the order of the CPUs.
    fn arm_cores(&self) -> Option<String> {
        let mut names: Vec<String> = Vec::new();
        let blocks = self.cpus.values().chain(std::iter::once(&self.shared));
        for (implementer, part) in blocks.filter_map(arm_part) {
            let known = ARM_CORES
                .iter()
                .find(|core| (core.0, core.1) == (implementer, part));
            let name = known.map_or_else(
                || format!("Arm {implementer:#04x}:{part:#05x}"),
                |core| core.2.to_owned(),
            );
            if !names.contains(&name) {
                names.push(name);
            }
        }
        (!names.is_empty()).then(|| names.join(" + "))
    }

    /// The kernel's architecture name as far as this file tells it: `x86_64`, `i686`, `aarch64`, `arm`, `ia64`,
    /// `ppc64`, `s390x`, `riscv64`.
    #[must_use]
    pub fn arch(&self) -> Option<&'static str> {
        let words = |name: &str| {
            self.any(name)
                .map(|text| text.split_whitespace().collect::<Vec<_>>())
        };
        if let Some(flags) = words("flags") {
            // Reduced captures may lack `lm`; anything with SSE4.2 or AVX has 64-bit mode.
            let wide = ["lm", "avx", "sse4_2"].iter().any(|flag| flags.contains(flag));
            return Some(if wide { "x86_64" } else { "i686" });
        }
        if self.any("arch") == Some("IA-64") {
            return Some("ia64");
        }
        if self
            .any("vendor_id")
            .is_some_and(|vendor| vendor.starts_with("IBM/S390"))
        {
            return Some("s390x");
        }
        if self.any("isa").is_some_and(|isa| isa.starts_with("rv")) {
            return Some("riscv64");
        }
        if let Some(features) = words("features") {
            if features.contains(&"asimd") || self.any("cpu architecture") == Some("8") {
                return Some("aarch64");
            }
            return Some("arm");
        }
        let power = |cpu: &str| {
            ["POWER", "PPC", "Cell", "ppc"]
                .iter()
                .any(|name| cpu.contains(name))
        };
        self.any("cpu").is_some_and(power).then_some("ppc64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_several_kernels() {
        let x86 = CpuInfo::parse(
            "processor\t: 0\nmodel name\t: A\nflags\t\t: fpu lm\n\nprocessor\t: 1\nmodel name\t: B\nflags\t\t: fpu\n",
        );
        assert_eq!(
            (x86.cpus.len(), x86.arch(), x86.field(1, "model name")),
            (2, Some("x86_64"), Some("B"))
        );
        let arm = CpuInfo::parse(
            "Processor\t: ARMv7 Processor rev 1 (v7l)\nprocessor\t: 0\nBogoMIPS\t: 1\n\nprocessor\t: 1\n\nFeatures\t: swp neon\nCPU part\t: 0xc09\n",
        );
        assert_eq!((arm.cpus.len(), arm.arch()), (2, Some("arm")));
        assert_eq!(arm.field(1, "cpu part"), Some("0xc09"));
        let s390 = CpuInfo::parse(
            "vendor_id       : IBM/S390\n# processors    : 2\nprocessor 0: version = 00\nprocessor 1: version = 00\n",
        );
        assert_eq!((s390.cpus.len(), s390.arch()), (2, Some("s390x")));
        let bad = CpuInfo::parse("processor : -1\nprocessor : 99999999\n:::\n\u{0}\n");
        assert!(bad.cpus.is_empty() && bad.arch().is_none());
    }
}
