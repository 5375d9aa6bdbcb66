//! The hwloc reader: a second opinion on the live machine's topology.
//!
//! In: libhwloc by `hwlocality`. Out: [`Topology`] without kinds, and where it differs from our own reader.
//! Invariant: no plugin is loaded (they would open OpenCL, OpenGL and PCI libraries), so hwloc is asked only if its
//! plugin folder was set to [`NO_PLUGINS`] before the process had threads.

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;

use super::hardware::{Cache, Core, Hardware, NumaNode, Topology};
use super::topology::{TopologySource, restrict};
use crate::base::{Bytes, Code, CpuSet, Problem, env_vars};

/// What the plugin folder has to be: not a folder, so there is nothing to load.
pub const NO_PLUGINS: &str = "/dev/null";

/// Reads through libhwloc. Exists only where that loads no plugin.
#[derive(Clone, Copy, Debug)]
pub struct HwlocReader(());

impl HwlocReader {
    /// `None` unless hwloc's plugins are kept out.
    #[must_use]
    pub fn new() -> Option<Self> {
        (env_vars::get(env_vars::HWLOC_PLUGINS_PATH).as_deref() == Some(NO_PLUGINS)).then_some(Self(()))
    }
}

impl TopologySource for HwlocReader {
    fn name(&self) -> &'static str {
        "hwloc"
    }

    fn topology(&self) -> Result<Topology, Problem> {
        let hwloc = Hwloc::new().map_err(|error| {
            Problem::warning(
                Code::HardwareUnsure,
                format!("hwloc could not read this machine: {error}"),
                "nothing: our own reader is used",
            )
        })?;
        let sets = |kind| -> Vec<CpuSet> { hwloc.objects_with_type(kind).map(cpus).collect() };
        let mut caches = Vec::new();
        for (level, kind) in [(2, ObjectType::L2Cache), (3, ObjectType::L3Cache)] {
            caches.extend(hwloc.objects_with_type(kind).map(|object| Cache {
                level,
                size_bytes: match object.attributes() {
                    Some(ObjectAttributes::Cache(cache)) => cache.size().map(|size| Bytes(size.get())),
                    _ => None,
                },
                cpus: cpus(object),
            }));
        }
        let packages = sets(ObjectType::Package);
        let mut cores = sets(ObjectType::Core);
        cores.sort_by_key(CpuSet::first);
        let nodes = hwloc
            .objects_with_type(ObjectType::NUMANode)
            .map(|object| NumaNode {
                id: object
                    .os_index()
                    .and_then(|id| u32::try_from(id).ok())
                    .unwrap_or(0),
                cpus: cpus(object),
                total_bytes: Some(Bytes(object.total_memory())),
                available_bytes: None,
                allowed: true,
            })
            .collect();
        Ok(Topology {
            smt: cores.iter().any(|set| set.len() > 1),
            cores: cores
                .into_iter()
                .map(|cpus| Core {
                    package: cpus
                        .first()
                        .and_then(|cpu| packages.iter().position(|set| set.contains(cpu))),
                    cpus,
                    ..Core::default()
                })
                .collect(),
            dies: sets(ObjectType::Die),
            packages,
            caches,
            nodes,
            ..Topology::default()
        })
    }
}

/// Kernel ids of an object's CPUs.
fn cpus(object: &TopologyObject) -> CpuSet {
    let Some(set) = object.cpuset() else {
        return CpuSet::new();
    };
    set.iter_set()
        .filter_map(|index| u32::try_from(usize::from(index)).ok())
        .collect()
}

/// Where hwloc sees another machine than we do. hwloc shows only what is online and allowed by cgroups, so ours is
/// restricted to the allowed CPUs first. Differences that are meant, and therefore not reported:
///
/// - hwloc counts memory-less nodes out and merges nodes that list the same CPUs, as our facts do; releases before
///   2.10 also drop nodes nested in others, which we keep;
/// - hwloc names no core at all where the kernel gives no sibling masks; we take each CPU for one;
/// - kinds of cores: releases before 2.10 make a kind of every step of clock or capacity;
/// - module cores of AMD's family 15h and dies are seen the same by both since 2.5.
#[must_use]
pub fn differences(hardware: &Hardware, theirs: &Topology) -> Vec<String> {
    let allowed = &hardware.cpus.allowed;
    let ours = &hardware.topology;
    let mut found = Vec::new();
    let mut compare = |what: &str, ours: Vec<CpuSet>, theirs: Vec<CpuSet>| {
        let sorted = |mut sets: Vec<CpuSet>| {
            sets.sort();
            sets
        };
        let (ours, theirs) = (sorted(ours), sorted(theirs));
        if ours != theirs {
            let show = |sets: &[CpuSet]| {
                sets.iter()
                    .map(|set| format!("[{set}]"))
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            found.push(format!(
                "{what}: ours {} and hwloc's {}",
                show(&ours),
                show(&theirs)
            ));
        }
    };
    let cores = |topology: &Topology| -> Vec<CpuSet> {
        restrict(
            &topology
                .cores
                .iter()
                .map(|core| core.cpus.clone())
                .collect::<Vec<_>>(),
            allowed,
        )
    };
    if !theirs.cores.is_empty() {
        compare("cores", cores(ours), cores(theirs));
    }
    compare(
        "packages",
        restrict(&ours.packages, allowed),
        restrict(&theirs.packages, allowed),
    );
    compare(
        "L3 caches",
        ours.cache_groups(3, allowed),
        theirs.cache_groups(3, allowed),
    );
    found
}

/// Asks hwloc about the live machine, if it may be asked, and warns where it disagrees.
pub fn second_opinion(hardware: &Hardware, warnings: &mut Vec<Problem>) {
    let Some(reader) = HwlocReader::new() else {
        return;
    };
    match reader.topology() {
        Err(problem) => warnings.push(problem),
        Ok(theirs) => warnings.extend(differences(hardware, &theirs).into_iter().map(|difference| {
            Problem::warning(
                Code::HardwareUnsure,
                format!("our reader and hwloc disagree on {difference}"),
                "our own reading is used; please send the output of `doctor`",
            )
            .why("threads may be pinned less well than possible")
        })),
    }
}
