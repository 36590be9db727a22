//! Error answers: one line of text, or problem details (RFC 9457), whichever the client accepts.

use hyper::header::{ACCEPT, ALLOW, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use leaf_node::hints;
use leaf_segment::admin::TagAdminError;
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{RegistryError, RegistryErrorKind};
use serde::Serialize;

use super::reply::{self, Reply};
use crate::ids::IdError;
use crate::refusal::Reason;
use crate::request::{self, RequestId};

/// The content type of RFC 9457.
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Why a request is refused.
///
/// The type is `urn:leaf:problem:` and a word. Programs go by the word, which never changes; the
/// detail is for people and may change.
#[derive(Debug)]
pub(super) struct Problem {
    /// Its word is the last part of the type.
    pub(super) reason: Reason,
    /// A text for people, which never contains secrets. In answers to operators it may name stores
    /// and hosts.
    pub(super) detail: String,
    /// The methods of the route, if the request had a method that the route does not have.
    allow: Option<&'static str>,
}

/// The members of problem details (RFC 9457, section 3.1).
#[derive(Serialize)]
struct Details<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    /// The URI of the request: `urn:leaf:request:` and its id.
    instance: String,
}

/// The form of an error answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One line of text.
    Text,
    /// Problem details.
    Json,
}

impl Form {
    /// The form that the client accepts; `otherwise` if it prefers neither.
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
    /// A problem with this reason and text.
    pub(super) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), allow: None }
    }

    /// The status of the answer.
    pub(super) const fn status(&self) -> StatusCode {
        match self.reason {
            Reason::BadRequest => StatusCode::BAD_REQUEST,
            Reason::Unauthorized | Reason::BadToken => StatusCode::UNAUTHORIZED,
            Reason::NoRole | Reason::Forbidden | Reason::Cut => StatusCode::FORBIDDEN,
            Reason::TooFast => StatusCode::TOO_MANY_REQUESTS,
            Reason::UnknownTag
            | Reason::Disabled
            | Reason::ModeDisabled
            | Reason::NotFound
            | Reason::NoSuchId => StatusCode::NOT_FOUND,
            Reason::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Reason::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Reason::NoTemplate
            | Reason::NoRanges
            | Reason::StrictOrder
            | Reason::Exhausted
            | Reason::Conflict
            | Reason::Unconfirmed
            | Reason::TagExists
            | Reason::UsedBefore
            | Reason::RegistryRefuses => StatusCode::CONFLICT,
            Reason::Stale => StatusCode::PRECONDITION_FAILED,
            Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::Record | Reason::EndOfTime | Reason::Failed => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Reason::NoSuchCall => StatusCode::NOT_IMPLEMENTED,
            Reason::StoreRefuses => StatusCode::BAD_GATEWAY,
            Reason::Busy
            | Reason::NoText
            | Reason::Unavailable
            | Reason::HalfDeleted
            | Reason::Unclear => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The refusal of a request that is invalid, whatever the state of the server is.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, detail)
    }

    /// There is no such route.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Reason::NotFound, detail)
    }

    /// The mode of ids that the request needs is switched off.
    pub(super) fn disabled(mode: &'static str) -> Self {
        IdError::ModeDisabled(mode).into()
    }

    /// What the request needs is unavailable now; another try in a second may succeed.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(Reason::Unavailable, detail)
    }

    /// The route does not have the method of the request, only those in `allow`.
    pub(super) fn not_allowed(allow: &'static str) -> Self {
        let detail = format!("method not allowed: use {allow}");
        Self { allow: Some(allow), ..Self::new(Reason::MethodNotAllowed, detail) }
    }

    /// The answer to a request that is refused, marked so that it is counted as a refusal.
    pub(super) fn refusal(self, form: Form, request: &RequestId) -> Reply {
        let reason = self.reason;
        reply::refused(self.shown(form, request), reason)
    }

    /// The answer with the headers that belong to its status. It is not marked as a refusal.
    pub(super) fn shown(self, form: Form, request: &RequestId) -> Reply {
        let (status, word) = (self.status(), self.reason.word());
        let mut reply = match form {
            Form::Text => reply::text(status, self.detail),
            Form::Json => {
                let details = Details {
                    r#type: format!("urn:leaf:problem:{word}"),
                    title: status.canonical_reason().unwrap_or(word),
                    status: status.as_u16(),
                    detail: &self.detail,
                    instance: format!("urn:leaf:request:{request}"),
                };
                // The details are plain texts.
                reply::reply(status, PROBLEM, serde_json::to_vec(&details).unwrap_or_default())
            }
        };
        let headers = reply.headers_mut();
        headers.insert(request::HEADER, request.value());
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.reason.is_transient() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // RFC 6750, section 3.
        let challenge = match self.reason {
            Reason::BadToken => Some("Bearer error=\"invalid_token\""),
            Reason::NoRole => Some("Bearer error=\"insufficient_scope\""),
            Reason::Unauthorized => Some("Bearer"),
            _ => None,
        };
        if let Some(challenge) = challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        reply
    }
}

/// Refuses a method that is not among `allow`, the methods of the route.
pub(super) fn check_method(method: &Method, allow: &'static str) -> Result<(), Problem> {
    let allowed = allow.split(", ").any(|name| name == method.as_str());
    allowed.then_some(()).ok_or_else(|| Problem::not_allowed(allow))
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Self {
        Self::new(error.reason(), error.text())
    }
}

/// Converts the error of an operator's request.
impl From<TagAdminError> for Problem {
    fn from(error: TagAdminError) -> Self {
        match error {
            TagAdminError::Store(error) => error.into(),
            error @ (TagAdminError::Conflict(_) | TagAdminError::NoKey(_)) => {
                let detail = hints::with(&error, hints::of_admin(&error));
                Self::new(Reason::Conflict, detail)
            }
            TagAdminError::Stale => Self::new(Reason::Stale, error.to_string()),
            // Of an advance: a deletion says more.
            TagAdminError::Unconfirmed(why) => {
                Self::new(Reason::Unconfirmed, format!("{why}; set `far` where that is meant"))
            }
            error @ TagAdminError::HalfDeleted { .. } => {
                Self::new(Reason::HalfDeleted, error.to_string())
            }
            error => Self::bad_request(error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = hints::with(&error, hints::of_store(error.kind()));
        match error.kind() {
            StoreErrorKind::UnknownTag => Self::new(Reason::UnknownTag, detail),
            StoreErrorKind::TagExists => Self::new(Reason::TagExists, detail),
            StoreErrorKind::UsedBefore(_) => Self::new(Reason::UsedBefore, detail),
            StoreErrorKind::RecordChanged | StoreErrorKind::Moved => {
                Self::new(Reason::Conflict, detail)
            }
            StoreErrorKind::Refused => Self::new(Reason::StoreRefuses, detail),
            _ => Self::unavailable(detail),
        }
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Self {
        let detail = hints::with(&error, hints::of_registry(error.kind()));
        match error.kind() {
            RegistryErrorKind::Unavailable => Self::unavailable(detail),
            _ => Self::new(Reason::RegistryRefuses, detail),
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
