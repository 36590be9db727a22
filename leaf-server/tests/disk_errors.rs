//! W-10: the disk fails while a real server writes its state file. Ids stop before what is not
//! durable, the error says what failed, and nothing is repeated afterwards. strace plays the disk.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, Ledger, require, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";
const MINUTE: Duration = Duration::from_secs(60);

/// A server whose system calls on the state file fail like this from the fourth on.
fn failing(directory: &Path, call: &str, error: &str) -> LeafServer {
    let strace = require("strace", "strace").display().to_string();
    let state = directory.join("snowflake.state").display().to_string();
    let log = directory.join("strace.log").display().to_string();
    let inject = format!("inject={call}:error={error}:when=4+");
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
        SERVER,
    ];
    LeafServer::start_wrapped(&strace, &arguments, directory)
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

        let mut server = failing(directory.path(), call, error);
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
        let ready = HttpClient::once(server.ops(), "GET", "/readyz");
        assert_eq!(ready.status, 503);
        let state = directory.path().join("snowflake.state").display().to_string();
        assert!(ready.body.contains(&format!("{named} {state}: ")), "{call}: {}", ready.body);
        server.kill();

        let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
        for _ in 0..1000 {
            ledger.record(&issuer, server.id(SNOWFLAKE));
        }
    }
}
