//! Machines that no capture shows, made up line by line: what a careful engineer reads off their files, the probe says.
//!
//! In: a few files each. Out: the facts that are expected of them. None of these trees is a real machine; each has one
//! or two oddities that real ones have.

use edge_deploy::probe::{self, Hardware, Root, doctor, report};
use serde_json::{Value, json};

use crate::probe_damaged::{Tree, write_tree};

mod limits;

/// A machine under construction.
#[derive(Clone, Default)]
struct Machine(Tree);

impl Machine {
    /// `online` CPUs, 16 GiB of memory, all of it allowed.
    fn new(online: &str) -> Self {
        Self::default()
            .put("sys/devices/system/cpu/online", online)
            .put(
                "proc/self/status",
                &format!("Cpus_allowed_list:\t{online}\nMems_allowed_list:\t0"),
            )
            .put(
                "proc/meminfo",
                "MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB",
            )
    }

    fn put(mut self, path: &str, text: &str) -> Self {
        self.0.insert(path.to_owned(), format!("{text}\n").into_bytes());
        self
    }

    fn without(mut self, path: &str) -> Self {
        self.0.remove(path).expect("it was there");
        self
    }

    /// A file of each of these CPUs.
    fn each(self, cpus: impl IntoIterator<Item = u32>, file: &str, text: impl Fn(u32) -> String) -> Self {
        cpus.into_iter().fold(self, |machine, cpu| {
            machine.put(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"), &text(cpu))
        })
    }

    /// Says that these CPUs share a core, package or die (`core_cpus`, `package_cpus`, `die_cpus`).
    fn share(self, file: &str, cpus: &[u32]) -> Self {
        let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        self.each(cpus.iter().copied(), &format!("topology/{file}_list"), |_| {
            list.clone()
        })
    }

    /// A cache that these CPUs share.
    fn cache(self, level: u32, size: &str, cpus: &[u32]) -> Self {
        let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let of = |name: &str| format!("cache/index{level}/{name}");
        self.each(cpus.iter().copied(), &of("level"), |_| level.to_string())
            .each(cpus.iter().copied(), &of("type"), |_| "Unified".to_owned())
            .each(cpus.iter().copied(), &of("size"), |_| size.to_owned())
            .each(cpus.iter().copied(), &of("shared_cpu_list"), |_| list.clone())
    }

    fn node(self, id: u32, cpus: &str, kib: u64) -> Self {
        let folder = format!("sys/devices/system/node/node{id}");
        self.put(&format!("{folder}/cpulist"), cpus).put(
            &format!("{folder}/meminfo"),
            &format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {} kB", kib / 2),
        )
    }

    /// A v2 tree at the usual place, with this process in `group`.
    fn v2(self, group: &str) -> Self {
        self.put("proc/self/cgroup", &format!("0::{group}")).put(
            "proc/self/mountinfo",
            "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        )
    }

    fn probe(&self) -> (tempfile::TempDir, Root, Hardware) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        write_tree(dir.path(), &self.0);
        let root = Root::snapshot(dir.path()).unwrap();
        let hardware = probe::probe(&root).unwrap_or_else(|problem| panic!("{problem}"));
        (dir, root, hardware)
    }

    fn facts(&self) -> Value {
        probe::facts(&self.probe().2)
    }

    /// Compares the facts named in `want`; also what `doctor --capture` writes has to give them.
    fn says(&self, what: &str, want: Value) {
        let (_dir, root, hardware) = self.probe();
        let capture = tempfile::tempdir().unwrap();
        doctor::capture(&root, capture.path()).unwrap();
        let again = probe::probe(&Root::snapshot(capture.path()).unwrap()).unwrap();
        assert!(
            report::page(&hardware)
                .lines()
                .all(|line| line.chars().count() <= report::WIDTH),
            "{what}"
        );
        for (from, hardware) in [("machine", hardware), ("capture", again)] {
            let facts = probe::facts(&hardware);
            for (key, want) in want.as_object().unwrap() {
                if let Some(word) = key.strip_prefix("warns") {
                    let warned = facts["warnings"].to_string().contains(want.as_str().unwrap());
                    assert_eq!(
                        warned,
                        word.is_empty(),
                        "{what}, {from}: {want} in {}",
                        facts["warnings"]
                    );
                } else if !(from == "capture" && key.ends_with("_source")) {
                    assert_eq!(
                        &facts[key], want,
                        "{what}, {from}: {key}; warnings {}",
                        facts["warnings"]
                    );
                }
            }
        }
    }
}

/// The CPUs of each kind, most capable last.
fn kinds(facts: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = facts["cpu_kinds"].as_array().unwrap();
    all.iter()
        .map(|kind| (text(&kind["name"]), text(&kind["cpus"])))
        .collect()
}

fn named(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|&(name, cpus)| (name.to_owned(), cpus.to_owned()))
        .collect()
}

#[test]
fn cpus_that_are_hidden_offline_or_unnamed() {
    Machine::new("0-5")
        .put("sys/devices/system/cpu/possible", "0-127")
        .put("sys/devices/system/cpu/present", "0-7")
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0",
        )
        .says(
            "two offline, two not ours",
            json!({"logical_cpus_online": 6, "logical_cpus_allowed": 4, "hidden_cpus": "4-7",
            "hidden_cpus_count": 4, "possible_cpus": "0-127", "cores": 6, "cores_allowed": 4}),
        );
    Machine::new("0-3")
        .without("sys/devices/system/cpu/online")
        .each(0..4, "online", |cpu| u32::from(cpu != 2).to_string())
        .put("proc/self/status", "Cpus_allowed_list:\tffff")
        .says(
            "only the switches say it",
            json!({"online_cpus": "0-1,3", "allowed_cpus": "0-1,3"}),
        );
    Machine::new("0-3")
        .put("proc/self/status", "Cpus_allowed_list:\t64-127")
        .says(
            "an affinity without any online CPU",
            json!({"allowed_cpus": "0-3", "warns": "none of which is online"}),
        );
    Machine::new("0-3")
        .put("sys/devices/system/cpu/isolated", "3")
        .put("proc/self/status", "Cpus_allowed_list:\t0-2")
        .says(
            "an isolated CPU",
            json!({"isolated_cpus": "3", "logical_cpus_allowed": 3, "warns": "isolated"}),
        );
    // SMT4 switched on of SMT8: the masks name CPUs that are off.
    let power = (0..8).fold(Machine::new("0-3,8-11"), |machine, cpu| {
        let core = cpu / 4 * 8;
        machine.each([core + cpu % 4], "topology/core_cpus_list", |_| {
            format!("{core}-{}", core + 7)
        })
    });
    power
        .put(
            "proc/cpuinfo",
            "processor\t: 0\ncpu\t\t: POWER9 (architected), altivec supported",
        )
        .says(
            "half of the threads of each core",
            json!({"cores": 2, "smt": 4, "logical_cpus_online": 8, "arch": "ppc64"}),
        );
}

#[test]
fn cores_packages_dies_and_caches_that_are_missing_or_lie() {
    Machine::new("0-3").says(
        "no topology at all",
        json!({"cores": 4, "smt": 1, "packages": 0, "l3_count": 0,
        "numa_nodes": 1, "dies": 0}),
    );
    Machine::new("0-3")
        .share("core_cpus", &[0, 2])
        .share("core_cpus", &[1, 3])
        .share("package_cpus", &[0, 1, 2, 3])
        .says(
            "masks without numbers, threads interleaved",
            json!({"cores": 2, "smt": 2, "packages": 1}),
        );
    // Both halves of a core number are there, the same on each package.
    Machine::new("0-3")
        .each(0..4, "topology/core_id", |cpu| (cpu % 2).to_string())
        .each(0..4, "topology/thread_siblings_list", |cpu| cpu.to_string())
        .share("core_siblings", &[0, 1])
        .share("core_siblings", &[2, 3])
        .says("core numbers that repeat", json!({"cores": 4, "packages": 2}));
    let dies = (0..4).fold(Machine::new("0-7"), |machine, die| {
        machine.share("die_cpus", &[die * 2, die * 2 + 1]).each(
            [die * 2, die * 2 + 1],
            "topology/die_id",
            |_| (die % 2).to_string(),
        )
    });
    dies.clone()
        .share("package_cpus", &[0, 1, 2, 3])
        .share("package_cpus", &[4, 5, 6, 7])
        .says("two dies in each package", json!({"packages": 2, "dies": 4}));
    (0..4)
        .fold(dies, |machine, die| {
            machine.share("package_cpus", &[die * 2, die * 2 + 1])
        })
        .says(
            "a die that is the package is no level",
            json!({"packages": 4, "dies": 0}),
        );
    Machine::new("0-3")
        .cache(3, "8192K", &[0, 1, 2, 3, 4, 5])
        .says("a cache that names offline CPUs", json!({"l3_count": 1}));
    Machine::new("0-3")
        .cache(3, "8192K", &[0, 1, 2, 3])
        .each([1], "cache/index3/shared_cpu_list", |_| "1-2".to_owned())
        .says(
            "caches that contradict each other",
            json!({"l3_count": 0, "warns": "contradict"}),
        );
    Machine::new("0-3")
        .cache(3, "16384K", &[0, 1])
        .cache(3, "16384K", &[2, 3])
        .put("proc/self/status", "Cpus_allowed_list:\t1\nMems_allowed_list:\t0")
        .says(
            "only the cache that our CPU uses counts",
            json!({"l3_count": 1, "cores": 4, "cores_allowed": 1}),
        );
    let clusters = (0..4).fold(Machine::new("0-7"), |machine, pair| {
        machine.cache(2, "1024K", &[pair * 2, pair * 2 + 1]).each(
            [pair * 2, pair * 2 + 1],
            "topology/cluster_cpus_list",
            |_| format!("{}-{}", pair * 2, pair * 2 + 1),
        )
    });
    clusters.says(
        "clusters that share a level 2 cache are no cores",
        json!({"cores": 8, "l2_count": 4, "smt": 1}),
    );
}

#[test]
fn nodes_of_every_sort() {
    // POWER9 with two GPUs: their memory is nodes with high numbers.
    Machine::new("0-3")
        .node(0, "0-1", 8 << 20)
        .node(8, "2-3", 8 << 20)
        .node(252, "", 4 << 20)
        .node(255, "", 4 << 20)
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0,8,252,255",
        )
        .says(
            "numbers with gaps",
            json!({"numa_nodes": 4, "memory_only_nodes": "252,255", "allowed_mems": "0,8,252,255",
            "numa_memory_bytes": {"0": 8u64 << 30, "8": 8u64 << 30, "252": 4u64 << 30, "255": 4u64 << 30}}),
        );
    Machine::new("0-3")
        .node(0, "0-1", 16 << 20)
        .node(1, "2-3", 0)
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1",
        )
        .says(
            "a node without memory",
            json!({"cpu_only_nodes": "1", "numa_nodes": 1, "mem_available": 8u64 << 30}),
        );
    Machine::new("0-3")
        .node(0, "0-1", 8 << 20)
        .node(1, "2-3", 8 << 20)
        .put("sys/devices/system/node/online", "0")
        .says("a node that is off", json!({"numa_nodes": 1}));
    Machine::new("0-3")
        .node(0, "0-3", 8 << 20)
        .node(1, "0-3", 8 << 20)
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1",
        )
        .says(
            "firmware that puts every CPU on every node",
            json!({"numa_nodes": 1, "warns": "contradict"}),
        );
    Machine::new("0-3")
        .node(0, "0-1", 8 << 20)
        .node(1, "2-3", 8 << 20)
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1",
        )
        .says(
            "memory of one node only",
            json!({"allowed_mems": "1", "mem_available": 4u64 << 30, "numa_nodes": 1,
            "packages": 0}),
        );
}

#[test]
fn the_first_cpu_and_node_are_off() {
    let machine = (1..4).fold(Machine::new("4-7"), |machine, cpu| {
        machine.put(&format!("sys/devices/system/cpu/cpu{cpu}/online"), "0")
    });
    machine
        .put("sys/devices/system/cpu/present", "0-7")
        .put("sys/devices/system/cpu/possible", "0-7")
        .share("package_cpus", &[4, 5, 6, 7])
        .cache(3, "8192K", &[4, 5, 6, 7])
        .node(1, "4-7", 8 << 20)
        .put("sys/devices/system/node/online", "1")
        .put(
            "proc/self/status",
            "Cpus_allowed_list:\t4-7\nMems_allowed_list:\t1",
        )
        .says(
            "CPU 0 and node 0 are off",
            json!({"online_cpus": "4-7", "l3_count": 1, "packages": 1, "numa_nodes": 1,
            "cores": 4, "hidden_cpus": "0-3", "allowed_mems": "1", "mem_available": 8u64 << 30}),
        );
}

#[test]
fn a_guest_with_an_empty_newest_topology_leaf() {
    // Leaf 0x1F is announced and says nothing; 0x0B has two threads of one core, two cores of one package.
    let dump = |id: u32| {
        format!(
            "5 0 0 0 0 => 1f 756e6547 6c65746e 49656e69\n5 1 0 0 0 => b0671 {:x} 80202001 178bfbff\n\
             5 b 0 0 0 => 1 2 100 {id:x}\n5 b 0 1 0 => 2 4 201 {id:x}\n5 1f 0 0 0 => 0 0 0 0\n5 1f 0 1 0 => 0 0 1 0",
            id << 24 | 4 << 16
        )
    };
    let guest = (0..4).fold(Machine::default(), |machine, cpu| {
        machine.put(&format!("cpuid/pu{cpu}"), &dump(cpu))
    });
    let facts = guest.facts();
    assert_eq!(
        (
            &facts["cores"],
            &facts["packages"],
            &facts["smt"],
            &facts["logical_cpus_online"]
        ),
        (&json!(2), &json!(1), &json!(2), &json!(4))
    );
}

#[test]
fn kinds_of_cores_by_each_evidence() {
    // Two large cores with two threads each, four small ones that share a level 2 cache; no counter units.
    let mixed = Machine::new("0-7")
        .share("core_cpus", &[0, 1])
        .share("core_cpus", &[2, 3])
        .cache(2, "2048K", &[0, 1])
        .cache(2, "2048K", &[2, 3])
        .cache(2, "4096K", &[4, 5, 6, 7])
        .each(0..4, "cpufreq/base_frequency", |_| "2500000".to_owned())
        .each(4..8, "cpufreq/base_frequency", |_| "1800000".to_owned());
    let facts = mixed.facts();
    assert_eq!(kinds(&facts), named(&[("E", "4-7"), ("P", "0-3")]));
    assert_eq!(facts["kind_confidence"], "medium");
    assert_eq!((&facts["p_cores"], &facts["e_cores"]), (&json!(2), &json!(4)));
    // The same under a hypervisor: what it shows of caches is not believed.
    let guest = mixed
        .clone()
        .put("proc/cpuinfo", "processor : 0\nflags : lm avx2 hypervisor");
    assert_eq!(kinds(&guest.facts()), named(&[("all", "0-7")]));
    assert_eq!(guest.facts()["kind_confidence"], "low");
    // Counter units, with low-power cores outside the shared level 3 cache.
    let three = mixed
        .put("sys/devices/cpu_core/cpus", "0-3")
        .put("sys/devices/cpu_atom/cpus", "4-7")
        .cache(3, "24576K", &[0, 1, 2, 3, 4, 5]);
    let facts = three.facts();
    assert_eq!(
        kinds(&facts),
        named(&[("LP-E", "6-7"), ("E", "4-5"), ("P", "0-3")])
    );
    assert_eq!(
        (&facts["kind_confidence"], &facts["lp_e_cpus"]),
        (&json!("high"), &json!("6-7"))
    );
    let said = three.put("sys/devices/cpu_lowpower/cpus", "7");
    assert_eq!(
        kinds(&said.facts()),
        named(&[("LP-E", "7"), ("E", "4-6"), ("P", "0-3")])
    );
    // P cores switched off in the firmware.
    let small = Machine::new("0-3").put("sys/devices/cpu_atom/cpus", "0-3");
    assert_eq!(kinds(&small.facts()), named(&[("E", "0-3")]));
}

#[test]
fn kinds_of_arm_cores() {
    let block = |cpu: u32, part: &str| {
        format!("processor\t: {cpu}\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n")
    };
    // A phone: one prime core, three large, four small.
    let part = |cpu: u32| match cpu {
        0..=3 => "0xd46",
        4..=6 => "0xd47",
        _ => "0xd48",
    };
    let info: Vec<String> = (0..8).map(|cpu| block(cpu, part(cpu))).collect();
    let phone = Machine::new("0-7").put("proc/cpuinfo", &info.join("\n"));
    assert_eq!(
        kinds(&phone.facts()),
        named(&[("little", "0-3"), ("mid", "4-6"), ("big", "7")])
    );
    assert_eq!(
        phone.facts()["cpu_model"],
        "Cortex-A510 + Cortex-A710 + Cortex-X2"
    );
    // The register of each CPU is nearer than a file that an emulator renumbered.
    let register = |cpu: u32| {
        if cpu < 2 {
            "0x00000000410fd034"
        } else {
            "0x00000000411fd0b0"
        }
    };
    let both = Machine::new("0-3")
        .put(
            "proc/cpuinfo",
            &(0..4)
                .map(|cpu| block(cpu, "0xd03"))
                .collect::<Vec<_>>()
                .join("\n"),
        )
        .each(0..4, "regs/identification/midr_el1", |cpu| {
            register(cpu).to_owned()
        });
    assert_eq!(kinds(&both.facts()), named(&[("little", "0-1"), ("big", "2-3")]));
    // One CPU does not say its part: capacity decides, and where all say the same, nothing does.
    let capacity = |cpu: u32| if cpu < 4 { "446" } else { "1024" }.to_owned();
    let old =
        Machine::new("0-5")
            .put("proc/cpuinfo", &block(0, "0xd03"))
            .each(0..6, "cpu_capacity", capacity);
    let facts = old.facts();
    assert_eq!(kinds(&facts), named(&[("little", "0-3"), ("big", "4-5")]));
    assert_eq!(
        (&facts["cpu_kinds"][0]["evidence"], &facts["kind_confidence"]),
        (&json!("capacity"), &json!("medium"))
    );
    // Three steps of capacity within 15 % are one kind of core.
    let even = Machine::new("0-2")
        .put("proc/cpuinfo", "processor : 0\nFeatures : fp asimd")
        .each(0..3, "cpu_capacity", |cpu| (980 + cpu * 22).to_string());
    assert_eq!(kinds(&even.facts()), named(&[("all", "0-2")]));
}

#[test]
fn a_page_of_256_cpus_is_short_and_narrow() {
    let cpus: Vec<u32> = (0..256).collect();
    let mut machine = Machine::new("0-255");
    for core in 0..128 {
        machine = machine.share("core_cpus", &[core, core + 128]);
    }
    for group in cpus[..128].chunks(4) {
        let both: Vec<u32> = group.iter().flat_map(|&cpu| [cpu, cpu + 128]).collect();
        machine = machine.cache(3, "32768K", &both);
    }
    for node in 0..8 {
        let first = node * 16;
        machine = machine.node(
            node,
            &format!("{first}-{},{}-{}", first + 15, first + 128, first + 143),
            2 << 20,
        );
    }
    let (_dir, _root, hardware) = machine.probe();
    let page = report::page(&hardware);
    assert!(
        page.lines().all(|line| line.chars().count() <= report::WIDTH),
        "{page}"
    );
    assert!(page.lines().count() <= 40, "{page}");
    assert!(page.contains("4x32"), "{page}");
    // Every CPU is on the map.
    let map: Vec<&str> = page.lines().filter(|line| line.starts_with("all ")).collect();
    assert_eq!(map.len(), 8, "{page}");
}
