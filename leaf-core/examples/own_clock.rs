//! Snowflake ids without `leaf-snowflake`: a program that brings its own clock and its own storage.
//!
//! The rule that keeps ids unique across restarts: write a ceiling down durably, then raise the
//! sequencer to it; start the next process at that ceiling. Here the storage is one file and the
//! worker id is fixed. What `leaf-snowflake` adds are worker ids from a registry, clock checks, a
//! state file that survives torn writes, and a task that raises the ceiling ahead of use.
//!
//! Run it twice: `cargo run -p leaf-core --example own_clock`

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leaf_core::sequencer::{Refusal, Sequencer};
use leaf_core::{Layout, UnixMillis, WorkerId};

/// How far ahead of the clock a ceiling is written: the longer, the fewer writes, and the longer a
/// restart after a crash has to wait.
const WINDOW: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::LEAF;
    let file = file();
    let now = wall_clock()?;
    let floor = read_ceiling(&file)?.unwrap_or(now).max(now);
    let sequencer = Sequencer::new(layout, WorkerId::new(0), floor, now, 100);

    for _ in 0..5 {
        let id = loop {
            match sequencer.take(layout.tick_at(wall_clock()?)) {
                Ok(id) => break id,
                Err(Refusal::Wait(_)) => std::thread::yield_now(),
                Err(Refusal::Ceiling) => {
                    let ceiling = sequencer.next_free().max(wall_clock()?) + WINDOW;
                    write_ceiling(&file, ceiling)?;
                    sequencer.raise(ceiling);
                }
                Err(end) => return Err(end.into()),
            }
        };
        let parts = layout.decode(id).expect("an id of this layout");
        println!("{id}  timestamp {}  sequence {}", parts.timestamp, parts.sequence);
    }
    // A clean end tells the next process the exact first unused instant.
    if let Some(next_free) = sequencer.close() {
        write_ceiling(&file, next_free)?;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "this program is where the clock comes from")]
fn wall_clock() -> Result<UnixMillis, Box<dyn std::error::Error>> {
    Ok(UnixMillis::from_duration(SystemTime::now().duration_since(UNIX_EPOCH)?))
}

fn file() -> PathBuf {
    std::env::temp_dir().join("leaf-own-clock.ceiling")
}

fn read_ceiling(file: &Path) -> io::Result<Option<UnixMillis>> {
    match fs::read_to_string(file) {
        Ok(text) => match text.trim().parse() {
            Ok(millis) => Ok(Some(UnixMillis::new(millis))),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Durable when it returns: a new file replaces the old one only after it is on the disk.
fn write_ceiling(file: &Path, ceiling: UnixMillis) -> io::Result<()> {
    let draft = file.with_extension("new");
    let mut new = File::create(&draft)?;
    writeln!(new, "{ceiling}")?;
    new.sync_all()?;
    fs::rename(&draft, file)?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
