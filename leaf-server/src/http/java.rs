//! The pages of the Java Leaf: a decoded snowflake id in its JSON form, and redirects for its
//! tables, which are on the ops listener here.

use hyper::StatusCode;
use hyper::header::{HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use leaf_node::config::TlsMode;
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::reply::{self, Reply};
use crate::decoded;
use crate::node::Node;
use crate::refusal::Reason;

/// Answers `GET /decodeSnowflakeId?snowflakeId=N` in the JSON form of the Java Leaf, like
/// `{"timestamp": "1567733700834(2019-09-06 09:35:00.834)", "workerId": "3", "sequenceId": "39"}`.
pub(super) fn decode(node: &Node, query: Option<&str>) -> Reply {
    let value =
        query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("snowflakeId="));
    let parsed = match value {
        Some(value) => decoded::parse(node, &percent_decode_str(value).decode_utf8_lossy()),
        None => Err("is missing: write /decodeSnowflakeId?snowflakeId=N"),
    };
    let parts = match parsed {
        Ok((_, parts)) => parts,
        Err(why) => {
            let why = format!("snowflakeId {why}");
            let answer = reply::json(StatusCode::BAD_REQUEST, &json!({ "errorMsg": why }));
            return reply::refused(answer, Reason::BadRequest);
        }
    };
    let local = decoded::time(node, parts, "(%Y-%m-%d %H:%M:%S%.3f)").unwrap_or_default();
    let (datacenter, worker) = node.layout.datacenter_of(parts.worker);
    let mut decoded = json!({
        "timestamp": format!("{}{local}", parts.timestamp),
        "workerId": worker.to_string(),
        "sequenceId": parts.sequence.to_string(),
    });
    if node.layout.datacenter_bits() > 0 {
        decoded["datacenterId"] = datacenter.to_string().into();
    }
    reply::json(StatusCode::OK, &decoded)
}

/// Redirects the request to its path on the ops listener, under the name that the client used for
/// this host. If the client cannot reach that listener (it is on loopback and the client is not, or
/// a proxy is in between), the answer is 404 and says where the page is.
pub(super) fn on_ops(node: &Node, head: &Parts) -> Reply {
    let named = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    let named = named.or_else(|| head.uri.authority().map(Authority::as_str));
    let authority = named.and_then(|host| host.parse::<Authority>().ok());
    let proxied = ["forwarded", "x-forwarded-for", "x-forwarded-host", "via"];
    let proxied = proxied.iter().any(|header| head.headers.contains_key(*header));
    let is_loopback = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
    };
    let from_here = authority.as_ref().is_some_and(|authority| is_loopback(authority.host()));
    if proxied || node.ops.ip().is_loopback() && !from_here {
        let (path, ops) = (head.uri.path(), node.ops);
        let place = match ops.ip().is_unspecified() {
            true => format!("port {}", ops.port()),
            false => ops.to_string(),
        };
        let told = format!("{path} is on the ops listener of this node, {place} (key ops.listen)");
        return reply::refused(reply::text(StatusCode::NOT_FOUND, told), Reason::NotFound);
    }
    // Listening on one address, that is where it is.
    let host = match (authority, node.ops.ip()) {
        (Some(authority), ip) if ip.is_unspecified() || ip.is_loopback() => {
            authority.host().to_owned()
        }
        (_, std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        (_, ip) => ip.to_string(),
    };
    let scheme = if node.config.ops.tls == TlsMode::Required { "https" } else { "http" };
    let to = format!("{scheme}://{host}:{}{}", node.ops.port(), head.uri.path());
    // An authority and one of two paths are visible ASCII.
    reply::redirect(HeaderValue::try_from(to).unwrap_or(HeaderValue::from_static("/")))
}
