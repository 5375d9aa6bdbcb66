//! Single values as people type them: `--set` pairs, variables, sizes, times, CPU lists, names of models.

use edge_deploy::base::{Bytes, CpuSet, KeyPath, Millis, env_vars};
use edge_deploy::config::{self, Sources};
use edge_deploy::fetch::ModelRef;

use super::documents::resolved;
use super::said;

/// Most lines of one input; more of them find nothing new.
const MAX_LINES: usize = 16;

/// Each line is one `--set` pair or variable; its value is also read as each of the single types.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut sources = Sources {
        class: Some("x86_cpu".to_owned()),
        ..Sources::default()
    };
    for line in text.lines().take(MAX_LINES) {
        match config::parse_set(line) {
            Err(problem) => said(&problem),
            Ok((key, value)) => {
                single(&value);
                let _ = KeyPath::new(&key).segments().count();
                if key.starts_with(env_vars::KEY_PREFIX) {
                    sources.env.push((key, value));
                } else {
                    sources.set.push((key, value));
                }
            }
        }
        single(line);
    }
    resolved(&sources);
}

fn single(text: &str) {
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
    }
    // Shown with one decimal, the largest numbers of all are rounded to what no number can hold.
    if let Some(bytes) = text.parse::<Bytes>().ok().filter(|bytes| bytes.0 < 1 << 62) {
        assert!(bytes.to_string().parse::<Bytes>().is_ok(), "{text} is {bytes}");
    }
    if let Ok(time) = text.parse::<Millis>() {
        assert!(time.to_string().parse::<Millis>().is_ok(), "{text} is {time}");
    }
    if let Err(problem) = ModelRef::parse(text) {
        said(&problem);
    }
}
