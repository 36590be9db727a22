//! Who may ask: `redis.password`.

use std::time::Duration;

use leaf_testkit::{RedisClient, RedisReply, wait_until};

use crate::{TAG, connect, ok, start};

#[test]
fn a_password_is_asked_for_and_told_to_nobody() {
    let password = "correct-horse-battery";
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[("LEAF_REDIS__PASSWORD", password)]);
    let mut client = connect(&server);
    let is_error = |reply: RedisReply, code: &str| match reply {
        RedisReply::Error(text) => assert!(text.starts_with(code), "{text}"),
        other => panic!("{other:?}"),
    };
    for command in [&["INCR", TAG][..], &["PING"], &["INFO"], &["SET", "a", "b"], &["HELLO", "3"]] {
        let code = if command[0] == "SET" { "ERR unknown" } else { "NOAUTH " };
        is_error(client.command(command).unwrap(), code);
    }
    is_error(client.command(&["AUTH", "wrong"]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["AUTH", "leaf", password]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["HELLO", "3", "AUTH", "default", "x"]).unwrap(), "WRONGPASS ");
    is_error(client.command(&["INCR", TAG]).unwrap(), "NOAUTH ");
    assert_eq!(client.command(&["AUTH", password]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));
    assert_eq!(client.command(&["RESET"]).unwrap(), RedisReply::Simple("RESET".into()));
    is_error(client.command(&["INCR", TAG]).unwrap(), "NOAUTH ");
    // Of several tags, which are answered together.
    let both = [RedisClient::encode(&["INCR", TAG]), RedisClient::encode(&["INCR", "other"])];
    client.send(&both.concat()).unwrap();
    for _ in 0..2 {
        is_error(client.read().unwrap(), "NOAUTH ");
    }
    let hello = client.command(&["HELLO", "3", "AUTH", "default", password]).unwrap();
    assert!(matches!(hello, RedisReply::Map(_)), "{hello:?}");
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(2));
    assert!(!server.output().contains("horse"), "{}", server.output());
}

#[test]
fn a_password_that_changes_counts_for_those_who_are_connected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "the-first-password").unwrap();
    let file_name = file.display().to_string();
    let mut server = start(directory.path(), &[("LEAF_REDIS__PASSWORD_FILE", &file_name)]);
    let mut client = connect(&server);
    assert_eq!(client.command(&["AUTH", "the-first-password"]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(1));

    std::fs::write(&file, "the-second-password").unwrap();
    server.process_mut().signal("HUP");
    wait_until("the first counts no more", Duration::from_secs(10), || {
        matches!(client.command(&["PING"]).unwrap(), RedisReply::Error(_)).then_some(())
    });
    assert!(matches!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Error(_)));
    assert_eq!(client.command(&["AUTH", "the-second-password"]).unwrap(), ok());
    assert_eq!(client.command(&["INCR", TAG]).unwrap(), RedisReply::Integer(2));
}
