//! Clock, governor, temperature and throttling state at probe time.
//!
//! In: cpufreq, thermal zones, throttle counters, cgroup `cpu.stat`. Out: [`Thermal`].
//! Invariant: never an error: containers, virtual machines and phones hide any of these files.

use super::cgroup::Cgroups;
use super::hardware::{Cpus, Thermal};
use super::root::Root;
use crate::base::{Code, Problem};

/// More zones than any real board has; hostile captures cannot cost more.
const MAX_ZONES: usize = 256;

/// Reads it.
#[must_use]
pub fn read(root: &Root, cpus: &Cpus, groups: &Cgroups) -> Thermal {
    let first = cpus.allowed.first().unwrap_or(0);
    let throttled = groups.chain("cpu").iter().find_map(|group| {
        let text = root.read(&format!("{}/cpu.stat", group.path))?;
        text.lines()
            .find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
    });
    let counts: Vec<u64> = cpus
        .online
        .iter()
        .filter_map(|cpu| {
            root.number(&format!(
                "/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count"
            ))
        })
        .collect();
    let zones = root.numbered("/sys/class/thermal", "thermal_zone");
    Thermal {
        governor: root.line(&format!(
            "/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"
        )),
        nr_throttled: throttled,
        max_millidegrees: zones
            .iter()
            .take(MAX_ZONES)
            .filter_map(|zone| root.number::<i64>(&format!("/sys/class/thermal/thermal_zone{zone}/temp")))
            // Sensors that are off report 0 K or absurd values.
            .filter(|temp| (-40_000..=150_000).contains(temp))
            .max(),
        throttle_count: (!counts.is_empty())
            .then(|| counts.iter().fold(0u64, |sum, &n| sum.saturating_add(n))),
    }
}

/// What a person should know.
pub fn explain(thermal: &Thermal, warnings: &mut Vec<Problem>) {
    if thermal.governor.as_deref() == Some("powersave")
        && thermal.max_millidegrees.is_some_and(|t| t >= 95_000)
    {
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                "the processor is at 95 °C or more and lowers its clock",
                "improve cooling, or choose the quiet power profile",
            )
            .why("measured speeds would not hold"),
        );
    }
    if let Some(count) = thermal.nr_throttled.filter(|&count| count > 0) {
        warnings.push(
            Problem::warning(
                Code::HardwareLimit,
                format!("this control group was stopped {count} times for using up its CPU quota"),
                "raise the CPU limit, or run fewer threads beside this server",
            )
            .why("a stopped group delays every token and audio chunk"),
        );
    }
}
