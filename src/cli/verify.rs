//! `verify`: a running server against its own plan.
//!
//! In: the server's address. Out: a table of every key of the plan, what is in use, and whether they agree.
//! Invariant: compares what the server says it planned with what it reads back from the running engine now; exit code
//! 8 on any difference, 6 when the server cannot be asked.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::args::VerifyArgs;
use super::{Outcome, bad_flag, print};
use crate::base::{Bytes, Code, ExitCode, Problem, env_vars};
use crate::fetch::http::{Auth, Http, Patience};
use crate::plan::knobs::{self, Readback};
use crate::plan::{Effective, Plan, readback};

/// Largest answer read; a plan with its reasons is about 30 KiB.
const LIMIT: u64 = 16 << 20;
/// Where `auto` listens unless told otherwise.
const PORT: u16 = 8080;
/// Widest value shown in the table.
const WIDTH: usize = 20;

pub(super) fn run(args: &VerifyArgs) -> Outcome {
    let base = base_url(args)?;
    let server = Server::new(
        &base,
        args.api_key.clone().or_else(|| env_vars::get(env_vars::API_KEY)),
    )?;
    let plan_text = String::from_utf8_lossy(&server.get("/v1/edge/plan")?).into_owned();
    let plan = Plan::read(&plan_text).map_err(|problem| server.strange(&problem.what))?;
    let effective: Effective =
        serde_json::from_slice(&server.get("/v1/edge/effective")?).map_err(|error| server.strange(&error))?;
    let differences = readback::compare(&plan, &effective);
    let rows = rows(&plan, &effective, &differences);
    let code = if differences.is_empty() {
        ExitCode::Ok
    } else {
        ExitCode::Mismatch
    };
    if args.output.json {
        print::json(&json!({
            "url": base,
            "digest": plan.digest,
            "matches": differences.is_empty(),
            "keys": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "differences": differences,
            "effective": effective,
        }))?;
        return Ok(code);
    }
    print::text(&table(&rows));
    print::text(&memory(&plan, &effective));
    print::warnings(&differences);
    print::text(&match differences.len() {
        0 => format!("{base} runs as planned (plan {})", plan.digest),
        1 => format!("{base} differs from its plan {} in one place", plan.digest),
        n => format!("{base} differs from its plan {} in {n} places", plan.digest),
    });
    Ok(code)
}

/// `http://host:port` of what was given: an address with or without scheme or port, a port alone, or nothing.
fn base_url(args: &VerifyArgs) -> Result<String, Problem> {
    let bad = |what: String| {
        bad_flag(
            "ADDRESS",
            what,
            "give it as `127.0.0.1:8080`, as `http://host:8080`, or give `--port 8080` alone",
        )
    };
    let Some(given) = &args.address else {
        return Ok(format!("http://127.0.0.1:{}", args.port.unwrap_or(PORT)));
    };
    let given = given.trim().trim_end_matches('/');
    if given.parse::<u16>().is_ok() {
        return Ok(format!("http://127.0.0.1:{given}"));
    }
    let (scheme, rest) = match given.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some((scheme, _)) => return Err(bad(format!("`{scheme}://` is no address of a server"))),
        None => ("http", given),
    };
    if rest.is_empty() || rest.contains(|c: char| c.is_whitespace() || c == '@') {
        return Err(bad(format!(
            "`{}` is no address of a server",
            given.escape_debug()
        )));
    }
    // A path stays where it is: a server may stand behind a proxy.
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let bare_v6 = !host.starts_with('[') && host.matches(':').count() > 1;
    let host = if bare_v6 {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let after_host = host.rsplit(']').next().unwrap_or_default();
    let port = after_host.rsplit_once(':').map(|(_, port)| port);
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(bad(format!("`{}` names no port", given.escape_debug())));
    }
    let with_port = match (port, scheme) {
        (Some(port), _) if host.starts_with(':') => format!("127.0.0.1:{port}"),
        (Some(_), _) | (None, "https") => host.clone(),
        (None, _) => format!("{host}:{}", args.port.unwrap_or(PORT)),
    };
    Ok(format!("{scheme}://{with_port}{path}"))
}

/// The server that is asked.
struct Server<'a> {
    base: &'a str,
    http: Http,
    auth: Option<Auth>,
}

impl<'a> Server<'a> {
    fn new(base: &'a str, key: Option<String>) -> Result<Self, Problem> {
        let patience = Patience {
            attempts: 1,
            ..Patience::default()
        };
        Ok(Self {
            http: Http::for_server(base, patience)?,
            auth: key.map(|key| Auth::bearer(base, &key)),
            base,
        })
    }

    fn get(&self, path: &str) -> Result<Vec<u8>, Problem> {
        let url = format!("{}{path}", self.base);
        let page = self
            .http
            .page(&url, "application/json", self.auth.as_ref(), LIMIT);
        page.map(|(_, _, body)| body).map_err(|failure| {
            let remedy = if failure.what.contains("answers 401") {
                "give the server's key: set EDGE_DEPLOY_API_KEY, or pass --api-key"
            } else if failure.what.contains("answers 503") {
                "it is still loading or is stopping: try again when GET /ready answers 200"
            } else if failure.what.contains("answers 404") {
                "this is another kind of server, or an older version: give the address that `edge-deploy auto` printed"
            } else {
                "check that the server runs at this address: `edge-deploy auto` prints it, `ss -ltn` lists all"
            };
            Problem::new(Code::ServerUnreachable, failure.what, remedy)
        })
    }

    /// It answers, but not as this version does.
    fn strange(&self, seen: &dyn std::fmt::Display) -> Problem {
        Problem::new(
            Code::ServerUnreachable,
            format!("{} does not answer as this version does: {seen}", self.base),
            "use the edge-deploy of the same version as the server",
        )
    }
}

/// One key of the plan.
struct Row {
    key: String,
    planned: Value,
    in_use: Option<Value>,
    /// Why it is not read back.
    fact: Option<&'static str>,
    matches: bool,
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "key": self.key,
            "planned": self.planned,
            "in_use": self.in_use,
            "fact": self.fact,
            "matches": self.matches,
        })
    }
}

/// A value as JSON by way of text, so that an `f32` of 0.7 is shown as 0.7.
fn plain<T: serde::Serialize>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn rows(plan: &Plan, effective: &Effective, differences: &[Problem]) -> Vec<Row> {
    let (planned, real) = (plain(plan), plain(effective));
    let differs = |key: &str| {
        differences.iter().any(|problem| {
            problem.details.as_ref().is_some_and(|details| {
                details["key"]
                    .as_str()
                    .is_some_and(|named| named == key || key.starts_with(&format!("{named}.")))
            })
        })
    };
    knobs::keys(&planned)
        .into_iter()
        .filter(|(key, _)| !key.starts_with("memory."))
        .map(|(key, value)| Row {
            in_use: knobs::readback_path(&key).and_then(|path| knobs::at(&real, &path).cloned()),
            fact: knobs::of(&key).and_then(|knob| match knob.readback {
                Readback::Fact(why) => Some(why),
                Readback::Field(_) => None,
            }),
            matches: !differs(&key),
            planned: value.clone(),
            key,
        })
        .collect()
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![["key", "planned", "in use", ""].map(str::to_owned).to_vec()];
    for row in rows {
        let (in_use, verdict) = match (&row.in_use, row.fact) {
            _ if !row.matches => (
                row.in_use.as_ref().map_or_else(|| "?".to_owned(), shown),
                "DIFFERS",
            ),
            (Some(value), _) => (shown(value), "ok"),
            (None, Some(_)) => ("-".to_owned(), "fact"),
            (None, None) => ("-".to_owned(), "not in use"),
        };
        lines.push(vec![
            row.key.clone(),
            shown(&row.planned),
            in_use,
            verdict.to_owned(),
        ]);
    }
    print::table(&lines)
}

/// A value on one line, cut where it is long.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    if text.chars().count() <= WIDTH {
        return text;
    }
    let cut: String = text.chars().take(WIDTH - 1).collect();
    format!("{cut}…")
}

/// The ledger against what is resident now, and where the pages are.
fn memory(plan: &Plan, effective: &Effective) -> String {
    let real = &effective.memory;
    let mut lines = vec![
        ["memory", "predicted", "resident now"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for item in plan
        .memory
        .items
        .iter()
        .filter(|item| item.anonymous && item.steady)
    {
        let now = real
            .item(&item.name)
            .map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        lines.push(vec![item.name.clone(), item.bytes.to_string(), now]);
    }
    lines.push(vec![
        "anonymous in all".to_owned(),
        plan.memory.steady_bytes.to_string(),
        real.anonymous_bytes.to_string(),
    ]);
    lines.push(vec![
        "mapped files".to_owned(),
        plan.memory.mapped_steady_bytes.to_string(),
        real.file_bytes.to_string(),
    ]);
    lines.push(vec![
        "peak, all kinds".to_owned(),
        Bytes(
            plan.memory
                .peak_bytes
                .0
                .saturating_add(plan.memory.mapped_bytes.0),
        )
        .to_string(),
        real.peak_bytes.to_string(),
    ]);
    let mut text = print::table(&lines);
    for (name, stage) in &effective.stages {
        for (what, pages) in [("weights", &stage.weight_pages), ("KV cache", &stage.kv_pages)] {
            let nodes: Vec<String> = pages
                .nodes
                .iter()
                .map(|(node, bytes)| format!("{bytes} on node {node}"))
                .collect();
            let place = match nodes.as_slice() {
                [] => "the kernel does not say on which node".to_owned(),
                [one] => format!("{one} (one node)"),
                _ => nodes.join(", "),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}: {what} {place}; {} in huge pages", pages.huge_bytes);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Output;

    fn url(address: Option<&str>, port: Option<u16>) -> Result<String, Problem> {
        base_url(&VerifyArgs {
            address: address.map(str::to_owned),
            port,
            api_key: None,
            output: Output::default(),
        })
    }

    #[test]
    fn every_way_to_write_an_address_is_taken() {
        for (given, port, expected) in [
            (None, None, "http://127.0.0.1:8080"),
            (None, Some(9000), "http://127.0.0.1:9000"),
            (Some("9000"), None, "http://127.0.0.1:9000"),
            (Some(":9000"), None, "http://127.0.0.1:9000"),
            (Some("127.0.0.1:9000"), None, "http://127.0.0.1:9000"),
            (Some("box"), None, "http://box:8080"),
            (Some("box"), Some(9000), "http://box:9000"),
            (Some("http://box/"), None, "http://box:8080"),
            (Some("http://box:1/"), None, "http://box:1"),
            (Some("https://box"), None, "https://box"),
            (Some("https://box/behind/"), None, "https://box/behind"),
            (Some("[::1]:9000"), None, "http://[::1]:9000"),
            (Some("::1"), None, "http://[::1]:8080"),
            (Some("[::1]"), Some(1), "http://[::1]:1"),
        ] {
            assert_eq!(url(given, port).unwrap(), expected, "{given:?} {port:?}");
        }
        for given in ["", "ftp://box", "a b", "http://", "http://me@box"] {
            assert_eq!(
                url(Some(given), None).unwrap_err().code,
                Code::BadValue,
                "{given}"
            );
        }
    }

    #[test]
    fn long_values_are_cut() {
        let long = "x".repeat(100);
        assert_eq!(shown(&json!([1, long])).chars().count(), WIDTH);
        assert_eq!(shown(&json!(["0", "1-2"])), "0 1-2");
    }
}
