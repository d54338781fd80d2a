//! Copies: in which order a lane does its work.

pub mod schedule;
