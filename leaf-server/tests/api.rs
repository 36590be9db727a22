//! The JSON API: ids, and administration on the ops listener.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

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

/// What a lease did not use goes back, once, and only with its ticket.
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
        "version": env!("CARGO_PKG_VERSION"), "zone": "eu-1a", "ready": true, "segment": true, "snowflake": false,
    });
    assert_eq!(shown, expected);
    let expected = json!({
        "tag": "leaf-segment-test", "order": "relaxed", "leases": true, "step": 2000, "max_take": 1_000_000,
        "max_count": 1000,
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
    }
    problem(&server.get("/v1/segments/nope"), 404, "unknown-tag", "no such tag");
}

/// A tag may be named like another one that is percent-encoded.
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

#[test]
fn tags_are_made_changed_raised_and_deleted() {
    let (_directory, server) = start(&[("LEAF_SEGMENT__REFRESH", "1s")]);
    let new = ops(
        &server,
        "POST",
        "/v1/tags",
        r#"{"tag":"a/b 订","step":10,"first":"100","description":"x"}"#,
    );
    assert_eq!(new.status, 201, "{}", new.body);
    let expected = json!({
        "tag": "a/b 订", "order": "relaxed", "shape": "plain", "key": null, "reset": null, "slice": null, "slice_bits": null, "text": null,
        "time_zone": null, "max_id": "100", "step": 10, "enabled": true, "min_step": null, "max_step": null,
        "max_take": null, "description": "x", "store": "sqlite:leaf.db",
    });
    assert_eq!(new.json(), expected);
    let path = "/v1/tags/a%2Fb%20%E8%AE%A2";
    assert_eq!(ops(&server, "GET", path, "").json(), expected);
    assert_eq!(server.id("/api/segment/get/a%2Fb%20%E8%AE%A2"), 100);
    let all = ops(&server, "GET", "/v1/tags", "").json();
    assert_eq!((all["tags"].as_array().unwrap().len(), &all["failed"]), (2, &json!([])));

    let changed =
        ops(&server, "PATCH", path, r#"{"step":20,"max_step":50,"min_step":null}"#).json();
    assert_eq!((&changed["step"], &changed["max_step"]), (&json!(20), &json!(50)));
    let raised = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":5000}"#).json();
    assert_eq!((&raised["max_id"], &raised["raised"]), (&json!("5000"), &json!(true)));
    let lower = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":"4000"}"#).json();
    assert_eq!((&lower["max_id"], &lower["raised"]), (&json!("5000"), &json!(false)));
    let far = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":"2000000000000"}"#);
    problem(&far, 409, "unconfirmed", "lost for ever");

    let disabled = ops(&server, "PATCH", path, r#"{"enabled":false}"#).json();
    assert_eq!(disabled["enabled"], false);
    leaf_testkit::wait_until("the tag is off", std::time::Duration::from_secs(10), || {
        let answer = server.get("/v1/segments/a%2Fb%20%E8%AE%A2/ids");
        (answer.status == 404).then(|| problem(&answer, 404, "disabled", "disabled"))
    });

    problem(&ops(&server, "DELETE", path, ""), 409, "unconfirmed", "?confirm=a%2Fb%20%E8%AE%A2");
    problem(
        &ops(&server, "DELETE", &format!("{path}?confirm=other"), ""),
        409,
        "unconfirmed",
        "below",
    );
    let gone = ops(&server, "DELETE", &format!("{path}?confirm=a%2Fb%20%E8%AE%A2"), "").json();
    let number = |value: &serde_json::Value| value.as_str().unwrap().parse::<i64>().unwrap();
    let granted = number(&gone["deleted"]["max_id"]);
    assert!(granted >= 5000, "{gone}");
    assert_eq!(number(&gone["next_first"]), granted);
    problem(&ops(&server, "GET", path, ""), 404, "unknown-tag", "no such tag");
}

/// Snowflake ids in the forms of other programs: read back as the same id, and each form refuses what is not its own.
#[test]
fn snowflake_ids_are_written_in_other_forms_and_read_back() {
    let (_directory, server) = start(&[]);
    let layout = leaf_core::Layout::LEAF;
    for form in leaf_core::TextForm::ALL {
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

#[test]
fn wrong_administration_is_refused_and_changes_nothing() {
    let (_directory, server) = start(&[]);
    let stock = "/v1/tags/leaf-segment-test";
    for (method, path, body, status, text) in [
        ("POST", "/v1/tags", "{", 400, "body: "),
        ("POST", "/v1/tags", r#"{"step":1}"#, 400, "missing field `tag`"),
        ("POST", "/v1/tags", r#"{"tag":"x"}"#, 400, "needs a step"),
        ("POST", "/v1/tags", r#"{"tag":"x","step":null}"#, 400, "body: "),
        ("POST", "/v1/tags", r#"{"tag":"x","step":1,"order":"strict"}"#, 400, "has no step"),
        ("POST", "/v1/tags", r#"{"tag":"x","order":"daily"}"#, 400, "unknown variant `daily`"),
        ("POST", "/v1/tags", r#"{"tag":"x","step":0}"#, 400, "step: give 1 to 2147483647"),
        ("POST", "/v1/tags", r#"{"tag":"x","step":1.5}"#, 400, "a whole number"),
        ("POST", "/v1/tags", r#"{"tag":" x","step":1}"#, 400, "white space"),
        ("POST", "/v1/tags", r#"{"tag":"x","step":1,"first":-1}"#, 400, "the first number is 0 to"),
        ("POST", "/v1/tags", r#"{"tag":"x","step":1,"frist":1}"#, 400, "unknown field `frist`"),
        ("POST", "/v1/tags", r#"{"tag":"leaf-segment-test","step":1}"#, 409, "exists already"),
        ("PATCH", stock, "{}", 400, "nothing to change"),
        ("PATCH", stock, r#"{"enabled":null}"#, 400, "body: "),
        ("PATCH", stock, r#"{"min_step":9,"max_step":8}"#, 409, "above max_step"),
        ("PATCH", "/v1/tags/%zz", r#"{"step":1}"#, 400, "percent-encoding"),
        ("POST", &format!("{stock}/advance"), r#"{"at_least":"x"}"#, 400, "body: "),
        (
            "POST",
            &format!("{stock}/advance"),
            r#"{"at_least":"9223372036854775807"}"#,
            400,
            "next id is 0",
        ),
        ("DELETE", &format!("{stock}?yes=1"), "", 400, "there is `confirm`"),
        ("GET", "/v1/tags?x=1", "", 400, "takes no parameters"),
        ("GET", "/v1/workers", "", 200, ""),
        ("POST", "/v1/workers/0/retire", r#"{"for_good":true}"#, 404, "nothing to administer"),
    ] {
        let answer = ops(&server, method, path, body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        assert!(answer.body.contains(text), "{method} {path} {body}: {}", answer.body);
    }
    let large = format!("{{\"tag\":\"{}\",\"step\":1}}", "x".repeat(20_000));
    problem(&ops(&server, "POST", "/v1/tags", &large), 413, "too-large", "16384");
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let form = "Host: localhost\r\nContent-Type: text/plain\r\n";
    let answer = client.ask("POST", "/v1/tags", form, r#"{"tag":"x","step":1}"#).unwrap();
    problem(&answer, 415, "not-json", "application/json");
    assert_eq!(ops(&server, "GET", "/v1/tags", "").json()["tags"].as_array().unwrap().len(), 1);
    assert_eq!(ops(&server, "GET", stock, "").json()["step"], 2000);
}

#[test]
fn with_a_token_administration_needs_it_and_health_does_not() {
    let token = "a-token-of-some-length";
    let (_directory, server) = start(&[("LEAF_OPS__TOKEN", token)]);
    let ask = |path: &str, headers: &str| {
        let mut client = HttpClient::connect(server.ops()).unwrap();
        client.ask("GET", path, &format!("Host: leaf.example\r\n{headers}"), "").unwrap()
    };
    for path in ["/v1/status", "/v1/tags", "/v1/workers", "/cache", "/db"] {
        assert_eq!(ask(path, "").status, 401, "{path}");
        assert_eq!(ask(path, "").header("www-authenticate"), Some("Bearer"));
        assert_eq!(ask(path, "Authorization: Bearer wrong\r\n").status, 401, "{path}");
        assert_eq!(ask(path, &format!("Authorization: Bearer {token}\r\n")).status, 200, "{path}");
    }
    assert_eq!((ask("/healthz", "").status, ask("/readyz", "").status), (200, 200));
    assert!(!server.output().contains(token), "{}", server.output());
}

#[test]
fn worker_ids_are_listed_released_and_retired() {
    let registry = [
        ("LEAF_SNOWFLAKE__REGISTRY", "sqlite"),
        ("LEAF_SNOWFLAKE__DATABASE", "sqlite:workers.db"),
        ("LEAF_ADVERTISE", "10.0.0.7:8080"),
        // So that a killed node's worker id is asked about, not taken.
        ("LEAF_SNOWFLAKE__REPORT_INTERVAL", "100ms"),
    ];
    let (directory, server) = start(&registry);
    let workers = ops(&server, "GET", "/v1/workers", "").json();
    assert_eq!(workers["workers"][0]["holder"], "10.0.0.7:8080");
    assert_eq!(workers["workers"][0]["state"], "held");

    // Another node of the registry, which dies.
    let env: Vec<_> = registry.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let other = directory.path().join("other");
    let shared = format!("sqlite:{}", directory.path().join("workers.db").display());
    let mut env = env;
    env[1].1 = shared;
    env[2].1 = "10.0.0.8:8080".to_owned();
    let mut dead = LeafServer::start(SERVER, &other, &[], &env);
    dead.kill();
    let release = |sure: &str| ops(&server, "POST", "/v1/workers/1/release", sure);
    problem(&release(r#"{"holder_is_dead":false}"#), 409, "unconfirmed", "would repeat ids");
    problem(&release("{}"), 400, "bad-request", "holder_is_dead");
    let free = leaf_testkit::wait_until("it is silent", std::time::Duration::from_secs(20), || {
        let answer = release(r#"{"holder_is_dead":true}"#);
        (answer.status == 200).then(|| answer.json())
    });
    assert!(free["free_from_ms"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{free}");

    let retire = |sure: &str| ops(&server, "POST", "/v1/workers/5/retire", sure);
    problem(&retire(r#"{"for_good":false}"#), 409, "unconfirmed", "never used again");
    assert_eq!(retire(r#"{"for_good":true}"#).json(), json!({ "worker": 5 }));
    let all = ops(&server, "GET", "/v1/workers", "").json();
    let states: Vec<_> =
        all["workers"].as_array().unwrap().iter().map(|worker| &worker["state"]).collect();
    assert_eq!(states, ["held", "released", "retired"]);
    problem(
        &ops(&server, "POST", "/v1/workers/x/retire", r#"{"for_good":true}"#),
        400,
        "bad-request",
        "number",
    );
}

/// S-10: nothing of the administration is done without the token, whatever the method.
#[test]
fn without_the_token_nothing_is_administered() {
    let (_directory, server) = start(&[("LEAF_OPS__TOKEN", "0123456789abcdef")]);
    let stock = "/v1/tags/leaf-segment-test";
    let confirmed = format!("{stock}?confirm=leaf-segment-test");
    for (method, path, body) in [
        ("POST", "/v1/tags", r#"{"tag":"x","step":5}"#),
        ("PATCH", stock, r#"{"step":7}"#),
        ("DELETE", &confirmed, ""),
        ("POST", &format!("{stock}/advance"), r#"{"at_least":"5000"}"#),
        ("POST", "/v1/workers/0/release", r#"{"holder_is_dead":true}"#),
        ("POST", "/v1/workers/0/retire", r#"{"for_good":true}"#),
        ("GET", "/v1/status", ""),
        ("GET", "/cache", ""),
        ("GET", "/db", ""),
    ] {
        assert_eq!(ops(&server, method, path, body).status, 401, "{method} {path}");
    }
    let token = format!("{JSON}Authorization: Bearer 0123456789abcdef\r\n");
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let tag = client.ask("GET", stock, &token, "").unwrap().json();
    assert_eq!((&tag["max_id"], &tag["step"]), (&json!("1"), &json!(2000)), "as it was");
    assert_eq!(client.ask("GET", "/v1/tags/x", &token, "").unwrap().status, 404);
}

/// S-12: what a store holds is text in a page, and a page is never anything else.
#[test]
fn a_tag_that_looks_like_a_script_is_shown_as_text() {
    let (_directory, server) = start(&[]);
    let evil = "<script>alert(1)</script>";
    let new = json!({ "tag": evil, "step": 5, "description": "<img src=x onerror=y>" });
    assert_eq!(ops(&server, "POST", "/v1/tags", &new.to_string()).status, 201);
    assert_eq!(server.get("/api/segment/get/%3Cscript%3Ealert(1)%3C%2Fscript%3E").body, "1");
    for page in ["/cache", "/db"] {
        let page = HttpClient::once(server.ops(), "GET", page);
        assert!(page.body.contains("&lt;script&gt;"), "{}", page.body);
        assert!(!page.body.contains("<script") && !page.body.contains("<img"), "{}", page.body);
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    }
}
