//! The complete output of the commands. tests/support/transcript.txt has it as somebody reviewed
//! it; `LEAF_BLESS=1` writes the file anew.
//!
//! Commands for tags and worker ids run twice, directly on the store and through a server: both
//! must print the same.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leaf_testkit::LeafServer;
use serde_json::Value;
use support::leaf_with;

/// The server that was built beside `leaf`.
fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server")
}

/// A shell in which commands are typed.
struct Session {
    home: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
    /// Pairs of a text that differs from run to run, and the name that replaces it in the
    /// transcript.
    names: Vec<(String, &'static str)>,
    text: String,
}

impl Session {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let names = vec![(home.path().display().to_string(), "HOME")];
        Self { home, environment: Vec::new(), names, text: String::new() }
    }

    /// A server that keeps tags and worker ids in an SQLite file.
    fn server(&mut self) -> LeafServer {
        let set = |name, value: &str| (name, value.to_owned());
        let environment = [
            set("LEAF_NAME", "one"),
            set("LEAF_ADVERTISE", "10.0.0.1:8080"),
            set("LEAF_SNOWFLAKE__REGISTRY", &self.registry()),
        ];
        let program = program();
        let server =
            LeafServer::start(program.to_str().unwrap(), self.home.path(), &[], &environment);
        self.names.push((server.ops().to_string(), "OPS"));
        self.names.push((server.ids().to_string(), "IDS"));
        server
    }

    /// The registry's URL, with the full path of the file: processes of one host recognize the file
    /// by that.
    fn registry(&self) -> String {
        format!("sqlite:{}", self.home.path().join("leaf.db").display())
    }

    /// The configuration of the server, for commands.
    fn configuration(&self) {
        let text = format!("data_dir = '.'\n[snowflake]\nregistry = '{}'\n", self.registry());
        std::fs::write(self.home.path().join("leaf.toml"), text).unwrap();
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "# {title}\n");
    }

    /// Types a command, whose arguments have no spaces, and writes down what it prints.
    fn run(&mut self, line: &str) {
        self.run_and(line, |out| out);
    }

    /// As [`Self::run`], for JSON whose values differ from run to run: records the types in place
    /// of the values.
    fn run_for_types(&mut self, line: &str) {
        self.run_and(line, |out| {
            let mut value: Value = serde_json::from_str(&out).unwrap();
            to_types(&mut value);
            serde_json::to_string_pretty(&value).unwrap() + "\n"
        });
    }

    fn run_and(&mut self, line: &str, change: impl FnOnce(String) -> String) {
        let args: Vec<&str> = line.split(' ').collect();
        let environment = self.environment.iter().map(|(name, value)| (*name, value.as_str()));
        let ran = leaf_with(self.home.path(), &args, &environment.collect::<Vec<_>>());
        let mut text = format!("$ leaf {line}\n{}", change(ran.out));
        for line in ran.error.lines() {
            let _ = writeln!(text, "! {line}");
        }
        if ran.code != 0 {
            let _ = writeln!(text, "exit code {}", ran.code);
        }
        for (value, name) in &self.names {
            text = text.replace(value, name);
        }
        let _ = writeln!(self.text, "{}", without_times(&text));
    }
}

/// Writes the type in place of each value; of a list its first element stands for all.
fn to_types(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(to_types),
        Value::Array(elements) => {
            elements.truncate(1);
            elements.iter_mut().for_each(to_types);
        }
        Value::Number(_) => *value = "NUMBER".into(),
        Value::Bool(_) => *value = "BOOL".into(),
        Value::String(_) => *value = "TEXT".into(),
        Value::Null => {}
    }
}

/// With `TIME` and `MILLIS` in place of the times of this year and the next.
fn without_times(text: &str) -> String {
    let is_time = |word: &str| {
        word.len() == 24 && word.starts_with("20") && word.ends_with('Z') && word.contains('T')
    };
    let is_millis = |word: &str| {
        word.len() == 13 && word.starts_with('1') && word.bytes().all(|byte| byte.is_ascii_digit())
    };
    let has = |word: &str, of: char| {
        word.len() == 8 + usize::from(of == '-') * 2 && word.matches(of).count() == 2
    };
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
    let mut written = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        written += match word {
            word if is_time(word) => "TIME",
            word if is_millis(word) => "MILLIS",
            word if has(word, '-') && word.starts_with("20") => "DATE",
            word if has(word, ':') => "CLOCK",
            word => word,
        };
        let next = behind.find(is_of_word).unwrap_or(behind.len());
        written += &behind[..next];
        rest = &behind[next..];
    }
    written
}

/// Runs the commands for tags and worker ids; `more` are the arguments that select the store or the
/// server.
fn administer(session: &mut Session, more: &str) {
    for line in [
        "tag create orders --step 1000 --first 100 --dry-run",
        "tag create orders --step 1000 --first 100 --description orders",
        "tag create orders --step 1000",
        "tag create invoices --reset yearly --text {date:%y}-{n:04} --first 7",
        "tag create chat/* --step 50 --family --max-members 3",
        "tag list",
        "tag list --limit 2 -o csv",
        "tag list --family chat/* -o json",
        "tag show orders -o json",
        "tag show nope",
        "tag set orders --step 50 --enabled false --min-step 5 --max-take 7 --dry-run",
        "tag set orders --step 50 --enabled false --min-step 5 --max-take 7",
        "tag set orders --min-step none -o json",
        "tag advance orders --at-least 5000 --dry-run",
        "tag advance orders --at-least 5000",
        "tag advance orders --at-least 4000 -o csv",
        "tag advance orders --at-least 9000000000000000 --dry-run",
        "tag advance orders --at-least 9000000000000000",
        "tag advance orders --at-least 9000000000000000 --yes",
        "tag rekey orders --yes",
        "decode 42 --tag orders",
        "decode 25-0007 --tag invoices -o json",
        "tag reopen orders --yes",
        "tag advance invoices --at-least 20990018 --yes",
        "tag reopen invoices",
        "tag reopen invoices --first-taken 2099",
        "tag delete orders",
        "tag delete orders --dry-run",
        "tag delete orders --yes",
        "tag delete invoices --yes -o json",
        "tag create orders --step 10",
        "tag delete nope --yes",
        "worker list",
        "worker list -o json",
        "worker release 1",
        "worker release 1 --dry-run",
        "worker release 9 --dry-run",
        "worker retire 1 --dry-run",
        "worker release 0 --holder-is-dead",
        "worker retire 1",
        "worker retire 1 --yes",
        "worker list -o csv",
    ] {
        session.run(&format!("{line}{more}"));
    }
}

#[test]
fn commands_print_what_was_read() {
    let mut stores = Session::new();
    let server = stores.server();
    stores.configuration();
    // A second worker id, which nobody holds any more.
    stores.run("worker run --name two -- true");
    let prologue = std::mem::take(&mut stores.text);
    administer(&mut stores, "");

    let mut through = Session::new();
    let other = through.server();
    through.configuration();
    through.run("worker run --name two -- true");
    through.text.clear();
    administer(&mut through, &format!(" --server http://{}", other.ops()));
    let same = through
        .text
        .replace(" --server http://OPS", "")
        .replace("! leaf: http://OPS/: ", "! leaf: ");
    assert_eq!(same, stores.text, "through a server, and on the store");

    let mut written = Session::new();
    written.title("On tags and worker ids: on the stores, and with --server through a server");
    written.text += &(prologue + &stores.text);
    of_the_stores(&mut stores);
    written.text += &stores.text;
    of_servers(&mut through, &other);
    written.text += &through.text;
    drop((server, other));

    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/transcript.txt");
    if std::env::var_os("LEAF_BLESS").is_some() {
        std::fs::write(&path, &written.text).unwrap();
    }
    let read = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written.text, read, "LEAF_BLESS=1 writes tests/support/transcript.txt anew");
}

/// Runs the other commands on stores, and the commands that need neither a store nor a server.
fn of_the_stores(session: &mut Session) {
    session.text.clear();
    session.title("On the stores alone");
    let home = session.home.path().to_owned();
    std::fs::write(home.join("tags.csv"), "tag,max_id,step\nfirst,10,100\nsecond,20,\n").unwrap();
    std::fs::write(home.join("other.toml"), "data_dir = 'other'\n").unwrap();
    std::fs::create_dir(home.join("other")).unwrap();
    let other = format!("sqlite:{}", home.join("other/leaf.db").display());
    let mut schema = Command::new(program());
    let made = schema.args(["schema", "--apply", "--segment-store", &other]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let source = format!("sqlite:{}", home.join("leaf.db").display());
    let move_first = format!("tag import --from {source} first --config other.toml");
    for line in [
        "import file tags.csv",
        "import file tags.csv --apply -o csv",
        "import redis redis://127.0.0.1:1 counter counted",
        "import column --from sqlite:leaf.db leaf_alloc.step rows",
        &format!("{move_first} --gap 5 --dry-run"),
        &format!("{move_first} --gap 5"),
        &format!("{move_first} --dry-run"),
        "tag list --config other.toml",
        "cut tag nope",
        "cut tag first --dry-run",
        "cut tag first",
        "cut client app -o csv",
        "limit client app 500",
        "limit tag second 0",
        "allow client app --dry-run",
        "allow client app",
        "traffic",
        "traffic -o json",
        "traffic --clear --dry-run",
        "traffic --clear",
        "shards",
        "shards -o json",
        "tag delete chat/* --family",
        "tag delete chat/* --family --dry-run",
        "tag delete chat/* --family --yes",
        "worker repair 1",
        "worker repair 1 --holder-is-dead --dry-run",
        "worker repair 1 --holder-is-dead",
        "doctor",
        "doctor -o json",
        "decode 4194304001",
        "decode 4194304001 -o csv",
        "decode nonsense",
        "context add test --config leaf.toml",
        "context list",
        "context list -o json",
        "context use nope",
        "context use test",
        "context remove test",
        "token new app --role nonsense",
        "completions bash --server http://127.0.0.1:1",
        "tag list --server http://127.0.0.1:1 --store sqlite:leaf.db",
        "--store sqlite:leaf.db tag list --server http://127.0.0.1:1",
        "tag list --store sqlite:leaf.db --token-file nowhere",
        "tag list --limit 0",
        "man /nowhere",
        "completions nope",
    ] {
        session.run(line);
    }
}

/// Commands of servers.
fn of_servers(session: &mut Session, server: &LeafServer) {
    session.text.clear();
    session.title("Of servers");
    let ids = ("LEAF_SERVER", format!("http://{}", server.ids()));
    session.environment = vec![ids];
    session.run("next leaf-segment-test");
    session.run("next leaf-segment-test -n 3 -o json");
    session.run("next leaf-segment-test -n 2 -o csv");
    session.run("next nope");
    session.environment = vec![("LEAF_SERVER", format!("http://{}", server.ops()))];
    session.run("tag show leaf-segment-test");
    session.run("cut tag leaf-segment-test --dry-run");
    session.run("cut tag leaf-segment-test");
    session.run("next leaf-segment-test");
    session.run("allow tag leaf-segment-test -o json");
    session.run("cut client app");
    session.run("tag delete chat/* --family --yes");
    session.run("tag import --from sqlite:leaf.db");
    session.run("worker repair 1 --holder-is-dead");
    session.run("limit tag leaf-segment-test 5");
    session.run("traffic");
    session.run("worker run -- true");
    session.run("decode 5");
    session.run("worker list --namespace app");
    session.run("clock accept");
    session.run_for_types("status -o json");
    session.run_for_types("clock accept --clock-is-right -o json");
    let url = format!("http://{}", server.ids());
    session.run_for_types(&format!(
        "bench {url} leaf-segment-test --connections 2 --rate 100 --duration 1s -o json"
    ));
    session.environment = vec![("LEAF_SERVER", "http://127.0.0.1:1".into())];
    session.run("tag list");
    session.run("status");
    session.run("tag list --config leaf.toml");
    session.run("tag show leaf-segment-test --data-dir . -o csv");
    // Whoever takes no connection has not done it; the next one does.
    let second = format!("http://127.0.0.1:1,http://{}", server.ops());
    session.environment = vec![("LEAF_SERVER", second)];
    session.run("tag set leaf-segment-test --step 9");
}

/// On a terminal, a command asks before it does what cannot be undone.
#[test]
fn a_terminal_is_asked() {
    let mut session = Session::new();
    let _server = session.server();
    session.configuration();
    let typed = |answer: &str| {
        let line = format!("{} tag delete leaf-segment-test", env!("CARGO_BIN_EXE_leaf"));
        let mut script = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(session.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // What is typed before the question answers none.
        let (mut text, mut byte) = (Vec::new(), [0]);
        while !text.ends_with(b"[y/N] ") {
            script.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        script.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        let ended = script.wait_with_output().unwrap();
        text.extend(ended.stdout);
        (ended.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let (code, text) = typed("n\n");
    assert!(code == 2 && text.contains("Delete it? [y/N]") && text.contains("say --yes"), "{text}");
    let (code, text) = typed("\n");
    assert_eq!(code, 2, "{text}");
    let (code, text) = typed("y\n");
    assert!(code == 0 && text.contains("deleted tag"), "{code} {text}");
    session.run("tag show leaf-segment-test");
    assert!(session.text.contains("exit code 3"), "{}", session.text);
}
