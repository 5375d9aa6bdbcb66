//! Teams: the machine's cores shared out between the stages that run beside each other.
//!
//! In: the stages with their work and pins, the pool of cores, policy. Out: workers for each stage.
//! Invariant: stages that run at the same time have CPUs of their own wherever there is a core for each; where there
//! is not, they share, and the reason says so. A stage that runs inside another's step uses that stage's team.

use super::cores::{Pool, cores_word};
use super::decision::{Decision, Pin};
use super::threads::{self, ThreadPins, Threads};
use crate::base::{Code, CpuSet, Problem};
use crate::config::Policy;
use crate::model::{Rhythm, StageSpec};
use crate::probe::Hardware;
use crate::probe::hardware::NumaNode;

/// A stage and what somebody set about its workers.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The stage.
    pub stage: &'a StageSpec<'a>,
    /// Its pins.
    pub pins: ThreadPins,
}

/// Workers for every stage, in the order given. All problems are reported together.
pub fn divide(
    hardware: &Hardware,
    policy: &Policy,
    members: &[Member<'_>],
    node: Option<&NumaNode>,
) -> Result<Vec<Threads>, Vec<Problem>> {
    let own: Vec<&Member<'_>> = (members.iter())
        .filter(|member| member.stage.rhythm == Rhythm::Own)
        .collect();
    let mut teams = match own.as_slice() {
        [one] => vec![threads::choose(hardware, policy, &one.pins, node)?],
        several => {
            let work: Vec<u64> = several.iter().map(|owner| work_of(owner, members)).collect();
            divide_several(hardware, policy, several, &work, node)?
        }
    };
    if let Some(first) = teams.first_mut() {
        first.warnings.extend(threads::starved(hardware));
    }
    let mut problems = Vec::new();
    let mut all = Vec::with_capacity(members.len());
    for member in members {
        let owner = match member.stage.rhythm {
            Rhythm::Own => member.stage.name,
            Rhythm::Within(owner) => owner,
        };
        let at = own.iter().position(|own| own.stage.name == owner).unwrap_or(0);
        let Some(team) = teams.get(at).cloned() else {
            continue;
        };
        if member.stage.rhythm == Rhythm::Own {
            all.push(team);
        } else {
            all.push(lodge(member, owner, &team, &mut problems));
        }
    }
    if problems.is_empty() {
        Ok(all)
    } else {
        Err(problems)
    }
}

/// The work of a step that a stage's team does: its own, and that of the stages that run inside it.
fn work_of(owner: &Member<'_>, members: &[Member<'_>]) -> u64 {
    let lodgers = members
        .iter()
        .filter(|member| member.stage.rhythm == Rhythm::Within(owner.stage.name));
    lodgers.fold(owner.stage.work_per_step, |work, lodger| {
        work.saturating_add(lodger.stage.work_per_step)
    })
}

/// Several stages, each with a team.
fn divide_several(
    hardware: &Hardware,
    policy: &Policy,
    own: &[&Member<'_>],
    work: &[u64],
    node: Option<&NumaNode>,
) -> Result<Vec<Threads>, Vec<Problem>> {
    let usable = threads::usable(hardware).map_err(|problem| vec![problem])?;
    let all = Pool::of(hardware, &usable, node);
    let limits = ThreadPins {
        max_threads: own.first().and_then(|member| member.pins.max_threads.clone()),
        ..ThreadPins::default()
    };
    let whole = threads::whole(hardware, &all, &usable, policy, &limits);
    let mut problems = Vec::new();
    let mut chosen: Vec<Option<Threads>> = vec![None; own.len()];
    let mut free = all.clone();
    // What somebody set comes first, CPUs before counts.
    let by_cpus = |member: &Member<'_>| member.pins.cpus.is_some();
    let by_count = |member: &Member<'_>| member.pins.cpus.is_none() && member.pins.threads.is_some();
    for wanted in [&by_cpus as &dyn Fn(&Member<'_>) -> bool, &by_count] {
        for (at, member) in own.iter().enumerate().filter(|(_, member)| wanted(member)) {
            let pool = if free.all_cores() == 0 { &all } else { &free };
            match threads::choose_from(hardware, pool, &member.pins, &usable, whole.clone(), 0) {
                Ok(team) => {
                    free = free.without(&team.cpus.value);
                    chosen[at] = Some(team);
                }
                Err(found) => problems.extend(found),
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let set: usize = chosen.iter().flatten().map(|team| team.threads.value).sum();
    if let Some(problem) = too_many(own, set, &whole) {
        return Err(vec![problem]);
    }
    let open: Vec<usize> = (0..own.len()).filter(|&at| chosen[at].is_none()).collect();
    let room = whole.value.saturating_sub(set).min(free.all_cores());
    let split = Split {
        hardware,
        own,
        work,
        open: &open,
        whole: &whole,
        usable: &usable,
    };
    if room >= open.len() {
        split.apart(room, free, policy.io_cpus, &mut chosen)?;
    } else {
        split.shared(&all, &mut chosen)?;
    }
    Ok(chosen.into_iter().flatten().collect())
}

/// Counts that were set and together exceed what the machine or a limit carries.
fn too_many(own: &[&Member<'_>], set: usize, whole: &Decision<usize>) -> Option<Problem> {
    let pins: Vec<&Pin<usize>> = own
        .iter()
        .filter_map(|member| member.pins.threads.as_ref())
        .collect();
    let force = own.iter().any(|member| member.pins.force);
    let (bound, last) = (whole.bounded_by.as_ref()?, pins.last()?);
    // Each stage needs one worker, whatever the limit.
    if pins.len() < 2 || set <= whole.value.max(own.len()) || force {
        return None;
    }
    let named: Vec<String> = pins
        .iter()
        .map(|pin| format!("{} ({})", pin.named(), pin.value))
        .collect();
    Some(
        Problem::new(
            Code::PinUnmet,
            format!(
                "{} ask for {set} workers together, but {bound} carries {}",
                named.join(" and "),
                whole.value
            ),
            format!("let them add up to {} at most, or remove one", whole.value),
        )
        .why("these stages run at the same time; with more workers than CPU time all of them are paused")
        .at(last.place.clone()),
    )
}

/// Stages whose workers nobody set.
struct Split<'a> {
    hardware: &'a Hardware,
    own: &'a [&'a Member<'a>],
    work: &'a [u64],
    open: &'a [usize],
    whole: &'a Decision<usize>,
    usable: &'a CpuSet,
}

impl Split<'_> {
    /// A range for each, by its share of the work.
    fn apart(
        &self,
        room: usize,
        mut free: Pool,
        spare: usize,
        chosen: &mut [Option<Threads>],
    ) -> Result<(), Vec<Problem>> {
        let work: Vec<u64> = self.open.iter().map(|&at| self.work[at].max(1)).collect();
        let counts = shares(room, &work);
        let total: u128 = work.iter().map(|&work| u128::from(work)).sum();
        // The cores for all of them at once, so that those left free are the lowest.
        free = free.only(&free.place(room, spare).0);
        for ((&at, &count), &work) in self.open.iter().zip(&counts).zip(&work) {
            let member = self.own[at];
            let derived = Decision::derived(
                count,
                "threads.share",
                format!(
                    "{count} of {room} {}, by its {} % of the work of a step; {}",
                    cores_word(room),
                    (u128::from(work) * 100 + total / 2) / total,
                    self.whole.because
                ),
            )
            .bounded(self.whole.bounded_by.clone());
            let mut team = threads::choose_from(self.hardware, &free, &member.pins, self.usable, derived, 0)?;
            let others: Vec<String> = self.others(at).collect();
            team.cpus.because = format!("{}; apart from {}", team.cpus.because, others.join(" and "));
            free = free.without(&team.cpus.value);
            chosen[at] = Some(team);
        }
        Ok(())
    }

    /// The same range for all: there is no core for each.
    fn shared(&self, all: &Pool, chosen: &mut [Option<Threads>]) -> Result<(), Vec<Problem>> {
        for &at in self.open {
            let member = self.own[at];
            let others: Vec<String> = self.others(at).collect();
            let derived = Decision::derived(
                1,
                "threads.share",
                format!(
                    "{} worker{} in all cannot give each of {} stages its own; {}",
                    self.whole.value,
                    if self.whole.value == 1 { "" } else { "s" },
                    self.own.len(),
                    self.whole.because
                ),
            )
            .bounded(self.whole.bounded_by.clone());
            let mut team = threads::choose_from(self.hardware, all, &member.pins, self.usable, derived, 0)?;
            team.cpus.because = format!("{}; shared with {}", team.cpus.because, others.join(" and "));
            chosen[at] = Some(team);
        }
        Ok(())
    }

    fn others(&self, at: usize) -> impl Iterator<Item = String> {
        (self.own.iter().enumerate())
            .filter(move |(other, _)| *other != at)
            .map(|(_, member)| format!("`{}`", member.stage.name))
    }
}

/// `room` shared out by `work`, at least 1 each; the remainder goes to those furthest below their share.
fn shares(room: usize, work: &[u64]) -> Vec<usize> {
    let total: u128 = work.iter().map(|&work| u128::from(work.max(1))).sum();
    let mut counts = vec![1usize; work.len()];
    for _ in work.len()..room {
        // The one with the most work for each worker it has.
        let next = (0..work.len()).max_by(|&a, &b| {
            let load = |at: usize, other: usize| u128::from(work[at].max(1)) * counts[other] as u128;
            load(a, b).cmp(&load(b, a)).then(b.cmp(&a))
        });
        if let (Some(next), true) = (next, total > 0) {
            counts[next] += 1;
        }
    }
    counts
}

/// The team of a stage that runs inside another's step.
fn lodge(member: &Member<'_>, owner: &str, team: &Threads, problems: &mut Vec<Problem>) -> Threads {
    let because = format!("it runs inside each step of `{owner}`, on that stage's team");
    let mut differs = |key: &str, place: &crate::base::Place, asked: String, has: String| {
        problems.push(
            Problem::new(
                Code::PinUnmet,
                format!(
                    "{key} asks for {asked}, but `{}` runs on the team of `{owner}` ({has})",
                    member.stage.name
                ),
                format!("set the key for `stages.{owner}` instead"),
            )
            .at(place.clone()),
        );
    };
    let pins = &member.pins;
    if let Some(pin) = pins
        .threads
        .as_ref()
        .filter(|pin| pin.value != team.threads.value)
    {
        differs(
            &pin.named(),
            &pin.place,
            pin.value.to_string(),
            team.threads.value.to_string(),
        );
    }
    if let Some(pin) = pins.cpus.as_ref().filter(|pin| pin.value != team.cpus.value) {
        differs(
            &pin.named(),
            &pin.place,
            pin.value.to_string(),
            team.cpus.value.to_string(),
        );
    }
    for (pin, has) in [(&pins.pin, team.pin.value), (&pins.confine, team.confine.value)] {
        if let Some(pin) = pin.as_ref().filter(|pin| pin.value != has) {
            differs(&pin.named(), &pin.place, pin.value.to_string(), has.to_string());
        }
    }
    Threads {
        threads: as_lodger(&team.threads, pins.threads.as_ref(), &because),
        cpus: as_lodger(&team.cpus, pins.cpus.as_ref(), &because),
        pin: as_lodger(&team.pin, pins.pin.as_ref(), &because),
        confine: as_lodger(&team.confine, pins.confine.as_ref(), &because),
        warnings: Vec::new(),
    }
}

fn as_lodger<T: Clone>(team: &Decision<T>, pin: Option<&Pin<T>>, because: &str) -> Decision<T> {
    match pin {
        Some(pin) => Decision::pinned(pin, format!("set by {}; {because}", pin.layer)),
        None => Decision::derived(team.value.clone(), "threads.within", because),
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn cores_go_where_the_work_is_and_every_stage_gets_one() {
        for (room, work, wanted) in [
            (2, vec![1u64, 1], vec![1, 1]),
            (3, vec![2, 1], vec![2, 1]),
            (12, vec![2, 1], vec![8, 4]),
            (8, vec![100, 1], vec![7, 1]),
            (7, vec![1, 1, 1], vec![3, 2, 2]),
            (4, vec![0, u64::MAX], vec![1, 3]),
        ] {
            assert_eq!(shares(room, &work), wanted, "{room} {work:?}");
            assert_eq!(shares(room, &work).iter().sum::<usize>(), room);
        }
    }
}
