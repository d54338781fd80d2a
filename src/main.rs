//! The kvroom program.
fn main() {}
