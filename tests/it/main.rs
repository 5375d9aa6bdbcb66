//! The one integration binary: whole-program tests, by room.

mod architecture;
mod support;
