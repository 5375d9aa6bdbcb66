//! Log lines on stderr, as text or JSON.
//!
//! In: a filter. Out: the process-wide subscriber. Invariant: set up once, by the binary; never writes to stdout.

use tracing_subscriber::EnvFilter;

use crate::base::{Code, Place, Problem};

/// What is logged when nobody says.
pub const DEFAULT_FILTER: &str = "warn";
/// What a server logs when nobody says: its own steps and requests too.
pub const SERVER_FILTER: &str = "warn,edge_deploy=info";

/// Sends log lines that pass `filter` to stderr.
///
/// # Errors
/// `bad_value` when the filter cannot be read; `source` says where it was given.
pub fn start(filter: &str, source: &str, as_json: bool) -> Result<(), Problem> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| {
        Problem::new(
            Code::BadValue,
            format!("the log filter `{filter}` cannot be read: {error}"),
            "write a level (`error`, `warn`, `info`, `debug`, `trace`) or `module=level`, separated by commas",
        )
        .at(Place::of(source))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    let started = if as_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| {
        Problem::new(
            Code::Internal,
            format!("logging cannot start: {error}"),
            "please report this",
        )
    })
}
