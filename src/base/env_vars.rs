//! Every environment variable that edge-deploy reads, one documented constant each.
//!
//! In: the process environment, read here and nowhere else. Out: values as text.
//! Invariant: `std::env::var` appears only in this file (the architecture test checks it).

use super::{Code, Place, Problem};

/// One variable: its name and the line the reference page shows.
#[derive(Clone, Copy, Debug)]
pub struct EnvVar {
    /// The name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
}

macro_rules! env_vars {
    ($($(#[doc = $doc:literal])+ $konst:ident = $name:literal;)+) => {
        $($(#[doc = $doc])+ pub const $konst: EnvVar = EnvVar { name: $name, about: concat!($($doc),+) };)+
        /// All of them, for the reference page.
        pub const ALL: &[EnvVar] = &[$($konst,)+];
    };
}

env_vars! {
    /// Log filter for stderr, such as `info` or `edge_deploy=debug` (default `warn`).
    LOG = "EDGE_DEPLOY_LOG";
    /// Folder searched first for `profiles/` and `hardware/`.
    CONFIG_DIR = "EDGE_DEPLOY_CONFIG_DIR";
    /// Folder for downloaded models and caches instead of the user's cache folder.
    CACHE_DIR = "EDGE_DEPLOY_CACHE_DIR";
    /// Where tests find the shared fixtures and golden data.
    SHARED = "EDGE_DEPLOY_SHARED";
    /// API key that clients must send, as `--api-key`.
    API_KEY = "EDGE_DEPLOY_API_KEY";
    /// Hugging Face endpoint instead of the public one.
    HF_ENDPOINT = "HF_ENDPOINT";
    /// Hugging Face token.
    HF_TOKEN = "HF_TOKEN";
    /// Hugging Face's own folder, where its token file lies.
    HF_HOME = "HF_HOME";
    /// Package index that pip uses; the default models come from there.
    PIP_INDEX_URL = "PIP_INDEX_URL";
    /// pip's configuration file, read for its index.
    PIP_CONFIG_FILE = "PIP_CONFIG_FILE";
    /// Certificate bundle that pip uses.
    PIP_CERT = "PIP_CERT";
    /// Certificate bundle for HTTPS.
    SSL_CERT_FILE = "SSL_CERT_FILE";
    /// hwloc's plugin folder; hwloc is asked only where it is `/dev/null`, which the program sets for itself.
    HWLOC_PLUGINS_PATH = "HWLOC_PLUGINS_PATH";
}

/// The prefix of variables that set profile keys: `EDGE_DEPLOY__STAGES__DECODER__THREADS=4`.
pub const KEY_PREFIX: &str = "EDGE_DEPLOY__";

/// The value of `var`, if set, not empty and valid Unicode.
#[must_use]
pub fn get(var: EnvVar) -> Option<String> {
    std::env::var(var.name).ok().filter(|value| !value.is_empty())
}

/// As [`get`], for a value that must not be missed: one that is not Unicode is refused instead of left out.
///
/// # Errors
/// `bad_value`.
pub fn text(var: EnvVar) -> Result<Option<String>, Problem> {
    match std::env::var(var.name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Problem::new(
            Code::BadValue,
            format!("the value of {} is not UTF-8", var.name),
            "set it to plain text, or unset it",
        )
        .at(Place::of(var.name))),
    }
}

/// All variables that set profile keys, sorted by name.
#[must_use]
pub fn key_overrides() -> Vec<(String, String)> {
    let mut found: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with(KEY_PREFIX))
        .collect();
    found.sort();
    found
}
