//! Servers that are no Leaf servers, or misbehave: the client returns typed errors that name the
//! server, and issues no id twice.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and look at the clock"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder, blocking};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A program that answers each request by this function of its first line and its headers.
async fn server(answer: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut read = Vec::new();
                while stream.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
                    while let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        let head = String::from_utf8(read.drain(..end + 4).collect()).unwrap();
                        let (line, headers) = head.split_once("\r\n").unwrap();
                        let answer = answer(line, headers);
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn builder(url: &str) -> LeafClientBuilder {
    LeafClient::builder().endpoint(url).deadline(Duration::from_millis(700))
}

/// The description of a tag, with a field that this version of the client does not have.
const TAG: &str = r#"{"tag":"orders","order":"relaxed","leases":true,"step":10,"max_take":1000,"max_count":100,"new":{"a":[1]}}"#;

fn lease(start: i64, end: i64) -> String {
    let text = format!(
        r#"{{"tag":"orders","start":"{start}","end":"{end}","count":{},"ticket":"0123456789abcdef","later":true}}"#,
        end - start
    );
    http("200 OK", &text)
}

/// How many ids a request for a lease is for.
fn count(line: &str) -> Option<i64> {
    let (_, count) = line.split_once("/lease?count=")?;
    count.split(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_leaf_server_is_told_by_name_and_in_time() {
    let long = "x".repeat(1 << 20);
    let answers = [
        http("200 OK", "hello"),
        http("200 OK", "{}"),
        http("200 OK", ""),
        http("200 OK", &long),
        http("404 Not Found", "<html>"),
        // A gateway's.
        http("404 Not Found", r#"{"message":"no route"}"#),
        http("500 Internal Server Error", "oops"),
        http("302 Found", ""),
        http(
            "503 Service Unavailable",
            r#"{"type":"urn:leaf:problem:unavailable","detail":"a\u0007b"}"#,
        ),
        "not HTTP at all\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort".into(),
        String::new(),
    ];
    for answer in answers {
        let shown: String = answer.chars().take(60).collect();
        let url = server(move |_, _| answer.clone()).await;
        let client = builder(&url).build().unwrap();
        let started = Instant::now();
        let error = client.tag("orders").await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{shown}: {error}");
        assert!(error.to_string().contains(&url), "{shown}: {error}");
        assert!(!error.to_string().contains('\u{7}') && error.to_string().len() < 500);
        assert!(started.elapsed() < Duration::from_secs(5), "{shown}: {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_told_and_the_token_never() {
    let url = server(|_, headers| match headers.contains("authorization: Bearer right") {
        true => http("200 OK", TAG),
        false => http("401 Unauthorized", "who are you?"),
    })
    .await;
    let wrong = builder(&url).token("a-canary");
    assert!(!format!("{wrong:?}").contains("canary"));
    let client = wrong.build().unwrap();
    assert!(!format!("{client:?}").contains("canary"), "{client:?}");
    let error = client.tag("orders").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unauthorized);
    assert!(
        error.to_string().contains("token") && !error.to_string().contains("canary"),
        "{error}"
    );
    assert!(builder(&url).token("right").build().unwrap().tag("orders").await.is_ok());
    let error = builder(&url).token("a\r\nhost: b").build().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::BadConfig);
}

/// Ranges of another length than requested, and ranges that were granted before: the client hands
/// out no id of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_back_is_not_followed() {
    let wrong_length = server(|line, _| match count(line) {
        Some(count) => lease(1, 2 + count),
        None => http("200 OK", TAG),
    })
    .await;
    let client = builder(&wrong_length).build().unwrap();
    let error = client.tag("orders").await.unwrap().next().await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{error}");

    // The third lease begins where the first did.
    let leases = AtomicUsize::new(0);
    let goes_back = server(move |line, _| match count(line) {
        Some(count) => {
            let start = [1, 1001, 1][leases.fetch_add(1, Ordering::SeqCst).min(2)];
            lease(start, start + count)
        }
        None if line.contains("/return") => http("200 OK", r#"{"returned":false}"#),
        None => http("200 OK", TAG),
    })
    .await;
    let client = builder(&goes_back).build().unwrap();
    let orders = client.tag("orders").await.unwrap();
    let mut last = 0;
    let error = loop {
        match orders.next().await {
            Ok(id) => {
                assert!(id.get() > last, "{id} after {last}");
                last = id.get();
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ClientErrorKind::WentBack, "{error}");
    assert!(last > 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_are_too_short_or_no_ids_are_refused() {
    let kinds = [r#""order":"strict""#, r#""order":"relaxed""#];
    let lists = [
        r#"{"ids":[]}"#,
        r#"{"ids":["-1"]}"#,
        r#"{"ids":["1","x"]}"#,
        r#"{"ids":["9223372036854775808"]}"#,
        r#"{"ids":[1]}"#,
    ];
    for (kind, list) in kinds.iter().flat_map(|kind| lists.map(|list| (*kind, list))) {
        let tag = TAG.replace(r#""order":"relaxed""#, kind).replace("true", "false");
        let url = server(move |line, _| match line.contains("/ids?") {
            true => http("200 OK", list),
            false => http("200 OK", &tag),
        })
        .await;
        let client = builder(&url).build().unwrap();
        let error = client.tag("orders").await.unwrap().next().await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{kind} {list}: {error}");
        assert!(error.to_string().contains(&url), "{error}");
    }
}

/// Retries do not multiply the load on servers that are in trouble.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_trouble_is_not_flooded() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let url = server(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        http("503 Service Unavailable", "{}")
    })
    .await;
    let client = builder(&url).build().unwrap();
    for _ in 0..3 {
        client.tag("orders").await.unwrap_err();
    }
    // Three calls and some retries, of which ten are saved up, and probes.
    let asked = asked.load(Ordering::SeqCst);
    assert!((6..22).contains(&asked), "{asked}");
}

/// A server's refusal is more informative than the timeout of a later attempt, so it is what the
/// caller gets.
#[tokio::test(flavor = "multi_thread")]
async fn the_reason_outlives_a_last_try_without_an_answer() {
    let away = r#"{"type":"urn:leaf:problem:unavailable","detail":"the store is away"}"#;
    let asked = AtomicUsize::new(0);
    let url = server(move |line, _| {
        if !line.contains("orders") {
            return http("404 Not Found", "");
        }
        match asked.fetch_add(1, Ordering::SeqCst) {
            // Late enough that the next try has less than the 350 ms of an attempt.
            0 => {
                std::thread::sleep(Duration::from_millis(300));
                http("503 Service Unavailable", away)
            }
            // Nothing comes: the request stays without an answer.
            _ => String::new(),
        }
    })
    .await;
    let client = builder(&url).build().unwrap();
    let error = client.tag("orders").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
    assert!(error.to_string().contains("the store is away"), "{error}");
}

#[test]
fn what_cannot_be_used_is_refused_at_once() {
    let bad = [
        LeafClient::builder(),
        LeafClient::builder().endpoint("redis://leaf:8080"),
        LeafClient::builder().endpoints(vec!["http://a:1"; 65]),
        LeafClient::builder().endpoint("http://a:1").deadline(Duration::ZERO),
        LeafClient::builder().endpoint("http://a:1").attempt(Duration::from_secs(1 << 20)),
    ];
    for builder in bad {
        let error = blocking::LeafClient::open(builder).unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::BadConfig, "{error}");
    }
}

#[test]
fn it_blocks_where_there_is_no_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let next = Arc::new(Mutex::new(1));
    let url = runtime.block_on(server(move |line, _| match count(line) {
        Some(count) => {
            let mut next = next.lock().unwrap();
            *next += count;
            lease(*next - count, *next)
        }
        None => http("200 OK", TAG),
    }));
    let client = blocking::LeafClient::open(builder(&url)).unwrap();
    let orders = client.tag("orders").unwrap();
    orders.warm_up().unwrap();
    assert_eq!(orders.try_next().unwrap().get(), 1);
    assert_eq!(orders.next().unwrap().get(), 2);
    assert_eq!(orders.take_ids(3).unwrap().len(), 3);
    let mut local = orders.local(4);
    assert_eq!([local.next().unwrap().get(), local.try_next().unwrap().get()], [6, 7]);
    let nowhere = LeafClient::builder().endpoint("http://127.0.0.1:1");
    let nowhere = blocking::LeafClient::open(nowhere.deadline(Duration::from_millis(50))).unwrap();
    let error = nowhere.tag("orders").unwrap_err();
    assert!(error.to_string().contains("http://127.0.0.1:1"), "{error}");
    assert_eq!(nowhere.snowflake().next().unwrap_err().kind(), ClientErrorKind::Unavailable);
    client.close();
}
