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

/// What the server answered.
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
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The value of a header.
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

    /// Sends a request with more headers (each line ends with `\r\n`) and a body, and reads its answer.
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

    /// Sends `count` GET requests at once and reads their answers.
    ///
    /// # Errors
    /// When the connection ends or an answer is not HTTP.
    pub fn pipeline(&mut self, path: &str, count: usize) -> io::Result<Vec<Response>> {
        let mut requests = String::new();
        for _ in 0..count {
            let _ = write!(requests, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        self.send(&requests)?;
        (0..count).map(|_| self.read()).collect()
    }

    /// The same for ids, all of which must be handed out.
    ///
    /// # Errors
    /// When the connection ends, or an answer is not 200 with a number.
    pub fn ids(&mut self, path: &str, count: usize) -> io::Result<Vec<i64>> {
        let answers = self.pipeline(path, count)?;
        let id = |answer: Response| {
            let id = answer.body.parse().ok().filter(|_| answer.status == 200);
            id.ok_or_else(|| io::Error::other(format!("{path}: {} {}", answer.status, answer.body)))
        };
        answers.into_iter().map(id).collect()
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
        let length = head.header("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8(body);
        let bad = |_| io::Error::new(io::ErrorKind::InvalidData, "a body that is not UTF-8");
        Ok(Response { body: body.map_err(bad)?, ..head })
    }

    /// Reads an answer that has no body, as that to HEAD.
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
