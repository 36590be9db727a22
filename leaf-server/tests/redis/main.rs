//! The Redis protocol on raw sockets: each command and error, frames cut anywhere, clients that
//! mean no good, and one sequence of ids for all protocols.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod kinds;
mod passwords;

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
    let count = client.command(&["COMMAND", "COUNT"]).unwrap();
    assert_eq!(count, Integer(commands.len().try_into().unwrap()));

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

/// A command that waits for the store delays neither the replies before it nor other connections.
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
    // If the system allows a process 20,000 files or less, the limit is a little lower: each
    // listener for ids may use half of them.
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
                // A batch that was sent is answered completely, or not at all if the connection has
                // ended.
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

/// Redis clients, HTTP clients and a process that embeds the generator take from one sequence, over
/// kill -9.
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
