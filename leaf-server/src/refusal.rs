//! Refusals: every refused request is counted with a reason, by
//! [`Requests::refused`](crate::metrics::Requests::refused), whatever its protocol. Exceptions are
//! the refusals of libraries (hyper's of heads that it cannot read; those of tonic's health and
//! reflection services) and 503 of `/readyz`.
//!
//! The reasons are a closed list. Each protocol maps them to its own codes, such as a status of
//! HTTP; the word of a reason is the same in all protocols and never changes.

use std::fmt;

use crate::metrics::Operation;

/// Defines an enum from a list of names and words, so that each is written in one place.
macro_rules! words {
    ($(#[$outer:meta])* $of:ident: $($(#[$doc:meta])* $name:ident => $word:literal,)*) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $of {
            $($(#[$doc])* $name,)*
        }

        impl $of {
            /// All values, in the order of their numbers.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word of the value in answers, metrics and logs, which never changes.
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Why a request is refused, for programs. The words are the same in all protocols that can
    /// carry one. Several reasons share a word if a program would react to them in the same way.
    Reason:
    /// The request makes no sense, whatever the state of the server is.
    BadRequest => "bad-request",
    /// No store has the tag.
    UnknownTag => "unknown-tag",
    /// An operator has switched the tag off.
    Disabled => "disabled",
    /// The mode of ids is switched off on this node.
    ModeDisabled => "mode-disabled",
    /// The request asks for texts of a tag that has no template.
    NoTemplate => "no-template",
    /// The request asks for a range of a tag whose ids form no ranges.
    NoRanges => "no-ranges",
    /// The request asks for a lease or a stream of a tag in strict order.
    StrictOrder => "strict-order",
    /// The tag, or its current period, has no more numbers; or its family has as many members as it
    /// may have.
    Exhausted => "exhausted",
    /// The layout's timestamps are used up.
    EndOfTime => "end-of-time",
    /// The tag's `max_id` is below the high-water mark, or its record is invalid: an operator must
    /// act.
    Record => "record",
    /// Too many requests wait already.
    Busy => "unavailable",
    /// The tag's template cannot hold today's date.
    NoText => "unavailable",
    /// A store or the registry does not answer, or the clock is in doubt; another try may succeed.
    Unavailable => "unavailable",
    /// There is no such route, command or service.
    NotFound => "not-found",
    /// The route does not have the method of the request.
    MethodNotAllowed => "method-not-allowed",
    /// The text is no id of the tag, or no snowflake id of the layout.
    NoSuchId => "no-such-id",
    /// The service has no such call.
    NoSuchCall => "no-such-call",
    /// The request, or its answer, took too long.
    TooSlow => "too-slow",
    /// The body is too large.
    TooLarge => "too-large",
    /// The body is not JSON.
    NotJson => "not-json",
    /// A token or password is missing.
    Unauthorized => "unauthorized",
    /// A token or password is wrong.
    BadToken => "unauthorized",
    /// The caller is known, and has no role for this.
    NoRole => "no-role",
    /// The caller may not do this here, and no token changes that.
    Forbidden => "forbidden",
    /// An operator has cut the tag or the caller.
    Cut => "cut",
    /// The tag or the caller has reached its limit of ids a second.
    TooFast => "too-fast",
    /// The request contradicts what is stored, or itself.
    Conflict => "conflict",
    /// The record has changed since the client read it.
    Stale => "stale",
    /// The request must be confirmed first.
    Unconfirmed => "unconfirmed",
    /// A tag of this name exists.
    TagExists => "tag-exists",
    /// A tag of this name was deleted, and the new one would issue some of its ids again.
    UsedBefore => "used-before",
    /// A deletion failed halfway: the tag may be sealed now.
    HalfDeleted => "half-deleted",
    /// The store refuses the request.
    StoreRefuses => "store-refuses",
    /// The registry refuses the request.
    RegistryRefuses => "registry-refuses",
    /// The task of the request panicked; the log has the message.
    Failed => "failed",
    /// The request took too long: it is not known whether it changed something.
    Unclear => "unclear",
}

/// The listener or protocol that a request was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// Ids over HTTP.
    Http,
    /// Ids over the Redis protocol.
    Redis,
    /// Ids over gRPC.
    #[cfg(feature = "grpc")]
    Grpc,
    /// Health and administration.
    Ops,
}

impl Face {
    /// All faces, in the order of their numbers.
    pub(crate) const ALL: &[Self] = &[
        Self::Http,
        Self::Redis,
        #[cfg(feature = "grpc")]
        Self::Grpc,
        Self::Ops,
    ];

    /// The name of the face in metrics and in `/v1/status`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Redis => "redis",
            #[cfg(feature = "grpc")]
            Self::Grpc => "grpc",
            Self::Ops => "ops",
        }
    }

    /// The operations that requests to this face can ask for.
    pub(crate) const fn operations(self) -> &'static [Operation] {
        use Operation::{
            Admin, Decode, Describe, Health, Lease, Metrics, Next, Other, Return, Take,
        };
        match self {
            Self::Http => &[Next, Take, Lease, Return, Describe, Decode, Health, Other],
            Self::Redis => &[Next, Take, Describe, Decode, Health, Other],
            #[cfg(feature = "grpc")]
            Self::Grpc => &[Next, Take, Lease, Return, Describe, Decode, Health, Other],
            Self::Ops => &[Decode, Health, Admin, Metrics, Other],
        }
    }
}

impl Reason {
    /// Whether the client is told to try again in a second. Not after [`Self::Unclear`] and
    /// [`Self::HalfDeleted`], although their status is 503: something may have been changed already.
    pub(crate) fn is_transient(self) -> bool {
        self.word() == Self::Unavailable.word() || self == Self::TooFast
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Lets another error, such as a status of gRPC, carry the reason as its source.
impl std::error::Error for Reason {}
