//! What people said: profiles, class files, their own file, variables and flags, merged with every value's origin.
//!
//! In: `Sources`. Out: `Layered`: the `Profile` of pins, the `Policy` of the machine's class, provenance of each key.
//! Invariant: nothing is guessed or dropped: a value is exactly what was written, a key that has no effect is said,
//! and all problems of a load are reported together.

pub mod builtin;
pub mod layer;
pub mod policy;
pub mod provenance;
pub mod reference;
pub mod render;
mod rules;
pub mod scalar;
pub mod schema;
pub mod search;
pub mod shape;
pub mod spans;
pub mod unknown_keys;
pub mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use figment::Figment;
use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

pub use layer::Kin;
use layer::{Layer, Reader};
pub use policy::Policy;
pub use provenance::{Pin, Provenance, Shadowed};
pub use schema::{
    DeadlineProfile, Device, Limits, ModelProfile, Priority, Profile, SamplingProfile, Secret, ServerProfile,
    StageProfile,
};
pub use search::{Entry, Library, Shelf};
use shape::Shape;
use spans::{Source, Spot};

use crate::base::{Code, KeyPath, Place, Problem, Problems, Severity, env_vars};

/// Longest chain of `extends`.
const MAX_EXTENDS: usize = 8;

/// Everything a load reads, lowest layer first.
#[derive(Clone, Default)]
pub struct Sources {
    /// Where names are looked up.
    pub library: Library,
    /// Class of the machine (`x86_cpu`, …), or the path of a class file. `None`: built-in policy alone.
    pub class: Option<String>,
    /// Profiles by name or path; later ones apply above earlier ones.
    pub profiles: Vec<String>,
    /// The user's own file.
    pub user_file: Option<PathBuf>,
    /// Variables that set keys, as `base::env_vars::key_overrides` gives them.
    pub env: Vec<(String, String)>,
    /// `--set key=value` pairs; later ones apply above earlier ones.
    pub set: Vec<(String, String)>,
    /// Flags that stand for a key.
    pub flags: Vec<Flag>,
    /// Report unknown and misplaced keys as warnings.
    pub lenient: bool,
}

/// A flag that stands for a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as typed, such as `--threads`.
    pub flag: String,
    /// The key it sets.
    pub key: String,
    /// The value as typed.
    pub value: String,
}

impl fmt::Debug for Sources {
    /// Names only: values may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        out.debug_struct("Sources")
            .field("library", &self.library)
            .field("class", &self.class)
            .field("profiles", &self.profiles)
            .field("user_file", &self.user_file)
            .field("env", &names(&self.env))
            .field("set", &names(&self.set))
            .field("flags", &self.flags)
            .field("lenient", &self.lenient)
            .finish()
    }
}

impl fmt::Debug for Flag {
    /// Without the value, which may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.flag, self.key)
    }
}

impl Sources {
    /// The same, with one more `--set` pair.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.set.push((key.to_owned(), value.to_owned()));
        self
    }
}

/// What people said, merged.
#[derive(Clone)]
pub struct Layered {
    /// Pins; absent where nobody said anything.
    pub profile: Profile,
    /// Policy of the machine's class, every value present.
    pub policy: Policy,
    /// Names of the profiles that were used, as given. Empty when none was.
    pub profile_names: Vec<String>,
    /// Class that was used.
    pub class: Option<String>,
    /// Where each value came from, also for keys that a layer un-pinned.
    pub provenance: BTreeMap<KeyPath, Provenance>,
    /// What the person should know.
    pub warnings: Vec<Problem>,
    values: Dict,
    spots: BTreeMap<KeyPath, Spot>,
}

impl fmt::Debug for Layered {
    /// Without the raw values, which hold secrets.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Layered")
            .field("profile", &self.profile)
            .field("policy", &self.policy)
            .field("provenance", &self.provenance)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

impl Layered {
    /// The value of a key with where it came from, or `None` where nobody pinned it. An error means that `T` is not
    /// the type the schema gives the key.
    pub fn pin<T: DeserializeOwned>(&self, key: &str) -> Result<Option<Pin<T>>, Problem> {
        let path = KeyPath::new(key);
        let (Some(value), Some(origin)) = (provenance::find(&self.values, &path), self.provenance.get(&path))
        else {
            return Ok(None);
        };
        let value = value.deserialize().map_err(|error| {
            Problem::new(
                Code::Internal,
                format!("the value of `{path}` cannot be used: {error}"),
                "please report this",
            )
            .at(origin.place.clone())
        })?;
        Ok(Some(Pin {
            value,
            layer: origin.layer.clone(),
            place: origin.place.clone(),
        }))
    }

    /// Where a key's value stands, with an excerpt that is marked with `label`; for problems about pins.
    #[must_use]
    pub fn shown(&self, key: &str, label: &str) -> Option<Place> {
        let path = KeyPath::new(key);
        let spot = self.spots.get(&path)?;
        Some(if provenance::is_secret(&path) {
            spot.place()
        } else {
            spot.shown(label, &[])
        })
    }

    /// Everything that is set, as YAML with each value's origin as a comment; secrets are not shown.
    #[must_use]
    pub fn to_annotated_yaml(&self) -> String {
        reference::annotated(&self.provenance)
    }
}

/// Reads and merges every layer. Errors carry all problems found, warnings among them, errors first.
pub fn load(sources: &Sources) -> Result<Layered, Problems> {
    let root = Shape::of_profile();
    let mut loading = Loading {
        sources,
        root: &root,
        layers: Vec::new(),
        problems: Vec::new(),
    };
    loading.file(
        Kin::BuiltIn,
        &Source::file("built-in:policy.yaml", builtin::POLICY),
    );
    if let Some(class) = &sources.class {
        match sources.library.find(Shelf::Hardware, class) {
            Ok(source) => loading.file(Kin::Class, &source),
            Err(problem) => loading.problems.push(problem),
        }
    }
    for name in &sources.profiles {
        loading.profile(name);
    }
    if let Some(path) = &sources.user_file {
        match search::read_file(path) {
            Ok(source) => loading.file(Kin::User, &source),
            Err(problem) => loading.problems.push(problem),
        }
    }
    loading.assignments();
    loading.merge()
}

/// Checks one profile, class file or file of the user's own, by name or path, with nothing above it. Gives its
/// warnings.
pub fn validate(
    library: &Library,
    shelf: Shelf,
    name: &str,
    lenient: bool,
) -> Result<Vec<Problem>, Problems> {
    let mut sources = Sources {
        library: library.clone(),
        lenient,
        ..Sources::default()
    };
    match shelf {
        Shelf::Profiles if search::kin(name)? == Kin::User => sources.user_file = Some(PathBuf::from(name)),
        Shelf::Profiles => sources.profiles.push(name.to_owned()),
        Shelf::Hardware => sources.class = Some(name.to_owned()),
    }
    load(&sources).map(|layered| layered.warnings)
}

/// Splits the argument of `--set`.
pub fn parse_set(argument: &str) -> Result<(String, String), Problem> {
    let pair = argument
        .split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.to_owned()));
    pair.filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        Problem::new(
            Code::BadValue,
            format!("`--set {argument}` is not a key and a value"),
            "write `--set key=value`, such as `--set stages.decoder.threads=4`",
        )
        .at(Place::of("--set"))
    })
}

/// A load under way.
struct Loading<'a> {
    sources: &'a Sources,
    root: &'a Shape,
    layers: Vec<Layer>,
    problems: Vec<Problem>,
}

impl Loading<'_> {
    fn add(&mut self, (mut layer, problems): (Layer, Vec<Problem>)) {
        self.problems.extend(problems);
        layer.index = self.layers.len();
        let built_in = self.layers.first().and_then(|lowest| lowest.values.get("policy"));
        if let (Some(policy), Some(built_in)) = (layer.values.get_mut("policy"), built_in) {
            restore(policy, built_in);
        }
        self.layers.push(layer);
    }

    fn reader(&self, kin: Kin) -> Reader<'_> {
        Reader::new(self.root, kin, self.sources.lenient)
    }

    fn file(&mut self, kin: Kin, source: &Arc<Source>) {
        let read = self.reader(kin).file(source);
        self.add(read);
    }

    /// A profile above its parents.
    fn profile(&mut self, name: &str) {
        let mut chain: Vec<Arc<Source>> = Vec::new();
        let mut next = Some((name.to_owned(), None::<Spot>));
        while let Some((name, named_at)) = next.take() {
            // A parent given as a path is relative to the file that names it.
            let name = match (&named_at, search::is_path(&name)) {
                (Some(spot), true) => std::path::Path::new(&spot.source.name)
                    .parent()
                    .map_or_else(|| name.clone(), |folder| folder.join(&name).display().to_string()),
                _ => name,
            };
            let at = |problem: Problem| match &named_at {
                Some(spot) => problem.at(spot.shown("named here", &[])),
                None => problem,
            };
            let source = match self.sources.library.find(Shelf::Profiles, &name) {
                Ok(source) => source,
                Err(problem) => {
                    self.problems.push(at(problem));
                    break;
                }
            };
            let names: Vec<&str> = chain.iter().map(|source| source.name.as_str()).collect();
            let cycle = chain.contains(&source);
            if cycle || chain.len() >= MAX_EXTENDS {
                let what = if cycle {
                    format!(
                        "profiles extend each other in a circle: {} → {}",
                        names.join(" → "),
                        source.name
                    )
                } else {
                    format!(
                        "more than {MAX_EXTENDS} profiles extend each other: {}",
                        names.join(" → ")
                    )
                };
                let remedy = if chain.last() == Some(&source) {
                    "give this file a name of its own: its name hides what it wants to extend"
                } else {
                    "remove an `extends:` line; copy the few keys that are needed"
                };
                self.problems
                    .push(at(Problem::new(Code::ExtendsCycle, what, remedy)));
                break;
            }
            next = layer::parent(&source).map(|(name, spot)| (name, Some(spot)));
            chain.push(source);
        }
        for source in chain.iter().rev() {
            self.file(Kin::Profile, source);
        }
    }

    fn assignments(&mut self) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, value) in &self.sources.env {
            if name.starts_with(env_vars::KEY_PREFIX)
                && let Some(first) = seen.insert(name.to_lowercase(), name)
            {
                self.problems.push(
                    Problem::new(
                        Code::BadValue,
                        format!("the variables `{first}` and `{name}` set the same key"),
                        "unset one of them",
                    )
                    .at(Place::of(name)),
                );
            }
            let read = self.reader(Kin::Environment).variable(name, value);
            self.add(read);
        }
        for (key, value) in &self.sources.set {
            let source = Source::value(format!("--set {key}"), value.as_str());
            let read = self.reader(Kin::Set).assignment(key, &source);
            self.add(read);
        }
        for flag in &self.sources.flags {
            let source = Source::value(flag.flag.as_str(), flag.value.as_str());
            let read = self.reader(Kin::CommandLine).assignment(&flag.key, &source);
            self.add(read);
        }
    }

    fn merge(mut self) -> Result<Layered, Problems> {
        let figment = self.layers.iter().fold(Figment::new(), Figment::merge);
        let internal = |error: &dyn fmt::Display| {
            Problems::from(Problem::new(
                Code::Internal,
                format!("the merged configuration cannot be read: {error}"),
                "please report this",
            ))
        };
        let merged = match figment.find_value("").map_err(|error| internal(&error))? {
            Value::Dict(_, merged) => merged,
            _ => Dict::new(),
        };
        let traced = provenance::trace(&figment, &self.layers, &merged);
        let mut values = merged;
        prune(&mut values);
        let policy = values
            .get("policy")
            .cloned()
            .unwrap_or_else(|| Value::from(Dict::new()));
        let policy: Policy = policy.deserialize().map_err(|error| internal(&error))?;
        let mut pins = values.clone();
        pins.remove("policy");
        let profile: Profile = Value::from(pins)
            .deserialize()
            .map_err(|error| internal(&error))?;
        let (provenance, spots): (BTreeMap<_, _>, BTreeMap<_, _>) = traced
            .into_iter()
            .map(|(path, (provenance, spot))| ((path.clone(), provenance), (path, spot)))
            .unzip();
        self.problems.extend(rules::check(&profile, &policy, &spots));
        if self
            .problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
        {
            self.problems
                .sort_by_key(|problem| problem.severity == Severity::Warning);
            return Err(Problems(self.problems));
        }
        Ok(Layered {
            profile,
            policy,
            profile_names: self.sources.profiles.clone(),
            class: self.sources.class.clone(),
            provenance,
            warnings: self.problems,
            values,
            spots,
        })
    }
}

/// Policy has no blanks to derive: un-pinning one of its keys means the built-in value.
fn restore(policy: &mut Value, built_in: &Value) {
    match (&mut *policy, built_in) {
        (Value::Empty(..), _) => *policy = built_in.clone(),
        (Value::Dict(_, values), Value::Dict(_, built_in)) => {
            for (key, value) in values {
                if let Some(built_in) = built_in.get(key) {
                    restore(value, built_in);
                }
            }
        }
        _ => {}
    }
}

/// Removes un-pinned keys, so that they read as absent.
fn prune(values: &mut Dict) {
    values.retain(|_, value| match value {
        Value::Empty(..) => false,
        Value::Dict(_, below) => {
            prune(below);
            true
        }
        _ => true,
    });
}
