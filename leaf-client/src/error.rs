//! Why a caller got no id: a kind for programs, and a text that names the server and says what to
//! do.

/// Why a caller got no id.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct ClientError {
    kind: ClientErrorKind,
    text: String,
}

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// The client was configured with something that it cannot use.
    BadConfig,
    /// The text is not a valid tag.
    BadTag,
    /// The count is 0, or more than can be taken at once.
    BadCount,
    /// There is no tag of this name: an operator must create it.
    UnknownTag,
    /// The tag is disabled.
    Disabled,
    /// The handle is no longer valid, because the tag was made again: get a new one from the
    /// client.
    Changed,
    /// The tag has no ids left.
    Exhausted,
    /// The ids of the tag do not follow each other, or are in strict order: take them as a list.
    NoRanges,
    /// No server gave ids before the deadline.
    Unavailable,
    /// A server did not accept the token, or requires one.
    Unauthorized,
    /// A server refused for another reason, which the text tells.
    Refused,
    /// A server offers ids that this client was granted before: the store has lost allocations, and
    /// an operator must repair the tag.
    WentBack,
    /// The client was closed.
    Closed,
}

impl ClientErrorKind {
    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn retryable(self) -> bool {
        matches!(self, Self::Unavailable)
    }
}

impl ClientError {
    pub(crate) fn new(kind: ClientErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The error of a handle that has ended. `what` names its ids, like `tag "orders"`.
    pub(crate) fn ended(what: &str, why: ClientErrorKind) -> Self {
        let text = match why {
            ClientErrorKind::Closed => "the client was closed",
            ClientErrorKind::UnknownTag => "no such tag any more",
            ClientErrorKind::Disabled => "the tag is disabled",
            _ => "the tag was made again: ask the client for it anew",
        };
        Self::new(why, format!("{what}: {text}"))
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> ClientErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        self.kind.retryable()
    }
}
