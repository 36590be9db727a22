//! `leaf bench`: against real servers, and against a fake one that repeats ids or answers late.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and the server that they make stalls"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use leaf_testkit::{Certificates, LeafServer, Process};
use serde_json::Value;
use support::{Ran, leaf_with};

const TAG: &str = "leaf-segment-test";

fn bench(args: &[&str], env: &[(&str, &str)]) -> Ran {
    let home = tempfile::tempdir().unwrap();
    leaf_with(home.path(), &[&["bench"], args].concat(), env)
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Starts a server of the Redis protocol. `next` returns the id of each reply, and may sleep first.
fn server(next: impl Fn() -> u64 + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let next = Arc::new(next);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, next) = (stream.unwrap(), Arc::clone(&next));
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                // One request at a time, in one piece.
                while stream.read(&mut request).is_ok_and(|length| length > 0) {
                    if stream.write_all(format!(":{}\r\n", next()).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_repeats_one_id_in_many_is_found_out() {
    let full = std::env::var_os("LEAF_TEST_FULL").is_some();
    let (one_in, seconds) = if full { (1_000_000, 60) } else { (20_000, 5) };
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let address = server(move || match count.fetch_add(1, Ordering::SeqCst) {
        // The id before it, once more.
        n if n % one_in == one_in - 1 => n - 1,
        n => n,
    });
    let url = format!("redis://{address}");
    let ran = bench(&[&url, "k", "-o", "json", "--duration", &format!("{seconds}s")], &[]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.error.contains("came twice"), "{ran:?}");
    let (report, asked) = (json(&ran), asked.load(Ordering::SeqCst));
    assert_eq!(report["compared"], asked, "every answer is compared");
    assert!(asked > one_in, "{asked}");
    assert_eq!(report["repeated"], asked / one_in);
    assert_eq!(report["examples"][0], (one_in - 2).to_string());
}

#[test]
fn a_stall_makes_late_what_was_due_in_it() {
    let first = OnceLock::new();
    let address = server(move || {
        let begun = first.get_or_init(Instant::now);
        let at = begun.elapsed();
        if (1.0..2.0).contains(&at.as_secs_f64()) {
            std::thread::sleep(Duration::from_secs(2) - at);
        }
        u64::try_from(begun.elapsed().as_nanos()).unwrap()
    });
    let url = format!("redis://{address}");
    let args =
        [&url, "k", "-o", "json", "--duration", "2500ms", "--rate", "400", "--connections", "2"];
    let report = json(&bench(&args, &[]));
    let times = |which: &str, part: &str| report[which][part].as_f64().unwrap();
    assert!(times("response_ms", "p90") > 300.0, "{report}");
    assert!(
        times("service_ms", "p90") < 100.0,
        "two requests were slow, the others late: {report}"
    );
    assert!(times("service_ms", "max") > 500.0, "{report}");
    assert_eq!(report["failures"], serde_json::json!([]));
    let count = report["answered"].as_u64().unwrap() + report["unsent"].as_u64().unwrap();
    assert!((950..=1000).contains(&count), "every request that was due is counted: {report}");
}

#[test]
fn a_ramp_ends_at_what_the_server_can_do() {
    // 4 connections, 2 ms each: 2,000 a second.
    let count = AtomicU64::new(0);
    let address = server(move || {
        std::thread::sleep(Duration::from_millis(2));
        count.fetch_add(1, Ordering::SeqCst)
    });
    let url = format!("redis://{address}");
    let args = [&url, "k", "-o", "json", "--ramp", "--duration", "700ms", "--connections", "4"];
    let ran = bench(&args, &[]);
    let report = json(&ran);
    let rate = report["rate"].as_u64().unwrap();
    assert!((1..2500).contains(&rate), "{report}");
    // On a busy machine few rates are answered within 10 ms, or none.
    let steps = report["steps"].as_array().unwrap();
    let of = |step: &Value| step["rate"].as_u64().unwrap();
    let holding: Vec<u64> = steps.iter().filter(|step| step["holds"] == true).map(of).collect();
    let best = holding.iter().max().copied();
    assert_eq!(rate, best.unwrap_or_else(|| of(steps.last().unwrap())), "{report}");
    assert!(steps.len() > 3 && ran.error.contains("too many"), "{ran:?}");
}

#[test]
fn ids_of_real_servers_in_each_protocol() {
    let certificates = Certificates::make();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
    let home = tempfile::tempdir().unwrap();
    let env = [
        ("LEAF_TLS__CERTIFICATE", text(&certificates.server())),
        ("LEAF_TLS__KEY", text(&certificates.server_key())),
        ("LEAF_GRPC__LISTEN", "127.0.0.1:0".into()),
        ("LEAF_HTTP__TLS", "optional".into()),
        ("LEAF_REDIS__TLS", "optional".into()),
        ("LEAF_GRPC__TLS", "optional".into()),
        ("LEAF_REDIS__PASSWORD", "canary-0123456789abcdef".into()),
    ];
    let server = LeafServer::start(program.to_str().unwrap(), home.path(), &[], &env);
    let authority = text(&certificates.authority());
    let page = home.path().join("report.html");
    let mut ids = 0;
    for (scheme, address, of) in [
        ("http", server.ids(), TAG),
        ("http", server.ids(), "--snowflake"),
        ("https", server.ids(), TAG),
        ("redis", server.redis(), TAG),
        ("rediss", server.redis(), "--snowflake"),
        ("grpc", server.grpc(), TAG),
        ("grpc", server.grpc(), "--snowflake"),
    ] {
        let url = format!("{scheme}://{address}");
        let args = [
            &url,
            of,
            "-o",
            "json",
            "--rate",
            "500",
            "--connections",
            "5",
            "--duration",
            "1s",
            "--html",
            page.to_str().unwrap(),
        ];
        let env = [("SSL_CERT_FILE", &*authority), ("LEAF_TOKEN", "canary-0123456789abcdef")];
        // Nobody asks for it over HTTP and gRPC, where it is a token of nobody.
        let env = if scheme.starts_with("redis") { &env[..] } else { &env[..1] };
        let ran = bench(&args, env);
        let report = json(&ran);
        assert_eq!(ran.code, 0, "{url}: {ran:?}");
        assert_eq!(report["failures"], serde_json::json!([]), "{url}");
        let answered = report["answered"].as_u64().unwrap();
        let due = answered + report["unsent"].as_u64().unwrap();
        assert!((490..=500).contains(&due), "{url}: {report}");
        assert_eq!(report["compared"], answered);
        assert!(report["response_ms"]["p50"].as_f64() >= report["service_ms"]["p50"].as_f64());
        if of == TAG {
            ids += answered;
        }
        assert!(!ran.out.contains("canary") && !ran.error.contains("canary"));
    }
    let next = server.id("/api/segment/get/leaf-segment-test");
    assert_eq!(u64::try_from(next).unwrap(), ids + 1, "every id that was handed out was counted");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("snowflake ids from grpc://") && page.contains("<meter"), "{page}");

    let table = bench(&[&format!("http://{}", server.ids()), TAG, "--duration", "300ms"], &[]).ok();
    for part in [
        "measured   ids of leaf-segment-test from http://",
        "each of them once",
        "response",
        "99.9 %",
        "#####",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn what_gives_no_ids_is_told() {
    let program = Path::new(env!("CARGO_BIN_EXE_leaf")).with_file_name("leaf-server");
    let home = tempfile::tempdir().unwrap();
    let server = LeafServer::start(program.to_str().unwrap(), home.path(), &[], &[]);
    let url = format!("http://{}", server.ids());
    let short = ["--duration", "200ms", "--connections", "2"];
    let run = |url: &str, tag: &str| bench(&[&[url, tag], &short[..]].concat(), &[]);
    let absent = run(&url, "nope");
    assert_eq!(absent.code, 1, "{absent:?}");
    assert!(absent.out.contains("refused    ") && absent.out.contains("nope"), "{absent:?}");
    let redis = run(&format!("redis://{}", server.redis()), "nope");
    assert_eq!(redis.code, 1, "{redis:?}");
    assert!(redis.error.contains("no id was answered: ERR"), "{redis:?}");
    let away = run("http://127.0.0.1:1", TAG);
    assert_eq!(away.code, 4, "{away:?}");
    assert!(away.error.contains("refused"), "{away:?}");
    let wrong = run(&format!("redis://{}", server.ids()), TAG);
    assert!(wrong.error.contains("not an id in Redis' protocol"), "{wrong:?}");
    for url in ["ftp://a", "http://user:canary@a", "127.0.0.1:8080", "http://a?b=canary", ""] {
        let refused = run(url, TAG).failed(2);
        assert!(refused.contains("give a URL like") && !refused.contains("canary"), "{refused}");
    }
    for args in [&["--rate", "0"][..], &["--connections", "0"], &["--duration", "5"]] {
        bench(&[&[&*url, TAG], args].concat(), &[]).failed(2);
    }
}

#[test]
fn an_interrupted_run_ends_with_its_report() {
    let count = AtomicU64::new(0);
    let url = format!("redis://{}", server(move || count.fetch_add(1, Ordering::SeqCst)));
    for more in [&[][..], &["--rate", "100"], &["--ramp"]] {
        let args = [&["bench", &url, "k", "--duration", "60s"], more].concat();
        let args: Vec<_> = args.into_iter().map(String::from).collect();
        let mut run = Process::start(env!("CARGO_BIN_EXE_leaf"), &args, &[]);
        std::thread::sleep(Duration::from_secs(1));
        run.signal("INT");
        let status = run.wait(Duration::from_secs(5));
        assert!(status.success() && run.output().contains("each of them once"), "{}", run.output());
    }
}
