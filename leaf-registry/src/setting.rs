//! The error of an invalid setting, and the reading of settings from files, for deployments that
//! mount secrets as files.

use std::io::Read;
use std::path::Path;

/// The error of a setting that is invalid or cannot be read. Its text contains no password, and no
/// part of a setting that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(String);

impl SettingError {
    /// An error with this text, which must contain no secret.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Greatest size of a file with one setting, in bytes.
const LARGEST_SETTING: u64 = 64 * 1024;

/// The name of a file for an error text. Hidden if it looks like the secret itself (a URL, or a
/// key): an operator may have given the secret in place of the file's name.
fn shown(file: &Path) -> String {
    let name = file.display().to_string();
    let is_key = name.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= 32);
    match is_key || name.contains("://") || name.contains(['@', '=']) {
        true => "(this is no file name)".into(),
        // Without line breaks, so that the error stays on one line.
        false => name.replace(char::is_control, "?"),
    }
}

/// Reads a text from a file, without the white space around it.
///
/// # Errors
/// The text names the file and never repeats its content.
pub fn read_secret(file: &Path) -> Result<String, SettingError> {
    let refuse = |why: String| SettingError::new(format!("{}: {why}", shown(file)));
    let bytes = read_file(file, LARGEST_SETTING).map_err(refuse)?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".into()))?;
    Ok(text.trim().to_owned())
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// The text says why the file cannot be read, and does not name it.
pub fn read_file(file: &Path, most: u64) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    // A pipe would be waited for, at every reload, too.
    if !std::fs::metadata(file).map_err(text)?.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(text)?;
    // It may be one that has no end, or grows.
    let length = opened.take(most + 1).read_to_end(&mut bytes).map_err(text)?;
    if length as u64 > most {
        return Err(format!("too large: more than {most} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_a_file_of_a_bounded_size() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, " etcd://u:canary@a:2379/x\n").unwrap();
        assert_eq!(read_secret(&file).unwrap(), "etcd://u:canary@a:2379/x");
        std::fs::write(&file, "a".repeat(70_000)).unwrap();
        assert!(read_secret(&file).unwrap_err().to_string().contains("too large"));
        let error = read_secret(Path::new("etcd://u:canary@a")).unwrap_err().to_string();
        assert!(!error.contains("canary"), "{error}");
    }
}
