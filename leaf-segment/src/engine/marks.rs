//! The regression guard's marks: per tag, the id below which no range is accepted.
//!
//! Invariants: a mark is lowered only if ids go back to the store: when a tag is closed or dropped
//! as idle, to one past the last id that was handed out, and when the unused end of a leased range
//! is given back. Once [`HighWaterMarks::raise`] has returned without an error, the mark is on the
//! disk. A torn or damaged line affects no other line.
//!
//! The file is text. Its first line is `crc32 version N`, every other line a change: `crc32 mark
//! tag`. The last line of a tag counts. When the file has grown too large, a new one with one line
//! per tag replaces it by a rename; lines that a later version added are kept. The file is locked,
//! so that no other process writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::Tag;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

/// How long a fetch waits for the disk.
const PATIENCE: Duration = Duration::from_secs(1);
/// The version of the file's format. A format that this program cannot read has a greater one.
const VERSION: u32 = 1;
/// Below this size the file is not worth replacing.
const SMALL: u64 = 64 * 1024;

/// The marks of one process: in memory, or kept in a file so that a restart remembers them.
///
/// Share them among the generators of a process.
///
/// ```
/// use leaf_core::Tag;
/// use leaf_segment::HighWaterMarks;
///
/// # let directory = tempfile::tempdir()?;
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let file = directory.path().join("segment.marks");
/// let orders = Tag::parse("orders")?;
/// HighWaterMarks::open(&file)?.raise(&orders, 2001).await?;
///
/// assert_eq!(HighWaterMarks::open(&file)?.get(&orders), Some(2001));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct HighWaterMarks {
    known: Arc<Mutex<Known>>,
    /// The file; `None` keeps marks in memory only. Its lock's holder writes the changes of all
    /// callers.
    log: Option<Arc<tokio::sync::Mutex<Log>>>,
    /// Whether a write lasts longer than [`PATIENCE`]. Until it ends, callers do not wait for it.
    stuck: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    marks: BTreeMap<Tag, i64>,
    /// The tags whose marks changed since the file was last written.
    dirty: BTreeSet<Tag>,
    /// Why the last write failed.
    trouble: Option<String>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// The file's size when it was last written whole.
    compact: u64,
    /// Lines of a later version.
    unknown: String,
}

/// The contents of a file of marks.
#[derive(Debug, Default)]
struct Contents {
    marks: BTreeMap<Tag, i64>,
    unknown: String,
}

/// The file of marks cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", path.display())]
pub struct HighWaterMarksError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl HighWaterMarksError {
    fn of(source: io::Error) -> Self {
        Self { operation: "write", path: "the file of marks".into(), source }
    }

    fn stuck() -> Self {
        Self::of(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the disk has not answered within {PATIENCE:?}"),
        ))
    }
}

impl HighWaterMarks {
    /// Opens the file, and makes it where it does not exist. The directory must exist.
    ///
    /// # Errors
    /// When it cannot be read or written, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, HighWaterMarksError> {
        let failed =
            |operation, source| HighWaterMarksError { operation, path: path.into(), source };
        let (locked, text) = loop {
            let file = OpenOptions::new().read(true).append(true).create(true).open(path);
            let file = file.map_err(|error| failed("open", error))?;
            lock(&file).map_err(|error| failed("lock", error))?;
            // Until the lock was there its holder may have replaced the file.
            if is_at(&file, path) {
                let text = std::fs::read(path).map_err(|error| failed("read", error))?;
                break (file, text);
            }
        };
        let Contents { marks, unknown } = parse(&text).map_err(|error| failed("read", error))?;
        let bytes = text.len() as u64;
        let mut log = Log { path: path.into(), file: locked, bytes, compact: 0, unknown };
        // What is damaged goes, and a disk that refuses is noticed now.
        log.replace(&marks).map_err(|error| failed("write", error))?;
        Ok(Self {
            known: Arc::new(Mutex::new(Known { marks, ..Known::default() })),
            log: Some(Arc::new(tokio::sync::Mutex::new(log))),
            stuck: AtomicBool::new(false),
        })
    }

    /// Checks that [`Self::open`] would accept the file, but ignores its lock, and changes nothing:
    /// for a program that checks its configuration while another process may use the file. A file
    /// that does not exist is accepted.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    ///
    /// ```
    /// use leaf_segment::HighWaterMarks;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// HighWaterMarks::check(&directory.path().join("segment.marks"))?;
    /// assert!(HighWaterMarks::check(directory.path()).is_err(), "a directory");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(path: &Path) -> Result<(), HighWaterMarksError> {
        let failed =
            |operation, source| HighWaterMarksError { operation, path: path.into(), source };
        match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|error| failed("open", error))?,
        };
        Self::read(path).map(|_| ())
    }

    /// Reads the marks of a file that another process may have open, and changes nothing. A file
    /// that does not exist has none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Vec<(Tag, i64)>, HighWaterMarksError> {
        let failed = |source| HighWaterMarksError { operation: "read", path: path.into(), source };
        match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            text => parse(&text.map_err(failed)?)
                .map(|it| it.marks.into_iter().collect())
                .map_err(failed),
        }
    }

    /// The mark of a tag.
    #[must_use]
    pub fn get(&self, tag: &Tag) -> Option<i64> {
        self.known().marks.get(tag).copied()
    }

    /// Raises the mark of a tag; durable when it returns. Calls at the same time share one write.
    ///
    /// # Errors
    /// When the disk refuses: the mark then holds for this process only.
    pub async fn raise(&self, tag: &Tag, mark: i64) -> Result<(), HighWaterMarksError> {
        self.raise_in_memory(tag, mark);
        self.write(tag).await
    }

    /// Raises the mark of a tag for this process; [`Self::write`] makes it durable.
    pub(crate) fn raise_in_memory(&self, tag: &Tag, mark: i64) {
        let mut known = self.known();
        if known.marks.get(tag).is_none_or(|known| *known < mark) {
            known.marks.insert(tag.clone(), mark);
            known.dirty.insert(tag.clone());
        }
    }

    /// Lowers the mark of a tag from `granted`, the end of what a generator was granted, to
    /// `issued`, one past the last id that it handed out. Call it when the generator hands out no
    /// more: the ids in between may then go back to the store, and ids of other nodes below them,
    /// too. Does nothing if the mark is not `granted`, because somebody else has raised it. Durable
    /// when it returns.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn lower(
        &self,
        tag: &Tag,
        granted: i64,
        issued: i64,
    ) -> Result<(), HighWaterMarksError> {
        self.lower_in_memory(tag, granted, issued);
        self.write(tag).await
    }

    /// Does what [`Self::lower`] does, but for this process only; [`Self::write`] makes it durable.
    pub(crate) fn lower_in_memory(&self, tag: &Tag, granted: i64, issued: i64) {
        let mut known = self.known();
        if known.marks.get(tag) == Some(&granted) && issued < granted {
            known.marks.insert(tag.clone(), issued);
            known.dirty.insert(tag.clone());
        }
    }

    /// Makes all marks durable.
    pub(crate) async fn flush(&self) -> Result<(), HighWaterMarksError> {
        let dirty = self.known().dirty.first().cloned();
        match dirty {
            // A write takes all that were changed.
            Some(tag) => self.write(&tag).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn write(&self, tag: &Tag) -> Result<(), HighWaterMarksError> {
        let Some(log) = &self.log else { return Ok(()) };
        if self.stuck.load(Ordering::Relaxed) && log.try_lock().is_err() {
            return Err(HighWaterMarksError::stuck());
        }
        let Ok(log) = timeout(PATIENCE, Arc::clone(log).lock_owned()).await else {
            return Err(self.gave_up());
        };
        self.stuck.store(false, Ordering::Relaxed);
        if !self.known().dirty.contains(tag) {
            // Whoever was here meanwhile has written it.
            return Ok(());
        }
        // The lock goes with the write: a caller that leaves takes neither away.
        let known = Arc::clone(&self.known);
        let written = tokio::task::spawn_blocking(move || write(log, &known));
        match timeout(PATIENCE, written).await {
            Ok(Ok(written)) => written,
            Ok(Err(panicked)) => Err(HighWaterMarksError::of(io::Error::other(panicked))),
            Err(_) => Err(self.gave_up()),
        }
    }

    /// Records that the disk hangs, so that later callers do not wait for it.
    fn gave_up(&self) -> HighWaterMarksError {
        self.stuck.store(true, Ordering::Relaxed);
        let error = HighWaterMarksError::stuck();
        self.known().trouble = Some(error.to_string());
        error
    }

    /// Why marks are not durable at present, for operators; `None` if they are, or there is no
    /// file.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.known().trouble.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock_known(&self.known)
    }
}

fn lock_known(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().expect("no holder of this lock panics")
}

/// Writes what was changed since the last time.
fn write(mut log: OwnedMutexGuard<Log>, known: &Mutex<Known>) -> Result<(), HighWaterMarksError> {
    loop {
        let (changed, lines, all) = {
            let mut known = lock_known(known);
            // Also those who came while this was writing, and did not wait.
            if known.dirty.is_empty() {
                known.trouble = None;
                return Ok(());
            }
            let changed = std::mem::take(&mut known.dirty);
            let lines: String = changed.iter().map(|tag| line(tag, known.marks[tag])).collect();
            let all = log.has_grown(lines.len()).then(|| known.marks.clone());
            (changed, lines, all)
        };
        let result = match all {
            None => log.append(&lines),
            Some(marks) => log.replace(&marks),
        };
        if let Err(source) = result {
            let error = HighWaterMarksError { operation: "write", path: log.path.clone(), source };
            let mut known = lock_known(known);
            known.trouble = Some(error.to_string());
            known.dirty.extend(changed);
            return Err(error);
        }
    }
}

impl Log {
    fn has_grown(&self, more: usize) -> bool {
        self.bytes + more as u64 > (4 * self.compact).max(SMALL)
    }

    fn append(&mut self, lines: &str) -> io::Result<()> {
        // After a failed write the end may be torn: an empty line begins anew.
        let lines = format!("\n{lines}");
        self.bytes += lines.len() as u64;
        self.file.write_all(lines.as_bytes())?;
        self.file.sync_data()
    }

    /// Writes all marks into a new file and puts it into the old one's place.
    fn replace(&mut self, marks: &BTreeMap<Tag, i64>) -> io::Result<()> {
        let mut new_path = self.path.clone().into_os_string();
        new_path.push(".new");
        let mut new = File::create(&new_path)?;
        lock(&new)?;
        let mut lines = with_crc(&format!("version {VERSION}"));
        lines.extend(marks.iter().map(|(tag, mark)| line(tag, *mark)));
        lines.push_str(&self.unknown);
        new.write_all(lines.as_bytes())?;
        new.sync_all()?;
        std::fs::rename(&new_path, &self.path)?;
        self.file = new;
        // Until the rename is on the disk, too, the next write does all of this again.
        self.bytes = u64::MAX / 2;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        self.bytes = lines.len() as u64;
        self.compact = self.bytes;
        Ok(())
    }
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            io::Error::other("another process uses it: give each its own data directory")
        }
        TryLockError::Error(error) => error,
    })
}

fn is_at(file: &File, path: &Path) -> bool {
    let place = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    matches!(
        (file.metadata().map(place), std::fs::metadata(path).map(place)),
        (Ok(own), Ok(there)) if own == there
    )
}

fn line(tag: &Tag, mark: i64) -> String {
    with_crc(&format!("{mark} {}", tag.as_str()))
}

fn with_crc(text: &str) -> String {
    format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
}

/// Reads the lines of a file of marks; leaves out damaged ones. Fails if a later version of Leaf
/// wrote the file in a format that this version cannot read.
fn parse(text: &[u8]) -> io::Result<Contents> {
    let mut contents = Contents::default();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Some(text) = checked(line) else {
            tracing::warn!("a damaged line of the file of marks is left out");
            continue;
        };
        if let Some(version) = text.strip_prefix("version ") {
            if version.parse::<u32>().map_or(true, |version| version > VERSION) {
                return Err(io::Error::other(format!(
                    "it has format version {version}, this program reads up to {VERSION}: update this \
                     program"
                )));
            }
        } else if let Some((tag, mark)) = parse_mark(text) {
            contents.marks.insert(tag, mark);
        } else {
            contents.unknown.push_str(&with_crc(text));
        }
    }
    Ok(contents)
}

/// The text of a line, if its checksum is right.
fn checked(line: &[u8]) -> Option<&str> {
    let (crc, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}

fn parse_mark(text: &str) -> Option<(Tag, i64)> {
    let (mark, tag) = text.split_once(' ')?;
    Some((Tag::parse(tag).ok()?, mark.parse().ok()?))
}

#[cfg(all(test, not(leaf_loom)))]
mod tests;
