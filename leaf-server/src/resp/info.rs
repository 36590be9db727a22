//! The commands that clients send to a Redis server before they use it.
//!
//! Client libraries and tools ask for versions, roles and settings when they connect, and refuse to
//! work where an answer is missing. The answers here are true of Leaf; what Redis alone has is left
//! out.

use std::fmt::Write as _;

use super::codec::repeated;
use super::command::{Answer, Call, Command, Outcome, Tags};
use super::reply::{REDIS_VERSION, Replies, Version};
use super::session::Refusal;
use crate::metrics::Operation;
use crate::refusal::Reason;

/// The settings of a Redis that is as durable as Leaf; redis-benchmark asks for them.
const CONFIG: [(&str, &str); 2] = [("save", ""), ("appendonly", "yes")];

/// `INFO`: the sections that clients look into, in the format of Redis.
pub(super) fn state(call: &mut Call<'_>) -> Answer {
    let node = call.caller().clone();
    let health = node.health_lately();
    // A client that asks waits until it is 0.
    let loading = u8::from(!health.can_answer());
    let mut text = format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nleaf_version:{}\r\nredis_mode:standalone\r\n\
         process_id:{}\r\nuptime_in_seconds:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        node.started.elapsed().as_secs(),
    );
    // A String takes everything. The first line of the health says all.
    let _ = write!(
        text,
        "\r\n# Persistence\r\nloading:{loading}\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
         \r\n# Leaf\r\nhealth:{}\r\n",
        health.to_string().lines().next().unwrap_or_default()
    );
    call.to().text(&text);
    Ok(Outcome::Done)
}

/// `PING [text]`
pub(super) fn ping(call: &mut Call<'_>) -> Answer {
    match call.len() {
        1 => call.to().simple("PONG"),
        _ => return echo(call),
    }
    Ok(Outcome::Done)
}

/// `ECHO text`
pub(super) fn echo(call: &mut Call<'_>) -> Answer {
    let text = call.word(1);
    call.to().bulk(text);
    Ok(Outcome::Done)
}

/// `SELECT 0`
pub(super) fn select(call: &mut Call<'_>) -> Answer {
    if call.word(1) != b"0" {
        return Err("DB index is out of range: there is database 0".into());
    }
    call.ok()
}

/// `QUIT`
pub(super) fn quit(call: &mut Call<'_>) -> Answer {
    call.to().simple("OK");
    Ok(Outcome::End)
}

/// `CONFIG GET name [name ...]`: the names that are known, each with its value. Nothing can be set.
pub(super) fn config(call: &mut Call<'_>) -> Answer {
    if !call.is(1, "GET") || call.len() < 3 {
        return Err("write CONFIG GET name: what is configured is set in leaf.toml".into());
    }
    let asked = |name: &str| {
        call.words
            .of(call.input)
            .skip(2)
            .any(|word| word == b"*" || name.as_bytes().eq_ignore_ascii_case(word))
    };
    let known: Vec<_> = CONFIG.into_iter().filter(|(name, _)| asked(name)).collect();
    call.to().map(known.len());
    call.to().pairs(&known);
    Ok(Outcome::Done)
}

/// `COMMAND [COUNT | DOCS [name ...] | INFO [name ...] | LIST]`: the table of commands, which
/// clients of a cluster and `redis-cli` ask for.
pub(super) fn commands(call: &mut Call<'_>, all: &[Command]) -> Answer {
    let named: Vec<_> = call.words.of(call.input).skip(2).collect();
    let what = call.word(1).to_ascii_uppercase();
    let is_whole = call.len() == 1;
    let find = |name: &&[u8]| all.iter().find(|it| it.name.as_bytes().eq_ignore_ascii_case(name));
    let to = call.to();
    match (&what[..], named.is_empty()) {
        _ if is_whole => describe(to, all.iter().map(Some)),
        (b"COUNT", true) => to.integer(all.len() as i64),
        (b"LIST", true) => {
            to.array(all.len());
            all.iter().for_each(|command| to.bulk(command.name.as_bytes()));
        }
        (b"INFO", true) => describe(to, all.iter().map(Some)),
        (b"INFO", false) => describe(to, named.iter().map(find)),
        (b"DOCS", true) => document(to, all.iter()),
        (b"DOCS", false) => document(to, named.iter().filter_map(find)),
        _ => {
            let what = repeated(&what);
            return Err(format!(
                "unknown subcommand '{what}': there are COMMAND COUNT, DOCS, INFO and LIST"
            )
            .into());
        }
    }
    Ok(Outcome::Done)
}

/// One array per command: name, arity, flags, first and last key, step, categories, tips, key
/// specifications, subcommands. A command that does not exist is nil.
fn describe<'a>(to: &mut Replies, commands: impl Iterator<Item = Option<&'a Command>> + Clone) {
    to.array(commands.clone().count());
    for command in commands {
        let Some(command) = command else {
            to.null();
            continue;
        };
        to.array(10);
        to.bulk(command.name.to_ascii_lowercase().as_bytes());
        to.integer(command.arity());
        to.array(2);
        to.simple(if command.operation == Operation::Next { "write" } else { "readonly" });
        to.simple("fast");
        let key = i64::from(command.tags != Tags::None);
        let last = if command.tags == Tags::All { -1 } else { key };
        [key, last, key].into_iter().for_each(|number| to.integer(number));
        (0..4).for_each(|_| to.array(0));
    }
}

/// One map per command: the help that `redis-cli` shows while somebody types.
fn document<'a>(to: &mut Replies, commands: impl Iterator<Item = &'a Command> + Clone) {
    to.map(commands.clone().count());
    for command in commands {
        to.bulk(command.name.to_ascii_lowercase().as_bytes());
        to.map(3);
        let usage = format!("{} Usage: {} {}", command.summary, command.name, command.usage);
        to.pairs(&[("summary", usage.trim_end()), ("since", "1.0.0"), ("group", "generic")]);
    }
}

/// `AUTH [name] token`; with `redis.password` as the token, the name is `default`. A wrong
/// token changes nothing.
pub(super) fn authenticate(call: &mut Call<'_>) -> Answer {
    let last = call.len() - 1;
    let (name, token) = ((last == 2).then(|| call.word(1)), call.word(last));
    let config = call.session.client.node().live.config();
    if config.redis.password.is_none() && config.tokens_file().is_none() && name.is_none() {
        return Err(Refusal::new(
            Reason::BadToken,
            "ERR",
            "AUTH <password> called without any password configured: redis.password is not set",
        ));
    }
    drop(config);
    call.session.check(name, token)?;
    call.ok()
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`: chooses the version of the protocol. The
/// version changes only if all options are right; a right password takes effect even if another
/// option is wrong.
pub(super) fn hello(call: &mut Call<'_>) -> Answer {
    let version = match call.word(1) {
        _ if call.len() == 1 => call.session.replies.version,
        b"2" => Version::Two,
        b"3" => Version::Three,
        _ => {
            let text = "unsupported protocol version: there are 2 and 3";
            return Err(Refusal::new(Reason::BadRequest, "NOPROTO", text));
        }
    };
    let mut name = None;
    let mut at = 2;
    while at < call.len() {
        if call.is(at, "AUTH") && at + 2 < call.len() {
            call.session.check(Some(call.word(at + 1)), call.word(at + 2))?;
            at += 3;
        } else if call.is(at, "SETNAME") && at + 1 < call.len() {
            name = Some(call.word(at + 1));
            at += 2;
        } else {
            let option = repeated(call.word(at));
            return Err(format!("syntax error in HELLO option '{option}'").into());
        }
    }
    if !call.session.is_authenticated() {
        return Err(Refusal::new(
            Reason::Unauthorized,
            "NOAUTH",
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
             AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
             protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.session.set_name(name)?;
    }
    let number = call.session.number;
    let to = call.to();
    to.version = version;
    to.map(7);
    to.pairs(&[("server", "leaf"), ("version", REDIS_VERSION)]);
    to.bulk(b"proto");
    to.integer(if version == Version::Two { 2 } else { 3 });
    to.bulk(b"id");
    to.integer(number);
    to.pairs(&[("mode", "standalone"), ("role", "master")]);
    to.bulk(b"modules");
    to.array(0);
    Ok(Outcome::Done)
}

/// `RESET`: puts the connection into its first state, in which the client has shown no token.
pub(super) fn reset(call: &mut Call<'_>) -> Answer {
    call.session.client.forget();
    call.session.name.clear();
    call.to().version = Version::Two;
    call.to().simple("RESET");
    Ok(Outcome::Done)
}

/// `CLIENT ID | GETNAME | SETNAME name | SETINFO name value`: what client libraries send when
/// they connect.
pub(super) fn client(call: &mut Call<'_>) -> Answer {
    let what = call.word(1).to_ascii_uppercase();
    let (length, name) = (call.len(), call.word(2));
    let session = &mut *call.session;
    match (&what[..], length) {
        (b"ID", 2) => session.replies.integer(session.number),
        (b"GETNAME", 2) if session.name.is_empty() => session.replies.null(),
        (b"GETNAME", 2) => session.replies.bulk(session.name.as_bytes()),
        (b"SETNAME", 3) => {
            session.set_name(name)?;
            return call.ok();
        }
        // Libraries tell their name and version here. Nobody asks for it.
        (b"SETINFO", 4) => return call.ok(),
        _ => {
            let what = repeated(&what);
            return Err(format!(
                "unknown subcommand or wrong number of arguments for '{what}': there are CLIENT ID, GETNAME, \
                 SETNAME name and SETINFO name value"
            ).into());
        }
    }
    Ok(Outcome::Done)
}
