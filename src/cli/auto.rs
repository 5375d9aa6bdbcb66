//! `auto`: the whole way, from probing to serving.
//!
//! In: the flags. Out: the plan and the address on stdout, log lines on stderr, until told to stop.
//! Invariant: with `--dry-run` nothing is fetched, bound or loaded.

use super::args::AutoArgs;
use super::{Outcome, plan};

pub(super) fn run(args: &AutoArgs) -> Outcome {
    if args.dry_run {
        return plan::run(&args.select, &args.listen, args.output.json);
    }
    Err(crate::base::Problem::new(
        crate::base::Code::Internal,
        "serving is not wired yet",
        "add --dry-run",
    )
    .into())
}
