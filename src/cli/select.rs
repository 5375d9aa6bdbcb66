//! Flags that several commands share, as what `launch` takes.
//!
//! In: [`Select`] and [`Listen`] as typed. Out: [`Wanted`]. Invariant: every flag that stands for a key becomes that
//! key at the command line's rank; none is dropped.

use super::args::{Listen, Select};
use super::bad_flag;
use crate::base::{Problem, Problems, env_vars};
use crate::config::Flag;
use crate::fetch::{Cache, ModelRef};
use crate::launch::{self, Decided, Machine, Wanted};

/// What the flags ask for.
pub(super) fn wanted(select: &Select, listen: &Listen) -> Result<Wanted, Problem> {
    let mut set = Vec::new();
    for pair in &select.set {
        let (key, value) = pair
            .split_once('=')
            .filter(|(key, _)| !key.trim().is_empty())
            .ok_or_else(|| {
                bad_flag(
                    "--set",
                    format!("`{pair}` is not KEY=VALUE"),
                    "write it as in `--set stages.decoder.threads=4`",
                )
            })?;
        set.push((key.trim().to_owned(), value.to_owned()));
    }
    let mut flags = Vec::new();
    for (flag, key, value) in [
        ("--host", "server.host", &listen.host),
        ("--port", "server.port", &listen.port),
    ] {
        if let Some(value) = value {
            flags.push(self::flag(flag, key, given(flag, value)?));
        }
    }
    let mut stage_flags = Vec::new();
    for (flag, knob, value) in [
        ("--context", "context", &select.context),
        ("--threads", "threads", &select.threads),
        ("--isa-cap", "isa_cap", &select.isa_cap),
    ] {
        if let Some(value) = value {
            stage_flags.push(self::flag(flag, knob, given(flag, value)?));
        }
    }
    if let Some(key) = &listen.api_key {
        flags.push(flag("--api-key", "server.api_key", given("--api-key", key)?));
    } else if let Some(key) = env_vars::text(env_vars::API_KEY)? {
        flags.push(flag(env_vars::API_KEY.name, "server.api_key", &key));
    }
    Ok(Wanted {
        model: ModelRef::parse(&select.model)?,
        machine: machine(select.sysroot.as_deref(), select.hardware.as_deref()),
        profiles: select.profile.clone(),
        set,
        flags,
        stage_flags,
        config_dir: select.config_dir.clone(),
        lenient: select.lenient,
        force: select.force,
    })
}

/// The machine that two flags name.
pub(super) fn machine(sysroot: Option<&std::path::Path>, hardware: Option<&std::path::Path>) -> Machine {
    match (sysroot, hardware) {
        (Some(folder), _) => Machine::Captured(folder.to_owned()),
        (None, Some(file)) => Machine::Saved(file.to_owned()),
        (None, None) => Machine::Live,
    }
}

/// Probes, reads the model's headers and plans, without fetching anything.
pub(super) fn decide(wanted: &Wanted) -> Result<Decided, Problems> {
    let card = launch::card(&wanted.model, &Cache::open()?)?;
    launch::decide(wanted, launch::machine(&wanted.machine)?, &card)
}

/// The same for two plans, on one reading of the machine where both are for the same.
pub(super) fn decide_both(left: &Wanted, right: &Wanted) -> Result<(Decided, Decided), Problems> {
    if left.machine != right.machine {
        return Ok((decide(left)?, decide(right)?));
    }
    let card = launch::card(&left.model, &Cache::open()?)?;
    launch::decide_both(left, right, &launch::machine(&left.machine)?, &card)
}

/// A flag's value, which an unset shell variable would leave empty: for a key that would open the server.
fn given<'a>(flag: &str, value: &'a str) -> Result<&'a str, Problem> {
    if value.trim().is_empty() {
        return Err(bad_flag(
            flag,
            format!("`{flag}` has an empty value"),
            "give a value, or leave the flag out",
        ));
    }
    Ok(value)
}

fn flag(flag: &str, key: &str, value: &str) -> Flag {
    Flag {
        flag: flag.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
    }
}
