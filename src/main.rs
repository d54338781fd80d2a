//! The kvroom program: see `kvroom --help`, or `cli` for how it is put together.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
