//! `Root`: the one door through which the probe reads a machine, live or captured.
//!
//! In: absolute paths such as `/proc/cpuinfo`. Out: text, numbers, CPU sets, or `None` where that cannot be known.
//! Invariant: a snapshot is read inside its folder only (symlinks resolve inside it, with a hop limit), no read is
//! longer than [`MAX_PROC_BYTES`], and any failure (missing, EACCES, EBUSY, EIO, not a plain file) is "unknown".

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::base::{Code, CpuSet, Problem};

/// The most that is read from one file of `/proc`, of which there are few: `cpuinfo` has about 1.6 KiB for each x86
/// CPU, and the kernel knows at most 8192 of those.
pub const MAX_PROC_BYTES: u64 = 16 << 20;
/// The most that is read from any other file; the kernel's own are a page or a CPU list long.
pub const MAX_BYTES: u64 = 1 << 20;
/// The most names taken from one folder.
const MAX_NAMES: usize = 1 << 16;
/// Symlinks followed for one path before it counts as a loop; Linux itself stops at 40.
const MAX_HOPS: usize = 40;
/// Ids that the ranges of one CPU list may name in total, so that repeated huge ranges cannot take long.
const MAX_LIST_IDS: u64 = 4 * (CpuSet::MAX_ID as u64 + 1);

/// What one look at a path gave; kept so that a report can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The text of a file.
    Text(String),
    /// Something is there whose content was not read.
    Present,
    /// A folder.
    Folder,
    /// There, but unreadable; the kind of failure.
    Unreadable(String),
}

/// The file tree of a machine.
#[derive(Debug)]
pub struct Root {
    base: PathBuf,
    live: bool,
    /// Folders of a snapshot already resolved (`None`: not there), because a probe asks for thousands of
    /// neighbouring files.
    folders: RefCell<HashMap<PathBuf, Option<PathBuf>>>,
    /// Everything looked at so far.
    seen: RefCell<BTreeMap<String, Seen>>,
}

impl Root {
    /// This machine.
    #[must_use]
    pub fn live() -> Self {
        Self::at(PathBuf::from("/"), true)
    }

    /// A captured machine in `folder`. No system call about the live machine is mixed in.
    ///
    /// # Errors
    /// `probe_failed` if `folder` is not a folder or holds none of `proc`, `sys`, `dev`, `cpuid` and `pu0`.
    pub fn snapshot(folder: &Path) -> Result<Self, Problem> {
        let fail = |what: String| {
            Problem::new(
                Code::ProbeFailed,
                what,
                "give the folder that holds `proc` and `sys` of the captured machine, as `doctor --capture DIR` writes it",
            )
            .why("without these folders every fact would be unknown")
        };
        let base = folder.canonicalize().map_err(|error| {
            fail(format!(
                "the snapshot `{}` cannot be opened: {error}",
                folder.display()
            ))
        })?;
        let is_machine = ["proc", "sys", "dev", "cpuid", "pu0"]
            .iter()
            .any(|name| base.join(name).exists());
        if !is_machine {
            return Err(fail(format!("`{}` holds no captured machine", folder.display())));
        }
        Ok(Self::at(base, false))
    }

    fn at(base: PathBuf, live: bool) -> Self {
        Self {
            base,
            live,
            folders: RefCell::default(),
            seen: RefCell::default(),
        }
    }

    /// Whether this is the running machine.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// `live` or `snapshot:<folder>`.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.live {
            "live".to_owned()
        } else {
            format!("snapshot:{}", self.base.display())
        }
    }

    /// Everything looked at so far, by path. Missing files are not in it.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<String, Seen> {
        self.seen.borrow().clone()
    }

    /// The text of a plain file, at most [`MAX_PROC_BYTES`] or [`MAX_BYTES`] and then whole lines only; bytes
    /// that are not UTF-8 become `U+FFFD`.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        let seen = outcome(self.open(path))?;
        let text = match &seen {
            Seen::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.note(path, seen);
        text
    }

    /// Opens without following a last symlink first: most files are none, and a look at each would double the time.
    fn open(&self, path: &str) -> io::Result<String> {
        let most = if path.starts_with("/proc/") {
            MAX_PROC_BYTES
        } else {
            MAX_BYTES
        };
        if self.live {
            return read_plain(Path::new(path), true, most);
        }
        let plain = self.direct(path).ok_or(ErrorKind::NotFound)?;
        match read_plain(&plain, false, most) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                read_plain(&self.resolve(path).ok_or(ErrorKind::NotFound)?, false, most)
            }
            result => result,
        }
    }

    /// The path in its resolved folder, its last part as it stands; `None` if the folder is not there.
    fn direct(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        Some(self.folder(path.parent()?)?.join(path.file_name()?))
    }

    /// The first line without surrounding blanks and NULs; `None` if empty.
    #[must_use]
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.read(path)?;
        let line = text
            .lines()
            .next()
            .unwrap_or("")
            .trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// A number in a file of its own.
    #[must_use]
    pub fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.line(path)?.parse().ok()
    }

    /// A CPU or node list such as `0-3,8`; an empty file is the empty set.
    #[must_use]
    pub fn cpu_list(&self, path: &str) -> Option<CpuSet> {
        parse_cpu_list(&self.read(path)?)
    }

    /// A CPU set that the kernel shows as the hexadecimal mask `mask` and, in newer kernels, also as `list`. The mask
    /// comes first because every kernel has it.
    #[must_use]
    pub fn cpu_mask_or_list(&self, mask: &str, list: &str) -> Option<CpuSet> {
        self.read(mask)
            .and_then(|text| parse_cpu_mask(&text))
            .or_else(|| self.cpu_list(list))
    }

    /// Names in a folder, sorted; empty if it cannot be listed.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<String> {
        let Some(Ok(entries)) = self.resolve(path).map(fs::read_dir) else {
            return Vec::new();
        };
        self.note(path, Seen::Folder);
        let mut names: Vec<String> = entries
            .take(MAX_NAMES)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether anything is there (a device node, a folder, a file).
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let Some(meta) = self.resolve(path).and_then(|real| fs::metadata(real).ok()) else {
            return false;
        };
        self.note(
            path,
            if meta.is_dir() {
                Seen::Folder
            } else {
                Seen::Present
            },
        );
        true
    }

    /// Whether this process may read and write it. In a snapshot, what is there counts as accessible, because the
    /// capture was made by the process that asked.
    #[must_use]
    pub fn access(&self, path: &str) -> Option<bool> {
        use rustix::fs::{Access, access};
        let real = self.resolve(path).filter(|real| real.exists())?;
        Some(!self.live || access(&real, Access::READ_OK | Access::WRITE_OK).is_ok())
    }

    /// The numbers `N` of folder entries called `<prefix>N`, in order.
    #[must_use]
    pub fn numbered(&self, path: &str, prefix: &str) -> CpuSet {
        self.list(path)
            .iter()
            .filter_map(|name| name.strip_prefix(prefix))
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
            .filter_map(|digits| digits.parse().ok())
            .collect()
    }

    fn note(&self, path: &str, seen: Seen) {
        let mut all = self.seen.borrow_mut();
        // A later look must not hide content that was read before.
        let keep = matches!(all.get(path), Some(Seen::Text(_))) && !matches!(seen, Seen::Text(_));
        if !keep {
            all.insert(path.to_owned(), seen);
        }
    }

    /// The real path to open; `None` if it is not there or would need too many symlinks.
    fn resolve(&self, path: &str) -> Option<PathBuf> {
        if self.live {
            return Some(PathBuf::from(path));
        }
        let path = Path::new(path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Some(self.base.clone());
        };
        let folder = self.folder(parent)?;
        self.walk(folder, vec![name.to_owned()])
    }

    /// The real path of a folder, resolved through its parents, each remembered.
    fn folder(&self, path: &Path) -> Option<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.components().next_back()) else {
            return Some(self.base.clone());
        };
        if let Some(known) = self.folders.borrow().get(path) {
            return known.clone();
        }
        let found = self
            .folder(parent)
            .and_then(|at| self.walk(at, vec![name.as_os_str().to_owned()]));
        self.folders
            .borrow_mut()
            .insert(path.to_path_buf(), found.clone());
        found
    }

    /// Follows `rest` from `at` (a real path inside the base) without ever leaving the base: `..` stops at the base
    /// and absolute link targets start there again.
    fn walk(&self, mut at: PathBuf, rest: Vec<OsString>) -> Option<PathBuf> {
        let mut hops = MAX_HOPS;
        let mut pending: Vec<OsString> = rest.into_iter().rev().collect();
        while let Some(name) = pending.pop() {
            if name == ".." {
                if at != self.base {
                    at.pop();
                }
                continue;
            }
            at.push(&name);
            let meta = fs::symlink_metadata(&at).ok()?;
            if meta.file_type().is_symlink() {
                hops = hops.checked_sub(1)?;
                let target = fs::read_link(&at).ok()?;
                at.pop();
                if target.is_absolute() {
                    at.clone_from(&self.base);
                }
                pending.extend(components(&target).into_iter().rev());
                // A chain of links may grow the work list; a real path has far fewer parts than this.
                if pending.len() > 4096 {
                    return None;
                }
            }
        }
        Some(at)
    }
}

/// What a read gave. Any failure (EACCES on Android, EBUSY of an offline CPU, EIO) is "unknown", and a missing file
/// leaves no trace.
fn outcome(read: io::Result<String>) -> Option<Seen> {
    match read {
        Ok(text) => Some(Seen::Text(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(Seen::Unreadable(error.kind().to_string())),
    }
}

fn components(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

fn read_plain(path: &Path, follow: bool, most: u64) -> io::Result<String> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    // Non-blocking, because opening a pipe would wait for a writer.
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    let file = open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::from(ErrorKind::InvalidInput));
    }
    let mut bytes = Vec::with_capacity(4096);
    fs::File::from(file).take(most).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == most {
        // Half a line could be taken for a whole one: a list of features that ends too soon.
        let whole = bytes
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        bytes.truncate(whole);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a CPU list whose ranges together stay within `MAX_LIST_IDS`; anything else is unknown.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<CpuSet> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let mut total = 0u64;
    for part in text.split([',', '\n', ' ']) {
        let span = part.split(':').next().unwrap_or(part);
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        let (first, last) = (
            first.trim().parse().unwrap_or(0u64),
            last.trim().parse().unwrap_or(0u64),
        );
        total = total.saturating_add(last.saturating_sub(first).saturating_add(1));
    }
    (total <= MAX_LIST_IDS).then(|| text.parse().ok())?
}

/// Reads the kernel's hexadecimal mask form: 32-bit words, highest first, such as `00400000,00000040`.
#[must_use]
pub fn parse_cpu_mask(text: &str) -> Option<CpuSet> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let text = text.strip_prefix("0x").unwrap_or(text);
    if text.is_empty() {
        return None;
    }
    let mut set = CpuSet::new();
    for (index, word) in text.split(',').rev().enumerate() {
        // Word boundaries count from the right; a lone longer word (no commas) may hold up to 64 bits.
        let bits = u64::from_str_radix(word.trim(), 16).ok()?;
        let base = u32::try_from(index).ok()?.checked_mul(32)?;
        for bit in 0..64 {
            if bits >> bit & 1 == 1 {
                set.insert(base.checked_add(bit)?);
            }
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::create_dir_all(dir.path().join("sys/a")).unwrap();
        dir
    }

    #[test]
    fn links_stay_inside() {
        let dir = tree();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        fs::write(dir.path().join("sys/a/x"), "inside\n").unwrap();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, dir.path().join(at)).unwrap();
        link("/sys/a", "sys/abs");
        link("../../../../sys/a/x", "sys/a/up");
        link(outside.path().join("secret").to_str().unwrap(), "sys/a/leak");
        link("loop", "sys/a/loop");
        link("/sys/b", "sys/a/b");
        let root = Root::snapshot(dir.path()).unwrap();
        assert_eq!(root.line("/sys/abs/x").as_deref(), Some("inside"));
        assert_eq!(root.line("/sys/a/up").as_deref(), Some("inside"));
        assert_eq!(root.read("/sys/a/leak"), None);
        assert_eq!(root.read("/sys/a/loop"), None);
        assert_eq!(root.read("/sys/../../../etc/passwd"), None);
        assert!(!root.exists("/sys/a/b/c"));
        assert_eq!(
            root.seen().get("/sys/a/up"),
            Some(&Seen::Text("inside\n".to_owned()))
        );
    }

    #[test]
    fn odd_files_are_unknown_and_reads_are_bounded() {
        let dir = tree();
        fs::write(dir.path().join("sys/a/big"), vec![b'7'; 3 << 20]).unwrap();
        fs::write(
            dir.path().join("proc/cpuinfo"),
            "avx512f avx512bw\n".repeat(1 << 20),
        )
        .unwrap();
        fs::write(dir.path().join("sys/a/bin"), [0xff, 0xfe, 0x00]).unwrap();
        let fifo = dir.path().join("sys/a/pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let root = Root::snapshot(dir.path()).unwrap();
        assert_eq!(
            root.read("/sys/a/big").as_deref(),
            Some(""),
            "it has no whole line"
        );
        let lines = root.read("/proc/cpuinfo").unwrap();
        assert!(lines.len() as u64 <= MAX_PROC_BYTES && lines.len() as u64 > MAX_PROC_BYTES - 20);
        assert!(lines.ends_with("avx512bw\n"));
        assert_eq!(root.number::<u64>("/sys/a/bin"), None);
        assert_eq!(root.read("/sys/a/pipe"), None);
        assert_eq!(root.read("/sys/a"), None);
        assert!(Root::snapshot(&dir.path().join("nothing")).is_err());
    }

    #[test]
    fn every_failure_to_read_is_unknown() {
        use rustix::io::Errno;
        for errno in [Errno::ACCESS, Errno::BUSY, Errno::IO, Errno::INVAL, Errno::PERM] {
            let seen = outcome(Err(io::Error::from_raw_os_error(errno.raw_os_error())));
            assert!(matches!(seen, Some(Seen::Unreadable(_))), "{errno}");
        }
        let missing = io::Error::from_raw_os_error(Errno::NOENT.raw_os_error());
        assert_eq!(outcome(Err(missing)), None);
        // A live file that opens and then fails to be read, as the files of an offline CPU do.
        let live = Root::live();
        assert_eq!(live.read("/proc/self/mem"), None);
        assert!(matches!(
            live.seen().get("/proc/self/mem"),
            Some(Seen::Unreadable(_))
        ));
    }

    #[test]
    fn lists_and_masks() {
        assert_eq!(parse_cpu_list("0-3,8\n").unwrap().to_string(), "0-3,8");
        assert_eq!(parse_cpu_list("").unwrap(), CpuSet::new());
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("-1"), None);
        assert_eq!(parse_cpu_list(&"0-65535,".repeat(100_000)), None);
        assert_eq!(parse_cpu_mask("00400000,00000040").unwrap().to_string(), "6,54");
        assert_eq!(parse_cpu_mask("0x00fff000").unwrap().to_string(), "12-23");
        assert_eq!(parse_cpu_mask("ffffffffff").unwrap().to_string(), "0-39");
        assert_eq!(parse_cpu_mask("zz"), None);
        assert_eq!(parse_cpu_mask(&"ffffffff,".repeat(9000)), None);
    }
}
