//! Request ids and spans. An error shows the id of its request, and the log, the audit log and
//! traces record it, so that a person who got an error can find out what became of the request.
//!
//! A client, or a proxy in front, may send an id in [`HEADER`]; else the server draws a random one.
//! The id is for people: the server decides nothing by it. A request that is answered at once has
//! no span, which would cost more than the answer.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use tracing::{Instrument as _, Span};

#[cfg(feature = "otlp")]
use crate::log::traces;
use crate::refusal::Face;

/// The header in which a client may send a request id, and in which an error returns it.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is accepted from a client, in bytes; a UUID has 36.
const LONGEST: usize = 64;
/// The longest path that a span records, in bytes; a longer one is cut.
const LONGEST_PATH: usize = 256;

/// The id of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestId {
    text: IdText,
    /// The client's header that names its trace, if traces are exported.
    #[cfg(feature = "otlp")]
    parent: Option<HeaderValue>,
}

#[derive(Debug, Clone)]
enum IdText {
    /// The id that the client sent.
    Given(HeaderValue),
    /// A random number that this server has drawn.
    Drawn(u64),
}

impl RequestId {
    /// The id that the client sent, if it can be logged unchanged; else a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = match headers.get(HEADER).filter(|given| is_plain(given.as_bytes())) {
            Some(given) => IdText::Given(given.clone()),
            None => IdText::Drawn(fastrand::u64(..)),
        };
        Self {
            text,
            #[cfg(feature = "otlp")]
            parent: traces::parent(headers),
        }
    }

    /// The id as the value of a header.
    pub(crate) fn value(&self) -> HeaderValue {
        match &self.text {
            IdText::Given(given) => given.clone(),
            IdText::Drawn(_) => {
                HeaderValue::from_str(&self.to_string()).expect("hexadecimal digits are a value")
            }
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            // It has plain characters alone.
            IdText::Given(given) => f.write_str(given.to_str().unwrap_or_default()),
            IdText::Drawn(number) => write!(f, "{number:016x}"),
        }
    }
}

/// The span of a request.
pub(crate) fn span(face: Face, id: &RequestId, method: &Method, uri: &Uri) -> Span {
    let path = uri.path();
    let path = path.get(..LONGEST_PATH).unwrap_or(path);
    let span = tracing::info_span!("request", %id, on = face.name(), %method, path);
    #[cfg(feature = "otlp")]
    traces::join(&span, id.parent.as_ref());
    span
}

/// Runs `answer`. If it has to wait, the rest of it runs in the span that `span` makes.
pub(crate) async fn in_span_once_it_waits<T>(
    answer: impl Future<Output = T>,
    span: impl FnOnce() -> Span,
) -> T {
    let mut answer = pin!(answer);
    match poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
        Poll::Ready(answer) => answer,
        Poll::Pending => answer.instrument(span()).await,
    }
}

/// Whether an id is short enough, and has only characters without a special meaning in logs.
fn is_plain(given: &[u8]) -> bool {
    let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    (1..=LONGEST).contains(&given.len()) && given.iter().all(is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_bytes(given).unwrap());
        RequestId::of(&headers).to_string()
    }

    #[test]
    fn a_plain_id_of_the_client_is_kept_and_any_other_replaced() {
        let longest = "x".repeat(LONGEST);
        for kept in ["0f8b-41aa_x.1:2", &longest] {
            assert_eq!(of(kept.as_bytes()), kept);
        }
        let too_long = "x".repeat(LONGEST + 1);
        for replaced in ["", "a b", "a\"b", "<b>", "\u{e9}", "a,b", &too_long] {
            let drawn = of(replaced.as_bytes());
            assert_eq!(drawn.len(), 16, "{replaced:?} became {drawn:?}");
            assert!(drawn.bytes().all(|byte| byte.is_ascii_hexdigit()), "{drawn:?}");
        }
        assert_ne!(of(b""), of(b""));
        let drawn = RequestId::of(&HeaderMap::new());
        assert_eq!(drawn.value(), drawn.to_string());
    }
}
