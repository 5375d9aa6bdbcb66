//! `explain`: where a value comes from and how to verify it.
//!
//! In: a key, or the beginning of several. Out: value, origin, reason, check. Invariant: shows the plan's own record.

use std::collections::BTreeMap;

use super::args::ExplainArgs;
use super::{Outcome, print, select, show};
use crate::base::{ExitCode, KeyPath};

pub(super) fn run(args: &ExplainArgs) -> Outcome {
    let decided = select::decide(&select::wanted(&args.select, &args.listen)?)?;
    let plan = &decided.plan;
    let mut chosen = BTreeMap::new();
    match &args.key {
        None => chosen.extend(&plan.explanations),
        Some(key) => {
            let below = format!("{}.", KeyPath::new(key));
            let group = plan
                .explanations
                .iter()
                .filter(|(path, _)| path.as_str().starts_with(&below));
            chosen.extend(group);
            if chosen.is_empty() {
                let explained = plan.explain(key)?;
                print_one(&KeyPath::new(key), explained, args.output.json)?;
                return Ok(ExitCode::Ok);
            }
        }
    }
    if args.output.json {
        print::json(&chosen)?;
    } else {
        let texts: Vec<String> = chosen
            .iter()
            .map(|(path, explained)| show::explanation(path.as_str(), explained))
            .collect();
        print::text(&texts.join("\n"));
    }
    Ok(ExitCode::Ok)
}

fn print_one(
    path: &KeyPath,
    explained: &crate::plan::Explanation,
    json: bool,
) -> Result<(), crate::base::Problem> {
    if json {
        return print::json(&BTreeMap::from([(path, explained)]));
    }
    print::text(&show::explanation(path.as_str(), explained));
    Ok(())
}
