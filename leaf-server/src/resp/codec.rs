//! Commands as they arrive: arrays of bulk strings, or lines that somebody typed
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! A command is read in place, and nothing is copied. Invariant: the result does not depend on how
//! the network splits the bytes, and no client can make the server wait for more than [`LARGEST`]
//! bytes of one command.

use std::ops::Range;

/// The longest command, in bytes.
pub(super) const LARGEST: usize = 64 * 1024;
/// The longest name of a tag, in bytes: 128 characters.
const LONGEST_TAG: usize = 4 * 128;
/// The most words of a command.
const MOST_WORDS: usize = 1024;

/// The words of a command: the range of each in the input. Reused for the next command.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<Range<usize>>);

impl Words {
    /// The words themselves; `input` must be the bytes that they were read from.
    pub(super) fn of<'a>(&'a self, input: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.0.iter().map(|at| &input[at.clone()])
    }

    /// Removes the words, and all room but that for the words of an ordinary command.
    pub(super) fn shrink(&mut self) {
        self.0.clear();
        self.0.shrink_to(8);
    }

    /// How many words the command has, its name included.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The word of this number, 0 is the name; empty if the command has fewer words.
    pub(super) fn word<'a>(&self, input: &'a [u8], number: usize) -> &'a [u8] {
        self.0.get(number).map_or(&[], |at| &input[at.clone()])
    }
}

/// The input is not a valid command, or is too long. Then the beginning of the next command cannot
/// be found, so the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// The number of words is invalid or too great.
    #[error("invalid multibulk length")]
    Count,
    /// The length of a word is invalid or too great.
    #[error("invalid bulk length")]
    Length,
    /// A word does not begin with `$`.
    #[error("expected '$', got something else")]
    NoBulk,
    /// A word is longer than its length says.
    #[error("a bulk string does not end with CR LF")]
    NoEnd,
    /// The command is longer than [`LARGEST`].
    #[error("the command is longer than 64 KiB")]
    TooLong,
}

/// Reads the first command of `input`. Returns its length in bytes, or `None` while a part of it is
/// missing. A command without words, such as an empty line, is valid: it asks for nothing.
pub(super) fn read(input: &[u8], words: &mut Words) -> Result<Option<usize>, Malformed> {
    let complete = match input.first() {
        None => return Ok(None),
        Some(b'*') => read_array(input, &mut words.0)?,
        Some(_) => read_line(input, &mut words.0)?,
    };
    match complete {
        Some(length) if length <= LARGEST => Ok(Some(length)),
        None if input.len() < LARGEST => Ok(None),
        _ => Err(Malformed::TooLong),
    }
}

/// The tag and the length of the first command of `input`, if it is a whole `INCR` as client
/// libraries write it. A quick check: it is `None` for anything else, even if [`read`] would find
/// an `INCR`.
pub(super) fn increment(input: &[u8]) -> Option<(&str, usize)> {
    /// The beginning of `INCR` with one argument, as most clients send it.
    const CAPITALS: &[u8] = b"*2\r\n$4\r\nINCR\r\n$";
    /// The beginning of `incr` with one argument, for clients that write commands in small letters.
    const LETTERS: &[u8] = b"*2\r\n$4\r\nincr\r\n$";
    let (beginning, _) = input.split_at_checked(CAPITALS.len())?;
    if beginning != CAPITALS && beginning != LETTERS {
        return None;
    }
    let (length, start) = number(input, CAPITALS.len(), Malformed::Length).ok()??;
    let end = start + usize::try_from(length).ok().filter(|length| *length <= LONGEST_TAG)?;
    let ends = input.get(end..end + 2)? == b"\r\n";
    let tag = std::str::from_utf8(&input[start..end]).ok().filter(|_| ends)?;
    Some((tag, end + 2))
}

/// Reads an array of words, like `*2\r\n$4\r\nINCR\r\n$6\r\norders\r\n`: a count, then each word
/// with its length before it. Returns the command's length in bytes, or `None` while a part of it
/// is missing. A count or a length above its limit is refused as soon as it is read, so that no
/// client can make the server wait for such a word; [`read`] limits the command as a whole.
fn read_array(input: &[u8], words: &mut Vec<Range<usize>>) -> Result<Option<usize>, Malformed> {
    words.clear();
    let Some((count, mut at)) = number(input, 1, Malformed::Count)? else { return Ok(None) };
    // Nothing, as Redis has it.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MOST_WORDS {
        return Err(Malformed::Count);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(Malformed::NoBulk),
        }
        let Some((length, start)) = number(input, at + 1, Malformed::Length)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= LARGEST);
        let end = start + length.ok_or(Malformed::Length)?;
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Malformed::NoEnd),
            // A byte that is wrong already is told with the one that follows.
            None => return Ok(None),
        }
        words.push(start..end);
        at = end + 2;
    }
    Ok(Some(at))
}

/// Returns the number from `at` to the end of its line, and where the next line begins; `None`
/// while a part of the line is missing, the error `wrong` if it is not a number.
///
/// At most ten digits, so that no number overflows. A number that cannot become valid any more is
/// refused before its line is complete.
#[inline]
fn number(input: &[u8], at: usize, wrong: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let (negative, start) = match input.get(at) {
        None => return Ok(None),
        Some(b'-') => (true, at + 1),
        Some(_) => (false, at),
    };
    let mut value = 0i64;
    for (length, byte) in input[start.min(input.len())..].iter().enumerate() {
        match byte {
            b'0'..=b'9' if length < 10 => value = value * 10 + i64::from(byte - b'0'),
            b'\r' if length > 0 => {
                return match input.get(start + length + 1) {
                    None => Ok(None),
                    Some(b'\n') => {
                        let value = if negative { -value } else { value };
                        Ok(Some((value, start + length + 2)))
                    }
                    Some(_) => Err(wrong),
                };
            }
            _ => return Err(wrong),
        }
    }
    Ok(None)
}

/// A line of words with blanks between them.
///
/// As typed into `nc` or telnet. There is no quoting: no argument of any command has blanks in it.
fn read_line(input: &[u8], words: &mut Vec<Range<usize>>) -> Result<Option<usize>, Malformed> {
    words.clear();
    let end = memchr::memchr(b'\n', &input[..input.len().min(LARGEST)]);
    let Some(end) = end else { return Ok(None) };
    let mut at = 0;
    for word in input[..end].split(u8::is_ascii_whitespace) {
        if words.len() == MOST_WORDS {
            return Err(Malformed::Count);
        }
        if !word.is_empty() {
            words.push(at..at + word.len());
        }
        at += word.len() + 1;
    }
    Ok(Some(end + 1))
}

/// The most equal commands that are answered at once: so many replies fit into a buffer.
const AT_ONCE: usize = 128;
/// The most bytes of a word that are repeated in an error.
const REPEATED: usize = 64;

/// How many equal commands `input` begins with, [`AT_ONCE`] at most. Each has `length` bytes.
pub(super) fn equal_commands(input: &[u8], length: usize) -> usize {
    let (command, rest) = input.split_at(length);
    let following = rest.chunks_exact(length).take(AT_ONCE - 1);
    1 + following.take_while(|next| *next == command).count()
}

/// A word as text: names of tags are UTF-8.
pub(super) fn text(word: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(word).map_err(|_| "an argument is not UTF-8".into())
}

/// A part of a client's word, for an error, without control characters.
pub(super) fn repeated(word: &[u8]) -> String {
    let part = String::from_utf8_lossy(&word[..word.len().min(REPEATED)]);
    part.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Outcome = Result<Option<(Vec<Vec<u8>>, usize)>, Malformed>;

    fn outcome(input: &[u8]) -> Outcome {
        let mut words = Words::default();
        let length = read(input, &mut words)?;
        Ok(length.map(|length| (words.of(input).map(<[u8]>::to_vec).collect(), length)))
    }

    fn command(words: &[&str]) -> Outcome {
        Ok(Some((words.iter().map(|word| word.as_bytes().to_vec()).collect(), 0)))
    }

    fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn reads_arrays_and_lines() {
        let words =
            |input: &str| outcome(input.as_bytes()).map(|it| it.map(|(words, _)| (words, 0)));
        assert_eq!(words("*2\r\n$4\r\nINCR\r\n$1\r\na\r\nrest"), command(&["INCR", "a"]));
        assert_eq!(words("*1\r\n$0\r\n\r\n"), command(&[""]));
        assert_eq!(words(" INCR \t a\r\nrest"), command(&["INCR", "a"]));
        assert_eq!(words("PING\n"), command(&["PING"]));
        for nothing in ["\r\n", "\n", "*0\r\n", "*-1\r\n", "  \r\n"] {
            assert_eq!(words(nothing), command(&[]), "{nothing:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_command() {
        use Malformed::{Count, Length, NoBulk, NoEnd, TooLong};
        let huge = format!("*1\r\n$65530\r\n{}\r\n", "x".repeat(65530));
        let long = "x".repeat(LARGEST);
        let wordy = "x ".repeat(1025) + "\n";
        for (input, why) in [
            ("*x\r\n", Count),
            ("*\r\n", Count),
            ("*1\rx", Count),
            ("*1025\r\n", Count),
            ("*99999999999999999999\r\n", Count),
            ("*1\r\n$-1\r\n", Length),
            ("*1\r\n$65537\r\n", Length),
            ("*1\r\n$+1\r\n", Length),
            ("*1\r\n*1\r\n$1\r\na\r\n", NoBulk),
            ("*1\r\n:1\r\n", NoBulk),
            ("*1\r\n$1\r\nabc", NoEnd),
            (&huge, TooLong),
            (&long, TooLong),
            (&wordy, Count),
        ] {
            assert_eq!(outcome(input.as_bytes()), Err(why), "{:.20}", input);
        }
    }

    proptest! {
        /// A whole command is read as it was written; each shorter beginning of it is reported as
        /// incomplete.
        #[test]
        fn a_command_is_whole_or_missing(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
            rest in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let command = encoded(&words);
            for end in 0..command.len() {
                prop_assert_eq!(outcome(&command[..end]), Ok(None));
            }
            let length = command.len();
            prop_assert_eq!(outcome(&[command, rest].concat()), Ok(Some((words, length))));
        }

        /// What [`increment`] finds, [`read`] finds, too, whatever arrives.
        #[test]
        fn an_increment_is_what_it_is_read_as(
            name in prop::sample::select(vec!["INCR", "incr", "Incr", "DECR"]),
            tag in prop::collection::vec(any::<u8>(), 0..20),
            end in 0..60usize,
            broken in prop::option::of((0..60usize, any::<u8>())),
        ) {
            let mut input = encoded(&[name.into(), tag]);
            input.extend(b"*2\r\n$4\r\n");
            input.truncate(end.max(30));
            if let Some((at, byte)) = broken
                && let Some(place) = input.get_mut(at)
            {
                *place = byte;
            }
            if let Some((tag, length)) = increment(&input) {
                let Ok(Some((words, read))) = outcome(&input) else { panic!("{input:?}") };
                prop_assert_eq!(words.len(), 2);
                prop_assert!(words[0].eq_ignore_ascii_case(b"INCR"));
                prop_assert_eq!((&words[1][..], read), (tag.as_bytes(), length));
            } else if let Ok(Some((words, _))) = outcome(&input) {
                let plain = words.len() == 2 && [&b"INCR"[..], b"incr"].contains(&&words[0][..]);
                prop_assert!(!plain || std::str::from_utf8(&words[1]).is_err() || !input.starts_with(b"*2\r\n$4\r\n"));
            }
        }

        /// Whatever arrives: no panic, words lie within the command, and what is refused or
        /// complete stays so with more bytes behind it.
        #[test]
        fn more_bytes_change_no_outcome(
            bytes in prop::collection::vec(prop::sample::select(b"*$-019\r\na \xff".to_vec()), 0..60),
        ) {
            let mut told: Option<Outcome> = None;
            for end in 0..=bytes.len() {
                let outcome = outcome(&bytes[..end]);
                if let Some(told) = &told {
                    prop_assert_eq!(&outcome, told);
                } else if outcome != Ok(None) {
                    told = Some(outcome);
                }
            }
        }
    }
}
