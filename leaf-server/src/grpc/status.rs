//! Errors in the form of gRPC: a code for programs, a text for people, and when to try again.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::ids::IdError;
use crate::refusal::Reason;

/// How long a client should wait before it tries again.
const AGAIN: Duration = Duration::from_secs(1);
/// The domain of the reasons, as `google.rpc.ErrorInfo` names it.
const DOMAIN: &str = "leaf";

impl From<IdError> for Status {
    fn from(error: IdError) -> Self {
        refused(error.reason(), error.text())
    }
}

/// The refusal of a request that is invalid, whatever the state of the server is.
pub(super) fn bad_request(text: impl Into<String>) -> Status {
    refused(Reason::BadRequest, text)
}

/// A refusal. It carries the reason for programs and, if another try may succeed, when to try
/// again. The codes `Unavailable` and `ResourceExhausted` say that another try may succeed, all
/// other codes that it does not. The reason is also the source of the status, by which the refusal
/// is counted ([`reason_of`]).
pub(super) fn refused(reason: Reason, text: impl Into<String>) -> Status {
    let code = match reason {
        Reason::BadRequest => Code::InvalidArgument,
        Reason::UnknownTag => Code::NotFound,
        Reason::NotFound | Reason::NoSuchCall => Code::Unimplemented,
        Reason::TooSlow => Code::DeadlineExceeded,
        Reason::Record | Reason::Failed => Code::Internal,
        Reason::Unauthorized | Reason::BadToken => Code::Unauthenticated,
        Reason::NoRole | Reason::Cut => Code::PermissionDenied,
        Reason::Busy | Reason::TooFast => Code::ResourceExhausted,
        Reason::NoText | Reason::Unavailable => Code::Unavailable,
        Reason::Disabled
        | Reason::ModeDisabled
        | Reason::NoTemplate
        | Reason::NoRanges
        | Reason::StrictOrder
        | Reason::Exhausted
        | Reason::EndOfTime
        // Of administration and of HTTP, which gRPC does not offer.
        | Reason::MethodNotAllowed
        | Reason::NoSuchId
        | Reason::TooLarge
        | Reason::NotJson
        | Reason::Forbidden
        | Reason::Conflict
        | Reason::Stale
        | Reason::Unconfirmed
        | Reason::TagExists
        | Reason::UsedBefore
        | Reason::HalfDeleted
        | Reason::StoreRefuses
        | Reason::RegistryRefuses
        | Reason::Unclear => Code::FailedPrecondition,
    };
    let text = text.into();
    let mut details = ErrorDetails::with_error_info(reason.word(), DOMAIN, HashMap::new());
    if reason.is_transient() {
        details.set_retry_info(Some(AGAIN));
    }
    let mut status = Status::with_error_details(code, text, details);
    status.set_source(Arc::new(reason));
    status
}

/// Why a request was refused, if it was.
pub(super) fn reason_of<B>(answer: &Response<B>) -> Option<Reason> {
    let status = answer.extensions().get::<Status>()?;
    status.source()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_says_try_again_if_the_details_do() {
        for reason in Reason::ALL {
            let code = refused(*reason, "").code();
            let again = matches!(code, Code::Unavailable | Code::ResourceExhausted);
            assert_eq!(again, reason.is_transient(), "{reason}");
        }
    }
}
