//! Refusals: every request that is not answered as its client hoped passes [`Refusals::note`],
//! whatever its protocol, on its way to the client.
//!
//! The reasons are a closed list. A protocol maps them to its own codes, such as a status of HTTP;
//! the words are the same everywhere and never change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a request is refused, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The request makes no sense, whatever the state of the server is.
    BadRequest,
    /// No store has the tag.
    UnknownTag,
    /// An operator has switched the tag off.
    Disabled,
    /// The mode of ids is switched off on this node.
    ModeDisabled,
    /// Texts were asked for of a tag whose ids are plain numbers.
    NoTemplate,
    /// A range was asked for of a tag whose ids do not follow each other.
    NoRanges,
    /// A lease or a stream was asked for of a tag in strict order.
    StrictOrder,
    /// The tag, or its running period, has no more numbers.
    Exhausted,
    /// The layout's timestamps are used up.
    EndOfTime,
    /// The tag's record went back, or cannot be used: an operator must look.
    Record,
    /// Too many requests wait already.
    Busy,
    /// The tag's template cannot hold today's date.
    NoText,
    /// A store, the registry or the clock is in the way; another try may succeed.
    Unavailable,
    /// There is no such route, command or service.
    NotFound,
    /// The route has other methods.
    MethodNotAllowed,
    /// The text is no id of the tag.
    NoSuchId,
    /// The service has no such call.
    NoSuchCall,
    /// The request, or its answer, took too long.
    TooSlow,
    /// The body is too large.
    TooLarge,
    /// The body is not JSON.
    NotJson,
    /// A token or password is missing or wrong.
    Unauthorized,
    /// Whoever asks may not, whatever token is shown.
    Forbidden,
    /// The request contradicts what is stored.
    Conflict,
    /// The request must be confirmed first.
    Unconfirmed,
    /// A tag of this name exists.
    TagExists,
    /// The tag could issue ids that were issued before it was deleted.
    UsedBefore,
    /// A deletion did not come to its end.
    HalfDeleted,
    /// The store refuses it.
    StoreRefuses,
    /// The registry refuses it.
    RegistryRefuses,
    /// The server made a mistake; its log says which.
    Failed,
    /// Whether something was changed is not known. It stays last: the length of `ALL` is its number.
    Unclear,
}

impl Reason {
    /// Every reason, by its number.
    const ALL: [Self; Self::Unclear as usize + 1] = [
        Self::BadRequest,
        Self::UnknownTag,
        Self::Disabled,
        Self::ModeDisabled,
        Self::NoTemplate,
        Self::NoRanges,
        Self::StrictOrder,
        Self::Exhausted,
        Self::EndOfTime,
        Self::Record,
        Self::Busy,
        Self::NoText,
        Self::Unavailable,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NoSuchId,
        Self::NoSuchCall,
        Self::TooSlow,
        Self::TooLarge,
        Self::NotJson,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Conflict,
        Self::Unconfirmed,
        Self::TagExists,
        Self::UsedBefore,
        Self::HalfDeleted,
        Self::StoreRefuses,
        Self::RegistryRefuses,
        Self::Failed,
        Self::Unclear,
    ];

    /// Its word: one for all protocols that have room for it. Several reasons share one where a
    /// program would do the same about them.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::UnknownTag => "unknown-tag",
            Self::Disabled => "disabled",
            Self::ModeDisabled => "mode-disabled",
            Self::NoTemplate => "no-template",
            Self::NoRanges => "no-ranges",
            Self::StrictOrder => "strict-order",
            Self::Exhausted => "exhausted",
            Self::EndOfTime => "end-of-time",
            Self::Record => "record",
            Self::Busy | Self::NoText | Self::Unavailable => "unavailable",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::NoSuchId => "no-such-id",
            Self::NoSuchCall => "no-such-call",
            Self::TooSlow => "too-slow",
            Self::TooLarge => "too-large",
            Self::NotJson => "not-json",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::Unconfirmed => "unconfirmed",
            Self::TagExists => "tag-exists",
            Self::UsedBefore => "used-before",
            Self::HalfDeleted => "half-deleted",
            Self::StoreRefuses => "store-refuses",
            Self::RegistryRefuses => "registry-refuses",
            Self::Failed => "failed",
            Self::Unclear => "unclear",
        }
    }
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
    /// Counts a refusal, and logs it at the level `debug`. `text` is what the client is told.
    pub(crate) fn note(&self, face: Face, reason: Reason, text: &str) {
        self.0[face as usize][reason as usize].fetch_add(1, Ordering::Relaxed);
        tracing::debug!("{} refuses, {}: {text}", face.name(), reason.word());
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
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        for (number, face) in Face::ALL.iter().enumerate() {
            assert_eq!(*face as usize, number);
        }
        let refusals = Refusals::default();
        refusals.note(Face::Http, Reason::Busy, "");
        refusals.note(Face::Http, Reason::Unavailable, "");
        refusals.note(Face::Ops, Reason::Forbidden, "");
        let expected = [
            ("http", BTreeMap::from([("unavailable", 2)])),
            ("ops", BTreeMap::from([("forbidden", 1)])),
        ];
        assert_eq!(refusals.counts(), expected.into());
    }
}
