//! What the commands do and print, on SQLite files.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::path::Path;

use leaf_registry::{Note, StoreOptions, StoreUrl};
use leaf_segment::NewTag;
use leaf_testkit::Edit as _;
use serde_json::Value;
use support::{leaf, leaf_with};

/// A directory with the server's default data directory in it, and `leaf.db` in that.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("leaf-data")).unwrap();
    make(&home.path().join("leaf-data/leaf.db"));
    home
}

/// Makes a store with the sample tag, as the server does at its first start.
fn make(file: &Path) {
    let url: StoreUrl = format!("sqlite:{}", file.display()).parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let open = url.open(Path::new("."), &StoreOptions::default()).await.unwrap();
        open.admin.apply().await.unwrap();
        open.store.close().await;
    });
}

#[test]
fn a_tag_from_its_creation_to_its_end() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);

    let created = "\
tag     order    ids    max_id  step  enabled  min_step  max_step  max_take  description
orders  relaxed  plain     100  1000  yes             -         -         -  the orders
";
    let create = ["tag", "create", "orders", "--step", "1000", "--first", "100"];
    let create = [&create[..], &["--description", "the orders"]].concat();
    assert_eq!(run(&create).ok(), created);
    let again = run(&create).failed(1);
    assert!(again.contains("the tag exists already"), "{again}");

    run(&["tag", "set", "orders", "--step", "50"]).ok();
    run(&["tag", "set", "orders", "--enabled", "false", "--min-step", "5", "--max-step", "500"])
        .ok();
    run(&["tag", "set", "orders", "--min-step", "none", "--max-take", "7"]).ok();
    run(&["tag", "advance", "orders", "--at-least", "5000"]).ok();
    let listed = "\
tag                order    ids    max_id  step  enabled  min_step  max_step  max_take  description
leaf-segment-test  relaxed  plain       1  2000  yes             -         -         -  Test leaf Segment Mode Get Id
orders             relaxed  plain    5000    50  no              -       500         7  the orders
";
    assert_eq!(run(&["tag", "list"]).ok(), listed);
    let json: serde_json::Value =
        serde_json::from_str(&run(&["tag", "show", "orders", "-o", "json"]).ok()).unwrap();
    assert_eq!(json["max_id"], "5000", "a string: JavaScript loses digits above 2^53");
    assert_eq!((&json["step"], &json["enabled"]), (&50.into(), &false.into()));

    let refused = run(&["tag", "delete", "orders"]).failed(2);
    assert!(refused.contains("--yes") && refused.contains("at 5000 now"), "{refused}");
    let deleted = run(&["tag", "delete", "orders", "--yes"]).ok();
    assert!(deleted.contains("leaf tag create orders --first 5000 --step 50"), "{deleted}");
    let gone = run(&["tag", "show", "orders"]).failed(3);
    assert!(gone.contains("no such tag: create it first"), "{gone}");
    assert!(gone.contains("had granted ids below 5000; `leaf tag create` creates one"), "{gone}");
    let low = run(&["tag", "create", "orders", "--step", "50"]).failed(1);
    assert!(low.contains("let the first number be 5000 or more"), "{low}");
}

/// G-33: a number is another id in another shape, so the first free number differs between shapes.
#[test]
fn a_deletion_tells_where_every_shape_may_start() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    let create = ["tag", "create", "orders", "--step", "10", "--first", "1001", "--shape"];
    run(&[&create[..], &["interleave:0/8"]].concat()).ok();
    let deleted = run(&["tag", "delete", "orders", "--yes"]).ok();
    assert!(deleted.contains("--first 1001 --step 10 --shape interleave:0/8"), "{deleted}");
    assert!(deleted.contains("in any other shape let its ids be 8008 or more"), "{deleted}");
    let low = run(&[&create[..], &["interleave:0/2"]].concat()).failed(1);
    assert!(low.contains("let the first number be 4004 or more"), "{low}");
    run(&[&create[..], &["interleave:0/8"]].concat()).ok();
    let deleted = run(&["tag", "delete", "orders", "--yes", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&deleted).unwrap();
    assert_eq!((&json["next_first"], &json["ids_below"]), (&"1001".into(), &"8008".into()));
}

#[test]
fn a_snowflake_id_is_taken_apart_offline() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| leaf(home.path(), args);
    let text = run(&["decode", "01a07edf-8bc1-7fff-8000-0000000003ff"]).ok();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    assert_eq!(
        lines[2..],
        [
            "worker     1023",
            "sequence   4095",
            "objectid   6a9f749ea47ffc00000003ff",
            "tsid       1T6MMM803ZZZZ",
            "ulid       01M1ZDZ2Y11ZZG0000000000ZZ",
            "uuid       01a07edf-8bc1-7fff-8000-0000000003ff",
        ]
    );
    let id = lines[0].split_whitespace().last().unwrap();
    assert_eq!(run(&["decode", id]).ok(), text);
    assert_eq!(run(&["decode", "1T6MMM803ZZZZ", "--as", "tsid"]).ok(), text);
    let json: serde_json::Value =
        serde_json::from_str(&run(&["decode", id, "-o", "json"]).ok()).unwrap();
    assert_eq!(
        (&json["id"], &json["forms"]["ulid"]),
        (&id.into(), &"01M1ZDZ2Y11ZZG0000000000ZZ".into())
    );
    let error = run(&["decode", id, "--as", "uuid"]).failed(1);
    assert!(error.contains("the text is not a UUID"), "{error}");
    run(&["decode", id, "--as", "guid"]).failed(2);
    run(&["decode", "nothing"]).failed(1);
}

#[test]
fn a_family_from_its_creation_to_its_end() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    let create = ["tag", "create", "invoice/*", "--reset", "yearly", "--text", "{date:%Y}-{n:06}"];
    let named = run(&create).failed(2);
    assert!(named.contains("say that it is one"), "{named}");
    run(&[&create[..], &["--max-members", "5"]].concat()).failed(2);
    let created = run(&[&create[..], &["--family", "--max-members", "5"]].concat()).ok();
    assert!(created.contains("family of 0, yearly, UTC, {date:%Y}-{n:06}"), "{created}");
    for name in ["invoice", "*/a", "a*/*", "/*"] {
        let refused = run(&["tag", "create", name, "--step", "1", "--family"]).failed(2);
        assert!(refused.contains("like invoice/*"), "{name}: {refused}");
    }
    let refused = run(&["tag", "set", "leaf-segment-test", "--max-members", "9"]).failed(2);
    assert!(refused.contains("no family"), "{refused}");

    make_members(&home.path().join("leaf-data/leaf.db"), "invoice/*", 200);
    let listed = run(&["tag", "list", "--family", "invoice/*", "-o", "json"]).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|it| it["tag"].clone()).collect();
    assert_eq!(names, ["invoice/m0", "invoice/m1", "invoice/m2", "invoice/m3", "invoice/m4"]);
    assert_eq!(listed[0]["member_of"], "invoice/*");
    run(&["tag", "list", "--family", "invoice"]).failed(2);

    run(&["tag", "set", "invoice/*", "--max-members", "1000"]).ok();
    make_members(&home.path().join("leaf-data/leaf.db"), "invoice/*", 200);
    let shown = run(&["tag", "show", "invoice/*", "-o", "json"]).ok();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["family"]["members"], 200);

    let refused = run(&["tag", "delete", "--family", "invoice/*"]).failed(2);
    assert!(refused.contains("--family deletes its members too"), "{refused}");
    let deleted = run(&["tag", "delete", "--family", "invoice/*", "--yes"]).ok();
    assert!(deleted.contains("and 200 members"), "{deleted}");
    assert!(run(&["tag", "list"]).ok().lines().count() == 2, "the sample tag is left");
    let again = run(&["tag", "delete", "--family", "invoice/*", "--yes"]).ok();
    assert!(again.contains("and 0 members"), "{again}");
}

/// Makes `count` members of a family, without the command line.
fn make_members(file: &Path, family: &str, count: usize) {
    let url: StoreUrl = format!("sqlite:{}", file.display()).parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let open = url.open(Path::new("."), &StoreOptions::default()).await.unwrap();
        let tag = |name: &str| leaf_core::Tag::parse(name).unwrap();
        let prefix = family.trim_end_matches('*');
        let names: Vec<_> = (0..count).map(|n| tag(&format!("{prefix}m{n}"))).collect();
        for names in names.chunks(100) {
            open.store.make_members(&tag(family), names).await.unwrap();
        }
        open.store.close().await;
    });
}

#[test]
fn a_tag_in_strict_order_has_no_step() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    let made = run(&["tag", "create", "turns", "--order", "strict"]).ok();
    let row: Vec<_> = made.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row, ["turns", "strict", "plain", "1", "-", "yes", "-", "-", "-"], "{made}");
    let json: serde_json::Value =
        serde_json::from_str(&run(&["tag", "show", "turns", "-o", "json"]).ok()).unwrap();
    assert_eq!((&json["order"], &json["step"]), (&"strict".into(), &serde_json::Value::Null));

    let no_step = "a tag in strict order has no step";
    for refused in [
        &["tag", "create", "more", "--order", "strict", "--step", "5"][..],
        &["tag", "set", "turns", "--step", "5"],
        &["tag", "set", "turns", "--max-step", "5"],
    ] {
        let error = run(refused).failed(2);
        assert!(error.contains(no_step), "{refused:?}: {error}");
    }
    let error = run(&["tag", "create", "more"]).failed(2);
    assert!(error.contains("needs a step"), "{error}");
    let error = run(&["tag", "create", "turns", "--step", "5"]).failed(1);
    assert!(error.contains("the tag exists already"), "{error}");
    run(&["tag", "set", "turns", "--max-take", "7"]).ok();
    run(&["tag", "advance", "turns", "--at-least", "50"]).ok();
    let deleted = run(&["tag", "delete", "turns", "--yes"]).ok();
    assert!(deleted.contains("leaf tag create turns --first 50 --order strict"), "{deleted}");
}

#[test]
fn tags_of_other_kinds_are_made_told_and_taken_apart() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = home();
    let keys = home.path().join("keys");
    let write = |lines: &str| {
        std::fs::write(&keys, lines).unwrap();
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let one = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    let two = "2 = 100102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    write(one);
    let env = [("LEAF_SEGMENT__KEYS_FILE", keys.to_str().unwrap())];
    let run = |args: &[&str]| leaf_with(home.path(), args, &env);

    let made = run(&["tag", "create", "orders", "--step", "10", "--shape", "scramble:d10"]).ok();
    assert!(made.contains("scramble:d10, key 1"), "{made}");
    // Number 1, as docs/scramble.py has it.
    let told = run(&["decode", "1341139393", "--tag", "orders"]).ok();
    let lines = "id         1341139393\nnumber     1\nkey        1\ngranted    no\n";
    assert_eq!(told, lines);
    let newest = run(&["tag", "rekey", "orders"]).failed(2);
    assert!(newest.contains("add a line `2 = KEY`"), "{newest}");
    write(&format!("{one}{two}"));
    assert!(run(&["tag", "rekey", "orders"]).ok().contains("scramble:d10, key 2"));
    assert_eq!(run(&["doctor"]).ok(), "nothing found\n");
    write(one);
    assert!(run(&["doctor"]).out.contains("tag orders: key 2 is missing: copy its line"));
    write(&format!("{one}{two}"));
    // The counter does not tell under which key a number was granted.
    let earlier = run(&["decode", "1341139393", "--tag", "orders"]).ok();
    assert!(earlier.contains("number     1\nkey        1\ngranted    not known"), "{earlier}");
    let foreign = run(&["decode", "3341139393", "--tag", "orders"]).failed(3);
    assert!(foreign.contains("does not issue such ids"), "{foreign}");
    let keyless = leaf(home.path(), &["decode", "1341139393", "--tag", "orders"]).failed(1);
    assert!(keyless.contains("key 1 is missing"), "{keyless}");
    let other = run(&["tag", "rekey", "leaf-segment-test"]).failed(2);
    assert!(other.contains("not scrambled"), "{other}");

    let daily = [
        "tag",
        "create",
        "receipts",
        "--reset",
        "daily",
        "--time-zone",
        "europe/berlin",
        "--text",
        "R{date:%y%m%d}-{n:04}{luhn}",
    ];
    let made = run(&daily).ok();
    assert!(made.contains("daily, Europe/Berlin, R{date:%y%m%d}-{n:04}{luhn}"), "{made}");
    let told = run(&["decode", "R261121-00172", "--tag", "receipts"]).ok();
    assert!(told.contains("number     17\nperiod     2026-11-21\ngranted    no"), "{told}");
    let altered = run(&["decode", "R261121-00182", "--tag", "receipts"]).failed(3);
    assert!(altered.contains("a character of it was altered"), "{altered}");
    let deleted = run(&["tag", "delete", "receipts", "--yes"]).ok();
    assert!(deleted.contains("--reset daily --time-zone Europe/Berlin --text "), "{deleted}");

    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = run(&["tag", "rekey", "orders"]).failed(2);
    assert!(open.contains("chmod 600"), "{open}");
    run(&["tag", "list"]).ok();
}

/// Such a node never makes the SQLite file of the default configuration.
#[test]
fn the_doctor_wants_no_store_of_nodes_without_segment_mode() {
    let home = tempfile::tempdir().unwrap();
    let off = [("LEAF_SEGMENT__ENABLED", "false")];
    assert_eq!(leaf_with(home.path(), &["doctor"], &off).ok(), "nothing found\n");
    assert!(leaf(home.path(), &["doctor"]).failed(2).contains("does not exist"));
}

/// Tags of two data centres that can have the same id are named; those in slices of their own are
/// not.
#[test]
fn the_doctor_compares_two_centres() {
    let home = home();
    for (centre, part) in [("a", 0), ("b", 1)] {
        let store = format!("sqlite:{}/{centre}.db", home.path().display());
        make(&home.path().join(format!("{centre}.db")));
        let run = |args: &[&str]| leaf(home.path(), &[args, &["--store", &store]].concat()).ok();
        run(&["tag", "create", "orders", "--step", "10", "--slice", &format!("{part}/8")]);
        run(&["tag", "create", "chat", "--step", "10", "--shape", &format!("interleave:{part}/2")]);
        run(&["tag", "create", "plain", "--step", "10"]);
        run(&["tag", "create", &format!("only-{centre}"), "--step", "10"]);
    }
    let [a, b] = ["a", "b"].map(|name| format!("sqlite:{}/{name}.db", home.path().display()));
    let found = leaf(home.path(), &["doctor", "--store", &a, "--store", &b, "-o", "json"]);
    let text = found.out.clone();
    let error = found.failed(1);
    assert!(error.contains("1 found"), "{error} {text}");
    assert!(text.contains("tag plain can have the same ids"), "{text}");
    let both = leaf(home.path(), &["tag", "list", "--store", &a, "--store", &b]).failed(2);
    assert!(both.contains("`leaf doctor` alone"), "{both}");
    leaf(home.path(), &["doctor", "--store", &a]).ok();
}

#[test]
fn mistakes_are_refused_with_what_to_do() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    let stock = "leaf-segment-test";
    let cases: [(&[&str], i32, &str); 12] = [
        (&["tag", "create", "x", "--step", "0"], 2, "step: give 1 to 2147483647"),
        (&["tag", "create", "x", "--step", "2147483648"], 2, "1 to 2147483647"),
        (&["tag", "create", " x", "--step", "1"], 2, "TAG: "),
        (&["tag", "create", "x", "--step", "1", "--first", "-1"], 2, "the first number is 0 to"),
        (&["tag", "set", stock, "--step", "-5"], 2, "1 to 2147483647"),
        (&["tag", "set", stock, "--min-step", "x"], 2, "1 to 2147483647"),
        (&["tag", "set", stock, "--min-step", "9", "--max-step", "8"], 2, "above max_step"),
        (&["tag", "advance", stock, "--at-least", "9223372036854775807"], 2, "the next id is 0 to"),
        (&["tag", "advance", stock, "--at-least", "2000000000000"], 2, "say --yes"),
        (&["tag", "set", "other", "--step", "5"], 3, "no such tag"),
        (&["tag", "list", "--store", "redis://u:canary@h"], 2, "unknown kind of store"),
        (&["tag", "list", "--config", "absent.toml"], 2, "read absent.toml"),
    ];
    for (args, code, expected) in cases {
        let error = run(args).failed(code);
        assert!(error.contains(expected), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(!error.contains("canary"), "{error}");
    }
    assert!(run(&["tag", "show", stock]).ok().contains("     1  2000"), "nothing changed");
}

#[test]
fn the_store_is_the_servers() {
    let home = home();
    let empty = tempfile::tempdir().unwrap();
    let error = leaf(empty.path(), &["tag", "list"]).failed(2);
    assert!(error.contains("start leaf-server once"), "{error}");
    assert!(std::fs::read_dir(empty.path()).unwrap().next().is_none(), "nothing was made");

    make(&home.path().join("other.db"));
    leaf(home.path(), &["tag", "create", "here", "--step", "1", "--store", "sqlite:../other.db"])
        .ok();
    let list = |environment: &[(&str, &str)]| {
        leaf_with(home.path(), &["tag", "list"], environment).ok().contains("here")
    };
    assert!(!list(&[]));
    assert!(list(&[("LEAF_SEGMENT__STORE", "sqlite:../other.db"), ("LEAF_PORT", "tcp://x")]));
    std::fs::write(home.path().join("leaf.toml"), "[segment]\nstore = 'sqlite:../other.db'\n")
        .unwrap();
    assert!(list(&[]));
    assert!(
        !list(&[("LEAF_SEGMENT__STORE", "sqlite:leaf.db")]),
        "the environment outranks the file"
    );

    std::fs::write(home.path().join("leaf.toml"), "[segment]\nstore = \"mysql://u:canary@h")
        .unwrap();
    let error = leaf(home.path(), &["tag", "list"]).failed(2);
    assert!(error.contains("leaf.toml") && !error.contains("canary"), "{error}");
}

#[test]
fn every_tag_is_sought_in_its_shard() {
    let home = home();
    make(&home.path().join("leaf-data/orders.db"));
    let file = "[[segment.shard]]\nstore = 'sqlite:orders.db'\ntags = ['order*']\n";
    std::fs::write(home.path().join("leaf.toml"), file).unwrap();
    let run = |args: &[&str]| leaf(home.path(), args);
    run(&["tag", "create", "orders", "--step", "10"]).ok();
    run(&["tag", "create", "users", "--step", "10"]).ok();

    let store = |tag: &str| {
        let shown = run(&["tag", "show", tag, "--output", "json"]).ok();
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["store"].clone()
    };
    assert_eq!(
        (store("orders"), store("users")),
        ("sqlite:orders.db".into(), "sqlite:leaf.db".into())
    );
    assert_eq!(run(&["tag", "list"]).ok().lines().count(), 4, "each once, and the stock tag once");
    let found = run(&["doctor"]);
    assert!(found.code == 1 && found.out.contains("leaf shards --apply"), "{found:?}");
    run(&["shards", "--apply"]).ok();
    assert_eq!(run(&["doctor"]).ok(), "nothing found\n");

    // What an operator forgot when the patterns changed.
    run(&["tag", "create", "order-old", "--step", "10", "--store", "sqlite:leaf.db"]).ok();
    let found = run(&["doctor"]);
    assert!(found.out.contains("order-old") && found.code == 1, "{found:?}");

    // A store that is away takes the others' tags not with it.
    std::fs::remove_file(home.path().join("leaf-data/orders.db")).unwrap();
    std::fs::create_dir(home.path().join("leaf-data/orders.db")).unwrap();
    assert_eq!(run(&["tag", "list"]).code, 1);
}

/// G-34: the shards change while servers of the old configuration run.
#[test]
fn stores_are_told_that_the_shards_changed() {
    let home = home();
    make(&home.path().join("leaf-data/orders.db"));
    let (old, new) = (home.path().join("old.toml"), home.path().join("new.toml"));
    std::fs::write(&old, "").unwrap();
    let shard = "[[segment.shard]]\nstore = 'sqlite:orders.db'\ntags = ['order*']\n";
    std::fs::write(&new, shard).unwrap();
    let with = |file: &Path, args: &[&str]| {
        let config = ["--config", file.to_str().unwrap()];
        leaf(home.path(), &[args, &config].concat())
    };
    with(&old, &["shards", "--apply"]).ok();
    with(&old, &["tag", "create", "orders", "--step", "10", "--first", "500"]).ok();

    let refused = with(&new, &["tag", "create", "users", "--step", "10"]).failed(1);
    assert!(refused.contains("another place") && refused.contains("the only store"), "{refused}");
    let refused = with(&new, &["tag", "create", "orders", "--step", "10"]).failed(2);
    assert!(refused.contains("leaf tag import --from"), "{refused}");
    let refused = with(&new, &["shards", "--apply"]).failed(1);
    assert!(refused.contains("orders in sqlite:leaf.db"), "{refused}");
    let moved = with(&new, &["tag", "import", "--from", "sqlite:leaf.db"]).ok();
    assert!(moved.contains("500") && !moved.contains("leaf-segment-test"), "{moved}");

    let told = with(&new, &["shards", "--apply"]).ok();
    assert!(told.contains("with the former configuration"), "{told}");
    // Both may go on; a tag that both made would be in two stores.
    with(&new, &["tag", "create", "order-new", "--step", "10"]).ok();
    let refused = with(&old, &["tag", "create", "order-new", "--step", "10"]).failed(2);
    assert!(refused.contains("make tags with the newer one"), "{refused}");
    with(&old, &["tag", "set", "leaf-segment-test", "--step", "20"]).ok();
    let found = with(&new, &["doctor"]);
    assert!(found.code == 1 && found.out.contains("of two configurations"), "{found:?}");
    let told = with(&new, &["shards", "--apply"]).ok();
    assert!(told.contains("only servers with this configuration"), "{told}");
    with(&old, &["tag", "create", "late", "--step", "10"]).failed(1);
    let found = with(&old, &["doctor"]);
    assert!(found.code == 1 && found.out.contains("correct segment.store"), "{found:?}");
    with(&new, &["tag", "delete", "orders", "--yes", "--store", "sqlite:leaf.db"]).ok();
    assert_eq!(with(&new, &["doctor"]).ok(), "nothing found\n");
    let listed = with(&new, &["shards", "-o", "json"]).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["remembered"], "the store of order*, of 2 stores");

    // What a store remembers of a deleted tag holds for the store that the tag belongs to now.
    let rest = ["--store", "sqlite:leaf.db"];
    leaf(home.path(), &[&["tag", "create", "order-9", "--step", "10"][..], &rest].concat()).ok();
    let raise = ["tag", "advance", "order-9", "--at-least", "70"];
    leaf(home.path(), &[&raise[..], &rest].concat()).ok();
    let found = with(&new, &["doctor"]);
    assert!(found.out.contains("move it there with"), "{found:?}");
    leaf(home.path(), &[&["tag", "delete", "order-9", "--yes"][..], &rest].concat()).ok();
    let refused = with(&new, &["tag", "create", "order-9", "--step", "10"]).failed(2);
    assert!(refused.contains("be 70 or more"), "{refused}");
}

/// G-16: tags move to another store, also when the import is repeated. After that the old store
/// grants no id of them.
#[test]
fn import_moves_tags_and_seals_them_where_they_were() {
    let home = home();
    make(&home.path().join("leaf-data/old.db"));
    let run = |args: &[&str]| leaf(home.path(), args);
    let old = ["--store", "sqlite:old.db"];
    let create = ["tag", "create", "orders", "--step", "10", "--first", "777"];
    run(&[&create[..], &old].concat()).ok();
    run(&[&["tag", "set", "orders", "--max-take", "9"][..], &old].concat()).ok();
    let import = ["tag", "import", "--from", "sqlite:old.db", "--gap", "1000", "orders"];
    for _ in 0..2 {
        assert!(run(&import).ok().contains("orders      1777"), "{:?}", run(&import));
    }
    let shown = run(&["tag", "show", "orders"]).ok();
    assert!(shown.contains("1777") && shown.contains("9"), "{shown}");
    let left = run(&[&["tag", "show", "orders"][..], &old].concat()).ok();
    assert!(left.contains("sealed"), "{left}");
    let error = run(&["tag", "import", "--from", "sqlite:leaf.db"]).failed(2);
    assert!(error.contains("--from is a store that the tags would go to"), "{error}");
    let error = run(&[&import[..6], &["other"]].concat()).failed(1);
    assert!(error.contains("has no tag"), "{error}");

    // One that is in use here stays as it is, there and here.
    run(&[&["tag", "create", "used", "--step", "10", "--first", "50"][..], &old].concat()).ok();
    run(&["tag", "create", "used", "--step", "10", "--first", "70"]).ok();
    let error = run(&["tag", "import", "--from", "sqlite:old.db", "used"]).failed(1);
    assert!(error.contains("the tag exists already"), "{error}");
    assert!(run(&[&["tag", "show", "used"][..], &old].concat()).ok().contains("50"));

    // A family is made anew once its members were moved.
    let family = ["tag", "create", "chat/*", "--step", "10", "--family"];
    run(&[&family[..], &old].concat()).ok();
    make_members(&home.path().join("leaf-data/old.db"), "chat/*", 2);
    let error = run(&["tag", "import", "--from", "sqlite:old.db", "chat/*"]).failed(1);
    assert!(error.contains("delete it in the old store, where its members stay"), "{error}");
    run(&[&["tag", "delete", "chat/*", "--yes"][..], &old].concat()).ok();
    run(&["tag", "import", "--from", "sqlite:old.db", "chat/m0", "chat/m1"]).ok();
    run(&family).ok();
    assert!(run(&["tag", "list", "--family", "chat/*"]).ok().contains("chat/m1"));

    let deleted = run(&[&["tag", "delete", "orders", "--yes"][..], &old].concat()).ok();
    assert!(deleted.contains("if it was moved to another store"), "{deleted}");
}

/// G-29: a file that is mounted without its directory, as containers allow it.
#[test]
fn a_file_that_is_mounted_alone_is_refused() {
    let (home, other) = (home(), tempfile::tempdir().unwrap());
    let data = home.path().join("leaf-data/leaf.db");
    let script = r#"touch "$2/leaf.db" && mount --bind "$1" "$2/leaf.db" && exec "$0" tag list --data-dir "$2""#;
    let mut unshare = std::process::Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_leaf")]);
    let output = unshare.arg(&data).arg(other.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "opened under a second name: {output:?}");
    assert!(error.contains("share the directory"), "{output:?}");
    assert!(!other.path().join("leaf.db-wal").exists());
}

#[test]
fn what_a_database_holds_does_not_steer_the_terminal() {
    let home = home();
    let url: StoreUrl = "sqlite:leaf-data/leaf.db".parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let open = url.open(home.path(), &StoreOptions::default()).await.unwrap();
        let evil = NewTag { description: Some("\u{1b}[2J\u{202e}".into()), ..NewTag::sample() };
        open.store.remove(&evil.tag).await.unwrap();
        open.store.create(&evil).await.unwrap();
        open.store.close().await;
    });

    let list = leaf(home.path(), &["tag", "list"]).ok();
    assert!(!list.contains('\u{1b}') && !list.contains('\u{202e}'), "{list:?}");
}

/// `LEAF_CONFIG` names the configuration file for all commands. `--from-file` reads a URL from a
/// file, so that it is not in the list of processes.
#[test]
fn places_are_named_outside_of_the_command_line() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("elsewhere");
    for name in ["elsewhere", "data", "old"] {
        std::fs::create_dir(home.path().join(name)).unwrap();
    }
    let file = home.path().join("some.toml");
    let data = home.path().join("data");
    std::fs::write(&file, format!("data_dir = '{}'\n", data.display())).unwrap();
    for made in [&data, &home.path().join("old")] {
        make(&made.join("leaf.db"));
    }
    let named = [("LEAF_CONFIG", file.to_str().unwrap())];
    let run = |args: &[&str]| leaf_with(&directory, args, &named);
    run(&["tag", "set", "leaf-segment-test", "--step", "77", "--enabled", "true"]).ok();
    assert!(run(&["tag", "show", "leaf-segment-test"]).ok().contains("77"));
    let unnamed = leaf(&directory, &["tag", "list"]).failed(2);
    assert!(unnamed.contains("does not exist"), "{unnamed}");

    let old = format!("sqlite:{}", home.path().join("old/leaf.db").display());
    let secret = home.path().join("url");
    std::fs::write(&secret, format!("{old}\n")).unwrap();
    leaf(&directory, &["tag", "create", "moved", "--step", "10", "--store", &old]).ok();
    let from = ["tag", "import", "--from-file", secret.to_str().unwrap(), "moved"];
    assert!(run(&from).ok().contains("moved"));
    assert!(run(&["tag", "show", "moved"]).ok().contains("moved"));
    let both = [&from[..], &["--from", &old]].concat();
    run(&both).failed(2);
    let none = run(&["tag", "import", "--from-file", "/nowhere/url"]).failed(2);
    assert!(none.contains("--from-file") && none.contains("No such file"), "{none}");
}

/// For example because the database's own clock was ahead: the tag has no ids until that period
/// begins, and no node reports it because nobody requests any. The command that the doctor names
/// reopens the tag.
#[test]
fn a_tag_whose_period_has_not_begun_is_found_and_reopened() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    run(&["tag", "create", "orders", "--reset", "yearly"]).ok();
    assert_eq!(run(&["doctor"]).ok(), "nothing found\n");
    run(&["tag", "advance", "orders", "--at-least", "2099000018", "--yes"]).ok();
    let found = run(&["doctor"]);
    assert_eq!(found.code, 1);
    assert!(found.out.contains("numbers of 2099 were granted"), "{found:?}");
    let command = "`leaf tag reopen orders --first-taken PERIOD --above ID`";
    assert!(found.out.contains(command) && found.out.contains("(2099 or an"), "{found:?}");
    let unsaid = run(&["tag", "reopen", "orders", "--above", "0"]).failed(2);
    assert!(unsaid.contains("name the first period") && unsaid.contains("2099"), "{unsaid}");
    let first = ["--first-taken", "2099"];
    let asked = run(&[&["tag", "reopen", "orders", "--above", "0"], &first[..]].concat());
    let asked = asked.failed(2);
    let all = "above 0 of its period that anybody has already would come again; of 2099 and later no id below 2099000018";
    assert!(asked.contains(all) && asked.contains("--yes"), "{asked}");
    let reopen = ["tag", "reopen", "orders", "--above", "0", "--yes", "-o", "json"];
    let reopen = [&reopen[..], &first[..]].concat();
    let dry = run(&[&reopen[..], &["--dry-run"]].concat()).out;
    let reopened: Value = serde_json::from_str(&run(&reopen).ok()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&dry).unwrap(), reopened);
    assert_eq!(reopened["reopened"], 1);
    assert_eq!(reopened["taken"], "2099: ids below 2099000018");
    let max_id: i64 = reopened["max_id"].as_str().unwrap().parse().unwrap();
    let today = max_id - 100_000_000_000_000_000;
    assert_eq!(today % 1_000_000, 1);
    assert_eq!(run(&["doctor"]).ok(), "nothing found\n");
    let told = run(&["decode", &today.to_string(), "--tag", "orders", "-o", "json"]).ok();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["number"], &told["granted"]), (&"1".into(), &false.into()));
    let id = run(&["tag", "advance", "orders", "--at-least", &(today + 500).to_string()]).failed(2);
    assert!(id.contains(&format!("has the number {}", max_id + 500)), "{id}");
    assert!(run(&["tag", "delete", "orders", "--yes"]).ok().contains("no tag of this name"));
    let made = run(&["tag", "create", "orders", "--reset", "yearly"]).failed(1);
    assert!(made.contains("choose another name"), "{made}");
}

#[test]
fn a_token_is_drawn_with_the_line_for_its_file() {
    let home = home();
    let args =
        ["--output", "json", "token", "new", "app", "--role", "ids:orders*", "--role", "read"];
    let printed = leaf(home.path(), &args).ok();
    let made: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let entries = leaf_node::tokens::parse(made["line"].as_str().unwrap()).unwrap();
    let hash = leaf_node::tokens::TokenHash::of(made["token"].as_str().unwrap().as_bytes());
    assert_eq!(entries[0].shows, [leaf_node::tokens::Credential::Token(hash)]);
    let roles: Vec<_> = entries[0].roles.iter().map(ToString::to_string).collect();
    assert_eq!(
        (entries[0].name.as_str(), roles),
        ("app", vec!["ids:orders*".into(), "read".into()])
    );
    for (args, wanted) in [
        (&["token", "new", "default", "--role", "ids"][..], "stands for a secret"),
        (&["token", "new", "a b", "--role", "ids"], "a name has"),
        (&["token", "new", "anonymous", "--role", "ids"], "who shows no token"),
        (&["token", "new", "app", "--role", "write"], "the roles are"),
        (&["token", "new", "app"], "missing: --role"),
    ] {
        let refused = leaf(home.path(), args).failed(2);
        assert!(refused.contains(wanted), "{args:?}: {refused}");
    }
}

#[test]
fn rules_of_traffic_are_written_listed_and_taken_away() {
    let home = home();
    let run = |args: &[&str]| leaf(home.path(), args);
    run(&["traffic"]).ok();
    assert!(run(&["cut", "tag", "orders"]).failed(3).contains("no such tag: orders"));
    run(&["tag", "create", "orders", "--step", "10"]).ok();
    run(&["cut", "tag", "orders"]).ok();
    run(&["limit", "tag", "invoice/*", "1000"]).ok();
    run(&["limit", "client", "web", "7"]).ok();
    let listed = run(&["cut", "client", "batch"]).ok();
    assert_eq!(
        listed,
        "\
of      name       ids a second and node
tag     invoice/*                   1000
tag     orders                 none: cut
client  batch                  none: cut
client  web                            7
"
    );
    assert_eq!(run(&["traffic"]).ok(), listed);
    let json: serde_json::Value =
        serde_json::from_str(&run(&["--output", "json", "allow", "tag", "orders"]).ok()).unwrap();
    assert_eq!(json[0], serde_json::json!({"of": "tag", "name": "invoice/*", "rate": 1000}));
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert!(run(&["allow", "tag", "orders"]).failed(1).contains("has no rule"));
    assert!(run(&["limit", "tag", "orders", "0"]).failed(2).contains("leaf cut"));
    assert!(run(&["cut", "client", "a b"]).failed(2).contains("a name has"));
    assert!(run(&["limit", "tag", "orders"]).failed(2).contains("missing: <RATE>"));
    // The store has room for so many.
    let mut error = None;
    for number in 0..100 {
        let ran = run(&["cut", "tag", &format!("a-tag-of-some-length-{number}*")]);
        if ran.code != 0 {
            error = Some(ran.error);
            break;
        }
    }
    assert!(error.unwrap().contains("there are too many rules"));
    let damaged = |home: &Path| {
        let url: StoreUrl =
            format!("sqlite:{}", home.join("leaf-data/leaf.db").display()).parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let open = url.open(Path::new("."), &StoreOptions::default()).await.unwrap();
            let before = open.admin.note(Note::Traffic).await.unwrap();
            assert!(open.admin.write_note(Note::Traffic, before.as_deref(), "{").await.unwrap());
            open.store.close().await;
        });
    };
    damaged(home.path());
    assert!(run(&["cut", "client", "web"]).failed(1).contains("leaf traffic --clear"));
    run(&["traffic", "--clear"]).ok();
    assert_eq!(run(&["traffic", "-o", "json"]).ok(), "[]\n");
}
