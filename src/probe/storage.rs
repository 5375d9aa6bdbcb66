//! What kind of storage a path lies on: whether mapping a model from it is fast and stays cached.
//!
//! In: a path and the mount table, and the block device's `rotational` flag. Out: [`Storage`].
//! Invariant: the longest mount point that is a prefix of the path decides; unknown stays unknown.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::root::Root;
use crate::base::{Code, Place, Problem};

/// Kinds of storage that behave differently under a mapped model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// Memory: a file here counts against the memory budget.
    Tmpfs,
    /// A container's layered file system.
    Overlay,
    /// NFS, SMB, 9p and other remote systems.
    Network,
    /// A spinning disk.
    Rotational,
    /// A solid-state disk or flash card.
    SolidState,
    /// A local disk of unknown kind.
    Unknown,
}

/// Where a path lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// What it behaves like.
    pub kind: StorageKind,
    /// File system type as the kernel calls it.
    pub file_system: String,
    /// Mount point.
    pub mount: String,
}

/// Finds the storage of an absolute path; `None` without a mount table.
#[must_use]
pub fn of(root: &Root, path: &Path) -> Option<Storage> {
    let text = root
        .read("/proc/self/mountinfo")
        .or_else(|| root.read("/proc/mounts"))?;
    let entry = text
        .lines()
        .filter_map(parse)
        .filter(|entry| path.starts_with(Path::new(&entry.mount)))
        // Later mounts hide earlier ones at the same place.
        .max_by_key(|entry| Path::new(&entry.mount).components().count())?;
    let kind = match entry.file_system.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" => StorageKind::Tmpfs,
        "overlay" | "aufs" | "fuse.fuse-overlayfs" => StorageKind::Overlay,
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "virtiofs" | "ceph" | "glusterfs" | "lustre" | "afs"
        | "gpfs" | "beegfs" | "drvfs" | "fuse.sshfs" | "fuse.s3fs" | "fuse.rclone" | "fuse.gcsfuse"
        | "fuse.juicefs" => StorageKind::Network,
        _ => match entry.device.and_then(|device| rotational(root, &device)) {
            Some(true) => StorageKind::Rotational,
            Some(false) => StorageKind::SolidState,
            None => StorageKind::Unknown,
        },
    };
    Some(Storage {
        kind,
        file_system: entry.file_system,
        mount: entry.mount,
    })
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let behaviour = match self.kind {
            StorageKind::Tmpfs => "memory",
            StorageKind::Overlay => "the container's own layer, lost with the container",
            StorageKind::Network => "network",
            StorageKind::Rotational => "spinning disk",
            StorageKind::SolidState => "solid state",
            StorageKind::Unknown => "kind of disk unknown",
        };
        write!(f, "{} ({}; {behaviour})", self.mount, self.file_system)
    }
}

/// What a person should know before mapping a model from there.
#[must_use]
pub fn explain(storage: &Storage) -> Option<Problem> {
    let (why, remedy) = match storage.kind {
        StorageKind::Tmpfs => (
            "the file fills memory for as long as it exists, and the kernel cannot drop its pages when memory runs short",
            "keep the model on a disk",
        ),
        StorageKind::Network => (
            "the first use of every page waits for the network, and a lost connection ends the process",
            "copy the model to a local disk",
        ),
        StorageKind::Rotational => (
            "loading is slow and pages dropped under memory pressure are slow to come back",
            "use a solid-state disk if there is one",
        ),
        StorageKind::Overlay | StorageKind::SolidState | StorageKind::Unknown => return None,
    };
    let what = format!(
        "the model lies on {} ({})",
        storage.file_system,
        match storage.kind {
            StorageKind::Tmpfs => "memory",
            StorageKind::Network => "a network file system",
            _ => "a spinning disk",
        }
    );
    Some(
        Problem::warning(Code::HardwareLimit, what, remedy)
            .why(why)
            .at(Place::of(storage.mount.clone())),
    )
}

struct Entry {
    mount: String,
    file_system: String,
    /// `major:minor`, only in mountinfo.
    device: Option<String>,
}

/// A line of `mountinfo` or of `mounts`.
fn parse(line: &str) -> Option<Entry> {
    if let Some((left, right)) = line.split_once(" - ") {
        let left: Vec<&str> = left.split(' ').collect();
        return Some(Entry {
            mount: super::cgroup::unescape(left.get(4)?),
            file_system: right.split(' ').next()?.to_owned(),
            device: left.get(2).map(|&device| device.to_owned()),
        });
    }
    let mut fields = line.split(' ').skip(1);
    Some(Entry {
        mount: super::cgroup::unescape(fields.next()?),
        file_system: fields.next()?.to_owned(),
        device: None,
    })
}

/// A partition has no queue of its own; its parent folder has. Disks of virtual machines say "rotational" by
/// default, whatever is below them, so that only "not rotational" is believed of them.
fn rotational(root: &Root, device: &str) -> Option<bool> {
    let folder = format!("/sys/dev/block/{device}");
    let spins = ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|file| root.number::<u8>(&format!("{folder}/{file}")))?
        == 1;
    let event = root.read(&format!("{folder}/uevent")).unwrap_or_default();
    let name = event
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="))
        .unwrap_or("");
    let told_nothing = ["vd", "xvd", "nbd", "loop", "ram", "zram", "pmem"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    (!spins || !told_nothing).then_some(spins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_longest_mount_decides() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/mountinfo",
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /dev/shm rw - tmpfs tmpfs rw\n3 1 0:6 / /mnt/a\\040b rw - nfs4 host:/x rw\n4 1 259:2 / /data rw - xfs /dev/nvme0n1p2 rw\n5 1 254:0 / /vm rw - ext4 /dev/vda rw\n",
        );
        write("sys/devices/vda/queue/rotational", "1\n");
        write("sys/devices/vda/uevent", "MAJOR=254\nMINOR=0\nDEVNAME=vda\n");
        write("sys/devices/sda/queue/rotational", "1\n");
        write("sys/devices/sda/sda1/dev", "8:1\n");
        write("sys/devices/nvme/queue/rotational", "0\n");
        fs::create_dir_all(dir.path().join("sys/dev/block")).unwrap();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, dir.path().join(at)).unwrap();
        link("../../devices/sda/sda1", "sys/dev/block/8:1");
        link("../../devices/nvme", "sys/dev/block/259:2");
        link("../../devices/vda", "sys/dev/block/254:0");
        let root = Root::snapshot(dir.path()).unwrap();
        let kind = |path: &str| of(&root, Path::new(path)).map(|storage| storage.kind);
        assert_eq!(kind("/models/x.gguf"), Some(StorageKind::Rotational));
        assert_eq!(kind("/dev/shm/x"), Some(StorageKind::Tmpfs));
        assert_eq!(kind("/mnt/a b/x"), Some(StorageKind::Network));
        assert_eq!(kind("/data/x"), Some(StorageKind::SolidState));
        // A virtual disk's default says nothing.
        assert_eq!(kind("/vm/x"), Some(StorageKind::Unknown));
        assert!(explain(&of(&root, Path::new("/mnt/a b/x")).unwrap()).is_some());
    }
}
