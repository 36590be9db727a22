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

/// A file of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum File {
    Page,
    Script,
    Style,
    /// uPlot, which draws charts. Its licence is beside it in the repository, and in the file.
    Charts,
    ChartStyle,
}

impl File {
    /// The content type and the content of the file.
    const fn content(self) -> (&'static str, &'static str) {
        match self {
            Self::Page => ("text/html; charset=utf-8", include_str!("../../../ui/index.html")),
            Self::Script => ("text/javascript; charset=utf-8", include_str!("../../../ui/app.js")),
            Self::Style => ("text/css; charset=utf-8", include_str!("../../../ui/style.css")),
            Self::Charts => (
                "text/javascript; charset=utf-8",
                include_str!("../../../ui/vendor/uPlot.iife.min.js"),
            ),
            Self::ChartStyle => {
                ("text/css; charset=utf-8", include_str!("../../../ui/vendor/uPlot.min.css"))
            }
        }
    }
}

/// The answer with this file, and with headers that protect the viewer.
pub(super) fn show(file: File) -> Reply {
    let (kind, content) = file.content();
    let mut reply = reply::reply(StatusCode::OK, HeaderValue::from_static(kind), content);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    reply
}
