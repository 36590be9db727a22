//! Commands that query the live nodes. The nodes are real servers: the `leaf-server` that
//! `scripts/test` built beside `leaf`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use leaf_testkit::{FakeClock, LeafServer, Postgres, free_port, wait_until};
use support::leaf;

const KEYS: [&str; 2] = [
    "1 = 8f1d63a0c1b2e4957766554433221100ffeeddccbbaa99887766554433221100\n",
    "2 = 00112233445566778899aabbccddeeff9f1d63a0c1b2e4957766554433221100\n",
];

fn write(file: &Path, keys: &[&str]) {
    let _ = std::fs::remove_file(file);
    let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
    std::io::Write::write_all(&mut options.open(file).unwrap(), keys.concat().as_bytes()).unwrap();
}

/// A tag changes to another key only when every live node has that key, because a node without it
/// would stop serving the tag.
#[test]
fn a_key_is_on_every_live_node_before_it_is_used() {
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
    let program = program.to_str().unwrap();
    let postgres = Postgres::shared();
    let url = Postgres::url(postgres.port(), &postgres.new_database());
    let home = tempfile::tempdir().unwrap();
    let place = |node: &str| home.path().join(node);
    let configure = |node: &str, keys: &[&str]| {
        let directory = place(node);
        std::fs::create_dir_all(&directory).unwrap();
        write(&directory.join("keys"), keys);
        let config = format!(
            "advertise = '127.0.0.1:70{node}'\n[segment]\nstore = '{url}'\nkeys_file = '{}'\n\
             [snowflake]\nregistry = 'store'\n",
            directory.join("keys").display()
        );
        std::fs::write(directory.join("leaf.toml"), config).unwrap();
    };
    let start = |node: &str, verb: &[&str]| {
        let config = place(node).join("leaf.toml").display().to_string();
        let args = [&["--config", &config][..], verb].concat();
        LeafServer::process(program, &place(node), &args, &[])
    };
    configure("01", &KEYS);
    configure("02", &KEYS[..1]);
    let mut made = start("01", &["schema", "--apply"]);
    assert!(made.wait(Duration::from_secs(30)).success(), "{}", made.output());
    let serve = |node: &str| {
        let config = place(node).join("leaf.toml").display().to_string();
        LeafServer::start(program, &place(node), &["--config", &config], &[])
    };
    let (one, mut two) = (serve("01"), serve("02"));
    let run = |args: &[&str]| leaf(&place("01"), args);
    // With key 1: the second node can serve it.
    leaf(&place("02"), &["tag", "create", "orders", "--step", "10", "--shape", "scramble:63"]).ok();
    let serves = |server: &LeafServer| {
        wait_until("the tag is served", Duration::from_secs(10), || {
            (server.get("/api/segment/get/orders").status == 200).then_some(())
        });
    };
    serves(&one);
    serves(&two);

    let early = run(&["tag", "rekey", "orders"]).failed(1);
    assert!(early.contains("key 2 is not on every live node: 127.0.0.1:7002"), "{early}");
    assert!(early.contains("its newest is 1") && !early.contains("7001"), "{early}");

    write(&place("02").join("keys"), &KEYS);
    two.process_mut().signal("HUP");
    wait_until("the node has the key", Duration::from_secs(10), || {
        two.process_mut().output().contains("reload: ").then_some(())
    });
    assert!(run(&["tag", "rekey", "orders"]).ok().contains("scramble:63, key 2"));
    serves(&two);

    drop(one);
    let away = run(&["tag", "rekey", "orders", "--yes"]).failed(2);
    assert!(away.contains("there is no newer one"), "{away}");
}

/// A node whose clock was a year ahead has closed a tag. A node whose clock is right reports the
/// command that reopens it. After that the tag continues where it was.
#[test]
fn a_tag_that_a_wrong_clock_has_closed_is_reopened_through_a_server() {
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
    let home = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", home.path().join("orders.db").display());
    let clock = FakeClock::new();
    let mut env: Vec<(&str, String)> = clock.environment().to_vec();
    env.extend([("LEAF_SEGMENT__STORE", store), ("LEAF_SNOWFLAKE__ENABLED", "false".into())]);
    let start = || LeafServer::start(program.to_str().unwrap(), home.path(), &[], &env);
    let next = |server: &LeafServer| server.get("/api/segment/get/orders");
    let id = |server: &LeafServer| -> i64 {
        let answer = next(server);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body.trim().parse().unwrap()
    };
    let server = start();
    let of = |server: &LeafServer| format!("http://{}", server.ops());
    let create = ["tag", "create", "orders", "--reset", "yearly", "--server", &of(&server)];
    leaf(home.path(), &create).ok();
    let first = id(&server);
    drop(server);
    clock.set("+366d");
    let server = start();
    let early = id(&server);
    assert!(early > first);
    drop(server);

    clock.set("+0");
    let server = start();
    assert_eq!(next(&server).status, 503);
    let server_url = of(&server);
    let reopen = |more: &[&str]| {
        let args = ["tag", "reopen", "orders", "--server", &server_url];
        leaf(home.path(), &[&args[..], more].concat())
    };
    let told = wait_until("the node says what to do", Duration::from_secs(10), || {
        let status = leaf(home.path(), &["status", "--server", &server_url]).out;
        status.contains("`leaf tag reopen TAG --above ID`").then_some(status)
    });
    assert!(told.contains("an operator can reopen the tag"), "{told}");
    let above = first.to_string();
    let asked = reopen(&["--above", &above]).failed(2);
    assert!(asked.contains("--yes") && !asked.contains("`sure`"), "{asked}");
    assert_eq!(next(&server).status, 503);
    assert!(reopen(&["--above", &above, "--yes"]).ok().contains("yearly"));
    assert_eq!(id(&server), first + 1, "at once, on this server");
    drop(server);
    clock.set("+366d");
    assert_eq!(id(&start()), early + 1, "behind what the wrong clock issued");
}

/// The doctor compares the clocks of the live nodes with its own, and reports whether the kernel
/// considers its clock synchronized.
#[test]
fn the_doctor_finds_a_clock_that_is_wrong() {
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
    let home = tempfile::tempdir().unwrap();
    let registry = home.path().join("workers.db").display().to_string();
    let clock = FakeClock::new();
    let port = free_port();
    let mut env: Vec<(&str, String)> = clock.environment().to_vec();
    env.extend([
        ("LEAF_SNOWFLAKE__REGISTRY", format!("sqlite:{registry}")),
        ("LEAF_HTTP__LISTEN", format!("127.0.0.1:{port}")),
        ("LEAF_ADVERTISE", format!("127.0.0.1:{port}")),
    ]);
    let _server = LeafServer::start(program.to_str().unwrap(), home.path(), &[], &env);
    let config = format!("data_dir = '.'\n[snowflake]\nregistry = 'sqlite:{registry}'\n");
    std::fs::write(home.path().join("leaf.toml"), config).unwrap();
    // As systemd tells it: what is asked here is what becomes of its word.
    let told = |word: &str| {
        let script = home.path().join("timedatectl");
        let text = format!("#!/bin/sh\n[ \"$2\" = --property=NTPSynchronized ] && echo {word}\n");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let doctor = || support::leaf_with(home.path(), &["doctor"], &[("PATH", &path)]);
    told("yes");
    assert_eq!(doctor().ok(), "nothing found\n");
    told("no");
    assert!(
        doctor().out.contains("this host  the kernel does not take its clock for synchronized")
    );
    told("yes");
    clock.set("+90");
    let found = wait_until("the clock is found", Duration::from_secs(20), || {
        let found = doctor();
        (found.code == 1).then_some(found.out)
    });
    let node = format!("ms behind that of the node 127.0.0.1:{port}, more than");
    assert!(found.contains(&node) && found.contains("its clock is "), "{found}");
}
