//! `verify`: a running server against its own plan.
//!
//! In: the server's address. Out: every difference, or that there is none. Invariant: compares what the server says
//! it planned with what it reads back from the running engine; exit code 8 on any difference.

use super::args::VerifyArgs;
use super::{Outcome, print};
use crate::base::{Code, ExitCode, Problem, Problems, env_vars};
use crate::fetch::http::{Auth, Http, Patience};
use crate::plan::{Effective, Plan, readback};

/// Largest answer read; a plan with its reasons is about 30 KiB.
const LIMIT: u64 = 16 << 20;

pub(super) fn run(args: &VerifyArgs) -> Outcome {
    let base = args.url.trim_end_matches('/');
    let key = args.api_key.clone().or_else(|| env_vars::get(env_vars::API_KEY));
    let auth = key.map(|key| Auth::bearer(base, &key));
    let http = Http::for_server(
        base,
        Patience {
            attempts: 1,
            ..Patience::default()
        },
    )?;
    let get = |path: &str| -> Result<Vec<u8>, Problem> {
        http.page(&format!("{base}{path}"), "application/json", auth.as_ref(), LIMIT)
            .map(|(_, _, body)| body)
            .map_err(|problem| Problem {
                remedy: "check that the server runs at this address (`edge-deploy verify URL`) and, if it wants a key, set EDGE_DEPLOY_API_KEY".to_owned(),
                ..problem
            })
    };
    let plan = Plan::read(&String::from_utf8_lossy(&get("/v1/edge/plan")?))?;
    let effective: Effective = serde_json::from_slice(&get("/v1/edge/effective")?).map_err(|error| {
        Problem::new(
            Code::ReadbackMismatch,
            format!("{base}/v1/edge/effective does not answer as this version does: {error}"),
            "use the edge-deploy of the same version as the server",
        )
    })?;
    let differences = readback::compare(&plan, &effective);
    if args.output.json {
        print::json(&serde_json::json!({
            "digest": plan.digest,
            "matches": differences.is_empty(),
            "differences": differences,
            "effective": effective,
        }))?;
        return Ok(if differences.is_empty() {
            ExitCode::Ok
        } else {
            ExitCode::Mismatch
        });
    }
    if !differences.is_empty() {
        return Err(Problems(differences));
    }
    let mut rows = Vec::new();
    for (name, stage) in &effective.stages {
        let cpus: Vec<String> = stage.worker_cpus.iter().map(ToString::to_string).collect();
        for (fact, value) in [
            ("threads", stage.threads.to_string()),
            ("worker CPUs", cpus.join(" ")),
            ("kernels", stage.kernels.clone()),
            ("context", stage.context.to_string()),
            ("sequences", stage.max_seqs.to_string()),
            ("KV cache", stage.kv_bytes.to_string()),
        ] {
            rows.push(vec![name.clone(), fact.to_owned(), value]);
        }
    }
    print::text(&format!(
        "the running server is as planned (plan {})\n{}",
        plan.digest,
        print::table(&rows)
    ));
    Ok(ExitCode::Ok)
}
