//! Stable codes: one for every kind of problem a person or a client can meet, one exit code for every outcome.
//!
//! In: nothing. Out: `Code` and `ExitCode`, and the tables the reference pages are made from.
//! Invariant: a code's text never changes once released; each code has exactly one exit code and one HTTP status.

use serde::{Deserialize, Serialize};

/// How the process ends. The number is the exit status; `docs/reference/exit-codes.md` is made from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ExitCode {
    /// Done.
    Ok = 0,
    /// A fault of ours or of the system that no other code names.
    Internal = 1,
    /// The command line is wrong (clap's own code).
    Usage = 2,
    /// A profile, environment or `--set` value is wrong.
    Config = 3,
    /// A model file is missing, damaged or not supported.
    Model = 4,
    /// The plan does not fit this machine; the message says what would.
    Refused = 5,
    /// A download failed.
    Network = 6,
    /// A file, folder or port could not be used.
    Io = 7,
    /// The running engine differs from the plan (`--strict`, `verify`).
    Mismatch = 8,
    /// The machine could not be read, or is below what we need.
    Hardware = 9,
}

impl ExitCode {
    /// Every exit code, in numeric order.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Internal,
        Self::Usage,
        Self::Config,
        Self::Model,
        Self::Refused,
        Self::Network,
        Self::Io,
        Self::Mismatch,
        Self::Hardware,
    ];

    /// The exit status.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $exit:ident, $status:literal;)+) => {
        /// What kind of problem. The text form (`model_truncated`) is stable and appears in JSON, API errors and logs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $name,)+
        }
        impl Code {
            /// Every code, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// The stable text.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
            /// The process's exit code when this problem ends it.
            #[must_use]
            pub fn exit_code(self) -> ExitCode {
                match self { $(Self::$name => ExitCode::$exit,)+ }
            }
            /// The HTTP status when this problem answers a request.
            #[must_use]
            pub fn http_status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }
            /// One line on what it means.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

codes! {
    /// A fault in edge-deploy itself.
    Internal = "internal_error", Internal, 500;
    /// The text is not YAML we accept.
    YamlSyntax = "yaml_syntax", Config, 400;
    /// A key stands twice in one map.
    YamlDuplicateKey = "yaml_duplicate_key", Config, 400;
    /// A key is not part of the profile language.
    UnknownKey = "unknown_key", Config, 400;
    /// A value has the wrong kind or is out of range.
    BadValue = "bad_value", Config, 400;
    /// A key stands in a kind of file where it does not belong.
    MisplacedKey = "misplaced_key", Config, 400;
    /// A profile or hardware class of that name does not exist.
    ProfileNotFound = "profile_not_found", Config, 404;
    /// Profiles extend each other in a circle, or too deep.
    ExtendsCycle = "extends_cycle", Config, 400;
    /// The model file or folder is not there.
    ModelNotFound = "model_not_found", Model, 404;
    /// The file is a Git LFS pointer, an HTML page, empty, or not a model at all.
    ModelNotAModel = "model_not_a_model", Model, 400;
    /// The file ends before its header says it should.
    ModelTruncated = "model_truncated", Model, 400;
    /// The header contradicts itself or holds impossible numbers.
    ModelMalformed = "model_malformed", Model, 400;
    /// Part of a split model is missing or empty.
    ModelPartMissing = "model_part_missing", Model, 400;
    /// The architecture, version or tensor type is not one we serve.
    ModelUnsupported = "model_unsupported", Model, 400;
    /// The tokenizer or chat template cannot be built or applied.
    TokenizerUnusable = "tokenizer_unusable", Model, 400;
    /// A download failed after retries.
    DownloadFailed = "download_failed", Network, 502;
    /// The server to be asked cannot be reached, or does not answer as one of this version.
    ServerUnreachable = "server_unreachable", Network, 502;
    /// The bytes that arrived are not the bytes expected.
    DigestMismatch = "digest_mismatch", Network, 502;
    /// The disk has no room for the file.
    DiskFull = "disk_full", Io, 507;
    /// A file or folder cannot be read or written.
    FileAccess = "file_access", Io, 500;
    /// The address or port cannot be bound.
    AddressInUse = "address_in_use", Io, 500;
    /// The machine could not be read.
    ProbeFailed = "probe_failed", Hardware, 500;
    /// The processor lacks what the engine needs.
    CpuTooOld = "cpu_too_old", Hardware, 500;
    /// A limit of the machine that the plan takes into account.
    HardwareLimit = "hardware_limit", Hardware, 500;
    /// A fact about the machine is not known for certain.
    HardwareUnsure = "hardware_unsure", Hardware, 500;
    /// The model and its caches do not fit in memory.
    MemoryShort = "memory_short", Refused, 507;
    /// An explicit value cannot be met on this machine.
    PinUnmet = "pin_unmet", Refused, 400;
    /// The context asked for is longer than the model or the memory allows.
    ContextTooLong = "context_too_long", Refused, 400;
    /// An automatic value is smaller than the model's own; said, never silent.
    ContextCapped = "context_capped", Refused, 400;
    /// The server can be reached from other machines and asks for no key.
    ServerOpen = "server_open", Config, 400;
    /// The engine uses something other than the plan says.
    ReadbackMismatch = "readback_mismatch", Mismatch, 500;
    /// A worker thread could not be pinned.
    PinFailed = "pin_failed", Hardware, 500;
    /// The request is not JSON, or not an object.
    RequestMalformed = "request_malformed", Usage, 400;
    /// A field of the request has a wrong kind or value.
    RequestInvalid = "request_invalid", Usage, 400;
    /// The request asks for something that is not built.
    RequestUnsupported = "request_unsupported", Usage, 400;
    /// The prompt and the answer do not fit the context.
    ContextOverflow = "context_length_exceeded", Usage, 400;
    /// The request names a model that is not loaded.
    UnknownModel = "model_not_loaded", Usage, 404;
    /// The path or method does not exist.
    UnknownRoute = "unknown_route", Usage, 404;
    /// The body is larger than the server takes.
    BodyTooLarge = "body_too_large", Usage, 413;
    /// The API key is missing or wrong.
    Unauthorized = "unauthorized", Usage, 401;
    /// The queue is full; try again later.
    QueueFull = "queue_full", Usage, 429;
    /// The server is stopping or still loading.
    NotReady = "not_ready", Usage, 503;
    /// A deadline passed.
    DeadlinePassed = "deadline_passed", Internal, 504;
    /// A stage of the engine failed; other requests go on.
    StageFailed = "stage_failed", Internal, 500;
    /// The caller cancelled the request.
    Cancelled = "cancelled", Internal, 499;
}

impl std::fmt::Display for Code {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.as_str())
    }
}
