//! The page of metrics: its counts are exact and never fall, its names are those of the documents,
//! and a real Prometheus reads it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_testkit::{
    Certificates, HttpClient, LeafServer, MariaDb, Prometheus, RedisClient, Response, wait_until,
};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

/// What a request of HTTP must have.
const HOST: &str = "Host: localhost\r\n";

/// The series of a page, with their labels as they stand there.
type Series = BTreeMap<String, f64>;

fn start(args: &[&str], env: &[(&str, &str)]) -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let env: Vec<_> = env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    let server = LeafServer::start(SERVER, directory.path(), args, &env);
    (directory, server)
}

fn ops(server: &LeafServer, method: &str, path: &str, body: &str) -> Response {
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    client.ask(method, path, headers, body).unwrap()
}

fn scrape(server: &LeafServer) -> Series {
    let answer = HttpClient::once(server.ops(), "GET", "/metrics");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.header("content-type"), Some(kind));
    assert!(answer.body.ends_with("# EOF\n"));
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    let split = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    let series: Vec<(String, f64)> = lines.map(split).collect();
    let by_name: Series = series.iter().cloned().collect();
    assert_eq!(by_name.len(), series.len(), "a series is there twice");
    by_name
}

/// Whether a series may never fall.
fn is_count(series: &str) -> bool {
    let name = series.split('{').next().unwrap();
    ["_total", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end))
}

/// Compares a page with the one before.
fn expect_no_fall(before: &Series, after: &Series) {
    for (series, was) in before.iter().filter(|(series, _)| is_count(series)) {
        let is = after.get(series).unwrap_or_else(|| panic!("{series} is gone"));
        assert!(is >= was, "{series} fell from {was} to {is}");
    }
}

/// Does something at its end, also where that is a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn counts_are_exact_and_never_fall_while_segments_switch() {
    let (_directory, server) = start(&[], &[]);
    // A segment lasts for a moment.
    for (method, path, body) in [
        ("POST", "/v1/tags", r#"{"tag":"orders","step":7}"#),
        ("PATCH", "/v1/tags/orders", r#"{"max_step":7}"#),
        ("POST", "/v1/tags", r#"{"tag":"s","order":"strict"}"#),
    ] {
        let answer = ops(&server, method, path, body);
        assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
    }
    let ended = AtomicBool::new(false);
    let (ids, requests, commands, listed) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let add = |count: &AtomicU64, more: u64| _ = count.fetch_add(more, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _end = OnDrop(|| ended.store(true, Ordering::Relaxed));
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = HttpClient::connect(server.ids()).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    client
                        .pipeline("/api/segment/get/orders", 10, |answer| {
                            assert_eq!(answer.status, 200, "{}", answer.body);
                            add(&ids, 1);
                            add(&requests, 1);
                        })
                        .unwrap();
                    let lease = client.ask("POST", "/v1/segments/orders/lease?count=50", HOST, "");
                    let lease = lease.unwrap().json();
                    let text = |name: &str| lease[name].as_str().unwrap();
                    add(&ids, 50);
                    let (ticket, end) = (text("ticket"), text("end"));
                    let start = end.parse::<u64>().unwrap() - 40;
                    let unused = format!("ticket={ticket}&start={start}&end={end}");
                    let path = format!("/v1/segments/orders/return?{unused}");
                    assert_eq!(client.ask("POST", &path, HOST, "").unwrap().status, 200);
                }
            });
            scope.spawn(|| {
                let mut client = RedisClient::connect(server.redis()).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    let mut batch = RedisClient::encode(&["INCR", "orders"]).repeat(20);
                    batch.extend(RedisClient::encode(&["INCR", "s"]).repeat(3));
                    batch.extend(RedisClient::encode(&["SEGMENT", "orders", "COUNT", "30"]));
                    batch.extend(RedisClient::encode(&["INCR", "nobody"]));
                    client.send(&batch).unwrap();
                    for _ in 0..20 + 3 + 1 {
                        client.read().unwrap();
                    }
                    assert_eq!(client.read().unwrap().id(), None);
                    add(&ids, 20 + 30);
                    add(&commands, 20 + 3);
                    add(&listed, 1);
                }
            });
        }
        let mut before = scrape(&server);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            let after = scrape(&server);
            expect_no_fall(&before, &after);
            before = after;
        }
    });
    let page = scrape(&server);
    let ended = |protocol: &str, operation: &str, code: &str| {
        let labels = format!(r#"protocol="{protocol}",operation="{operation}",code="{code}""#);
        page[&format!("leaf_requests_total{{{labels}}}")]
    };
    let number = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    assert_eq!(page[r#"leaf_ids_issued_total{mode="segment",tag="orders"}"#], number(&ids));
    assert_eq!(ended("http", "next", "ok"), number(&requests));
    assert_eq!(ended("redis", "next", "ok"), number(&commands));
    assert_eq!(ended("redis", "take", "ok"), number(&listed));
    assert_eq!(ended("redis", "next", "unknown-tag"), number(&listed));
    assert_eq!(ended("http", "lease", "ok"), ended("http", "return", "ok"));
    let durations = r#"leaf_request_duration_seconds_count{protocol="http",operation="next"}"#;
    assert_eq!(page[durations], number(&requests));
    println!(
        "{} ids, {} requests, {} commands",
        number(&ids),
        number(&requests),
        number(&commands)
    );
}

#[test]
fn the_counts_of_tags_go_on_when_they_leave_memory_and_come_back() {
    let idle = [("LEAF_SEGMENT__IDLE", "1s"), ("LEAF_SEGMENT__REFRESH", "1s")];
    let (_directory, server) = start(&[], &idle);
    let tags = r#"leaf_segment_tags{store="sqlite:leaf.db"}"#;
    let issued = r#"leaf_ids_issued_total{mode="segment",tag="leaf-segment-test"}"#;
    let other = r#"leaf_ids_issued_total{mode="segment",tag="_other"}"#;
    for round in 1..=3 {
        for _ in 0..5 {
            let _ = server.id("/api/segment/get/leaf-segment-test");
        }
        assert_eq!(scrape(&server)[issued], f64::from(5 * round));
        wait_until("the tag leaves", Duration::from_secs(30), || {
            (scrape(&server)[tags] == 0.0).then_some(())
        });
        let page = scrape(&server);
        assert_eq!((page[issued], page[other]), (f64::from(5 * round), 0.0));
    }
    // One that comes while the named one is not in memory has a name of its own.
    let made = ops(&server, "POST", "/v1/tags", r#"{"tag":"second","step":10}"#);
    assert_eq!(made.status, 201, "{}", made.body);
    let _ = server.id("/api/segment/get/second");
    let page = scrape(&server);
    assert_eq!(page.get(r#"leaf_ids_issued_total{mode="segment",tag="second"}"#), Some(&1.0));
    assert_eq!(page[other], 0.0);
}

#[test]
fn a_name_of_a_tag_is_only_a_name() {
    let (_directory, server) = start(&[], &[]);
    let tag = r#"a"b\c{x="1"} 2"#;
    let body = serde_json::json!({ "tag": tag, "step": 10 }).to_string();
    assert_eq!(ops(&server, "POST", "/v1/tags", &body).status, 201);
    let encoded = percent_encoding::utf8_percent_encode(tag, percent_encoding::NON_ALPHANUMERIC);
    let _ = server.id(&format!("/api/segment/get/{encoded}"));
    let name = r#"leaf_ids_issued_total{mode="segment",tag="a\"b\\c{x=\"1\"} 2"}"#;
    assert_eq!(scrape(&server)[name], 1.0);
}

#[test]
fn operators_alone_see_it() {
    let token = "0123456789abcdef0123456789abcdef";
    let (_directory, server) = start(&[], &[("LEAF_OPS__TOKEN", token)]);
    let refused = HttpClient::once(server.ops(), "GET", "/metrics");
    assert_eq!((refused.status, refused.body.contains("leaf_")), (401, false));
    let shown = format!("{HOST}Authorization: Bearer {token}\r\n");
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let page = client.ask("GET", "/metrics", &shown, "").unwrap();
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(token));
}

/// A file of `docs/operations`.
fn document(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// The names of metrics in a text: words with a prefix of metrics. The series of a histogram count
/// under the histogram's name.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let begins = |word: &&str| word.starts_with("leaf_") || word.starts_with("process_");
    words.filter(begins).map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn the_names_are_those_of_the_documents_rules_and_dashboard() {
    let certificates = Certificates::make();
    let text = |path: &Path| path.display().to_string();
    let (certificate, key) = (text(&certificates.server()), text(&certificates.server_key()));
    let tokens = certificates.directory().join("tokens");
    std::fs::write(&tokens, "anonymous ids read\n").unwrap();
    let tokens = text(&tokens);
    let all = [
        ("LEAF_TOKENS_FILE", &*tokens),
        ("LEAF_OPS__TLS", "optional"),
        ("LEAF_TLS__CERTIFICATE", &*certificate),
        ("LEAF_TLS__KEY", &*key),
    ];
    let (_directory, server) = start(&[], &all);
    let _ = server.id("/api/segment/get/leaf-segment-test");
    let page = HttpClient::once(server.ops(), "GET", "/metrics").body;
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let scraped: BTreeSet<String> = types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, "gauge" | "histogram") => name.to_owned(),
            (name, kind) => panic!("{name} is a {kind}"),
        })
        .collect();
    assert!(scraped.len() > 30, "{scraped:?}");
    let mut documented = names(&document("metrics.md").1);
    documented.retain(|name| !matches!(&**name, "leaf_" | "leaf_debug_"));
    assert_eq!(documented, scraped);
    for name in ["leaf.rules.yml", "leaf.rules.test.yml", "dashboard.json", "alerts.md"] {
        let unknown: Vec<_> = names(&document(name).1).difference(&scraped).cloned().collect();
        assert_eq!(unknown, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn each_alert_has_a_case_and_a_page() {
    let (_, rules) = document("leaf.rules.yml");
    let (cases, test) = document("leaf.rules.test.yml");
    let (_, pages) = document("alerts.md");
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.split("alert: ").nth(1)).collect();
    assert!(alerts.len() > 15);
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n");
        assert!(test.contains(&fires), "{alert} has no case in which it fires");
        let link = format!("docs/operations/alerts.md#{}", alert.to_lowercase());
        assert!(rules.contains(&format!("runbook_url: {link}\n")), "{alert}");
        assert!(pages.contains(&format!("\n## {alert}\n")), "{alert} has no page");
    }
    Prometheus::test_rules(&cases);
}

/// The queries of the dashboard, for all clusters, instances and tags.
fn queries_of_the_dashboard() -> Vec<String> {
    fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(|it| it.as_str()).map(String::from));
                fields.values().for_each(|value| collect(value, found));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|it| collect(it, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&document("dashboard.json").1).unwrap(), &mut found);
    for query in &mut found {
        *query = query.replace("$__rate_interval", "5s");
        for variable in ["$cluster", "$instance", "$tag"] {
            *query = query.replace(variable, ".*");
        }
        assert!(!query.contains('$'), "{query}");
    }
    found
}

#[test]
fn a_real_prometheus_scrapes_two_nodes_and_an_alert_fires_when_the_store_stops() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    let registry = [("LEAF_SNOWFLAKE__REGISTRY", url.clone())];
    let args = ["schema", "--apply", "--segment-store", &url];
    let mut schema = LeafServer::process(SERVER, &std::env::temp_dir(), &args, &registry);
    assert!(schema.wait(Duration::from_secs(30)).success(), "{}", schema.output());
    LeafServer::make_sample(&url);
    let (mut servers, nodes) = (Vec::new(), 2);
    for name in ["one:1", "two:1"] {
        let env = [("LEAF_SNOWFLAKE__REGISTRY", &*url), ("LEAF_ADVERTISE", name)];
        servers.push(start(&["--segment-store", &url], &env));
    }
    let addresses: Vec<_> = servers.iter().map(|(_, server)| server.ops()).collect();
    let soon = document("leaf.rules.yml").1.replace("for: 30s", "for: 2s");
    let prometheus = Prometheus::start(&addresses, &soon);
    let wait = |what: &str, query: &str, count: usize| {
        wait_until(what, Duration::from_secs(60), || {
            for (_, server) in &servers {
                let _ = server.get("/api/segment/get/leaf-segment-test");
                let _ = server.get("/api/snowflake/get/x");
                let _ = server.get("/api/segment/get/nobody");
            }
            let found = prometheus.query(query);
            (found.len() == count).then_some(found)
        })
    };
    wait("both nodes", "leaf_health{state='ready'} == 1", nodes);
    wait("ids", "rate(leaf_ids_issued_total{mode='snowflake'}[10s]) > 0", nodes);
    let twice = "count by (cluster, registry, worker) (leaf_worker_info)";
    let workers = wait("two worker ids", twice, nodes);
    assert!(workers.iter().all(|(_, nodes)| *nodes == 1.0), "{workers:?}");
    let queries = queries_of_the_dashboard();
    assert!(queries.len() > 25);
    let empty: Vec<_> = queries.iter().filter(|query| prometheus.query(query).is_empty()).collect();
    // What is not there while all is well, or while each node has a registry of its own.
    let of_trouble = [
        "leaf_health_reason",
        "leaf_clock_steps_total",
        "went_back",
        "gone_back",
        "leaf_peer_clock_offset_seconds",
    ];
    let in_trouble = |query: &str| of_trouble.iter().any(|name| query.contains(name));
    assert!(empty.iter().all(|query| in_trouble(query)), "{empty:#?}");
    assert_eq!(prometheus.query("ALERTS{alertname!='LeafRefuses'}"), []);
    database.crash();
    let alert = "ALERTS{alertname='LeafStoreAway', alertstate='firing', job='leaf'}";
    let told = wait("the alert", alert, nodes);
    let stores = told.iter().map(|(labels, _)| labels["store"].to_string());
    assert!(stores.into_iter().all(|store| store.contains("leaf:***@127.0.0.1")), "{told:?}");
}
