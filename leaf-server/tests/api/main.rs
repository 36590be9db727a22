//! The JSON API: ids, and administration on the ops listener.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod ops;

use leaf_testkit::{HttpClient, LeafServer, Response};
use serde_json::json;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";
const TAG: &str = "/v1/segments/leaf-segment-test";

fn start(env: &[(&str, &str)]) -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let server = LeafServer::start(SERVER, directory.path(), &[], &env);
    (directory, server)
}

fn ops(server: &LeafServer, method: &str, path: &str, body: &str) -> Response {
    HttpClient::connect(server.ops()).unwrap().ask(method, path, JSON, body).unwrap()
}

fn problem(answer: &Response, status: u16, kind: &str, text: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let problem = answer.json();
    assert_eq!(problem["type"], format!("urn:leaf:problem:{kind}"), "{problem}");
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].as_str().unwrap().contains(text), "{problem}");
}

#[test]
fn ids_are_strings_and_no_cache_keeps_them() {
    let (_directory, server) = start(&[]);
    let answer = server.get(&format!("{TAG}/ids?count=3"));
    assert_eq!(answer.json(), json!({ "ids": ["1", "2", "3"] }));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(
        server.get("/api/segment/get/leaf-segment-test").header("cache-control"),
        Some("no-store")
    );
    assert_eq!(server.get(&format!("{TAG}/ids")).json(), json!({ "ids": ["5"] }));

    let lease = HttpClient::once(server.ids(), "POST", &format!("{TAG}/lease?count=100"));
    let ticket = lease.json()["ticket"].clone();
    assert_eq!(ticket.as_str().unwrap().len(), 16);
    // Straight from the store: behind the segment that ids are taken from.
    let expected = json!({
        "tag": "leaf-segment-test", "start": "2001", "end": "2101", "count": 100, "ticket": ticket,
    });
    assert_eq!(lease.json(), expected);
    assert_eq!(server.get(&format!("{TAG}/ids")).json(), json!({ "ids": ["6"] }));

    let ids = server.get("/v1/snowflake/ids?count=2").json();
    let id: Vec<i64> = ids["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap().parse().unwrap())
        .collect();
    assert!(id[0] < id[1]);
    let parts = server.get(&format!("/v1/ids/{}", id[0])).json();
    assert_eq!((&parts["id"], &parts["worker"]), (&ids["ids"][0], &json!(0)));
    let many = server.get("/v1/snowflake/ids?count=1000").json();
    assert_eq!(many["ids"].as_array().unwrap().len(), 1000);
}

/// The unused ids of a lease can be given back once, and only with its ticket.
#[test]
fn leases_come_from_the_store_and_go_back_to_it() {
    let (_directory, server) = start(&[("LEAF_SEGMENT__REFRESH", "1s")]);
    let post = |path: String| HttpClient::once(server.ids(), "POST", &format!("{TAG}/{path}"));
    let lease = |count: usize| {
        let lease = post(format!("lease?count={count}")).json();
        let number = |name: &str| lease[name].as_str().unwrap().parse::<i64>().unwrap();
        (number("start"), number("end"), lease["ticket"].as_str().unwrap().to_owned())
    };
    let give_back = |ticket: &str, start: i64, end: i64| {
        let answer = post(format!("return?ticket={ticket}&start={start}&end={end}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["returned"].as_bool().unwrap()
    };
    let (first, second) = (lease(100), lease(50));
    assert_eq!((first.0, first.1, second.0, second.1), (1, 101, 101, 151));
    assert!(!give_back(&first.2, 51, 101), "not the last one");
    assert!(!give_back(&"0".repeat(16), 141, 151), "a ticket of nobody");
    assert!(give_back(&second.2, 141, 151));
    assert!(!give_back(&second.2, 141, 151), "once");
    assert_eq!(lease(10).0, 141);

    let ticket = "0123456789abcdef";
    for (query, text) in [
        (String::new(), "ticket: give"),
        (format!("ticket={ticket}&start=5&end=5"), "start, end: give"),
        (format!("ticket={ticket}&start=9&end=5"), "start, end: give"),
        (format!("ticket={ticket}&start=-1&end=5"), "start, end: give"),
        (format!("ticket={ticket}&start=+1&end=5"), "start, end: give"),
        (format!("ticket={ticket}&start=1&end=9223372036854775808"), "start, end: give"),
        (format!("ticket={ticket}0&start=1&end=5"), "ticket: give"),
        ("ticket=0123456789abcdeg&start=1&end=5".into(), "ticket: give"),
        ("ticket=%2B123456789abcde&start=1&end=5".into(), "ticket: give"),
        (format!("ticket={ticket}&ticket={ticket}&start=1&end=5"), "given twice"),
        (format!("ticket={ticket}&from=1&end=5"), "unknown parameter"),
    ] {
        problem(&post(format!("return?{query}")), 400, "bad-request", text);
    }
    let unknown = HttpClient::once(server.ids(), "POST", "/v1/segments/nope/return?ticket=0");
    problem(&unknown, 404, "unknown-tag", "no such tag");
    // More than the tag's own limit.
    let limit = r#"{"max_take":10}"#;
    assert_eq!(ops(&server, "PATCH", "/v1/tags/leaf-segment-test", limit).status, 200);
    leaf_testkit::wait_until("the limit holds", std::time::Duration::from_secs(10), || {
        let refused = post("lease?count=11".into());
        (refused.status == 400).then(|| problem(&refused, 400, "bad-request", "give 1 to 10"))
    });
}

/// What a client reads before it takes ids.
#[test]
fn a_client_sees_what_a_tag_and_a_server_offer() {
    let (_directory, server) =
        start(&[("LEAF_ZONE", "eu-1a"), ("LEAF_SNOWFLAKE__ENABLED", "false")]);
    let shown = server.get("/v1/server").json();
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"), "zone": "eu-1a", "weight": 100, "ready": true, "state": "ready", "segment": true,
        "snowflake": false,
    });
    assert_eq!(shown, expected);
    let expected = json!({
        "tag": "leaf-segment-test", "order": "relaxed", "leases": true, "step": 2000, "max_take": 1_000_000,
        "max_count": 1000, "generation": null, "newest_key": null,
    });
    assert_eq!(server.get(TAG).json(), expected);
    for (new, leases, step) in [
        (r#"{"tag":"turns","order":"strict"}"#, false, json!(null)),
        (r#"{"tag":"parts","step":500,"shape":"interleave:1/8"}"#, false, json!(500)),
    ] {
        assert_eq!(ops(&server, "POST", "/v1/tags", new).status, 201);
        let new: serde_json::Value = serde_json::from_str(new).unwrap();
        let shown = server.get(&format!("/v1/segments/{}", new["tag"].as_str().unwrap())).json();
        assert_eq!((&shown["leases"], &shown["step"]), (&json!(leases), &step), "{shown}");
        assert_eq!(shown["generation"].as_str().map(str::len), Some(16), "{shown}");
    }
    problem(&server.get("/v1/segments/nope"), 404, "unknown-tag", "no such tag");
}

/// One tag's name may be the percent-encoded form of another's.
#[test]
fn an_encoded_name_is_always_that_of_the_decoded_tag() {
    let (_directory, server) = start(&[]);
    for (tag, first) in [("x y", 1), ("x%20y", 900_000)] {
        let new = json!({ "tag": tag, "step": 100, "first": first }).to_string();
        assert_eq!(ops(&server, "POST", "/v1/tags", &new).status, 201);
    }
    // On one connection, so that one thread has seen both.
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let mut id = |path: &str| {
        let mut id = 0;
        client.ids(path, 1, |it| id = it).unwrap();
        id
    };
    for n in 0..3 {
        assert_eq!(id("/api/segment/get/x%20y"), 1 + n);
        assert_eq!(id("/api/segment/get/x%2520y"), 900_000 + n);
    }
}

#[test]
fn wrong_requests_are_told_in_the_form_that_the_client_accepts() {
    let (_directory, server) = start(&[("LEAF_HTTP__MAX_COUNT", "50")]);
    for query in ["count=51", "count=0", "count=-1", "count=+5", "count=x", "count=", "count"] {
        let answer = server.get(&format!("{TAG}/ids?{query}"));
        problem(&answer, 400, "bad-request", "count: give 1 to 50");
    }
    problem(
        &server.get(&format!("{TAG}/ids?cuont=2")),
        400,
        "bad-request",
        "there are `count` and `as`",
    );
    problem(&server.get(&format!("{TAG}/ids?count=1&count=2")), 400, "bad-request", "given twice");
    problem(&server.get("/v1/snowflake/ids?count=51"), 400, "bad-request", "give 1 to 50");
    problem(&server.get("/v1/segments/nope/ids"), 404, "unknown-tag", "no such tag");
    problem(&server.get("/v1/segments/%20/ids"), 400, "bad-request", "white space");
    problem(&server.get("/v1/ids/x"), 400, "bad-request", "id is none");
    problem(&server.get("/v1/nothing"), 404, "not-found", "no such route");
    let lease = HttpClient::once(server.ids(), "POST", &format!("{TAG}/lease?count=1000001"));
    problem(&lease, 400, "bad-request", "give 1 to 1000000");
    for (method, path) in
        [("HEAD", "/v1/snowflake/ids"), ("OPTIONS", "/api/snowflake/get/x"), ("PUT", "/v1/ids/1")]
    {
        assert_eq!(HttpClient::once(server.ids(), method, path).status, 405, "{method} {path}");
    }
    assert_eq!(HttpClient::once(server.ids(), "HEAD", "/clock").status, 200);
    let asked = |path: &str, accept: &str| {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        let headers = format!("Host: localhost\r\nAccept: {accept}\r\n");
        client.ask("GET", path, &headers, "").unwrap()
    };
    problem(&asked("/api/segment/get/nope", "application/json"), 404, "unknown-tag", "no such tag");
    let text = asked("/v1/segments/nope/ids", "text/plain");
    assert_eq!(text.body, "tag \"nope\": no such tag: create it first");
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(server.id("/api/segment/get/leaf-segment-test"), 1, "no id was burnt");
}

/// Snowflake ids in the forms of other programs: read back as the same id, and each form refuses
/// what is not its own.
#[test]
fn snowflake_ids_are_written_in_other_forms_and_read_back() {
    let (_directory, server) = start(&[]);
    let layout = leaf_core::Layout::LEAF;
    for form in leaf_shape::TextForm::ALL {
        let name = form.name();
        let answer = server.get(&format!("/v1/snowflake/ids?count=3&as={name}")).json();
        let texts: Vec<String> = serde_json::from_value(answer["ids"].clone()).unwrap();
        let ids: Vec<_> = texts.iter().map(|text| form.read(layout, text).unwrap()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]) && ids.len() == 3, "{texts:?}");

        let named = match name {
            "tsid" => format!("{}?as=tsid", texts[0]),
            _ => texts[0].clone(),
        };
        let decoded = server.get(&format!("/v1/ids/{named}"));
        assert_eq!(decoded.status, 200, "{}", decoded.body);
        assert_eq!(decoded.json()["id"], ids[0].to_string());
        let other = server.get(&format!("/v1/ids/{}?as=uuid", ids[0]));
        problem(&other, 404, "no-such-id", "the text is not a UUID");
    }
    let foreign = server.get("/v1/ids/01a07edf-8bc1-7fff-8abc-0000000003ff");
    problem(&foreign, 404, "no-such-id", "was not made from an id");
    let unknown = server.get("/v1/snowflake/ids?as=guid");
    problem(&unknown, 400, "bad-request", "give one of uuid, ulid, tsid, objectid");
    let twice = server.get("/v1/snowflake/ids?as=uuid&as=ulid");
    problem(&twice, 400, "bad-request", "given twice");
    let segments = server.get(&format!("{TAG}/ids?as=uuid"));
    problem(&segments, 400, "bad-request", "as: give text");

    let (_directory, wide) = start(&[("LEAF_SNOWFLAKE__LAYOUT", "t31-w10-s22/1s")]);
    let object_id = wide.get("/v1/snowflake/ids?as=objectid");
    assert_eq!(object_id.status, 200, "10 and 22 bits fit into 54: {}", object_id.body);
    let (_directory, wider) = start(&[("LEAF_SNOWFLAKE__LAYOUT", "t31-w26-s6/1s")]);
    let uuid = wider.get("/v1/snowflake/ids?as=uuid");
    assert_eq!(uuid.status, 200, "{}", uuid.body);
}

#[test]
fn a_tag_in_strict_order_has_ids_but_no_leases() {
    let (_directory, server) = start(&[]);
    let made = ops(&server, "POST", "/v1/tags", r#"{"tag":"turns","order":"strict"}"#);
    assert_eq!((made.status, &made.json()["step"]), (201, &serde_json::Value::Null));
    assert_eq!(server.id("/api/segment/get/turns"), 1);
    let several = server.get("/v1/segments/turns/ids?count=3").json();
    assert_eq!(several["ids"], json!(["2", "3", "4"]));

    let mut client = HttpClient::connect(server.ids()).unwrap();
    let headers = "Host: localhost\r\n";
    let lease = client.ask("POST", "/v1/segments/turns/lease?count=10", headers, "").unwrap();
    problem(&lease, 409, "strict-order", "for a list of them");
    let step = ops(&server, "PATCH", "/v1/tags/turns", r#"{"step":5}"#);
    problem(&step, 409, "conflict", "has no step");
    assert_eq!(ops(&server, "PATCH", "/v1/tags/turns", r#"{"max_take":2}"#).status, 200);
    assert_eq!(server.id("/api/segment/get/turns"), 5, "nothing was burned");
}

#[test]
fn ids_are_told_as_texts_and_read_back() {
    let (_directory, server) = start(&[]);
    let new = r#"{"tag":"orders","step":100,"text":"O-{n:06}{mod97}"}"#;
    let made = ops(&server, "POST", "/v1/tags", new);
    assert_eq!((made.status, &made.json()["text"]), (201, &"O-{n:06}{mod97}".into()));
    assert_eq!(server.id("/api/segment/get/orders"), 1, "numbers are the default");
    let texts = server.get("/v1/segments/orders/ids?count=2&as=text").json();
    assert_eq!(texts["ids"], json!(["O-00000288", "O-00000385"]));
    let read = server.get("/v1/ids/O-00000288?tag=orders").json();
    assert_eq!(read, json!({"tag": "orders", "id": "2"}));
    for (path, status, kind, text) in [
        ("/v1/ids/O-00000289?tag=orders", 404, "no-such-id", "altered"),
        ("/v1/ids/O-0000288?tag=orders", 404, "no-such-id", "template"),
        ("/v1/ids/2?tag=leaf-segment-test", 409, "no-template", "no template"),
        ("/v1/ids/2?tag=none", 404, "unknown-tag", "no such tag"),
        ("/v1/ids/2?tag=orders&as=uuid", 409, "conflict", "without `as`"),
        ("/v1/ids/2?as=uuid&tag=orders", 409, "conflict", "without `as`"),
        ("/v1/segments/leaf-segment-test/ids?as=text", 409, "no-template", "no template"),
        ("/v1/segments/orders/ids?as=uuid", 400, "bad-request", "as: give text"),
        ("/v1/segments/orders/ids?as=text&as=text", 400, "bad-request", "twice"),
    ] {
        problem(&server.get(path), status, kind, text);
    }
    let told = ops(&server, "GET", "/v1/tags/orders/ids/O-00000385", "").json();
    assert_eq!(told, json!({"tag": "orders", "id": "3", "number": "3", "granted": true}));
    let told = ops(&server, "GET", "/v1/tags/orders/ids/3", "").json();
    assert_eq!(told["number"], "3");
    problem(&ops(&server, "GET", "/v1/tags/orders/ids/x", ""), 404, "no-such-id", "template");
    problem(&ops(&server, "POST", "/v1/tags/orders/rekey", ""), 409, "conflict", "not scrambled");

    // Where its texts end, the tag ends.
    assert_eq!(ops(&server, "PATCH", "/v1/tags/orders", r#"{"max_take":7}"#).status, 200);
    let far = ops(&server, "POST", "/v1/tags/orders/advance", r#"{"at_least":"999998"}"#);
    assert_eq!(far.status, 200);
    let mut last = 0;
    let full = loop {
        let next = server.get("/api/segment/get/orders");
        match next.status {
            200 => last = next.body.parse().unwrap(),
            _ => break next,
        }
    };
    assert_eq!((full.status, last), (409, 999_999), "{}", full.body);
}
