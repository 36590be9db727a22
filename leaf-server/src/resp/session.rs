//! What is known of a client while its connection is open, and the replies to it.

use std::sync::atomic::{AtomicI64, Ordering};

use leaf_node::tokens::REDIS_USER;
use tokio::time::Instant;

use super::codec::text;
use super::reply::{Replies, Version};
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
    pub(super) name: String,
    /// The answer to `CLIENT ID`, which differs for every connection of this process.
    pub(super) number: i64,
}

/// Why a command is refused. A text alone converts to a refusal with the reason `BadRequest`.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    /// The first word of the error, by which clients of Redis tell errors apart.
    pub(super) code: &'static str,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(reason: Reason, code: &'static str, text: impl Into<String>) -> Self {
        Self { reason, code, text: text.into() }
    }
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(text: T) -> Self {
        Self::new(Reason::BadRequest, "ERR", text)
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

    /// Refuses a command: counts it, and replies with an error.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        self.refused(refusal.reason);
        self.replies.error(refusal.code, &refusal.text);
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
    /// have sent already: ids that they took would be lost with the transaction. `None` if `name`
    /// is none of these commands.
    pub(super) fn in_transaction(&mut self, name: &[u8]) -> Option<Result<(), Refusal>> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"RESET") || is(b"QUIT") {
            self.in_refused_transaction = false;
            return None;
        }
        let refused = std::mem::replace(&mut self.in_refused_transaction, is(b"MULTI"));
        let (code, text) = if is(b"MULTI") {
            (
                "ERR",
                "MULTI is refused: Leaf has no transactions, send the commands without (a pipeline)",
            )
        } else if !refused {
            return None;
        } else if is(b"EXEC") {
            ("EXECABORT", "Transaction discarded: Leaf has none")
        } else if is(b"DISCARD") {
            self.replies.simple("OK");
            return Some(Ok(()));
        } else {
            self.in_refused_transaction = true;
            ("ERR", "MULTI was refused: send EXEC or DISCARD")
        };
        Some(Err(Refusal::new(Reason::BadRequest, code, text)))
    }

    /// Authenticates the client, or says that name and token are not right.
    pub(super) fn check(&mut self, name: Option<&[u8]>, token: &[u8]) -> Result<(), Refusal> {
        // As in Redis, whose user `default` may have no password.
        let names_nobody = name == Some(REDIS_USER.as_bytes())
            && self.client.node().live.config().redis.password.is_none();
        if self.client.shows(name, token) {
            return Ok(());
        }
        if names_nobody && self.client.is_open() {
            self.client.forget();
            return Ok(());
        }
        Err(Refusal::new(
            Reason::BadToken,
            "WRONGPASS",
            "invalid username-password pair or user is disabled: neither redis.password nor a token of tokens_file",
        ))
    }

    /// Names the connection. The same characters are refused as in Redis.
    pub(super) fn set_name(&mut self, name: &[u8]) -> Result<(), String> {
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
