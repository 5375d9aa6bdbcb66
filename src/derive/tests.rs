//! Derivation as a whole: published cases, refusals, and properties over random machines, models and pins.

mod cases;
mod properties;
mod refusals;
