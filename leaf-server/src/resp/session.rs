//! What is known of a client while its connection is open, and the replies to it.

use std::sync::atomic::{AtomicI64, Ordering};

use leaf_node::tokens::REDIS_USER;
use tokio::time::Instant;

use super::codec::{Words, repeated, text};
use super::reply::{REDIS_VERSION, Replies, Version};
use crate::caller::Client;
use crate::metrics::Operation;
use crate::refusal::{Face, Reason};

/// The longest name of a connection.
const LONGEST_NAME: usize = 128;

/// The last number that a connection was given.
static LAST: AtomicI64 = AtomicI64::new(0);

/// The state of a connection: its client, what the client has chosen, and the replies to it.
pub(super) struct Session {
    /// The client, with the token or certificate that it has shown.
    pub(super) client: Client,
    /// The replies that wait to be sent, in the version that the client chose.
    pub(super) replies: Replies,
    /// Whether the client has begun a transaction, which was refused, and has not ended it yet.
    in_refused_transaction: bool,
    /// The operation of the command that is being answered.
    pub(super) operation: Operation,
    /// How many commands were answered since the replies were last sent, by operation; refused ones
    /// do not count.
    answered: [i32; Operation::ALL.len()],
    /// The name that the client has given the connection; empty at first.
    name: String,
    /// The answer to `CLIENT ID`, which differs for every connection of this process.
    number: i64,
}

/// Why a command is refused. A text alone converts to a refusal with the reason `BadRequest`.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) text: String,
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(text: T) -> Self {
        Self { reason: Reason::BadRequest, text: text.into() }
    }
}

impl Session {
    /// The session of a connection on which the client has sent nothing yet.
    pub(super) fn new(client: Client) -> Self {
        Self {
            replies: Replies { bytes: Vec::new(), version: Version::Two },
            client,
            in_refused_transaction: false,
            operation: Operation::Other,
            answered: Default::default(),
            name: String::new(),
            number: 1 + LAST.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Counts `commands` commands as answered, and stores their operation.
    pub(super) fn answers(&mut self, operation: Operation, commands: usize) {
        self.operation = operation;
        self.answered[operation as usize] += commands as i32;
    }

    /// Counts the command that is being answered under `Take` instead of its own operation.
    pub(super) fn answers_several(&mut self) {
        self.postpones();
        self.answers(Operation::Take, 1);
    }

    /// Takes the command that is being answered out of the count, because it was refused, or will
    /// be counted once its reply is there.
    pub(super) fn postpones(&mut self) {
        self.answered[self.operation as usize] -= 1;
    }

    /// Refuses a command: counts it, and replies with an error. Clients of Redis tell errors apart
    /// by the word `code`.
    pub(super) fn refuse(&mut self, reason: Reason, code: &str, text: &str) {
        self.refused(reason);
        self.replies.error(code, text);
    }

    /// Counts the command that is answered now as refused.
    pub(super) fn refused(&mut self, reason: Reason) {
        self.client.node().requests.refused(Face::Redis, self.operation, reason, None);
        self.postpones();
    }

    /// Counts in the metrics the commands that were answered since the last call. They arrived at
    /// `arrived`, and their replies are ready now.
    pub(super) fn count(&mut self, arrived: Instant) {
        if self.answered == <[i32; Operation::ALL.len()]>::default() {
            return;
        }
        let took = arrived.elapsed();
        for (operation, answered) in Operation::ALL.iter().zip(std::mem::take(&mut self.answered)) {
            if let Ok(answered @ 1..) = u64::try_from(answered) {
                self.client.node().requests.answered(Face::Redis, *operation, took, answered);
            }
        }
    }

    /// Whether the client may ask for ids: it is authenticated and in no refused transaction.
    pub(super) fn is_open(&mut self) -> bool {
        self.is_authenticated() && !self.in_refused_transaction
    }

    /// Whether the client is authenticated by the tokens that are in force now, or need not be.
    pub(super) fn is_authenticated(&mut self) -> bool {
        self.client.caller().may_ask()
    }

    /// Refuses `MULTI` and the commands after it up to `EXEC` or `DISCARD`, which the client may
    /// have sent already: ids that they took would be lost with the transaction. Returns whether
    /// `name` is one of these commands; if so, its reply is written.
    pub(super) fn refuses_transaction(&mut self, name: &[u8]) -> bool {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"RESET") || is(b"QUIT") {
            self.in_refused_transaction = false;
            return false;
        }
        let refused = std::mem::replace(&mut self.in_refused_transaction, is(b"MULTI"));
        if is(b"MULTI") {
            let why = "MULTI is refused: Leaf has no transactions, send the commands without (a pipeline)";
            self.refuse(Reason::BadRequest, "ERR", why);
        } else if refused && is(b"EXEC") {
            self.refuse(Reason::BadRequest, "EXECABORT", "Transaction discarded: Leaf has none");
        } else if refused && is(b"DISCARD") {
            self.replies.simple("OK");
        } else if refused {
            self.in_refused_transaction = true;
            self.refuse(Reason::BadRequest, "ERR", "MULTI was refused: send EXEC or DISCARD");
        }
        refused || is(b"MULTI")
    }

    /// `AUTH [name] token`; with `redis.password` as the token, the name is `default`. A wrong
    /// token changes nothing.
    pub(super) fn authenticate(&mut self, words: &Words, input: &[u8]) {
        let (name, token) = match words.len() {
            2 => (None, words.word(input, 1)),
            _ => (Some(words.word(input, 1)), words.word(input, 2)),
        };
        let config = self.client.node().live.config();
        if config.redis.password.is_none() && config.tokens_file().is_none() && name.is_none() {
            return self.refuse(
                Reason::BadToken,
                "ERR",
                "AUTH <password> called without any password configured: redis.password is not set",
            );
        }
        drop(config);
        if self.check(name, token) {
            self.replies.simple("OK");
        }
    }

    /// Authenticates the client; returns whether name and token are right. If not, replies with an
    /// error.
    fn check(&mut self, name: Option<&[u8]>, token: &[u8]) -> bool {
        // As in Redis, whose user `default` may have no password.
        let names_nobody = name == Some(REDIS_USER.as_bytes())
            && self.client.node().live.config().redis.password.is_none();
        if self.client.shows(name, token) {
            return true;
        }
        if names_nobody && self.client.is_open() {
            self.client.forget();
            return true;
        }
        self.refuse(
            Reason::BadToken,
            "WRONGPASS",
            "invalid username-password pair or user is disabled: neither redis.password nor a token of tokens_file",
        );
        false
    }

    /// `HELLO [2|3 [AUTH user password] [SETNAME name]]`: chooses the version of the protocol. The
    /// version changes only if all options are right; a right password takes effect even if another
    /// option is wrong.
    pub(super) fn hello(&mut self, words: &Words, input: &[u8]) {
        let version = match words.word(input, 1) {
            _ if words.len() == 1 => self.replies.version,
            b"2" => Version::Two,
            b"3" => Version::Three,
            _ => {
                return self.refuse(
                    Reason::BadRequest,
                    "NOPROTO",
                    "unsupported protocol version: there are 2 and 3",
                );
            }
        };
        let mut name = None;
        let mut at = 2;
        while at < words.len() {
            let option = words.word(input, at);
            if option.eq_ignore_ascii_case(b"AUTH") && at + 2 < words.len() {
                if !self.check(Some(words.word(input, at + 1)), words.word(input, at + 2)) {
                    return;
                }
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && at + 1 < words.len() {
                name = Some(words.word(input, at + 1));
                at += 2;
            } else {
                let text = format!("syntax error in HELLO option '{}'", repeated(option));
                return self.refuse(Reason::BadRequest, "ERR", &text);
            }
        }
        if !self.is_authenticated() {
            return self.refuse(
                Reason::Unauthorized,
                "NOAUTH",
                "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                 AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
                 protocol version at the same time",
            );
        }
        if let Some(Err(refusal)) = name.map(|name| self.set_name(name)) {
            return self.refuse(Reason::BadRequest, "ERR", &refusal);
        }
        let to = &mut self.replies;
        to.version = version;
        to.map(7);
        to.pairs(&[("server", "leaf"), ("version", REDIS_VERSION)]);
        to.bulk(b"proto");
        to.integer(if version == Version::Two { 2 } else { 3 });
        to.bulk(b"id");
        to.integer(self.number);
        to.pairs(&[("mode", "standalone"), ("role", "master")]);
        to.bulk(b"modules");
        to.array(0);
    }

    /// `RESET`: puts the connection into its first state, in which the client has shown no token.
    pub(super) fn reset(&mut self) {
        self.client.forget();
        self.name.clear();
        self.replies.version = Version::Two;
        self.replies.simple("RESET");
    }

    /// `CLIENT ID | GETNAME | SETNAME name | SETINFO name value`: what client libraries send when
    /// they connect.
    pub(super) fn client(&mut self, words: &Words, input: &[u8]) -> Result<(), Refusal> {
        let what = words.word(input, 1).to_ascii_uppercase();
        match (&what[..], words.len()) {
            (b"ID", 2) => self.replies.integer(self.number),
            (b"GETNAME", 2) if self.name.is_empty() => self.replies.null(),
            (b"GETNAME", 2) => self.replies.bulk(self.name.as_bytes()),
            (b"SETNAME", 3) => {
                self.set_name(words.word(input, 2))?;
                self.replies.simple("OK");
            }
            // Libraries tell their name and version here. Nobody asks for it.
            (b"SETINFO", 4) => self.replies.simple("OK"),
            _ => {
                let what = repeated(&what);
                return Err(format!(
                    "unknown subcommand or wrong number of arguments for '{what}': there are CLIENT ID, GETNAME, \
                     SETNAME name and SETINFO name value"
                ).into());
            }
        }
        Ok(())
    }

    /// Names the connection. The same characters are refused as in Redis.
    fn set_name(&mut self, name: &[u8]) -> Result<(), String> {
        let fits = name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic);
        if !fits {
            return Err(format!(
                "Client names cannot contain spaces, newlines or special characters, and have at most \
                 {LONGEST_NAME} characters."
            ));
        }
        text(name)?.clone_into(&mut self.name);
        Ok(())
    }
}
