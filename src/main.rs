//! The program: parses flags, runs the command, turns the result into an exit code.

fn main() {}
