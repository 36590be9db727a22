//! The commands: the words and the function of each, and what clients are told of it.

use super::command::{Command, Run, Tags};
use super::{commands, info};
use crate::metrics::Operation;

/// No limit on the number of arguments.
const ANY: usize = usize::MAX;

/// All commands. Those that take ids come first, since they are looked up most often.
pub(super) const COMMANDS: &[Command] = &[
    command("INCR", (2, 2), commands::increment)
        .told("tag", "The next segment id of a tag, an integer.")
        .of(Tags::First)
        .asks(Operation::Next),
    command("INCRBY", (3, 3), commands::increment_by)
        .told("tag n", "Takes n ids of a tag that follow each other; the last of them, an integer.")
        .of(Tags::First)
        .asks(Operation::Next),
    command("SEGMENT", (2, 5), commands::segment)
        .told(
            "tag [COUNT n] [TEXT]",
            "The next segment id of a tag, or n of them, as strings; TEXT: by the tag's template.",
        )
        .of(Tags::First)
        .asks(Operation::Next),
    command("SNOWFLAKE", (1, 5), commands::snowflake)
        .told(
            "[COUNT n] [AS uuid|ulid|tsid|objectid]",
            "The next snowflake id, or n of them, as strings.",
        )
        .asks(Operation::Next),
    command("LPOP", (2, 3), commands::pop)
        .told("tag [n]", "As SEGMENT, for clients that keep a pool of ids in a list.")
        .of(Tags::First)
        .asks(Operation::Next),
    command("RPOP", (2, 3), commands::pop)
        .told("tag [n]", "As LPOP.")
        .of(Tags::First)
        .asks(Operation::Next),
    command("GET", (2, 2), commands::get)
        .told("tag", "The highest id of a tag that this node issued, or nil.")
        .of(Tags::First)
        .asks(Operation::Describe),
    command("EXISTS", (2, 65), commands::exists)
        .told("tag [tag ...], 64 at most", "How many of the tags exist.")
        .of(Tags::All)
        .asks(Operation::Describe),
    command("LLEN", (2, 2), commands::length)
        .told("tag", "How many ids of a tag this node has in memory.")
        .of(Tags::First)
        .asks(Operation::Describe),
    command("DECODE", (2, 4), commands::decode)
        .told("id [AS uuid|ulid|tsid|objectid]", "Time, worker id and sequence of a snowflake id.")
        .asks(Operation::Decode),
    command("PING", (1, 2), info::ping)
        .told("[text]", "PONG, or the text.")
        .asks(Operation::Health),
    command("ECHO", (2, 2), info::echo).told("text", "The text."),
    command("AUTH", (2, 3), info::authenticate)
        .told("[name] token", "Shows redis.password, or a token and whose it is.")
        .open(),
    command("HELLO", (1, ANY), info::hello)
        .told("[2|3 [AUTH name token] [SETNAME name]]", "Chooses the version of the protocol.")
        .open(),
    command("SELECT", (2, 2), info::select).told("0", "There is one database."),
    command("RESET", (1, 1), info::reset)
        .told("", "Makes the connection as it was at its beginning.")
        .open(),
    command("QUIT", (1, 1), info::quit).told("", "Ends the connection.").open(),
    command("CLIENT", (2, ANY), info::client).told(
        "ID | GETNAME | SETNAME name | SETINFO name value",
        "What the server knows of this connection.",
    ),
    command("COMMAND", (1, ANY), |call| info::commands(call, COMMANDS))
        .told("[COUNT | DOCS [name ...] | INFO [name ...] | LIST]", "The commands."),
    command("INFO", (1, ANY), info::state)
        .told("[section ...]", "The server's state.")
        .asks(Operation::Describe),
    command("CONFIG", (2, ANY), info::config)
        .told("GET name [name ...]", "What Redis clients ask for."),
];

/// A command without tags that needs authentication; the methods of [`Command`] below change that.
const fn command(name: &'static str, words: (usize, usize), run: Run) -> Command {
    let (tags, operation) = (Tags::None, Operation::Other);
    Command { name, words, run, usage: "", summary: "", tags, operation, open: false }
}

/// The command of a name, in capitals or not.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

impl Command {
    /// Sets what clients are told of a command: the words after its name, and one sentence.
    const fn told(self, usage: &'static str, summary: &'static str) -> Self {
        Self { usage, summary, ..self }
    }

    /// Marks a command that has tags among its words.
    const fn of(self, tags: Tags) -> Self {
        Self { tags, ..self }
    }

    /// Marks a command that needs no authentication.
    const fn open(self) -> Self {
        Self { open: true, ..self }
    }

    /// Sets the operation of a command. `COMMAND` shows commands of the operation `Next` as writes.
    const fn asks(self, operation: Operation) -> Self {
        Self { operation, ..self }
    }

    /// Whether a command may have `count` words, its name included.
    pub(super) const fn takes_words(&self, count: usize) -> bool {
        self.words.0 <= count && count <= self.words.1
    }

    /// How many words a command has, its name included, as Redis expects it: if there may be more,
    /// the least number, negated.
    pub(super) const fn arity(&self) -> i64 {
        let least = self.words.0 as i64;
        if self.words.0 == self.words.1 { least } else { -least }
    }
}
