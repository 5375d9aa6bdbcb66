//! Where this process's control groups lie: cgroup v1, v2, or both at once.
//!
//! In: `/proc/self/{cgroup,cpuset,mountinfo}`, `/proc/mounts`. Out: for a controller, the folders that can limit it,
//! from our own group up to the mount.
//! Invariant: a missing folder or file means "no limit here, look further up", never "no limit at all".

use super::root::Root;

/// Where control groups are mounted by these texts of `/proc/self/mountinfo` and `/proc/mounts`.
#[must_use]
pub(super) fn mount_points(mountinfo: &str, mount_table: &str) -> Vec<String> {
    mounts(mountinfo, mount_table)
        .into_iter()
        .map(|mount| mount.point)
        .collect()
}

/// One mounted hierarchy with the path of our group in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Mount point.
    mount: String,
    /// Controllers of a v1 mount; empty for v2, where any controller may be.
    controllers: Vec<String>,
    v2: bool,
    /// Our group below the mount, without a leading slash; empty at the mount itself.
    group: String,
}

/// The hierarchies this process is in.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// Group paths as `/proc/self/cgroup` gives them; they hint at docker, Kubernetes and others.
    pub paths: Vec<String>,
}

/// A folder that can hold limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Absolute path.
    pub path: String,
    /// Whether the files are those of cgroup v2.
    pub v2: bool,
}

/// Names the kernel uses for v1 controllers in mount options.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// Deeper nesting than any real machine has.
const MAX_DEPTH: usize = 64;
/// More cgroup mounts than any real machine has.
const MAX_MOUNTS: usize = 256;

impl Cgroups {
    /// Finds them.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let text = |path: &str| root.read(path).unwrap_or_default();
        let own = text("/proc/self/cgroup");
        let cpuset = root.line("/proc/self/cpuset");
        let mut table = mounts(&text("/proc/self/mountinfo"), "");
        if table.is_empty() {
            // mountinfo also tells which part of a hierarchy is mounted; captures may hold only /proc/mounts.
            table = mounts("", &text("/proc/mounts"));
        }
        add_usual_places(root, &own, &mut table);
        Self::join(membership(&own, cpuset.as_deref()), table)
    }

    /// The same from the texts of `/proc/self/cgroup`, `/proc/self/mountinfo` and `/proc/mounts` alone.
    #[must_use]
    pub fn parse(own: &str, mountinfo: &str, mount_table: &str) -> Self {
        Self::join(membership(own, None), mounts(mountinfo, mount_table))
    }

    fn join(membership: Vec<(Vec<String>, String)>, mounts: Vec<Mount>) -> Self {
        let hierarchies = mounts
            .into_iter()
            .map(|mount| {
                let own = membership.iter().find(|(controllers, _)| {
                    if mount.v2 {
                        controllers.is_empty()
                    } else {
                        controllers.iter().any(|name| mount.controllers.contains(name))
                    }
                });
                let group = own.map_or("", |(_, path)| below(&mount.root, path)).to_owned();
                Hierarchy {
                    mount: mount.point,
                    controllers: mount.controllers,
                    v2: mount.v2,
                    group,
                }
            })
            .collect();
        let mut paths: Vec<String> = membership.into_iter().map(|(_, path)| path).collect();
        paths.sort();
        paths.dedup();
        Self { hierarchies, paths }
    }

    /// Folders that can limit `controller`, own group first, v1 before v2.
    #[must_use]
    pub fn chain(&self, controller: &str) -> Vec<Group> {
        let mut chain = Vec::new();
        for hierarchy in &self.hierarchies {
            if !hierarchy.v2 && !hierarchy.controllers.iter().any(|name| name == controller) {
                continue;
            }
            let mut parts: Vec<&str> = hierarchy
                .group
                .split('/')
                .filter(|part| !part.is_empty())
                .collect();
            parts.truncate(MAX_DEPTH);
            loop {
                let mount = hierarchy.mount.trim_end_matches('/');
                let path = parts
                    .iter()
                    .fold(mount.to_owned(), |path, part| path + "/" + part);
                let group = Group {
                    path,
                    v2: hierarchy.v2,
                };
                if !chain.contains(&group) {
                    chain.push(group);
                }
                if parts.pop().is_none() {
                    break;
                }
            }
        }
        chain
    }
}

/// (controllers, path) of each line of `/proc/self/cgroup`; v2 has no controllers. `cpuset` is the path in
/// `/proc/self/cpuset`, for kernels that mount cpusets apart.
fn membership(own: &str, cpuset: Option<&str>) -> Vec<(Vec<String>, String)> {
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let names = names
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        found.push((names, path.trim().to_owned()));
    }
    if !found
        .iter()
        .any(|(names, _)| names.iter().any(|name| name == "cpuset"))
        && let Some(path) = cpuset
    {
        found.push((vec!["cpuset".to_owned()], path.to_owned()));
    }
    found
}

struct Mount {
    point: String,
    /// The group that the mount point shows; `/` where the whole hierarchy is mounted.
    root: String,
    controllers: Vec<String>,
    v2: bool,
}

fn mounts(mountinfo: &str, mount_table: &str) -> Vec<Mount> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        if let (Some(part), Some(point), Some(kind)) = (left.get(3), left.get(4), right.first()) {
            let options = right.last().copied().unwrap_or("");
            found.extend(mount(point, part, kind, options));
        }
    }
    for line in mount_table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, point, kind, options, ..] = fields[..] {
            found.extend(mount(point, "/", kind, options));
        }
    }
    found.truncate(MAX_MOUNTS);
    found
}

fn mount(point: &str, part: &str, kind: &str, options: &str) -> Option<Mount> {
    let v2 = kind == "cgroup2";
    let controllers: Vec<String> = match kind {
        "cgroup2" => Vec::new(),
        "cpuset" => vec!["cpuset".to_owned()],
        "cgroup" => options
            .split(',')
            .filter(|option| CONTROLLERS.contains(option))
            .map(str::to_owned)
            .collect(),
        _ => return None,
    };
    (v2 || !controllers.is_empty()).then(|| Mount {
        point: unescape(point),
        root: unescape(part),
        controllers,
        v2,
    })
}

/// The folder in which distributions mount control groups.
pub(super) const USUAL_BASE: &str = "/sys/fs/cgroup";
/// The v1 mounts in it, with their controllers.
pub(super) const USUAL_FOLDERS: [(&str, &[&str]); 4] = [
    ("cpu,cpuacct", &["cpu", "cpuacct"]),
    ("cpu", &["cpu"]),
    ("memory", &["memory"]),
    ("cpuset", &["cpuset"]),
];

/// Places where distributions mount cgroups, for captures without a mount table.
fn add_usual_places(root: &Root, own: &str, mounts: &mut Vec<Mount>) {
    if !mounts.is_empty() {
        return;
    }
    let base = USUAL_BASE;
    // The root group has no limits of its own, so that our membership may be all that tells of v2. A line of v1 beside
    // it means that v2 is mounted elsewhere or not used for limits.
    let is_member = is_v2_alone(own);
    let has_files = ["cgroup.controllers", "cpu.max", "memory.max", "memory.current"]
        .iter()
        .any(|file| root.exists(&format!("{base}/{file}")));
    if is_member || has_files {
        mounts.push(Mount {
            point: base.to_owned(),
            root: "/".to_owned(),
            controllers: Vec::new(),
            v2: true,
        });
    }
    for (folder, controllers) in USUAL_FOLDERS {
        let point = format!("{base}/{folder}");
        if root.exists(&point) {
            mounts.push(Mount {
                point,
                root: "/".to_owned(),
                controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
                v2: false,
            });
        }
    }
}

/// Whether `/proc/self/cgroup` names a group of v2 and none of a v1 controller that limits.
fn is_v2_alone(own: &str) -> bool {
    let groups = membership(own, None);
    groups.iter().any(|(names, _)| names.is_empty())
        && !groups
            .iter()
            .any(|(names, _)| names.iter().any(|name| CONTROLLERS.contains(&name.as_str())))
}

/// The part of our group's path below what is mounted. A path outside the mount (a private view of the tree) means
/// that the mount itself is the nearest group we can see.
fn below<'a>(mounted: &str, path: &'a str) -> &'a str {
    if path.split('/').any(|part| part == "..") {
        return "";
    }
    let rest = if mounted == "/" {
        Some(path)
    } else {
        path.strip_prefix(mounted)
    };
    match rest {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_matches('/'),
        _ => "",
    }
}

/// Mount tables write blanks and the like as three octal digits.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let code = rest
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                rest = &rest[3..];
            }
            _ => out.push('\\'),
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn snapshot(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::snapshot(dir.path()).unwrap();
        (dir, root)
    }

    fn paths(groups: &Cgroups, controller: &str) -> Vec<String> {
        groups
            .chain(controller)
            .into_iter()
            .map(|group| group.path)
            .collect()
    }

    #[test]
    fn v2_chain_goes_up_to_the_mount() {
        let (_dir, root) = snapshot(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
        ]);
        let groups = Cgroups::read(&root);
        assert_eq!(
            paths(&groups, "cpu"),
            [
                "/sys/fs/cgroup/a.slice/b.scope",
                "/sys/fs/cgroup/a.slice",
                "/sys/fs/cgroup"
            ]
        );
    }

    #[test]
    fn our_line_of_v2_is_enough_where_no_mount_table_is() {
        let (_dir, root) = snapshot(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            ("proc/self/cpuset", "/a.slice\n"),
            ("sys/fs/cgroup/a.slice/memory.max", "1000\n"),
        ]);
        let groups = Cgroups::read(&root);
        assert!(paths(&groups, "memory").contains(&"/sys/fs/cgroup/a.slice".to_owned()));
        let (_dir, root) = snapshot(&[("proc/self/cgroup", "4:memory:/a\n0::/a\n")]);
        assert!(paths(&Cgroups::read(&root), "memory").is_empty());
    }

    #[test]
    fn hybrid_container_mount_and_private_views() {
        let (_dir, root) = snapshot(&[
            (
                "proc/self/cgroup",
                "5:memory:/docker/abc/x\n4:cpu,cpuacct:/../..\n0::/\n",
            ),
            (
                "proc/self/mountinfo",
                "30 1 0:1 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                 31 1 0:2 / /sys/fs/cgroup/cpu\\054cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                 32 1 0:3 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n",
            ),
        ]);
        let groups = Cgroups::read(&root);
        assert_eq!(
            paths(&groups, "memory"),
            [
                "/sys/fs/cgroup/memory/x",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified"
            ]
        );
        assert_eq!(
            paths(&groups, "cpu"),
            ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"]
        );
    }

    #[test]
    fn old_cpuset_mount_without_cgroup_file() {
        let (_dir, root) = snapshot(&[
            ("proc/self/cpuset", "/dummy\n"),
            ("proc/mounts", "none /dev/cpuset cpuset rw 0 0\n"),
        ]);
        assert_eq!(
            paths(&Cgroups::read(&root), "cpuset"),
            ["/dev/cpuset/dummy", "/dev/cpuset"]
        );
    }

    #[test]
    fn octal_escapes() {
        assert_eq!(unescape("a\\040b\\134\\x\\9"), "a b\\\\x\\9");
    }
}
