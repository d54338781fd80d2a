//! Writing results. A reader that closes its end early (`kvroom doctor | head -1`) is not an error.

use super::exit::Failure;
use serde::Serialize;
use std::io::{self, Write};

/// Writes `text` to standard output as it is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write_to(&mut io::stdout().lock(), text)
}

/// Writes `value` to standard output as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|e| Failure::Failed(format!("cannot make JSON of the result: {e}")))?;
    print(&format!("{text}\n"))
}

/// Writes one line for people to standard error. Nothing can be done if that fails.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "kvroom: {line}");
}

fn write_to(out: &mut impl Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::Output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(io::ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        assert!(write_to(&mut Fails(io::ErrorKind::BrokenPipe), "x").is_ok());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let e = write_to(&mut Fails(io::ErrorKind::StorageFull), "x").unwrap_err();
        assert_eq!(e.exit_code(), super::super::exit::FAILED);
    }
}
