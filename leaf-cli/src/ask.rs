//! Questions on the terminal, before what cannot be taken back.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::Result;
use leaf_node::config::ConfigError;
use leaf_segment::admin::TagAdminError;

use crate::output;

/// Whether somebody at a terminal says yes. Where there is none to ask, nobody does.
pub(crate) fn sure(question: &str) -> bool {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return false;
    }
    // What was typed before the question answers none.
    let _ = rustix::termios::tcflush(&stdin, rustix::termios::QueueSelector::IFlush);
    let question = output::printable(question);
    let mut answer = String::new();
    let asked = write!(stderr, "leaf: {question} [y/N] ").and_then(|()| stderr.flush());
    let answered = asked.and_then(|()| stdin.lock().read_line(&mut answer));
    answered.is_ok() && ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
}

/// Does what `yes` confirms, or somebody at the terminal.
///
/// # Errors
/// [`ConfigError`] where nobody does: what it would mean, and `how` to confirm it; else those of `act`.
pub(crate) async fn confirmed<T>(
    yes: bool,
    question: &str,
    how: &str,
    act: impl AsyncFn(bool) -> Result<T>,
) -> Result<T> {
    let error = match act(yes).await {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    let Some(TagAdminError::Unconfirmed(why)) = error.downcast_ref() else { return Err(error) };
    if sure(&format!("{why}. {question}")) {
        return act(true).await;
    }
    Err(ConfigError::new(format!("{why}{how}")).into())
}
