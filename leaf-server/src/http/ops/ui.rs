//! The dashboard: files that are part of the program. They contain no data of the node, so
//! everybody may load them; the data comes from `/v1/live` and the other routes, which check the
//! viewer's token.

use hyper::StatusCode;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use super::super::reply::{self, Reply};

/// The content security policy: a page may load only the files of the dashboard, and send requests
/// only to the server that it came from.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'",
);

const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";
const STYLE_TYPE: &str = "text/css; charset=utf-8";

/// A file of the dashboard: its content type, and its content.
pub(in crate::http) type File = (&'static str, &'static str);

pub(super) const PAGE: File = ("text/html; charset=utf-8", include_str!("../../../ui/index.html"));
pub(super) const SCRIPT: File = (SCRIPT_TYPE, include_str!("../../../ui/app.js"));
pub(super) const STYLE: File = (STYLE_TYPE, include_str!("../../../ui/style.css"));
/// uPlot, which draws charts. Its licence is beside it in the repository, and in the file.
pub(super) const CHARTS: File = (SCRIPT_TYPE, include_str!("../../../ui/vendor/uPlot.iife.min.js"));
pub(super) const CHART_STYLE: File = (STYLE_TYPE, include_str!("../../../ui/vendor/uPlot.min.css"));

/// The answer with this file, and with headers that protect the viewer.
pub(super) fn show((kind, content): File) -> Reply {
    let mut reply = reply::reply(StatusCode::OK, HeaderValue::from_static(kind), content);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    reply
}
