//! Every wrong input gets one line that names it, the right status or exit code, and breaks
//! nothing.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::time::Duration;

use leaf_testkit::{FakeClock, HttpClient, LeafServer, Response, free_port};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";

fn running() -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    (directory, server)
}

/// Starts a server that is to fail; its exit code and the line it leaves.
fn failing(directory: &Path, args: &[&str], env: &[(&str, String)]) -> (i32, String) {
    let mut process = LeafServer::process(SERVER, directory, args, env);
    let code = process.wait(Duration::from_secs(20)).code().unwrap();
    // The collector may still be reading the last line.
    let line = leaf_testkit::wait_until("its error", Duration::from_secs(5), || {
        let output = process.output();
        output.lines().find(|line| line.starts_with("leaf-server: ")).map(str::to_owned)
    });
    (code, line)
}

fn expect(answer: &Response, status: u16, text: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert!(answer.body.contains(text), "{:?} does not contain {text:?}", answer.body);
    assert_eq!(answer.body.lines().count(), 1, "one line: {:?}", answer.body);
}

#[test]
fn bad_keys_are_400_and_burn_no_id() {
    let (_directory, server) = running();
    let first = server.id(SEGMENT);
    let get = |key: &str| server.get(&format!("/api/segment/get/{key}"));

    expect(&get(""), 400, "tag is empty");
    expect(&get(&"x".repeat(129)), 400, "longer than 128 characters");
    expect(&get("a%0Ab"), 400, "control character");
    expect(&get("a%00"), 400, "control character");
    expect(&get("%20a"), 400, "white space");
    expect(&get("a%20"), 400, "white space");
    expect(&get("%zz"), 400, "not valid percent-encoding");
    expect(&get("a%"), 400, "not valid percent-encoding");
    expect(&get("%ff"), 400, "not UTF-8");
    expect(&server.get("/api/snowflake/get/"), 400, "key is empty");
    expect(&server.get("/api/snowflake/get/%zz"), 400, "not valid percent-encoding");

    assert_eq!(server.id(SEGMENT), first + 1);
}

#[test]
fn what_does_not_exist_is_404() {
    let (_directory, server) = running();

    expect(&server.get("/api/segment/get/nope"), 404, "tag \"nope\": no such tag");
    expect(&server.get("/api/segment/get/Leaf-Segment-Test"), 404, "no such tag");
    expect(&server.get("/nowhere"), 404, "no such route");
    expect(&HttpClient::once(server.ops(), "GET", "/nowhere"), 404, "no such route");
    assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").body, "ok");
}

#[test]
fn the_java_routes_take_get_and_post_only() {
    let (_directory, server) = running();
    let ask = |method, path| HttpClient::once(server.ids(), method, path);

    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in [SEGMENT, "/api/snowflake/get/x"] {
            let answer = ask(method, path);
            expect(&answer, 405, "use GET, HEAD, POST");
            assert_eq!(answer.header("allow"), Some("GET, HEAD, POST"));
        }
    }
    assert_eq!(ask("POST", SEGMENT).status, 200);
    expect(&ask("POST", "/decodeSnowflakeId?snowflakeId=1"), 405, "use GET");
}

#[test]
fn a_bad_snowflake_id_is_an_error_message_in_javas_shape() {
    let (_directory, server) = running();
    for query in ["?snowflakeId=abc", "?snowflakeId=-1", "?snowflakeId=9223372036854775808", ""] {
        let answer = server.get(&format!("/decodeSnowflakeId{query}"));
        expect(&answer, 400, "{\"errorMsg\":\"snowflakeId is ");
    }

    let id = server.id("/api/snowflake/get/x");
    let answer = server.get(&format!("/decodeSnowflakeId?snowflakeId={id}"));
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("\"workerId\":\"0\""), "{}", answer.body);
}

#[test]
fn a_decoded_id_reads_as_javas() {
    let directory = tempfile::tempdir().unwrap();
    let zone = [("LEAF_TIME_ZONE", "Asia/Shanghai".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &[], &zone);
    let id = (1_567_733_700_834i64 - 1_288_834_974_657) << 22 | 3 << 12 | 39;

    let answer = server.get(&format!("/decodeSnowflakeId?snowflakeId={id}"));

    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let expected = serde_json::json!({
        "timestamp": "1567733700834(2019-09-06 09:35:00.834)",
        "workerId": "3",
        "sequenceId": "39",
    });
    assert_eq!(body, expected);
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let (_directory, server) = running();
    let get = |path: &str| HttpClient::once(server.ids(), "GET", path);

    assert_eq!(get(&format!("/api/segment/get/{}", "x".repeat(60_000))).status, 431);
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let headers = "X-Filler: 1\r\n".repeat(200);
    client.send(&format!("GET {SEGMENT} HTTP/1.1\r\nHost: leaf\r\n{headers}\r\n")).unwrap();
    assert_eq!(client.read().unwrap().status, 431);
}

/// RFC 9112, section 3.2: a proxy in front may have gone by the other name.
#[test]
fn a_request_names_one_host() {
    let (_directory, server) = running();
    let ask = |version: &str, headers: &str| {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        client.send(&format!("GET {SEGMENT} HTTP/{version}\r\n{headers}\r\n")).unwrap();
        client.read().unwrap()
    };

    for headers in ["", "Host: a\r\nHost: a\r\n", "HOST: a\r\nX-Filler: 1\r\nhost: b\r\n"] {
        expect(&ask("1.1", headers), 400, "send one Host header");
    }
    // HTTP/1.0 knows no such header.
    for (version, headers) in [("1.1", "X-Filler: 1\r\nhost: a\r\n"), ("1.0", "")] {
        assert_eq!(ask(version, headers).status, 200, "{version} {headers:?}");
    }
}

#[test]
fn a_mode_that_is_off_is_404_never_an_id() {
    let directory = tempfile::tempdir().unwrap();
    let off = [("LEAF_SEGMENT__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &[], &off);
    expect(&server.get(SEGMENT), 404, "segment mode is disabled");
    assert!(server.id("/api/snowflake/get/x") > 0);

    let directory = tempfile::tempdir().unwrap();
    let off = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &[], &off);
    expect(&server.get("/api/snowflake/get/x"), 404, "snowflake mode is disabled");
    assert_eq!(server.id(SEGMENT), 1);
}

#[test]
fn a_wrong_configuration_is_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leaf.toml");
    std::fs::write(&file, "[segment]\nstor = \"sqlite:x\"\n").unwrap();
    let file = file.to_str().unwrap();

    let (code, line) = failing(directory.path(), &["--config", file], &[]);
    assert_eq!((code, line.contains("did you mean `segment.store`?")), (2, true), "{line}");

    let (code, line) = failing(directory.path(), &["--config", "/nowhere/leaf.toml"], &[]);
    assert_eq!((code, line.contains("read /nowhere/leaf.toml")), (2, true), "{line}");

    let bad = [("LEAF_HTTP__LISTN", "127.0.0.1:1".to_owned())];
    let (code, line) = failing(directory.path(), &[], &bad);
    assert_eq!((code, line.contains("did you mean LEAF_HTTP__LISTEN?")), (2, true), "{line}");

    let secret = "mysql://leaf:canary@db:x/leaf";
    let (code, line) = failing(directory.path(), &["--segment-store", secret], &[]);
    assert_eq!((code, line.contains("canary")), (2, false), "{line}");
}

#[test]
fn variables_that_kubernetes_makes_do_not_stop_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let env = [
        ("LEAF_PORT", "tcp://10.0.0.1:8080".to_owned()),
        ("LEAF_SERVICE_HOST", "10.0.0.1".to_owned()),
    ];
    let server = LeafServer::start(SERVER, directory.path(), &[], &env);

    assert_eq!(server.id(SEGMENT), 1);
    let warned = server.output().matches("are no keys of Leaf").count();
    assert_eq!(warned, 1, "{}", server.output());
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("a-file");
    std::fs::write(&place, "").unwrap();
    let (code, line) = failing(&place, &[], &[]);
    assert_eq!(
        (code, line.contains("a-file: choose another with `data_dir`")),
        (1, true),
        "{line}"
    );

    // Root may write where the mode forbids it: a file system without write permission may not.
    let (code, line) = failing(Path::new("/proc/sys"), &[], &[]);
    assert_eq!((code, line.contains("create /proc/sys/snowflake.state")), (1, true), "{line}");
}

#[test]
fn a_port_in_use_is_named_and_no_worker_id_is_claimed() {
    let (_first_directory, first) = running();
    let directory = tempfile::tempdir().unwrap();
    let taken = first.ids().to_string();

    let mut process = leaf_testkit::Process::start(
        SERVER,
        &[
            "--http-listen".into(),
            taken.clone(),
            "--data-dir".into(),
            directory.path().display().to_string(),
        ],
        &[],
    );
    let code = process.wait(Duration::from_secs(20)).code();
    let line = leaf_testkit::wait_until("its error", Duration::from_secs(5), || {
        process.output().lines().find(|line| line.starts_with("leaf-server: ")).map(str::to_owned)
    });

    assert_eq!(code, Some(1));
    assert!(line.contains(&format!("listen on {taken}: choose another address")), "{line}");
    assert!(!directory.path().join("snowflake.state").exists(), "nothing was claimed");
}

/// What would make ids repeat or negative is refused at the start, with the value and the limit.
#[test]
fn a_snowflake_setting_that_cannot_work_is_refused_by_value_and_limit() {
    let cases = [
        ("EPOCH", "9999999999999", "before the layout's epoch 2286-11-20"),
        ("EPOCH", "-5", "snowflake.epoch"),
        ("LAYOUT", "t42-w10-s12/1ms", "the fields have 64 bits: at most 63"),
        ("LAYOUT", "uid-generator", "used up at 2024-11-20 13:24:16 UTC: correct the clock"),
        ("WORKER_ID", "1024", "worker id 1024 of worker_id is above 1023"),
        ("OFFLINE_FOR", "5s", "offline_for is 5s: give 6s (two report intervals) to"),
        ("ROLLBACK_TOLERANCE", "2min", "rollback_tolerance is 120s: give 1ms to 60s"),
    ];
    for (key, value, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let variable = format!("LEAF_SNOWFLAKE__{key}");
        let (code, line) = failing(directory.path(), &[], &[(&variable, value.to_owned())]);
        assert_eq!((code, line.contains(expected)), (2, true), "{key}={value}: {line}");
    }
}

/// The clock is too early, as before NTP has set it, or later than the last timestamp of the
/// layout.
#[test]
fn ids_of_tags_flow_while_the_clock_allows_no_snowflake_id() {
    for (offset, why) in
        [("-100000000", "the earliest that can be right"), ("+1800000000", "are used up at 20")]
    {
        let clock = FakeClock::new();
        clock.set(offset);
        let directory = tempfile::tempdir().unwrap();
        let mut server = LeafServer::launch(SERVER, directory.path(), &[], &clock.environment());
        let why = server.not_ready(why);
        assert_eq!(server.get(SEGMENT).status, 200, "{why}");
        assert_eq!(server.get("/api/snowflake/get/x").status, 503, "{why}");
        clock.set("+0");
        server.wait_ready();
        assert!(server.id("/api/snowflake/get/x") > 0);
    }
}

/// The layout is recorded with the worker id, because ids of another layout could repeat.
#[test]
fn another_layout_over_a_used_worker_id_is_refused_with_the_way_out() {
    let (directory, server) = running();
    assert!(server.id("/api/snowflake/get/x") > 0);
    drop(server);

    let other = [("LEAF_SNOWFLAKE__LAYOUT", "javascript".to_owned())];
    let server = LeafServer::launch(SERVER, directory.path(), &[], &other);

    let why = server.not_ready("restore the setting.");
    assert!(why.contains("t41-w10-s12/1ms") && why.contains("t41-w5-s7/1ms"), "{why}");
    assert!(why.contains("another data directory"), "the hint: {why}");
    assert_eq!(server.get(SEGMENT).status, 200, "ids of tags go on");
}

/// W-11
#[test]
fn a_second_process_on_the_same_data_directory_is_refused() {
    let (directory, server) = running();
    let before = server.id(SEGMENT);

    let (code, line) = failing(directory.path(), &[], &[]);

    assert_eq!(code, 1);
    assert!(line.contains("another process uses this data directory"), "{line}");
    assert_eq!(server.id(SEGMENT), before + 1);
}

#[test]
fn a_server_whose_output_cannot_be_written_serves_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let address = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let (ids, ops) = (address(free_port()), address(free_port()));
    let script = "exec \"$@\" >/dev/full 2>&1";
    let data_dir = directory.path().display().to_string();
    let (ids_listen, ops_listen) = (ids.to_string(), ops.to_string());
    let args = ["-c", script, "sh", SERVER, "--data-dir", &data_dir];
    let args = args.into_iter().chain(["--http-listen", &ids_listen, "--ops-listen", &ops_listen]);
    let args: Vec<String> = args.map(str::to_owned).collect();
    let mut process = leaf_testkit::Process::start("sh", &args, &[]);

    leaf_testkit::wait_until("it is ready", Duration::from_secs(20), || {
        assert!(process.ended().is_none());
        let mut client = HttpClient::connect(ops).ok()?;
        client.request("GET", "/readyz").ok().filter(|answer| answer.status == 200)
    });
    // Trouble that is logged, and its end.
    let state = directory.path().join("snowflake.state");
    let aside = directory.path().join("aside");
    std::fs::rename(&state, &aside).unwrap();
    leaf_testkit::wait_until("ids stop", Duration::from_secs(20), || {
        let ready = HttpClient::once(ops, "GET", "/readyz");
        (ready.status == 503).then_some(())
    });
    std::fs::rename(&aside, &state).unwrap();
    leaf_testkit::wait_until("ids flow again", Duration::from_secs(20), || {
        (HttpClient::once(ids, "GET", "/api/snowflake/get/x").status == 200).then_some(())
    });

    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(20)).code(), Some(0));
}

/// An unknown time zone in `TZ` is an error; otherwise times in answers would silently be UTC.
#[test]
fn an_unknown_time_zone_of_the_host_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let zone = [("TZ", "Not/AZone".to_owned())];
    let (code, line) = failing(directory.path(), &[], &zone);
    assert_eq!((code, line.contains("TZ names no time zone")), (2, true), "{line}");
    let mut check = LeafServer::process(SERVER, directory.path(), &["check"], &zone);
    assert!(!check.wait(Duration::from_secs(20)).success());
    assert!(check.output().contains("TZ names no time zone"), "{}", check.output());
    let known = [("TZ", "Asia/Shanghai".to_owned())];
    drop(LeafServer::start(SERVER, directory.path(), &[], &known));
}

/// Without its data directory a node has lost the records that protect it, so it ends and names the
/// reason.
#[test]
fn a_data_directory_that_goes_ends_the_server() {
    for (replaced, told) in [(false, "is gone"), (true, "was replaced")] {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        let mut server = LeafServer::start(SERVER, &data, &[], &[]);
        let _ = server.id("/api/snowflake/get/x");
        std::fs::rename(&data, home.path().join("elsewhere")).unwrap();
        if replaced {
            std::fs::create_dir(&data).unwrap();
        }
        let code = server.process_mut().wait(Duration::from_secs(20)).code();
        let output = server.output();
        assert!(code == Some(1) && output.contains(told), "{code:?} {output}");
    }
}
