//! Commands that ask servers: real ones, as they were built beside `leaf`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leaf_testkit::{FakeClock, LeafServer};
use serde_json::Value;
use support::{Ran, leaf_with};

const TAG: &str = "leaf-segment-test";
const LIMIT: Duration = Duration::from_secs(20);
const TOKEN: &str = "an-operators-token-0123456789abcdef";

/// A server in a directory of its own.
struct Node {
    home: tempfile::TempDir,
    server: LeafServer,
}

impl Node {
    fn start(env: &[(&str, &str)]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
        let home = tempfile::tempdir().unwrap();
        let env: Vec<_> = env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        let server = LeafServer::start(program.to_str().unwrap(), home.path(), &[], &env);
        Self { home, server }
    }

    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        leaf_with(self.home.path(), args, env)
    }

    fn ids(&self) -> String {
        format!("http://{}", self.server.ids())
    }

    fn ops(&self) -> String {
        format!("http://{}", self.server.ops())
    }
}

#[test]
fn ids_are_taken_from_the_first_server_that_can_be_reached() {
    let node = Node::start(&[]);
    let next = |args: &[&str], servers: &str| {
        node.run(&[&["next"], args].concat(), &[("LEAF_SERVER", servers)])
    };
    assert_eq!(next(&[TAG], &node.ids()).ok(), "1\n");
    let of_two = format!("http://127.0.0.1:1, {}", node.ids());
    assert_eq!(next(&[TAG, "-n", "3"], &of_two).ok(), "2\n3\n4\n");
    let json: Value = serde_json::from_str(&next(&[TAG, "-o", "json"], &node.ids()).ok()).unwrap();
    assert_eq!(json["ids"], serde_json::json!(["5"]));
    let flakes = next(&["--snowflake", "-n", "2", "--as", "uuid"], &node.ids()).ok();
    assert_eq!(flakes.lines().map(str::len).collect::<Vec<_>>(), [36, 36]);

    // Where none is named it is the one of the configuration.
    let toml =
        format!("http.listen = '{}'\nops.listen = '{}'\n", node.server.ids(), node.server.ops());
    std::fs::write(node.home.path().join("leaf.toml"), toml).unwrap();
    assert_eq!(next(&[TAG], "").ok(), "6\n");
    assert!(node.run(&["status"], &[]).ok().contains("ready"));

    let refused = next(&["nope"], &node.ids()).failed(3);
    assert!(refused.contains("no such tag"), "{refused}");
    let refused = next(&["nope", "-o", "json"], &node.ids()).failed(3);
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["error"]["code"], "not-found");
    let refused = next(&["--nope", "--output=json"], &node.ids()).failed(2);
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["error"]["code"], "usage");
    let refused = next(&[TAG], "http://127.0.0.1:1").failed(4);
    assert!(refused.contains("127.0.0.1:1"), "{refused}");
    let refused = next(&[TAG], &node.ops()).failed(3);
    assert!(refused.contains("no such route"), "{refused}");
    next(&[TAG], "ftp://canary").failed(2);
    next(&[], &node.ids()).failed(2);
    next(&[TAG, "--snowflake"], &node.ids()).failed(2);
    next(&[TAG, "-n", "0"], &node.ids()).failed(2);
}

#[test]
fn status_shows_all_servers_and_what_is_wrong() {
    let one = Node::start(&[("LEAF_NAME", "one"), ("LEAF_OPS__TOKEN", TOKEN)]);
    let two = Node::start(&[("LEAF_NAME", "two"), ("LEAF_OPS__TOKEN", TOKEN)]);
    let (at_one, at_two) = (one.ops(), two.ops());
    let both = ["status", "--server", &at_one, "--server", &at_two];
    let token = [("LEAF_TOKEN", TOKEN)];
    let text = one.run(&both, &token).ok();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{text}");
    for (line, (name, node)) in lines[1..].iter().zip([("one", &one), ("two", &two)]) {
        let address = node.server.ops().to_string();
        assert_eq!(line[..3], [&*address, name, "ready"], "{text}");
    }
    let json: Value =
        serde_json::from_str(&one.run(&[&both[..], &["-o", "json"]].concat(), &token).ok())
            .unwrap();
    assert_eq!((&json[0]["state"], &json[0]["worker"]), (&"ready".into(), &0.into()));
    assert_eq!(json[1]["segment_rate"], 0.0);

    let csv = one.run(&[&both[..], &["-o", "csv"]].concat(), &token).ok();
    let names = csv.lines().next().unwrap();
    assert!(names.starts_with("clock_ms,") && names.contains(",segment_rate,"), "{csv}");
    assert_eq!(csv.lines().count(), 3, "{csv}");

    // Without the token, with a wrong one, and with one of a file.
    let refused = one.run(&both, &[]).failed(5);
    assert!(refused.contains("give the token in LEAF_TOKEN"), "{refused}");
    let refused = one.run(&both, &[("LEAF_TOKEN", "canary-token")]).failed(5);
    assert!(!refused.contains("canary"), "{refused}");
    let file = one.home.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let with_file = [&both[..], &["--token-file", file.to_str().unwrap()]].concat();
    one.run(&with_file, &[]).ok();

    // One that does not answer is in the table, and the exit code tells.
    let mut two = two;
    two.server.stop();
    let ran = one.run(&both, &token);
    assert!(ran.out.contains("no answer") && ran.out.contains("one"), "{ran:?}");
    ran.failed(4);
}

#[test]
fn status_follows_a_server_until_it_is_interrupted() {
    let node = Node::start(&[]);
    let mut watching = Command::new(env!("CARGO_BIN_EXE_leaf"))
        .args(["status", "--watch", "--server", &node.ops()])
        .current_dir(node.home.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut rows = 0;
    // It ends by the test's own time, if it says nothing.
    while rows < 3 {
        rows += usize::from(lines.next().unwrap().unwrap().contains(" ready "));
    }
    // A reader that has seen enough ends it.
    drop(lines);
    assert!(watching.wait().unwrap().success());
}

#[test]
fn completions_and_manual_pages_are_those_of_the_commands() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| leaf_with(home.path(), args, &[]);
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]).ok();
        for word in ["status", "next", "doctor", "token-file"] {
            assert!(text.contains(word), "{shell} has no {word}");
        }
        let file = home.path().join(shell);
        std::fs::write(&file, &text).unwrap();
        let checked = Command::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(shell != "bash" || checked.status.success(), "{checked:?}");
    }
    run(&["man", "."]).ok();
    for (page, text) in
        [("leaf.1", "status"), ("leaf-tag-create.1", "scramble:63"), ("leaf-next.1", "--as")]
    {
        let page = std::fs::read_to_string(home.path().join(page)).unwrap();
        assert!(page.replace("\\-", "-").contains(text), "{text}: {page}");
    }
    run(&["man", "nowhere"]).failed(1);
}

/// The help of every command must equal the text that somebody reviewed last. `LEAF_BLESS=1`
/// replaces that text.
#[test]
fn the_help_of_every_command_is_as_it_was_read() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| leaf_with(home.path(), args, &[]);
    run(&["man", "."]).ok();
    let pages = std::fs::read_dir(home.path()).unwrap().map(|page| page.unwrap().file_name());
    let mut names: Vec<_> = pages.filter_map(|page| page.into_string().ok()).collect();
    names.retain(|name| name.ends_with(".1"));
    names.sort();
    assert!(names.len() > 45, "{names:?}");
    let mut all = String::new();
    for name in names {
        let words: Vec<_> = name.trim_end_matches(".1").split('-').skip(1).collect();
        // The short one, without what every command has.
        let help = run(&[&words[..], &["-h"]].concat()).ok();
        let own = help.split("\nStores and registry:").next().unwrap();
        all += &format!("$ leaf {} -h\n{}\n", words.join(" "), own.trim_end());
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/help.txt");
    if std::env::var_os("LEAF_BLESS").is_some() {
        std::fs::write(&file, &all).unwrap();
    }
    let read = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = all.lines().zip(read.lines()).find(|(now, read)| now != read);
    assert!(all == read, "the help differs, read it and set LEAF_BLESS=1: {differs:?}");
}

/// The clock of a server is set ahead by two hours, twice its `max_step_forward`.
#[test]
fn ids_follow_a_clock_that_an_operator_accepts() {
    let clock = FakeClock::new();
    let fake = clock.environment();
    let fake: Vec<_> = fake.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let node = Node::start(&fake);
    let id = || node.server.id("/api/snowflake/get/x") >> 22;
    let before = id();
    clock.set("+7200");
    let accept = |args: &[&str]| {
        let server = node.ops();
        node.run(&[&["clock", "accept", "--server", &server], args].concat(), &[])
    };
    let degraded = leaf_testkit::wait_until("the server's word", LIMIT, || {
        let status = node.run(&["status", "--server", &node.ops(), "-o", "json"], &[]);
        status.out.contains("`leaf clock accept`").then_some(status)
    });
    assert!(degraded.out.contains("degraded"), "{degraded:?}");
    assert!(id() - before < 60_000, "not followed");
    let asked = accept(&[]).failed(2);
    assert!(asked.contains("The ids' time is 7") && asked.contains("none answers"), "{asked}");
    let done = accept(&["--clock-is-right"]).ok();
    assert!(done.contains("and is 0 ms behind it now") || done.contains("and is 1 ms"), "{done}");
    assert!(id() - before > 7_000_000, "followed");
    let json: Value =
        serde_json::from_str(&accept(&["--clock-is-right", "-o", "json"]).ok()).unwrap();
    assert!(json["behind_ms"].as_i64().unwrap() <= 1, "{json}");
    let two = ["--server", "http://127.0.0.1:1", "--clock-is-right"];
    assert!(accept(&two).failed(2).contains("name one"));
}

#[test]
fn a_context_names_servers_and_configuration() {
    let node = Node::start(&[("LEAF_OPS__TOKEN", TOKEN)]);
    let home = node.home.path();
    std::fs::write(home.join("token"), TOKEN).unwrap();
    std::fs::write(home.join("other.toml"), "[segment]\nstore = 'sqlite:/nowhere/other.db'\n")
        .unwrap();
    let own = home.join("config");
    let run_with = |args: &[&str], env: &[(&str, &str)]| {
        let env = [&[("XDG_CONFIG_HOME", own.to_str().unwrap())], env].concat();
        leaf_with(home, args, &env)
    };
    let run = |args: &[&str]| run_with(args, &[]);
    assert_eq!(run(&["context", "list"]).ok().lines().count(), 1);
    run(&["context", "add", "live", "--server", &node.ops(), "--token-file", "token"]).ok();
    run(&["context", "add", "other", "--server", "127.0.0.1:1", "--config", "other.toml"]).ok();
    run(&["status"]).failed(4);
    assert!(run(&["status", "--context", "live"]).ok().contains("ready"));
    run(&["context", "use", "live"]).ok();
    assert!(run(&["status"]).ok().contains("ready"));
    // Its tags are looked at through its servers, unless a store is named.
    let through = run(&["tag", "set", TAG, "--step", "77", "--dry-run", "-o", "json"]);
    assert!(through.out.contains("\"step\": 77"), "{through:?}");
    run(&["tag", "list", "--store", "sqlite:/nowhere/x.db"]).failed(2);
    let list = run(&["context", "list"]).ok();
    assert!(list.contains("live     *     http://127.0.0.1:"), "{list}");
    assert!(list.contains(&home.join("other.toml").display().to_string()), "{list}");
    // What is said otherwise wins.
    run_with(&["status"], &[("LEAF_SERVER", "127.0.0.1:1")]).failed(4);
    let refused = run(&["status", "--server", &node.ops()]);
    assert!(
        refused.out.contains("token"),
        "its token is shown to its own servers alone: {refused:?}"
    );
    assert!(run(&["tag", "list", "--context", "other"]).failed(2).contains("other.db"));
    // A context that is named is meant, whatever server the environment has for `leaf status`.
    let named = run_with(&["tag", "list", "--context", "other"], &[("LEAF_SERVER", &node.ops())]);
    assert!(named.failed(2).contains("other.db"));
    let placed = run(&["tag", "list", "--context", "other", "--data-dir", "."]);
    assert!(placed.failed(2).contains("other.db"));
    let env = [("LEAF_SEGMENT__STORE", "sqlite:/nowhere/y.db")];
    assert!(run_with(&["tag", "list", "--context", "live"], &env).ok().contains(TAG));
    assert!(run_with(&["tag", "list"], &env).failed(2).contains("y.db"));
    let local = run(&["tag", "list", "--context", "other", "--store", "sqlite:/nowhere/x.db"]);
    assert!(local.failed(2).contains("x.db"));

    assert!(run(&["status", "--context", "nope"]).failed(3).contains("there are live, other"));
    run(&["context", "use", "nope"]).failed(3);
    run(&["context", "remove", "live"]).ok();
    run(&["status"]).failed(4);
    run(&["context", "use", "other"]).ok();
    run(&["context", "use"]).ok();
    let list = run(&["context", "list", "-o", "json"]).ok();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(
        (list[0]["context"].as_str(), list[0]["used"].as_bool()),
        (Some("other"), Some(false))
    );
    for args in [&["a/b", "--server", "x"][..], &["a"], &["a", "--server", "ftp://x"]] {
        run(&[&["context", "add"], args].concat()).failed(2);
    }
    std::fs::write(own.join("leaf/contexts.json"), "{").unwrap();
    assert!(run(&["status"]).failed(2).contains("contexts.json"));
}
