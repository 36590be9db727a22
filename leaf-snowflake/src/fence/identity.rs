//! A node's name in the registry.

use std::fmt;
use std::sync::Arc;

use leaf_core::WorkerId;

/// A node's name in the registry, usually `ip:port`: 1 to 127 visible ASCII characters without `/`.
///
/// 127 is the width of the columns of the Java programs; `/` separates the parts of a ZooKeeper
/// path.
///
/// ```
/// use leaf_snowflake::Identity;
///
/// assert_eq!(Identity::parse("10.0.0.7:8080")?.as_str(), "10.0.0.7:8080");
/// assert!(Identity::parse("a/b").is_err());
/// # Ok::<(), leaf_snowflake::IdentityError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// Checks `text` and makes it an identity.
    ///
    /// # Errors
    /// [`IdentityError`] when it is empty, longer than 127 characters, or contains a slash or
    /// anything but visible ASCII.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if text.is_empty() || text.len() > 127 || !visible {
            return Err(IdentityError);
        }
        Ok(Self(text.into()))
    }

    /// The holder's name in a record that an operator wrote and that names no node. Each worker id
    /// has its own, because some stores allow each name only once.
    #[must_use]
    pub fn of_operator(worker: WorkerId) -> Self {
        Self(format!("operator:{worker}").into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a valid [`Identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an identity: give 1 to 127 visible ASCII characters without '/', like 10.0.0.7:8080")]
pub struct IdentityError;
