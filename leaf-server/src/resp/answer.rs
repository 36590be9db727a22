//! Answers the commands that a connection has received. If no waiting is needed, the reply is made
//! at once and nothing is allocated; otherwise the command becomes a [`Task`], which may wait.
//!
//! [`Task`]: super::task::Task

use leaf_segment::{KnownTags, TagHandle};

use super::codec::{self, Words, equal_commands, repeated};
use super::command::{Answer, Call, Command, Outcome};
use super::session::{Refusal, Session};
use super::table::{self, COMMANDS};
use crate::ids;
use crate::metrics::Operation;
use crate::refusal::Reason;

/// The most tags whose next ids are taken in one batch.
const TAGS_AT_ONCE: usize = KnownTags::AT_A_TIME;

/// Answers the first command of `input`: its words are `words`, its length is `length` bytes.
/// Returns what became of it, and how many bytes of the input are answered, or wait.
///
/// [`increments`] should be tried before: it answers most commands in less time.
pub(super) fn answer(
    session: &mut Session,
    words: &Words,
    input: &[u8],
    length: usize,
) -> (Outcome, usize) {
    let name = words.word(input, 0);
    if words.len() == 0 {
        return (Outcome::Done, length);
    }
    let command = table::find(name);
    session.answers(command.map_or(Operation::Other, |command| command.operation), 1);
    let answer = match (session.in_transaction(name), command) {
        (Some(answer), _) => answer.map(|()| Outcome::Done),
        (None, Some(command)) => run(&mut Call { session, command, words, input, length }),
        (None, None) => refuse_unknown(session, name),
    };
    match answer {
        Ok(Outcome::Wait(task)) => {
            session.postpones();
            let length = task.calls * length;
            (Outcome::Wait(task), length)
        }
        Ok(outcome) => (outcome, length),
        Err(refusal) => {
            session.refuse(&refusal);
            (Outcome::Done, length)
        }
    }
}

/// Runs a command, unless the caller or the number of its words is wrong.
fn run(call: &mut Call<'_>) -> Answer {
    let Command { name, usage, .. } = call.command;
    if !call.command.open && !call.session.is_authenticated() {
        return Err(Refusal::new(
            Reason::Unauthorized,
            "NOAUTH",
            "Authentication required: send AUTH with redis.password, or with a name and its token",
        ));
    }
    if !call.command.takes_words(call.len()) {
        let text = format!("wrong number of arguments for '{name}': write {name} {usage}");
        return Err(text.trim_end().into());
    }
    (call.command.run)(call)
}

/// Refuses a command that does not exist. If it is a line of HTTP, the connection ends.
fn refuse_unknown(session: &mut Session, name: &[u8]) -> Answer {
    if is_http(name) {
        tracing::debug!(
            "a request of HTTP on the listener of the Redis protocol; the connection ends"
        );
        session.refused(Reason::BadRequest);
        return Ok(Outcome::End);
    }
    let offered: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
    let name = repeated(name);
    let text = format!("unknown command '{name}': Leaf offers {}", offered.join(", "));
    Err(Refusal::new(Reason::NotFound, "ERR", text))
}

/// Answers the `INCR` commands that `input` begins with, with ids in memory. Returns how many bytes
/// the answered commands have; 0 if no id is in memory, if the caller gets none, or if `input` does
/// not begin with an `INCR` as client libraries write it ([`codec::increment`]).
pub(super) fn increments(session: &mut Session, input: &[u8]) -> usize {
    let Some((tag, length)) = codec::increment(input).filter(|_| session.is_open()) else {
        return 0;
    };
    match codec::increment(&input[length..]) {
        Some((next, _)) if next != tag => increment_each(session, input),
        _ => increment(session, tag, input, length),
    }
}

/// Answers `INCR tag`, which has `length` bytes, and the equal commands that follow it, with ids in
/// memory. Returns how many bytes the answered commands have; 0 if no id is in memory, or the caller
/// gets none. [`Session::is_open`] must have been called before: it looks the caller up.
fn increment(session: &mut Session, tag: &str, input: &[u8], length: usize) -> usize {
    let Session { client, replies, .. } = session;
    let take = |handle: &TagHandle| handle.try_take(equal_commands(input, length));
    let Some(Some(ids)) = ids::known(client.last(), tag, take) else { return 0 };
    let commands = ids.len();
    for id in ids {
        replies.integer(id.get());
    }
    session.answers(Operation::Next, commands);
    commands * length
}

/// Answers `INCR` commands, each for another tag than the one before it. Ends after
/// [`TAGS_AT_ONCE`], or before the first tag whose next id is not in memory or not for this caller.
/// Returns how many bytes the answered commands have. [`Session::is_open`] must have been called
/// before: it looks the caller up.
fn increment_each(session: &mut Session, input: &[u8]) -> usize {
    let mut tags = [""; TAGS_AT_ONCE];
    let mut ends = [0; TAGS_AT_ONCE];
    let (mut count, mut end) = (0, 0);
    while count < TAGS_AT_ONCE
        && let Some((tag, length)) = codec::increment(&input[end..])
        // Equal ones are answered together, by `increment`.
        && (count == 0 || tags[count - 1] != tag)
    {
        end += length;
        (tags[count], ends[count]) = (tag, end);
        count += 1;
    }
    let mut answered = 0;
    let Session { client, replies, .. } = session;
    ids::next_of_each(client.last(), &tags[..count], |id| {
        replies.integer(id.get());
        answered += 1;
    });
    session.answers(Operation::Next, answered);
    if answered == 0 { 0 } else { ends[answered - 1] }
}

/// Whether `name` is the beginning of a line of HTTP. Any web page can make a browser send such
/// lines, to addresses that only that browser reaches.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"host:")
}
