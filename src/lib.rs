//! Turns any box into a well-tuned local model server.
//!
//! ```text
//!               DECIDE (no weights loaded, pure after reading)                      RUN
//!  Root ──probe──▶ Hardware ──┐
//!  path ──model──▶ ModelCard ─┼─derive─▶ Draft ─plan─▶ Plan ──▶ engine ──▶ Handle ──▶ server
//!  YAML ──config─▶ Layered ───┘
//! ```
//!
//! `Plan` is the only thing that crosses from deciding to running. Modules stand in pipeline order; each may
//! import only from those before it (`tests/it/architecture.rs` holds the table).

pub mod base;
pub mod bench;
pub mod cli;
pub mod config;
pub mod derive;
pub mod engine;
pub mod fetch;
pub mod launch;
pub mod model;
pub mod observe;
pub mod pacing;
pub mod plan;
pub mod probe;
pub mod server;
#[allow(
    unsafe_code,
    reason = "operating-system calls; each block states why it is sound"
)]
pub mod sys;
