//! The dashboard in a real browser: Debian's chromium, driven by playwright-core.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaf_testkit::{HttpClient, LeafServer, MariaDb, Response, free_port, require, wait_until};
use serde_json::{Map, Value};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";
const TOKEN: &str = "an-operators-token-0123456789abcdef";

/// A browser, which ends with this.
struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Browser {
    fn start() -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = own.join("../target/dashboard/browse.mjs");
        assert!(script.exists(), "scripts/test prepares it, by scripts/dashboard-browser");
        let mut process = Command::new("timeout")
            .args(["200", "node"])
            .arg(script)
            .env("CHROMIUM", require("chromium", "chromium"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Carries out an order, which must succeed, and returns how long it took.
    #[track_caller]
    fn told(&mut self, order: &str) -> Duration {
        match self.tried(order).strip_prefix("ok ") {
            Some(took) => Duration::from_millis(took.trim().parse().unwrap()),
            None => panic!("{order}: failed"),
        }
    }

    /// Carries out an order, and returns the driver's answer.
    #[track_caller]
    fn tried(&mut self, order: &str) -> String {
        writeln!(self.input, "{order}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if !line.starts_with("ok ") {
            eprintln!("{line}");
        }
        line
    }

    #[track_caller]
    fn all(&mut self, orders: &str) {
        for order in orders.lines().map(str::trim).filter(|order| !order.is_empty()) {
            self.told(order);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request with a token, and a body or a version if need be.
fn ask(at: SocketAddr, method: &str, path: &str, more: &str, body: &str) -> Response {
    let mut client = HttpClient::connect(at).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {TOKEN}\r\n{more}"
    );
    let json = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    client.send(&(head + &json)).unwrap();
    client.read().unwrap()
}

/// Runs `work` while ids are asked for.
fn under_load<T>(server: &LeafServer, work: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = HttpClient::connect(server.ids()).unwrap();
            while !ends.load(Ordering::Relaxed) {
                for path in [format!("/api/segment/get/{TAG}"), "/api/snowflake/get/x".into()] {
                    let _ = client.request("GET", &path);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        ends.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn operators_see_and_change_a_node_in_a_browser() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let directory = tempfile::tempdir().unwrap();
    // Two nodes of one registry; the second one is looked at.
    let registry = format!("sqlite:{}", directory.path().join("workers.db").display());
    let node = |name: &str| {
        let port = free_port();
        let env = [
            ("LEAF_SEGMENT__STORE", url.clone()),
            ("LEAF_OPS__TOKEN", TOKEN.to_owned()),
            ("LEAF_SNOWFLAKE__REGISTRY", registry.clone()),
            ("LEAF_HTTP__LISTEN", format!("127.0.0.1:{port}")),
            ("LEAF_ADVERTISE", format!("127.0.0.1:{port}")),
        ];
        LeafServer::start(SERVER, &directory.path().join(name), &[], &env)
    };
    let mut peer = node("other");
    let server = node("node");
    let mut browser = Browser::start();
    under_load(&server, || {
        browser.told(&format!("open http://{}/", server.ops()));
        // Whoever shows no token, or a wrong one, sees nothing.
        browser.told("wait 10000 Token");
        browser.all("token wrong\nwait 10000 not known here\ngone 100 Ready");
        browser.all(&format!("token {TOKEN}\nwait 10000 Ready\nwait 3000 {TAG}"));
        // Values move under load.
        browser.all(
            "number 20000 Segment_ids/s 10
             number 20000 Snowflake_ids/s 10
             moves 10000 #rows tr td:nth-child(6)
             wait 3000 Worker id",
        );
        browser.told("wait 15000 1 ready");
        // A tag is made by the form, which shows what its ids will look like.
        browser.all(
            "press New tag
             fill Name invoices
             fill Template INV-{n:05}{luhn}
             wait 5000 INV-000018
             press Create
             wait 5000 slot 0: empty
             wait 5000 Change the step
             press Close",
        );
        // One that another node made is found in the store; this node does not have it in memory.
        let made = ask(peer.ops(), "POST", "/v1/tags", "", r#"{"tag":"elsewhere","step":9}"#);
        assert_eq!(made.status, 201, "{}", made.body);
        browser.all(
            "fill Find elsewhere
             press Look in the store
             wait 5000 Not in use on this node
             wait 5000 Change the step
             press Close
             fill Find",
        );
        let made = ask(server.ops(), "GET", "/v1/tags/invoices", "", "").json();
        assert_eq!((&made["step"], &made["text"]), (&1000.into(), &"INV-{n:05}{luhn}".into()));
        // Its step is changed, unless somebody else was faster.
        browser.all(&format!("press {TAG}\nwait 5000 Step, of the record\npress Change the step"));
        let other = ask(server.ops(), "PATCH", &format!("/v1/tags/{TAG}"), "", r#"{"step":3000}"#);
        assert_eq!(other.status, 200, "{}", other.body);
        browser.all(
            "fill Ids_in_a_fetch 4000
             press Change
             wait 5000 somebody else has changed the tag
             press Close",
        );
        browser.all(&format!(
            "press {TAG}
             wait 5000 Change the step
             press Change the step
             fill Ids_in_a_fetch 4000
             press Change
             shut 5000"
        ));
        let changed = ask(server.ops(), "GET", &format!("/v1/tags/{TAG}"), "", "").json();
        assert_eq!(changed["step"], 4000);
        // Names that mean something in JavaScript are names.
        let made = ask(server.ops(), "POST", "/v1/tags", "", r#"{"tag":"__proto__","step":9}"#);
        assert_eq!(made.status, 201, "{}", made.body);
        let _ = server.id("/api/segment/get/__proto__");
        browser.all("wait 5000 __proto__\npress __proto__\nwait 5000 Change the step\npress Close");
        // Enter does what the dialog is for.
        browser.all(&format!(
            "press {TAG}
             wait 5000 Change the step
             press Change the step
             fill Ids_in_a_fetch 4500
             key Enter
             shut 5000"
        ));
        let changed = ask(server.ops(), "GET", &format!("/v1/tags/{TAG}"), "", "").json();
        assert_eq!(changed["step"], 4500);
        // Cut and allowed.
        let id = format!("/api/segment/get/{TAG}");
        for (act, status) in [("Cut", 403), ("Take the cut away", 200)] {
            browser.all(&format!("press {TAG}\nwait 5000 {act}\npress {act}"));
            browser.told(if act == "Cut" { "press Cut" } else { "press Allow" });
            browser.told("shut 5000");
            wait_until(act, Duration::from_secs(10), || {
                (server.get(&id).status == status).then_some(())
            });
            let word = if status == 403 { "mark" } else { "no mark" };
            browser.told(&format!("{word} 5000 {TAG} cut"));
        }
        // Drained and taken back.
        browser.all("press Drain\npress Drain\nshut 5000\nwait 5000 drained by an operator\npress Take back\npress Take back\nshut 5000\nwait 5000 Ready");
        // An id is taken apart.
        let flake = server.id("/api/snowflake/get/x");
        browser.all(&format!("fill Id {flake}\npress Take apart\nwait 5000 sequence"));
        // Everybody can use it, at any width, and nothing is loaded from elsewhere.
        browser.all("axe light\naxe dark\nwidth 360\nwidth 1280\nerrors");
        if let Some(directory) = std::env::var_os("LEAF_DASHBOARD_PICTURES") {
            let file = |name: &str| Path::new(&directory).join(name).display().to_string();
            browser.told(&format!("picture {} light", file("dashboard-light.png")));
            browser.told(&format!("picture {} dark", file("dashboard-dark.png")));
            browser.told("width 360");
            browser.told(&format!("picture {} light", file("dashboard-phone.png")));
            browser.told("width 1280");
        }
        // Another node that is gone is told.
        peer.kill();
        browser.told("wait 20000 1 no answer");
        // A store that stops is told, with why.
        database.crash();
        let took = browser.told("health 10000 segment store");
        println!("the outage shows after {took:?}");
        database.restart();
        browser.told("health 30000 Ready");
        browser.told("errors");
    });
    // So is a node that is gone.
    let mut server = server;
    server.kill();
    browser.told("wait 10000 No news since");
    assert!(browser.tried("wait 100 nothing of the kind").starts_with("failed"));
}

/// The dashboard shows a thousand tags in use, each with new ids every second, and finds them. The
/// longest time that the page is busy is measured, not asserted.
#[test]
fn a_thousand_tags_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(SERVER, directory.path(), &[], &[("LEAF_OPS__TOKEN", TOKEN.into())]);
    for number in 0..1000 {
        let body = format!(r#"{{"tag":"tag-{number:04}","step":1000}}"#);
        assert_eq!(ask(server.ops(), "POST", "/v1/tags", "", &body).status, 201);
    }
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = HttpClient::connect(server.ids()).unwrap();
            for number in (0..1000).cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                client.request("GET", &format!("/api/segment/get/tag-{number:04}")).unwrap();
                if number % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        let done = std::panic::catch_unwind(|| {
            let mut browser = Browser::start();
            browser.told(&format!("open http://{}/", server.ops()));
            browser.all(&format!("wait 10000 Token\ntoken {TOKEN}\nrows 20000 1000"));
            let longest = browser.told("work 8000");
            println!("with 1,000 tags the page is at work for {longest:?} at a time, at most");
            browser.all("fill Find tag-09\nrows 5000 100\nerrors");
        });
        ends.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Merges a changed line of the stream into the state.
fn merge(state: &mut Map<String, Value>, changed: Map<String, Value>) {
    for (key, value) in changed {
        match (state.get_mut(&key), value) {
            (_, Value::Null) => drop(state.remove(&key)),
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => drop(state.insert(key, value)),
        }
    }
}

#[test]
fn the_stream_begins_with_all_and_goes_on_with_what_changes() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(SERVER, directory.path(), &[], &[("LEAF_OPS__TOKEN", TOKEN.into())]);
    let host = server.ops();
    let open = || {
        let mut client = HttpClient::connect(host).unwrap();
        client
            .send(&format!(
                "GET /v1/live HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            ))
            .unwrap();
        let mut stream = client.into_stream();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        move |lines: usize| {
            let (mut text, mut buffer) = (String::new(), [0; 65536]);
            // A chunk is a line.
            while text.matches("\"all\":").count() < lines || !text.ends_with("\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "the stream has ended: {text}");
                text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            }
            let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
            text.lines().filter(|line| line.starts_with('{')).map(parse).collect::<Vec<_>>()
        }
    };
    let mut read = open();
    let lines = read(1);
    assert_eq!(lines[0]["all"], true);
    let mut state = lines[0]["state"].as_object().unwrap().clone();
    assert_eq!(state["tags"], Value::Object(Map::new()));
    let first = server.id(&format!("/api/segment/get/{TAG}"));
    let mut later = Vec::new();
    wait_until("the tag is in use", Duration::from_secs(10), || {
        later.extend(read(1));
        later.iter().any(|line| !line["state"]["tags"].is_null()).then_some(())
    });
    assert!(later.iter().all(|line| line["all"] == false));
    let idle = read(2).pop().unwrap();
    let tag = &idle["state"]["tags"][TAG];
    // Its rate falls, and nothing else.
    assert!(idle["state"]["now"].is_u64() && tag["position"].is_null(), "{idle}");
    for line in later {
        merge(&mut state, line["state"].as_object().unwrap().clone());
    }
    let tag = &state["tags"][TAG];
    assert_eq!(tag["position"], (first + 1).to_string());
    assert_eq!((&tag["order"], &tag["shape"]), (&"relaxed".into(), &"plain".into()));
    // Longer than an idle connection lives, and as many viewers as there may be.
    let more: Vec<_> = (0..15).map(|_| open()).collect();
    read(14);
    for mut other in more {
        assert_eq!(other(1)[0]["all"], true);
    }
    assert_eq!(read(1)[0]["all"], false);
    // A stop does not wait for viewers.
    let begun = Instant::now();
    let mut server = server;
    assert!(server.stop().success());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "the stop took {took:?}");
}

#[test]
fn viewers_are_few_and_files_hold_nothing_of_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(SERVER, directory.path(), &[], &[("LEAF_OPS__TOKEN", TOKEN.into())]);
    let live = format!(
        "GET /v1/live HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        server.ops()
    );
    let mut viewers: Vec<_> = (0..16)
        .map(|_| {
            let mut client = HttpClient::connect(server.ops()).unwrap();
            client.send(&live).unwrap();
            let mut stream = client.into_stream();
            assert_eq!(stream.read(&mut [0; 12]).unwrap(), 12, "it watches");
            stream
        })
        .collect();
    let refused = ask(server.ops(), "GET", "/v1/live", "", "");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("16 viewers watch already"), "{}", refused.body);
    // Those that leave make room, and health is there all the time.
    viewers.clear();
    wait_until("a place is free", Duration::from_secs(15), || {
        let mut client = HttpClient::connect(server.ops()).unwrap();
        client.send(&live).unwrap();
        let (mut stream, mut status) = (client.into_stream(), [0; 12]);
        stream.read_exact(&mut status).unwrap();
        status.ends_with(b"200").then_some(())
    });
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 200);
    assert_eq!(HttpClient::once(server.ops(), "GET", "/v1/live").status, 401);

    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/uplot.js", "text/javascript; charset=utf-8"),
        ("/ui/uplot.css", "text/css; charset=utf-8"),
    ] {
        let reply = HttpClient::once(server.ops(), "GET", path);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert!(!reply.body.contains(TAG), "{path}");
    }
    // No address of the page leads away from where it is.
    let page = HttpClient::once(server.ops(), "GET", "/").body;
    let links = ["href=\"", "src=\""].map(|name| page.split(name).skip(1).collect::<Vec<_>>());
    assert!(links.concat().len() > 4);
    for link in links.concat() {
        assert!(["ui/", "#", "data:"].iter().any(|start| link.starts_with(start)), "{link}");
    }
}

#[test]
fn a_change_is_made_of_what_was_seen_alone() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        LeafServer::start(SERVER, directory.path(), &[], &[("LEAF_OPS__TOKEN", TOKEN.into())]);
    let path = format!("/v1/tags/{TAG}");
    let seen = ask(server.ops(), "GET", &path, "", "");
    let version = seen.header("etag").unwrap().to_owned();
    let expecting = |version: &str| format!("If-Match: {version}\r\n");
    // Ids that are handed out change no version.
    assert_eq!(server.id(&format!("/api/segment/get/{TAG}")), 1);
    assert_eq!(ask(server.ops(), "GET", &path, "", "").header("etag"), Some(&*version));
    let changed = ask(server.ops(), "PATCH", &path, &expecting(&version), r#"{"step":500}"#);
    assert_eq!(changed.status, 200, "{}", changed.body);
    let newer = changed.header("etag").unwrap().to_owned();
    assert_ne!(newer, version);
    let stale = ask(server.ops(), "PATCH", &path, &expecting(&version), r#"{"step":700}"#);
    assert_eq!(stale.status, 412, "{}", stale.body);
    assert_eq!(stale.json()["type"], "urn:leaf:problem:stale");
    let list = format!("If-Match: {version}, {newer}\r\n");
    for more in [expecting(&newer), list, expecting("*"), String::new()] {
        let changed = ask(server.ops(), "PATCH", &path, &more, r#"{"enabled":true}"#);
        assert_eq!(changed.status, 200, "{more}: {}", changed.body);
    }
    // A proxy that compresses makes it a weak one; and only a change of settings goes by one.
    let weak = format!("If-Match: W/{newer}\r\n");
    assert_eq!(ask(server.ops(), "PATCH", &path, &weak, r#"{"enabled":true}"#).status, 200);
    let gone =
        ask(server.ops(), "DELETE", &format!("{path}?confirm={TAG}"), &expecting(&newer), "");
    assert_eq!(gone.status, 400, "{}", gone.body);
    let wrong = ask(server.ops(), "PATCH", &path, &expecting("0"), r#"{"step":700}"#);
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert_eq!(ask(server.ops(), "GET", &path, "", "").json()["step"], 500);

    // Of several at the same time one is made.
    for round in 0..5 {
        let seen = ask(server.ops(), "GET", &path, "", "");
        let expected = expecting(seen.header("etag").unwrap());
        let made: usize = std::thread::scope(|scope| {
            let change = |step: u32| {
                let body = format!("{{\"step\":{step}}}");
                let status = ask(server.ops(), "PATCH", &path, &expected, &body).status;
                assert!([200, 412].contains(&status), "{status}");
                usize::from(status == 200)
            };
            let steps: Vec<_> =
                (0..4).map(|at| scope.spawn(move || change(1000 + 10 * round + at))).collect();
            steps.into_iter().map(|step| step.join().unwrap()).sum()
        });
        assert_eq!(made, 1, "in round {round}");
    }

    // A sample makes nothing, and leaves no line in the audit log.
    let spec = r#"{"tag":"orders","step":10,"first":"41","text":"O-{n:04}"}"#;
    let sample = ask(server.ops(), "POST", "/v1/sample", "", spec);
    assert_eq!(sample.status, 200, "{}", sample.body);
    let sample = sample.json();
    assert_eq!(sample["first_ids"], serde_json::json!(["41", "42", "43"]));
    assert_eq!(sample["first_texts"], serde_json::json!(["O-0041", "O-0042", "O-0043"]));
    assert_eq!(ask(server.ops(), "GET", "/v1/tags/orders", "", "").status, 404);
    let member =
        ask(server.ops(), "POST", "/v1/sample", "", r#"{"tag":"a/*","family":true,"step":5}"#);
    assert_eq!(member.json()["first_ids"], serde_json::json!(["1", "2", "3"]));
    let refused = ask(server.ops(), "POST", "/v1/sample", "", r#"{"tag":"orders"}"#);
    assert_eq!(refused.status, 400, "{}", refused.body);
    let audit = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    assert!(!audit.contains("sample") && audit.contains("\"status\":412"), "{audit}");

    // A cut names its rule.
    let cut = format!("{path}/cut");
    let told = |reply: Response| reply.json();
    assert_eq!(
        told(ask(server.ops(), "PUT", &cut, "", "")),
        serde_json::json!({"cut":true,"by":TAG})
    );
    assert_eq!(
        told(ask(server.ops(), "DELETE", &cut, "", "")),
        serde_json::json!({"cut":false,"by":null})
    );

    // A name that is none of a rule is refused: it would end all rules.
    assert_eq!(ask(server.ops(), "POST", "/v1/tags", "", r#"{"tag":"x *","step":5}"#).status, 201);
    assert_eq!(ask(server.ops(), "PUT", "/v1/tags/x%20*/cut", "", "").status, 400);

    // A cut of a tag that there is not is a typing error.
    assert_eq!(ask(server.ops(), "PUT", "/v1/tags/nope/cut", "", "").status, 404);
}
