//! `leaf import`: tags that go on above what something else has handed out.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::path::Path;

use leaf_testkit::{LeafServer, MariaDb, Postgres};
use support::{Ran, leaf, leaf_with};

const SERVER: &str = "leaf-server";

/// A server on an SQLite file, and a directory in which `leaf` finds that.
fn server() -> (tempfile::TempDir, LeafServer) {
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name(SERVER);
    let home = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(program.to_str().unwrap(), &home.path().join("leaf-data"), &[], &[]);
    (home, server)
}

fn rows(ran: Ran) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    ran.out.lines().skip(1).map(words).collect()
}

#[test]
fn tags_of_a_list_are_made_once_and_go_on_where_it_says() {
    let (home, server) = server();
    let run = |args: &[&str]| leaf(home.path(), args);
    let file = |name: &str, text: &str| {
        std::fs::write(home.path().join(name), text).unwrap();
    };
    // A dump of a Java Leaf's table.
    file(
        "java.csv",
        "biz_tag,max_id,step,description,update_time\norders,5001,2000,the orders,2026-11-01\nbills,1,,,\n",
    );
    let import = |file: &str, more: &[&str]| run(&[&["import", "file", file], more].concat());
    let dry = import("java.csv", &[]);
    assert_eq!(dry.code, 0, "{dry:?}");
    assert!(dry.error.contains("2 new: --apply makes them"), "{dry:?}");
    assert_eq!(rows(dry)[0], ["orders", "5001", "2000", "sqlite:leaf.db", "new"]);
    run(&["tag", "show", "orders"]).failed(3);
    let made = rows(import("java.csv", &["--apply", "--gap", "10"]));
    assert_eq!(made[0], ["orders", "5011", "2000", "sqlite:leaf.db", "made"]);
    assert_eq!(made[1], ["bills", "11", "1000", "sqlite:leaf.db", "made"]);
    assert_eq!(server.id("/api/segment/get/orders"), 5011);
    // Again: what exists stays as it is.
    let again = rows(import("java.csv", &["--apply"]));
    assert_eq!(again[0].last().unwrap(), "exists");

    // What `tag list` writes, of tags of every kind, makes them again elsewhere.
    run(&["tag", "create", "strict", "--order", "strict", "--text", "A-{n:06}"]).ok();
    run(&["tag", "create", "part", "--step", "50", "--slice", "1/4", "--description", "a, \"b\""])
        .ok();
    run(&["tag", "create", "halves", "--step", "50", "--shape", "interleave:1/2"]).ok();
    run(&["tag", "set", "bills", "--max-take", "7"]).ok();
    let other = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name(SERVER);
    let there = tempfile::tempdir().unwrap();
    let data = there.path().join("leaf-data");
    let _other = LeafServer::start(other.to_str().unwrap(), &data, &[], &[]);
    let known = |ran: Ran| -> Vec<serde_json::Value> { serde_json::from_str(&ran.out).unwrap() };
    for format in ["csv", "json"] {
        let list = run(&["tag", "list", "-o", format]).ok();
        let name = format!("list.{format}");
        std::fs::write(there.path().join(&name), list).unwrap();
        let done = leaf(there.path(), &["import", "file", &name, "--apply"]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.error.contains("1 of 6 tags cannot be made"), "{done:?}");
        assert!(done.out.contains("max_take is not imported: leave it out"), "{done:?}");
        let state = if format == "csv" { "made" } else { "exists" };
        assert_eq!(
            done.out.matches(state).count(),
            if format == "csv" { 4 } else { 5 },
            "{done:?}"
        );
    }
    let (here, there) = (
        known(run(&["tag", "list", "-o", "json"])),
        known(leaf(there.path(), &["tag", "list", "-o", "json"])),
    );
    for tag in there.iter().filter(|tag| tag["tag"] != "leaf-segment-test") {
        assert!(here.contains(tag), "{tag} is as it was");
    }

    for (name, text, told) in [
        ("a.csv", "tag,max_id,colour\nx,1,red\n", "colour: no such field"),
        ("a.csv", "tag,step\nx,5\n", "where the tag begins"),
        ("a.csv", "tag,max_id\n\" a\",5\n", " a"),
        ("a.csv", "tag,max_id,step\nx,5,many\n", "step: this is no value of it"),
        ("a.csv", "tag,max_id,sealed\nx,5,true\n", "sealed: it was moved"),
        ("a.csv", "tag,max_id,reopened\nx,5,1\n", "reopened: what a wrong clock issued"),
        ("a.json", r#"[{"tag":"x","max_id":"9223372036854775807"}]"#, "x"),
    ] {
        file(name, text);
        let refused = import(name, &["--apply"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.out.contains(told), "{told}: {refused:?}");
    }
    for (name, text) in
        [("b.csv", "tag,max_id\n"), ("b.json", "{}"), ("b.txt", "x"), ("b.csv", "a,b\n1\n")]
    {
        file(name, text);
        assert!(import(name, &[]).failed(2).contains(name));
    }
    assert!(import("absent.csv", &[]).failed(2).contains("absent.csv"));
    // One that went on elsewhere.
    file("c.csv", "tag,max_id\norders,900000\n");
    let behind = import("c.csv", &["--apply"]);
    assert!(behind.out.contains("leaf tag advance orders --at-least 900000"), "{behind:?}");
}

#[test]
fn a_tag_goes_on_above_a_column_of_a_table() {
    let (home, _server) = server();
    let (maria, postgres) = (MariaDb::shared(), Postgres::shared());
    let database = maria.new_database();
    maria.sql(&format!(
        "CREATE TABLE {database}.orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, x INT); \
         INSERT INTO {database}.orders VALUES (41, 1), (7, 2); CREATE TABLE {database}.none (id INT); \
         CREATE TABLE {database}.odd (t VARCHAR(9), u BIGINT UNSIGNED, f DOUBLE); \
         INSERT INTO {database}.odd VALUES ('1000', 18446744073709551615, 7.5), ('9', 1, 1)"
    ));
    let schema = postgres.new_database();
    postgres.sql(
        &schema,
        "CREATE TABLE \"Orders\" (id serial, n text); INSERT INTO \"Orders\" VALUES (90, '7')",
    );
    let lite = tempfile::tempdir().unwrap();
    let file = lite.path().join("shop.db");
    let python = format!(
        "import sqlite3; c = sqlite3.connect('{}'); c.execute('create table orders (id integer primary key)'); \
         c.execute('insert into orders values (12)'); c.execute('create table odd (t text)'); \
         c.execute('insert into odd values (9)'); c.commit()",
        file.display()
    );
    assert!(
        std::process::Command::new("python3").args(["-c", &python]).status().unwrap().success()
    );

    let mysql = MariaDb::url(maria.port(), &database);
    let pg = Postgres::url(postgres.port(), &schema);
    let sqlite = format!("sqlite:{}", file.display());
    let run = |args: &[&str]| leaf(home.path(), &[&["import", "column"], args].concat());
    for (at, (url, column, first)) in [
        (&mysql, "orders.id", "1042"),
        (&mysql, &format!("{database}.orders.id"), "1042"),
        (&mysql, "none.id", "1001"),
        (&pg, "Orders.id", "1091"),
        (&sqlite, "orders.id", "1013"),
    ]
    .into_iter()
    .enumerate()
    {
        let tag = format!("t{at}");
        let made = run(&["--from", url, column, &tag, "--apply"]);
        assert_eq!(made.code, 0, "{made:?}");
        assert_eq!(rows(made)[0], [&tag, first, "1000", "sqlite:leaf.db", "made"]);
    }
    let absent = run(&["--from", &mysql, "nope.id", "t"]);
    assert_eq!(absent.code, 1, "{absent:?}");
    assert!(absent.error.contains("nope"), "{absent:?}");
    for (url, column, told) in [
        (&mysql, "orders.`id`", "1 to 64 letters"),
        (&mysql, "orders.id;drop", "1 to 64 letters"),
        (&mysql, "orders.id)--", "1 to 64 letters"),
        (&sqlite, "a b.id", "1 to 64 letters"),
        (&pg, ".id", "1 to 64 letters"),
        (&mysql, "orders.", "1 to 64 letters"),
        (&mysql, "odd.t", "no integers"),
        (&mysql, "odd.u", "above 2^63"),
        (&mysql, "odd.f", "no integers"),
        (&mysql, "odd.nope", "nope"),
        (&pg, "Orders.n", "no integers"),
        (&sqlite, "odd.t", "no integers"),
        (&sqlite, "odd.nope", "nope"),
    ] {
        let refused = run(&["--from", url, column, "t"]).failed(1);
        assert!(refused.contains(told), "{column}: {refused}");
    }
    assert!(run(&["--from", &mysql, "id", "t"]).failed(2).contains("give TABLE.COLUMN"));
    assert!(run(&["--from", "etcd://127.0.0.1:1", "a.b", "t"]).failed(2).contains("SQL database"));
    assert!(run(&["a.b", "t"]).failed(2).contains("missing: --from"));
}

/// Imports from the server's own Redis protocol: `GET` of a tag returns the highest id that it
/// handed out.
#[test]
fn a_tag_goes_on_above_a_counter_of_redis() {
    let (home, server) = server();
    for _ in 0..5 {
        let _ = server.id("/api/segment/get/leaf-segment-test");
    }
    let url = format!("redis://{}", server.redis());
    let run = |args: &[&str]| leaf_with(home.path(), &[&["import", "redis"], args].concat(), &[]);
    let dry = run(&[&url, "leaf-segment-test", "likes"]);
    assert_eq!(rows(dry)[0], ["likes", "1006", "1000", "sqlite:leaf.db", "new"]);
    let made = run(&[&url, "leaf-segment-test", "likes", "--gap", "0", "--step", "7", "--apply"]);
    assert_eq!(rows(made)[0], ["likes", "6", "7", "sqlite:leaf.db", "made"]);
    assert_eq!(server.id("/api/segment/get/likes"), 6);
    let absent = run(&[&url, "likes2", "likes2"]);
    assert_eq!(absent.code, 1, "{absent:?}");
    let away = run(&["redis://127.0.0.1:1", "k", "t"]);
    assert_eq!(away.code, 4, "{away:?}");
    assert!(run(&["http://127.0.0.1:1", "k", "t"]).failed(2).contains("redis://"));
    assert!(run(&[&format!("{url}/3"), "k", "t"]).failed(2).contains("database 0"));
}
