//! Finding profiles and class files by name, and what `profiles list|show|eject` needs.
//!
//! In: folders in order, the built-in tables, a name or a path. Out: texts with where they came from.
//! Invariant: the first hit wins whole; files of one name are never merged with each other.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::layer::{self, Kin};
use super::spans::Source;
use super::unknown_keys::nearest;
use super::{builtin, yaml};
use crate::base::{Code, Place, Problem, env_vars};

/// Which of the two kinds of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shelf {
    /// `profiles/`: how a model is served.
    Profiles,
    /// `hardware/`: what a class of machine allows.
    Hardware,
}

impl Shelf {
    /// The folder's name.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Profiles => "profiles",
            Self::Hardware => "hardware",
        }
    }

    fn builtin(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Profiles => builtin::PROFILES,
            Self::Hardware => builtin::HARDWARE,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Profiles => "profile",
            Self::Hardware => "hardware class",
        }
    }
}

/// One name that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// `built-in` or the file's path.
    pub origin: String,
    /// Origins of the same name that are not used, nearest first.
    pub shadowed: Vec<String>,
    /// First comment line of the file.
    pub about: String,
}

/// The folders that are searched before the built-in files, first hit wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// Each may hold `profiles/` and `hardware/`.
    pub folders: Vec<PathBuf>,
}

/// The user's own configuration folder, where `eject` writes.
#[must_use]
pub fn user_folder() -> Option<PathBuf> {
    dirs::config_dir().map(|folder| folder.join("edge-deploy"))
}

impl Library {
    /// `--config-dir` → `EDGE_DEPLOY_CONFIG_DIR` → the user's configuration folder → `/etc/edge-deploy`. A folder
    /// that was named has to exist.
    pub fn usual(config_dir: Option<&Path>) -> Result<Self, Problem> {
        let variable = env_vars::get(env_vars::CONFIG_DIR).map(PathBuf::from);
        let by_flag = config_dir.map(|folder| (folder, "--config-dir"));
        let by_variable = variable
            .as_deref()
            .map(|folder| (folder, env_vars::CONFIG_DIR.name));
        for (folder, named_by) in by_flag.into_iter().chain(by_variable) {
            if !folder.is_dir() {
                let what = format!("the configuration folder `{}` is not there", folder.display());
                return Err(
                    Problem::new(Code::FileAccess, what, "create it, or name another one")
                        .at(Place::of(named_by)),
                );
            }
        }
        let folders = [
            config_dir.map(Path::to_path_buf),
            variable,
            user_folder(),
            Some(PathBuf::from("/etc/edge-deploy")),
        ];
        Ok(Self {
            folders: folders.into_iter().flatten().collect(),
        })
    }

    /// The text of a name, or of a path: whatever has a separator or ends in `.yaml` or `.yml` is a file.
    pub fn find(&self, shelf: Shelf, name: &str) -> Result<Arc<Source>, Problem> {
        if is_path(name) {
            return read_file(Path::new(name));
        }
        for file in self.files(shelf, name) {
            if !is_absent(&file) {
                return read_file(&file);
            }
        }
        let text = shelf.builtin().iter().find(|(known, _)| *known == name);
        text.map(|(_, text)| Source::file(builtin_name(shelf, name), *text))
            .ok_or_else(|| self.not_found(shelf, name))
    }

    /// Whether a name can be used.
    #[must_use]
    pub fn has(&self, shelf: Shelf, name: &str) -> bool {
        !is_path(name)
            && (self.files(shelf, name).any(|file| !is_absent(&file))
                || shelf.builtin().iter().any(|(known, _)| *known == name))
    }

    /// Every name that can be used, sorted, with what it stands above.
    pub fn list(&self, shelf: Shelf) -> Result<Vec<Entry>, Problem> {
        let mut origins: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for folder in &self.folders {
            let folder = folder.join(shelf.folder());
            if is_absent(&folder) {
                continue;
            }
            let files = fs::read_dir(&folder).and_then(|files| files.map(|file| Ok(file?.path())).collect());
            let mut paths: Vec<PathBuf> = files.map_err(|error: std::io::Error| {
                let what = format!("`{}` cannot be listed: {error}", folder.display());
                Problem::new(Code::FileAccess, what, "check the folder's permissions")
            })?;
            paths.sort();
            for path in paths
                .iter()
                .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
            {
                if let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) {
                    let origin = path.display().to_string();
                    origins.entry(name.to_owned()).or_default().push(origin);
                }
            }
        }
        for (name, _) in shelf.builtin() {
            origins
                .entry((*name).to_owned())
                .or_default()
                .push("built-in".into());
        }
        let entries = origins
            .into_iter()
            .map(|(name, mut all)| {
                let shadowed = all.split_off(1);
                let about = self.find(shelf, &name).map_or_else(
                    |problem| format!("cannot be read: {}", problem.what),
                    |source| first_comment(&source.text),
                );
                Entry {
                    name,
                    origin: all.swap_remove(0),
                    shadowed,
                    about,
                }
            })
            .collect();
        Ok(entries)
    }

    /// Copies the built-in file of a name into `folder`, and says where it lies. Keeps a file that is there unless
    /// `force`.
    pub fn eject(shelf: Shelf, name: &str, folder: &Path, force: bool) -> Result<PathBuf, Problem> {
        let library = Self::default();
        let source = library.find(shelf, name)?;
        if is_path(name) {
            return Err(library.not_found(shelf, name));
        }
        let folder = folder.join(shelf.folder());
        let path = folder.join(format!("{name}.yaml"));
        let failed = |error: std::io::Error| {
            Problem::new(
                Code::FileAccess,
                format!("`{}` cannot be written: {error}", path.display()),
                "check the folder's permissions, or set EDGE_DEPLOY_CONFIG_DIR to another one",
            )
        };
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut options = fs::OpenOptions::new();
        options.write(true).truncate(force);
        if force {
            options.create(true);
        } else {
            options.create_new(true);
        }
        let mut file = match options.open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Problem::new(
                    Code::FileAccess,
                    format!("`{}` is there already", path.display()),
                    "add --force to replace it",
                ));
            }
            other => other.map_err(failed)?,
        };
        std::io::Write::write_all(&mut file, source.text.as_bytes()).map_err(failed)?;
        Ok(path)
    }

    fn files(&self, shelf: Shelf, name: &str) -> impl Iterator<Item = PathBuf> {
        let file = format!("{name}.yaml");
        self.folders
            .iter()
            .map(move |folder| folder.join(shelf.folder()).join(&file))
    }

    fn not_found(&self, shelf: Shelf, name: &str) -> Problem {
        let known: Vec<String> = match self.list(shelf) {
            Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
            Err(problem) => return problem,
        };
        let list = known.join("`, `");
        let remedy = match nearest(name, known.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`? Known: `{list}`"),
            None => format!("use one of `{list}`, or the path of a file"),
        };
        let searched: Vec<String> = self
            .folders
            .iter()
            .map(|folder| folder.join(shelf.folder()).display().to_string())
            .collect();
        Problem::new(
            Code::ProfileNotFound,
            format!("there is no {} `{name}`", shelf.noun()),
            remedy,
        )
        .with(serde_json::json!({"searched": searched, "known": known}))
    }
}

/// Whether nothing lies there. A file that cannot be seen for another reason is not absent: reading it says why.
fn is_absent(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    fs::symlink_metadata(path).is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

/// Whether a name means a file.
#[must_use]
pub fn is_path(name: &str) -> bool {
    let ends = |end: &str| {
        Path::new(name)
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case(end))
    };
    name.contains(['/', '\\']) || ends("yaml") || ends("yml")
}

/// What a name after `--profile` stands for: a profile, which takes the place of the family's own, if it is a name or
/// a file that extends one; else a file of the user's own, which lies above and may set `policy:` too. The one rule
/// for planning and checking.
pub fn kin(name: &str) -> Result<Kin, Problem> {
    let extends = |name: &str| read_file(Path::new(name)).map(|source| layer::parent(&source).is_some());
    Ok(if !is_path(name) || extends(name)? {
        Kin::Profile
    } else {
        Kin::User
    })
}

fn builtin_name(shelf: Shelf, name: &str) -> String {
    format!("built-in:{}/{name}.yaml", shelf.folder())
}

fn first_comment(text: &str) -> String {
    text.lines()
        .next()
        .and_then(|line| line.strip_prefix('#'))
        .unwrap_or("")
        .trim()
        .to_owned()
}

/// Reads a file, never more than a profile may have, and only regular files.
pub fn read_file(path: &Path) -> Result<Arc<Source>, Problem> {
    let name = path.display().to_string();
    let failed = |error: &std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound {
            Code::ProfileNotFound
        } else {
            Code::FileAccess
        };
        Problem::new(
            code,
            format!("`{name}` cannot be read: {error}"),
            "check the path and its permissions",
        )
        .at(Place::of(&name))
    };
    let metadata = fs::metadata(path).map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(Problem::new(
            Code::FileAccess,
            format!("`{name}` is not a file"),
            "give the path of a YAML file",
        )
        .at(Place::of(&name)));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(yaml::MAX_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(&error))?;
    yaml::source(&name, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        for path in ["./qwen3", "a/b", "my.yaml", "my.YML", "..\\x"] {
            assert!(is_path(path), "{path}");
        }
        for name in ["qwen3", "spark2_5", "x.y"] {
            assert!(!is_path(name), "{name}");
        }
    }

    #[test]
    fn the_first_folder_wins_whole_and_the_rest_is_listed_as_shadowed() {
        let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (folder, text) in [(&near, "# near\n"), (&far, "# far\n")] {
            fs::create_dir(folder.path().join("profiles")).unwrap();
            fs::write(folder.path().join("profiles/qwen3.yaml"), text).unwrap();
        }
        fs::write(far.path().join("profiles/own.yaml"), "# mine\n").unwrap();
        let library = Library {
            folders: vec![near.path().into(), far.path().into(), "/does/not/exist".into()],
        };
        assert_eq!(library.find(Shelf::Profiles, "qwen3").unwrap().text, "# near\n");
        assert!(library.has(Shelf::Profiles, "own") && library.has(Shelf::Profiles, "llama"));
        let list = library.list(Shelf::Profiles).unwrap();
        let qwen3 = list.iter().find(|entry| entry.name == "qwen3").unwrap();
        assert_eq!(qwen3.about, "near");
        assert_eq!(qwen3.shadowed.len(), 2);
        assert_eq!(qwen3.shadowed[1], "built-in");
        let own = list.iter().find(|entry| entry.name == "own").unwrap();
        assert!(own.shadowed.is_empty() && own.origin.ends_with("own.yaml"));
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let problem = Library::default().find(Shelf::Profiles, "qwen").unwrap_err();
        assert_eq!(problem.code, Code::ProfileNotFound);
        assert!(problem.remedy.contains("`qwen3`"), "{problem}");
        let problem = Library::default()
            .find(Shelf::Hardware, "./no/such.yaml")
            .unwrap_err();
        assert!(problem.what.contains("./no/such.yaml"), "{problem}");
        assert!(
            read_file(Path::new("/dev/zero"))
                .unwrap_err()
                .what
                .contains("not a file")
        );
    }

    #[test]
    fn ejecting_keeps_what_is_there_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = Library::eject(Shelf::Profiles, "llama", folder.path(), false).unwrap();
        assert!(path.ends_with("profiles/llama.yaml"));
        fs::write(&path, "mine, and longer than nothing").unwrap();
        let refused = Library::eject(Shelf::Profiles, "llama", folder.path(), false).unwrap_err();
        assert!(refused.remedy.contains("--force"));
        assert!(fs::read_to_string(&path).unwrap().starts_with("mine"));
        Library::eject(Shelf::Profiles, "llama", folder.path(), true).unwrap();
        let built_in = Library::default().find(Shelf::Profiles, "llama").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), built_in.text);
        assert!(Library::eject(Shelf::Profiles, "nothing", folder.path(), true).is_err());
    }
}
