//! A peer written by hand, which greets as it should and then lies.
