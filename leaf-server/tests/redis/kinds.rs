//! Replies for tags of each kind, and commands for many tags in turn.

use leaf_testkit::{HttpClient, LeafServer, RedisClient, RedisReply};

use crate::{SERVER, bulk, connect, start};

#[test]
fn snowflake_ids_have_other_forms() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut client = connect(&server);
    let layout = leaf_core::Layout::LEAF;
    let text = |reply: &RedisReply| match reply {
        RedisReply::Bulk(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    for form in leaf_shape::TextForm::ALL {
        let name = form.name();
        let one = text(&client.command(&["SNOWFLAKE", "AS", name]).unwrap());
        let id = form.read(layout, &one).unwrap();
        let RedisReply::Array(many) =
            client.command(&["snowflake", "as", name, "count", "3"]).unwrap()
        else {
            panic!("no array");
        };
        assert_eq!(many.len(), 3);
        assert!(many.iter().all(|reply| form.read(layout, &text(reply)).unwrap() > id));
        let RedisReply::Array(parts) = client.command(&["DECODE", &one, "AS", name]).unwrap()
        else {
            panic!("no array");
        };
        assert_eq!(text(&parts[1]), id.to_string());
    }
    for (wrong, why) in [
        (&["SNOWFLAKE", "AS", "guid"][..], "give one of uuid, ulid, tsid, objectid"),
        (&["SNOWFLAKE", "AS"], "syntax error"),
        (&["SNOWFLAKE", "COUNT", "1", "COUNT", "2"], "syntax error"),
        (&["DECODE", "1", "IN", "uuid"], "syntax error"),
        (&["DECODE", "1", "AS", "uuid"], "not a UUID"),
    ] {
        let refused = client.command(wrong).unwrap();
        assert!(
            matches!(&refused, RedisReply::Error(text) if text.contains(why)),
            "{wrong:?}: {refused:?}"
        );
    }
}

/// A tag with a template is answered with texts, and a tag whose ids form no ranges with its ids.
#[test]
fn tags_of_other_kinds_answer_as_their_ids_are() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    for new in [
        r#"{"tag":"orders","step":100,"text":"O-{n:06}{luhn}"}"#,
        r#"{"tag":"odd","step":100,"shape":"interleave:1/2"}"#,
        r#"{"tag":"strictly-odd","order":"strict","shape":"interleave:1/2"}"#,
    ] {
        assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201, "{new}");
    }
    let mut client = connect(&server);
    let mut ask = |words: &[&str]| client.command(words).unwrap();
    assert_eq!(ask(&["SEGMENT", "orders", "TEXT"]), bulk("O-0000018"));
    let two = RedisReply::Array(vec![bulk("O-0000026"), bulk("O-0000034")]);
    assert_eq!(ask(&["segment", "orders", "count", "2", "text"]), two);
    assert_eq!(ask(&["INCR", "orders"]), RedisReply::Integer(4));
    for refused in [
        &["SEGMENT", "odd", "TEXT"][..],
        &["SEGMENT", "orders", "TEXT", "2"],
        &["SEGMENT", "orders", "COUNT", "2", "AS"],
        &["INCRBY", "odd", "2"],
        &["INCRBY", "strictly-odd", "2"],
    ] {
        let RedisReply::Error(text) = ask(refused) else { panic!("{refused:?}") };
        assert!(text.starts_with("ERR"), "{text}");
    }
    assert_eq!(ask(&["INCRBY", "odd", "1"]), RedisReply::Integer(3));
    let rest = RedisReply::Array(vec![bulk("5"), bulk("7")]);
    assert_eq!(ask(&["SEGMENT", "odd", "COUNT", "2"]), rest);
    for tag in ["odd", "strictly-odd"] {
        let first = if tag == "odd" { 9 } else { 3 };
        client.send(&RedisClient::encode(&["INCR", tag]).repeat(20)).unwrap();
        for number in 0..20 {
            assert_eq!(client.read().unwrap(), RedisReply::Integer(first + 2 * number), "{tag}");
        }
        let last = (first + 38).to_string();
        assert_eq!(client.command(&["GET", tag]).unwrap(), bulk(&last));
    }
}

/// When few numbers of a period are left, the first of many commands get them.
#[test]
fn the_last_numbers_go_to_the_first_commands() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let new = r#"{"tag":"yearly","reset":"yearly","text":"{date:%Y}{n:02}"}"#;
    assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201);
    let mut client = connect(&server);
    let RedisReply::Integer(first) = client.command(&["INCR", "yearly"]).unwrap() else { panic!() };
    assert_eq!(first % 100, 1);
    client.send(&RedisClient::encode(&["INCR", "yearly"]).repeat(120)).unwrap();
    for number in 2..=121 {
        match client.read().unwrap() {
            RedisReply::Integer(id) => assert_eq!(id - first + 1, number),
            RedisReply::Error(text) => assert!(number > 99 && text.contains("used up"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Equal commands that arrive together share a commit of the store. Each gets its own reply, or its
/// own error.
#[test]
fn commands_of_a_tag_in_strict_order_are_answered_together() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let new = r#"{"tag":"turns","order":"strict"}"#;
    assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201);
    let mut client = connect(&server);
    let increment = RedisClient::encode(&["INCR", "turns"]);
    // The first is alone: the tag is not known yet. Then more than are answered at once, cut by
    // another command.
    client
        .send(
            &[increment.repeat(200), RedisClient::encode(&["PING"]), increment.repeat(50)].concat(),
        )
        .unwrap();
    for id in 1..=200 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }
    assert_eq!(client.read().unwrap(), RedisReply::Simple("PONG".into()));
    for id in 201..=250 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }
    assert_eq!(client.command(&["INCRBY", "turns", "10"]).unwrap(), RedisReply::Integer(260));
    assert_eq!(client.command(&["GET", "turns"]).unwrap(), bulk("260"));
    assert_eq!(client.command(&["LLEN", "turns"]).unwrap(), RedisReply::Integer(0));
    assert_eq!(client.command(&["SEGMENT", "turns"]).unwrap(), bulk("261"));

    // A limit of the tag's own cuts what is answered at once.
    let limit = ops.ask("PATCH", "/v1/tags/turns", json, r#"{"max_take":3}"#).unwrap();
    assert_eq!(limit.status, 200);
    client.send(&increment.repeat(20)).unwrap();
    for id in 262..=281 {
        assert_eq!(client.read().unwrap(), RedisReply::Integer(id));
    }

    std::fs::rename(directory.path().join("leaf.db"), directory.path().join("gone.db")).unwrap();
    client.send(&increment.repeat(20)).unwrap();
    for _ in 0..20 {
        let refused = client.read().unwrap();
        assert!(
            matches!(&refused, RedisReply::Error(text) if text.starts_with("LOADING")),
            "{refused:?}"
        );
    }
    assert_eq!(client.command(&["PING"]).unwrap(), RedisReply::Simple("PONG".into()));
}

/// Commands of several tags that came together: some have ids in memory, some are new, some are in
/// another store, one is in strict order, one has every second id, one does not exist.
#[test]
fn commands_of_many_tags_are_answered_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("leaf.toml");
    let shard = "[[segment.shard]]\nstore = 'sqlite:other.db'\ntags = ['tag-1*', 'nobody']\n";
    std::fs::write(&config, shard).unwrap();
    let args = ["--config", config.to_str().unwrap()];
    let server = LeafServer::start(SERVER, directory.path(), &args, &[]);
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let mut client = connect(&server);
    let tags: Vec<_> = (0..40).map(|number| format!("tag-{number}")).collect();
    for (number, tag) in tags.iter().enumerate() {
        let kind = match number {
            20 => r#""order":"strict""#,
            27 => r#""step":1000,"shape":"interleave:1/2""#,
            _ => r#""step":1000"#,
        };
        let body = format!("{{\"tag\":\"{tag}\",{kind}}}");
        let length = body.len();
        ops.send(&format!(
            "POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .unwrap();
        assert_eq!(ops.read().unwrap().status, 201);
    }
    // Half of them have ids in memory.
    for tag in tags.iter().step_by(2) {
        assert_eq!(client.command(&["INCR", tag]).unwrap(), RedisReply::Integer(1));
    }
    // Several in a transaction, which is refused, take nothing.
    let refused = [&["MULTI"][..], &["INCR", "tag-0"], &["INCR", "tag-2"], &["EXEC"]];
    client.send(&refused.map(RedisClient::encode).concat()).unwrap();
    for _ in refused {
        assert!(matches!(client.read().unwrap(), RedisReply::Error(_)));
    }
    let mut taken: Vec<i64> = (0..40).map(|number| (number + 1) % 2).collect();
    for round in 0..3 {
        let mut batch = Vec::new();
        for (number, tag) in tags.iter().enumerate() {
            let name = if number % 3 == 0 { "incr" } else { "INCR" };
            batch.extend(RedisClient::encode(&[name, tag]));
            if number == 10 {
                batch.extend(RedisClient::encode(&["INCR", "nobody"]));
                batch.extend(RedisClient::encode(&["GET", tag]));
            }
        }
        client.send(&batch).unwrap();
        for (number, taken) in taken.iter_mut().enumerate() {
            *taken += 1;
            let id = if number == 27 { 2 * *taken + 1 } else { *taken };
            assert_eq!(client.read().unwrap(), RedisReply::Integer(id), "{round} {number}");
            if number == 10 {
                assert!(matches!(client.read().unwrap(), RedisReply::Error(_)));
                assert_eq!(client.read().unwrap(), bulk(&taken.to_string()));
            }
        }
    }
}
