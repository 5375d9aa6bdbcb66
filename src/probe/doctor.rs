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

use super::hardware::Hardware;
use super::report;
use super::root::{Root, Seen};
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
    let scrub = Scrubber::new(root);
    let mut out = String::from("edge-deploy doctor: paste all of this into a bug report.\n\n");
    out.push_str(&scrub.text("", &report::page(hardware)));
    let _ = writeln!(out, "\nversion      {}", env!("CARGO_PKG_VERSION"));
    let facts = serde_json::to_string_pretty(&super::facts(hardware)).unwrap_or_default();
    let _ = writeln!(out, "\n--- facts\n{}", scrub.text("", &facts));
    out + &raw_inputs(root)
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

/// Replaces what is private, the same way in every text and path.
struct Scrubber {
    groups: BTreeMap<String, String>,
}

impl Scrubber {
    fn new(root: &Root) -> Self {
        let mut scrubber = Self {
            groups: BTreeMap::new(),
        };
        let seen = root.seen();
        let mut paths: Vec<String> = Vec::new();
        if let Some(Seen::Text(text)) = seen.get("/proc/self/cgroup") {
            paths.extend(
                text.lines()
                    .filter_map(|line| line.splitn(3, ':').nth(2))
                    .map(str::to_owned),
            );
        }
        if let Some(Seen::Text(text)) = seen.get("/proc/self/cpuset") {
            paths.push(text.trim().to_owned());
        }
        if let Some(Seen::Text(text)) = seen.get("/proc/self/mountinfo") {
            let roots = text
                .lines()
                .filter(|line| line.contains(" - cgroup"))
                .filter_map(|line| line.split(' ').nth(3));
            paths.extend(roots.map(str::to_owned));
        }
        for part in paths.iter().flat_map(|path| path.split('/')) {
            scrubber.learn(part);
        }
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

    /// A path, or any text with paths in it, with the names of groups replaced.
    fn path(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for part in text.split_inclusive(|c: char| c.is_whitespace() || "/\"`(),".contains(c)) {
            let name = part.trim_end_matches(|c: char| c.is_whitespace() || "/\"`(),".contains(c));
            match self.groups.get(name) {
                Some(replacement) => {
                    out.push_str(replacement);
                    out.push_str(&part[name.len()..]);
                }
                None => out.push_str(part),
            }
        }
        out
    }

    fn text(&self, path: &str, text: &str) -> String {
        let kept: Vec<String> = text.lines().filter_map(|line| self.line(path, line)).collect();
        let end = if text.ends_with('\n') { "\n" } else { "" };
        kept.join("\n") + end
    }

    /// A line without private parts; `None` leaves it out.
    fn line(&self, path: &str, line: &str) -> Option<String> {
        let name = line.split(':').next().unwrap_or("").trim();
        match path {
            // Raspberry Pi and others put the board's serial number here.
            "/proc/cpuinfo" if name.eq_ignore_ascii_case("serial") => return None,
            "/proc/self/status" if !matches!(name, "Cpus_allowed_list" | "Mems_allowed_list" | "Threads") => {
                return None;
            }
            // Other mounts name shares, people's folders and disks.
            "/proc/mounts" => {
                let keep = line
                    .split(' ')
                    .nth(2)
                    .is_some_and(|kind| kind.starts_with("cgroup") || kind == "cpuset");
                return (keep || line.starts_with("lxcfs /proc/")).then(|| self.path(line));
            }
            "/proc/self/mountinfo" if !line.contains(" - cgroup") && !line.contains(" - cpuset") => {
                return None;
            }
            // `Linux version 6.1 (user@host) …`
            "/proc/version" => return Some(without_address(line)),
            _ => {}
        }
        if path.ends_with("/information") && (name.contains("UUID") || name.contains("Serial")) {
            return None;
        }
        Some(self.path(line))
    }
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
