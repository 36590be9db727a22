//! The commands: how each is called, and what clients are told of it.

/// What a command does.
///
/// Several commands may share one: `LPOP` and `RPOP` do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// The next id of a tag, as an integer.
    Increment,
    /// Several ids of a tag that follow each other.
    IncrementBy,
    /// The highest id of a tag that this node issued.
    Get,
    /// How many of the tags exist.
    Exists,
    /// Ids of a tag, as strings or as texts.
    Segment,
    /// Snowflake ids, as strings or in another form.
    Snowflake,
    /// A snowflake id taken apart.
    Decode,
    /// Ids of a tag, for clients that take them out of a list.
    Pop,
    /// How many ids of a tag are in memory.
    Length,
    /// Whether somebody answers.
    Ping,
    /// The client's own word.
    Echo,
    /// Shows the password.
    Auth,
    /// Chooses the version of the protocol.
    Hello,
    /// Chooses the one database.
    Select,
    /// Makes the connection as it was at its beginning.
    Reset,
    /// Ends the connection.
    Quit,
    /// What the server knows of the connection.
    Client,
    /// What the server knows of its commands.
    Command,
    /// The state of the server.
    Info,
    /// Settings that tools ask for.
    Config,
}

/// One command.
///
/// `COMMAND DOCS`, `COMMAND INFO` and error texts are made from it, so that none of them can differ
/// from what is done.
#[derive(Debug)]
pub(super) struct Command {
    /// In capitals.
    pub(super) name: &'static str,
    /// How many words it has, its name included: least and most.
    words: (usize, usize),
    pub(super) verb: Verb,
    /// The words behind its name.
    pub(super) usage: &'static str,
    /// One sentence for people.
    pub(super) summary: &'static str,
    /// Whether the first word behind its name is a tag.
    pub(super) of_a_tag: bool,
    /// Whether it takes ids.
    pub(super) takes: bool,
}

/// No limit on the number of arguments.
const ANY: usize = usize::MAX;

/// Those that take ids first: they are looked for most often.
pub(super) const COMMANDS: &[Command] = &[
    command("INCR", (2, 2), Verb::Increment, "tag", "The next segment id of a tag, an integer.")
        .of_a_tag()
        .takes(),
    command(
        "INCRBY",
        (3, 3),
        Verb::IncrementBy,
        "tag n",
        "Takes n ids of a tag that follow each other; the last of them, an integer.",
    )
    .of_a_tag()
    .takes(),
    command(
        "SEGMENT",
        (2, 5),
        Verb::Segment,
        "tag [COUNT n] [TEXT]",
        "The next segment id of a tag, or n of them, as strings; TEXT: by the tag's template.",
    )
    .of_a_tag()
    .takes(),
    command(
        "SNOWFLAKE",
        (1, 5),
        Verb::Snowflake,
        "[COUNT n] [AS uuid|ulid|tsid|objectid]",
        "The next snowflake id, or n of them, as strings.",
    )
    .takes(),
    command(
        "LPOP",
        (2, 3),
        Verb::Pop,
        "tag [n]",
        "As SEGMENT, for clients that keep a pool of ids in a list.",
    )
    .of_a_tag()
    .takes(),
    command("RPOP", (2, 3), Verb::Pop, "tag [n]", "As LPOP.").of_a_tag().takes(),
    command(
        "GET",
        (2, 2),
        Verb::Get,
        "tag",
        "The highest id of a tag that this node issued, or nil.",
    )
    .of_a_tag(),
    command(
        "EXISTS",
        (2, 65),
        Verb::Exists,
        "tag [tag ...], 64 at most",
        "How many of the tags exist.",
    )
    .of_a_tag(),
    command("LLEN", (2, 2), Verb::Length, "tag", "How many ids of a tag this node has in memory.")
        .of_a_tag(),
    command(
        "DECODE",
        (2, 4),
        Verb::Decode,
        "id [AS uuid|ulid|tsid|objectid]",
        "Time, worker id and sequence of a snowflake id.",
    ),
    command("PING", (1, 2), Verb::Ping, "[text]", "PONG, or the text."),
    command("ECHO", (2, 2), Verb::Echo, "text", "The text."),
    command("AUTH", (2, 3), Verb::Auth, "[default] password", "Shows the password."),
    command(
        "HELLO",
        (1, ANY),
        Verb::Hello,
        "[2|3 [AUTH default password] [SETNAME name]]",
        "Chooses the version of the protocol.",
    ),
    command("SELECT", (2, 2), Verb::Select, "0", "There is one database."),
    command("RESET", (1, 1), Verb::Reset, "", "Makes the connection as it was at its beginning."),
    command("QUIT", (1, 1), Verb::Quit, "", "Ends the connection."),
    command(
        "CLIENT",
        (2, ANY),
        Verb::Client,
        "ID | GETNAME | SETNAME name | SETINFO name value",
        "What the server knows of this connection.",
    ),
    command(
        "COMMAND",
        (1, ANY),
        Verb::Command,
        "[COUNT | DOCS [name ...] | INFO [name ...] | LIST]",
        "The commands.",
    ),
    command("INFO", (1, ANY), Verb::Info, "[section ...]", "The server's state."),
    command("CONFIG", (2, ANY), Verb::Config, "GET name [name ...]", "What Redis clients ask for."),
];

/// One that has nothing to do with a tag.
const fn command(
    name: &'static str,
    words: (usize, usize),
    verb: Verb,
    usage: &'static str,
    summary: &'static str,
) -> Command {
    Command { name, words, verb, usage, summary, of_a_tag: false, takes: false }
}

/// The command of a name, in capitals or not.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

impl Command {
    /// Marks a command whose first argument is a tag.
    const fn of_a_tag(self) -> Self {
        Self { of_a_tag: true, ..self }
    }

    /// Marks a command that uses ids up, which Redis calls a write.
    const fn takes(self) -> Self {
        Self { takes: true, ..self }
    }

    /// Whether a command of so many words, its name included, is complete.
    pub(super) const fn takes_words(&self, count: usize) -> bool {
        self.words.0 <= count && count <= self.words.1
    }

    /// How many words it has, as Redis tells it: the least as a negative number where there may be
    /// more.
    pub(super) const fn arity(&self) -> i64 {
        let least = self.words.0 as i64;
        if self.words.0 == self.words.1 { least } else { -least }
    }
}
