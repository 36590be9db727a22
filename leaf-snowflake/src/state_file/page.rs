//! One slot of the state file: a page with one line of magic, sequence number, length and checksum,
//! then the text.
//!
//! Invariant: a page that was written only in part does not decode.

pub(super) const SLOT: usize = 4096;
const MAGIC: &str = "leaf-snowflake-1";

/// Makes a page of the text; `None` if the text is too long for it.
pub(super) fn encode(sequence: u64, text: &str) -> Option<[u8; SLOT]> {
    let head = format!("{MAGIC} {sequence:020} {:04}", text.len());
    let sum = crc32fast::hash(format!("{head}\n{text}").as_bytes());
    let mut page = [b'\n'; SLOT];
    let written = format!("{head} {sum:08x}\n{text}\n");
    page.get_mut(..written.len())?.copy_from_slice(written.as_bytes());
    Some(page)
}

/// The sequence number and the text; `None` if the page is not one that [`encode`] made.
pub(super) fn decode(page: &[u8]) -> Option<(u64, &str)> {
    let end = page.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = page.split_at(end);
    let line = std::str::from_utf8(line).ok()?;
    let (head, sum) = line.rsplit_once(' ')?;
    let mut words = head.split(' ');
    if words.next() != Some(MAGIC) {
        return None;
    }
    let sequence = words.next()?.parse().ok()?;
    let length: usize = words.next()?.parse().ok()?;
    let text = std::str::from_utf8(rest.get(1..)?.get(..length)?).ok()?;
    let expected = crc32fast::hash(format!("{head}\n{text}").as_bytes());
    (u32::from_str_radix(sum, 16) == Ok(expected)).then_some((sequence, text))
}
