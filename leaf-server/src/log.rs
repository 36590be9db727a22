//! The log: lines on standard error, for people or as JSON.

use std::io::IsTerminal;

use leaf_node::config::{self, ConfigError, LogFormat};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// The running log, whose level can be changed.
pub(crate) struct Log(reload::Handle<EnvFilter, Registry>);

/// Starts the log.
///
/// # Errors
/// The level is neither a level nor directives.
pub(crate) fn start(config: &config::Log) -> Result<Log, ConfigError> {
    let (filter, handle) = reload::Layer::new(config.filter()?);
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written must not end what it tells of.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let log = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Text => log.with(lines).init(),
        LogFormat::Json => log.with(lines.json().flatten_event(true)).init(),
    }
    Ok(Log(handle))
}

impl Log {
    /// Follows the configured level.
    ///
    /// Applies to every line from now on. The format stays: it needs a restart.
    pub(crate) fn follow(&self, config: &config::Log) {
        // It was checked with the rest of the configuration, and the log lives as long as the
        // process.
        if let Ok(filter) = config.filter() {
            let _ = self.0.reload(filter);
        }
    }
}
