use super::*;

mod any;
mod launched;
mod pages;
mod slices;
mod sum;

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at as u8).collect()
}
