//! How much memory a plan may take.
//!
//! In: the machine's memory and its limits, the policy, a limit that somebody set. Out: [`Room`].
//! Invariant: what stays free for others is taken only from memory that others share.

use crate::base::Bytes;
use crate::config::Policy;
use crate::probe::Hardware;

/// What may be used and what of it stays free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What may be used.
    pub available: Bytes,
    /// What of it stays free for the system.
    pub reserve: Bytes,
    /// What the class wants to keep free, where that is more than half of all there is.
    pub wanted_reserve: Option<Bytes>,
}

impl Room {
    /// What the plan may hold.
    #[must_use]
    pub fn usable(&self) -> Bytes {
        Bytes(self.available.0.saturating_sub(self.reserve.0))
    }
}

/// Of a control group's limit, what the kernel charges to the group beside the memory of the ledger: page tables,
/// sockets, the pages of files that are being read.
const GROUP_SHARE: u64 = 64;
/// The same that does not grow with the limit.
const GROUP_BYTES: u64 = 2 << 20;

/// What may be used and what of it stays free. `credit` is what will be freed before loading, or is counted as used
/// already and is part of the plan; `kept` says that a person set the reserve, which is then kept as it is.
///
/// The reserve is for the rest of the machine, so it is taken from what the machine has left. A limit of our own
/// control group, or one that somebody set for us, has nobody else behind it: of a group's limit only what the kernel
/// charges beside our own memory stays free, of a set limit nothing.
#[must_use]
pub fn room(hardware: &Hardware, policy: &Policy, limit: Option<Bytes>, kept: bool, credit: Bytes) -> Room {
    let memory = &hardware.memory;
    let total = memory.total_bytes.0.max(memory.available_bytes.0);
    let credited = |bytes: Bytes| bytes.0.saturating_add(credit.0).min(total);
    let system = credited(memory.system_available_bytes.unwrap_or(memory.available_bytes));
    let share = policy.reserve_share.clamp(0.0, 0.9);
    let wanted = policy.reserve_bytes.0.max((system as f64 * share) as u64);
    // On a very small machine the class's reserve would leave nothing: at most half of what there is.
    let for_system = wanted.min(if kept { system } else { system / 2 });
    let (mut available, mut usable) = (system, system - for_system);
    let group = credited(memory.available_bytes);
    // Above the soft limit the kernel slows the whole group down, so it bounds the plan like a hard one.
    let groups = [
        (group < system).then_some(group),
        memory.soft_limit_bytes.map(|soft| soft.0),
    ];
    for bound in groups.into_iter().flatten() {
        available = available.min(bound);
        usable = usable.min(bound.saturating_sub(bound / GROUP_SHARE + GROUP_BYTES));
    }
    if let Some(set) = limit {
        available = available.min(set.0);
        usable = usable.min(set.0);
    }
    Room {
        available: Bytes(available),
        reserve: Bytes(available - usable.min(available)),
        wanted_reserve: (!kept && for_system < wanted).then_some(Bytes(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive::samples::plain;

    fn policy() -> Policy {
        Policy {
            reserve_bytes: Bytes::gib(1),
            reserve_share: 0.05,
            ..crate::derive::samples::policy()
        }
    }

    #[test]
    fn the_reserve_is_for_the_rest_of_the_machine() {
        let mut hardware = plain(4, Bytes::gib(16));
        let usable = |hardware: &Hardware, limit: Option<Bytes>, credit: u64| {
            let room = room(hardware, &policy(), limit, false, Bytes::mib(credit));
            assert!(room.reserve <= room.available);
            room.usable().0
        };
        assert_eq!(usable(&hardware, None, 0), Bytes::gib(15).0);
        // A limit that somebody set is all ours; one above what the machine can spare changes nothing.
        assert_eq!(usable(&hardware, Some(Bytes::gib(2)), 0), Bytes::gib(2).0);
        assert_eq!(usable(&hardware, Some(Bytes::gib(20)), 0), Bytes::gib(15).0);
        hardware.memory.system_available_bytes = Some(hardware.memory.available_bytes);
        hardware.memory.available_bytes = Bytes::mib(640);
        assert_eq!(usable(&hardware, None, 0), Bytes::mib(640 - 10 - 2).0);
        assert_eq!(usable(&hardware, None, 64), Bytes::mib(704 - 11 - 2).0);
        // A group that may have nearly all of the machine still leaves the reserve.
        hardware.memory.available_bytes = Bytes::mib(16 * 1024 - 1);
        assert_eq!(usable(&hardware, None, 0), Bytes::gib(15).0);
        hardware.memory.available_bytes = Bytes(1);
        assert_eq!(usable(&hardware, None, 0), 0);
        hardware.memory.soft_limit_bytes = Some(Bytes::mib(64));
        hardware.memory.available_bytes = Bytes::gib(16);
        assert_eq!(usable(&hardware, None, 0), Bytes::mib(64 - 1 - 2).0);
    }
}
