//! Standard input as bounded lines, read by a thread of its own.

use super::protocol::MAX_LINE;
use std::io::{self, BufRead, Read};
use tokio::sync::mpsc;

/// Lines that wait to be handled; then standard input is no longer read.
const WAITING: usize = 64;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line that is too long; its bytes are gone.
    TooLong,
}

/// Starts reading; the channel ends when standard input does.
pub(super) fn start() -> io::Result<mpsc::Receiver<Input>> {
    let (tx, rx) = mpsc::channel(WAITING);
    let read = move || {
        let mut stdin = io::stdin().lock();
        while let Some(input) = next(&mut stdin) {
            if tx.blocking_send(input).is_err() {
                return;
            }
        }
    };
    // Never joined: it may wait for a line that never comes, and the process ends without it.
    std::thread::Builder::new()
        .name("kvroom-stdin".into())
        .spawn(read)?;
    Ok(rx)
}

/// The next line. An input that cannot be read has ended.
fn next(from: &mut impl BufRead) -> Option<Input> {
    let mut line = Vec::new();
    let limit = MAX_LINE as u64 + 1;
    let n = from
        .by_ref()
        .take(limit)
        .read_until(b'\n', &mut line)
        .ok()?;
    if n == 0 {
        return None;
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        skip_line(from).ok()?;
        return Some(Input::TooLong);
    }
    Some(Input::Line(line))
}

fn skip_line(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|&b| b == b'\n');
        let n = end.map_or(buffer.len(), |i| i + 1);
        from.consume(n);
        if end.is_some() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let mut text = vec![b'x'; MAX_LINE + 3];
        text.extend(b"\nshort\n\nlast");
        let mut from = &text[..];
        assert_eq!(next(&mut from), Some(Input::TooLong));
        assert_eq!(next(&mut from), Some(Input::Line(b"short".to_vec())));
        assert_eq!(next(&mut from), Some(Input::Line(vec![])));
        assert_eq!(next(&mut from), Some(Input::Line(b"last".to_vec())));
        assert_eq!(next(&mut from), None);
    }

    #[test]
    fn the_longest_line_is_read_whole() {
        let mut text = vec![b'x'; MAX_LINE];
        text.push(b'\n');
        assert_eq!(
            next(&mut &text[..]),
            Some(Input::Line(vec![b'x'; MAX_LINE]))
        );
    }
}
