//! The command line: arguments in, one command run, an exit code out.
//!
//! In: the process's arguments. Out: results on stdout, the rest on stderr, [`ExitCode`].
//! Invariant: commands decide what to show; they decide nothing about machine, model or plan.

pub mod args;
mod auto;
mod bench;
mod doctor;
mod explain;
mod generate;
mod plan;
pub mod print;
mod probe;
mod profiles;
mod pull;
mod run;
mod say;
mod select;
mod show;
mod verify;

use clap::Parser;

use crate::base::{ExitCode, Place, Problem, Problems, Severity, env_vars};
use crate::observe::logging;
use args::{Args, Command};

/// What a command ends with.
type Outcome = Result<ExitCode, Problems>;

/// Reads the arguments, runs the command and reports.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(stop) => return usage(&stop),
    };
    let json = args.command.json();
    let outcome = start_logging(&args)
        .map_err(Problems::from)
        .and_then(|()| run(args.command));
    match outcome {
        Ok(code) => code,
        Err(problems) => {
            print::failure(&problems, json);
            exit_code(&problems)
        }
    }
}

/// Help and version go to stdout with 0; a wrong command line to stderr with 2.
fn usage(stop: &clap::Error) -> ExitCode {
    if stop.use_stderr() {
        print::note(stop.render().to_string().trim_end());
        ExitCode::Usage
    } else {
        print::text(&stop.render().to_string());
        ExitCode::Ok
    }
}

fn start_logging(args: &Args) -> Result<(), Problem> {
    let usual = if matches!(args.command, Command::Auto(_)) {
        logging::SERVER_FILTER
    } else {
        logging::DEFAULT_FILTER
    };
    match (&args.log, env_vars::get(env_vars::LOG)) {
        (Some(filter), _) => logging::start(filter, "--log", args.log_json),
        (None, Some(filter)) => logging::start(&filter, env_vars::LOG.name, args.log_json),
        (None, None) => logging::start(usual, "built-in", args.log_json),
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Auto(args) => auto::run(&args),
        Command::Plan(args) if args.emit => plan::emit(&args.select, &args.listen),
        Command::Plan(args) if args.diff.is_some() => plan::compare(
            &args.select,
            &args.listen,
            args.diff.as_deref().unwrap_or_default(),
            args.output.json,
        ),
        Command::Plan(args) => plan::run(&args.select, &args.listen, args.output.json),
        Command::Explain(args) => explain::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Say(args) => say::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Profiles(args) => profiles::run(args.command),
        Command::Pull(args) => pull::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Completions(args) => {
            print::text(&generate::completions(args.shell));
            Ok(ExitCode::Ok)
        }
        Command::Man => {
            print::text(&generate::man_page()?);
            Ok(ExitCode::Ok)
        }
        Command::Generate(args) => generate::run(&args),
    }
}

/// The exit code of the first error.
fn exit_code(problems: &Problems) -> ExitCode {
    problems
        .0
        .iter()
        .find(|problem| problem.severity == Severity::Error)
        .or(problems.0.first())
        .map_or(ExitCode::Internal, |problem| problem.code.exit_code())
}

/// A problem with a flag's value.
fn bad_flag(flag: &str, what: String, remedy: &str) -> Problem {
    Problem::new(crate::base::Code::BadValue, what, remedy).at(Place::of(flag))
}
