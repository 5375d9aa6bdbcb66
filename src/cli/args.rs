//! The command tree: every command and flag, with its help text. Reference pages, completions and the man page are
//! made from it.
//!
//! In: the command line. Out: [`Args`]. Invariant: holds exactly what was typed; nothing is looked up here.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueHint};

/// Turns any box into a well-tuned local model server.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "edge-deploy",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "Start here: `edge-deploy auto` serves a small model; `edge-deploy plan` shows what it would do and why."
)]
pub struct Args {
    /// Log filter for stderr, such as `info` or `edge_deploy=debug`, instead of EDGE_DEPLOY_LOG
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Log lines as JSON
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Probe, plan, load and serve: the whole way in one command
    Auto(AutoArgs),
    /// Show the plan with its reasons; loads nothing, fetches nothing (`auto --dry-run`)
    Plan(PlanArgs),
    /// Say where each value of the plan comes from and how to verify it
    Explain(ExplainArgs),
    /// Answer one prompt in the terminal
    Run(RunArgs),
    /// Speak a text into a WAV file
    Say(SayArgs),
    /// Measure prefill and decode rates of a model on this machine
    Bench(BenchArgs),
    /// Show what this machine is and what may be used of it
    Probe(ProbeArgs),
    /// List, show, copy and check profiles
    Profiles(ProfilesArgs),
    /// Fetch a model into the cache
    Pull(PullArgs),
    /// Check this machine, the cache and the settings; report what to do about faults
    Doctor(DoctorArgs),
    /// Compare what a running server uses with its plan
    #[command(
        after_help = "Exit codes: 0 all as planned, 8 something differs, 6 the server cannot be asked (docs/reference/exit-codes.md)."
    )]
    Verify(VerifyArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the man page
    Man,
    /// Write the reference pages, completions and man page (for developers)
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// Facts as JSON.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct Output {
    /// Print JSON (docs/reference/json.md) instead of text
    #[arg(long)]
    pub json: bool,
}

/// Which model, with which settings, for which machine.
#[derive(Clone, Debug, ClapArgs)]
pub struct Select {
    /// A file or folder, a name from `pull --list`, `default`, or `hf:org/name[:file][@revision]`
    #[arg(short, long, value_name = "MODEL", default_value = "default", value_hint = ValueHint::AnyPath)]
    pub model: String,
    /// A profile by name instead of the model family's own, or a YAML file above it
    #[arg(long, value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    pub profile: Vec<String>,
    /// Set one key, such as `stages.decoder.threads=4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Tokens of context for each sequence (`stages.<first stage>.context`)
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<String>,
    /// Worker threads (`stages.<first stage>.threads`)
    #[arg(long, value_name = "N")]
    pub threads: Option<String>,
    /// Best instruction set to use, such as `avx2` or `scalar` (`stages.<first stage>.isa_cap`)
    #[arg(long, value_name = "NAME")]
    pub isa_cap: Option<String>,
    /// Plan for a machine saved with `probe --save`
    #[arg(long, value_name = "FILE", conflicts_with = "sysroot", value_hint = ValueHint::FilePath)]
    pub hardware: Option<PathBuf>,
    /// Plan for a machine captured with `doctor --capture`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub sysroot: Option<PathBuf>,
    /// Folder searched first for `profiles/` and `hardware/`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub config_dir: Option<PathBuf>,
    /// Unknown keys are warnings instead of errors
    #[arg(long)]
    pub lenient: bool,
    /// Go on although the plan does not fit into memory
    #[arg(long)]
    pub force: bool,
}

/// Where to listen.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Listen {
    /// Address to bind; loopback unless said (`server.host`)
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port to bind; 0 takes any free one (`server.port`)
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Key that clients must send; better in EDGE_DEPLOY_API_KEY, which `ps` does not show
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}

/// Flags of `auto`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct AutoArgs {
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub listen: Listen,
    /// Show the plan and stop: nothing is fetched or loaded
    #[arg(long)]
    pub dry_run: bool,
    /// Stop if the running engine differs from the plan
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `plan`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct PlanArgs {
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub listen: Listen,
    /// Print a profile that pins everything planned; given back with `--profile` it plans the same
    #[arg(long, conflicts_with = "json")]
    pub emit: bool,
    /// Compare with another plan, key by key: a plan saved with `--json`, a machine saved with `probe --save` or
    /// captured in a folder, or another profile (a name or a YAML file)
    #[arg(long, value_name = "OTHER", conflicts_with = "emit", value_hint = ValueHint::AnyPath)]
    pub diff: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `explain`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct ExplainArgs {
    /// A key, or the beginning of several, such as `stages.decoder`; all keys if absent
    pub key: Option<String>,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `run`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct RunArgs {
    /// What to say to the model; `-` reads it from stdin
    pub prompt: String,
    #[command(flatten)]
    pub select: Select,
    /// Give the prompt to the model as it is, without its chat template
    #[arg(long)]
    pub raw: bool,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Most tokens to generate
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Keep the likeliest tokens that together have this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Makes repeated tokens less likely; 1 is off
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f32>,
    /// Same seed, same answer
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `say`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct SayArgs {
    /// What to say; `-` reads it from stdin
    pub text: String,
    #[command(flatten)]
    pub select: Select,
    /// The WAV file to write
    #[arg(short, long, value_name = "FILE", default_value = "out.wav", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// A voice of the model; its first by name if absent
    #[arg(long, value_name = "NAME")]
    pub voice: Option<String>,
    /// A WAV file whose voice is cloned, with a Base model
    #[arg(long, value_name = "FILE", conflicts_with = "voice", value_hint = ValueHint::FilePath)]
    pub clone: Option<PathBuf>,
    /// What is said in it; its manner is then continued too
    #[arg(long, value_name = "TEXT", requires = "clone")]
    pub clone_text: Option<String>,
    /// A language of the model, or `auto`
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub language: String,
    /// How to say it, in words, for models that take instructions
    #[arg(long, value_name = "TEXT")]
    pub instructions: Option<String>,
    /// Give the text token by token while speaking, not all at once before
    #[arg(long)]
    pub stream_text: bool,
    /// Least frames of 80 ms; the end is held back, and the guards against endless sound are off
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_frames: usize,
    /// Most frames of 80 ms; by the length of the text if absent
    #[arg(long, value_name = "N")]
    pub max_frames: Option<usize>,
    /// Same seed, same sound
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `bench`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct BenchArgs {
    #[command(flatten)]
    pub select: Select,
    /// Prompt lengths whose prefill is timed
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    pub prefill: Vec<usize>,
    /// Tokens decoded for one sample
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub decode: usize,
    /// Context lengths at which decoding is timed
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "8")]
    pub depth: Vec<usize>,
    /// Sequences decoded together
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub batch: Vec<usize>,
    /// Samples of each kind
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub repeat: usize,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `probe`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct ProbeArgs {
    /// Read a machine captured with `doctor --capture` instead of this one
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub sysroot: Option<PathBuf>,
    /// Show a machine saved with `--save`
    #[arg(long, value_name = "FILE", conflicts_with = "sysroot", value_hint = ValueHint::FilePath)]
    pub hardware: Option<PathBuf>,
    /// Write the machine to a file that `--hardware` takes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// `profiles …`
#[derive(Clone, Debug, ClapArgs)]
pub struct ProfilesArgs {
    /// Which.
    #[command(subcommand)]
    pub command: ProfilesCommand,
}

/// Commands about profiles.
#[derive(Clone, Debug, Subcommand)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub enum ProfilesCommand {
    /// List profiles and hardware classes, where each comes from and what it hides
    List {
        /// Folder searched first
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        config_dir: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Print a profile or hardware class
    Show {
        /// Its name or file
        name: String,
        /// Everything that applies with it, each value with its origin
        #[arg(long)]
        resolved: bool,
        /// Hardware class to resolve for
        #[arg(long, value_name = "NAME", default_value = "x86_cpu")]
        class: String,
        /// Folder searched first
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        config_dir: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Copy a built-in profile or hardware class to your own folder, to be changed there
    Eject {
        /// Its name
        name: String,
        /// Folder to write to instead of your own
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        config_dir: Option<PathBuf>,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Check YAML files; all problems are shown with file and line
    Validate {
        /// The files, or names
        #[arg(required = true, value_hint = ValueHint::FilePath)]
        files: Vec<String>,
        /// They are hardware class files
        #[arg(long)]
        hardware: bool,
        /// Unknown keys are warnings instead of errors
        #[arg(long)]
        lenient: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Print the JSON schema of profiles, for editors
    Schema,
}

/// Flags of `pull`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct PullArgs {
    /// A name from `--list`, `default`, or `hf:org/name[:file][@revision]`
    #[arg(default_value = "default")]
    pub model: String,
    /// List the models that have a name, and whether they are in the cache
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `doctor`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct DoctorArgs {
    /// Copy what the probe reads into a folder that `--sysroot` takes; for bug reports
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub capture: Option<PathBuf>,
    /// Print everything the probe read too, without names and serial numbers, to be pasted into a bug report
    #[arg(long, conflicts_with = "json")]
    pub report: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `verify`.
#[derive(Clone, Debug, ClapArgs)]
#[expect(missing_docs, reason = "groups are documented where they are defined")]
pub struct VerifyArgs {
    /// Where the server runs: `host:port`, a URL, or a port [default: 127.0.0.1:8080]
    #[arg(value_name = "ADDRESS", value_hint = ValueHint::Url)]
    pub address: Option<String>,
    /// Its port, where the address names none
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Its key, if it wants one; better in EDGE_DEPLOY_API_KEY
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `completions`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: clap_complete::Shell,
}

/// Flags of `generate`.
#[derive(Clone, Debug, ClapArgs)]
pub struct GenerateArgs {
    /// Write nothing; fail if a file is not as it would be written
    #[arg(long)]
    pub check: bool,
    /// Repository root
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
}

impl Command {
    /// Whether results and errors are to be JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        match self {
            Self::Auto(args) => args.output.json,
            Self::Plan(args) => args.output.json,
            Self::Explain(args) => args.output.json,
            Self::Run(args) => args.output.json,
            Self::Say(args) => args.output.json,
            Self::Bench(args) => args.output.json,
            Self::Probe(args) => args.output.json,
            Self::Pull(args) => args.output.json,
            Self::Doctor(args) => args.output.json,
            Self::Verify(args) => args.output.json,
            Self::Profiles(args) => match &args.command {
                ProfilesCommand::List { output, .. }
                | ProfilesCommand::Show { output, .. }
                | ProfilesCommand::Eject { output, .. }
                | ProfilesCommand::Validate { output, .. } => output.json,
                ProfilesCommand::Schema => false,
            },
            Self::Completions(_) | Self::Man | Self::Generate(_) => false,
        }
    }
}
