//! Answers that are errors: one line of text, or problem details as RFC 9457 has them, as the
//! client accepts.

use hyper::header::{ACCEPT, ALLOW, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use leaf_node::hints;
use leaf_segment::{StoreError, StoreErrorKind, TagAdminError};
use leaf_snowflake::{RegistryError, RegistryErrorKind};
use serde::Serialize;

use super::reply::{self, Reply};
use crate::ids::{IdError, Reason};

/// The content type of RFC 9457.
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The last part of the problem type of a tag that does not exist.
const UNKNOWN_TAG: &str = "unknown-tag";
/// The last part of the problem type of what another try may cure.
const UNAVAILABLE: &str = "unavailable";

/// Why a request is not answered as its client hoped.
///
/// The type is `urn:leaf:problem:` and a word: programs go by the word, which never changes; the
/// detail is for people and may.
#[derive(Debug)]
pub(super) struct Problem {
    /// The status of the answer.
    pub(super) status: StatusCode,
    /// The last part of its type.
    pub(super) kind: &'static str,
    /// For people, and never with secrets. For operators it may name stores and hosts.
    pub(super) detail: String,
    /// The methods of the route, where the request had another.
    allow: Option<&'static str>,
}

/// RFC 9457, section 3.1.
#[derive(Serialize)]
struct Details<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

/// In which form errors are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One line of text.
    Text,
    /// Problem details.
    Json,
}

impl Form {
    /// What the client accepts; `otherwise` where it does not care.
    pub(super) fn accepted(headers: &HeaderMap, otherwise: Self) -> Self {
        let (mut text, mut json) = (0.0f32, 0.0f32);
        let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        for range in accepts.flat_map(|accept| accept.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            let quality = quality.and_then(|quality| quality.parse().ok()).unwrap_or(1.0);
            match kind {
                "text/plain" | "text/*" => text = text.max(quality),
                "application/problem+json" | "application/json" | "application/*" => {
                    json = json.max(quality);
                }
                _ => {}
            }
        }
        if text > json {
            Self::Text
        } else if json > text {
            Self::Json
        } else {
            otherwise
        }
    }
}

impl Problem {
    /// A problem of a status and the word of its type.
    pub(super) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), allow: None }
    }

    /// The request makes no sense, whatever the state of the server is.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// There is no such route.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// The mode that it needs is switched off.
    pub(super) fn disabled(mode: &'static str) -> Self {
        IdError::ModeDisabled(mode).into()
    }

    /// Worth another try in a second.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, detail)
    }

    /// Whether the tag does not exist.
    pub(super) fn is_unknown_tag(&self) -> bool {
        self.kind == UNKNOWN_TAG
    }

    /// The route has other methods.
    pub(super) fn not_allowed(allow: &'static str) -> Self {
        let detail = format!("method not allowed: use {allow}");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self { allow: Some(allow), ..Self::new(status, "method-not-allowed", detail) }
    }

    /// The answer, with the headers that belong to its status.
    pub(super) fn reply(&self, form: Form) -> Reply {
        let mut reply = match form {
            Form::Text => reply::text(self.status, self.detail.clone()),
            Form::Json => {
                let details = Details {
                    r#type: format!("urn:leaf:problem:{}", self.kind),
                    title: self.status.canonical_reason().unwrap_or(self.kind),
                    status: self.status.as_u16(),
                    detail: &self.detail,
                };
                // The details are plain texts.
                reply::reply(self.status, PROBLEM, serde_json::to_vec(&details).unwrap_or_default())
            }
        };
        let headers = reply.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        match self.status {
            // Of what may have been done the client must not make sure by doing it again.
            StatusCode::SERVICE_UNAVAILABLE if self.kind == UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        reply
    }
}

/// The methods of a route, by which others are refused.
pub(super) fn check_method(method: &Method, allow: &'static str) -> Result<(), Problem> {
    let allowed = allow.split(", ").any(|name| name == method.as_str());
    allowed.then_some(()).ok_or_else(|| Problem::not_allowed(allow))
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Self {
        let reason = error.reason();
        let status = match reason {
            Reason::BadRequest => StatusCode::BAD_REQUEST,
            Reason::UnknownTag | Reason::Disabled | Reason::ModeDisabled => StatusCode::NOT_FOUND,
            Reason::NoTemplate | Reason::NoRanges | Reason::StrictOrder | Reason::Exhausted => {
                StatusCode::CONFLICT
            }
            Reason::Record | Reason::EndOfTime => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Busy | Reason::NoText | Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, reason.word(), error.text())
    }
}

/// For operators.
impl From<TagAdminError> for Problem {
    fn from(error: TagAdminError) -> Self {
        match error {
            TagAdminError::Store(error) => error.into(),
            TagAdminError::Conflict(why) => Self::new(StatusCode::CONFLICT, "conflict", why),
            // Of an advance: a deletion says more.
            TagAdminError::Unconfirmed(why) => Self::new(
                StatusCode::CONFLICT,
                "unconfirmed",
                format!("{why}; set `far` where that is meant"),
            ),
            error @ TagAdminError::HalfDeleted { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "half-deleted", error.to_string())
            }
            error => Self::bad_request(error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = hints::with(&error, hints::of_store(error.kind()));
        match error.kind() {
            StoreErrorKind::UnknownTag => Self::new(StatusCode::NOT_FOUND, UNKNOWN_TAG, detail),
            StoreErrorKind::TagExists => Self::new(StatusCode::CONFLICT, "tag-exists", detail),
            StoreErrorKind::UsedBefore(_) => Self::new(StatusCode::CONFLICT, "used-before", detail),
            StoreErrorKind::RecordChanged | StoreErrorKind::Moved => {
                Self::new(StatusCode::CONFLICT, "conflict", detail)
            }
            StoreErrorKind::Refused => Self::new(StatusCode::BAD_GATEWAY, "store-refuses", detail),
            _ => Self::unavailable(detail),
        }
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Self {
        let detail = hints::with(&error, hints::of_registry(error.kind()));
        match error.kind() {
            RegistryErrorKind::Unavailable => Self::unavailable(detail),
            _ => Self::new(StatusCode::CONFLICT, "registry-refuses", detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str, otherwise: Form) -> Form {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        Form::accepted(&headers, otherwise)
    }

    #[test]
    fn errors_are_told_as_the_client_accepts() {
        assert_eq!(form("*/*", Form::Text), Form::Text);
        assert_eq!(form("*/*", Form::Json), Form::Json);
        assert_eq!(form("application/json", Form::Text), Form::Json);
        assert_eq!(form("application/problem+json, text/plain;q=0.5", Form::Text), Form::Json);
        assert_eq!(form("text/plain, */*;q=0.1", Form::Json), Form::Text);
        assert_eq!(form("application/json;q=0, text/*;q=0.2", Form::Json), Form::Text);
        assert_eq!(form(";;,,q=", Form::Json), Form::Json);
        assert_eq!(Form::accepted(&HeaderMap::new(), Form::Json), Form::Json);
    }
}
