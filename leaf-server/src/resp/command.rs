//! The types of a command and of a call of it.

use super::codec::{self, Words};
use super::reply::Replies;
use super::session::{Refusal, Session};
use super::task::{Reply, Task};
use crate::caller::Caller;
use crate::ids::IdError;
use crate::metrics::Operation;

/// One command.
///
/// `COMMAND DOCS`, `COMMAND INFO` and error texts are made from it, so that they cannot differ from
/// what the command does.
#[derive(Debug)]
pub(super) struct Command {
    /// The name, in capitals.
    pub(super) name: &'static str,
    /// How many words a call has, the name included: least and most.
    pub(super) words: (usize, usize),
    /// Answers a call with the right number of words.
    pub(super) run: Run,
    /// The words after its name, as help texts show them.
    pub(super) usage: &'static str,
    /// One sentence for people.
    pub(super) summary: &'static str,
    /// Which of its words are tags.
    pub(super) tags: Tags,
    /// The operation under which the metrics count it; `Next` for all commands that take ids.
    pub(super) operation: Operation,
    /// Whether the command is answered even without authentication.
    pub(super) open: bool,
}

/// Which words of a command are tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tags {
    /// None.
    None,
    /// The first word behind its name.
    First,
    /// All words behind its name.
    All,
}

/// Answers a call of a command.
pub(super) type Run = fn(&mut Call<'_>) -> Answer;

/// The outcome of a call, or the refusal that is sent as an error.
pub(super) type Answer = Result<Outcome, Refusal>;

/// The outcome of a call that is not refused.
pub(super) enum Outcome {
    /// It is answered.
    Done,
    /// It is answered, and the connection ends.
    End,
    /// The reply is a task that may have to wait.
    Wait(Task),
}

/// A call of a command.
pub(super) struct Call<'a> {
    pub(super) session: &'a mut Session,
    pub(super) command: &'static Command,
    pub(super) words: &'a Words,
    /// The bytes that were received; they begin with the call.
    pub(super) input: &'a [u8],
    /// How many bytes the call has.
    pub(super) length: usize,
}

impl<'a> Call<'a> {
    /// How many words the call has, the name included.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the word of this number, 0 is the name; empty if the call has fewer words.
    pub(super) fn word(&self, number: usize) -> &'a [u8] {
        self.words.word(self.input, number)
    }

    /// Whether the word of this number equals `word`, in capitals or not.
    pub(super) fn is(&self, number: usize, word: &str) -> bool {
        self.word(number).eq_ignore_ascii_case(word.as_bytes())
    }

    /// A word as text.
    pub(super) fn text(&self, number: usize) -> Result<&'a str, String> {
        codec::text(self.word(number))
    }

    /// Reads a word of digits as a number of ids from `least` to `most`.
    pub(super) fn count(&self, number: usize, least: usize, most: usize) -> Result<usize, String> {
        let word = self.text(number).ok().filter(|word| word.bytes().all(|c| c.is_ascii_digit()));
        let count = word.and_then(|word| word.parse().ok());
        count.filter(|count| (least..=most).contains(count)).ok_or_else(|| {
            format!(
                "value is not an integer or out of range: give a number of ids from {least} to {most}"
            )
        })
    }

    /// The caller of this command.
    pub(super) const fn caller(&self) -> &Caller {
        self.session.client.last()
    }

    /// Where the reply is written.
    pub(super) fn to(&mut self) -> &mut Replies {
        &mut self.session.replies
    }

    /// Replies that it is done.
    pub(super) fn ok(&mut self) -> Answer {
        self.to().simple("OK");
        Ok(Outcome::Done)
    }

    /// The error text for words that do not go together.
    pub(super) fn syntax_error(&self) -> String {
        format!("syntax error: write {} {}", self.command.name, self.command.usage)
    }

    /// Makes a task of the reply to this call, which may wait. `work` must own the words that it
    /// needs, since their buffer is used again meanwhile.
    pub(super) fn wait<F>(&self, work: impl FnOnce(Caller) -> F) -> Answer
    where
        F: Future<Output = Result<Reply, IdError>> + Send + 'static,
    {
        self.wait_for(1, work)
    }

    /// As [`Self::wait`], for the replies to `calls` equal calls.
    pub(super) fn wait_for<F>(&self, calls: usize, work: impl FnOnce(Caller) -> F) -> Answer
    where
        F: Future<Output = Result<Reply, IdError>> + Send + 'static,
    {
        let (operation, work) = (self.session.operation, Box::pin(work(self.caller().clone())));
        Ok(Outcome::Wait(Task { calls, operation, work }))
    }
}
