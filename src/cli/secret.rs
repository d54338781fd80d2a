//! Files with secrets.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a file with a token or a key.
pub(crate) const MOST: usize = 64 << 10;
/// The most bytes of a file with certificates, of which there may be many.
pub(crate) const MOST_PEM: usize = 4 << 20;

/// What is in the file: no more of it is read than `most` and a byte, since it may be any file, or none that
/// ends.
///
/// # Errors
/// It cannot be read, or is larger.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let bound = most as u64 + 1;
    File::open(path)?.take(bound).read_to_end(&mut text)?;
    if text.len() > most {
        let why = format!("it has more than {most} bytes, and what is expected here has not");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_end_is_refused_and_not_read_on() {
        let error = read(Path::new("/dev/zero"), 8).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(read(Path::new("/dev/null"), 8).unwrap().is_empty());
        assert!(read(Path::new("/nowhere/at all"), 8).is_err());
    }

    #[test]
    fn a_file_of_just_as_many_bytes_is_read() {
        let path = std::env::temp_dir().join(format!("kvroom-secret-{}", std::process::id()));
        std::fs::write(&path, [7; 8]).unwrap();
        let (fits, not) = (read(&path, 8), read(&path, 7));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(fits.unwrap(), [7; 8]);
        assert_eq!(not.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
