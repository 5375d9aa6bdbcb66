//! Unknown and misplaced keys: all at once, each with what was probably meant.
//!
//! In: the key, where it stands, the keys known there. Out: `Problem`s.
//! Invariant: an unknown key is never dropped without a word; what it would have set stays as it was.

use super::shape::Shape;
use super::spans::Spot;
use crate::base::{Code, KeyPath, Problem, Severity, env_vars};

/// The known name closest to `given`, if one is close: at most a third of its letters differ.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Longer texts are not slips of the finger, and the distance costs length × length.
    if given.len() > 64 {
        return None;
    }
    let given = given.to_lowercase().replace('-', "_");
    known
        .into_iter()
        .map(|name| (distance(&given, name), name))
        .filter(|(distance, name)| *distance <= (name.len().max(given.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edits from one text to the other: insert, delete, replace, or swap two neighbours.
fn distance(from: &str, to: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// A key that its map does not have.
#[must_use]
pub fn unknown(path: &KeyPath, spot: &Spot, here: &Shape, root: &Shape, severity: Severity) -> Problem {
    let name = path.segments().last().unwrap_or("");
    let known: Vec<&str> = match here {
        Shape::Map(fields) => fields.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let (label, remedy) = if let Some(meant) = nearest(name, known.iter().copied()) {
        let full = sibling(path, meant);
        (
            format!("did you mean `{meant}`?"),
            format!("did you mean `{full}`?"),
        )
    } else if let Some(elsewhere) = elsewhere(name, root) {
        (
            format!("`{name}` is a key of another map"),
            format!("did you mean `{elsewhere}`?"),
        )
    } else if known.is_empty() {
        ("takes no keys".to_owned(), "remove it".to_owned())
    } else {
        (
            "unknown key".to_owned(),
            format!("remove it; known here: `{}`", known.join("`, `")),
        )
    };
    let place = if spot.source.has_lines {
        spot.shown(&label, &[])
    } else {
        spot.place()
    };
    let mut problem = Problem::new(Code::UnknownKey, format!("unknown key `{path}`"), remedy)
        .why("it has no effect: no key of that name exists")
        .at(place);
    problem.severity = severity;
    problem
}

/// A known key in a kind of file where it does not belong.
#[must_use]
pub fn misplaced(path: &KeyPath, spot: &Spot, file_kind: &str, belongs: &str, severity: Severity) -> Problem {
    let mut problem = Problem::new(
        Code::MisplacedKey,
        format!("`{path}` does not belong into a {file_kind}"),
        format!("move it to {belongs}"),
    )
    .why("it has no effect here, so that profiles and machine classes cannot contradict each other")
    .at(spot.shown("misplaced key", &[]));
    problem.severity = severity;
    problem
}

/// A variable with a name like ours that sets nothing. A warning: other programs name variables too.
#[must_use]
pub fn stray_variable(name: &str, root: &Shape) -> Problem {
    let remedy = variable_meant(name, root).map_or_else(
        || {
            format!(
                "unset it; keys of a profile are set by `{}<KEY>`",
                env_vars::KEY_PREFIX
            )
        },
        |meant| format!("did you mean `{meant}`?"),
    );
    Problem::warning(
        Code::UnknownKey,
        format!("the variable `{name}` has no effect"),
        remedy,
    )
    .why(format!(
        "variables that set a key start with `{}`, its parts joined by two underscores",
        env_vars::KEY_PREFIX
    ))
}

/// The variable that `name` was probably meant to be: by its letters alone, as the last part of a key, by spelling.
fn variable_meant(name: &str, root: &Shape) -> Option<String> {
    let letters = |text: &str| text.replace(['_', '.'], "").to_lowercase();
    let own = |name: &str| name.get(env_vars::OWN_PREFIX.len()..).unwrap_or("").to_owned();
    let given = own(name).to_lowercase();
    let as_variable = |key: &str| {
        format!(
            "{}{}",
            env_vars::KEY_PREFIX,
            key.replace('.', "__").to_uppercase()
        )
    };
    let mut keys = Vec::new();
    leaves(root, "", &mut keys);
    // What is written -> the variable's full name.
    let known: Vec<(String, String)> = env_vars::ALL
        .iter()
        .filter(|var| var.name.starts_with(env_vars::OWN_PREFIX))
        .map(|var| (own(var.name), var.name.to_owned()))
        .chain(keys.iter().map(|key| (key.clone(), as_variable(key))))
        .collect();
    known
        .iter()
        .find(|(written, _)| letters(written) == letters(&given))
        .map(|(_, variable)| variable.clone())
        .or_else(|| elsewhere(&given, root).map(|key| as_variable(&key)))
        .or_else(|| {
            let spelled: Vec<String> = known.iter().map(|(written, _)| letters(written)).collect();
            let meant = nearest(&letters(&given), spelled.iter().map(String::as_str))?;
            let at = spelled.iter().position(|written| written == meant)?;
            Some(known[at].1.clone())
        })
}

/// The keys of all values below a shape.
fn leaves(shape: &Shape, path: &str, out: &mut Vec<String>) {
    let Shape::Map(fields) = shape else {
        out.push(path.to_owned());
        return;
    };
    for (key, field) in fields {
        let below = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        leaves(&field.shape, &below, out);
    }
}

fn sibling(path: &KeyPath, name: &str) -> String {
    match path.as_str().rsplit_once('.') {
        Some((parent, _)) => format!("{parent}.{name}"),
        None => name.to_owned(),
    }
}

/// A key of exactly that name in another map.
fn elsewhere(name: &str, root: &Shape) -> Option<String> {
    let Shape::Map(sections) = root else { return None };
    for (section, field) in sections {
        let Shape::Map(fields) = &field.shape else {
            continue;
        };
        if section == "stages" {
            let stage = fields.get("decoder")?;
            if stage.shape.at([name]).is_some() {
                return Some(format!("stages.decoder.{name}"));
            }
        } else if fields.contains_key(name) {
            return Some(format!("{section}.{name}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_what_was_meant_and_strangers_find_nothing() {
        let known = ["threads", "dtype", "kv_bytes", "code2wav", "max_seqs"];
        for (given, meant) in [
            ("thread", "threads"),
            ("treads", "threads"),
            ("Threads", "threads"),
            ("dtpye", "dtype"),
            ("kv-bytes", "kv_bytes"),
            ("code2wave", "code2wav"),
            ("maxseqs", "max_seqs"),
        ] {
            assert_eq!(nearest(given, known), Some(meant), "{given}");
        }
        for given in ["", "x", "gpu", "completely_else", &"t".repeat(100_000)] {
            assert_eq!(nearest(given, known), None, "{given:.20}");
        }
    }

    #[test]
    fn a_stray_variable_names_the_one_that_was_meant() {
        let root = Shape::of_profile();
        for (given, meant) in [
            (
                "EDGE_DEPLOY_STAGES__DECODER__THREADS",
                "EDGE_DEPLOY__STAGES__DECODER__THREADS",
            ),
            (
                "EDGE_DEPLOY_STAGES_DECODER_THREADS",
                "EDGE_DEPLOY__STAGES__DECODER__THREADS",
            ),
            ("EDGE_DEPLOY_PORT", "EDGE_DEPLOY__SERVER__PORT"),
            ("EDGE_DEPLOY_SERVER_PROT", "EDGE_DEPLOY__SERVER__PORT"),
            ("edge_deploy__server__port", "EDGE_DEPLOY__SERVER__PORT"),
            ("EDGE_DEPLOY_CACHEDIR", "EDGE_DEPLOY_CACHE_DIR"),
            ("EDGE_DEPLOY_CONFIG_DIRS", "EDGE_DEPLOY_CONFIG_DIR"),
        ] {
            let problem = stray_variable(given, &root);
            assert_eq!(problem.severity, Severity::Warning);
            assert_eq!(problem.remedy, format!("did you mean `{meant}`?"), "{given}");
        }
        let nothing_like_it = stray_variable("EDGE_DEPLOY_ZZZZZZ", &root);
        assert!(nothing_like_it.remedy.contains("unset it"), "{nothing_like_it}");
    }

    #[test]
    fn a_key_of_another_map_is_pointed_at() {
        let root = Shape::of_profile();
        assert_eq!(
            elsewhere("threads", &root).as_deref(),
            Some("stages.decoder.threads")
        );
        assert_eq!(elsewhere("port", &root).as_deref(), Some("server.port"));
        assert_eq!(elsewhere("nothing_like_it", &root), None);
    }
}
