//! The program: parses flags, runs the command, turns the result into an exit code.

fn main() -> std::process::ExitCode {
    // Whether it was done is asked again where hwloc is used.
    edge_deploy::sys::startup::keep_hwloc_plugins_out();
    edge_deploy::sys::startup::keep_allocator_small();
    edge_deploy::cli::main().number().into()
}
