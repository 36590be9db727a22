//! A client of the Redis protocol that can send any bytes, and returns errors as replies, too.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A reply. The comment of each variant shows how such a reply begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisReply {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(String),
    /// `_`, or `$-1`
    Null,
    /// `*`
    Array(Vec<RedisReply>),
    /// `%`, keys and values one after the other
    Map(Vec<RedisReply>),
}

/// One connection.
#[derive(Debug)]
pub struct RedisClient {
    stream: BufReader<TcpStream>,
}

impl RedisClient {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Encodes a command as clients send it.
    #[must_use]
    pub fn encode(words: &[&str]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        bytes
    }

    /// Sends one command and reads its reply.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn command(&mut self, words: &[&str]) -> io::Result<RedisReply> {
        self.send(&Self::encode(words))?;
        self.read()
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// When the connection ends before the reply, or the reply is invalid.
    pub fn read(&mut self) -> io::Result<RedisReply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| invalid(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| invalid(&line));
        let count = || usize::try_from(number()?).map_err(|_| invalid(&line));
        Ok(match kind {
            "+" => RedisReply::Simple(rest.into()),
            "-" => RedisReply::Error(rest.into()),
            ":" => RedisReply::Integer(number()?),
            "_" => RedisReply::Null,
            "$" if rest == "-1" => RedisReply::Null,
            "$" | "=" => RedisReply::Bulk(self.bulk(count()?)?),
            "*" => RedisReply::Array((0..count()?).map(|_| self.read()).collect::<Result<_, _>>()?),
            "%" => {
                RedisReply::Map((0..2 * count()?).map(|_| self.read()).collect::<Result<_, _>>()?)
            }
            _ => return Err(invalid(&line)),
        })
    }

    fn bulk(&mut self, length: usize) -> io::Result<String> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|_| invalid("no UTF-8"))?;
        text.strip_suffix("\r\n").map(Into::into).ok_or_else(|| invalid(&text))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.into()),
            None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Err(invalid(&line)),
        }
    }
}

impl RedisReply {
    /// The id in this reply, whether it is an integer or a bulk string; `None` for any other reply.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        match self {
            Self::Integer(id) => Some(*id),
            Self::Bulk(text) => text.parse().ok(),
            _ => None,
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no reply: {what:?}"))
}
