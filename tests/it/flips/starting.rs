//! Keys that decide where and how the program starts: seen in `/proc`, in sockets and in exit codes.

use edge_deploy::base::{Code, Millis};
use edge_deploy::fetch::{ModelRef, Silent};
use edge_deploy::launch::{self, Machine, Wanted};
use edge_deploy::plan::Deadlines;

use super::program::{Home, Program, allowed};

fn two_cpus(test: &str) -> Option<[u32; 2]> {
    if let [first, second, ..] = allowed().as_slice() {
        return Some([*first, *second]);
    }
    skipped!("SKIPPED {test}: this process may use one CPU only");
    None
}

fn set(knob: &str, value: impl std::fmt::Display) -> String {
    format!("stages.decoder.{knob}={value}")
}

pub fn threads_are_that_many() {
    let Some(_) = two_cpus("flips threads") else {
        return;
    };
    for threads in [1, 2] {
        let program = Program::start(&[&set("threads", threads)]);
        assert_eq!(program.workers().len(), threads, "{:?}", program.workers());
        assert_eq!(program.effective()["threads"], threads);
        assert_eq!(program.stop(), Some(0));
    }
}

pub fn cpus_hold_the_workers() {
    let Some(cpus) = two_cpus("flips cpus") else {
        return;
    };
    for cpu in cpus {
        let program = Program::start(&[&set("cpus", cpu), &set("threads", 1)]);
        let lists: Vec<String> = program.workers().into_values().collect();
        assert_eq!(lists, [cpu.to_string()]);
        assert_eq!(program.effective()["worker_cpus"][0], cpu.to_string());
    }
}

pub fn pin_binds_each_worker_to_one_cpu() {
    let Some(cpus) = two_cpus("flips pin") else { return };
    let list = format!("{},{}", cpus[0], cpus[1]);
    let lists = |pin: bool| -> Vec<String> {
        let program = Program::start(&[&set("cpus", &list), &set("threads", 2), &set("pin", pin)]);
        program.workers().into_values().collect()
    };
    assert_eq!(lists(true), cpus.map(|cpu| cpu.to_string()));
    let both: edge_deploy::base::CpuSet = cpus.into_iter().collect();
    assert_eq!(lists(false), [both.to_string(), both.to_string()]);
}

pub fn confine_keeps_workers_within_the_set() {
    let Some(cpus) = two_cpus("flips confine") else {
        return;
    };
    let lists = |named: Option<u32>| {
        let mut keys = vec![set("threads", 1), set("pin", false)];
        keys.extend(named.map(|cpu| set("cpus", cpu)));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let program = Program::start(&keys);
        let confine = program.stage()["confine"].as_bool().unwrap();
        (confine, program.workers().into_values().next().unwrap())
    };
    assert_eq!(lists(Some(cpus[1])), (true, cpus[1].to_string()));
    let all: edge_deploy::base::CpuSet = allowed().into_iter().collect();
    assert_eq!(lists(None), (false, all.to_string()));
}

pub fn huge_pages_mark_the_weights() {
    let flagged = |wanted: bool| {
        let program = Program::start(&[&set("huge_pages", wanted)]);
        let weights: u64 = program.effective()["weight_bytes_by_format"]
            .as_object()
            .unwrap()
            .values()
            .map(|bytes| bytes.as_u64().unwrap())
            .sum();
        assert_eq!(program.effective()["huge_pages"], wanted);
        (program.bytes_flagged("hg"), weights)
    };
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        skipped!("SKIPPED flips huge_pages: this kernel has no transparent huge pages");
        return;
    }
    assert_eq!(flagged(false).0, Some(0));
    let (marked, weights) = flagged(true);
    // Norms are small vectors on the heap.
    assert!(marked.unwrap() >= weights * 9 / 10, "{marked:?} of {weights}");
}

pub fn host_and_port_are_bound() {
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    for host in ["127.0.0.1", "127.0.0.2"] {
        let port = free();
        let program = Program::start_with(&["--host", host, "--port", &port]);
        assert_eq!(program.url(), format!("http://{host}:{port}"));
        let server = &program.said["effective"]["server"];
        assert_eq!(
            (&server["host"], &server["port"]),
            (&host.into(), &port.parse::<u16>().unwrap().into())
        );
        let other = if host.ends_with('1') {
            "127.0.0.2"
        } else {
            "127.0.0.1"
        };
        assert!(std::net::TcpStream::connect(format!("{host}:{port}")).is_ok());
        assert!(std::net::TcpStream::connect(format!("{other}:{port}")).is_err());
        assert_eq!(program.stop(), Some(0));
    }
}

/// Starts in this process with a deadline of nothing and expects the end by it, named by its key; then the program
/// with a long one.
fn ended_by(key: &str, shorten: fn(&mut Deadlines)) {
    let home = Home::new();
    let wanted = Wanted {
        model: ModelRef::Path(home.model().to_owned()),
        machine: Machine::Live,
        profiles: Vec::new(),
        set: Vec::new(),
        flags: Vec::new(),
        stage_flags: Vec::new(),
        config_dir: None,
        lenient: false,
        force: false,
    };
    let hardware = launch::machine(&Machine::Live).unwrap();
    let card = edge_deploy::model::inspect(home.model()).unwrap();
    let mut decided = launch::decide(&wanted, hardware, &card).unwrap();
    shorten(&mut decided.plan.deadlines);
    let late = launch::start(decided, &mut Silent).unwrap_err();
    assert_eq!(late.code, Code::DeadlinePassed, "{late}");
    assert!(late.remedy.contains(key), "{late}");
    let program = Program::start(&[&format!("deadlines.{key}=10min")]);
    let phases = &program.said["effective"]["deadlines"];
    assert_eq!(phases[key], 600_000);
    let took = phases[key.replace("_ms", "_took_ms")].as_u64().unwrap();
    assert!(took < 600_000, "{phases}");
    assert_eq!(program.stop(), Some(0));
}

pub fn load_deadline_ends_a_start() {
    ended_by("load_ms", |deadlines| deadlines.load_ms = Millis(0));
}

pub fn warmup_deadline_ends_a_start() {
    ended_by("warmup_ms", |deadlines| deadlines.warmup_ms = Millis(0));
}
