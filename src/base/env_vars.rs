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

/// What the names of all our variables start with.
pub const OWN_PREFIX: &str = "EDGE_DEPLOY_";

/// All variables that set profile keys, and those that look as if they should do something and do nothing, sorted by
/// name.
#[must_use]
pub fn key_overrides() -> Vec<(String, String)> {
    let mut found: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, value)| name.starts_with(KEY_PREFIX) || is_stray(name, value))
        .collect();
    found.sort();
    found
}

/// Whether a variable has a name like ours but is none of them.
fn is_stray(name: &str, value: &str) -> bool {
    let upper = name.to_uppercase();
    let Some(rest) = upper.strip_prefix(OWN_PREFIX) else {
        return false;
    };
    // Settings of the tests, which a developer may have exported.
    let is_known = ALL.iter().any(|var| var.name == name) || rest == "BLESS" || rest.starts_with("TEST_");
    !is_known && !set_by_service_links(rest, value)
}

/// Whether Kubernetes set the variable `EDGE_DEPLOY_<rest>`: it does so in every pod beside a service that is called
/// `edge-deploy`.
fn set_by_service_links(rest: &str, value: &str) -> bool {
    let is_port = rest.strip_prefix("PORT").is_some_and(|rest| {
        let number = rest.strip_prefix('_').and_then(|rest| rest.split('_').next());
        number.map_or(value.contains("://"), |number| number.parse::<u16>().is_ok())
    });
    is_port || rest == "SERVICE_HOST" || rest.starts_with("SERVICE_PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_tool_and_of_kubernetes_are_not_stray() {
        for var in ALL {
            assert!(!is_stray(var.name, "x"), "{}", var.name);
        }
        for (name, value, stray) in [
            ("EDGE_DEPLOY_PORT", "9", true),
            ("EDGE_DEPLOY_STAGES__DECODER__THREADS", "1", true),
            ("edge_deploy__server__port", "9", true),
            ("EDGE_DEPLOY_PORTS", "9", true),
            ("EDGE_DEPLOYMENT", "blue", false),
            ("EDGE_DEPLOY_PORT", "tcp://10.0.0.1:8080", false),
            ("EDGE_DEPLOY_PORT_8080_TCP_ADDR", "10.0.0.1", false),
            ("EDGE_DEPLOY_SERVICE_HOST", "10.0.0.1", false),
            ("EDGE_DEPLOY_SERVICE_PORT_HTTP", "8080", false),
            ("HOME", "/root", false),
        ] {
            assert_eq!(is_stray(name, value), stray, "{name}={value}");
        }
    }
}
