//! The log: lines on standard error, for people or as JSON.
//!
//! Invariant: no thread that serves ids, and no thread of a runtime, writes the log's lines itself.
//! They go through a queue of bounded length to one thread that writes them. If nobody reads
//! standard error, only that thread waits; lines that do not fit into the queue are dropped and
//! counted.

pub(crate) mod events;
pub(crate) mod repeats;
#[cfg(feature = "otlp")]
pub(crate) mod traces;

use std::io::{IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use leaf_node::config::{self, ConfigError, LogFormat};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use self::events::Events;
use self::repeats::Repeats;

/// The most lines that wait to be written: a few MB, enough for some minutes with many errors.
const LINES: usize = 8192;
/// How long the process waits at its end until the last lines are written.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Where lines wait to be written, once the log has started.
static QUEUE: OnceLock<SyncSender<Message>> = OnceLock::new();
/// How many lines did not fit into the queue.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A message to the thread that writes.
enum Message {
    Lines(Vec<u8>),
    /// Asks for an answer once everything before it is written.
    Flush(SyncSender<()>),
}

/// Puts each line into the queue.
struct Queued;

impl Write for Queued {
    fn write(&mut self, lines: &[u8]) -> std::io::Result<usize> {
        write(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The running log, whose level can be changed.
pub(crate) struct Log(reload::Handle<EnvFilter, Registry>);

/// Starts the log and, if the environment names a collector, the export of traces.
///
/// # Errors
/// `log.level` is neither a level nor a list of directives, or the collector's address is invalid.
pub(crate) fn start(config: &config::Log) -> Result<Log, ConfigError> {
    let (filter, handle) = reload::Layer::new(config.filter()?);
    let (queue, messages) = sync_channel(LINES);
    let _ = QUEUE.set(queue);
    std::thread::spawn(move || {
        for message in messages {
            // Whoever has closed standard error wants to hear nothing; whoever waits no longer, too.
            match message {
                Message::Lines(lines) => drop(std::io::stderr().write_all(&lines)),
                Message::Flush(done) => drop(done.send(())),
            }
        }
    });
    // https://no-color.org
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        // A log that cannot be written must not end what it tells of.
        .log_internal_errors(false)
        .with_writer(|| Queued);
    let log = tracing_subscriber::registry().with(filter).with(Repeats).with(Events);
    #[cfg(feature = "otlp")]
    let log = log.with(traces::layer()?);
    match config.format {
        LogFormat::Text => log.with(lines).init(),
        LogFormat::Json => {
            log.with(lines.json().flatten_event(true)).init();
        }
    }
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("{panic}\n{}", std::backtrace::Backtrace::capture());
        if std::thread::current().name() == Some("main") {
            // Nothing comes after it.
            flush();
        }
    }));
    Ok(Log(handle))
}

impl Log {
    /// Applies the configured level to every line from now on.
    ///
    /// The format does not change: that needs a restart.
    pub(crate) fn follow(&self, config: &config::Log) {
        // It was checked with the rest of the configuration, and the log lives as long as the
        // process.
        if let Ok(filter) = config.filter() {
            let _ = self.0.reload(filter);
        }
    }
}

/// Writes whole lines to standard error. Once the log has started they go through its queue.
pub(crate) fn write(lines: impl AsRef<[u8]>) {
    let lines = lines.as_ref();
    match QUEUE.get() {
        Some(queue) if queue.try_send(Message::Lines(lines.to_vec())).is_err() => {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Some(_) => {}
        // The process ends before it has begun anything.
        None => drop(std::io::stderr().write_all(lines)),
    }
}

/// How many lines were dropped because the queue was full.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until everything is written, but at most half a second.
pub(crate) fn flush() {
    repeats::tell_all();
    let Some(queue) = QUEUE.get() else { return };
    let (done, written) = sync_channel(1);
    // It waits for a place, also where none comes.
    std::thread::spawn(move || queue.send(Message::Flush(done)));
    let _ = written.recv_timeout(LAST_LINES);
}
