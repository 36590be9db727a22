//! Reads a copy of what a client sends over HTTP/1, and detects heads that two programs may read
//! differently: the parser accepts them, and a proxy in front may see another request in them.
//!
//! Refused are a line that ends without a carriage return (RFC 9112, section 2.2),
//! `Transfer-Encoding` beside `Content-Length` (section 6.1), and a `Content-Length` that is given
//! twice, is no number, or is in a line of 64 bytes or more. Everything else is left to the parser.
//! Bodies are skipped by their length. After the head of a chunked body nothing is checked any
//! more, since the connection is closed after its answer.

use memchr::memchr;

/// How many bytes are kept of a line that comes in several reads: enough for the names that matter
/// and a length.
const KEPT: usize = 64;

/// The position in a connection's bytes, and what was seen so far of the current head.
///
/// It reads the same bytes as the parser, in the same pieces, and changes none. It skips bodies by
/// their length, as the parser does: if it took a part of a body for a head, its verdict on the
/// next request would be wrong.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Where the next byte belongs.
    at: Place,
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    /// Whether the line that has not ended yet has more bytes than `line` keeps of it.
    cut: bool,
    /// The last byte read of the line that has not ended yet, even if `line` does not keep it.
    last: u8,
    /// How many lines of the current head have ended.
    lines: usize,
    /// The `Content-Length` of the current head.
    length: Option<u64>,
    /// Whether the current head has a `Transfer-Encoding`.
    chunked: bool,
}

/// Where the next byte belongs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a head, or before one.
    #[default]
    Head,
    /// In a body; the number of bytes that are left of it.
    Body(u64),
    /// In a chunked body or after it: nothing is checked any more.
    Beyond,
}

/// A head that may be read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ambiguous;

impl Heads {
    /// Checks the bytes that were read next.
    ///
    /// # Errors
    /// A head may be read in two ways. Nothing after it can be trusted: the connection is given up.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<(), Ambiguous> {
        while !bytes.is_empty() {
            match self.at {
                Place::Beyond => return Ok(()),
                Place::Body(left) => {
                    let passed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[passed..];
                    let left = left - passed as u64;
                    self.at = if left == 0 { Place::Head } else { Place::Body(left) };
                }
                Place::Head => match memchr(b'\n', bytes) {
                    Some(end) => {
                        self.line(&bytes[..end])?;
                        bytes = &bytes[end + 1..];
                    }
                    None => {
                        self.keep(bytes);
                        return Ok(());
                    }
                },
            }
        }
        Ok(())
    }

    /// Keeps a part of a line that has not ended yet.
    fn keep(&mut self, bytes: &[u8]) {
        let room = KEPT.saturating_sub(self.line.len()).min(bytes.len());
        self.line.extend_from_slice(&bytes[..room]);
        self.cut |= room < bytes.len();
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// Checks a line that ends with `end`. If its beginning came in earlier reads, `self.line` has
    /// it.
    fn line(&mut self, end: &[u8]) -> Result<(), Ambiguous> {
        if self.line.is_empty() {
            return self.whole_line(end);
        }
        self.keep(end);
        let (mut line, cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.cut));
        if self.last != b'\r' {
            return Err(Ambiguous);
        }
        // Cut off or not, it ends as it did, and is as long as what is kept if it was longer.
        if cut || line.last() != Some(&b'\r') {
            line.push(b'\r');
        }
        self.whole_line(&line)
    }

    /// Checks a line of the head, without its line feed. Of the first line, the request line, only
    /// the carriage return is checked: the rest is left to the parser.
    fn whole_line(&mut self, line: &[u8]) -> Result<(), Ambiguous> {
        let Some(line) = line.strip_suffix(b"\r") else { return Err(Ambiguous) };
        if line.is_empty() {
            // Empty lines before a request are passed over.
            if self.lines > 0 {
                return self.head_ends();
            }
            return Ok(());
        }
        self.lines += 1;
        // The names that matter begin with these letters; to compare whole names takes longer.
        if self.lines > 1 && matches!(line[0] | 0x20, b'c' | b't') {
            if let Some(value) = value_of(line, b"content-length:") {
                // Of a line in pieces no more is kept.
                if line.len() >= KEPT {
                    return Err(Ambiguous);
                }
                let length =
                    std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
                let length = length.ok_or(Ambiguous)?;
                if self.length.replace(length).is_some() {
                    return Err(Ambiguous);
                }
            } else if value_of(line, b"transfer-encoding:").is_some() {
                self.chunked = true;
            }
        }
        Ok(())
    }

    /// Handles the empty line that ends a head: its headers decide whether a body or the next head
    /// follows.
    fn head_ends(&mut self) -> Result<(), Ambiguous> {
        self.lines = 0;
        let (length, chunked) = (self.length.take(), std::mem::take(&mut self.chunked));
        self.at = match (length, chunked) {
            (Some(_), true) => return Err(Ambiguous),
            (None, true) => Place::Beyond,
            (None | Some(0), false) => Place::Head,
            (Some(length), false) => Place::Body(length),
        };
        Ok(())
    }
}

/// The rest of a header line after `name`; `None` if the line begins with another name. `name` is
/// in lower case and ends in a colon.
fn value_of<'line>(line: &'line [u8], name: &[u8]) -> Option<&'line [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    // Most other names have another length, so that the place of the colon tells them apart.
    (start.last() == name.last() && start.eq_ignore_ascii_case(name)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// The verdict on bytes that come in pieces of this size.
    fn read(text: &str, piece: usize) -> Result<(), Ambiguous> {
        let mut heads = Heads::default();
        text.as_bytes().chunks(piece).try_for_each(|bytes| heads.read(bytes))
    }

    #[test]
    fn what_two_programs_may_read_differently_is_noticed_however_it_is_cut() {
        let head = "POST / HTTP/1.1\r\nHost: a\r\n";
        for (fine, text) in [
            (true, GET.repeat(3)),
            (true, format!("\r\n\r\n{GET}")),
            (true, format!("{head}Content-Length: 5\r\n\r\na\nb\nc{GET}")),
            (true, format!("{head}Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n")),
            (true, format!("{head}Content-Lengths: 5\r\nTransfer-Encodings: x\r\n\r\n{GET}")),
            (true, format!("{head}X: {}\r\n\r\n{GET}", "content-length:".repeat(20))),
            (false, GET.replace("\r\n", "\n")),
            (false, "GET / HTTP/1.1\nHost: a\r\n\r\n".into()),
            (false, format!("{GET}GET / HTTP/1.1\r\nHost: a\n\r\n")),
            (false, format!("{head}X: {}\n\r\n", "x".repeat(200))),
            (false, format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")),
            (false, format!("{head}transfer-ENCODING: chunked\r\ncontent-LENGTH: 5\r\n\r\n")),
            (false, format!("{head}Content-Length: 5\r\nContent-Length: 5\r\n\r\n")),
            (false, format!("{head}Content-Length: {}5\r\n\r\nhello", " ".repeat(KEPT))),
            (false, format!("{head}Content-Length: {}5\r\n\r\nhello", "0".repeat(KEPT))),
            (false, format!("{head}Content-Length: 5{}9\r\n\r\nhello", "\r".repeat(KEPT))),
            (false, format!("{head}Content-Length: five\r\n\r\nhello")),
            (false, format!("{head}Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\n")),
        ] {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(read(&text, piece).is_ok(), fine, "{piece}: {text:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_pieces_change_nothing(bytes: Vec<u8>, piece in 1usize..9) {
            let mut heads = Heads::default();
            let whole = heads.read(&bytes);
            prop_assert!(heads.line.len() <= KEPT);
            let mut heads = Heads::default();
            let cut = bytes.chunks(piece).try_for_each(|bytes| heads.read(bytes));
            prop_assert_eq!(whole, cut);
        }
    }
}
