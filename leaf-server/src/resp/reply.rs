//! Replies, in the second and the third version of the protocol
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! Numbers that can be greater than 2^53 are bulk strings, except in replies to `INCR` and
//! `INCRBY`. JavaScript clients make doubles of integers, which lose the last digits, so that two
//! ids become one.

use leaf_core::Id;

/// The version of Redis whose protocol this is; clients choose by it which commands they send.
pub(super) const REDIS_VERSION: &str = "7.0.0";

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// RESP2, with which every connection begins.
    Two,
    /// RESP3, which a client chooses with `HELLO 3`.
    Three,
}

/// The replies that are still to be sent.
///
/// They are collected here, and sent together once the commands that have arrived are answered.
#[derive(Debug)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
}

impl Replies {
    /// A short text without a line end, like `+OK`.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: a code in capitals, and a text.
    pub(super) fn error(&mut self, code: &str, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend_from_slice(code.as_bytes());
        self.line(b' ', text);
    }

    /// An integer of 64 bits. For numbers that can be above 2^53 use it only in replies to `INCR`
    /// and `INCRBY`: see the top of this file.
    pub(super) fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// Bytes of any kind, with their length before them.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An id as a bulk string.
    pub(super) fn id(&mut self, id: Id) {
        self.bulk(itoa::Buffer::new().format(id.get()).as_bytes());
    }

    /// No value.
    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// The head of an array of `length` elements.
    pub(super) fn array(&mut self, length: usize) {
        self.number(b'*', length as i64);
    }

    /// The head of a map of `length` pairs of a key and a value.
    pub(super) fn map(&mut self, length: usize) {
        match self.version {
            Version::Two => self.number(b'*', 2 * length as i64),
            Version::Three => self.number(b'%', length as i64),
        }
    }

    /// Pairs of a map: the key and its value, each a bulk string.
    pub(super) fn pairs(&mut self, pairs: &[(&str, &str)]) {
        for (key, value) in pairs {
            self.bulk(key.as_bytes());
            self.bulk(value.as_bytes());
        }
    }

    /// A text of several lines.
    pub(super) fn text(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text.as_bytes()),
            Version::Three => {
                self.number(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes a number after the byte of its kind.
    fn number(&mut self, kind: u8, value: i64) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a text as one line: control characters become blanks.
    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        self.bytes
            .extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies { bytes: Vec::new(), version };
        write(&mut replies);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn writes_both_versions() {
        let both = |write: fn(&mut Replies)| {
            (written(Version::Two, write), written(Version::Three, write))
        };
        let same = |text: &str| (text.to_owned(), text.to_owned());
        assert_eq!(both(|to| to.simple("OK")), same("+OK\r\n"));
        assert_eq!(both(|to| to.error("ERR", "a\r\n+OK")), same("-ERR a  +OK\r\n"), "one line");
        assert_eq!(both(|to| to.integer(-7)), same(":-7\r\n"));
        assert_eq!(both(|to| to.bulk(b"\xe8\x8e\x93")), same("$3\r\n莓\r\n"));
        let largest = "$19\r\n9223372036854775807\r\n";
        assert_eq!(both(|to| to.id(Id::new(i64::MAX).unwrap())), same(largest));
        assert_eq!(both(Replies::null), ("$-1\r\n".into(), "_\r\n".into()));
        assert_eq!(both(|to| to.map(2)), ("*4\r\n".into(), "%2\r\n".into()));
        assert_eq!(both(|to| to.text("a")), ("$1\r\na\r\n".into(), "=5\r\ntxt:a\r\n".into()));
    }
}
