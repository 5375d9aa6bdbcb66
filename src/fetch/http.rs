//! One HTTPS client for all sources: certificates, proxies, time limits, redirects, bounded pages.
//!
//! In: an address, headers, perhaps credentials. Out: a reply to read from, or a failure that says if trying again
//! may help. Invariant: credentials go only to the origin they are for; every wait has an end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::HeaderMap;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::address;
use crate::base::{Code, Place, Problem, env_vars};

/// Redirects followed before giving up; hubs use two or three.
const MAX_REDIRECTS: usize = 10;
/// Largest head of a reply. Hubs send long signed addresses there.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Where Linux distributions keep their certificate bundle.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How long to wait and how often to try.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Tries in a row that bring nothing before giving up.
    pub attempts: u32,
    /// Wait before the second try; doubles each time.
    pub first_wait: Duration,
    /// Longest wait between tries, whatever the server asks for.
    pub longest_wait: Duration,
    /// Limit on connecting.
    pub connect: Duration,
    /// Limit on silence while reading.
    pub stall: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            connect: Duration::from_secs(15),
            stall: Duration::from_secs(30),
        }
    }
}

/// An `Authorization` value and the origin it may be sent to. Never shown.
#[derive(Clone)]
pub struct Auth {
    origin: String,
    value: String,
}

impl Auth {
    /// A bearer token for the origin of `url`.
    #[must_use]
    pub fn bearer(url: &str, token: &str) -> Self {
        Self {
            origin: url.to_owned(),
            value: format!("Bearer {}", token.trim()),
        }
    }
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Auth(hidden)")
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Trying again may help, after this long if the server said so.
    Transient(Problem, Option<Duration>),
    /// Trying again will not help.
    Permanent(Problem),
}

impl Failure {
    /// The problem alone.
    #[must_use]
    pub fn into_problem(self) -> Problem {
        match self {
            Self::Transient(problem, _) | Self::Permanent(problem) => problem,
        }
    }
}

/// A reply whose status is 200 or 206.
pub struct Reply {
    /// 200 or 206.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Where it finally came from.
    pub url: String,
    body: ureq::Body,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Reply({} from {})",
            self.status,
            address::without_credentials(&self.url)
        )
    }
}

impl Reply {
    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The stated length of the body.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.header("content-length")
            .and_then(|text| text.trim().parse().ok())
    }

    /// The body, not bounded: the caller counts.
    pub fn reader(self) -> impl Read {
        self.body.into_with_config().limit(u64::MAX).reader()
    }
}

/// The client.
#[derive(Debug)]
pub struct Http {
    agent: ureq::Agent,
    /// Its limits.
    pub patience: Patience,
}

impl Http {
    /// A client that trusts `bundle` if given, else the bundle the environment names, else the system's.
    pub fn new(bundle: Option<&Path>, patience: Patience) -> Result<Self, Problem> {
        Self::with_proxy(bundle, patience, ureq::Proxy::try_from_env())
    }

    /// A client for one server: through the environment's proxy unless the server is on this machine, which no proxy
    /// can reach.
    pub fn for_server(url: &str, patience: Patience) -> Result<Self, Problem> {
        let local = address::is_loopback(url);
        let proxy = if local { None } else { ureq::Proxy::try_from_env() };
        Self::with_proxy(None, patience, proxy)
    }

    fn with_proxy(
        bundle: Option<&Path>,
        patience: Patience,
        proxy: Option<ureq::Proxy>,
    ) -> Result<Self, Problem> {
        let tls = TlsConfig::builder().root_certs(root_certs(bundle)?).build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .proxy(proxy)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEADER_BYTES)
            .user_agent(concat!("edge-deploy/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.stall))
            .timeout_per_read(Some(patience.stall))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            patience,
        })
    }

    /// Asks once, following redirects. `headers` go to every hop, credentials only to their own origin.
    pub fn get(&self, url: &str, headers: &[(&str, String)], auth: Option<&Auth>) -> Result<Reply, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let shown = address::without_credentials(&url);
            let mut request = self.agent.get(&url);
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            if let Some(auth) = auth.filter(|auth| address::same_origin(&auth.origin, &url)) {
                request = request.header("authorization", &auth.value);
            }
            let response = request.call().map_err(|error| transport(&shown, &error))?;
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            match status {
                200 | 206 => {
                    return Ok(Reply {
                        status,
                        headers: head.headers,
                        url,
                        body,
                    });
                }
                301 | 302 | 303 | 307 | 308 => {
                    let next = head
                        .headers
                        .get("location")
                        .and_then(|value| value.to_str().ok())
                        .and_then(|location| address::join(&url, location))
                        .ok_or_else(|| {
                            Failure::Permanent(failed(format!("{shown} redirects to nowhere usable"), ""))
                        })?;
                    if url.starts_with("https:") && !next.starts_with("https:") {
                        return Err(Failure::Permanent(failed(
                            format!("{shown} redirects to an address without encryption"),
                            "",
                        )));
                    }
                    url = next;
                }
                _ => return Err(refused(status, &shown, &head.headers)),
            }
        }
        Err(Failure::Permanent(failed(
            format!("{} redirects in a circle", address::without_credentials(&url)),
            "",
        )))
    }

    /// A whole page of at most `limit` bytes, trying again where that may help.
    pub fn page(
        &self,
        url: &str,
        accept: &str,
        auth: Option<&Auth>,
        limit: u64,
    ) -> Result<(HeaderMap, String, Vec<u8>), Problem> {
        let headers = [
            ("accept", accept.to_owned()),
            ("accept-encoding", "identity".to_owned()),
        ];
        self.retrying(|| {
            let reply = self.get(url, &headers, auth)?;
            let shown = address::without_credentials(&reply.url);
            let (head, url) = (reply.headers.clone(), reply.url.clone());
            let mut body = Vec::new();
            reply
                .reader()
                .take(limit + 1)
                .read_to_end(&mut body)
                .map_err(|error| {
                    Failure::Transient(failed(format!("{shown} broke off: {error}"), ""), None)
                })?;
            if body.len() as u64 > limit {
                return Err(Failure::Permanent(failed(
                    format!("{shown} sends more than {limit} bytes where a short page is expected"),
                    "",
                )));
            }
            Ok((head, url, body))
        })
    }

    /// Runs `attempt` until it works, fails for good, or has failed [`Patience::attempts`] times.
    pub fn retrying<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Problem> {
        let mut tries = 1;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Failure::Transient(problem, wait)) if tries < self.patience.attempts => {
                    tracing::info!(%problem, tries, "trying again");
                    std::thread::sleep(self.wait_before(tries, wait));
                    tries += 1;
                }
                Err(failure) => return Err(failure.into_problem()),
            }
        }
    }

    /// How long to wait after `tries` failures in a row: doubling, or what the server asked for, within the limit.
    #[must_use]
    pub fn wait_before(&self, tries: u32, asked: Option<Duration>) -> Duration {
        let doubled = self.patience.first_wait * 2u32.saturating_pow(tries.saturating_sub(1).min(16));
        asked.unwrap_or(doubled).min(self.patience.longest_wait)
    }
}

/// The problem of a download that did not work.
pub fn failed(what: String, why: &str) -> Problem {
    Problem::new(
        Code::DownloadFailed,
        what,
        "check the network and the proxy settings and run it again (a download goes on where it stopped), or give a file with `-m FILE`",
    )
    .why(why)
}

/// Failures before any reply came.
fn transport(shown: &str, error: &ureq::Error) -> Failure {
    let problem = match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
            let mut problem = failed(
                format!("{shown}: the secure connection failed: {error}"),
                "without a trusted certificate anyone could answer in the server's place",
            );
            "behind an inspecting proxy set SSL_CERT_FILE (or PIP_CERT) to its certificate bundle; else check the clock and the ca-certificates package"
                .clone_into(&mut problem.remedy);
            return Failure::Permanent(problem);
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
            return Failure::Permanent(failed(format!("{shown}: {error}"), ""));
        }
        ureq::Error::HostNotFound => failed(format!("{shown}: no such host, or no network"), ""),
        other => failed(format!("{shown}: {other}"), ""),
    };
    Failure::Transient(problem, None)
}

/// Failures told by a status.
fn refused(status: u16, shown: &str, headers: &HeaderMap) -> Failure {
    let what = format!("{shown} answers {status}");
    match status {
        408 | 425 | 429 | 500..=599 => {
            let wait = headers
                .get("retry-after")
                .and_then(|value| value.to_str().ok())
                .and_then(|text| text.trim().parse().ok())
                .map(Duration::from_secs);
            Failure::Transient(failed(what, "the server is busy or has a fault"), wait)
        }
        401 | 403 => Failure::Permanent(with_status(
            failed(
                what,
                "it wants credentials, or these may not read it (gated models need their terms accepted first)",
            ),
            status,
        )),
        404 | 410 => Failure::Permanent(with_status(failed(what, "it is not there"), status)),
        _ => Failure::Permanent(with_status(failed(what, ""), status)),
    }
}

fn with_status(problem: Problem, status: u16) -> Problem {
    problem.with(serde_json::json!({ "http_status": status }))
}

/// The HTTP status a problem came from, if one did.
#[must_use]
pub fn status_of(problem: &Problem) -> Option<u64> {
    problem.details.as_ref()?.get("http_status")?.as_u64()
}

fn root_certs(bundle: Option<&Path>) -> Result<RootCerts, Problem> {
    let named = bundle
        .map(|path| ("the pip setting `cert`", path.to_owned()))
        .or_else(|| env_vars::get(env_vars::PIP_CERT).map(|path| ("PIP_CERT", PathBuf::from(path))))
        .or_else(|| {
            env_vars::get(env_vars::SSL_CERT_FILE).map(|path| ("SSL_CERT_FILE", PathBuf::from(path)))
        });
    if let Some((source, path)) = named {
        let certs = read_bundle(&path).map_err(|error| {
            Problem::new(
                Code::FileAccess,
                format!(
                    "the certificate bundle {} cannot be used: {error}",
                    path.display()
                ),
                "point it at a PEM file, or unset it to use the system's certificates",
            )
            .at(Place::of(source))
        })?;
        return Ok(RootCerts::new_with_certs(&certs));
    }
    for path in BUNDLES {
        if let Ok(certs) = read_bundle(Path::new(path)) {
            return Ok(RootCerts::new_with_certs(&certs));
        }
    }
    tracing::debug!("no system certificate bundle; using Mozilla's, built in");
    Ok(RootCerts::WebPki)
}

fn read_bundle(path: &Path) -> std::io::Result<Vec<Certificate<'static>>> {
    let text = std::fs::read(path)?;
    let certs: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(cert)) => Some(cert),
            _ => None,
        })
        .collect();
    if certs.is_empty() {
        return Err(std::io::Error::other("it holds no certificate in PEM form"));
    }
    Ok(certs)
}
