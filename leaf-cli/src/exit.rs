//! Exit codes, which tell scripts what has happened; docs/cli.md lists them.

use leaf_node::config::ConfigError;
use leaf_segment::admin::TagAdminError;
use leaf_segment::admin::TagIdError;
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{RegistryError, RegistryErrorKind};

/// The command failed, or did only a part of its work.
pub(crate) const FAILED: u8 = 1;
/// The command line or the configuration is wrong, or the command was not confirmed.
pub(crate) const USAGE: u8 = 2;
/// The tag, worker id or other object of the command does not exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// The store, the registry or the server does not answer.
pub(crate) const UNREACHABLE: u8 = 4;
/// The caller does not have the permission.
pub(crate) const NOT_PERMITTED: u8 = 5;

/// The word for an exit code in JSON errors. The words never change.
pub(crate) const fn word(code: u8) -> &'static str {
    match code {
        USAGE => "usage",
        NOT_FOUND => "not-found",
        UNREACHABLE => "unreachable",
        NOT_PERMITTED => "not-permitted",
        _ => "failed",
    }
}

/// An error with the exit code of the program.
#[derive(Debug)]
struct Coded(u8, anyhow::Error);

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.1)
    }
}

impl std::error::Error for Coded {}

/// Attaches an exit code to an error.
pub(crate) fn with(code: u8, error: anyhow::Error) -> anyhow::Error {
    Coded(code, error).into()
}

/// The exit code for an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    let of_store = |error: &StoreError| match error.kind() {
        StoreErrorKind::UnknownTag => NOT_FOUND,
        StoreErrorKind::Unavailable => UNREACHABLE,
        _ => FAILED,
    };
    let of = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(Coded(code, _)) = cause.downcast_ref() {
            Some(*code)
        } else if cause.is::<ConfigError>() {
            Some(USAGE)
        } else if let Some(TagAdminError::Store(error)) = cause.downcast_ref() {
            Some(of_store(error))
        } else if let Some(error) = cause.downcast_ref::<StoreError>() {
            Some(of_store(error))
        } else if let Some(TagIdError::NotOfTag | TagIdError::Text(_)) = cause.downcast_ref() {
            Some(NOT_FOUND)
        } else {
            let error = cause.downcast_ref::<RegistryError>()?;
            let is_away = *error.kind() == RegistryErrorKind::Unavailable;
            Some(if is_away { UNREACHABLE } else { FAILED })
        }
    };
    error.chain().find_map(of).unwrap_or(FAILED)
}
