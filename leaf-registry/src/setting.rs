//! Settings that are wrong, and settings that are read from files: for deployments that mount
//! secrets as files.

use std::io::Read;
use std::path::Path;

/// A setting is invalid or cannot be read. The text holds no password, and nothing of a setting
/// that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(String);

impl SettingError {
    /// An error of this text, which must hold no secret.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// The most that a file with one setting holds.
const LARGEST_SETTING: u64 = 64 * 1024;

/// A file's name for an error. It is hidden where it looks like the secret itself (a URL, or a
/// key), which somebody gave in place of the file.
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
/// A text that names the file and never repeats what it holds.
pub fn read_secret(file: &Path) -> Result<String, SettingError> {
    let refuse = |why: String| SettingError::new(format!("{}: {why}", shown(file)));
    // A pipe would be waited for.
    match std::fs::metadata(file) {
        Ok(found) if !found.is_file() => return Err(refuse("not a regular file".into())),
        Ok(_) => {}
        Err(error) => return Err(refuse(error.to_string())),
    }
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(|error| refuse(error.to_string()))?;
    let read = opened.take(LARGEST_SETTING + 1).read_to_string(&mut text);
    let length = read.map_err(|error| refuse(error.to_string()))?;
    if length as u64 > LARGEST_SETTING {
        return Err(refuse("too large for one setting".into()));
    }
    Ok(text.trim().to_owned())
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
