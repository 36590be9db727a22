//! Rules of traffic: tags and callers that are cut or limited, on every server of a store and over
//! every protocol.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaf_node::tokens::{TokenHash, draw};
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::{NextIdRequest, next_id_request};
use leaf_registry::{Note, StoreOptions, StoreUrl};
use leaf_testkit::{
    HttpClient, LeafServer, Ledger, MariaDb, RedisClient, RedisReply, Response, wait_until,
};
use tonic::Code;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";
const ID: &str = "/api/segment/get/leaf-segment-test";

/// Writes the rules, as `leaf cut` does.
async fn write(url: &str, directory: &Path, rules: &str) {
    let url: StoreUrl = url.parse().unwrap();
    let open = url.open(directory, &StoreOptions::default()).await.unwrap();
    let before = open.admin.note(Note::Traffic).await.unwrap();
    assert!(open.admin.write_note(Note::Traffic, before.as_deref(), rules).await.unwrap());
    open.store.close().await;
}

/// Waits until a server has read this number of rules: at most the documented 5 s, and a little
/// more for a slow machine.
fn wait_for_rules(server: &LeafServer, rules: usize) {
    wait_until("the rules are in force", Duration::from_secs(7), || {
        let page = HttpClient::once(server.ops(), "GET", "/metrics").body;
        page.contains(&format!("leaf_traffic_rules {rules}.0\n")).then_some(())
    });
}

fn get(server: &LeafServer, path: &str) -> Response {
    HttpClient::once(server.ids(), "GET", path)
}

fn error_of(reply: RedisReply) -> String {
    match reply {
        RedisReply::Error(text) => text,
        other => panic!("{other:?} where a refusal was due"),
    }
}

/// An operator cuts a tag once, and no server of the store issues its ids any more, over any
/// protocol.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_counts_on_every_server_within_seconds() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let directory = tempfile::tempdir().unwrap();
    let servers: Vec<_> = ["one", "two"]
        .iter()
        .map(|name| {
            let args = ["--segment-store", &url, "--grpc-listen", "127.0.0.1:0"];
            LeafServer::start(SERVER, &directory.path().join(name), &args, &[])
        })
        .collect();
    let mut redis: Vec<_> =
        servers.iter().map(|server| RedisClient::connect(server.redis()).unwrap()).collect();
    for (server, redis) in servers.iter().zip(&mut redis) {
        assert_eq!(get(server, ID).status, 200);
        assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
    }
    write(&url, directory.path(), r#"{"version":1,"tags":{"leaf-*":0}}"#).await;
    for (server, redis) in servers.iter().zip(&mut redis) {
        wait_for_rules(server, 1);
        for path in [ID, "/v1/segments/leaf-segment-test", "/v1/segments/leaf-segment-test/ids"] {
            let answer = get(server, path);
            assert_eq!(answer.status, 403, "{path}");
            assert!(answer.body.contains("tag leaf-* is cut"), "{}", answer.body);
        }
        let lease = "/v1/segments/leaf-segment-test/lease?count=10";
        let lease = HttpClient::once(server.ids(), "POST", lease);
        assert_eq!(lease.status, 403);
        assert_eq!(lease.json()["type"], "urn:leaf:problem:cut");
        for command in [&["INCR", TAG][..], &["INCRBY", TAG, "2"], &["LPOP", TAG, "2"]] {
            assert!(error_of(redis.command(command).unwrap()).starts_with("NOPERM tag leaf-*"));
        }
        let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.grpc()));
        let mut grpc = IdServiceClient::new(channel.unwrap().connect_lazy());
        let source = Some(next_id_request::Source::Tag(TAG.into()));
        let refused = grpc.next_id(NextIdRequest { source }).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        // What is not cut goes on.
        assert_eq!(get(server, "/api/snowflake/get/x").status, 200);
        let page = HttpClient::once(server.ops(), "GET", "/metrics").body;
        assert!(page.contains(r#"code="cut""#), "{page}");
    }
    write(&url, directory.path(), r#"{"version":1}"#).await;
    for server in &servers {
        wait_for_rules(server, 0);
        assert_eq!(get(server, ID).status, 200);
    }
}

/// Rules stay in force while the store is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_holds_while_the_store_is_away() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let directory = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(SERVER, &directory.path().join("one"), &["--segment-store", &url], &[]);
    assert_eq!(get(&server, ID).status, 200);
    write(&url, directory.path(), r#"{"version":1,"clients":{"anonymous":0}}"#).await;
    wait_for_rules(&server, 1);
    database.crash();
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(get(&server, ID).status, 403);
    assert_eq!(get(&server, "/api/snowflake/get/x").status, 403);
}

/// How many ids `ask` gets in three seconds; it returns how many there were this time.
fn in_three_seconds(mut ask: impl FnMut() -> usize) -> (usize, Duration) {
    let (begun, mut ids) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(3) {
        ids += ask();
        std::thread::sleep(Duration::from_millis(2));
    }
    (ids, begun.elapsed())
}

/// A limited tag, and a limited caller, get as many as they may, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_over_every_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let tokens = directory.path().join("tokens");
    let token = draw().unwrap();
    let line = format!("web {} ids\nanonymous ids read\n", TokenHash::of(token.as_bytes()));
    std::fs::write(&tokens, line).unwrap();
    let env = [("LEAF_TOKENS_FILE", tokens.display().to_string())];
    let server = LeafServer::start(SERVER, &data, &[], &env);
    let rules = r#"{"version":1,"tags":{"leaf-*":200},"clients":{"web":500}}"#;
    write("sqlite:leaf.db", &data, rules).await;
    wait_for_rules(&server, 2);
    let (ledger, name): (_, Arc<str>) = (Ledger::default(), "ids".into());
    let within = |what: &str, (ids, took): (usize, Duration), rate: f64| {
        let most = rate * (took.as_secs_f64() + 1.0) + 1.0;
        let least = rate * 1.5;
        assert!((least..=most).contains(&(ids as f64)), "{what}: {ids} ids in {took:?}");
        // The tag's second is over.
        std::thread::sleep(Duration::from_millis(1100));
    };
    let mut http = HttpClient::connect(server.ids()).unwrap();
    let got = in_three_seconds(|| {
        let mut ids = 0;
        http.pipeline(ID, 10, |answer| match answer.status {
            200 => {
                ledger.record(&name, answer.body.parse().unwrap());
                ids += 1;
            }
            429 => assert_eq!(answer.header("retry-after"), Some("1")),
            other => panic!("{other} {}", answer.body),
        })
        .unwrap();
        ids
    });
    within("http", got, 200.0);
    let list = "/v1/segments/leaf-segment-test/ids?count=50";
    let got = in_three_seconds(|| match http.request("GET", list).unwrap() {
        answer if answer.status == 200 => {
            let ids = answer.json()["ids"].as_array().unwrap().clone();
            let ids: Vec<i64> =
                ids.iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect();
            ids.iter().for_each(|id| ledger.record(&name, *id));
            ids.len()
        }
        answer => {
            assert_eq!(
                (answer.status, answer.json()["type"].as_str()),
                (429, Some("urn:leaf:problem:too-fast"))
            );
            0
        }
    });
    within("lists", got, 200.0);
    // More at once than in a second are never given.
    let many = http.request("GET", "/v1/segments/leaf-segment-test/ids?count=201").unwrap();
    assert_eq!(many.status, 400, "{}", many.body);
    assert_eq!(
        http.request("GET", "/v1/segments/leaf-segment-test").unwrap().json()["max_take"],
        200
    );

    let mut redis = RedisClient::connect(server.redis()).unwrap();
    let commands = RedisClient::encode(&["INCR", TAG]).repeat(20);
    let got = in_three_seconds(|| {
        redis.send(&commands).unwrap();
        let mut ids = 0;
        for _ in 0..20 {
            match redis.read().unwrap() {
                RedisReply::Integer(id) => {
                    ledger.record(&name, id);
                    ids += 1;
                }
                RedisReply::Error(text) => assert!(text.starts_with("BUSY tag leaf-*"), "{text}"),
                other => panic!("{other:?}"),
            }
        }
        ids
    });
    within("redis", got, 200.0);

    // A caller's rate is for all that it asks for.
    redis.command(&["AUTH", "web", &token]).unwrap();
    let commands = RedisClient::encode(&["SNOWFLAKE"]).repeat(20);
    let got = in_three_seconds(|| {
        redis.send(&commands).unwrap();
        let replies: Vec<_> = (0..20).map(|_| redis.read().unwrap()).collect();
        replies
            .into_iter()
            .filter(|reply| match reply {
                RedisReply::Error(text) => {
                    assert!(text.starts_with("BUSY client web"), "{text}");
                    false
                }
                reply => reply.id().is_some(),
            })
            .count()
    });
    within("a caller", got, 500.0);
    // Others are not concerned.
    let mut other = RedisClient::connect(server.redis()).unwrap();
    for _ in 0..1000 {
        assert!(other.command(&["SNOWFLAKE"]).unwrap().id().is_some());
    }
}

/// Ids of a limited tag by `leaf-client`: its leases are as long as they may be, and it waits.
#[tokio::test(flavor = "multi_thread")]
async fn the_client_library_lives_with_a_rate() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    write("sqlite:leaf.db", directory.path(), r#"{"version":1,"tags":{"leaf-*":300}}"#).await;
    wait_for_rules(&server, 1);
    let client = leaf_client::LeafClient::builder()
        .endpoint(format!("http://{}", server.ids()))
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    let tag = client.tag(TAG).await.unwrap();
    let (ledger, name): (_, Arc<str>) = (Ledger::default(), "client".into());
    let begun = Instant::now();
    for _ in 0..1500 {
        ledger.record(&name, tag.next().await.unwrap().get());
    }
    let took = begun.elapsed().as_secs_f64();
    assert!((2.5..20.0).contains(&took), "{took}");
    client.close().await;
}

/// A server that starts gives no id of a tag that is cut, not even before it has asked the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_knows_what_is_cut() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let directory = tempfile::tempdir().unwrap();
    write(&url, directory.path(), r#"{"version":1,"tags":{"leaf-*":0},"clients":{"gone":0}}"#)
        .await;
    for away in [false, true] {
        if away {
            database.crash();
        }
        let data = directory.path().join(format!("data-{away}"));
        let args = ["--segment-store", &url];
        let server = LeafServer::launch(SERVER, &data, &args, &[]);
        let mut redis = RedisClient::connect(server.redis()).unwrap();
        let begun = Instant::now();
        if away {
            assert!(error_of(redis.command(&["INCR", TAG]).unwrap()).starts_with("LOADING"));
            // Snowflake ids need no store.
            assert!(redis.command(&["SNOWFLAKE"]).unwrap().id().is_some());
            database.restart();
        }
        loop {
            let error = error_of(redis.command(&["INCR", TAG]).unwrap());
            if error.starts_with("NOPERM") {
                break;
            }
            assert!(error.starts_with("LOADING"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A caller that is cut can still give its leases back, and its probes (HEAD) get 403.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_cut_tag_can_be_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let lease = "/v1/segments/leaf-segment-test/lease?count=10";
    let lease = HttpClient::once(server.ids(), "POST", lease).json();
    let part = |key: &str| lease[key].as_str().unwrap().to_owned();
    write("sqlite:leaf.db", directory.path(), r#"{"version":1,"clients":{"anonymous":0}}"#).await;
    wait_for_rules(&server, 1);
    let (ticket, start, end) = (part("ticket"), part("start"), part("end"));
    let back = format!("/v1/segments/{TAG}/return?ticket={ticket}&start={start}&end={end}");
    let back = HttpClient::once(server.ids(), "POST", &back);
    assert_eq!((back.status, back.json()["returned"].as_bool()), (200, Some(true)));
    for path in [ID, "/api/snowflake/get/x"] {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        assert_eq!(client.request("HEAD", path).unwrap().status, 403, "{path}");
    }
}
