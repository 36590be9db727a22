//! The Redis protocol on raw sockets: each command and error, frames cut anywhere, clients that mean no good, and
//! one sequence of ids for all protocols.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::{SegmentConfig, SegmentGenerator};
use leaf_testkit::{HttpClient, LeafServer, Ledger, RedisClient, RedisReply, wait_until};
use sqlx::{Connection, Executor};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";

fn start(directory: &Path, env: &[(&str, &str)]) -> LeafServer {
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    LeafServer::start(SERVER, directory, &[], &env)
}

fn connect(server: &LeafServer) -> RedisClient {
    RedisClient::connect(server.redis()).unwrap()
}

fn bulk(text: &str) -> RedisReply {
    RedisReply::Bulk(text.into())
}

fn ok() -> RedisReply {
    RedisReply::Simple("OK".into())
}

#[test]
fn each_command_does_what_its_name_says() {
    use RedisReply::{Array, Integer, Null, Simple};
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut client = connect(&server);
    let cases = [
        (&["GET", TAG][..], Null),
        (&["incr", TAG], Integer(1)),
        (&["GET", TAG], bulk("1")),
        (&["INCRBY", TAG, "10"], Integer(11)),
        (&["GET", TAG], bulk("11")),
        (&["SEGMENT", TAG], bulk("12")),
        (&["SEGMENT", TAG, "count", "2"], Array(vec![bulk("13"), bulk("14")])),
        (&["LPOP", TAG], bulk("15")),
        (&["RPOP", TAG, "1"], Array(vec![bulk("16")])),
        (&["LPOP", TAG, "0"], Array(vec![])),
        (&["LLEN", TAG], Integer(1984)),
        // Larger than what is left: from the store directly.
        (&["INCRBY", TAG, "5000"], Integer(7000)),
        (&["GET", TAG], bulk("7000")),
        (&["INCR", TAG], Integer(17)),
        (&["EXISTS", TAG, "nobody", TAG], Integer(2)),
        (&["GET", "nobody"], Null),
        (&["LLEN", "nobody"], Integer(0)),
        (&["PING"], Simple("PONG".into())),
        (&["PING", "a b"], bulk("a b")),
        (&["ECHO", "莓"], bulk("莓")),
        (&["SELECT", "0"], ok()),
        (&["CLIENT", "GETNAME"], Null),
        (&["CLIENT", "SETNAME", "me"], ok()),
        (&["CLIENT", "GETNAME"], bulk("me")),
        (&["CLIENT", "SETINFO", "LIB-NAME", "x"], ok()),
        (&["CONFIG", "GET", "save"], Array(vec![bulk("save"), bulk("")])),
        (&["CONFIG", "GET", "maxmemory"], Array(vec![])),
        (&["COMMAND", "COUNT"], Integer(21)),
        (&["RESET"], Simple("RESET".into())),
        (&["CLIENT", "GETNAME"], Null),
    ];
    for (command, expected) in cases {
        assert_eq!(client.command(command).unwrap(), expected, "{command:?}");
    }

    let RedisReply::Bulk(flake) = client.command(&["SNOWFLAKE"]).unwrap() else { panic!("a text") };
    let Array(flakes) = client.command(&["SNOWFLAKE", "COUNT", "3"]).unwrap() else { panic!() };
    assert_eq!(flakes.len(), 3);
    let Array(decoded) = client.command(&["DECODE", &flake]).unwrap() else { panic!() };
    assert_eq!(decoded[..2], [bulk("id"), bulk(&flake)]);
    assert!(decoded.contains(&bulk("worker")), "{decoded:?}");
    let RedisReply::Bulk(info) = client.command(&["INFO"]).unwrap() else { panic!() };
    for line in ["redis_version:7.0.0\r\n", "loading:0\r\n", "role:master\r\n", "health:ready\r\n"]
    {
        assert!(info.contains(line), "{info}");
    }
    let Array(commands) = client.command(&["COMMAND"]).unwrap() else { panic!() };
    assert_eq!(commands.len(), 21);

    assert_eq!(client.command(&["QUIT"]).unwrap(), ok());
    assert_eq!(client.read().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn the_third_version_has_maps_and_nulls_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut client = connect(&server);
    let RedisReply::Map(hello) = client.command(&["HELLO", "3", "SETNAME", "me"]).unwrap() else {
        panic!("a map")
    };
    assert_eq!(
        hello[..6],
        [
            bulk("server"),
            bulk("leaf"),
            bulk("version"),
            bulk("7.0.0"),
            bulk("proto"),
            RedisReply::Integer(3)
        ]
    );
    assert_eq!(client.command(&["CLIENT", "GETNAME"]).unwrap(), bulk("me"));
    client.send(&RedisClient::encode(&["GET", "nobody"])).unwrap();
    let mut null = [0; 3];
    client.stream().read_exact(&mut null).unwrap();
    assert_eq!(&null, b"_\r\n");
    assert!(matches!(client.command(&["COMMAND", "DOCS", "INCR"]), Ok(RedisReply::Map(_))));
    assert!(matches!(client.command(&["DECODE", "0"]), Ok(RedisReply::Map(_))));
    assert!(matches!(client.command(&["HELLO", "2"]), Ok(RedisReply::Array(_))));
    assert!(matches!(client.command(&["DECODE", "0"]), Ok(RedisReply::Array(_))));
}

#[test]
fn what_is_wrong_is_told_and_the_connection_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut client = connect(&server);
    let long = "x".repeat(129);
    let loud = format!("NO{}", "\x07".repeat(3));
    let cases = [
        (&["INCR"][..], "ERR wrong number of arguments for 'INCR': write INCR tag"),
        (&["INCR", "a", "b"], "ERR wrong number"),
        (&["SELECT", "1"], "ERR DB index is out of range"),
        (&["INCR", "nobody"], "ERR tag \"nobody\": no such tag"),
        (&["INCR", ""], "ERR "),
        (&["INCR", &long], "ERR "),
        (&["INCRBY", TAG, "0"], "ERR value is not an integer or out of range"),
        (&["INCRBY", TAG, "-1"], "ERR value is not"),
        (&["INCRBY", TAG, "1000001"], "ERR value is not"),
        (&["INCRBY", TAG, "99999999999999999999"], "ERR value is not"),
        (&["INCRBY", TAG, "x"], "ERR value is not"),
        (&["SEGMENT", TAG, "COUNT", "0"], "ERR value is not"),
        (&["SEGMENT", TAG, "COUNT", "1001"], "ERR value is not"),
        (&["SEGMENT", TAG, "10"], "ERR syntax error: write SEGMENT tag [COUNT n]"),
        (&["SNOWFLAKE", "10"], "ERR syntax error"),
        (&["SNOWFLAKE", "COUNT", "-1"], "ERR value is not"),
        (&["LPOP", TAG, "-1"], "ERR value is not"),
        (&["DECODE", "x"], "ERR the id is none"),
        (&["SET", "a", "b"], "ERR unknown command 'SET': Leaf offers INCR, INCRBY,"),
        (&["MULTI"], "ERR MULTI is refused"),
        (&["INCR", TAG], "ERR MULTI was refused"),
        (&["EXEC"], "EXECABORT "),
        (&["EXEC"], "ERR unknown command 'EXEC'"),
        (&["EVAL", "return 1", "0"], "ERR unknown command 'EVAL'"),
        (&["SUBSCRIBE", "a"], "ERR unknown command"),
        (&[&loud], "ERR unknown command 'NO'"),
        (&["CLIENT", "KILL"], "ERR unknown subcommand"),
        (&["CLIENT", "SETNAME", "a b"], "ERR Client names cannot"),
        (&["CONFIG", "SET", "save", ""], "ERR write CONFIG GET"),
        (&["COMMAND", "x"], "ERR unknown subcommand"),
        (&["HELLO", "4"], "NOPROTO "),
        (&["HELLO", "x"], "NOPROTO "),
        (&["HELLO", "3", "SETNAME"], "ERR syntax error in HELLO"),
        (&["AUTH", "secret"], "ERR AUTH <password> called without any password"),
        (&["AUTH", "somebody", "secret"], "WRONGPASS "),
    ];
    for (command, expected) in cases {
        match client.command(command).unwrap() {
            RedisReply::Error(text) if text.starts_with(expected) => {}
            other => panic!("{command:?}: {other:?}"),
        }
    }
    client.send(b"*2\r\n$4\r\nINCR\r\n$2\r\n\xff\xfe\r\n").unwrap();
    let not_utf8 = RedisReply::Error("ERR an argument is not UTF-8".into());
    assert_eq!(client.read().unwrap(), not_utf8);
    // Nothing, as in Redis, and then what somebody typed.
    client.send(b"\r\n*0\r\n  incr leaf-segment-test \r\n").unwrap();
    assert_eq!(client.read().unwrap(), RedisReply::Integer(1), "no error took an id");
}

#[test]
fn what_is_no_command_ends_the_connection_behind_the_replies_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let too_long = format!("*2\r\n$4\r\nECHO\r\n$65536\r\n{}\r\n", "x".repeat(65536));
    let endless = "x".repeat(200_000);
    let cases = [
        "*x\r\n",
        "*1025\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$536870912\r\n",
        "*1\r\n*1\r\n$1\r\na\r\n",
        "*1\r\n$1\r\nabc",
        "*99999999999999999999\r\n",
        &too_long,
        &endless,
    ];
    for bytes in cases {
        let mut client = connect(&server);
        client.send(&[&RedisClient::encode(&["INCR", TAG]), bytes.as_bytes()].concat()).unwrap();
        assert!(matches!(client.read(), Ok(RedisReply::Integer(_))), "{bytes:.20}");
        match client.read().unwrap() {
            RedisReply::Error(text) if text.starts_with("ERR Protocol error: ") => {}
            other => panic!("{bytes:.20}: {other:?}"),
        }
        assert_eq!(client.read().unwrap_err().kind(), ErrorKind::UnexpectedEof, "{bytes:.20}");
    }
    // A page in a browser of this host.
    let mut browser = connect(&server);
    browser
        .send(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\nINCR leaf-segment-test\r\n")
        .unwrap();
    assert!(browser.read().is_err());
    assert_eq!(connect(&server).command(&["GET", TAG]).unwrap(), bulk("9"), "it took none");
}

#[test]
fn commands_cut_anywhere_lose_and_repeat_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let increment = RedisClient::encode(&["INCR", TAG]);
    let batch = [&increment[..], &increment, b"incr leaf-segment-test\r\n", &increment].concat();
    let mut expected = 1;
    let mut client = connect(&server);
    for cut in 0..=batch.len() {
        let (first, second) = batch.split_at(cut);
        client.send(first).unwrap();
        // So that the server meets the first part alone, mostly.
        std::thread::yield_now();
        client.send(second).unwrap();
        for _ in 0..4 {
            assert_eq!(client.read().unwrap(), RedisReply::Integer(expected), "cut at {cut}");
            expected += 1;
        }
    }
}

#[test]
fn a_password_is_asked_for_and_told_to_nobody() {
    let password = "correct-horse-battery";
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[("LEAF_REDIS__PASSWORD", password)]);
    let mut client = connect(&server);
    let is_error = |reply: RedisReply, code: &str| match reply {
        RedisReply::Error(text) => assert!(text.starts_with(code), "{text}"),
        other => panic!("{other:?}"),
    };
    for command in [&["INCR", TAG][..], &["PING"], &["INFO"], &["SET", "a", "b"], &["HELLO", "3"]] {
        let code = if command[0] == "SET" { "ERR unknown" } else { "NOAUTH " };
        is_error(client.command(command).unwrap(), code);
    }
    is_error(client.command(&["AUTH", "wrong"]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["AUTH", "leaf", password]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["HELLO", "3", "AUTH", "default", "x"]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["INCR", TAG]).unwrap(), "NOAUTH ");
    assert_eq!(client.command(&["AUTH", password]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));
    assert_eq!(client.command(&["RESET"]).unwrap(), RedisReply::Simple("RESET".into()));
    is_error(client.command(&["INCR", TAG]).unwrap(), "NOAUTH ");
    let hello = client.command(&["HELLO", "3", "AUTH", "default", password]).unwrap();
    assert!(matches!(hello, RedisReply::Map(_)), "{hello:?}");
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(2));
    assert!(!server.output().contains("horse"), "{}", server.output());
}

#[test]
fn a_password_that_changes_counts_for_those_who_are_connected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "the-first-password").unwrap();
    let file_name = file.display().to_string();
    let mut server = start(directory.path(), &[("LEAF_REDIS__PASSWORD_FILE", &file_name)]);
    let mut client = connect(&server);
    assert_eq!(client.command(&["AUTH", "the-first-password"]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));

    std::fs::write(&file, "the-second-password").unwrap();
    server.process_mut().signal("HUP");
    wait_until("the first counts no more", Duration::from_secs(10), || {
        matches!(client.command(&["PING"]).unwrap(), RedisReply::Error(_)).then_some(())
    });
    assert!(matches!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Error(_)));
    assert_eq!(client.command(&["AUTH", "the-second-password"]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(2));
}

/// Whoever waits for the store holds up neither the replies before it nor other connections.
#[test]
fn a_command_that_waits_is_alone_in_that() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[("LEAF_HTTP__THREADS", "1")]);
    let mut waiting = connect(&server);
    assert_eq!(waiting.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let file = format!("sqlite:{}", directory.path().join("leaf.db").display());
    let mut lock = runtime.block_on(sqlx::SqliteConnection::connect(&file)).unwrap();
    runtime.block_on(lock.execute("BEGIN IMMEDIATE")).unwrap();

    // More than the segment has, and the next may have arrived before the lock.
    let batch = RedisClient::encode(&["INCR", TAG]).repeat(4100);
    waiting.send(&batch).unwrap();
    waiting.send(&RedisClient::encode(&["PING"])).unwrap();
    let mut last = 1;
    while last < 2000 {
        let id = waiting.read().unwrap().id().unwrap();
        assert_eq!(id, last + 1);
        last = id;
    }
    let mut other = connect(&server);
    for _ in 0..100 {
        assert!(other.command(&["SNOWFLAKE"]).unwrap().id().is_some());
    }
    runtime.block_on(lock.execute("ROLLBACK")).unwrap();
    // What waited too long is refused in its place.
    let mut refused = 0;
    for _ in 2000..=4100 {
        match waiting.read().unwrap() {
            RedisReply::Integer(id) => {
                assert!(id > last);
                last = id;
            }
            RedisReply::Error(text) => {
                assert!(text.starts_with("LOADING "), "{text}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused < 2101, "ids again");
    assert_eq!(waiting.read().unwrap(), RedisReply::Simple("PONG".into()));
}

#[test]
fn snowflake_ids_have_other_forms() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut client = connect(&server);
    let layout = leaf_core::Layout::LEAF;
    let text = |reply: &RedisReply| match reply {
        RedisReply::Bulk(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    for form in leaf_core::TextForm::ALL {
        let name = form.name();
        let one = text(&client.command(&["SNOWFLAKE", "AS", name]).unwrap());
        let id = form.read(layout, &one).unwrap();
        let RedisReply::Array(many) =
            client.command(&["snowflake", "as", name, "count", "3"]).unwrap()
        else {
            panic!("no array");
        };
        assert_eq!(many.len(), 3);
        assert!(many.iter().all(|reply| form.read(layout, &text(reply)).unwrap() > id));
        let RedisReply::Array(parts) = client.command(&["DECODE", &one, "AS", name]).unwrap()
        else {
            panic!("no array");
        };
        assert_eq!(text(&parts[1]), id.to_string());
    }
    for (wrong, why) in [
        (&["SNOWFLAKE", "AS", "guid"][..], "give one of uuid, ulid, tsid, objectid"),
        (&["SNOWFLAKE", "AS"], "syntax error"),
        (&["SNOWFLAKE", "COUNT", "1", "COUNT", "2"], "syntax error"),
        (&["DECODE", "1", "IN", "uuid"], "syntax error"),
        (&["DECODE", "1", "AS", "uuid"], "not a UUID"),
    ] {
        let refused = client.command(wrong).unwrap();
        assert!(
            matches!(&refused, RedisReply::Error(text) if text.contains(why)),
            "{wrong:?}: {refused:?}"
        );
    }
}

/// Texts of a tag's template, and ids that are no ranges.
#[test]
fn tags_of_other_kinds_answer_as_their_ids_are() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    for new in [
        r#"{"tag":"orders","step":100,"text":"O-{n:06}{luhn}"}"#,
        r#"{"tag":"odd","step":100,"shape":"interleave:1/2"}"#,
        r#"{"tag":"strictly-odd","order":"strict","shape":"interleave:1/2"}"#,
    ] {
        assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201, "{new}");
    }
    let mut client = connect(&server);
    let mut ask = |words: &[&str]| client.command(words).unwrap();
    assert_eq!(ask(&["SEGMENT", "orders", "TEXT"]), bulk("O-0000018"));
    let two = RedisReply::Array(vec![bulk("O-0000026"), bulk("O-0000034")]);
    assert_eq!(ask(&["segment", "orders", "count", "2", "text"]), two);
    assert_eq!(ask(&["INCR", "orders"]), RedisReply::Integer(4));
    for refused in [
        &["SEGMENT", "odd", "TEXT"][..],
        &["SEGMENT", "orders", "TEXT", "2"],
        &["SEGMENT", "orders", "COUNT", "2", "AS"],
        &["INCRBY", "odd", "2"],
        &["INCRBY", "strictly-odd", "2"],
    ] {
        let RedisReply::Error(text) = ask(refused) else { panic!("{refused:?}") };
        assert!(text.starts_with("ERR"), "{text}");
    }
    assert_eq!(ask(&["INCRBY", "odd", "1"]), RedisReply::Integer(3));
    let rest = RedisReply::Array(vec![bulk("5"), bulk("7")]);
    assert_eq!(ask(&["SEGMENT", "odd", "COUNT", "2"]), rest);
    for tag in ["odd", "strictly-odd"] {
        let first = if tag == "odd" { 9 } else { 3 };
        client.send(&RedisClient::encode(&["INCR", tag]).repeat(20)).unwrap();
        for number in 0..20 {
            assert_eq!(client.read().unwrap(), RedisReply::Integer(first + 2 * number), "{tag}");
        }
        let last = (first + 38).to_string();
        assert_eq!(client.command(&["GET", tag]).unwrap(), bulk(&last));
    }
}

/// Where the numbers of a period end, the first of many commands get the last ones.
#[test]
fn the_last_numbers_go_to_the_first_commands() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let new = r#"{"tag":"yearly","reset":"yearly","text":"{date:%Y}{n:02}"}"#;
    assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201);
    let mut client = connect(&server);
    let RedisReply::Integer(first) = client.command(&["INCR", "yearly"]).unwrap() else { panic!() };
    assert_eq!(first % 100, 1);
    client.send(&RedisClient::encode(&["INCR", "yearly"]).repeat(120)).unwrap();
    for number in 2..=121 {
        match client.read().unwrap() {
            RedisReply::Integer(id) => assert_eq!(id - first + 1, number),
            RedisReply::Error(text) => assert!(number > 99 && text.contains("used up"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Equal commands that came together share a commit of the store, each has its own reply, and so has each error.
#[test]
fn commands_of_a_tag_in_strict_order_are_answered_together() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let new = r#"{"tag":"turns","order":"strict"}"#;
    assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201);
    let mut client = connect(&server);
    let increment = RedisClient::encode(&["INCR", "turns"]);
    // The first is alone: the tag is not known yet. Then more than are answered at once, cut by another command.
    client
        .send(
            &[increment.repeat(200), RedisClient::encode(&["PING"]), increment.repeat(50)].concat(),
        )
        .unwrap();
    for id in 1..=200 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }
    assert_eq!(client.read().unwrap(), RedisReply::Simple("PONG".into()));
    for id in 201..=250 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }
    assert_eq!(client.command(&["INCRBY", "turns", "10"]).unwrap(), RedisReply::Integer(260));
    assert_eq!(client.command(&["GET", "turns"]).unwrap(), bulk("260"));
    assert_eq!(client.command(&["LLEN", "turns"]).unwrap(), RedisReply::Integer(0));
    assert_eq!(client.command(&["SEGMENT", "turns"]).unwrap(), bulk("261"));

    // A limit of the tag's own cuts what is answered at once.
    let limit = ops.ask("PATCH", "/v1/tags/turns", json, r#"{"max_take":3}"#).unwrap();
    assert_eq!(limit.status, 200);
    client.send(&increment.repeat(20)).unwrap();
    for id in 262..=281 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }

    std::fs::rename(directory.path().join("leaf.db"), directory.path().join("gone.db")).unwrap();
    client.send(&increment.repeat(20)).unwrap();
    for _ in 0..20 {
        let refused = client.read().unwrap();
        assert!(
            matches!(&refused, RedisReply::Error(text) if text.starts_with("LOADING")),
            "{refused:?}"
        );
    }
    assert_eq!(client.command(&["PING"]).unwrap(), RedisReply::Simple("PONG".into()));
}

#[test]
fn replies_that_are_not_read_do_not_pile_up() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let commands = [
        RedisClient::encode(&["SEGMENT", TAG, "COUNT", "1000"]),
        RedisClient::encode(&["COMMAND", "DOCS"]),
        RedisClient::encode(&["ECHO", &"x".repeat(60_000)]),
    ];
    for command in commands {
        let mut client = connect(&server);
        client.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let batch = command.repeat(100_000 / command.len() + 1);
        let mut sent = 0;
        // Until nothing is taken any more.
        while let Ok(length) = client.stream().write(&batch) {
            sent += length;
            assert!(sent < 200 << 20, "the server takes commands without end");
        }
        assert!(connect(&server).command(&["SNOWFLAKE"]).unwrap().id().is_some());
    }
    let kib = server.resident_kib();
    assert!(kib < 100 * 1024, "{kib} KiB");
}

#[test]
fn ten_thousand_idle_clients_cost_little_and_stay() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let before = server.resident_kib();
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    // Where the system allows a process 20,000 files, it is a little less: each listener for ids has half.
    let most = limit.maximum.map_or(10_000, |files| ((files - 256) / 2).min(10_000));
    // The server keeps pace: of a longer queue than the system's some come late.
    let mut clients = Vec::new();
    for number in 1..most {
        let mut client = connect(&server);
        if number % 100 == 0 {
            assert_eq!(client.command(&["PING"]).unwrap(), RedisReply::Simple("PONG".into()));
        }
        clients.push(client);
    }
    let grown = server.resident_kib().saturating_sub(before);
    println!("{} bytes for each idle client", grown * 1024 / most);
    assert!(grown < 60 * 1024, "{grown} KiB");
    assert_eq!(connect(&server).command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));
}

#[test]
fn a_stop_answers_what_was_asked() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = start(directory.path(), &[]);
    let ledger = Arc::new(Ledger::default());
    let address = server.redis();
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let ledger = Arc::clone(&ledger);
            std::thread::spawn(move || {
                let issuer: Arc<str> = format!("client {number}").into();
                let mut client = RedisClient::connect(address).unwrap();
                let batch = RedisClient::encode(&["INCR", TAG]).repeat(20);
                // One that was sent is answered wholly or, when the connection has ended, not at all.
                while client.send(&batch).is_ok() {
                    let Ok(first) = client.read() else { return };
                    ledger.record(&issuer, first.id().unwrap());
                    for _ in 1..20 {
                        ledger.record(&issuer, client.read().unwrap().id().unwrap());
                    }
                }
            })
        })
        .collect();
    wait_until("ids flow", Duration::from_secs(30), || (ledger.len() > 2000).then_some(()));
    assert!(server.stop().success());
    clients.into_iter().for_each(|client| client.join().unwrap());
    ledger.expect_at_least(2000);
}

/// Redis clients, HTTP clients and a process that embeds the generator take from one sequence, over kill -9.
#[test]
fn all_protocols_share_one_sequence_over_crashes() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", directory.path().join("leaf.db").display());
    let ledger = Arc::new(Ledger::default());
    for round in 0..8 {
        let mut server = start(directory.path(), &[]);
        let stop = Arc::new(AtomicBool::new(false));
        let (redis, http) = (server.redis(), server.ids());
        let mut clients = Vec::new();
        for depth in [1, 7, 64] {
            let (ledger, stop) = (Arc::clone(&ledger), Arc::clone(&stop));
            clients.push(std::thread::spawn(move || {
                let issuer: Arc<str> = format!("redis {depth}, round {round}").into();
                let mut client = RedisClient::connect(redis).unwrap();
                let batch = RedisClient::encode(&["INCR", TAG]).repeat(depth);
                let mut last = 0;
                // Each is recorded as it is read, until the connection dies.
                'all: while client.send(&batch).is_ok() {
                    for _ in 0..depth {
                        let Ok(reply) = client.read() else { break 'all };
                        // A tag that another process has emptied may make it wait.
                        let Some(id) = reply.id() else { continue };
                        ledger.record(&issuer, id);
                        assert!(id > last, "{id} after {last}");
                        last = id;
                    }
                }
                assert!(stop.load(Ordering::SeqCst), "the connection died by itself");
            }));
        }
        let asks = (Arc::clone(&ledger), Arc::clone(&stop));
        clients.push(std::thread::spawn(move || {
            let (ledger, stop) = asks;
            let issuer: Arc<str> = format!("http, round {round}").into();
            let mut client = HttpClient::connect(http).unwrap();
            let path = format!("/api/segment/get/{TAG}");
            while client.ids(&path, 16, |id| ledger.record(&issuer, id)).is_ok() {}
            assert!(stop.load(Ordering::SeqCst), "the connection died by itself");
        }));
        let embeds = (Arc::clone(&ledger), Arc::clone(&stop), file.clone());
        clients.push(std::thread::spawn(move || {
            let (ledger, stop, file) = embeds;
            let issuer: Arc<str> = format!("embedded, round {round}").into();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let url: StoreUrl = file.parse().unwrap();
                let open = url.open(Path::new("."), &StoreOptions::default()).await.unwrap();
                let segments = SegmentGenerator::open(open.store, SegmentConfig::default()).await;
                let handle = segments.tag(TAG).await.unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let Ok(id) = handle.next().await else { continue };
                    ledger.record(&issuer, id.get());
                    tokio::task::yield_now().await;
                }
                segments.close().await;
            });
        }));
        let enough = ledger.len() + 20_000 + 1_700 * round;
        wait_until("ids flow", Duration::from_secs(60), || (ledger.len() > enough).then_some(()));
        stop.store(true, Ordering::SeqCst);
        server.kill();
        clients.into_iter().for_each(|client| client.join().unwrap());
    }
    ledger.expect_at_least(160_000);
}
