//! `bench`: what this engine does on this machine.
//!
//! In: a model, lengths, batches. Out: tokens a second with median and spread, as a table or JSON.
//! Invariant: measures the engine that the plan starts, through its handle; kinds alternate within the run.

use super::args::{BenchArgs, Listen};
use super::{Outcome, print, select};
use crate::base::ExitCode;
use crate::bench::{GenerationSpec, generation};
use crate::config::Flag;
use crate::fetch::Cache;
use crate::launch;

pub(super) fn run(args: &BenchArgs) -> Outcome {
    let mut wanted = select::wanted(&args.select, &Listen::default())?;
    let batches = args.batch.iter().copied().max().unwrap_or(1);
    if batches > 1 {
        wanted.flags.push(Flag {
            flag: "--batch".to_owned(),
            key: "stages.decoder.max_seqs".to_owned(),
            value: batches.to_string(),
        });
    }
    let mut bar = print::Bar::quiet();
    let decided = launch::fetch_and_decide(&wanted, &Cache::open()?, &mut bar)?;
    let ready = launch::start(decided, &mut bar)?;
    drop(bar);
    print::warnings(&ready.decided.plan.warnings);
    print::warnings(&ready.differences);
    let spec = GenerationSpec {
        prefill: args.prefill.clone(),
        depths: args.depth.clone(),
        decode: args.decode,
        batches: args.batch.clone(),
        repeat: args.repeat,
    };
    let report = generation(&ready.handle, &spec, &mut |line| print::note(line));
    let plan = &ready.decided.plan;
    ready
        .handle
        .shutdown(std::time::Duration::from_millis(plan.deadlines.shutdown_ms.0));
    let report = report?;
    let stage = ready.effective.stages.values().next();
    if args.output.json {
        print::json(&serde_json::json!({
            "model": plan.model.name,
            "digest": plan.digest,
            "fingerprint": plan.fingerprint,
            "version": env!("CARGO_PKG_VERSION"),
            "effective": stage,
            "results": report.results,
        }))?;
        return Ok(ExitCode::Ok);
    }
    if let Some(stage) = stage {
        print::text(&format!(
            "{}: {} threads, {}",
            plan.model.name, stage.threads, stage.kernels
        ));
    }
    let mut rows = vec![vec![
        "kind".to_owned(),
        "tokens".to_owned(),
        "depth".to_owned(),
        "batch".to_owned(),
        "tok/s".to_owned(),
        "min".to_owned(),
        "max".to_owned(),
    ]];
    rows.extend(report.results.iter().map(|result| {
        vec![
            result.kind.to_owned(),
            result.tokens.to_string(),
            result.depth.to_string(),
            result.batch.to_string(),
            format!("{:.1}", result.tok_s.median),
            format!("{:.1}", result.tok_s.min),
            format!("{:.1}", result.tok_s.max),
        ]
    }));
    print::text(print::table(&rows).trim_end());
    Ok(ExitCode::Ok)
}
