//! CPUID from a recorded dump, in the form that `raw-cpuid` asks for.
//!
//! In: one text file `puN` per CPU (`mask eax ebx ecx edx => eax ebx ecx edx`, hexadecimal; the mask's bits say which
//! inputs a line is for). Out: readers that `raw_cpuid::CpuId` and our topology decoder ask.
//! Invariant: a leaf that is not in the dump reads as zero; what the dump states counts, whatever its maximum leaf.

use std::collections::BTreeMap;
use std::rc::Rc;

use raw_cpuid::{CpuIdReader, CpuIdResult};

use super::root::Root;
use crate::base::CpuSet;

/// Lines of one CPU; real dumps have fewer than 200.
const MAX_LINES: usize = 4096;
/// Bits of the mask column that we know: EAX and ECX select a leaf.
const MASK_EAX: u32 = 1;
const MASK_ECX: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Line {
    mask: u32,
    eax: u32,
    ecx: u32,
    result: CpuIdResult,
}

/// The recorded answers of one CPU.
#[derive(Clone, Debug, Default)]
pub struct Recorded(Rc<Vec<Line>>);

impl Recorded {
    /// Parses a dump; lines that are not of the form are skipped.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (inputs, outputs) = line.split_once("=>")?;
            let hex = |part: &str| -> Option<Vec<u32>> {
                part.split_whitespace()
                    .map(|word| u32::from_str_radix(word, 16).ok())
                    .collect()
            };
            let (inputs, outputs) = (hex(inputs)?, hex(outputs)?);
            let [mask, eax, _, ecx, _] = inputs[..] else {
                return None;
            };
            let [a, b, c, d] = outputs[..] else { return None };
            Some(Line {
                mask,
                eax,
                ecx,
                result: CpuIdResult {
                    eax: a,
                    ebx: b,
                    ecx: c,
                    edx: d,
                },
            })
        };
        Self(Rc::new(text.lines().filter_map(line).take(MAX_LINES).collect()))
    }

    /// Whether it answers anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl CpuIdReader for Recorded {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        let fits = |line: &&Line| {
            (line.mask & MASK_EAX == 0 || line.eax == eax) && (line.mask & MASK_ECX == 0 || line.ecx == ecx)
        };
        self.0.iter().find(fits).map_or(
            CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx: 0,
                edx: 0,
            },
            |line| line.result,
        )
    }
}

/// A recorded machine: `/cpuid/puN`, or `puN` at the top of a folder that holds nothing else.
#[must_use]
pub fn recorded(root: &Root) -> BTreeMap<u32, Recorded> {
    let mut found = BTreeMap::new();
    if root.is_live() {
        return found;
    }
    for folder in ["/cpuid", ""] {
        let numbers: CpuSet = root.numbered(if folder.is_empty() { "/" } else { folder }, "pu");
        for cpu in numbers.iter() {
            let dump = root
                .read(&format!("{folder}/pu{cpu}"))
                .map(|text| Recorded::parse(&text));
            found.extend(dump.filter(|dump| !dump.is_empty()).map(|dump| (cpu, dump)));
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_answer_by_mask() {
        let dump = Recorded::parse(
            "# comment\n1 1 0 0 0 => a b c d\n5 4 0 2 0 => 1 2 3 4\nnonsense\n1 2 => 3\n1 g 0 0 0 => 0 0 0 0\n",
        );
        assert_eq!(dump.cpuid2(1, 7).ebx, 0xb);
        assert_eq!(dump.cpuid2(4, 2).edx, 4);
        assert_eq!(dump.cpuid2(4, 3).eax, 0);
        assert!(Recorded::parse("\u{0}\u{fffd}").is_empty());
    }
}
