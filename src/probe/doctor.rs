//! The paste-able report and the capture: a bug report that can be run as a test.
//!
//! In: a [`Root`] that a probe has read, and its [`Hardware`]. Out: text, or a folder for `--sysroot`.
//! Invariant: only what the probe looked at is included, and host names, serial numbers, hardware addresses, user
//! names, container names and paths of people are left out, the same way everywhere, so that a capture still fits
//! together.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::environment::KUBELET_HOSTS;
use super::hardware::Hardware;
use super::root::{Root, Seen};
use super::{cgroup, report};
use crate::base::{Code, Place, Problem};

/// Lines of one file in the text report; the capture has them all.
const MAX_REPORT_LINES: usize = 60;

/// Words of cgroup paths that say what a group is, not whose.
const KNOWN_GROUPS: &[&str] = &[
    "system.slice",
    "user.slice",
    "machine.slice",
    "init.scope",
    "docker",
    "kubepods",
    "kubepods.slice",
    "besteffort",
    "burstable",
    "lxc",
    "libpod_parent",
    "podman",
    "unified",
    "slurm",
    "torque",
];
/// Beginnings of such words that are kept while the rest becomes a number.
const KNOWN_PREFIXES: &[&str] = &[
    "docker-",
    "libpod-",
    "crio-",
    "cri-containerd-",
    "lxc.payload.",
    "kubepods-",
    "user-",
    "session-",
    "pod",
    "job_",
    "uid_",
    "step_",
];

/// The report: the page, the facts and the raw inputs.
#[must_use]
pub fn report(root: &Root, hardware: &Hardware) -> String {
    let mut out = String::from("edge-deploy doctor: paste all of this into a bug report.\n\n");
    match shareable(root, hardware) {
        Ok(hardware) => {
            out.push_str(&report::page(&hardware));
            let facts = serde_json::to_string_pretty(&super::facts(&hardware)).unwrap_or_default();
            let _ = writeln!(out, "\nversion      {}", env!("CARGO_PKG_VERSION"));
            let _ = writeln!(out, "\n--- facts\n{facts}");
        }
        Err(problem) => {
            let _ = writeln!(out, "{problem}");
        }
    }
    out + &raw_inputs(root)
}

/// The same machine without private names, as every output that is meant to be passed on shows it.
///
/// # Errors
/// `internal` if it does not survive being written and read.
pub fn shareable(root: &Root, hardware: &Hardware) -> Result<Hardware, Problem> {
    let scrub = Scrubber::new(root);
    let internal = |error: serde_json::Error| {
        Problem::new(
            Code::Internal,
            format!("the machine cannot be written without private names: {error}"),
            "report this without the machine's description",
        )
    };
    let mut value = serde_json::to_value(hardware).map_err(internal)?;
    scrub.value(&mut value);
    serde_json::from_value(value).map_err(internal)
}

/// What the probe read, file by file, without private parts. Of the files that every CPU has, those of the first
/// two CPUs are shown.
#[must_use]
pub fn raw_inputs(root: &Root) -> String {
    let scrub = Scrubber::new(root);
    let mut out = String::from(
        "--- raw inputs; host names, serial numbers, addresses and names of people are left out\n",
    );
    let mut more = 0;
    for (path, seen) in root.seen() {
        if cpu_of(&path).is_some_and(|cpu| cpu > 1) {
            more += 1;
            continue;
        }
        let shown = scrub.path(&path);
        match seen {
            Seen::Text(text) => {
                let text = scrub.text(&path, &text);
                let total = text.lines().count();
                let _ = writeln!(out, "--- {shown}");
                for line in text.lines().take(MAX_REPORT_LINES) {
                    let _ = writeln!(out, "{line}");
                }
                if total > MAX_REPORT_LINES {
                    let _ = writeln!(
                        out,
                        "… {} more lines, in `doctor --capture DIR`",
                        total - MAX_REPORT_LINES
                    );
                }
            }
            Seen::Present => {
                let _ = writeln!(out, "--- {shown}: present");
            }
            Seen::Unreadable(kind) => {
                let _ = writeln!(out, "--- {shown}: unreadable ({kind})");
            }
            Seen::Folder => {}
        }
    }
    if more > 0 {
        let _ = writeln!(out, "--- {more} files of further CPUs, in `doctor --capture DIR`");
    }
    out
}

/// The CPU whose own file this is.
fn cpu_of(path: &str) -> Option<u32> {
    let rest = path.strip_prefix("/sys/devices/system/cpu/cpu")?;
    rest.split('/').next()?.parse().ok()
}

/// Writes what the probe read as a folder that `--sysroot` takes. The folder must not exist or be empty.
///
/// # Errors
/// `file_access` if the folder is not empty or cannot be written.
pub fn capture(root: &Root, folder: &Path) -> Result<usize, Problem> {
    let fail = |what: String| {
        Problem::new(Code::FileAccess, what, "name a new folder on a disk with room")
            .at(Place::of(folder.display().to_string()))
    };
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(fail("the folder for the capture is not empty".to_owned()));
    }
    let cannot = |error: std::io::Error| fail(format!("the capture cannot be written: {error}"));
    let scrub = Scrubber::new(root);
    let mut count = 0;
    fs::create_dir_all(folder.join("proc")).map_err(cannot)?;
    for (path, seen) in root.seen() {
        let target = folder.join(scrub.path(&path).trim_start_matches('/'));
        if !target.starts_with(folder) || path.split('/').any(|part| part == "..") {
            continue;
        }
        let content = match &seen {
            Seen::Text(text) => scrub.text(&path, text),
            Seen::Present => String::new(),
            Seen::Folder => {
                fs::create_dir_all(&target).map_err(cannot)?;
                for child in numbered_children(root, &path) {
                    fs::create_dir_all(target.join(child)).map_err(cannot)?;
                }
                continue;
            }
            // Unknown there is unknown here: left out.
            Seen::Unreadable(_) => continue,
        };
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(cannot)?;
        }
        fs::write(&target, content).map_err(cannot)?;
        count += 1;
    }
    Ok(count)
}

/// Numbered entries of a listed folder: the probe counts them even where it reads nothing inside.
fn numbered_children(root: &Root, path: &str) -> Vec<String> {
    const COUNTED: [&str; 6] = ["cpu", "node", "thermal_zone", "card", "renderD", "accel"];
    let numbered = |name: &String| {
        COUNTED.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    root.list(path).into_iter().filter(numbered).collect()
}

/// Replaces what is private, the same way in every text and path. Names of groups are replaced where a group's path
/// stands and nowhere else: a group may be called `memory` or `0`.
struct Scrubber {
    /// New name of each part of a group's path.
    groups: BTreeMap<String, String>,
    /// Where groups are mounted.
    mounts: Vec<String>,
    /// Files of groups as they are called and as they are shown, longest first.
    files: Vec<(String, String)>,
}

impl Scrubber {
    fn new(root: &Root) -> Self {
        let seen = root.seen();
        let text = |path: &str| match seen.get(path) {
            Some(Seen::Text(text)) => text.as_str(),
            _ => "",
        };
        let mountinfo = text("/proc/self/mountinfo");
        let mut mounts = cgroup::mount_points(mountinfo, text("/proc/mounts"));
        if mounts.is_empty() {
            let usual = cgroup::USUAL_FOLDERS.iter();
            mounts.extend(usual.map(|(folder, _)| format!("{}/{folder}", cgroup::USUAL_BASE)));
            mounts.push(cgroup::USUAL_BASE.to_owned());
        }
        let mut scrubber = Self {
            groups: BTreeMap::new(),
            mounts,
            files: Vec::new(),
        };
        let own = text("/proc/self/cgroup")
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2));
        let roots = mountinfo
            .lines()
            .filter(|line| is_group_mount(line))
            .filter_map(|line| line.split(' ').nth(3))
            .map(cgroup::unescape)
            .collect::<Vec<_>>();
        let cpuset = text("/proc/self/cpuset").trim();
        let roots = roots.iter().map(String::as_str);
        for part in own.chain(roots).chain([cpuset]).flat_map(|path| path.split('/')) {
            scrubber.learn(part);
        }
        let shown = |path: &String| (path.clone(), scrubber.path(path));
        let mut files: Vec<(String, String)> =
            seen.keys().map(shown).filter(|(path, new)| path != new).collect();
        files.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        scrubber.files = files;
        scrubber
    }

    fn learn(&mut self, part: &str) {
        if part.is_empty() || part == ".." || KNOWN_GROUPS.contains(&part) || self.groups.contains_key(part) {
            return;
        }
        let number = self.groups.len() + 1;
        let prefix = KNOWN_PREFIXES
            .iter()
            .find(|prefix| part.starts_with(**prefix))
            .unwrap_or(&"group-");
        let end = [".slice", ".scope", ".service", ".mount"]
            .iter()
            .find(|end| part.ends_with(**end))
            .unwrap_or(&"");
        self.groups
            .insert(part.to_owned(), format!("{prefix}{number}{end}"));
    }

    /// The path of a group.
    fn group(&self, path: &str) -> String {
        let new = |part| self.groups.get(part).map_or(part, String::as_str);
        path.split('/').map(new).collect::<Vec<_>>().join("/")
    }

    /// The path of a file: what stands between a mount of groups and the file's own name is a group's path.
    fn path(&self, path: &str) -> String {
        let below = |mount: &&String| {
            path.strip_prefix(mount.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let Some(mount) = self.mounts.iter().filter(below).max_by_key(|mount| mount.len()) else {
            return path.to_owned();
        };
        let (folder, file) = path[mount.len()..].rsplit_once('/').unwrap_or_default();
        format!("{mount}{}/{file}", self.group(folder))
    }

    /// Every text in a JSON value.
    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                for (path, new) in &self.files {
                    if text.contains(path.as_str()) {
                        *text = text.replace(path.as_str(), new);
                    }
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|value| self.value(value)),
            Value::Object(all) => all.values_mut().for_each(|value| self.value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn text(&self, path: &str, text: &str) -> String {
        let kept: Vec<String> = text.lines().filter_map(|line| self.line(path, line)).collect();
        let end = if text.ends_with('\n') { "\n" } else { "" };
        kept.join("\n") + end
    }

    /// A line without private parts; `None` leaves it out.
    fn line(&self, path: &str, line: &str) -> Option<String> {
        let name = line.split(':').next().unwrap_or("").trim();
        let keep = |keep: bool| keep.then(|| line.to_owned());
        match path {
            // Raspberry Pi and others put the board's serial number here.
            "/proc/cpuinfo" if name.eq_ignore_ascii_case("serial") => None,
            // `processor 0: version = FF,  identification = 1A2B3C,  machine = 2964`: the middle one is s390's.
            "/proc/cpuinfo" => {
                let parts = line
                    .split(',')
                    .filter(|part| !part.trim_start().starts_with("identification ="));
                Some(parts.collect::<Vec<_>>().join(","))
            }
            "/proc/self/status" => keep(matches!(
                name,
                "Cpus_allowed_list" | "Mems_allowed_list" | "Threads"
            )),
            // `4:cpu,cpuacct:/path`
            "/proc/self/cgroup" => {
                let (number, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                Some(format!("{number}:{controllers}:{}", self.group(path)))
            }
            "/proc/self/cpuset" => Some(self.group(line)),
            // Other mounts name shares, people's folders and disks.
            "/proc/mounts" => {
                let kind = line.split(' ').nth(2).unwrap_or_default();
                keep(kind.starts_with("cgroup") || kind == "cpuset" || line.starts_with("lxcfs /proc/"))
            }
            "/proc/self/mountinfo" => is_group_mount(line).then(|| {
                let fields = line.split(' ').enumerate();
                let new = |(at, field): (usize, &str)| {
                    if at == 3 {
                        self.group(&cgroup::unescape(field))
                    } else {
                        field.to_owned()
                    }
                };
                fields.map(new).collect::<Vec<_>>().join(" ")
            }),
            // `Linux version 6.1 (user@host) …`
            "/proc/version" => Some(without_address(line)),
            // Names of this machine and its neighbours, but for one fixed line.
            "/etc/hosts" => keep(line == KUBELET_HOSTS),
            _ if path.ends_with("/information") => keep(!name.contains("UUID") && !name.contains("Serial")),
            _ => keep(true),
        }
    }
}

/// Whether a line of mountinfo mounts control groups.
fn is_group_mount(line: &str) -> bool {
    line.contains(" - cgroup") || line.contains(" - cpuset")
}

/// Drops bracketed `user@host` parts.
fn without_address(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(open) = rest.find('(') {
        let Some(close) = rest[open..].find(')').map(|at| open + at) else {
            break;
        };
        let inside = &rest[open..=close];
        out.push_str(&rest[..open]);
        out.push_str(if inside.contains('@') { "(builder)" } else { inside });
        rest = &rest[close + 1..];
    }
    out + rest
}
