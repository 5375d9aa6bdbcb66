//! Damaged machines: whatever is missing, cut, binary, negative, huge or linked to itself, the probe answers or says
//! what is wrong, and never reads outside the folder it was given.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use edge_deploy::probe::root::Seen;
use edge_deploy::probe::{self, Hardware, Root, report};

use crate::probe::machines;

/// Files of a small machine, by path.
pub type Tree = BTreeMap<String, Vec<u8>>;

pub fn read_tree(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                tree.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    tree
}

pub fn write_tree(folder: &Path, tree: &Tree) {
    for (path, bytes) in tree {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A small generator with a fixed seed, so that a failing tree can be made again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// What stands outside the folder; it must never be seen.
const MARK: &str = "4242424242";

/// What becomes of one file.
enum Damage {
    Gone,
    Bytes(Vec<u8>),
    Link(String),
    /// A folder stands where the file was.
    Folder,
}

fn damage(name: &str, bytes: &[u8], outside: &Path, dice: &mut Dice) -> Damage {
    let own_name = || name.rsplit('/').next().unwrap().to_owned();
    Damage::Bytes(match dice.roll(18) {
        0 | 1 => return Damage::Gone,
        2 => Vec::new(),
        3 => bytes[..dice.roll(bytes.len() + 1)].to_vec(),
        4 => (0..64).map(|_| dice.roll(256) as u8).collect(),
        5 => b"-1\n".to_vec(),
        6 => b"99999999999999999999999\n".to_vec(),
        // The largest sets are rare here, because each costs a second: tens of thousands of CPUs are probed.
        7 if dice.roll(40) == 0 => b"0-65535,0-65535\n".to_vec(),
        7 => b"0-900,0-900,65535\n".to_vec(),
        8 => "ffffffff,".repeat(3000).into_bytes(),
        9 => return Damage::Link(own_name()),
        10 => return Damage::Link(outside.to_string_lossy().into_owned()),
        // A link that climbs, as if to leave the folder from below.
        11 => {
            let target = outside.to_string_lossy();
            return Damage::Link(format!("{}{}", "../".repeat(40), target.trim_start_matches('/')));
        }
        12 => return Damage::Link([".", "..", "/"][dice.roll(3)].to_owned()),
        13 => return Damage::Folder,
        14 => b"18446744073709551615 18446744073709551615\n".to_vec(),
        15 => [bytes, bytes].concat(),
        _ => {
            let mut flipped = bytes.to_vec();
            for _ in 0..=dice.roll(4) {
                if !flipped.is_empty() {
                    let at = dice.roll(flipped.len());
                    flipped[at] ^= 1 << dice.roll(8);
                }
            }
            flipped
        }
    })
}

/// Puts the damage in place of a file.
fn inflict(path: &Path, damage: &Damage) {
    remove(path);
    match damage {
        Damage::Gone => {}
        Damage::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Damage::Link(target) => symlink(target, path).unwrap(),
        Damage::Folder => fs::create_dir(path).unwrap(),
    }
}

fn remove(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return;
    };
    if meta.is_dir() {
        fs::remove_dir(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}

/// Either an answer or a problem; an answer has cores, stays inside, and can be saved and loaded.
fn check(folder: &Path, place: &str) {
    let Ok(root) = Root::snapshot(folder) else { return };
    let result = probe::probe(&root);
    for (path, seen) in root.seen() {
        if let Seen::Text(text) = seen {
            assert!(!text.contains(MARK), "{place}: {path} was read outside");
        }
    }
    let hardware = match result {
        Err(problem) => return assert!(!problem.remedy.is_empty(), "{place}"),
        Ok(hardware) => hardware,
    };
    assert!(!hardware.topology.cores.is_empty(), "{place}");
    assert!(!hardware.topology.kinds.is_empty(), "{place}");
    assert!(!hardware.cpus.allowed.is_empty(), "{place}");
    assert!(hardware.cpus.allowed.is_subset(&hardware.cpus.online), "{place}");
    assert!(
        hardware.memory.available_bytes <= hardware.memory.total_bytes,
        "{place}"
    );
    assert!(!report::page(&hardware).is_empty());
    assert!(probe::facts(&hardware).is_object());
    let saved = serde_json::to_vec(&hardware).unwrap();
    let mut loaded = Hardware::parse(&saved).unwrap_or_else(|problem| panic!("{place}: {problem}"));
    // A quota such as 1.99984001… may come back with another last digit.
    let rounded = |quota: Option<f64>| quota.map(|cpus| (cpus * 1e6).round());
    assert_eq!(
        rounded(loaded.quota.cpus),
        rounded(hardware.quota.cpus),
        "{place}"
    );
    loaded.quota.cpus = hardware.quota.cpus;
    assert_eq!(loaded, hardware, "{place}");
}

/// Trees of at most this many files take part; larger ones repeat the same files for more CPUs.
const MAX_FILES: usize = 250;
/// In all, over both halves below.
const TREES: usize = 10_400;

/// Damages every other machine, starting at `first`.
fn half(first: usize) {
    let outside = tempfile::tempdir().unwrap();
    let mark = outside.path().join("meminfo");
    fs::write(
        &mark,
        format!("MemTotal: {MARK} kB\nMemAvailable: {MARK} kB\n0-3 {MARK}\n"),
    )
    .unwrap();
    let machines: Vec<(String, Tree)> = machines("damaged_trees_do_no_harm")
        .into_iter()
        .map(|(name, folder)| (name, read_tree(&folder)))
        .filter(|(_, tree)| tree.len() <= MAX_FILES)
        .collect();
    assert!(machines.len() >= 20);
    let each = TREES.div_ceil(machines.len());
    for (name, whole) in machines.iter().skip(first).step_by(2) {
        let dir = tempfile::tempdir().unwrap();
        write_tree(dir.path(), whole);
        let names: Vec<&String> = whole.keys().collect();
        for seed in 0..each {
            let mut dice = Dice(seed as u64);
            let mut touched = Vec::new();
            // Most trees have a few faults; every tenth loses most of its files.
            let faults = if seed % 10 == 9 {
                names.len()
            } else {
                1 + dice.roll(12)
            };
            for _ in 0..faults {
                let path = names[dice.roll(names.len())];
                inflict(
                    &dir.path().join(path),
                    &damage(path, &whole[path], &mark, &mut dice),
                );
                touched.push(path);
            }
            check(dir.path(), &format!("{name} seed {seed}"));
            for path in touched {
                let at = dir.path().join(path);
                remove(&at);
                fs::write(at, &whole[path]).unwrap();
            }
        }
        // The tree is whole again: the damage was undone, not piled up.
        assert_eq!(&read_tree(dir.path()), whole, "{name}");
    }
}

// In two halves, because tests run side by side.
#[test]
fn damaged_trees_do_no_harm() {
    half(0);
}

#[test]
fn damaged_trees_do_no_harm_second_half() {
    half(1);
}
