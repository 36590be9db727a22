//! The checks of a gRPC request before it reaches a service.
//!
//! Source: gRPC over HTTP/2, "Requests" and "Length-Prefixed-Message".

use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Version};
use tonic::Code;

use super::status::{bad_request, refused};
use crate::refusal::Reason;

/// The length in bytes of a message's prefix, which holds the flag for compression and the length
/// of the message.
const PREFIX: usize = 5;

/// Whether a request is a gRPC request. A browser sends none for a web page unless the server has
/// allowed it (CORS), which this server never does.
pub(super) fn is_meant(head: &Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_grpc = ["application/grpc", "application/grpc+proto"]
        .iter()
        .any(|meant| kind.eq_ignore_ascii_case(meant));
    head.version == Version::HTTP_2 && head.method == Method::POST && is_grpc
}

/// The answer to a request that is not a gRPC request.
pub(super) fn unsupported() -> Response<tonic::body::Body> {
    let mut answer = Response::new(tonic::body::Body::empty());
    *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    answer
}

/// Checks that a body is exactly one message of at most `most` bytes; the error is a sentence for
/// the client.
pub(super) fn check(body: &[u8], most: usize) -> Result<(), String> {
    let refuse =
        |why: &str| Err(format!("a request has one message of at most {most} bytes: {why}"));
    let Some((prefix, message)) = body.split_at_checked(PREFIX) else {
        return refuse("this one has none, or a part of one");
    };
    if prefix[0] != 0 {
        return refuse("it must not be compressed");
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    match length {
        length if length > most => refuse("this one is larger"),
        length if length == message.len() => Ok(()),
        _ => refuse("this one is cut off, or followed by another one"),
    }
}

/// Replaces two errors of tonic, for a message that it cannot decode and for a method that the
/// service does not have, by refusals with Leaf's texts and reasons.
pub(super) fn explained(answer: Response<tonic::body::Body>) -> Response<tonic::body::Body> {
    let headers = answer.headers();
    let code = headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()));
    if headers.contains_key("grpc-status-details-bin") {
        return answer;
    }
    match code {
        Some(Code::Internal) => {
            let text = "the message is none of this call: is the client's leaf.proto another one?";
            bad_request(text).into_http()
        }
        Some(Code::Unimplemented) => {
            let text = "no such call: is the client's leaf.proto a later one?";
            refused(Reason::NoSuchCall, text).into_http()
        }
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_whole_message() {
        assert!(check(&[0, 0, 0, 0, 0], 3).is_ok());
        assert!(check(&[0, 0, 0, 0, 3, 1, 2, 3], 3).is_ok());
        for (body, why) in [
            (&[][..], "none"),
            (&[0, 0, 0, 0], "none"),
            (&[1, 0, 0, 0, 0], "compressed"),
            (&[0, 0, 0, 0, 4, 1, 2, 3, 4], "larger"),
            (&[0, 255, 255, 255, 255], "larger"),
            (&[0, 0, 0, 0, 2, 1], "cut off"),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "followed"),
        ] {
            let refused = check(body, 3).unwrap_err();
            assert!(refused.contains(why), "{body:?}: {refused}");
        }
    }

    #[test]
    fn what_is_grpc_says_so() {
        let head = |method: Method, kind: &'static str| {
            let request = hyper::Request::builder()
                .method(method)
                .version(Version::HTTP_2)
                .header(CONTENT_TYPE, kind)
                .body(())
                .unwrap();
            request.into_parts().0
        };
        for kind in ["application/grpc", "Application/gRPC+proto", "application/grpc; x=y"] {
            assert!(is_meant(&head(Method::POST, kind)), "{kind}");
            assert!(!is_meant(&head(Method::GET, kind)));
        }
        for kind in
            ["", "text/plain", "application/grpc-web", "application/grpc+json", "application/json"]
        {
            assert!(!is_meant(&head(Method::POST, kind)), "{kind}");
        }
    }
}
