//! kvroom.
