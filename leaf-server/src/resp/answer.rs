//! Answers the commands that a connection has received. Those whose reply is there are answered at
//! once and allocate nothing; the others are [`Task`]s, which may wait.

use leaf_segment::shards::KnownTags;

use super::codec::{self, Words, equal_commands, repeated};
use super::command::{Call, Outcome};
use super::session::Session;
use super::table::{self, COMMANDS};
use super::task::Task;
use crate::ids;
use crate::metrics::Operation;
use crate::refusal::Reason;

/// The most tags whose next ids are taken in one batch.
const TAGS_AT_ONCE: usize = KnownTags::AT_A_TIME;
/// What became of a command.
pub(super) enum Answered {
    /// The commands in this many bytes of the input are answered.
    Done(usize),
    /// It is answered, and the connection ends.
    End,
    /// The reply to the commands in this many bytes of the input has to be waited for.
    Wait(Task, usize),
}

/// Answers the command of `words`, the first `length` bytes of `input`.
///
/// `words` are those of the first command. `INCR`s of one tag that came together are answered
/// together; those of several tags by [`increment_several`], which is tried before.
pub(super) fn answer(
    session: &mut Session,
    words: &Words,
    input: &[u8],
    length: usize,
) -> Answered {
    let name = words.word(input, 0);
    if name.eq_ignore_ascii_case(b"INCR")
        && words.len() == 2
        && session.is_open()
        && let Some(done) = increment(session, words.word(input, 1), input, length)
    {
        return Answered::Done(done);
    }
    if words.len() == 0 {
        return Answered::Done(length);
    }
    let command = table::find(name);
    session.answers(command.map_or(Operation::Other, |command| command.operation), 1);
    if session.refuses_transaction(name) {
        return Answered::Done(length);
    }
    let Some(command) = command else {
        if is_http(name) {
            tracing::debug!(
                "a request of HTTP on the listener of the Redis protocol; the connection ends"
            );
            session.refused(Reason::BadRequest);
            return Answered::End;
        }
        let offered: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        let name = repeated(name);
        let text = format!("unknown command '{name}': Leaf offers {}", offered.join(", "));
        session.refuse(Reason::NotFound, "ERR", &text);
        return Answered::Done(length);
    };
    if !command.open && !session.is_authenticated() {
        session.refuse(
            Reason::Unauthorized,
            "NOAUTH",
            "Authentication required: send AUTH with redis.password, or with a name and its token",
        );
        return Answered::Done(length);
    }
    if !command.takes_words(words.len()) {
        let (name, usage) = (command.name, command.usage);
        let text = format!("wrong number of arguments for '{name}': write {name} {usage}");
        session.refuse(Reason::BadRequest, "ERR", text.trim_end());
        return Answered::Done(length);
    }
    match (command.run)(&mut Call { session, command, words, input, length }) {
        Ok(Outcome::Wait(task)) => {
            session.postpones();
            let length = task.calls * length;
            Answered::Wait(task, length)
        }
        Ok(Outcome::End) => Answered::End,
        Ok(Outcome::Done) => Answered::Done(length),
        Err(refusal) => {
            session.refuse(refusal.reason, "ERR", &refusal.text);
            Answered::Done(length)
        }
    }
}

/// `INCR tag`, and all that follow it and are the same, from the ids that are there. Returns how
/// many bytes they are; `None` where no id is there.
fn increment(session: &mut Session, tag: &[u8], input: &[u8], length: usize) -> Option<usize> {
    let tag = std::str::from_utf8(tag).ok()?;
    let ids = ids::known(session.client.caller(), tag, |handle| {
        handle.try_take_ids(equal_commands(input, length))
    })??;
    let commands = ids.len();
    for id in ids {
        session.replies.integer(id.get());
    }
    session.answers(Operation::Next, commands);
    Some(commands * length)
}

/// Answers the commands that `input` begins with as long as they are `INCR` of several tags, whose
/// next ids are there, at most
/// [`TAGS_AT_ONCE`]. Returns how many bytes they are.
pub(super) fn increment_several(session: &mut Session, input: &[u8]) -> usize {
    if !session.is_open() {
        return 0;
    }
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
    if count < 2 {
        return 0;
    }
    let mut answered = 0;
    let Session { client, replies, .. } = session;
    ids::next_of_each(client.caller(), &tags[..count], |id| {
        replies.integer(id.get());
        answered += 1;
    });
    session.answers(Operation::Next, answered);
    if answered == 0 { 0 } else { ends[answered - 1] }
}

/// Whether it is the beginning of a line of HTTP: a page in somebody's browser sends those, to
/// addresses that only that browser reaches.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"host:")
}
