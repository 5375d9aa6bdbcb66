//! Made-up machines with limits: groups in groups, containers, memory, environments, and captures of all that.
//!
//! In: a few files each. Out: the facts that are expected of them.

use edge_deploy::probe::doctor;
use serde_json::json;

use super::Machine;

#[test]
fn quotas_and_cpusets_in_nested_groups() {
    let job = Machine::new("0-7").v2("/job.slice/unit.scope");
    job.clone()
        .put("sys/fs/cgroup/job.slice/unit.scope/cpu.max", "max 100000")
        .put("sys/fs/cgroup/job.slice/cpu.max", "765000 100000")
        .says(
            "only the parent limits",
            json!({"cpu_quota": 7.65, "cpu_quota_source": "/sys/fs/cgroup/job.slice/cpu.max"}),
        );
    job.clone()
        .put("sys/fs/cgroup/job.slice/unit.scope/cpu.max", "50000 100000")
        .put("sys/fs/cgroup/job.slice/cpu.max", "800000 100000")
        .says(
            "the inner one is tighter",
            json!({"cpu_quota": 0.5, "warns": "less than one thread needs"}),
        );
    job.clone()
        .put("sys/fs/cgroup/job.slice/cpu.max", "250000 0")
        .says(
            "a period of zero is no limit",
            json!({"cpu_quota": null, "warns": "period of 0"}),
        );
    job.clone()
        .put("sys/fs/cgroup/job.slice/unit.scope/cpuset.cpus.effective", "")
        .put("sys/fs/cgroup/job.slice/cpuset.cpus.effective", "2-3")
        .says("an empty set means the parent's", json!({"allowed_cpus": "2-3"}));
    job.put("sys/fs/cgroup/job.slice/unit.scope/cpuset.cpus", "0-1")
        .put("sys/fs/cgroup/job.slice/unit.scope/cpuset.cpus.effective", "1")
        .says(
            "what is in effect, not what was asked",
            json!({"allowed_cpus": "1"}),
        );
    let v1 = Machine::new("0-7")
        .put(
            "proc/self/cgroup",
            "4:cpu,cpuacct:/a/b\n3:cpuset:/a/b\n0::/init.scope",
        )
        .put(
            "proc/self/mountinfo",
            "30 1 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 1 0:2 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
             32 1 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        )
        .put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1")
        .put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000")
        .put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "75000")
        .put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000")
        .put("sys/fs/cgroup/cpuset/a/b/cpuset.cpus", "");
    v1.clone().put("sys/fs/cgroup/cpuset/a/cpuset.cpus", "4-7").says(
        "v1 beside an empty v2 tree",
        json!({"cpu_quota": 1.5, "allowed_cpus": "4-7"}),
    );
    v1.put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "0").says(
        "v1 with a period of zero",
        json!({"cpu_quota": null, "warns": "period of 0"}),
    );
}

#[test]
fn views_from_inside_containers() {
    Machine::new("0-3")
        .put("proc/self/cgroup", "0::/../../system.slice/other.service")
        .put(
            "proc/self/mountinfo",
            "30 1 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw",
        )
        .put("sys/fs/cgroup/cpu.max", "200000 100000")
        .put("sys/fs/cgroup/memory.max", "4294967296")
        .put("sys/fs/cgroup/memory.current", "1073741824")
        .put(
            "sys/fs/cgroup/memory.stat",
            "inactive_file 536870912\nactive_file 268435456\nslab_reclaimable 0",
        )
        .says(
            "a path outside of what is mounted",
            json!({"cpu_quota": 2.0, "mem_limit": 4u64 << 30,
            "mem_available": (4u64 << 30) - (256 << 20), "environment": "bare"}),
        );
    let id = "4fd1".repeat(16);
    Machine::new("0-3")
        .put(".dockerenv", "")
        .put(
            "proc/self/cgroup",
            &format!("5:memory:/docker/{id}\n4:cpu,cpuacct:/docker/{id}"),
        )
        .put(
            "proc/self/mountinfo",
            &format!(
                "40 1 0:1 /docker/{id} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                 41 1 0:2 /docker/{id} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                 42 1 8:1 /var/lib/docker/containers/{id}/hosts /etc/hosts rw - ext4 /dev/sda1 rw"
            ),
        )
        .put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648")
        .put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000")
        .put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
        .says(
            "docker shows its own group as the root",
            json!({"environment": "docker", "cpu_quota": 1.5,
            "mem_limit": 2u64 << 30, "mem_limit_source": "/sys/fs/cgroup/memory/memory.limit_in_bytes"}),
        );
    Machine::new("0-7")
        .v2("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-9.scope")
        .put(
            "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/memory.max",
            "8589934592",
        )
        .put(
            "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-9.scope/cpu.max",
            "max 100000",
        )
        .says("a burstable pod: a request is no quota, the pod's memory limit is one", json!({"environment": "kubernetes",
            "cpu_quota": null, "mem_limit": 8u64 << 30}));
    Machine::new("0-3")
        .v2("/")
        .put(
            "etc/hosts",
            "# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n10.0.0.9 private-name",
        )
        .says(
            "a pod without account and with its own view",
            json!({"environment": "kubernetes"}),
        );
    Machine::new("0-3")
        .put("run/systemd/container", "lxc")
        .put(
            "proc/mounts",
            "lxcfs /proc/meminfo fuse.lxcfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
        )
        .put("proc/self/cgroup", "0::/.lxc")
        .put("sys/fs/cgroup/cpuset.cpus.effective", "1,3")
        .says(
            "LXC with lxcfs",
            json!({"environment": "lxc", "allowed_cpus": "1,3", "logical_cpus_online": 4}),
        );
    Machine::new("0-3")
        .put("proc/self/cgroup", "0::/a b/c")
        .put(
            "proc/self/mountinfo",
            "30 1 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw",
        )
        .put("mnt/my groups/a b/cpu.max", "100000 100000")
        .says(
            "blanks in paths",
            json!({"cpu_quota": 1.0, "cpu_quota_source": "/mnt/my groups/a b/cpu.max"}),
        );
}

#[test]
fn memory_limits_and_what_is_none() {
    let group = Machine::new("0-3").v2("/a/b");
    group
        .clone()
        .put("sys/fs/cgroup/a/b/memory.max", "max")
        .put("sys/fs/cgroup/a/memory.max", "9223372036854771712")
        .put("sys/fs/cgroup/memory.max", "17179869184")
        .says(
            "words and numbers that limit nothing",
            json!({"mem_limit": null, "mem_available": 8u64 << 30,
            "warns not": "memory is limited"}),
        );
    group
        .clone()
        .put("sys/fs/cgroup/a/memory.high", "1073741824")
        .put("sys/fs/cgroup/a/memory.current", "268435456")
        .says(
            "a soft limit alone",
            json!({"mem_limit": null, "mem_soft_limit": 1u64 << 30,
            "mem_available": 768u64 << 20, "mem_available_source": "/sys/fs/cgroup/a/memory.high"}),
        );
    group
        .clone()
        .put("sys/fs/cgroup/a/b/memory.max", "4294967296")
        .put("sys/fs/cgroup/a/b/memory.current", "4294967296")
        .put(
            "sys/fs/cgroup/a/b/memory.stat",
            "anon 0\ninactive_file 9999999999\nactive_file 0",
        )
        .says(
            "more cache than use is all of the use",
            json!({"mem_available": 4u64 << 30}),
        );
    group
        .put("sys/fs/cgroup/a/b/memory.max", "1073741824")
        .put("sys/fs/cgroup/a/b/memory.current", "2147483648")
        .says(
            "more use than the limit leaves nothing",
            json!({"mem_available": 0}),
        );
    let v1 = Machine::new("0-3")
        .put("proc/self/cgroup", "4:memory:/a/b")
        .put("proc/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0");
    v1.clone()
        .put(
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "9223372036854771712",
        )
        .put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1073741824")
        .put(
            "sys/fs/cgroup/memory/a/b/memory.stat",
            "hierarchical_memory_limit 3221225472\ntotal_inactive_file 536870912",
        )
        .says(
            "v1 states an ancestor's limit that we cannot see",
            json!({"mem_limit": 3u64 << 30,
            "mem_available": (3u64 << 30) - (512 << 20)}),
        );
    v1.put("sys/fs/cgroup/memory/a/memory.soft_limit_in_bytes", "1073741824")
        .says(
            "v1's soft limit matters only when the machine runs short",
            json!({"mem_soft_limit": 1u64 << 30,
            "mem_available": 8u64 << 30}),
        );
    Machine::new("0-3")
        .put("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nBuffers: 0 kB\nCached: 2097152 kB\nShmem: 1048576 kB\nSwapTotal: 1024 kB")
        .put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
        .put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12")
        .says("a kernel without MemAvailable; huge pages; swap", json!({"mem_available": 2u64 << 30, "thp": "madvise",
            "free_huge_pages": 12, "swap_total": 1024 * 1024}));
    Machine::new("0-3").without("proc/meminfo").says(
        "no meminfo",
        json!({"mem_total": null, "mem_available": null, "warns": "memory is unknown"}),
    );
}

#[test]
fn environments_and_architectures() {
    let x86 = "processor : 0\nflags : lm sse4_2 avx avx2 fma f16c";
    Machine::default()
        .put(
            "proc/cpuinfo",
            &format!("{x86}\n\nprocessor : 1\nflags : lm sse4_2 avx avx2 fma"),
        )
        .put(
            "proc/version",
            "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016",
        )
        .put("proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB")
        .says(
            "gVisor",
            json!({"environment": "gvisor", "logical_cpus_online": 2, "isa": ["avx", "avx2", "fma", "sse4_2"],
            "warns": "gVisor"}),
        );
    Machine::new("0-3")
        .put("proc/cpuinfo", x86)
        .put(
            "proc/version",
            "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc 5.4.0) #1-Microsoft",
        )
        .put("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft")
        .says(
            "WSL1",
            json!({"environment": "bare", "warns": "WSL1", "warns not": "WSL2"}),
        );
    Machine::new("0-3")
        .put("proc/cpuinfo", &format!("{x86} hypervisor"))
        .put(
            "proc/version",
            "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@a) (gcc)",
        )
        .put("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2")
        .says(
            "WSL2",
            json!({"environment": "wsl2", "kind_confidence": "low", "warns": "[wsl2]", "warns not": "WSL1"}),
        );
    Machine::default()
        .put(
            "proc/cpuinfo",
            "processor\t: 0\nprocessor\t: 1\nFeatures\t: fp asimd asimddp\nHardware\t: Phone",
        )
        .put("proc/self/status", "Cpus_allowed_list:\t0-7")
        .put("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB")
        .put("data/data/com.termux/files/usr/bin/login", "")
        .says(
            "Termux without /sys",
            json!({"environment": "termux", "logical_cpus_online": 8, "arch": "aarch64",
            "isa": ["dotprod", "neon"], "class": "arm64_cpu"}),
        );
    Machine::new("0-1")
        .put("proc/cpuinfo", "vendor_id       : IBM/S390\n# processors    : 2\nfeatures\t: esan3 vx\nprocessor 0: version = FF,  identification = 0\nprocessor 1: version = FF")
        .says("s390", json!({"arch": "s390x", "isa": [], "cores": 2}));
    Machine::new("0-1")
        .put("proc/cpuinfo", "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdcv\nmmu\t\t: sv39\n\nprocessor\t: 1\nhart\t\t: 2\nisa\t\t: rv64imafdcv")
        .says("RISC-V", json!({"arch": "riscv64", "cores": 2, "environment": "bare"}));
    // 1.6 KiB for each of 800 CPUs: the file is read to its end, and no list of features is cut.
    let flags = format!("flags : lm {} avx2 avx512f amx_int8", "x".repeat(1500));
    let large: Vec<String> = (0..800)
        .map(|cpu| format!("processor : {cpu}\n{flags}\n"))
        .collect();
    Machine::new("0-799").put("proc/cpuinfo", &large.join("\n")).says(
        "800 CPUs",
        json!({"logical_cpus_online": 800, "isa": ["amx_int8", "avx2", "avx512f"]}),
    );
}

#[test]
fn groups_with_names_of_other_things_survive_a_capture() {
    for name in [
        "memory",
        "cpu",
        "0",
        "sys",
        "proc",
        "unified",
        "cpu.max",
        "SECRET one",
    ] {
        let group = format!("/{name}/100/{name}");
        let machine = Machine::new("0-3")
            .node(0, "0-3", 16 << 20)
            .put(
                "proc/self/cgroup",
                &format!("4:cpu,cpuacct:{group}\n3:memory:{group}\n2:cpuset:/{name}"),
            )
            .put(
                "proc/self/mountinfo",
                "30 1 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 31 1 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 32 1 0:3 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
            )
            .put(
                &format!("sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_quota_us"),
                "100",
            )
            .put(
                &format!("sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_period_us"),
                "100",
            )
            .put(
                &format!("sys/fs/cgroup/memory/{name}/memory.limit_in_bytes"),
                "1073741824",
            )
            .put(&format!("sys/fs/cgroup/cpuset/{name}/cpuset.cpus"), "0");
        machine.says(
            name,
            json!({"cpu_quota": 1.0, "mem_limit": 1u64 << 30, "allowed_cpus": "0", "numa_nodes": 1}),
        );
        let (_dir, root, hardware) = machine.probe();
        let text = doctor::report(&root, &hardware);
        assert!(!text.contains("SECRET"), "{text}");
        assert!(
            text.contains("allowed") && text.contains("1.00 GiB") || text.contains("1073741824"),
            "{text}"
        );
    }
}
