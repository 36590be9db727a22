//! A disk that is full at an SQLite commit: nothing is lost or repeated, and it says so.
//!
//! The server runs in a mount namespace of its own, with a small tmpfs as its data directory.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, Ledger, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";

/// Fills the file system of `file` to the last byte.
fn fill(file: &Path) {
    let mut file = File::create(file).unwrap();
    let chunk = [0; 4096];
    while file.write_all(&chunk).is_ok() {}
    while file.write_all(&chunk[..1]).is_ok() {}
}

#[test]
fn a_full_disk_stops_ids_with_503_and_repeats_nothing_once_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().display();
    // Without root a user namespace gives the right to mount.
    let script = format!("mount -t tmpfs -o size=2m leaf {mount} && exec \"$@\"");
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let mut wrapper = vec!["--mount", "--", "sh", "-c", &script, "sh", SERVER];
    if !root {
        wrapper.insert(0, "--map-root-user");
    }
    let server = LeafServer::start_wrapped("unshare", &wrapper, directory.path());
    let ledger = Ledger::default();
    let issuer: Arc<str> = "server".into();
    ledger.record(&issuer, server.id(SEGMENT));
    // The directory as the server sees it.
    let inside = format!("/proc/{}/root{mount}/filler", server.pid());
    let filler = Path::new(&inside);

    fill(filler);
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let refused = loop {
        let answer = client.request("GET", SEGMENT).unwrap();
        if answer.status != 200 {
            break answer;
        }
        ledger.record(&issuer, answer.body.parse().unwrap());
    };
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("out of ids while the store is unavailable"), "{}", refused.body);
    assert!(server.output().contains("disk is full"), "{}", server.output());
    assert!(server.id("/api/snowflake/get/x") > 0, "the state file needs no new room");

    std::fs::remove_file(filler).unwrap();
    let id = wait_until("ids flow again", Duration::from_secs(10), || {
        let answer = server.get(SEGMENT);
        (answer.status == 200).then(|| answer.body.parse().unwrap())
    });
    ledger.record(&issuer, id);
    // Also what was not written meanwhile: nobody has to ask for an id first.
    wait_until("nothing is wrong any more", Duration::from_secs(30), || {
        let ready = HttpClient::once(server.ops(), "GET", "/readyz").body;
        (ready == "ready").then_some(())
    });
    let mut taken = Vec::new();
    client.ids(SEGMENT, 5000, |id| taken.push(id)).unwrap();
    for id in taken {
        ledger.record(&issuer, id);
    }
    ledger.expect_at_least(7000);
}
