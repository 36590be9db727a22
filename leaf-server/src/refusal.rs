//! Refusals: every request that is not answered as its client hoped passes [`Refusals::note`],
//! whatever its protocol, on its way to the client. Exceptions are what libraries refuse by themselves
//! (heads that hyper cannot read; tonic's health and reflection services) and 503 of `/readyz`.
//!
//! The reasons are a closed list. A protocol maps them to its own codes, such as a status of HTTP;
//! the words are the same everywhere and never change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Defines [`Reason`] from a list of names and words, so that a reason is written in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $word:literal,)*) => {
        /// Why a request is refused, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason, by its number.
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its word: one for all protocols that have room for it. Several reasons share one
            /// where a program would do the same about them.
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

reasons! {
    /// The request makes no sense, whatever the state of the server is.
    BadRequest => "bad-request",
    /// No store has the tag.
    UnknownTag => "unknown-tag",
    /// An operator has switched the tag off.
    Disabled => "disabled",
    /// The mode of ids is switched off on this node.
    ModeDisabled => "mode-disabled",
    /// Texts were asked for of a tag whose ids are plain numbers.
    NoTemplate => "no-template",
    /// A range was asked for of a tag whose ids do not follow each other.
    NoRanges => "no-ranges",
    /// A lease or a stream was asked for of a tag in strict order.
    StrictOrder => "strict-order",
    /// The tag, or its running period, has no more numbers.
    Exhausted => "exhausted",
    /// The layout's timestamps are used up.
    EndOfTime => "end-of-time",
    /// The tag's record went back, or cannot be used: an operator must look.
    Record => "record",
    /// Too many requests wait already.
    Busy => "unavailable",
    /// The tag's template cannot hold today's date.
    NoText => "unavailable",
    /// A store, the registry or the clock is in the way; another try may succeed.
    Unavailable => "unavailable",
    /// There is no such route, command or service.
    NotFound => "not-found",
    /// The route has other methods.
    MethodNotAllowed => "method-not-allowed",
    /// The text is no id of the tag.
    NoSuchId => "no-such-id",
    /// The service has no such call.
    NoSuchCall => "no-such-call",
    /// The request, or its answer, took too long.
    TooSlow => "too-slow",
    /// The body is too large.
    TooLarge => "too-large",
    /// The body is not JSON.
    NotJson => "not-json",
    /// A token or password is missing or wrong.
    Unauthorized => "unauthorized",
    /// The caller may not do this here, and no token changes that.
    Forbidden => "forbidden",
    /// The request contradicts what is stored.
    Conflict => "conflict",
    /// The request must be confirmed first.
    Unconfirmed => "unconfirmed",
    /// A tag of this name exists.
    TagExists => "tag-exists",
    /// The tag could issue ids that were issued before it was deleted.
    UsedBefore => "used-before",
    /// A deletion did not come to its end.
    HalfDeleted => "half-deleted",
    /// The store refuses it.
    StoreRefuses => "store-refuses",
    /// The registry refuses it.
    RegistryRefuses => "registry-refuses",
    /// The server made a mistake; its log says which.
    Failed => "failed",
    /// Whether something was changed is not known.
    Unclear => "unclear",
}

/// What a refused request was sent to.
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
    /// Every face, by its number.
    const ALL: &[Self] = &[
        Self::Http,
        Self::Redis,
        #[cfg(feature = "grpc")]
        Self::Grpc,
        Self::Ops,
    ];

    /// As `/v1/status` names it.
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Redis => "redis",
            #[cfg(feature = "grpc")]
            Self::Grpc => "grpc",
            Self::Ops => "ops",
        }
    }
}

/// How many requests were refused since the start, by face and reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([[AtomicU64; Reason::ALL.len()]; Face::ALL.len()]);

impl Refusals {
    /// Counts a refusal. It does not get the text that the client is told: that may repeat what the
    /// client sent, a password in the wrong place, say, which must not reach a log.
    pub(crate) fn note(&self, face: Face, reason: Reason) {
        self.0[face as usize][reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts that are not zero: by face, then by the reason's word.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        let mut counts = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (face, by_reason) in Face::ALL.iter().zip(&self.0) {
            for (reason, count) in Reason::ALL.iter().zip(by_reason) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    *counts.entry(face.name()).or_default().entry(reason.word()).or_default() +=
                        count;
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_and_each_face_is_counted_by_itself() {
        for (number, face) in Face::ALL.iter().enumerate() {
            assert_eq!(*face as usize, number);
        }
        let refusals = Refusals::default();
        refusals.note(Face::Http, Reason::Busy);
        refusals.note(Face::Http, Reason::Unavailable);
        refusals.note(Face::Ops, Reason::Forbidden);
        let expected = [
            ("http", BTreeMap::from([("unavailable", 2)])),
            ("ops", BTreeMap::from([("forbidden", 1)])),
        ];
        assert_eq!(refusals.counts(), expected.into());
    }
}
