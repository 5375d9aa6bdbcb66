//! `auto`: the whole way, from probing to serving.
//!
//! In: the flags. Out: the plan and the address on stdout, progress and log lines on stderr, until told to stop.
//! Invariant: with `--dry-run` nothing is fetched, bound or loaded; the port is taken before anything is loaded; a
//! closed stdout does not end a server.

use std::net::SocketAddr;

use super::args::AutoArgs;
use super::{Outcome, plan, print, select, show};
use crate::base::{ExitCode, Problem};
use crate::fetch::{Cache, ModelRef};
use crate::launch::{self, Machine, Ready};
use crate::server::Served;

pub(super) fn run(args: &AutoArgs) -> Outcome {
    if args.dry_run {
        return plan::run(&args.select, &args.listen, args.output.json);
    }
    let wanted = select::wanted(&args.select, &args.listen)?;
    let cache = Cache::open()?;
    let mut bar = print::Bar::default();
    if let ModelRef::Hub(_) = wanted.model {
        // A model of the hub has no card before its files are here.
        wanted.model.ensure(&cache, false, &mut bar)?;
    }
    let decided = select::decide(&wanted)?;
    if wanted.machine != Machine::Live {
        let here = launch::machine(&Machine::Live)?;
        launch::may_run_here(&decided.hardware, &decided.plan, &here)?;
        print::note(&format!(
            "planned for {}, running on this machine, which has all it needs",
            decided.hardware.source
        ));
    }
    // The port before all else that takes time or room: a plan on the screen hides that nothing will run.
    let listener = launch::bind(&decided.plan)?;
    print::warnings(&decided.hardware.warnings);
    print::warnings(&decided.plan.warnings);
    let json = args.output.json;
    if !json {
        print::announce(&format!(
            "{}
{}{}",
            show::machine_line(&decided.hardware),
            show::storage_line(decided.storage.as_ref()),
            show::plan(&decided.plan)
        ));
    }
    launch::serve(
        decided,
        listener,
        (&wanted.model, &cache),
        args.strict,
        &mut bar,
        &mut |ready, address| announce(ready, address, json),
    )?;
    Ok(ExitCode::Ok)
}

/// Says where the server is and how to try it.
fn announce(ready: &Ready<Served>, address: SocketAddr, json: bool) -> Result<(), Problem> {
    let plan = &ready.decided.plan;
    let shown = if address.ip().is_unspecified() {
        SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port())
    } else {
        address
    };
    if json {
        print::announce(&print::pretty(&serde_json::json!({
            "url": format!("http://{shown}"),
            "plan": plan,
            "effective": ready.effective,
            "differences": ready.differences,
        }))?);
        return Ok(());
    }
    print::warnings(&ready.differences);
    let key = if plan.server.api_key_required {
        " -H \"authorization: Bearer $EDGE_DEPLOY_API_KEY\""
    } else {
        ""
    };
    let state = if ready.differences.is_empty() {
        "as planned"
    } else {
        "with the differences above"
    };
    let (path, body) = match &ready.handle {
        Served::Text(_) => (
            "chat/completions",
            r#"'{"model":"default","messages":[{"role":"user","content":"Hello!"}]}'"#,
        ),
        Served::Speech(_) => ("audio/speech", r#"'{"input":"Hello!"}' -o hello.wav"#),
    };
    print::announce(&format!(
        "\nserving {} at http://{shown} {state}; try it:\n  curl http://{shown}/v1/{path} -H 'content-type: \
         application/json'{key} \\\n    -d {body}\n",
        plan.model.name
    ));
    Ok(())
}
