//! Web addresses: joining a reference to its page, comparing origins, hiding credentials.
//!
//! In: absolute `http(s)` addresses and references found in pages or redirects. Out: absolute addresses.
//! Invariant: text for people never holds a user name, password, query or fragment.

/// `https://user:pw@host:1/a/b?q#f` in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// `http` or `https`, as written.
    pub scheme: &'a str,
    /// `user:password`, if given.
    pub credentials: Option<&'a str>,
    /// Host and port.
    pub host: &'a str,
    /// From the first `/`, with query and fragment.
    pub rest: &'a str,
}

/// Takes an absolute address apart.
#[must_use]
pub fn parts(url: &str) -> Option<Parts<'_>> {
    let (scheme, after) = url.split_once("://")?;
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return None;
    }
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (authority, rest) = after.split_at(end);
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    (!host.is_empty()).then_some(Parts {
        scheme,
        credentials,
        host,
        rest,
    })
}

/// `base` with `reference` applied, as a browser would: absolute, `//host/…`, `/path`, `?query` or relative.
#[must_use]
pub fn join(base: &str, reference: &str) -> Option<String> {
    let reference = reference.trim();
    if reference.contains("://") {
        return parts(reference).map(|_| reference.to_owned());
    }
    let base = parts(base)?;
    let origin = match base.credentials {
        Some(credentials) => format!("{}://{credentials}@{}", base.scheme, base.host),
        None => format!("{}://{}", base.scheme, base.host),
    };
    if let Some(rest) = reference.strip_prefix("//") {
        let whole = format!("{}://{rest}", base.scheme);
        return parts(&whole).map(|_| whole.clone());
    }
    let path_end = base.rest.find(['?', '#']).unwrap_or(base.rest.len());
    let path = &base.rest[..path_end];
    if reference.is_empty() || reference.starts_with('?') || reference.starts_with('#') {
        return Some(format!("{origin}{path}{reference}"));
    }
    let (target, tail) = reference.split_at(reference.find(['?', '#']).unwrap_or(reference.len()));
    let folder = if target.starts_with('/') {
        ""
    } else {
        &path[..path.rfind('/').map_or(0, |at| at)]
    };
    let mut segments: Vec<&str> = Vec::new();
    for segment in folder.split('/').chain(target.split('/')) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let slash = if target.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    Some(format!("{origin}/{}{slash}{tail}", segments.join("/")))
}

/// Whether credentials for `one` may be sent to `other`: same scheme, host and port.
#[must_use]
pub fn same_origin(one: &str, other: &str) -> bool {
    match (parts(one), parts(other)) {
        (Some(a), Some(b)) => a.scheme.eq_ignore_ascii_case(b.scheme) && a.host.eq_ignore_ascii_case(b.host),
        _ => false,
    }
}

/// Whether the address names this machine itself.
#[must_use]
pub fn is_loopback(url: &str) -> bool {
    let Some(parts) = parts(url) else {
        return false;
    };
    let host = match parts.host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => parts.host.split(':').next().unwrap_or(parts.host),
    };
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The address as it may be shown: no credentials, no query (signed links), no fragment.
#[must_use]
pub fn without_credentials(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = &url[..end];
    match url.split_once("://") {
        Some((scheme, after)) => {
            let slash = after.find('/').unwrap_or(after.len());
            let (authority, rest) = after.split_at(slash);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{rest}")
        }
        None => url.to_owned(),
    }
}

/// `%41` as `A`; malformed escapes stay as they are.
#[must_use]
pub fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            // A sign would be taken for a digit.
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(escape.unwrap_or(bytes[at]));
        at += if escape.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Path segments escaped for an address; `/` stays.
#[must_use]
pub fn percent_encoded_path(path: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(path.len());
    for &byte in path.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_join_as_in_a_browser() {
        for (base, reference, want) in [
            (
                "https://h/simple/x/",
                "../../files/a.whl#sha256=1",
                "https://h/files/a.whl#sha256=1",
            ),
            ("https://h/simple/x/", "a.whl", "https://h/simple/x/a.whl"),
            ("https://h/simple/x", "/p/a.whl", "https://h/p/a.whl"),
            ("https://h:8/simple/x/?q=1", "//o/a.whl", "https://o/a.whl"),
            ("http://u:p@h/s/", "a", "http://u:p@h/s/a"),
            ("http://h", "a/", "http://h/a/"),
            ("http://h/a", "http://o/b?c", "http://o/b?c"),
            ("http://h/a?x", "?y", "http://h/a?y"),
        ] {
            assert_eq!(
                join(base, reference).as_deref(),
                Some(want),
                "{base} + {reference}"
            );
        }
        assert_eq!(join("http://h/", "ftp://o/x"), None);
        assert_eq!(join("nonsense", "x"), None);
    }

    #[test]
    fn this_machine_is_told_apart() {
        for local in ["http://localhost:1/x", "http://127.0.0.2", "http://[::1]:80/"] {
            assert!(is_loopback(local), "{local}");
        }
        for other in [
            "http://localhost.example/",
            "http://10.0.0.1",
            "http://[fe80::1]/",
            "x",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn credentials_stay_at_home_and_out_of_messages() {
        assert!(same_origin("https://u:p@h/x", "https://H/y"));
        assert!(!same_origin("https://h/x", "http://h/x"));
        assert!(!same_origin("https://h/x", "https://h:444/x"));
        assert_eq!(without_credentials("https://u:p@h/x?sig=1#f"), "https://h/x");
        assert_eq!(percent_decoded("a%2Bb%zz%4"), "a+b%zz%4");
        assert_eq!(percent_encoded_path("a b/ü.gguf"), "a%20b/%C3%BC.gguf");
    }
}
