//! The ops listener: administration, and who may use it.

use leaf_testkit::{HttpClient, LeafServer};
use serde_json::json;

use crate::{JSON, SERVER, ops, problem, start};

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
        "time_zone": null, "max_id": "100", "sealed": false, "step": 10, "enabled": true, "min_step": null, "max_step": null,
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
    // A dry run answers as if it had been done.
    let dry = |method: &str, more: &str, body: &str| {
        ops(&server, method, &format!("{path}{more}?dry_run=true"), body).json()
    };
    assert_eq!(dry("PATCH", "", r#"{"step":21}"#)["step"], 21);
    assert_eq!(dry("POST", "/advance", r#"{"at_least":5000}"#)["max_id"], "5000");
    assert!(dry("DELETE", "", "")["next_first"].is_string());
    assert_eq!(ops(&server, "GET", path, "").json()["step"], 20);
    let raised = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":5000}"#).json();
    assert_eq!((&raised["max_id"], &raised["raised"]), (&json!("5000"), &json!(true)));
    let lower = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":"4000"}"#).json();
    assert_eq!((&lower["max_id"], &lower["raised"]), (&json!("5001"), &json!(false)));
    let far = ops(&server, "POST", &format!("{path}/advance"), r#"{"at_least":"2000000000000"}"#);
    problem(&far, 409, "unconfirmed", "lost for ever");

    let disabled = ops(&server, "PATCH", path, r#"{"enabled":false}"#).json();
    assert_eq!(disabled["enabled"], false);
    let off = server.get("/v1/segments/a%2Fb%20%E8%AE%A2/ids");
    problem(&off, 404, "disabled", "disabled");

    problem(&ops(&server, "DELETE", path, ""), 409, "unconfirmed", "?confirm=a%2Fb%20%E8%AE%A2");
    problem(
        &ops(&server, "DELETE", &format!("{path}?confirm=other"), ""),
        409,
        "unconfirmed",
        "must start where",
    );
    let gone = ops(&server, "DELETE", &format!("{path}?confirm=a%2Fb%20%E8%AE%A2"), "").json();
    let number = |value: &serde_json::Value| value.as_str().unwrap().parse::<i64>().unwrap();
    let granted = number(&gone["deleted"]["max_id"]);
    assert!(granted >= 5000, "{gone}");
    assert_eq!([number(&gone["next_first"]), number(&gone["ids_below"])], [granted; 2]);
    problem(&ops(&server, "GET", path, ""), 404, "unknown-tag", "no such tag");
}

/// A store may have millions of tags: whoever lists them gets a part at a time.
#[test]
fn tags_are_listed_a_part_at_a_time() {
    let (_directory, server) = start(&[]);
    for number in 0..5 {
        let strict = if number % 2 == 0 { r#","order":"strict""# } else { r#","step":10"# };
        let body = format!(r#"{{"tag":"<tag> {number}"{strict}}}"#);
        assert_eq!(ops(&server, "POST", "/v1/tags", &body).status, 201);
        assert!(server.id(&format!("/api/segment/get/%3Ctag%3E%20{number}")) > 0);
    }
    let accept = "Host: localhost\r\nAccept: application/json\r\n";
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let mut get = |path: &str| client.ask("GET", path, accept, "").unwrap();

    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let part = get(&format!("/v1/tags?limit=2&after={after}")).json();
        let tags = part["tags"].as_array().unwrap();
        assert!(tags.len() <= 2);
        names.extend(tags.iter().map(|tag| tag["tag"].as_str().unwrap().to_owned()));
        let Some(next) = part["next"].as_str() else { break };
        after =
            next.replace(':', "%3A").replace('<', "%3C").replace('>', "%3E").replace(' ', "%20");
    }
    names.sort();
    let all = ["<tag> 0", "<tag> 1", "<tag> 2", "<tag> 3", "<tag> 4", "leaf-segment-test"];
    assert_eq!(names, all);

    // The pages of Java name the next part in a header, and as a link.
    for (page, column, all) in [("/db", "tag", &all[..]), ("/cache", "name", &all[..5])] {
        let (mut names, mut query) = (Vec::new(), "?limit=2".to_owned());
        loop {
            let part = get(&format!("{page}{query}"));
            let rows = part.json();
            names.extend(rows.as_array().unwrap().iter().map(|row| row[column].to_string()));
            let link = part.headers.iter().find(|(name, _)| name == "link");
            let Some((_, link)) = link else { break };
            query = link.strip_prefix('<').unwrap().split('>').next().unwrap().to_owned();
            let html = HttpClient::once(server.ops(), "GET", &format!("{page}?limit=2")).body;
            assert!(html.contains("<a href=\"?after="), "{html}");
        }
        names.sort();
        let all: Vec<String> = all.iter().map(|name| format!("{name:?}")).collect();
        assert_eq!(names, all, "{page}");
    }
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
        ("POST", "/v1/tags", r#"{"tag":"x","step":1.5}"#, 400, "expected i64"),
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
        ("DELETE", &format!("{stock}?yes=1"), "", 400, "there are `confirm` and `dry_run`"),
        ("DELETE", &format!("{stock}?dry_run=1"), "", 400, "true or false"),
        ("PATCH", &format!("{stock}?confirm=x"), r#"{"step":5}"#, 400, "only a deletion"),
        ("GET", &format!("{stock}?dry_run=true"), "", 400, "takes no parameters"),
        ("PUT", &format!("{stock}/cut?dry_run=true"), "", 200, "\"cut\":true"),
        ("POST", "/v1/tags?dry_run=true", r#"{"tag":"dry","step":1}"#, 200, "dry"),
        ("POST", "/v1/clock/accept?dry_run=true", "{}", 400, "takes no parameters"),
        ("GET", "/v1/tags?x=1", "", 400, "there are `after`, `limit` and `family`"),
        ("GET", "/v1/tags?limit=0", "", 400, "limit: give 1 to 1000"),
        ("GET", "/v1/tags?limit=1001", "", 400, "limit: give 1 to 1000"),
        ("GET", "/db?after=orders", "", 400, "after: give the place that the page before named"),
        ("GET", "/v1/status?limit=1", "", 400, "takes no parameters"),
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
    let shared = tempfile::tempdir().unwrap();
    let workers = format!("sqlite:{}", shared.path().join("workers.db").display());
    let registry = [
        ("LEAF_SNOWFLAKE__REGISTRY", workers.as_str()),
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
    let mut env = env;
    env[1].1 = "10.0.0.8:8080".to_owned();
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

/// What an operator says of the clock; `leaf-cli/tests/servers` shows that ids follow it.
#[test]
fn a_clock_is_accepted_by_who_is_sure_of_it() {
    let (_directory, server) = start(&[]);
    let accept = |sure: &str| ops(&server, "POST", "/v1/clock/accept", sure);
    problem(&accept(r#"{"clock_is_right":false}"#), 409, "unconfirmed", "ids never go back");
    problem(&accept("{}"), 400, "bad-request", "clock_is_right");
    let answer = accept(r#"{"clock_is_right":true}"#).json();
    assert!(answer["behind_ms"].as_i64().unwrap().abs() < 100, "{answer}");
    let (_directory, without) = start(&[("LEAF_SNOWFLAKE__ENABLED", "false")]);
    problem(
        &ops(&without, "POST", "/v1/clock/accept", r#"{"clock_is_right":true}"#),
        404,
        "mode-disabled",
        "snowflake",
    );
}

/// S-10: without the token no change is made, whatever the method.
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
        ("POST", "/v1/clock/accept", r#"{"clock_is_right":true}"#),
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

/// S-12: what a store holds appears in a page as text only, and a page is never served as another
/// type.
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

/// A caller that could not follow the redirect gets the pages' address instead.
#[test]
fn the_pages_of_java_are_named_where_the_asker_cannot_reach_them() {
    let (_directory, server) = start(&[]);
    let ask = |headers: &str| {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        client.ask("GET", "/cache", headers, "").unwrap()
    };
    for host in ["localhost", "127.0.0.1:8080", "[::1]:8080"] {
        assert_eq!(ask(&format!("Host: {host}\r\n")).status, 307, "{host}");
    }
    for headers in ["Host: leaf.example\r\n", "Host: localhost\r\nX-Forwarded-For: 10.0.0.7\r\n"] {
        let told = ask(headers);
        assert_eq!(told.status, 404, "{headers}");
        assert!(told.body.contains(&server.ops().to_string()), "{}", told.body);
    }
}
