//! Memory of this process and its children as the kernel counts it.
//!
//! In: `/proc`. Out: [`ProcessMemory`].
//! Invariant: a process that ends while being read counts as zero; an unreadable own entry is an error.

use std::collections::BTreeMap;
use std::fs;

use crate::base::{Bytes, Code, Problem};

/// Resident memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Heap, stacks and private regions (`RssAnon`).
    pub anonymous: Bytes,
    /// Resident pages of mapped files (`RssFile`).
    pub file: Bytes,
    /// Shared memory (`RssShmem`).
    pub shared: Bytes,
    /// Largest resident size so far (`VmHWM`), summed over the processes.
    pub peak: Bytes,
}

/// Of this process alone.
///
/// # Errors
/// `probe_failed` when `/proc/self/status` cannot be read.
pub fn own() -> Result<ProcessMemory, Problem> {
    fs::read_to_string("/proc/self/status")
        .map(|text| parse(&text))
        .map_err(|error| unreadable(&error))
}

/// Of this process and all its descendants.
///
/// # Errors
/// `probe_failed` when `/proc` cannot be listed.
pub fn tree() -> Result<ProcessMemory, Problem> {
    let own_id = std::process::id();
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").map_err(|error| unreadable(&error))? {
        let Ok(entry) = entry else { continue };
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(text) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        let parent = field(&text, "PPid:").unwrap_or(0);
        parents.insert(id, (u32::try_from(parent).unwrap_or(0), parse(&text)));
    }
    let mut total = ProcessMemory::default();
    for (&id, &(_, memory)) in &parents {
        let mut at = id;
        // A parent chain is never longer than the number of processes; a reused id cannot make it loop forever.
        for _ in 0..=parents.len() {
            if at == own_id {
                total.anonymous.0 += memory.anonymous.0;
                total.file.0 += memory.file.0;
                total.shared.0 += memory.shared.0;
                total.peak.0 += memory.peak.0;
                break;
            }
            match parents.get(&at) {
                Some(&(parent, _)) if parent != 0 => at = parent,
                _ => break,
            }
        }
    }
    Ok(total)
}

fn unreadable(error: &std::io::Error) -> Problem {
    Problem::new(
        Code::ProbeFailed,
        format!("cannot read this process's memory from /proc: {error}"),
        "check that /proc is mounted",
    )
}

fn parse(status: &str) -> ProcessMemory {
    let kib = |name| Bytes(field(status, name).unwrap_or(0).saturating_mul(1024));
    ProcessMemory {
        anonymous: kib("RssAnon:"),
        file: kib("RssFile:"),
        shared: kib("RssShmem:"),
        peak: kib("VmHWM:"),
    }
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Region;

    #[test]
    fn status_text_is_read() {
        let text = "Name:\tx\nPPid:\t7\nVmHWM:\t  300 kB\nRssAnon:\t     100 kB\nRssFile:\t 40 kB\nRssShmem:\t 0 kB\n";
        let memory = parse(text);
        assert_eq!(memory.anonymous, Bytes(102_400));
        assert_eq!(memory.file, Bytes(40_960));
        assert_eq!(memory.peak, Bytes(307_200));
        assert_eq!(field(text, "PPid:"), Some(7));
    }

    #[test]
    fn touched_pages_show_up_and_go_away() {
        let size = 64 << 20;
        let before = own().unwrap().anonymous.0;
        let mut region = Region::new(size, false).unwrap();
        region.bytes_mut().fill(1);
        let held = own().unwrap().anonymous.0;
        assert!(held >= before + (size as u64) / 2, "{before} {held}");
        assert!(tree().unwrap().anonymous.0 >= (size as u64) / 2);
        drop(region);
        assert!(own().unwrap().anonymous.0 + (size as u64) / 2 <= held);
    }
}
