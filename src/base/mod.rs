//! Leaf types that every other room uses.
//!
//! In: nothing. Out: units, CPU sets, problems with stable codes, the list of environment variables.
//! Invariant: no I/O, no clock, no global state.

pub mod code;
pub mod cpu_set;
pub mod dtype;
pub mod env_vars;
pub mod key_path;
pub mod problem;
pub mod units;

pub use code::{Code, ExitCode};
pub use cpu_set::CpuSet;
pub use dtype::Dtype;
pub use key_path::KeyPath;
pub use problem::{Place, Problem, Problems, Severity};
pub use units::{Bytes, Millis};
