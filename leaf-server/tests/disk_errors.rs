//! W-10: the disk fails, or is slow, while a real server writes its state file. Ids stop at the
//! last durable ceiling, the error says what failed, and nothing is repeated afterwards. strace
//! simulates the disk.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{Etcd, HttpClient, LeafServer, Ledger, Process, require, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";
const MINUTE: Duration = Duration::from_secs(60);

/// Starts a server under strace, which changes the system calls `call` on the state file as `how`
/// says, in the syntax of strace's `inject`.
fn injected(directory: &Path, call: &str, how: &str, env: &[&str]) -> LeafServer {
    let strace = require("strace", "strace").display().to_string();
    let state = directory.join("snowflake.state").display().to_string();
    let log = directory.join("strace.log").display().to_string();
    let inject = format!("inject={call}:{how}");
    // -D: the process that is started, and killed in the end, is the server.
    let arguments = [
        "-D",
        "-f",
        "-qq",
        "-o",
        &log,
        "-P",
        &state,
        "-e",
        &format!("trace={call}"),
        "-e",
        &inject,
        "env",
    ];
    LeafServer::start_wrapped(&strace, &[&arguments[..], env, &[SERVER]].concat(), directory)
}

#[test]
fn a_failing_disk_stops_the_ids_and_is_named() {
    for (call, error, named) in [
        ("fdatasync", "EIO", "sync"),
        ("pwrite64", "ENOSPC", "write"),
        ("pwrite64", "EROFS", "write"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        // So that the file exists: strace looks at paths that do.
        let ledger = Ledger::default();
        let issuer: Arc<str> = call.into();
        let mut server = LeafServer::start(SERVER, directory.path(), &[], &[]);
        ledger.record(&issuer, server.id(SNOWFLAKE));
        server.kill();

        let mut server = injected(directory.path(), call, &format!("error={error}:when=4+"), &[]);
        let mut client = HttpClient::connect(server.ids()).unwrap();
        let refusal = wait_until("ids stop", MINUTE, || {
            let answer = client.request("GET", SNOWFLAKE).unwrap();
            if answer.status == 200 {
                ledger.record(&issuer, answer.body.parse().unwrap());
                return None;
            }
            Some(answer)
        });
        assert_eq!(refusal.status, 503, "{}", refusal.body);
        // One request may also be refused since this machine was busy.
        let ready = wait_until("not ready", MINUTE, || {
            let ready = HttpClient::once(server.ops(), "GET", "/readyz");
            (ready.status == 503).then_some(ready)
        });
        let state = directory.path().join("snowflake.state").display().to_string();
        assert!(ready.body.contains(&format!("{named} {state}: ")), "{call}: {}", ready.body);
        server.kill();

        let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
        for _ in 0..1000 {
            ledger.record(&issuer, server.id(SNOWFLAKE));
        }
    }
}

/// Every sync takes longer than the report interval, after which a task that did not run counts as
/// frozen. Ids sometimes wait for the disk and for the registry's answer, but not for ever.
#[test]
fn ids_flow_on_a_disk_that_is_slower_than_reports() {
    let directory = tempfile::tempdir().unwrap();
    let workers = directory.path().join("workers.db");
    let workers = format!("LEAF_SNOWFLAKE__REGISTRY=sqlite:{}", workers.display());
    let env = [
        workers.as_str(),
        "LEAF_SNOWFLAKE__REPORT_INTERVAL=100ms",
        "LEAF_SEGMENT__ENABLED=false",
        "LEAF_ADVERTISE=slow:1",
    ];
    let pairs = env.map(|pair| pair.split_once('=').unwrap());
    let pairs = pairs.map(|(name, value)| (name, value.to_owned()));
    let ledger = Ledger::default();
    let issuer: Arc<str> = "slow".into();
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &pairs);
    ledger.record(&issuer, server.id(SNOWFLAKE));
    server.kill();

    let server = injected(directory.path(), "fdatasync", "delay_enter=250000", &env);
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let begun = Instant::now();
    let (mut last, mut longest) = (begun, Duration::ZERO);
    while begun.elapsed() < Duration::from_secs(6) {
        let answer = client.request("GET", SNOWFLAKE).unwrap();
        if answer.status == 200 {
            ledger.record(&issuer, answer.body.parse().unwrap());
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    }
    longest = longest.max(last.elapsed());
    assert!(longest < Duration::from_secs(3), "no id for {longest:?}");
    // Many more than syncs. How many more depends on how busy the machine is.
    ledger.expect_at_least(100);
}

/// W-28: an operator releases the worker id of a node that is alive but cannot write. The node is
/// killed and started again without its registry. It must not continue from its state file, because
/// another node may have the worker id.
#[test]
fn a_lost_worker_id_is_not_resumed_from_a_disk_that_refused_writes() {
    let home = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(1);
    let registry = Etcd::url(&etcd.ports(), "leaf");
    let start = |directory: &Path, advertise: &str| {
        let env = [
            ("LEAF_SNOWFLAKE__REGISTRY", registry.clone()),
            ("LEAF_SNOWFLAKE__REPORT_INTERVAL", "500ms".into()),
            ("LEAF_SEGMENT__ENABLED", "false".into()),
            ("LEAF_ADVERTISE", advertise.into()),
        ];
        LeafServer::launch(SERVER, directory, &[], &env)
    };
    let holder = home.path().join("holder");
    let mut server = start(&holder, "holder:1");
    server.wait_ready();
    let _ = server.id(SNOWFLAKE);
    let strace = require("strace", "strace").display().to_string();
    let state = holder.join("snowflake.state").display().to_string();
    let pid = server.pid().to_string();
    let disk = ["-f", "-qq", "-o", "/dev/null", "-P", &state, "-e", "trace=pwrite64", "-e"];
    let full = ["inject=pwrite64:error=ENOSPC", "-p", &pid];
    let all: Vec<_> = disk.iter().chain(&full).map(ToString::to_string).collect();
    let _disk = Process::start(&strace, &all, &[]);
    wait_until("the disk is full", MINUTE, || {
        server.output().contains("No space left").then_some(())
    });
    let mut next = start(&home.path().join("next"), "next:1");
    next.wait_ready();
    server.process_mut().signal("STOP");
    let mut ops = HttpClient::connect(next.ops()).unwrap();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let sure = r#"{"holder_is_dead":true}"#;
    wait_until("the holder counts as silent", MINUTE, || {
        let released = ops.ask("POST", "/v1/workers/0/release", headers, sure).unwrap();
        (released.status == 200).then_some(())
    });
    server.process_mut().signal("CONT");
    wait_until("the loss is noticed", MINUTE, || {
        server.output().contains("the ids of this lease stop").then_some(())
    });
    wait_until("the lost lease is forgotten", Duration::from_secs(10), || {
        (!holder.join("snowflake.state").exists()).then_some(())
    });
    server.kill();

    drop(etcd);
    let server = start(&holder, "holder:1");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert_ne!(server.get(SNOWFLAKE).status, 200);
    }
}
