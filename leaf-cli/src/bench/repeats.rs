//! Finds ids that came twice, all of them, in bounded memory.
//!
//! Threads collect ids in blocks. One thread sorts each block and appends it to a file that has no
//! name, as differences; at the end all blocks are merged. So the memory holds a few blocks, and a
//! buffer for each block in the file; the file has 1 to 10 bytes for each id.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek as _, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

/// How many ids a block has.
const BLOCK: usize = 1 << 20;
/// The most blocks that wait to be sorted; a thread with one more waits until there is room.
const WAITING: usize = 2;
/// How many repeated ids are named.
const EXAMPLES: usize = 5;

/// Collects the ids of a run.
pub(super) struct Checker {
    blocks: SyncSender<Vec<u64>>,
    sorter: JoinHandle<std::io::Result<Sorted>>,
}

/// The blocks in the file.
struct Sorted {
    file: File,
    /// The offsets in `file` at which each block begins and ends.
    blocks: Vec<(u64, u64)>,
}

/// The result of the check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Repeats {
    /// How many ids were compared.
    pub(super) ids: u64,
    /// How many of the ids had come before.
    pub(super) repeated: u64,
    /// Up to [`EXAMPLES`] of the ids that had come before.
    pub(super) examples: Vec<u64>,
}

impl Checker {
    /// Creates the file and starts the thread that sorts.
    ///
    /// # Errors
    /// No file can be made in the directory for temporary files.
    pub(super) fn start() -> std::io::Result<Self> {
        let file = tempfile::tempfile()?;
        let (blocks, received) = sync_channel(WAITING);
        let sorter = std::thread::spawn(move || sort(file, &received));
        Ok(Self { blocks, sorter })
    }

    /// Creates a sender for one thread.
    pub(super) fn sender(&self) -> Sender {
        Sender { block: Vec::new(), blocks: self.blocks.clone() }
    }

    /// Compares all ids. All senders must be dropped before: otherwise this waits for ever.
    ///
    /// # Errors
    /// The file cannot be written or read: the disk is full, say.
    pub(super) fn finish(self) -> Result<Repeats> {
        drop(self.blocks);
        let sorted = self.sorter.join().map_err(|_| anyhow!("the check of the ids panicked"))?;
        let told = |error| {
            anyhow!("the ids cannot be compared, in the directory for temporary files: {error}")
        };
        merge(&sorted.map_err(told)?).map_err(told)
    }
}

/// Collects the ids of one thread, and passes them on in blocks.
pub(super) struct Sender {
    block: Vec<u64>,
    blocks: SyncSender<Vec<u64>>,
}

impl Sender {
    /// Adds an id, and passes the block on when it is full.
    pub(super) fn add(&mut self, id: u64) {
        self.block.push(id);
        if self.block.len() == BLOCK {
            self.flush();
        }
    }

    /// Passes the collected ids on to the thread that sorts.
    pub(super) fn flush(&mut self) {
        // The thread that takes them says at the end why it is gone.
        let _ = self.blocks.send(std::mem::take(&mut self.block));
    }
}

fn sort(file: File, blocks: &Receiver<Vec<u64>>) -> std::io::Result<Sorted> {
    let mut sorted = Sorted { file: file.try_clone()?, blocks: Vec::new() };
    let mut writer = BufWriter::new(file);
    for mut block in blocks {
        block.sort_unstable();
        let begins = writer.stream_position()?;
        let mut before = 0;
        for id in block {
            write_number(&mut writer, id - before)?;
            before = id;
        }
        sorted.blocks.push((begins, writer.stream_position()?));
    }
    writer.flush()?;
    Ok(sorted)
}

/// Writes a number seven bits at a time, the lowest first: only the last byte is below 128.
fn write_number(to: &mut impl Write, mut number: u64) -> std::io::Result<()> {
    while number >= 0x80 {
        to.write_all(&[number as u8 | 0x80])?;
        number >>= 7;
    }
    to.write_all(&[number as u8])
}

fn read_number(from: &mut impl BufRead) -> std::io::Result<Option<u64>> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let buffer = from.fill_buf()?;
        let Some(&byte) = buffer.first() else { return Ok(None) };
        from.consume(1);
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(Some(number));
        }
        shift += 7;
    }
}

/// A reader of the bytes of `file` from `at` to `end`.
struct Part {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Part {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(into.len());
        let read = self.file.read_at(&mut into[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn merge(sorted: &Sorted) -> std::io::Result<Repeats> {
    let file = Arc::new(sorted.file.try_clone()?);
    let parts = sorted.blocks.iter().map(|&(at, end)| Part { file: Arc::clone(&file), at, end });
    let mut parts: Vec<_> = parts.map(|part| BufReader::with_capacity(16 * 1024, part)).collect();
    // The least id of each block that was not taken yet.
    let mut least = BinaryHeap::new();
    for (index, part) in parts.iter_mut().enumerate() {
        least.extend(read_number(part)?.map(|id| Reverse((id, index))));
    }
    let (mut found, mut before) = (Repeats::default(), None);
    while let Some(mut top) = least.peek_mut() {
        let Reverse((id, index)) = *top;
        found.ids += 1;
        if before == Some(id) {
            found.repeated += 1;
            if found.examples.len() < EXAMPLES && found.examples.last() != Some(&id) {
                found.examples.push(id);
            }
        }
        before = Some(id);
        match read_number(&mut parts[index])? {
            Some(more) => *top = Reverse((id + more, index)),
            None => {
                std::collections::binary_heap::PeekMut::pop(top);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(threads: Vec<impl Iterator<Item = u64> + Send + 'static>) -> Repeats {
        let checker = Checker::start().unwrap();
        let threads: Vec<_> = threads
            .into_iter()
            .map(|ids| {
                let mut sender = checker.sender();
                std::thread::spawn(move || {
                    ids.for_each(|id| sender.add(id));
                    sender.flush();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        checker.finish().unwrap()
    }

    #[test]
    fn each_repeat_among_millions_is_found_whoever_got_it() {
        const EACH: u64 = 3_000_000;
        // Of 6 M ids one in a million comes twice: once more to the same thread, or to the other one.
        let ids = |thread: u64| {
            let own = (0..EACH).map(move |n| 1_800_000_000_000_000_000 + 2 * n + thread);
            let again = (0..3).map(move |n| 1_800_000_000_000_000_000 + n * 1_000_000);
            own.chain(again)
        };
        let found = check(vec![ids(0), ids(1)]);
        assert_eq!((found.ids, found.repeated), (2 * EACH + 6, 6));
        let expected: Vec<u64> =
            (0..3).map(|n| 1_800_000_000_000_000_000 + n * 1_000_000).collect();
        assert_eq!(found.examples, expected);
    }

    #[test]
    fn ids_of_any_size_and_none_at_all() {
        let ids = [u64::MAX, 0, 1, u64::MAX - 1, 1 << 63, 127, 128];
        assert_eq!(check(vec![ids.into_iter()]), Repeats { ids: 7, ..Repeats::default() });
        let others = [u64::MAX, 0, 2, 3, 4, 5, 6];
        let twice = check(vec![ids.into_iter(), others.into_iter()]);
        assert_eq!((twice.ids, twice.repeated, twice.examples), (14, 2, vec![0, u64::MAX]));
        assert_eq!(check(vec![[].into_iter()]), Repeats::default());
    }
}
