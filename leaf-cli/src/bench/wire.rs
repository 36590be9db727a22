//! The bytes of a request for one id, and of its answer: HTTP/1.1 and Redis.
//!
//! No client library is used: it would use more CPU than the server, so that its speed would be
//! measured instead.

use std::fmt;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The longest answer that is read, in bytes.
const LONGEST: usize = 64 * 1024;

/// Why a request has no id.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered with this text instead of an id.
    Refused(String),
    /// The connection cannot be used any more, for this reason.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text) | Self::Broken(text) => f.write_str(text),
        }
    }
}

pub(super) fn broken(error: impl fmt::Display) -> Failure {
    Failure::Broken(error.to_string())
}

/// The protocol of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Redis,
}

/// A connection that sends one request after the other.
pub(super) struct Wire<S> {
    stream: S,
    protocol: Protocol,
    request: Arc<[u8]>,
    answer: Vec<u8>,
    /// Whether the last answer announced that the server closes the connection.
    pub(super) is_over: bool,
}

/// An answer, and how many bytes it has; whether the server closes the connection after it.
struct Answer {
    id: Result<u64, String>,
    length: usize,
    is_last: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(super) fn new(stream: S, protocol: Protocol, request: Arc<[u8]>) -> Self {
        Self { stream, protocol, request, answer: Vec::with_capacity(4096), is_over: false }
    }

    /// Sends `request`, which does not ask for an id; the server must answer `+OK`.
    pub(super) async fn greet(&mut self, request: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(request).await.map_err(broken)?;
        while !self.answer.ends_with(b"\r\n") {
            self.more().await?;
        }
        let text = String::from_utf8_lossy(&self.answer).trim().to_owned();
        self.answer.clear();
        if text == "+OK" { Ok(()) } else { Err(Failure::Broken(text)) }
    }

    /// Asks for an id.
    pub(super) async fn ask(&mut self) -> Result<u64, Failure> {
        self.stream.write_all(&self.request).await.map_err(broken)?;
        loop {
            let answer = match self.protocol {
                Protocol::Http => read_http(&self.answer),
                Protocol::Redis => read_redis(&self.answer),
            };
            if let Some(answer) = answer.map_err(broken)? {
                self.answer.drain(..answer.length);
                self.is_over = answer.is_last;
                return answer.id.map_err(Failure::Refused);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), Failure> {
        if self.answer.len() > LONGEST {
            return Err(broken("the answer is too long for an id"));
        }
        match self.stream.read_buf(&mut self.answer).await {
            Ok(0) => Err(broken("the server closed the connection")),
            Ok(_) => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }
}

/// Parses a text as a number.
fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// The first 100 characters of a server's text, in one line.
fn brief(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(100).collect()
}

/// Reads an answer over HTTP; `None` while it is incomplete.
fn read_http(bytes: &[u8]) -> Result<Option<Answer>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let begins = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("the answer is not HTTP/1.1"),
    };
    let (mut length, mut is_last) = (None, false);
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            length = number(header.value).and_then(|length| usize::try_from(length).ok());
        } else if header.name.eq_ignore_ascii_case("connection") {
            is_last = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = begins.saturating_add(length.ok_or("the answer has no Content-Length")?);
    let Some(body) = bytes.get(begins..length) else { return Ok(None) };
    let status = head.code.unwrap_or_default();
    let id = match (status, number(body)) {
        (200, Some(id)) => Ok(id),
        (200, None) => Err(format!("200, and no id: {}", brief(body))),
        _ => Err(format!("{status}: {}", detail(body))),
    };
    Ok(Some(Answer { id, length, is_last }))
}

/// The error text of a response: its `detail` if it is a problem document (RFC 9457), without the
/// fields that differ between requests.
fn detail(body: &[u8]) -> String {
    let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
    brief(detail.map_or(body, str::as_bytes))
}

/// Reads an answer of Redis' protocol; `None` while it is incomplete.
fn read_redis(bytes: &[u8]) -> Result<Option<Answer>, &'static str> {
    let Some(end) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes.get(1..end).ok_or("the answer is an empty line")?.trim_ascii_end();
    let (id, length) = match bytes[0] {
        b':' => (number(line).ok_or_else(|| format!("no id: {}", brief(line))), end + 1),
        b'-' => (Err(brief(line)), end + 1),
        b'$' if line == b"-1" => (Err("there is no such key".into()), end + 1),
        b'$' => {
            let length = number(line).and_then(|length| usize::try_from(length).ok());
            let length = length.ok_or("the answer has no length")?;
            let Some(text) = bytes.get(end + 1..end.saturating_add(length).saturating_add(1))
            else {
                return Ok(None);
            };
            if bytes.len() < end + length + 3 {
                return Ok(None);
            }
            (number(text).ok_or_else(|| format!("no id: {}", brief(text))), end + length + 3)
        }
        _ => return Err("the answer is not an id in Redis' protocol"),
    };
    Ok(Some(Answer { id, length, is_last: false }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads each answer byte by byte: it must be complete with its last byte, and not before.
    #[test]
    fn answers_are_read_when_they_are_whole() {
        type Read = fn(&[u8]) -> Result<Option<Answer>, &'static str>;
        let cases: [(Read, &str, Result<u64, &str>); 9] = [
            (read_http, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n123", Ok(123)),
            (
                read_http,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{\"a\":",
                Err("200, and no id: {\"a\":"),
            ),
            (
                read_http,
                "HTTP/1.1 503 No\r\ncontent-length: 25\r\n\r\n{\"detail\":\"no ids   now\"}",
                Err("503: no ids now"),
            ),
            (read_redis, ":123\r\n", Ok(123)),
            (read_redis, "$3\r\n123\r\n", Ok(123)),
            (read_redis, "-LOADING later\r\n", Err("LOADING later")),
            (read_redis, "$2\r\nab\r\n", Err("no id: ab")),
            (read_redis, ":-1\r\n", Err("no id: -1")),
            (read_redis, "$-1\r\n", Err("there is no such key")),
        ];
        for (read, bytes, expected) in cases {
            // A line of Redis counts from its LF on, the CR and LF behind a text are part of it.
            for end in 0..bytes.len() {
                assert!(read(&bytes.as_bytes()[..end]).unwrap().is_none(), "{bytes:?} {end}");
            }
            let more = format!("{bytes}{bytes}");
            let answer = read(more.as_bytes()).unwrap().unwrap();
            assert_eq!(answer.length, bytes.len(), "{bytes:?}");
            assert_eq!(answer.id, expected.map_err(String::from), "{bytes:?}");
        }
        assert!(read_http(b"SSH-2.0-x\r\n\r\n").is_err());
        assert!(read_http(b"HTTP/1.1 200 OK\r\n\r\n1").is_err(), "without a length");
        assert!(read_redis(b"*0\r\n").is_err());
        assert!(read_redis(b"\n").is_err());
        let last = read_http(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1");
        assert!(last.unwrap().unwrap().is_last);
    }
}
