//! How much memory this process may still use, and what bounds it.
//!
//! In: `/proc/meminfo`, the cgroup chain, node meminfo, huge-page state. Out: [`Memory`].
//! Invariant: file cache that the kernel can drop is available memory; "max", absurd and larger-than-RAM limits are
//! no limits; the answer is the minimum over all bounds, and the binding one is named.

use std::collections::BTreeMap;

use super::cgroup::{Cgroups, Group};
use super::hardware::{Memory, NumaNode};
use super::root::Root;
use crate::base::{Bytes, Code, CpuSet, Place, Problem};

/// Reads it. `nodes` are the machine's NUMA nodes, `allowed` those we may allocate on.
#[must_use]
pub fn memory(
    root: &Root,
    groups: &Cgroups,
    nodes: &[NumaNode],
    allowed: CpuSet,
    warnings: &mut Vec<Problem>,
) -> Memory {
    let info = fields(&root.read("/proc/meminfo").unwrap_or_default());
    // More than an exbibyte is a damaged file, not a machine.
    let kib = |name: &str| {
        info.get(name)
            .filter(|&&value| value < 1 << 50)
            .map(|&value| value * 1024)
    };
    let node_total = nodes
        .iter()
        .filter_map(|node| node.total_bytes)
        .fold(0u64, |sum, b| sum.saturating_add(b.0));
    let total = kib("MemTotal").unwrap_or(node_total);
    let (mut available, mut source) = match (kib("MemAvailable"), kib("MemFree")) {
        (Some(available), _) => (available, "MemAvailable".to_owned()),
        (None, Some(free)) => (
            // Kernels before 3.14: the same idea without its watermarks.
            free.saturating_add(kib("Buffers").unwrap_or(0))
                .saturating_add(kib("Cached").unwrap_or(0))
                .saturating_sub(kib("Shmem").unwrap_or(0)),
            "MemFree+Buffers+Cached".to_owned(),
        ),
        (None, None) => (total, "MemTotal".to_owned()),
    };
    available = available.min(total);
    if total == 0 {
        warnings.push(Problem::warning(
            Code::HardwareUnsure,
            "the amount of memory is unknown: /proc/meminfo gives no MemTotal",
            "mount /proc, or pass a saved machine with `--hardware FILE`",
        ));
    }
    let mut system = available;
    let mut limit: Option<(u64, String)> = None;
    let mut soft: Option<u64> = None;
    for bound in groups
        .chain("memory")
        .iter()
        .flat_map(|group| bounds(root, group))
    {
        // A limit of at least the whole memory limits nothing; v1 writes "none" as about 2^63.
        if bound.limit >= total && total > 0 || bound.limit >= 1 << 60 {
            continue;
        }
        if bound.soft {
            soft = Some(soft.map_or(bound.limit, |known| known.min(bound.limit)));
        } else if limit.as_ref().is_none_or(|(known, _)| bound.limit < *known) {
            limit = Some((bound.limit, bound.source.clone()));
        }
        if let Some(left) = bound.left()
            && left < available
        {
            (available, source) = (left, bound.source);
        }
    }
    if let Some(left) = node_bound(nodes, &allowed) {
        system = system.min(left);
        if left < available {
            (available, source) = (left, format!("NUMA nodes {allowed}"));
        }
    }
    if let Some((bytes, file)) = &limit {
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                format!("memory is limited to {} of {} ({file})", Bytes(*bytes), Bytes(total)),
                "raise the memory limit of the container or service (`--memory`, `MemoryMax=`, `limits.memory`) for larger models",
            )
            .why("the kernel ends a process that goes over it")
            .at(Place::of(file.clone())),
        );
    }
    Memory {
        total_bytes: Bytes(total),
        available_bytes: Bytes(available),
        system_available_bytes: Some(Bytes(system)),
        limit_bytes: limit.as_ref().map(|(bytes, _)| Bytes(*bytes)),
        limit_source: limit.map(|(_, file)| file),
        soft_limit_bytes: soft.map(Bytes),
        available_source: source,
        allowed_nodes: allowed,
        thp: thp(root),
        free_huge_pages: root.number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
        swap_total_bytes: kib("SwapTotal").map(Bytes),
    }
}

/// `Name: 123 kB` lines (also `Node 0 Name: 123 kB`) as numbers without unit.
#[must_use]
pub fn fields(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let name = match name.trim().strip_prefix("Node ") {
                Some(rest) => rest.split_once(' ')?.1,
                None => name,
            };
            Some((
                name.trim().to_owned(),
                value.split_whitespace().next()?.parse().ok()?,
            ))
        })
        .collect()
}

/// One limit of one group.
struct Bound {
    limit: u64,
    source: String,
    /// What the group uses and what of it is cache; `None` where the group does not say.
    used: Option<(u64, u64)>,
    soft: bool,
    /// A v1 soft limit only matters when the whole machine runs short, so it does not bound what may be used.
    binds: bool,
}

impl Bound {
    /// limit − use + reclaimable cache, at most the limit.
    fn left(&self) -> Option<u64> {
        if !self.binds {
            return None;
        }
        let (used, cache) = self.used.unwrap_or((0, 0));
        let held = used.saturating_sub(cache.min(used));
        Some(self.limit.saturating_sub(held))
    }
}

fn bounds(root: &Root, group: &Group) -> Vec<Bound> {
    let file = |name: &str| format!("{}/{name}", group.path);
    let stat = |keys: &dyn Fn(&str) -> Option<u64>, prefix: &str| {
        ["inactive_file", "active_file", "slab_reclaimable"]
            .iter()
            .filter_map(|key| keys(&format!("{prefix}{key}")))
            .fold(0u64, u64::saturating_add)
    };
    let mut found = Vec::new();
    if group.v2 {
        let used = || {
            let current: u64 = root.number(&file("memory.current"))?;
            let text = root.read(&file("memory.stat")).unwrap_or_default();
            let fields = stat_fields(&text);
            Some((current, stat(&|key| fields.get(key).copied(), "")))
        };
        for (name, soft) in [("memory.max", false), ("memory.high", true)] {
            // "max" does not parse: no limit here.
            if let Some(limit) = root.number(&file(name)) {
                found.push(Bound {
                    limit,
                    source: file(name),
                    used: used(),
                    soft,
                    binds: true,
                });
            }
        }
        return found;
    }
    let text = root.read(&file("memory.stat")).unwrap_or_default();
    let fields = stat_fields(&text);
    // `total_` counts include child groups, as the usage does; old kernels have only the plain names.
    let prefix = if fields.contains_key("total_inactive_file") {
        "total_"
    } else {
        ""
    };
    let used = root
        .number(&file("memory.usage_in_bytes"))
        .map(|current: u64| (current, stat(&|key| fields.get(key).copied(), prefix)));
    for (name, soft) in [
        ("memory.limit_in_bytes", false),
        ("memory.soft_limit_in_bytes", true),
    ] {
        if let Some(limit) = root.number(&file(name)) {
            found.push(Bound {
                limit,
                source: file(name),
                used,
                soft,
                binds: !soft,
            });
        }
    }
    // States the tightest limit of all ancestors, also of those outside a container's view.
    if let Some(&limit) = fields.get("hierarchical_memory_limit") {
        found.push(Bound {
            limit,
            source: file("memory.stat"),
            used,
            soft: false,
            binds: true,
        });
    }
    found
}

fn stat_fields(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name, value.trim().parse().ok()?))
        })
        .collect()
}

/// Where only some of the machine's nodes are allowed, their memory is all there is.
fn node_bound(nodes: &[NumaNode], allowed: &CpuSet) -> Option<u64> {
    let with_memory = |node: &&NumaNode| node.total_bytes.is_none_or(|bytes| bytes.0 > 0);
    let ours: Vec<&NumaNode> = nodes
        .iter()
        .filter(with_memory)
        .filter(|node| allowed.contains(node.id))
        .collect();
    if ours.is_empty() || ours.len() == nodes.iter().filter(with_memory).count() {
        return None;
    }
    ours.iter()
        .map(|node| node.available_bytes.map(|bytes| bytes.0))
        .try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
}

/// The word in brackets: `always [madvise] never`.
fn thp(root: &Root) -> Option<String> {
    let line = root.line("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let (_, rest) = line.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}
