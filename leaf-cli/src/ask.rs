//! Asks at the terminal for confirmation before an action that cannot be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::Result;
use leaf_node::config::ConfigError;
use leaf_segment::admin::TagAdminError;

use crate::output;

/// Asks a question at the terminal; `true` if the answer is yes. Without a terminal the answer is
/// no.
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

/// Runs `act(yes)`. If it fails with [`TagAdminError::Unconfirmed`], asks `question` at the
/// terminal, and runs `act(true)` if the answer is yes.
///
/// # Errors
/// [`ConfigError`] without a confirmation: it says why one is needed, and `how` to give it. Else
/// the errors of `act`.
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
