//! Why a request failed.

use leaf_segment::{SegmentError, SegmentErrorKind};

use crate::endpoint::Endpoint;
use crate::error::{ClientError, ClientErrorKind};

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AskError {
    /// The request was not served. A later attempt, or another server, may serve it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A server refused the request, and every other server would refuse it, too.
    #[error("{text}")]
    Refused { kind: ClientErrorKind, text: String },
}

impl AskError {
    /// Whether a request for fewer ids may succeed.
    pub(crate) const fn is_too_many(&self) -> bool {
        use ClientErrorKind::{BadCount, Exhausted};
        matches!(self, Self::Refused { kind: BadCount | Exhausted, .. })
    }
}

impl ClientError {
    /// The failure of a request for `what`, like `tag "orders"`.
    pub(crate) fn asking(what: &str, error: &AskError) -> Self {
        let kind = match error {
            AskError::Failed(_) => ClientErrorKind::Unavailable,
            AskError::Refused { kind, .. } => *kind,
        };
        Self::new(kind, format!("{what}: {error}"))
    }
}

/// Why a server did not serve a request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Failure {
    /// The server that failed, if one did, and why.
    text: String,
    /// The fault of the server.
    pub(crate) fault: Fault,
}

/// The fault of a server that a failure indicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server does not answer, or not as a leaf-server does.
    Server,
    /// The server answers, and cannot serve this request now.
    Trouble,
    /// The server does not have the mode that the request is for.
    NoSuchMode,
    /// The server did not answer, but had less time than a full attempt.
    CutShort,
    /// Nothing: no server is at fault.
    None,
}

impl Failure {
    pub(crate) fn of(endpoint: &Endpoint, why: impl Into<String>) -> Self {
        Self { text: format!("{endpoint}: {}", why.into()), fault: Fault::Server }
    }

    pub(crate) fn with(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// The more informative of two failures: the answer of a server rather than a timeout.
    pub(crate) fn or(self, earlier: Option<Self>) -> Self {
        match (self.fault, earlier) {
            (Fault::CutShort, Some(earlier)) => earlier,
            _ => self,
        }
    }

    /// A failure that no server is to blame for.
    pub(crate) fn of_names(why: impl Into<String>) -> Self {
        Self { text: why.into(), fault: Fault::None }
    }
}

impl From<SegmentError> for ClientError {
    fn from(error: SegmentError) -> Self {
        use SegmentErrorKind as From;

        // A server that refused says more than the buffer that had no ids for it.
        let cause = error.store_error().and_then(|error| error.cause());
        let refused = cause.and_then(|cause| cause.downcast_ref::<AskError>());
        let kind = match (error.kind(), refused) {
            (_, Some(AskError::Refused { kind, .. })) => *kind,
            (From::BadTag(_), _) => ClientErrorKind::BadTag,
            (From::BadCount { .. }, _) => ClientErrorKind::BadCount,
            (From::UnknownTag, _) => ClientErrorKind::UnknownTag,
            (From::Disabled, _) => ClientErrorKind::Disabled,
            (From::Changed, _) => ClientErrorKind::Changed,
            (From::Exhausted, _) => ClientErrorKind::Exhausted,
            (From::NoRanges | From::StrictOrder, _) => ClientErrorKind::NoRanges,
            (From::Guard, _) => ClientErrorKind::WentBack,
            (From::Closed, _) => ClientErrorKind::Closed,
            (From::Record, _) => ClientErrorKind::Refused,
            _ => ClientErrorKind::Unavailable,
        };
        let text = match (kind, cause) {
            (ClientErrorKind::Closed, _) => format!("{error}: the client was closed"),
            (_, Some(cause)) => format!("{error} ({cause})"),
            (_, None) => error.to_string(),
        };
        Self::new(kind, text)
    }
}
