//! Errors as gRPC tells them: a code for programs, a text for people, and when to try again.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::ids::{IdError, Reason};

/// When a client may try again.
const AGAIN: Duration = Duration::from_secs(1);
/// Whose the reasons are, of `google.rpc.ErrorInfo`.
const DOMAIN: &str = "leaf";

/// Why there is no id. The codes say whether another try may help: `Unavailable` and
/// `ResourceExhausted` do, all others do not.
impl From<IdError> for Status {
    fn from(error: IdError) -> Self {
        let reason = error.reason();
        let code = match reason {
            Reason::BadRequest => Code::InvalidArgument,
            Reason::UnknownTag => Code::NotFound,
            Reason::Disabled
            | Reason::ModeDisabled
            | Reason::NoTemplate
            | Reason::NoRanges
            | Reason::StrictOrder
            | Reason::Exhausted
            | Reason::EndOfTime => Code::FailedPrecondition,
            Reason::Record => Code::Internal,
            Reason::Busy => Code::ResourceExhausted,
            Reason::NoText | Reason::Unavailable => Code::Unavailable,
        };
        with_reason(code, reason.word(), error.text())
    }
}

/// The request makes no sense, whatever the state of the server is.
pub(super) fn bad_request(text: impl Into<String>) -> Status {
    with_reason(Code::InvalidArgument, Reason::BadRequest.word(), text)
}

/// Worth another try in a second.
pub(super) fn unavailable(text: &str) -> Status {
    with_reason(Code::Unavailable, Reason::Unavailable.word(), text)
}

/// A status with its reason for programs, and when to try again, where that may help.
pub(super) fn with_reason(code: Code, reason: &str, text: impl Into<String>) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    if reason == Reason::Unavailable.word() {
        details.set_retry_info(Some(AGAIN));
    }
    Status::with_error_details(code, text, details)
}
