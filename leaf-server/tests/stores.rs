//! Tags spread over four kinds of stores, and what their records' states look like to clients.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use leaf_testkit::{Etcd, HttpClient, LeafServer, MariaDb, Postgres, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

fn path(tag: &str) -> String {
    format!("/api/segment/get/{tag}")
}

#[test]
fn a_store_that_is_away_takes_no_other_stores_tags_with_it() {
    let mysql = MariaDb::shared();
    let postgres = Postgres::shared();
    let etcd = Etcd::start(1);
    let (in_mysql, in_postgres) = (mysql.new_database(), postgres.new_database());
    let home = tempfile::tempdir().unwrap();
    let shard = |store: String, tag: &str| {
        format!("[[segment.shard]]\nstore = '{store}'\ntags = ['{tag}*']\n")
    };
    let config = [
        "[snowflake]\nenabled = false\n[segment]\nrefresh = '1s'\n".to_owned(),
        shard(MariaDb::url(mysql.port(), &in_mysql), "my"),
        shard(Postgres::url(postgres.port(), &in_postgres), "pg"),
        shard(Etcd::url(&etcd.ports(), "leaf"), "et"),
    ];
    let file = home.path().join("leaf.toml");
    std::fs::write(&file, config.concat()).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let data = home.path().join("data");
    let schema = [&args[..], &["schema", "--apply"]].concat();
    let mut schema = LeafServer::process(SERVER, &data, &schema, &[]);
    assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
    let made = schema.output();
    assert_eq!(made.matches("leaf_alloc, leaf_tag_settings").count(), 3, "{made}");
    assert!(!made.contains("leaf:leaf"), "no password: {made}");
    let row = "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES";
    mysql.sql(&format!("USE {in_mysql}; {row} ('my', 1, 10), ('wrong', 1, 10)"));
    postgres.sql(&in_postgres, &format!("{row} ('pg', 1000, 10)"));
    etcd.ctl(&["put", "/leaf/leaf/segment/et", r#"{"version":1,"max_id":5000,"step":10}"#]);
    let server = LeafServer::start(SERVER, &data, &args, &[]);

    for (tag, first) in [("my", 1), ("pg", 1000), ("et", 5000), ("leaf-segment-test", 1)] {
        assert_eq!(server.id(&path(tag)), first, "{tag}");
    }
    assert_eq!(server.get(&path("wrong")).status, 404, "no node looks for it in that store");

    drop(etcd);
    wait_until("the stock of etcd's tag is used up", Duration::from_secs(20), || {
        (server.get(&path("et")).status == 503).then_some(())
    });
    for tag in ["my", "pg", "leaf-segment-test"] {
        assert!(server.id(&path(tag)) > 0);
    }
    let ready = HttpClient::once(server.ops(), "GET", "/readyz");
    assert_eq!(ready.status, 200, "{}", ready.body);
    assert!(ready.body.starts_with("degraded: segment store"), "{}", ready.body);
}

/// A database that has the tables: its name and its URL.
fn with_tables(database: &MariaDb) -> (String, String) {
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    (name, url)
}

/// G-10 and the guard, as clients see them: each affects one tag, and no other.
#[test]
fn a_record_that_needs_an_operator_is_a_status_of_its_own() {
    let (database, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let (name, url) = with_tables(&database);
    database.sql(&format!(
        "USE {name}; INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES \
         ('last', 9223372036854774307, 1000), ('back', 5000, 10), ('zero', 1, 0), ('off', 1, 10); \
         INSERT INTO leaf_tag_settings (biz_tag, settings) \
         VALUES ('off', '{{\"version\":1,\"enabled\":false}}')"
    ));
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, home.path(), &["--segment-store", &url], &env);

    let mut client = HttpClient::connect(server.ids()).unwrap();
    let mut taken = 0;
    client.ids(&path("last"), 1499, |_| taken += 1).unwrap();
    assert_eq!(taken, 1499, "the last segment is as large as what is left");
    let mut refusal = |tag: &str| {
        let answer = client.request("GET", &path(tag)).unwrap();
        assert_eq!(answer.body.lines().count(), 1, "{}", answer.body);
        assert!(!answer.body.contains("leaf_alloc"), "clients see no SQL: {}", answer.body);
        (answer.status, answer.body)
    };
    let (status, text) = refusal("last");
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("used up"), "{text}");
    assert_eq!(refusal("zero").0, 500);
    let (status, text) = refusal("off");
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("disabled"), "{text}");

    assert_eq!(server.id(&path("back")), 5000);
    database.sql(&format!("UPDATE {name}.leaf_alloc SET max_id = 1 WHERE biz_tag = 'back'"));
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let refused = wait_until("the stock is used up", Duration::from_secs(20), || {
        let answer = client.request("GET", &path("back")).unwrap();
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(refused.status, 500, "{}", refused.body);
    assert!(server.output().contains("then advance the tag to at least"), "{}", server.output());
    assert_eq!(server.id(&path("leaf-segment-test")), 1);
    let ready = HttpClient::once(server.ops(), "GET", "/readyz");
    assert_eq!(ready.status, 200, "others are served");
    // Which tags, why, and what to type.
    let text = &ready.body;
    assert!(text.starts_with("degraded: tag \"back\": its record went back"), "{text}");
    assert!(text.contains("tag \"zero\": "), "{text}");
    let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
    let went_back = &status["segment"]["stores"][0]["went_back"];
    let least = went_back[0]["at_least"].as_str().unwrap();
    assert!(went_back[0]["tag"] == "back" && least.parse::<i64>().unwrap() > 5000, "{went_back}");
    assert!(text.contains(&format!("`leaf tag advance back --at-least {least}`")), "{text}");
    assert_eq!(status["codes"], serde_json::json!(["tag_refused"]));
}

/// G-11, as clients see it: a deleted tag is unknown, and a tag that is made again too low is
/// refused.
#[test]
fn a_tag_that_was_made_again_too_low_is_refused() {
    let (database, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let (name, url) = with_tables(&database);
    let env = [
        ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
        ("LEAF_SEGMENT__REFRESH", "1s".to_owned()),
    ];
    let server = LeafServer::start(SERVER, home.path(), &["--segment-store", &url], &env);
    let stock = path("leaf-segment-test");
    let last = (0..500).fold(0, |_, _| server.id(&stock));

    database.sql(&format!("DELETE FROM {name}.leaf_alloc"));
    wait_until("the tag is gone", Duration::from_secs(10), || {
        (server.get(&stock).status == 404).then_some(())
    });
    database.sql(&format!(
        "INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES ('leaf-segment-test', 1, 2000)"
    ));
    let refused = wait_until("the tag is there again", Duration::from_secs(10), || {
        let answer = server.get(&stock);
        assert_ne!(answer.status, 200, "{} after {last}", answer.body);
        (answer.status == 500).then_some(answer)
    });
    assert!(refused.body.contains("granted before"), "{}", refused.body);
}

/// S-22: a trigger changes what the database answers to an allocation: nothing is issued, and
/// readiness and log report it.
#[test]
fn a_trigger_that_changes_the_answer_is_named() {
    let mysql = MariaDb::shared();
    let name = mysql.new_database();
    let url = MariaDb::url(mysql.port(), &name);
    let home = tempfile::tempdir().unwrap();
    LeafServer::make_tables(SERVER, &url);
    mysql.sql(&format!(
        "CREATE TRIGGER {name}.counts AFTER UPDATE ON {name}.leaf_alloc FOR EACH ROW \
         SET @n = LAST_INSERT_ID(0)"
    ));
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, home.path(), &["--segment-store", &url], &env);
    let answer = server.get(&path("leaf-segment-test"));
    assert_eq!(answer.status, 500, "{}", answer.body);
    let ready = HttpClient::once(server.ops(), "GET", "/readyz").body;
    assert!(ready.contains("degraded: tag \"leaf-segment-test\": "), "{ready}");
    // The log follows the health once a second.
    wait_until("the log says it", Duration::from_secs(10), || {
        server.output().contains("if a trigger on the table uses").then_some(())
    });
    mysql.sql(&format!("DROP TRIGGER {name}.counts"));
    wait_until("ids flow", Duration::from_secs(20), || {
        (server.get(&path("leaf-segment-test")).status == 200).then_some(())
    });
    wait_until("it is ready", Duration::from_secs(10), || {
        let ready = HttpClient::once(server.ops(), "GET", "/readyz").body;
        (ready.trim() == "ready").then_some(())
    });
}

/// S-23: another program has the file locked when the server starts.
#[test]
fn a_locked_file_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    LeafServer::start(SERVER, home.path(), &[], &[]).kill();
    let program = "import sqlite3, sys, time\n\
                   c = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                   c.execute('BEGIN IMMEDIATE')\n\
                   print('locked', flush=True)\n\
                   time.sleep(4)\n\
                   c.execute('ROLLBACK')";
    let mut holder = std::process::Command::new(leaf_testkit::require("python3", "python3"))
        .args(["-c", program])
        .arg(home.path().join("leaf.db"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut { output }, &mut line).unwrap();
    assert_eq!(line, "locked\n");
    let server = LeafServer::start(SERVER, home.path(), &[], &[]);
    assert!(server.output().contains("is locked: waiting for up to 60s"), "{}", server.output());
    assert!(server.id(&path("leaf-segment-test")) > 0);
    assert!(holder.wait().unwrap().success());
}

/// A change that is made through a server is in force on that server when the answer arrives.
/// Deleted tags leave its memory.
#[test]
fn what_was_changed_through_a_server_holds_there_at_once() {
    let home = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, home.path(), &[], &[]);
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let mut ask = |method: &str, path: &str, body: &str| {
        let answer = ops.ask(method, path, headers, body).unwrap();
        assert!(answer.status < 300, "{answer:?}");
    };
    for round in 0..3 {
        let first = 1 + round * 1000;
        let new = format!(r#"{{"tag":"orders","step":100,"first":"{first}"}}"#);
        ask("POST", "/v1/tags", &new);
        let id = server.id(&path("orders"));
        assert_eq!(id, first);
        for (enabled, status) in [(false, 404), (true, 200)] {
            ask("PATCH", "/v1/tags/orders", &format!(r#"{{"enabled":{enabled}}}"#));
            assert_eq!(server.get(&path("orders")).status, status);
        }
        ask("PATCH", "/v1/tags/orders", r#"{"max_take":5}"#);
        let list = server.get("/v1/segments/orders/ids?count=6");
        assert_eq!(list.status, 400, "{list:?}");
        ask("DELETE", "/v1/tags/orders?confirm=orders", "");
        assert_eq!(server.get(&path("orders")).status, 404);
        let cache = HttpClient::once(server.ops(), "GET", "/cache");
        assert!(!cache.body.contains("orders"), "{}", cache.body);
        let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
        assert_eq!(status["segment"]["stores"][0]["tags"], 0);
    }
}

/// A tag that is sealed in this node's store gets no ids. The node reports that and the remedy, as
/// text and as a code for programs.
#[test]
fn a_sealed_tag_in_use_is_told() {
    let (database, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let (name, url) = with_tables(&database);
    database.sql(&format!(
        "INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES ('moved', {}, 10)",
        i64::MAX
    ));
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, home.path(), &["--segment-store", &url], &env);
    let ready = || HttpClient::once(server.ops(), "GET", "/readyz");
    assert_eq!(ready().body, "ready", "nobody asks for it");

    assert_eq!(server.get(&path("moved")).status, 503);

    let text = ready().body;
    assert!(text.starts_with("degraded: tag \"moved\": the tag is sealed here"), "{text}");
    let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
    assert_eq!(status["codes"], serde_json::json!(["tag_refused"]));
    let shown = HttpClient::once(server.ops(), "GET", "/v1/tags/moved").json();
    assert!(shown["sealed"] == true && shown["max_id"].is_null(), "{shown}");
    let other = HttpClient::once(server.ops(), "GET", "/v1/tags/leaf-segment-test").json();
    assert!(other["sealed"] == false && other["max_id"] == "1", "{other}");
}

/// A user that lacks a right is reported before the first request for an id, by `check` and by
/// readiness.
#[test]
fn a_right_that_is_missing_is_told_before_the_first_caller() {
    let (mysql, postgres) = (MariaDb::shared(), Postgres::shared());
    let home = tempfile::tempdir().unwrap();
    let (name, _) = with_tables(&mysql);
    mysql.sql(&format!(
        "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'; GRANT SELECT ON {name}.* TO reader@'127.0.0.1'"
    ));
    let database = postgres.new_database();
    let url = Postgres::url(postgres.port(), &database);
    LeafServer::make_tables(SERVER, &url);
    postgres.sql(&database, &format!("CREATE USER reads_{database} PASSWORD 'x'"));
    postgres.sql(
        &database,
        &format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reads_{database}"),
    );
    let in_mysql = format!("mysql://reader:x@127.0.0.1:{}/{name}", mysql.port());
    let in_postgres =
        format!("postgres://reads_{database}:x@127.0.0.1:{}/{database}", postgres.port());
    for (number, (url, missing)) in [
        (in_mysql, "UPDATE command denied to user"),
        (in_postgres, "permission denied for table leaf_alloc"),
    ]
    .iter()
    .enumerate()
    {
        let data = home.path().join(number.to_string());
        let args = ["--segment-store", url];
        let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
        let mut check = LeafServer::process(SERVER, &data, &[&args[..], &["check"]].concat(), &env);
        assert!(!check.wait(Duration::from_secs(20)).success(), "{}", check.output());
        assert!(check.output().contains(missing), "{}", check.output());

        let server = LeafServer::launch(SERVER, &data, &args, &env);
        let told = wait_until("the node knows", Duration::from_secs(20), || {
            let ready = HttpClient::once(server.ops(), "GET", "/readyz");
            (ready.status == 503 && ready.body.contains(missing)).then_some(ready.body)
        });
        assert!(told.contains("try to allocate in "), "{told}");
    }
}
