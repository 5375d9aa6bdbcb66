//! How often the CPU quota stopped us.
//!
//! In: `/proc/self/cgroup` and the control group's `cpu.stat`. Out: [`Throttling`], or nothing where there is no
//! quota to tell of. Invariant: read afresh each time; a file that is missing or strange gives nothing, never a guess.

use std::fs;
use std::path::{Path, PathBuf};

/// The quota's counters since the control group began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throttling {
    /// Periods of the quota.
    pub periods: u64,
    /// Periods in which it stopped the group.
    pub throttled_periods: u64,
    /// Time the group was kept stopped.
    pub throttled_seconds: f64,
}

/// Those of the control group this process is in.
pub fn of_own_group() -> Option<Throttling> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    candidates(Path::new("/sys/fs/cgroup"), &own)
        .iter()
        .find_map(|file| parse(&fs::read_to_string(file).ok()?))
}

/// Where `cpu.stat` may lie: the group's own folder, or the mount's root (inside a container the group's path is not
/// visible), for version 2 and for the `cpu` controller of version 1.
fn candidates(mount: &Path, own: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let relative = path.trim_start_matches('/');
        let roots: &[&str] = if controllers.is_empty() {
            &["", "unified"]
        } else if controllers.split(',').any(|name| name == "cpu") {
            &["cpu,cpuacct", "cpu"]
        } else {
            continue;
        };
        for root in roots {
            files.push(mount.join(root).join(relative).join("cpu.stat"));
            files.push(mount.join(root).join("cpu.stat"));
        }
    }
    files
}

fn parse(text: &str) -> Option<Throttling> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(key))?;
        line.split(' ').nth(1)?.trim().parse::<u64>().ok()
    };
    let seconds = match (value("throttled_usec"), value("throttled_time")) {
        (Some(microseconds), _) => microseconds as f64 / 1e6,
        (None, Some(nanoseconds)) => nanoseconds as f64 / 1e9,
        (None, None) => return None,
    };
    Some(Throttling {
        periods: value("nr_periods")?,
        throttled_periods: value("nr_throttled")?,
        throttled_seconds: seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let two = "usage_usec 5\nnr_periods 10\nnr_throttled 4\nthrottled_usec 250000\n";
        let one = "nr_periods 10\nnr_throttled 4\nthrottled_time 250000000\n";
        let wanted = Throttling {
            periods: 10,
            throttled_periods: 4,
            throttled_seconds: 0.25,
        };
        assert_eq!(parse(two), Some(wanted));
        assert_eq!(parse(one), Some(wanted));
        for strange in [
            "",
            "usage_usec 5\n",
            "nr_periods x\nnr_throttled 1\nthrottled_usec 1\n",
            "\0\0",
        ] {
            assert_eq!(parse(strange), None);
        }
    }

    #[test]
    fn the_own_group_is_looked_at_first() {
        let files = candidates(Path::new("/m"), "0::/a/b\n4:memory:/x\n3:cpu,cpuacct:/c\nodd");
        let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
        assert_eq!(names[..2], ["/m/a/b/cpu.stat", "/m/cpu.stat"]);
        assert!(
            names.contains(&"/m/cpu,cpuacct/c/cpu.stat") && !names.iter().any(|name| name.contains("/x/"))
        );
    }
}
