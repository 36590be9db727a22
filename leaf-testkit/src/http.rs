//! A small HTTP/1.1 client for tests: one connection, kept alive, pipelined where asked.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection to a server on this machine.
#[derive(Debug)]
pub struct HttpClient {
    stream: BufReader<TcpStream>,
}

/// An answer of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Response {
    /// The body, which must be JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The value of a header, whose name is given in lower case; `None` if it is missing.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl HttpClient {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Returns the connection. Call it only after every answer was read: bytes in the buffer are
    /// lost.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream.into_inner()
    }

    /// One request, on a connection of its own.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn once(address: SocketAddr, method: &str, path: &str) -> Response {
        let answer = Self::connect(address).and_then(|mut client| client.request(method, path));
        answer.unwrap_or_else(|error| panic!("{method} {path} at {address}: {error}"))
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// When the connection ends or the answer is not HTTP.
    pub fn request(&mut self, method: &str, path: &str) -> io::Result<Response> {
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        match method {
            "HEAD" => self.read_head(),
            _ => self.read(),
        }
    }

    /// Sends a request with more headers (each line ends with `\r\n`) and a body, and reads its
    /// answer.
    ///
    /// # Errors
    /// When the connection ends or the answer is not HTTP.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> io::Result<Response> {
        let length = body.len();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        ))?;
        self.read()
    }

    /// Sends `count` GET requests at once, and passes each answer to `each` as soon as it is read.
    /// So the answers that arrived before a connection broke are counted, too.
    ///
    /// # Errors
    /// When the connection ends or an answer is not HTTP.
    pub fn pipeline(
        &mut self,
        path: &str,
        count: usize,
        mut each: impl FnMut(Response),
    ) -> io::Result<()> {
        let mut requests = String::new();
        for _ in 0..count {
            let _ = write!(requests, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        // An error of the sending may come before all answers were read.
        let sent = self.send(&requests);
        for _ in 0..count {
            each(self.read().map_err(|error| sent.as_ref().err().map_or(error, copy))?);
        }
        sent
    }

    /// Sends `count` GET requests for ids at once. Each must succeed; its id is passed to `each` as
    /// soon as it is read.
    ///
    /// # Errors
    /// When the connection ends.
    ///
    /// # Panics
    /// When an answer is not 200 with a number.
    pub fn ids(&mut self, path: &str, count: usize, mut each: impl FnMut(i64)) -> io::Result<()> {
        self.pipeline(path, count, |answer| {
            let id = answer.body.parse().ok().filter(|_| answer.status == 200);
            each(id.unwrap_or_else(|| panic!("{path}: {} {}", answer.status, answer.body)));
        })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(text.as_bytes())
    }

    /// Reads one answer.
    ///
    /// # Errors
    /// When the connection ends or the answer is not HTTP.
    pub fn read(&mut self) -> io::Result<Response> {
        let head = self.read_head()?;
        let bad = |_| io::Error::new(io::ErrorKind::InvalidData, "a bad length of a chunk");
        let mut body = Vec::new();
        if head.header("transfer-encoding") == Some("chunked") {
            loop {
                let length = usize::from_str_radix(&self.line()?, 16).map_err(bad)?;
                self.read_more(&mut body, length)?;
                self.line()?;
                if length == 0 {
                    break;
                }
            }
        } else {
            let length = head.header("content-length").and_then(|length| length.parse().ok());
            self.read_more(&mut body, length.unwrap_or(0))?;
        }
        let body = String::from_utf8(body);
        let bad = |_| io::Error::new(io::ErrorKind::InvalidData, "a body that is not UTF-8");
        Ok(Response { body: body.map_err(bad)?, ..head })
    }

    fn read_more(&mut self, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
        let before = body.len();
        body.resize(before + length, 0);
        self.stream.read_exact(&mut body[before..])
    }

    /// Reads the head of an answer: its status and headers. An answer to HEAD has nothing else.
    fn read_head(&mut self) -> io::Result<Response> {
        let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| bad(&status_line))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Response { status, headers, body: String::new() })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// Encodes a frame of HTTP/2 (RFC 9113, section 4.1), to send what no client would send.
///
/// # Panics
/// If the payload is larger than a frame can be.
#[must_use]
pub fn http2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    assert_eq!(length[0], 0, "a frame has a length of three bytes");
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head[..], payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_before_the_connection_died_counts() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7";
            stream.write_all(answer.repeat(3).as_bytes()).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").unwrap();
        });
        let mut read = Vec::new();

        let mut client = HttpClient::connect(address).unwrap();
        let ended = client.ids("/", 5, |id| read.push(id));

        assert!(ended.is_err());
        assert_eq!(read, [7, 7, 7]);
        server.join().unwrap();
    }
}
