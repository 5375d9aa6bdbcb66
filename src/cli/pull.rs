//! `pull`: a model into the cache.
//!
//! In: a catalogue name or a hub reference. Out: the path of the complete model. Invariant: nothing is planned or
//! loaded.

use serde::Serialize;

use super::args::PullArgs;
use super::{Outcome, print};
use crate::base::{Bytes, Code, ExitCode, Problem};
use crate::fetch::{Cache, ModelRef, catalogue};

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    default: bool,
    file: &'static str,
    bytes: Bytes,
    license: &'static str,
    path: Option<std::path::PathBuf>,
}

pub(super) fn run(args: &PullArgs) -> Outcome {
    let cache = Cache::open()?;
    if args.list {
        return list(&cache, args.output.json);
    }
    let model = ModelRef::parse(&args.model)?;
    if let ModelRef::Path(path) = &model {
        return Err(Problem::new(
            Code::ModelNotFound,
            format!("`{}` is a path; there is nothing to fetch", path.display()),
            "give a name from `edge-deploy pull --list` or `hf:org/name`",
        )
        .into());
    }
    let path = model.ensure(&cache, true, &mut print::Bar::default())?;
    if args.output.json {
        print::json(&serde_json::json!({ "model": model.to_string(), "path": path }))?;
    } else {
        print::text(&path.display().to_string());
    }
    Ok(ExitCode::Ok)
}

fn list(cache: &Cache, json: bool) -> Outcome {
    let listed: Vec<Listed> = catalogue::ALL
        .iter()
        .map(|named| Listed {
            name: named.name,
            default: named.name == catalogue::DEFAULT,
            file: named.file,
            bytes: Bytes(named.bytes),
            license: named.license,
            path: ModelRef::Named(named).present(cache),
        })
        .collect();
    if json {
        print::json(&serde_json::json!({ "cache": cache.root(), "models": listed }))?;
        return Ok(ExitCode::Ok);
    }
    let mut rows = vec![
        ["NAME", "SIZE", "LICENCE", "IN THE CACHE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for model in &listed {
        let name = if model.default {
            format!("{} (default)", model.name)
        } else {
            model.name.to_owned()
        };
        let place = model
            .path
            .as_ref()
            .map_or_else(|| "no".to_owned(), |path| path.display().to_string());
        rows.push(vec![
            name,
            model.bytes.to_string(),
            model.license.to_owned(),
            place,
        ]);
    }
    print::text(&print::table(&rows));
    Ok(ExitCode::Ok)
}
