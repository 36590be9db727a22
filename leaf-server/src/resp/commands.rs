//! What the commands do. Those whose answer is there are answered at once and allocate nothing; the
//! others are
//! [`Task`]s, which may wait.

use leaf_core::TextForm;
use leaf_segment::{KnownTags, TagHandle};

use super::codec::{self, Words};
use super::info;
use super::reply::Replies;
use super::session::Session;
use super::table::{self, COMMANDS, Command, Verb};
use super::task::{Form, Task, Told, text_or_nil};
use crate::decoded::Decoded;
use crate::ids;
use crate::node::Node;

/// So many equal commands are answered at once: their replies have room in a buffer.
const AT_ONCE: usize = 128;
/// The ids of so many tags are taken at once.
const TAGS_AT_ONCE: usize = KnownTags::AT_A_TIME;
/// So many bytes of a word are repeated in an error.
const REPEATED: usize = 64;

/// What became of a command.
pub(super) enum Answered {
    /// It is answered, and with it all that follow in so many bytes.
    Done(usize),
    /// It is answered, and the connection ends.
    End,
    /// It may have to wait, and with it all that follow in so many bytes.
    Wait(Task, usize),
}

/// Why a command is refused; the text of its `-ERR`.
type Refusal = String;

/// Answers the command of `words`, the first `length` bytes of `input`.
///
/// `words` are those of the first command. `INCR`s of one tag that came together are answered
/// together; those of several tags by [`increment_several`], which is tried before.
pub(super) fn answer(
    node: &Node,
    session: &mut Session,
    words: &Words,
    input: &[u8],
    length: usize,
) -> Answered {
    let name = words.word(input, 0);
    if name.eq_ignore_ascii_case(b"INCR")
        && words.len() == 2
        && session.is_open(node)
        && let Some(done) = increment(node, session, words.word(input, 1), input, length)
    {
        return Answered::Done(done);
    }
    if words.len() == 0 {
        return Answered::Done(length);
    }
    if session.refuses_transaction(name) {
        return Answered::Done(length);
    }
    let Some(command) = table::find(name) else {
        if is_http(name) {
            tracing::debug!(
                "a request of HTTP on the listener of the Redis protocol; the connection ends"
            );
            return Answered::End;
        }
        let offered: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        let name = repeated(name);
        let text = format!("unknown command '{name}': Leaf offers {}", offered.join(", "));
        session.replies.error("ERR", &text);
        return Answered::Done(length);
    };
    let open = matches!(command.verb, Verb::Auth | Verb::Hello | Verb::Quit | Verb::Reset);
    if !open && !session.is_authenticated(node) {
        session.replies.error("NOAUTH", "Authentication required: send AUTH with redis.password");
        return Answered::Done(length);
    }
    if !command.takes_words(words.len()) {
        let (name, usage) = (command.name, command.usage);
        let text = format!("wrong number of arguments for '{name}': write {name} {usage}");
        session.replies.error("ERR", text.trim_end());
        return Answered::Done(length);
    }
    match run(node, session, command, words, input) {
        Ok(Some(task)) => {
            let (task, commands) = task.with_following(node, input, length);
            Answered::Wait(task, commands * length)
        }
        Ok(None) if command.verb == Verb::Quit => Answered::End,
        Ok(None) => Answered::Done(length),
        Err(refusal) => {
            session.replies.error("ERR", &refusal);
            Answered::Done(length)
        }
    }
}

/// `INCR tag`, and all that follow it and are the same, from the ids that are there. Returns how
/// many bytes they are; `None` where no id is there.
fn increment(
    node: &Node,
    session: &mut Session,
    tag: &[u8],
    input: &[u8],
    length: usize,
) -> Option<usize> {
    let tag = std::str::from_utf8(tag).ok()?;
    let ids = ids::known(node, tag, |handle| handle.try_take_ids(equal_commands(input, length)))??;
    let commands = ids.len();
    for id in ids {
        session.replies.integer(id.get());
    }
    Some(commands * length)
}

/// Answers the commands that `input` begins with as long as they are `INCR` of several tags, whose
/// next ids are there, at most
/// [`TAGS_AT_ONCE`]. Returns how many bytes they are.
pub(super) fn increment_several(node: &Node, session: &mut Session, input: &[u8]) -> usize {
    if !session.is_open(node) {
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
    ids::next_of_each(node, &tags[..count], |id| {
        session.replies.integer(id.get());
        answered += 1;
    });
    if answered == 0 { 0 } else { ends[answered - 1] }
}

/// How many equal commands `input` begins with, of which the first has `length` bytes.
pub(super) fn equal_commands(input: &[u8], length: usize) -> usize {
    let (command, rest) = input.split_at(length);
    let following = rest.chunks_exact(length).take(AT_ONCE - 1);
    1 + following.take_while(|next| *next == command).count()
}

/// Runs a command whose name and number of words are right. `None`: it is answered. What may wait
/// for a store is a task, which the connection runs.
///
/// # Errors
/// The text of its `-ERR`.
fn run(
    node: &Node,
    session: &mut Session,
    command: &Command,
    words: &Words,
    input: &[u8],
) -> Result<Option<Task>, Refusal> {
    let word = |number| words.word(input, number);
    let to = &mut session.replies;
    match command.verb {
        Verb::Increment => {
            return Ok(Some(Task::Next { tag: text(word(1))?.into(), form: Form::Integer }));
        }
        Verb::IncrementBy => {
            let (tag, count) = (text(word(1))?.into(), count(word(2), 1, ids::LARGEST_RANGE)?);
            return Ok(Some(match count {
                // Of any tag, also of one whose ids do not follow each other.
                1 => Task::Next { tag, form: Form::Integer },
                _ => Task::TakeContiguous { tag, count },
            }));
        }
        Verb::Segment => match words.len() {
            2 => return next(node, to, text(word(1))?),
            3 if word(2).eq_ignore_ascii_case(b"TEXT") => {
                return Ok(Some(Task::Texts { tag: text(word(1))?.into(), count: None }));
            }
            words @ (4 | 5)
                if word(2).eq_ignore_ascii_case(b"COUNT")
                    && (words == 4 || word(4).eq_ignore_ascii_case(b"TEXT")) =>
            {
                let (tag, count) = (text(word(1))?.into(), count(word(3), 1, ids::most_ids(node))?);
                return Ok(Some(match words {
                    4 => Task::Take { tag, count },
                    _ => Task::Texts { tag, count: Some(count) },
                }));
            }
            _ => return Err(format!("syntax error: write SEGMENT {}", command.usage)),
        },
        Verb::Pop => match words.len() {
            2 => return next(node, to, text(word(1))?),
            _ => {
                let (tag, count) = (text(word(1))?.into(), count(word(2), 0, ids::most_ids(node))?);
                if count > 0 {
                    return Ok(Some(Task::Take { tag, count }));
                }
                to.array(0);
            }
        },
        Verb::Snowflake => {
            let syntax = || format!("syntax error: write SNOWFLAKE {}", command.usage);
            if words.len().is_multiple_of(2) {
                return Err(syntax());
            }
            let (mut many, mut written) = (None, None);
            for at in (1..words.len()).step_by(2) {
                let (name, value) = (word(at), word(at + 1));
                if name.eq_ignore_ascii_case(b"COUNT") && many.is_none() {
                    many = Some(count(value, 1, ids::most_ids(node))?);
                } else if name.eq_ignore_ascii_case(b"AS") && written.is_none() {
                    written = Some(form(value)?);
                } else {
                    return Err(syntax());
                }
            }
            if let Some(form) = written {
                ids::fits(node, form).map_err(|error| error.to_string())?;
            }
            if many.is_some() || written.is_some() {
                return Ok(Some(Task::Snowflakes { count: many, form: written }));
            }
            match ids::snowflake_at_once(node) {
                Some(id) => to.id(id),
                None => return Ok(Some(Task::Snowflake)),
            }
        }
        Verb::Get => {
            let tag = text(word(1))?;
            match ids::known(node, tag, TagHandle::last_issued) {
                Some(last) => text_or_nil(to, last.map(Told::Id)),
                None => return Ok(Some(Task::Last { tag: tag.into() })),
            }
        }
        Verb::Length => {
            let tag = text(word(1))?;
            match ids::known(node, tag, TagHandle::stock) {
                Some(stock) => to.integer(stock.cast_signed()),
                None => return Ok(Some(Task::Length { tag: tag.into() })),
            }
        }
        Verb::Exists => {
            let tags: Result<Vec<_>, _> =
                words.of(input).skip(1).map(|tag| text(tag).map(String::from)).collect();
            return Ok(Some(Task::Exist { tags: tags? }));
        }
        Verb::Decode => {
            let form = match words.len() {
                2 => None,
                4 if word(2).eq_ignore_ascii_case(b"AS") => Some(form(word(3))?),
                _ => return Err(format!("syntax error: write DECODE {}", command.usage)),
            };
            decode(node, to, text(word(1))?, form)?;
        }
        Verb::Ping => match words.len() {
            1 => to.simple("PONG"),
            _ => to.bulk(word(1)),
        },
        Verb::Echo => to.bulk(word(1)),
        Verb::Select => match word(1) {
            b"0" => to.simple("OK"),
            _ => return Err("DB index is out of range: there is database 0".into()),
        },
        Verb::Quit => to.simple("OK"),
        Verb::Auth => session.authenticate(node, words, input),
        Verb::Hello => session.hello(node, words, input),
        Verb::Reset => session.reset(node),
        Verb::Client => session.client(words, input)?,
        Verb::Command => info::commands(to, words, input)?,
        Verb::Info => to.text(&info::state(node)),
        Verb::Config => info::config(to, words, input)?,
    }
    Ok(None)
}

/// The next id of a tag as a text, if it is there.
fn next(node: &Node, to: &mut Replies, tag: &str) -> Result<Option<Task>, Refusal> {
    match ids::known(node, tag, TagHandle::try_next) {
        Some(Some(id)) => {
            to.id(id);
            Ok(None)
        }
        _ => Ok(Some(Task::Next { tag: tag.into(), form: Form::Text })),
    }
}

/// The name of a form of snowflake ids.
fn form(word: &[u8]) -> Result<TextForm, Refusal> {
    text(word)?.parse().map_err(|why| format!("AS: {why}"))
}

/// `DECODE`: the parts of a snowflake id, as pairs of name and value.
fn decode(node: &Node, to: &mut Replies, id: &str, form: Option<TextForm>) -> Result<(), Refusal> {
    let decoded = Decoded::of(node, id, form).map_err(|error| error.to_string())?;
    let number = |number: u64| itoa::Buffer::new().format(number).to_owned();
    let pairs = [
        ("id", Some(decoded.id)),
        ("timestamp_ms", Some(decoded.timestamp_ms)),
        ("time", decoded.time),
        ("datacenter", decoded.datacenter.map(|it| number(it.into()))),
        ("worker", Some(number(decoded.worker.into()))),
        ("sequence", Some(number(decoded.sequence))),
    ];
    let pairs = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    to.map(pairs.clone().count());
    for (name, value) in pairs {
        to.bulk(name.as_bytes());
        to.bulk(value.as_bytes());
    }
    Ok(())
}

/// A word as text: names of tags are UTF-8.
pub(super) fn text(word: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(word).map_err(|_| "an argument is not UTF-8".into())
}

/// A number of ids, in digits.
fn count(word: &[u8], least: usize, most: usize) -> Result<usize, Refusal> {
    let digits = word.iter().all(u8::is_ascii_digit);
    let number =
        std::str::from_utf8(word).ok().filter(|_| digits).and_then(|word| word.parse().ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        format!(
            "value is not an integer or out of range: give a number of ids from {least} to {most}"
        )
    })
}

/// A word of the client's for an error: a part of it, without what does not print.
pub(super) fn repeated(word: &[u8]) -> String {
    let part = String::from_utf8_lossy(&word[..word.len().min(REPEATED)]);
    part.chars().filter(|c| !c.is_control()).collect()
}

/// Whether it is the beginning of a line of HTTP: a page in somebody's browser sends those, to
/// addresses that only that browser reaches.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"host:")
}
