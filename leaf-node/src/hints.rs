//! What an operator can do about an error: commands and configuration keys, by the kind of the
//! error.
//!
//! The library crates name neither commands nor keys, because a program that embeds them has its
//! own. `leaf-server` and `leaf` add the hint where they show an error to an operator.

use std::error::Error;

use leaf_segment::admin::TagAdminError;
use leaf_segment::admin::TagIdError;
use leaf_segment::view::Totals;
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{RegistryError, RegistryErrorKind, SnowflakeError, SnowflakeErrorKind};

use crate::OpenError;

/// The hint for a failure of the registry; `None` if the error's text says enough.
#[must_use]
pub const fn of_registry(kind: &RegistryErrorKind) -> Option<&'static str> {
    match kind {
        RegistryErrorKind::JavaHolds => {
            Some("set snowflake.adopt_java_ids = true once the last Java Leaf is gone")
        }
        RegistryErrorKind::NotAssigned { .. } => {
            Some("add it to snowflake.worker_ids, or set `advertise` to a name that is there")
        }
        RegistryErrorKind::NoWorkerId(_) => {
            Some("`leaf worker list` shows which node holds which worker id")
        }
        RegistryErrorKind::InUse { .. } => Some(
            "in a registry that nodes share, `leaf worker list` shows who holds it, and `leaf worker release N \
             --holder-is-dead` frees it where that holder is dead for good",
        ),
        RegistryErrorKind::FloorAhead { .. } => Some(
            "if the clock was ahead when that was written and is right now, give this node another worker id: in mysql and zk_normal \
             `leaf worker retire N --yes` does so, once its last holder runs no more; with local and ordinal, configure one that no node has used and remove snowflake.state",
        ),
        RegistryErrorKind::BadIdentity(_) => Some("set `advertise`"),
        RegistryErrorKind::Damaged => Some("`leaf worker repair N --holder-is-dead` repairs it"),
        RegistryErrorKind::OtherRange { .. } => {
            Some("snowflake.worker_range sets them; `leaf worker list` shows who holds what")
        }
        RegistryErrorKind::OutsideRange { .. } => Some(
            "snowflake.worker_range sets them: zk_normal counts from 0, so give it the lower range; with ordinal set \
             snowflake.ordinal_offset; before you choose another registry, stop all nodes of this one",
        ),
        RegistryErrorKind::OtherLayout { .. } => Some(
            "an empty registry is another `name` or database, or with the registry `local` another data directory",
        ),
        RegistryErrorKind::BeyondLayout { .. } => Some(
            "snowflake.registry = \"zk-recycle://...\" recycles worker ids; snowflake.layout sets the layout",
        ),
        _ => None,
    }
}

/// The hint for a failure of a store; `None` if the error's text says enough.
#[must_use]
pub const fn of_store(kind: &StoreErrorKind) -> Option<&'static str> {
    match kind {
        StoreErrorKind::UnknownTag => Some("`leaf tag create` creates one"),
        StoreErrorKind::OtherPlace => Some(
            "correct segment.store or segment.shard (`leaf shards` shows what the stores remember); only if the stores are meant to \
             change, move the tags, then tell the stores with `leaf shards --apply`",
        ),
        StoreErrorKind::ClockBehind { .. } => Some(REOPEN),
        StoreErrorKind::BadRecord(_) => Some("`leaf doctor` names the command that corrects it"),
        _ => None,
    }
}

/// The hint for a missing key of scrambled ids.
const KEY_FILE: &str = "segment.keys_file names the key file, and SIGHUP loads it again";

/// The hint for a tag that a wrong clock has closed.
const REOPEN: &str =
    "`leaf tag reopen TAG --above ID` does so, with the greatest id of the present period";

/// The hint for a health reason with the code `Clock`. Its text selects the hint, because the code
/// covers several problems.
#[must_use]
pub fn of_clock(text: &str) -> Option<&'static str> {
    let hints = [
        ("can reopen the tag", REOPEN),
        ("accept it, or restart", "`leaf clock accept` lets ids follow the clock"),
    ];
    hints.into_iter().find(|(said, _)| text.contains(said)).map(|(_, hint)| hint)
}

/// The hint for a refusal of administration; `None` if the error's text says enough.
#[must_use]
pub const fn of_admin(error: &TagAdminError) -> Option<&'static str> {
    match error {
        TagAdminError::NoKey(_) => Some(KEY_FILE),
        TagAdminError::Store(error) => of_store(error.kind()),
        _ => None,
    }
}

/// The hint for an error or for one of its causes.
///
/// The nearest cause that has a hint wins: it is the most specific one.
#[must_use]
pub fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(of_one)
}

/// The hint for this one error, without its causes.
fn of_one(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<RegistryError>() {
        return of_registry(error.kind());
    }
    if let Some(error) = error.downcast_ref::<StoreError>() {
        return of_store(error.kind());
    }
    if let Some(error) = error.downcast_ref::<TagAdminError>() {
        return of_admin(error);
    }
    if let Some(TagIdError::Key(_)) = error.downcast_ref::<TagIdError>() {
        return Some(KEY_FILE);
    }
    let error = match error.downcast_ref::<OpenError>() {
        Some(OpenError::Snowflake(error)) => error,
        _ => error.downcast_ref::<SnowflakeError>()?,
    };
    match error.kind() {
        SnowflakeErrorKind::Registry(error) => of_registry(error.kind()),
        _ => None,
    }
}

/// The most commands that are suggested at once.
const COMMANDS: usize = 3;

/// The hint for tags that are refused: the commands that repair the tags whose records went back,
/// and where to add a missing key. `None` if neither applies.
#[must_use]
pub fn of_refused(totals: &[Totals]) -> Option<String> {
    let commands = totals.iter().flat_map(|totals| &totals.went_back).map(|(tag, least)| {
        format!("`leaf tag advance {} --at-least {least}`", quoted(tag.as_str()))
    });
    let commands: Vec<_> = commands.take(COMMANDS).collect();
    let commands = (!commands.is_empty())
        .then(|| {
            format!(
                "{}, with the greatest number of all nodes: each tells its own within segment.refresh, `leaf doctor` at once",
                commands.join(", ")
            )
        });
    match (commands, totals.iter().any(|totals| totals.lacks_key)) {
        (Some(commands), true) => Some(with(commands, Some(KEY_FILE))),
        (None, true) => Some(KEY_FILE.into()),
        (commands, false) => commands,
    }
}

/// Quotes a tag for a shell, for commands that are suggested.
///
/// Plain names stay as they are; others are put in single quotes, in which a shell interprets
/// nothing.
#[must_use]
pub fn quoted(tag: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/');
    if tag.chars().all(plain) { tag.into() } else { format!("'{}'", tag.replace('\'', r"'\''")) }
}

/// Appends the hint to `text`, if there is one.
#[must_use]
pub fn with(text: impl std::fmt::Display, hint: Option<&str>) -> String {
    hint.map_or_else(|| text.to_string(), |hint| format!("{text}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_commands_are_safe_to_paste() {
        assert_eq!(quoted("orders.v1"), "orders.v1");
        assert_eq!(quoted("a; rm -rf $(x)"), "'a; rm -rf $(x)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn an_error_has_its_hint_below_any_context() {
        let error = RegistryError::new(RegistryErrorKind::JavaHolds, "claim a worker id");
        let error = OpenError::Snowflake(SnowflakeError::from(error));

        let text = with(&error, of(&error));

        assert!(
            text.ends_with("; set snowflake.adopt_java_ids = true once the last Java Leaf is gone")
        );
    }
}
