//! The kvroom program: see `kvroom --help`, or `cli` for how it is put together.

mod cli;
mod daemon;

/// A small room is some dozens of small allocations on three threads; the C library's allocator
/// halves the rate of rooms. The library leaves the choice to its host.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
