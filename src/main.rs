//! The program: parses flags, runs the command, turns the result into an exit code.

fn main() -> std::process::ExitCode {
    edge_deploy::cli::main().number().into()
}
