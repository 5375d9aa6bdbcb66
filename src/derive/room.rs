//! How much memory a plan may take.
//!
//! In: the machine's memory and its limits, the policy, a limit that somebody set. Out: [`Room`].
//! Invariant: what stays free for others is taken only from memory that others share.

use crate::base::Bytes;
use crate::config::Policy;
use crate::probe::Hardware;

/// What may be used and what of it stays free.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Room {
    /// What may be used.
    pub available: Bytes,
    /// What of it stays free for the system.
    pub reserve: Bytes,
    /// What the class wants to keep free, where that is more than half of all there is.
    pub wanted_reserve: Option<Bytes>,
    /// What it was computed from.
    pub bounds: Bounds,
}

/// What bounds the memory of a plan, to compute the room again with something else freed or set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// All of the machine's memory; 0 = unknown.
    total: u64,
    /// What the machine has left.
    system: u64,
    /// What the control group has left.
    group: u64,
    /// The control group's hard limit.
    group_limit: Option<u64>,
    soft_limit: Option<u64>,
    /// A limit that somebody set.
    set: Option<u64>,
    /// What will be freed before loading.
    credit: u64,
    reserve_bytes: u64,
    reserve_share: f64,
    /// A person set the reserve.
    kept: bool,
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
    let bounds = Bounds {
        total: memory.total_bytes.0.max(memory.available_bytes.0),
        system: memory.system_available_bytes.unwrap_or(memory.available_bytes).0,
        group: memory.available_bytes.0,
        group_limit: memory.limit_bytes.map(|limit| limit.0),
        soft_limit: memory.soft_limit_bytes.map(|soft| soft.0),
        set: limit.map(|set| set.0),
        credit: credit.0,
        reserve_bytes: policy.reserve_bytes.0,
        reserve_share: policy.reserve_share.clamp(0.0, 0.9),
        kept,
    };
    bounds.room()
}

impl Bounds {
    /// Whether nothing is known about the machine's memory.
    #[must_use]
    pub fn unknown(self) -> bool {
        self.total == 0
    }

    /// The same without the limit that somebody set.
    #[must_use]
    pub fn without_set(self) -> Self {
        Self { set: None, ..self }
    }

    /// The room within these bounds.
    #[must_use]
    pub fn room(self) -> Room {
        let credited = |bytes: u64| bytes.saturating_add(self.credit).min(self.total);
        let system = credited(self.system);
        let wanted = self
            .reserve_bytes
            .max((system as f64 * self.reserve_share) as u64);
        // On a very small machine the class's reserve would leave nothing: at most half of what there is.
        let for_system = wanted.min(if self.kept { system } else { system / 2 });
        let (mut available, mut usable) = (system, system - for_system);
        if self.unknown() {
            // Nothing but somebody's word says how much there is.
            let said = self.set.unwrap_or(0).min(self.group_limit.unwrap_or(u64::MAX));
            (available, usable) = (said, said);
        }
        let group = credited(self.group);
        // Above the soft limit the kernel slows the whole group down, so it bounds the plan like a hard one.
        let groups = [(group < system).then_some(group), self.soft_limit];
        for bound in groups.into_iter().flatten() {
            available = available.min(bound);
            usable = usable.min(bound.saturating_sub(bound / GROUP_SHARE + GROUP_BYTES));
        }
        if let Some(set) = self.set {
            available = available.min(set);
            usable = usable.min(set);
        }
        Room {
            available: Bytes(available),
            reserve: Bytes(available - usable.min(available)),
            wanted_reserve: (!self.kept && for_system < wanted).then_some(Bytes(wanted)),
            bounds: self,
        }
    }

    /// The least that has to be freed until a plan may hold `needed`, without the limit that somebody set. The
    /// reserve grows with what is free, so it is more than what is missing now. `None` where the machine, or the
    /// limit of the control group, never has so much.
    #[must_use]
    pub fn to_free(self, needed: Bytes) -> Option<Bytes> {
        let machine = self.without_set();
        let with = |freed: u64| Self {
            credit: self.credit.saturating_add(freed),
            ..machine
        };
        let left = |all: u64, now: u64| all.saturating_sub(now.saturating_add(self.credit));
        let most = self.group_limit.map_or(u64::MAX, |limit| left(limit, self.group));
        let most = most.min(left(self.total, self.system));
        let fits = |freed: u64| with(freed).room().usable() >= needed;
        if fits(0) {
            return Some(Bytes(0));
        }
        if !fits(most) {
            return None;
        }
        let (mut short, mut enough) = (0, most);
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            if fits(middle) {
                enough = middle;
            } else {
                short = middle;
            }
        }
        Some(Bytes(enough))
    }

    /// The largest reserve that leaves `needed` to the plan.
    #[must_use]
    pub fn largest_reserve(self, needed: Bytes) -> Option<Bytes> {
        let fits = |reserve: u64| {
            let with = Self {
                reserve_bytes: reserve,
                ..self
            };
            with.room().usable() >= needed
        };
        if !fits(0) {
            return None;
        }
        let (mut good, mut bad) = (0, self.reserve_bytes.saturating_add(1));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle) { good = middle } else { bad = middle }
        }
        Some(Bytes(good))
    }

    /// Whether `needed` fits with nothing kept free.
    #[must_use]
    pub fn fits_without_reserve(self, needed: Bytes) -> bool {
        let without = Self {
            reserve_bytes: 0,
            reserve_share: 0.0,
            ..self
        };
        without.room().usable() >= needed
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

    #[test]
    fn what_has_to_be_freed_is_enough_and_not_a_byte_too_much() {
        let mut hardware = plain(4, Bytes::mib(100));
        hardware.memory.total_bytes = Bytes::gib(8);
        for needed in [80, 700, 2000, 6000].map(Bytes::mib) {
            let bounds = room(&hardware, &policy(), None, false, Bytes(0)).bounds;
            let freed = bounds.to_free(needed).expect("the machine has it");
            let usable = |freed| room(&hardware, &policy(), None, false, Bytes(freed)).usable();
            assert!(usable(freed.0) >= needed, "{needed}: {freed}");
            assert!(usable(freed.0 - 1) < needed, "{needed}: {freed}");
        }
        let bounds = room(&hardware, &policy(), None, false, Bytes(0)).bounds;
        assert_eq!(bounds.to_free(Bytes::mib(7500)), None, "the reserve is 1 GiB");
    }

    #[test]
    fn of_unknown_memory_a_set_limit_is_all_that_is_known() {
        let hardware = plain(4, Bytes(0));
        let usable = |limit| room(&hardware, &policy(), limit, false, Bytes(0)).usable();
        assert_eq!(usable(None), Bytes(0));
        assert_eq!(usable(Some(Bytes::gib(3))), Bytes::gib(3));
    }
}
