//! Errors as gRPC tells them: a code for programs, a text for people, and when to try again.

use std::time::Duration;

use leaf_segment::SegmentErrorKind;
use leaf_snowflake::SnowflakeErrorKind;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::ids::IdError;

/// When a client may try again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) fn of(error: &IdError) -> Status {
    match code(error) {
        code @ (Code::Unavailable | Code::ResourceExhausted) => {
            worth_another_try(code, error.to_string())
        }
        code => Status::new(code, error.to_string()),
    }
}

pub(crate) fn unavailable(text: &str) -> Status {
    worth_another_try(Code::Unavailable, text.into())
}

fn worth_another_try(code: Code, text: String) -> Status {
    Status::with_error_details(code, text, ErrorDetails::with_retry_info(Some(AGAIN)))
}

fn code(error: &IdError) -> Code {
    match error {
        IdError::ModeDisabled(_) | IdError::NoTemplate => Code::FailedPrecondition,
        IdError::NoText => Code::Unavailable,
        IdError::Busy(_) => Code::ResourceExhausted,
        IdError::Segment(error) => match error.kind() {
            SegmentErrorKind::BadTag(_) | SegmentErrorKind::BadCount { .. } => {
                Code::InvalidArgument
            }
            SegmentErrorKind::UnknownTag => Code::NotFound,
            SegmentErrorKind::Disabled
            | SegmentErrorKind::NoRanges
            | SegmentErrorKind::StrictOrder
            | SegmentErrorKind::Exhausted => Code::FailedPrecondition,
            SegmentErrorKind::Guard | SegmentErrorKind::Record => Code::Internal,
            _ => Code::Unavailable,
        },
        IdError::Snowflake(error) => match error.kind() {
            SnowflakeErrorKind::BadCount { .. } => Code::InvalidArgument,
            SnowflakeErrorKind::EndOfTime { .. } => Code::FailedPrecondition,
            _ => Code::Unavailable,
        },
    }
}
