//! The routes of the ids listener: those of the Java Leaf.

use std::borrow::Cow;

use hyper::{Method, Request, StatusCode};
use leaf_core::{Clock, Id};
use leaf_segment::{SegmentError, SegmentErrorKind};
use leaf_snowflake::SystemClock;
use percent_encoding::percent_decode_str;

use super::answer::{Answer, not_allowed, text, try_again};
use super::{Generators, decode};

/// Answers a request. The body, if there is one, is not read.
pub(super) async fn route<B>(generators: &Generators, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    let read_only = matches!(*request.method(), Method::GET | Method::HEAD);
    if let Some(key) = path.strip_prefix("/api/segment/get/") {
        return match *request.method() {
            Method::GET | Method::POST => segment(generators, key).await,
            _ => not_allowed("GET, POST"),
        };
    }
    if let Some(key) = path.strip_prefix("/api/snowflake/get/") {
        return match *request.method() {
            Method::GET | Method::POST => snowflake(generators, key).await,
            _ => not_allowed("GET, POST"),
        };
    }
    match path {
        "/decodeSnowflakeId" if read_only => decode::answer(generators, request.uri().query()),
        "/decodeSnowflakeId" => not_allowed("GET"),
        "/clock" if read_only => text(StatusCode::OK, SystemClock.wall_millis().to_string()),
        "/clock" => not_allowed("GET"),
        "/healthz" | "/readyz" => text(StatusCode::NOT_FOUND, "health is on the ops listener"),
        _ => text(StatusCode::NOT_FOUND, "no such route: try /api/segment/get/{tag}"),
    }
}

async fn segment(generators: &Generators, key: &str) -> Answer {
    let Some(segments) = &generators.segment else {
        return text(StatusCode::NOT_FOUND, "segment mode is disabled");
    };
    let key = match decode_key(key) {
        Ok(key) => key,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let handle = match segments.known(&key) {
        Some(handle) => handle,
        None => match segments.tag(&key).await {
            Ok(handle) => handle,
            Err(error) => return segment_error(&error),
        },
    };
    match handle.next().await {
        Ok(id) => issued(id),
        Err(error) => segment_error(&error),
    }
}

fn segment_error(error: &SegmentError) -> Answer {
    match error.kind() {
        SegmentErrorKind::BadTag(why) => text(StatusCode::BAD_REQUEST, why.to_string()),
        SegmentErrorKind::UnknownTag | SegmentErrorKind::Disabled => {
            text(StatusCode::NOT_FOUND, error.to_string())
        }
        SegmentErrorKind::Exhausted => text(StatusCode::CONFLICT, error.to_string()),
        SegmentErrorKind::Guard | SegmentErrorKind::Record => {
            text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
        _ => try_again(error.to_string()),
    }
}

/// The key is not used, as in the Java Leaf; the path must have one all the same.
async fn snowflake(generators: &Generators, key: &str) -> Answer {
    let Some(flakes) = generators.snowflake() else {
        return text(StatusCode::NOT_FOUND, "snowflake mode is disabled");
    };
    match decode_key(key) {
        Ok(key) if key.is_empty() => {
            return text(StatusCode::BAD_REQUEST, "key is empty: any other will do");
        }
        Ok(_) => {}
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    }
    match flakes.next().await {
        Ok(id) => issued(id),
        Err(error) => try_again(error.to_string()),
    }
}

fn issued(id: Id) -> Answer {
    text(StatusCode::OK, id.to_string())
}

/// Decodes `%xx` once, strictly.
fn decode_key(key: &str) -> Result<Cow<'_, str>, &'static str> {
    let bytes = key.as_bytes();
    let well_formed = bytes.iter().enumerate().all(|(at, byte)| {
        *byte != b'%'
            || bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    });
    if !well_formed {
        return Err("key is not valid percent-encoding: write % as %25");
    }
    percent_decode_str(key).decode_utf8().map_err(|_| "key is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_once_and_strictly() {
        assert_eq!(decode_key("orders.v1"), Ok("orders.v1".into()));
        assert_eq!(decode_key("a%2Fb%20c"), Ok("a/b c".into()));
        assert_eq!(decode_key("%25zz"), Ok("%zz".into()));
        assert_eq!(decode_key("%E8%AE%A2%E5%8D%95"), Ok("订单".into()));
        for bad in ["%", "%2", "%zz", "a%+1"] {
            assert!(decode_key(bad).unwrap_err().contains("percent-encoding"), "{bad}");
        }
        assert_eq!(decode_key("%ff"), Err("key is not UTF-8"));
    }
}
