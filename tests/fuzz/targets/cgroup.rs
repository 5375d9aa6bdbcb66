//! Any texts as `/proc/self/cgroup`, `/proc/self/mountinfo` and `/proc/mounts`: a chain of folders or nothing.
//!
//! In: bytes, cut into three texts at zero bytes. Out: nothing.
//! Invariant: a chain ends, names no folder twice, and never climbs out of a mount by `..`.

#![no_main]

use edge_deploy::probe::cgroup::Cgroups;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut texts = bytes
        .splitn(3, |&byte| byte == 0)
        .map(|part| String::from_utf8_lossy(part).into_owned());
    let mut next = || texts.next().unwrap_or_default();
    let (own, mountinfo, mounts) = (next(), next(), next());
    let groups = Cgroups::parse(&own, &mountinfo, &mounts);
    for controller in ["cpu", "cpuset", "memory"] {
        let chain = groups.chain(controller);
        for (index, group) in chain.iter().enumerate() {
            assert!(!chain[..index].contains(group));
        }
        let climbs = |path: &str| path.split('/').any(|part| part == "..");
        if !climbs(&mountinfo.replace(' ', "/"))
            && !climbs(&mounts.replace(' ', "/"))
            && !mountinfo.contains('\\')
            && !mounts.contains('\\')
        {
            assert!(chain.iter().all(|group| !climbs(&group.path)));
        }
    }
});
