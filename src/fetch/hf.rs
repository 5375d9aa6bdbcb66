//! Models of the Hugging Face hub: `hf:org/name[:file][@revision]`.
//!
//! In: a reference, `HF_ENDPOINT`, `HF_TOKEN` or the hub's token file. Out: a GGUF file or a folder with
//! `config.json` and safetensors. Invariant: all files of a model come from one commit; the token goes to the
//! endpoint only and is never shown.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::download::{Want, download};
use super::http::{Auth, Http, Patience, status_of};
use super::{Cache, Progress, address, cache, file_problem};
use crate::base::{Bytes, Code, Problem, env_vars};

/// The hub's own address, used unless `HF_ENDPOINT` names another.
const PUBLIC_ENDPOINT: &str = "https://huggingface.co";
/// Largest page of the hub's API that is read, and how many pages of a listing.
const PAGE_LIMIT: u64 = 16 << 20;
const MAX_PAGES: usize = 20;
/// Files of a safetensors model that are fetched besides the weights, where they exist.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "quantize_config.json",
];

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRef {
    /// `org/name`.
    pub repo: String,
    /// One file of it.
    pub file: Option<String>,
    /// Branch, tag or commit.
    pub revision: String,
}

impl HubRef {
    /// Reads `org/name[:file][@revision]`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (rest, revision) = text.rsplit_once('@').unwrap_or((text, "main"));
        let (repo, file) = match rest.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (rest, None),
        };
        let plain = |part: &str| {
            !part.is_empty()
                && part.len() <= 128
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let sound = repo
            .split_once('/')
            .is_some_and(|(org, name)| plain(org) && plain(name))
            && file.is_none_or(safe_path)
            && safe_path(revision);
        if !sound {
            return Err(Problem::new(
                Code::ModelNotFound,
                format!("`hf:{text}` does not name a model of the hub"),
                "write `hf:org/name`, `hf:org/name:file.gguf` or `hf:org/name@revision`",
            ));
        }
        Ok(Self {
            repo: repo.to_owned(),
            file: file.map(str::to_owned),
            revision: revision.to_owned(),
        })
    }

    fn folder(&self, cache: &Cache) -> PathBuf {
        cache.models().join("hf").join(self.repo.replace('/', "--"))
    }

    fn note(&self, cache: &Cache) -> PathBuf {
        let what = format!("{}@{}", self.file.as_deref().unwrap_or(""), self.revision);
        self.folder(cache).join(format!(
            "{}.ref.json",
            address::percent_encoded_path(&what).replace('/', "%2F")
        ))
    }
}

impl std::fmt::Display for HubRef {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "hf:{}", self.repo)?;
        if let Some(file) = &self.file {
            write!(out, ":{file}")?;
        }
        if self.revision != "main" {
            write!(out, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// Whether a path from outside stays inside the folder it is joined to.
fn safe_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 512
        && !path.contains(['\\', '\0', '?', '#', '%'])
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

/// What a reference stood for when it was last fetched: enough to use it again without the network.
#[derive(Debug, serde::Serialize, Deserialize)]
struct Fetched {
    commit: String,
    /// What to load, relative to the commit's folder; empty for the folder itself.
    main: String,
    files: Vec<Expected>,
}

#[derive(Debug, serde::Serialize, Deserialize)]
struct Expected {
    path: String,
    bytes: u64,
    sha256: String,
}

/// The model's path, if the reference was fetched before and every file is still as it was.
#[must_use]
pub fn present(hub: &HubRef, cache: &Cache) -> Option<PathBuf> {
    let fetched: Fetched = serde_json::from_slice(&fs::read(hub.note(cache)).ok()?).ok()?;
    if !safe_path(&fetched.commit) {
        return None;
    }
    let folder = hub.folder(cache).join(&fetched.commit);
    fetched
        .files
        .iter()
        .all(|file| {
            safe_path(&file.path) && cache::verified(&folder.join(&file.path), file.bytes, &file.sha256)
        })
        .then(|| folder.join(&fetched.main))
}

/// The hub as configured: its address and perhaps a token.
#[derive(Debug)]
pub struct Hub {
    http: Http,
    endpoint: String,
    auth: Option<Auth>,
}

impl Hub {
    /// From this process's environment.
    pub fn from_environment() -> Result<Self, Problem> {
        let endpoint = env_vars::get(env_vars::HF_ENDPOINT).unwrap_or_else(|| PUBLIC_ENDPOINT.to_owned());
        let token = env_vars::get(env_vars::HF_TOKEN).or_else(|| {
            let home = env_vars::get(env_vars::HF_HOME)
                .map(PathBuf::from)
                .or_else(|| dirs::home_dir().map(|home| home.join(".cache/huggingface")))?;
            fs::read_to_string(home.join("token")).ok()
        });
        Self::new(&endpoint, token.as_deref(), Patience::default())
    }

    /// A given address and token.
    pub fn new(endpoint: &str, token: Option<&str>, patience: Patience) -> Result<Self, Problem> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Self {
            auth: token
                .map(str::trim)
                .filter(|token| !token.is_empty())
                .map(|token| Auth::bearer(&endpoint, token)),
            http: Http::new(None, patience)?,
            endpoint,
        })
    }
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// One file of a repository.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Path inside the repository.
    pub path: String,
    /// Size.
    #[serde(default)]
    pub size: u64,
    #[serde(rename = "type")]
    kind: String,
    lfs: Option<Lfs>,
}

#[derive(Clone, Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Makes sure the model is in the cache and returns its path. Without `refresh` a model fetched before is used
/// without asking the hub.
pub fn ensure(
    hub: &HubRef,
    cache: &Cache,
    refresh: bool,
    progress: &mut dyn Progress,
) -> Result<PathBuf, Problem> {
    if !refresh && let Some(path) = present(hub, cache) {
        return Ok(path);
    }
    ensure_from(hub, cache, &Hub::from_environment()?, progress)
}

/// Asks `server` for the revision's commit and gets what is not here yet.
pub fn ensure_from(
    hub: &HubRef,
    cache: &Cache,
    server: &Hub,
    progress: &mut dyn Progress,
) -> Result<PathBuf, Problem> {
    let note = hub.note(cache);
    let _lock = cache::lock(&hub.folder(cache).join("repository"), progress)?;
    progress.step(&format!(
        "asking {} for {hub}",
        address::without_credentials(&server.endpoint)
    ));
    let commit = server.commit(hub)?;
    let entries = server.list(hub, &commit)?;
    let (main, wanted) = choose(hub, &entries)?;
    let folder = hub.folder(cache).join(&commit);
    let missing: Vec<&Entry> = wanted
        .iter()
        .filter(|entry| {
            let path = folder.join(&entry.path);
            match &entry.lfs {
                Some(lfs) => !cache::verified(&path, lfs.size, &lfs.oid),
                None => !fs::metadata(&path).is_ok_and(|meta| meta.len() == entry.size),
            }
        })
        .collect();
    let needed = missing
        .iter()
        .fold(0u64, |sum, entry| sum.saturating_add(entry.bytes()));
    cache::make_folder(&folder)?;
    cache::require_space(&folder, needed)?;
    for entry in missing {
        let url = format!(
            "{}/{}/resolve/{commit}/{}",
            server.endpoint,
            hub.repo,
            address::percent_encoded_path(&entry.path)
        );
        let target = folder.join(&entry.path);
        let got = download(
            &server.http,
            &Want {
                url: &url,
                target: &target,
                label: &entry.path,
                bytes: Some(entry.bytes()),
                sha256: entry.lfs.as_ref().map(|lfs| lfs.oid.as_str()),
                auth: server.auth.as_ref(),
            },
            progress,
        )?;
        cache::mark(&target, &got.sha256)?;
    }
    let mut files = Vec::new();
    for entry in &wanted {
        let path = folder.join(&entry.path);
        let sha256 = match &entry.lfs {
            Some(lfs) => lfs.oid.clone(),
            None => cache::sha256_of(&path).map_err(|error| file_problem("read", &path, &error))?,
        };
        files.push(Expected {
            path: entry.path.clone(),
            bytes: entry.bytes(),
            sha256,
        });
    }
    let path = folder.join(&main);
    let fetched = Fetched { commit, main, files };
    let text = serde_json::to_vec_pretty(&fetched)
        .map_err(|error| file_problem("write", &note, &std::io::Error::other(error)))?;
    fs::write(&note, text).map_err(|error| file_problem("write", &note, &error))?;
    Ok(path)
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.lfs.as_ref().map_or(self.size, |lfs| lfs.size)
    }
}

impl Hub {
    fn commit(&self, hub: &HubRef) -> Result<String, Problem> {
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.endpoint,
            hub.repo,
            hub.revision.replace('/', "%2F")
        );
        let (_, _, body) = self
            .http
            .page(&url, "application/json", self.auth.as_ref(), PAGE_LIMIT)
            .map_err(|problem| self.explain(hub, problem))?;
        let revision: Revision =
            serde_json::from_slice(&body).map_err(|error| not_an_answer(&url, &error))?;
        let hex = revision.sha.len() <= 64
            && !revision.sha.is_empty()
            && revision.sha.bytes().all(|b| b.is_ascii_hexdigit());
        if hex {
            Ok(revision.sha)
        } else {
            Err(not_an_answer(&url, &"its commit is not a hash"))
        }
    }

    fn list(&self, hub: &HubRef, commit: &str) -> Result<Vec<Entry>, Problem> {
        let mut url = format!(
            "{}/api/models/{}/tree/{commit}?recursive=true",
            self.endpoint, hub.repo
        );
        let mut entries = Vec::new();
        for _ in 0..MAX_PAGES {
            let (headers, base, body) = self
                .http
                .page(&url, "application/json", self.auth.as_ref(), PAGE_LIMIT)
                .map_err(|problem| self.explain(hub, problem))?;
            entries.extend(listed(&body).map_err(|error| not_an_answer(&url, &error))?);
            let next = headers
                .get("link")
                .and_then(|value| value.to_str().ok())
                .and_then(next_link)
                .and_then(|link| address::join(&base, &link));
            match next {
                Some(next) => url = next,
                None => return Ok(entries),
            }
        }
        Err(super::http::failed(
            format!("{hub} has more files than {MAX_PAGES} pages of the hub's listing hold"),
            "",
        ))
    }

    /// Says what a status means for a model of the hub.
    fn explain(&self, hub: &HubRef, problem: Problem) -> Problem {
        let remedy = match status_of(&problem) {
            Some(404) => "check the spelling of the model and its revision",
            Some(401 | 403) if self.auth.is_some() => {
                "accept the model's terms on its page with the account of this token, or use another token"
            }
            Some(401 | 403) => {
                "the hub does not show this model without a token: check the spelling, or set HF_TOKEN"
            }
            _ => return problem,
        };
        Problem {
            code: Code::ModelNotFound,
            what: format!("{hub}: {}", problem.what),
            remedy: remedy.to_owned(),
            ..problem
        }
    }
}

fn not_an_answer(url: &str, error: &dyn std::fmt::Display) -> Problem {
    super::http::failed(
        format!(
            "{} does not answer as the hub does: {error}",
            address::without_credentials(url)
        ),
        "HF_ENDPOINT may point at something else",
    )
}

/// The address with `rel="next"` of a `Link` header.
fn next_link(header: &str) -> Option<String> {
    header.split(',').find_map(|link| {
        let (address, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
        rest.contains("rel=\"next\"").then(|| address.to_owned())
    })
}

/// The files on one page of the hub's listing; whatever would lie outside the model's folder is left out.
pub fn listed(page: &[u8]) -> Result<Vec<Entry>, serde_json::Error> {
    let page: Vec<Entry> = serde_json::from_slice(page)?;
    Ok(page
        .into_iter()
        .filter(|entry| entry.kind == "file" && safe_path(&entry.path))
        .collect())
}

/// What to load (relative path, empty for the folder) and the files to get.
pub fn choose(hub: &HubRef, entries: &[Entry]) -> Result<(String, Vec<Entry>), Problem> {
    let of = |wanted: &dyn Fn(&str) -> bool| matching(entries, wanted);
    if let Some(file) = &hub.file {
        let found = of(&|path| path == file);
        if found.is_empty() {
            return Err(ambiguous(hub, entries, &format!("has no file `{file}`")));
        }
        return Ok(match split_set(file) {
            Some((stem, total)) => (file.clone(), of(&|path| split_set(path) == Some((stem, total)))),
            None if is_safetensors(file) => (String::new(), safetensors_set(entries)),
            None => (file.clone(), found),
        });
    }
    let ggufs = of(&|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        has_extension(path, "gguf") && !name.starts_with("mmproj")
    });
    let sets: std::collections::BTreeSet<&str> = ggufs
        .iter()
        .map(|entry| split_set(&entry.path).map_or(entry.path.as_str(), |(stem, _)| stem))
        .collect();
    let tensors = of(&|path| is_safetensors(path) && !path.contains('/'));
    let has_config = entries.iter().any(|entry| entry.path == "config.json");
    match (sets.len(), !tensors.is_empty() && has_config) {
        (0, true) => Ok((String::new(), safetensors_set(entries))),
        (1, false) => Ok((ggufs[0].path.clone(), ggufs)),
        (0, false) => Err(ambiguous(
            hub,
            entries,
            "holds neither a GGUF file nor safetensors with a config.json",
        )),
        _ => Err(ambiguous(hub, entries, "holds more than one model")),
    }
}

fn matching(entries: &[Entry], wanted: impl Fn(&str) -> bool) -> Vec<Entry> {
    entries
        .iter()
        .filter(|entry| wanted(&entry.path))
        .cloned()
        .collect()
}

/// The files of a safetensors model.
fn safetensors_set(entries: &[Entry]) -> Vec<Entry> {
    matching(entries, |path| {
        COMPANIONS.contains(&path)
            || (!path.contains('/') && (is_safetensors(path) || path.ends_with(".safetensors.index.json")))
    })
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn is_safetensors(path: &str) -> bool {
    has_extension(path, "safetensors")
}

/// `dir/name-00001-of-00003.gguf` as (`dir/name`, `00003`).
fn split_set(path: &str) -> Option<(&str, &str)> {
    let stem = path.strip_suffix(".gguf")?;
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (number(total) && number(part)).then_some((name, total))
}

/// The refusal that lists what there is.
fn ambiguous(hub: &HubRef, entries: &[Entry], why: &str) -> Problem {
    const SHOWN: usize = 30;
    let models: Vec<&Entry> = entries
        .iter()
        .filter(|entry| has_extension(&entry.path, "gguf") || is_safetensors(&entry.path))
        .collect();
    let mut list: Vec<String> = models
        .iter()
        .take(SHOWN)
        .map(|entry| format!("{} ({})", entry.path, Bytes(entry.bytes())))
        .collect();
    if models.len() > SHOWN {
        list.push(format!("and {} more", models.len() - SHOWN));
    }
    let remedy = match models.first() {
        Some(first) => format!(
            "name one: `hf:{}:{}`; there are: {}",
            hub.repo,
            first.path,
            list.join(", ")
        ),
        None => {
            "choose a repository with a `.gguf` file, or with `config.json` and `.safetensors`".to_owned()
        }
    };
    Problem::new(Code::ModelNotFound, format!("{hub} {why}"), remedy).with(serde_json::json!({
        "files": models.iter().map(|entry| serde_json::json!({"path": entry.path, "bytes": entry.bytes()})).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry> {
        names
            .iter()
            .map(|name| Entry {
                path: (*name).to_owned(),
                size: 1,
                kind: "file".to_owned(),
                lfs: None,
            })
            .collect()
    }

    fn chosen(reference: &str, names: &[&str]) -> Result<(String, Vec<String>), Problem> {
        choose(&HubRef::parse(reference).unwrap(), &entries(names))
            .map(|(main, files)| (main, files.into_iter().map(|file| file.path).collect()))
    }

    #[test]
    fn references_are_read_and_shown() {
        let hub = HubRef::parse("org/name:dir/f.gguf@v1/x").unwrap();
        assert_eq!(
            (hub.repo.as_str(), hub.file.as_deref(), hub.revision.as_str()),
            ("org/name", Some("dir/f.gguf"), "v1/x")
        );
        assert_eq!(hub.to_string(), "hf:org/name:dir/f.gguf@v1/x");
        for bad in [
            "", "name", "a/b/c", "a/../b", "a/b:../x", "a/b:/x", "a/b@", "a/b@..", "/b", "a/.b", "a/b:x\\y",
        ] {
            assert!(HubRef::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_right_files_are_chosen_or_all_are_listed() {
        assert_eq!(
            chosen("o/n", &["README.md", "m.gguf", "mmproj-m.gguf"]).unwrap(),
            ("m.gguf".into(), vec!["m.gguf".into()])
        );
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(chosen("o/n", &split).unwrap().1.len(), 2);
        assert_eq!(chosen("o/n:m-00002-of-00002.gguf", &split).unwrap().1.len(), 2);
        let folder = [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "x.bin",
            "onnx/a.safetensors",
        ];
        assert_eq!(
            chosen("o/n", &folder).unwrap(),
            (
                String::new(),
                vec![
                    "config.json".into(),
                    "model.safetensors".into(),
                    "tokenizer.json".into()
                ]
            )
        );
        let many = chosen("o/n", &["a.gguf", "b.gguf"]).unwrap_err();
        assert!(
            many.remedy.contains("hf:o/n:a.gguf") && many.remedy.contains("b.gguf"),
            "{many}"
        );
        assert!(chosen("o/n", &["README.md"]).is_err());
        assert!(chosen("o/n:c.gguf", &["a.gguf"]).is_err());
        assert_eq!(chosen("o/n:a.gguf", &["a.gguf", "b.gguf"]).unwrap().0, "a.gguf");
    }

    #[test]
    fn next_links_are_found() {
        assert_eq!(
            next_link("<https://h/a>; rel=\"prev\", <https://h/b?c=1>; rel=\"next\"").as_deref(),
            Some("https://h/b?c=1")
        );
        assert_eq!(next_link("nonsense"), None);
    }
}
