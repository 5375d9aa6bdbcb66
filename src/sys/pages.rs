//! Pages behind a piece of memory: how many are resident, how large they are, on which NUMA node they lie.
//!
//! In: address ranges of this process. Out: the kernel's own answers, from `mincore`, `smaps` and `numa_maps`.
//! Invariant: nothing is inferred from what was asked for; a fact that the kernel does not tell is absent, not zero.
//!
//! Resident bytes are exact for the ranges. Page size and node are told by the kernel for whole areas (neighbouring
//! mappings of one kind), so they are exact where an area holds nothing but the ranges, which is so for large buffers.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use crate::base::{Bytes, Code, Problem};

/// What the kernel says about the pages of some ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Bytes in transparent huge pages.
    pub huge: Bytes,
    /// Every area was advised to use huge pages (`hg` in `VmFlags`); `None` where the kernel shows no flags.
    pub huge_advised: Option<bool>,
    /// Bytes by NUMA node; empty where the kernel does not say.
    pub nodes: BTreeMap<u32, Bytes>,
}

/// The areas of this process at one moment.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    /// By start address.
    areas: BTreeMap<usize, Area>,
}

#[derive(Clone, Debug, Default)]
struct Area {
    end: usize,
    huge: u64,
    huge_advised: Option<bool>,
    nodes: BTreeMap<u32, u64>,
}

impl PageMap {
    /// Reads `/proc/self/smaps` and, where there is one, `/proc/self/numa_maps`.
    ///
    /// # Errors
    /// `probe_failed` when `smaps` cannot be read.
    pub fn read() -> Result<Self, Problem> {
        let path = "/proc/self/smaps";
        let smaps = fs::read_to_string(path).map_err(|error| {
            Problem::new(
                Code::ProbeFailed,
                format!("cannot read {path}: {error}"),
                "check that /proc is mounted",
            )
        })?;
        // A kernel built without NUMA has no such file.
        let numa = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        Ok(Self::parse(&smaps, &numa))
    }

    fn parse(smaps: &str, numa: &str) -> Self {
        let mut areas = BTreeMap::new();
        let mut current: Option<(usize, Area)> = None;
        for line in smaps.lines() {
            if let Some((start, end)) = bounds(line) {
                areas.extend(current.take());
                let area = Area {
                    end,
                    ..Area::default()
                };
                current = Some((start, area));
            } else if let Some((_, area)) = &mut current {
                if let Some(value) = line.strip_prefix("AnonHugePages:") {
                    area.huge = kib(value);
                } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                    area.huge_advised = Some(flags.split_whitespace().any(|flag| flag == "hg"));
                }
            }
        }
        areas.extend(current);
        for line in numa.lines() {
            let start = line
                .split_whitespace()
                .next()
                .and_then(|word| usize::from_str_radix(word, 16).ok());
            if let Some(area) = start.and_then(|start| areas.get_mut(&start)) {
                area.nodes = nodes(line);
            }
        }
        Self { areas }
    }

    /// What is known about the pages of `ranges`. Areas that several ranges share count once.
    #[must_use]
    pub fn of(&self, ranges: impl Iterator<Item = Range<usize>>) -> Pages {
        let mut touched = BTreeMap::new();
        for range in ranges.filter(|range| !range.is_empty()) {
            let first = self.areas.range(..=range.start).next_back();
            let rest = self.areas.range(range.start + 1..range.end);
            touched.extend(
                first
                    .into_iter()
                    .chain(rest)
                    .filter(|(_, area)| area.end > range.start),
            );
        }
        let mut pages = Pages::default();
        for area in touched.values() {
            pages.huge.0 += area.huge;
            pages.huge_advised = match (pages.huge_advised, area.huge_advised) {
                (Some(before), Some(this)) => Some(before && this),
                (before, this) => before.or(this),
            };
            for (&node, bytes) in &area.nodes {
                pages.nodes.entry(node).or_default().0 += bytes;
            }
        }
        pages
    }
}

/// `7f00-7f10 rw-p …` as start and end.
fn bounds(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        usize::from_str_radix(start, 16).ok()?,
        usize::from_str_radix(end, 16).ok()?,
    ))
}

fn kib(value: &str) -> u64 {
    value
        .split_whitespace()
        .next()
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0)
        .saturating_mul(1024)
}

/// `… N0=12 N1=3 … kernelpagesize_kB=4` as bytes by node.
fn nodes(line: &str) -> BTreeMap<u32, u64> {
    let page = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("kernelpagesize_kB="))
        .map_or(4096, kib);
    line.split_whitespace()
        .filter_map(|word| {
            let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
            Some((
                node.parse().ok()?,
                pages.parse::<u64>().ok()?.saturating_mul(page),
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Region;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
Rss:                   8 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac hg
3000-9000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
VmFlags: rd wr
9000-a000 r--p 00000000 00:00 0 [vvar]
AnonHugePages:      4096 kB
VmFlags: rd hg
";
    const NUMA: &str = "\
00001000 default anon=2 dirty=2 N0=1 N1=1 kernelpagesize_kB=4
00003000 default anon=512 N1=512 kernelpagesize_kB=4
zz bad
";

    #[test]
    fn areas_are_found_by_any_of_their_addresses() {
        let map = PageMap::parse(SMAPS, NUMA);
        let of = |ranges: &[Range<usize>]| map.of(ranges.iter().cloned());
        let one = |range: Range<usize>| map.of(std::iter::once(range));
        assert_eq!(one(0x1000..0x1001).huge_advised, Some(true));
        let both = of(&[0x2fff..0x3001, 0x4000..0x5000]);
        assert_eq!((both.huge, both.huge_advised), (Bytes::mib(2), Some(false)));
        assert_eq!(
            both.nodes,
            BTreeMap::from([(0, Bytes(4096)), (1, Bytes(513 * 4096))])
        );
        assert_eq!(one(0x9000..0xa000).huge_advised, Some(true));
        assert_eq!(
            of(&[0xa000..0xb000, 0x10..0x20, 0x3000..0x3000]),
            Pages::default()
        );
    }

    #[test]
    fn this_process_has_huge_pages_only_where_they_were_advised() {
        let size = 16 << 20;
        let [mut plain, mut huge] = [false, true].map(|huge| Region::new(size, huge).unwrap());
        let mut sparse = Region::sparse(size).unwrap();
        for region in [&mut plain, &mut huge, &mut sparse] {
            assert!(region.resident().unwrap().0 < size as u64);
            region.bytes_mut()[..size / 2].fill(1);
        }
        let map = PageMap::read().unwrap();
        let of = |region: &Region| map.of(std::iter::once(region.range()));
        assert_eq!(sparse.resident().unwrap(), Bytes(size as u64 / 2));
        assert!(huge.resident().unwrap().0 >= size as u64 / 2);
        assert_eq!(of(&sparse).huge_advised, Some(false));
        assert_eq!(of(&sparse).huge, Bytes(0));
        assert_eq!(of(&plain).huge_advised, Some(false));
        let offered = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if offered.is_ok_and(|modes| !modes.contains("[never]")) {
            assert_eq!(of(&huge).huge_advised, Some(true));
        }
    }
}
