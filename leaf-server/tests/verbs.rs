//! `leaf-server check` and `leaf-server config`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use leaf_testkit::{LeafServer, free_port, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

fn run(directory: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(SERVER);
    command.args(args).envs(env.iter().copied()).current_dir(directory);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn config_shows_what_counts_and_where_it_comes_from_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let file = "data_dir = 'd'\n[segment]\nstore = 'mysql://leaf:canary@db/leaf'\n\
                [[segment.shard]]\nstore = 'mysql://leaf:canary@db2/leaf'\ntags = ['order*']\n\
                [snowflake]\nworker_ids = { \"10.0.0.7:8080\" = 1 }\n[ops]\ntoken = 'canary-canary-canary'\n";
    std::fs::write(directory.path().join("leaf.toml"), file).unwrap();
    let env = [("LEAF_HTTP__LISTEN", "127.0.0.1:9000")];
    let output = run(directory.path(), &["config", "--log-level", "warn"], &env);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    assert!(!shown.contains("canary"), "{shown}");
    let line = |key: &str| {
        let line =
            shown.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{shown}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("data_dir "), "data_dir = \"d\" # leaf.toml");
    assert_eq!(line("http.listen "), "http.listen = \"127.0.0.1:9000\" # LEAF_HTTP__LISTEN");
    assert_eq!(line("log.level "), "log.level = \"warn\" # the command line");
    assert_eq!(line("segment.store "), "segment.store = \"mysql://leaf:***@db/leaf\" # leaf.toml");
    assert_eq!(line("segment.wait "), "segment.wait = \"2s\" # default");
    assert_eq!(line("ops.token "), "ops.token = \"***\" # leaf.toml");
    assert_eq!(line("# advertise "), "# advertise is not set # default");
    // What it prints is a configuration, but for the secrets.
    let refused = |shown: &str| {
        std::fs::write(directory.path().join("leaf.toml"), shown).unwrap();
        let output = run(directory.path(), &["config"], &[]);
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let error = refused(&shown);
    assert!(error.contains("the URL has *** in place of the password"), "{error}");
    let again = shown.replace("leaf:***@", "leaf:secret@");
    assert!(refused(&again).contains("ops.token: "));
    let again = again.replace("ops.token = \"***\"", "");
    std::fs::write(directory.path().join("leaf.toml"), again).unwrap();
    let second = run(directory.path(), &["config"], &[]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(text(&second.stdout).contains("http.listen = \"127.0.0.1:9000\""));
}

#[test]
fn a_file_that_cannot_be_read_is_not_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/nonexistent/leaf.toml", directory.path().join("leaf.toml"))
        .unwrap();
    let broken = run(directory.path(), &["config"], &[]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(text(&broken.stderr).contains("read leaf.toml: "), "{}", text(&broken.stderr));
    let directory = run(directory.path(), &["config", "--config", "/"], &[]);
    assert!(text(&directory.stderr).contains("not a regular file"), "{}", text(&directory.stderr));
}

#[test]
fn check_reaches_everything_beside_the_running_server_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let empty = run(directory.path(), &["check"], &[]);
    assert!(empty.status.success(), "{}{}", text(&empty.stdout), text(&empty.stderr));
    assert!(text(&empty.stdout).contains("does not exist yet: the server makes it"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");

    let data = directory.path().join("leaf-data");
    let server = LeafServer::start(SERVER, &data, &[], &[]);
    let fine = run(directory.path(), &["check"], &[]);
    assert!(fine.status.success(), "{}{}", text(&fine.stdout), text(&fine.stderr));
    assert!(
        text(&fine.stdout).contains("segment store sqlite:leaf.db: 1 tags"),
        "{}",
        text(&fine.stdout)
    );
    assert_eq!(server.id("/api/segment/get/leaf-segment-test"), 1);

    let nowhere = format!("mysql://leaf:canary@127.0.0.1:{}/leaf", free_port());
    let zookeeper = format!("zk-normal://127.0.0.1:{}", free_port());
    let env = [
        ("LEAF_SEGMENT__STORE", nowhere.as_str()),
        ("LEAF_SNOWFLAKE__REGISTRY", zookeeper.as_str()),
        ("LEAF_ADVERTISE", "10.0.0.7:8080"),
    ];
    let failed = run(directory.path(), &["check"], &env);
    assert_eq!(failed.status.code(), Some(1));
    let shown = text(&failed.stdout);
    assert!(shown.contains("FAIL  segment store mysql://leaf:***@127.0.0.1"), "{shown}");
    assert!(shown.contains("FAIL  registry zk-normal://"), "{shown}");
    assert!(!shown.contains("canary"), "{shown}");
    assert!(text(&failed.stderr).contains("2 checks failed"), "{}", text(&failed.stderr));

    let wrong = run(directory.path(), &["check"], &[("LEAF_HTTP__LISTEN", "nowhere")]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// `check` finds every reason to refuse a start, whatever other servers answer: if `check` passes,
/// the server starts.
#[test]
fn check_refuses_what_the_start_refuses() {
    let refused = |what: &str, prepare: &dyn Fn(&Path), env: &[(&str, &str)]| {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let listen = format!("127.0.0.1:{}", free_port());
        let any = "127.0.0.1:0".to_owned();
        let mut all = vec![("LEAF_HTTP__LISTEN", &*listen), ("LEAF_OPS__LISTEN", &any)];
        all.extend([("LEAF_REDIS__LISTEN", &*any), ("LEAF_GRPC__LISTEN", &any)]);
        all.extend(env);

        let checked = run(directory.path(), &["check"], &all);
        let shown = text(&checked.stdout) + &text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(1), "{what}: {shown}");
        assert!(shown.contains("FAIL  ") && shown.contains("failed"), "{what}: {shown}");
        let mut command = Command::new("timeout");
        command.args(["20", SERVER]).envs(all).current_dir(directory.path());
        let started = command.output().unwrap();
        let code = started.status.code().unwrap();
        assert!((1..=3).contains(&code), "{what}: {code}, {}", text(&started.stderr));
        // Both say the same.
        let why = text(&started.stderr);
        let why = why.lines().last().unwrap().trim_start_matches("leaf-server: ");
        let why = why.trim_start_matches("snowflake: ");
        (shown, why.to_owned())
    };
    let data = |directory: &Path| {
        std::fs::create_dir(directory.join("leaf-data")).unwrap();
        directory.join("leaf-data")
    };
    let same = |what: &str, prepare: &dyn Fn(&Path), env: &[(&str, &str)]| {
        let (shown, why) = refused(what, prepare, env);
        assert!(shown.contains(&why), "{what}: {shown}{why}");
    };
    let nothing = |_: &Path| {};

    refused("no data directory", &nothing, &[("LEAF_DATA_DIR", "/proc/leaf/data")]);
    let store = ("LEAF_SEGMENT__STORE", "sqlite:missing/leaf.db");
    refused("no directory for the store", &nothing, &[store]);
    let marks = |at: &Path| std::fs::create_dir(data(at).join("segment.marks")).unwrap();
    same("a directory in place of marks", &marks, &[]);
    let state = |at: &Path| std::fs::write(data(at).join("snowflake.state"), "canary").unwrap();
    same("a damaged state file", &state, &[]);
    let java = |at: &Path| std::fs::write(at.join("workerID.properties"), "workerID=x").unwrap();
    same("an unreadable cache of Java", &java, &[("LEAF_SNOWFLAKE__JAVA_CACHE", ".")]);
    let ordinal = [
        ("LEAF_SNOWFLAKE__REGISTRY", "ordinal"),
        ("LEAF_SNOWFLAKE__HOST_NAME", "web-9"),
        ("LEAF_SNOWFLAKE__WORKER_RANGE", "0..7"),
    ];
    same("an ordinal outside the range", &nothing, &ordinal);
    let map = |at: &Path| {
        let file = "[snowflake]\nworker_ids = { \"10.0.0.7:8080\" = 1 }\n";
        std::fs::write(at.join("leaf.toml"), file).unwrap();
    };
    same("a name that is not in the map", &map, &[("LEAF_ADVERTISE_INTERFACE", "lo")]);
    let zookeeper = format!("zk-normal://127.0.0.1:{}", free_port());
    let hyphen = [("LEAF_SNOWFLAKE__REGISTRY", &*zookeeper), ("LEAF_ADVERTISE", "leaf-7:8080")];
    same("a name that Java cannot read", &nothing, &hyphen);
    refused("an address of another host", &nothing, &[("LEAF_HTTP__LISTEN", "192.0.2.1:8080")]);
    let long = "n".repeat(127);
    same("a name too long for a port", &nothing, &[("LEAF_ADVERTISE", &*long)]);
    let link = |at: &Path| std::os::unix::fs::symlink("nowhere", at.join("leaf-data")).unwrap();
    refused("a link that leads nowhere", &link, &[]);
    refused("a directory below it", &link, &[("LEAF_DATA_DIR", "leaf-data/below")]);
    // The clock's milliseconds are part of the text.
    let (shown, why) =
        refused("a later epoch", &nothing, &[("LEAF_SNOWFLAKE__EPOCH", "4000000000000")]);
    for text in [shown, why] {
        assert!(text.contains("before the layout's epoch 2096-10-02 07:06:40 UTC"), "{text}");
    }
}

/// A store beside, above or in a data directory that the start makes.
#[test]
fn check_passes_what_the_start_makes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| directory.path().join(path);
    std::fs::write(at("empty.db"), "").unwrap();
    let cases: [(PathBuf, PathBuf, PathBuf); 4] = [
        ("one".into(), "../beside.db".into(), at("beside.db")),
        (at("x/two"), at("x/above.db"), at("x/above.db")),
        ("three".into(), at("three/in.db"), at("three/in.db")),
        ("four".into(), at("empty.db"), at("empty.db")),
    ];
    for (data, store, file) in cases {
        let data = data.display().to_string();
        let store = format!("sqlite:{}", store.display());
        let any = "127.0.0.1:0";
        let env = [
            ("LEAF_DATA_DIR", &*data),
            ("LEAF_SEGMENT__STORE", &store),
            ("LEAF_HTTP__LISTEN", any),
            ("LEAF_OPS__LISTEN", any),
            ("LEAF_REDIS__LISTEN", any),
        ];
        let checked = run(directory.path(), &["check"], &env);
        assert!(checked.status.success(), "{data}: {}", text(&checked.stdout));
        let mut command = Command::new("timeout");
        let mut server =
            command.args(["20", SERVER]).envs(env).current_dir(directory.path()).spawn().unwrap();
        wait_until("the server makes its tables", Duration::from_secs(20), || {
            file.metadata().is_ok_and(|found| found.len() > 0).then_some(())
        });
        assert!(server.try_wait().unwrap().is_none(), "{data}: it does not run");
        Command::new("kill").arg(server.id().to_string()).status().unwrap();
        assert!(server.wait().unwrap().success(), "{data}");
    }
}

/// The configuration in the manifests of Kubernetes, with the files that they mount.
#[test]
fn the_manifests_configuration_is_taken() {
    let manifest = include_str!("../../packaging/kubernetes.yaml");
    let block = manifest.lines().skip_while(|line| *line != "  leaf.toml: |").skip(1);
    let block = block.take_while(|line| line.starts_with("    "));
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().display().to_string();
    let text: Vec<_> = block.map(|line| line[4..].replace("/etc/leaf-secret", &here)).collect();
    std::fs::write(directory.path().join("leaf.toml"), text.join("\n")).unwrap();
    for (file, key) in [("store", "  store: "), ("token", "  token: ")] {
        let value = manifest.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        std::fs::write(directory.path().join(file), value).unwrap();
    }
    let shown = run(directory.path(), &["config"], &[]);
    assert!(shown.status.success(), "{}", text_of(&shown));
    let shown = text_of(&shown);
    for line in [
        "stop_delay = \"5s\"",
        "data_dir = \"/var/lib/leaf\"",
        "ops.listen = \"0.0.0.0:8081\"",
        "segment.store = \"mysql://leaf:***@mysql:3306/leaf\"",
        "snowflake.registry = \"ordinal\"",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // What the kubelet leaves the process, beside what it needs for a stop.
    assert!(manifest.contains("terminationGracePeriodSeconds: 25"));
}

fn text_of(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}
