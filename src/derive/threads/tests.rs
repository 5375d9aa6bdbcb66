//! Threads: table tests.
