//! Who may ask for what: tokens, roles and certificates, over every protocol, and while they
//! change.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leaf_node::tokens::{TokenHash, draw};
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::{NextIdRequest, NextIdsRequest, next_id_request, next_ids_request};
use leaf_testkit::{
    Certificates, HttpClient, LeafServer, Ledger, RedisClient, RedisReply, Response, wait_until,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tonic::{Code, Request};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
/// The tag that every new server has.
const TAG: &str = "leaf-segment-test";

/// A server with a file of tokens.
struct Guarded {
    _directory: tempfile::TempDir,
    file: PathBuf,
    server: LeafServer,
}

impl Guarded {
    fn start(lines: &str, env: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        std::fs::write(&file, lines).unwrap();
        let mut all = vec![
            ("LEAF_TOKENS_FILE", file.display().to_string()),
            ("LEAF_GRPC__LISTEN", "127.0.0.1:0".into()),
        ];
        all.extend(env.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let server = LeafServer::launch(SERVER, directory.path(), &[], &all);
        Self { _directory: directory, file, server }
    }

    /// Another file, which is in force when this returns.
    fn change(&self, lines: &str) {
        let before = self.server.output().matches("took over other tokens").count();
        std::fs::write(&self.file, lines).unwrap();
        self.server.signal("HUP");
        wait_until("the file was read", Duration::from_secs(20), || {
            (self.server.output().matches("took over other tokens").count() > before).then_some(())
        });
    }

    fn redis(&self) -> RedisClient {
        RedisClient::connect(self.server.redis()).unwrap()
    }

    fn grpc(&self) -> IdServiceClient<tonic::transport::Channel> {
        let address = format!("http://{}", self.server.grpc());
        IdServiceClient::new(
            tonic::transport::Channel::from_shared(address).unwrap().connect_lazy(),
        )
    }
}

/// A token, and a line for it.
fn token(name: &str, roles: &str) -> (String, String) {
    let token = draw().unwrap();
    let line = format!("{name} {} {roles}\n", TokenHash::of(token.as_bytes()));
    (token, line)
}

/// One request with a token, if there is one.
fn ask(address: SocketAddr, token: Option<&str>, method: &str, path: &str, body: &str) -> Response {
    let mut headers = String::from("Host: localhost\r\nContent-Type: application/json\r\n");
    if let Some(token) = token {
        headers.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    HttpClient::connect(address).unwrap().ask(method, path, &headers, body).unwrap()
}

fn error_of(reply: RedisReply) -> String {
    match reply {
        RedisReply::Error(text) => text,
        other => panic!("{other:?} where a refusal was due"),
    }
}

#[test]
fn over_http_a_token_gives_what_its_roles_say() {
    let (all, all_line) = token("all", "ids");
    let (some, some_line) = token("some", "ids:leaf-* ids:other");
    let (none, none_line) = token("none", "ids:other ids:leaf");
    let (reader, reader_line) = token("reader", "read");
    let (admin, admin_line) = token("admin", "admin");
    let lines = [all_line, some_line, none_line, reader_line, admin_line].concat();
    let guarded = Guarded::start(&lines, &[]);
    let (http, ops) = (guarded.server.ids(), guarded.server.ops());

    let of_tag = [
        ("GET", format!("/api/segment/get/{TAG}")),
        ("POST", format!("/api/segment/get/{TAG}")),
        ("HEAD", format!("/api/segment/get/{TAG}")),
        ("GET", format!("/api/segment/get/{TAG}/")),
        ("GET", "/api/segment/get/leaf%2Dsegment-test".to_owned()),
        ("GET", format!("//api/segment/get/{TAG}")),
        ("GET", format!("/v1/segments/{TAG}")),
        ("GET", format!("/v1/segments/{TAG}/ids?count=2")),
        ("POST", format!("/v1/segments/{TAG}/lease?count=10")),
        ("POST", format!("/v1/segments/{TAG}/return?ticket=0000000000000001&start=1&end=2")),
        ("GET", format!("/v1/ids/12?tag={TAG}")),
    ];
    let status = |token: Option<&str>, method: &str, path: &str| {
        if method == "HEAD" {
            let mut client = HttpClient::connect(http).unwrap();
            let token = token.unwrap_or("none");
            let head = format!("Host: a\r\nAuthorization: Bearer {token}");
            client
                .send(&format!("HEAD {path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n"))
                .unwrap();
            let mut answer = String::new();
            client.into_stream().read_to_string(&mut answer).unwrap();
            return answer[9..12].parse().unwrap();
        }
        ask(http, token, method, path, "").status
    };
    for (method, path) in &of_tag {
        for wrong in [None, Some("wrong"), Some("")] {
            assert_eq!(status(wrong, method, path), 401, "{method} {path}");
        }
        // Whether the tag exists is not told either.
        for wrong in [&none, &reader, &admin] {
            assert_eq!(status(Some(wrong), method, path), 403, "{method} {path}");
        }
        for right in [&all, &some] {
            let status = status(Some(right), method, path);
            // What is asked for may make no sense, but that is another matter.
            assert!(![401, 403].contains(&status), "{method} {path}: {status}");
        }
    }
    let unknown = "/api/segment/get/other";
    for (token, wanted) in [(&all, 404), (&some, 404), (&none, 404), (&reader, 403)] {
        assert_eq!(status(Some(token), "GET", unknown), wanted);
    }
    for path in ["/api/snowflake/get/x", "/v1/snowflake/ids?count=3", "/v1/snowflake/ids?as=uuid"] {
        assert_eq!((status(None, "GET", path), status(Some(&reader), "GET", path)), (401, 403));
        // Snowflake ids belong to no tag.
        assert_eq!((status(Some(&all), "GET", path), status(Some(&none), "GET", path)), (200, 200));
    }
    // What belongs to nobody, and what other nodes ask.
    for path in ["/clock", "/v1/server", "/v1/ids/123"] {
        assert_eq!(status(None, "GET", path), 200, "{path}");
    }

    // As RFC 6750 has it.
    let challenge = |token: Option<&str>, path: &str| {
        let answer = ask(http, token, "GET", path, "");
        (answer.header("www-authenticate").unwrap().to_owned(), answer.body)
    };
    let path = &of_tag[0].1;
    assert_eq!(challenge(None, path).0, "Bearer");
    assert_eq!(challenge(Some("x"), path).0, "Bearer error=\"invalid_token\"");
    let (header, text) = challenge(Some(&none), path);
    assert_eq!(header, "Bearer error=\"insufficient_scope\"");
    assert!(text.starts_with("none may not do this: it needs the role ids:TAG"), "{text}");

    // Administration, also on loopback: there are tokens for it.
    let body = r#"{"tag":"made","step":100}"#;
    for (token, reads, changes) in [
        (None, 401, 401),
        (Some("x"), 401, 401),
        (Some(all.as_str()), 403, 403),
        (Some(reader.as_str()), 200, 403),
        (Some(admin.as_str()), 200, 201),
    ] {
        for path in ["/v1/status", "/metrics", "/v1/tags", "/v1/workers", "/cache", "/db"] {
            assert_eq!(ask(ops, token, "GET", path, "").status, reads, "{path}");
        }
        assert_eq!(ask(ops, token, "POST", "/v1/tags", body).status, changes);
        assert_eq!(ask(ops, token, "GET", "/readyz", "").status, 200);
    }

    // The token of the connection's last request does not count for the next one.
    let mut client = HttpClient::connect(http).unwrap();
    for (token, wanted) in [(&all, 200), (&none, 403), (&all, 200)] {
        let shown = format!("Host: a\r\nAuthorization: Bearer {token}\r\n");
        assert_eq!(client.ask("GET", path, &shown, "").unwrap().status, wanted);
        let silent = client.ask("GET", path, "Host: a\r\n", "").unwrap();
        assert_eq!(silent.status, 401);
    }
    for token in [&all, &some, &none, &reader, &admin] {
        assert!(!guarded.server.output().contains(token.as_str()));
    }
}

#[test]
fn over_the_redis_protocol_a_name_and_its_token_are_shown_by_auth() {
    let (all, all_line) = token("all", "ids");
    let (some, some_line) = token("some", "ids:leaf-*");
    let (admin, admin_line) = token("admin", "admin");
    let guarded = Guarded::start(&[all_line, some_line, admin_line].concat(), &[]);
    let made = ask(
        guarded.server.ops(),
        Some(&admin),
        "POST",
        "/v1/tags",
        r#"{"tag":"orders","step":50}"#,
    );
    assert_eq!(made.status, 201, "{}", made.body);
    // Both tags are in memory, for somebody else.
    let mut other = guarded.redis();
    other.command(&["AUTH", "all", &all]).unwrap();
    assert_eq!(other.command(&["INCR", "orders"]).unwrap().id(), Some(1));
    assert!(other.command(&["INCR", TAG]).unwrap().id().is_some());
    let mut client = guarded.redis();
    for command in [&["INCR", TAG][..], &["INCRBY", TAG, "2"], &["SNOWFLAKE"], &["PING"]] {
        assert!(error_of(client.command(command).unwrap()).starts_with("NOAUTH"), "{command:?}");
    }
    for wrong in [&["AUTH", "some", &all][..], &["AUTH", "some", "x"], &["AUTH", "x"]] {
        assert!(error_of(client.command(wrong).unwrap()).starts_with("WRONGPASS"), "{wrong:?}");
    }
    assert!(error_of(client.command(&["INCR", TAG]).unwrap()).starts_with("NOAUTH"));
    assert_eq!(client.command(&["AUTH", "some", &some]).unwrap(), RedisReply::Simple("OK".into()));
    for command in [
        &["INCR", "orders"][..],
        &["INCRBY", "orders", "2"],
        &["SEGMENT", "orders", "COUNT", "3"],
        &["LPOP", "orders"],
        &["GET", "orders"],
        &["LLEN", "orders"],
        &["EXISTS", TAG, "orders"],
    ] {
        let error = error_of(client.command(command).unwrap());
        assert!(error.starts_with("NOPERM some may not"), "{command:?}: {error}");
    }
    // Among many that came together.
    let ledger = Ledger::default();
    let mut pipeline = Vec::new();
    for turn in 0..60 {
        pipeline.extend(RedisClient::encode(&["INCR", if turn % 3 == 2 { "orders" } else { TAG }]));
    }
    client.send(&pipeline).unwrap();
    let name: Arc<str> = "ids".into();
    for turn in 0..60 {
        match client.read().unwrap() {
            RedisReply::Integer(id) if turn % 3 < 2 => ledger.record(&name, id),
            RedisReply::Error(text) if turn % 3 == 2 => assert!(text.starts_with("NOPERM")),
            other => panic!("{turn}: {other:?}, though the caller has no role for it"),
        }
    }
    ledger.expect_at_least(40);
    assert!(client.command(&["SNOWFLAKE"]).unwrap().id().is_some());
    // The name may be left out, as older clients do; RESET forgets it.
    assert_eq!(client.command(&["AUTH", &all]).unwrap(), RedisReply::Simple("OK".into()));
    assert_eq!(client.command(&["INCR", "orders"]).unwrap().id(), Some(2));
    client.command(&["RESET"]).unwrap();
    assert!(error_of(client.command(&["INCR", TAG]).unwrap()).starts_with("NOAUTH"));
    let hello = ["HELLO", "3", "AUTH", "all", &all];
    assert!(!matches!(client.command(&hello).unwrap(), RedisReply::Error(_)));
    assert!(client.command(&["INCR", TAG]).unwrap().id().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn over_grpc_the_token_is_metadata_and_a_stream_ends_with_it() {
    let (some, some_line) = token("some", "ids:leaf-*");
    let (_, other_line) = token("other", "ids");
    let guarded = Guarded::start(&[some_line.clone(), other_line.clone()].concat(), &[]);
    let mut client = guarded.grpc();
    let with = |token: Option<&str>| {
        let source = Some(next_id_request::Source::Tag(TAG.into()));
        let mut request = Request::new(NextIdRequest { source });
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    };
    let code = |answer: Result<_, tonic::Status>| answer.map(drop).unwrap_err().code();
    assert_eq!(code(client.next_id(with(None)).await), Code::Unauthenticated);
    assert_eq!(code(client.next_id(with(Some("x"))).await), Code::Unauthenticated);
    assert!(client.next_id(with(Some(&some))).await.unwrap().into_inner().id > 0);
    let mut other = with(Some(&some));
    other.get_mut().source = Some(next_id_request::Source::Tag("orders".into()));
    assert_eq!(code(client.next_id(other).await), Code::PermissionDenied);

    let source = Some(next_ids_request::Source::Tag(TAG.into()));
    let mut request = Request::new(NextIdsRequest { source, count: 100 });
    request.metadata_mut().insert("authorization", format!("Bearer {some}").parse().unwrap());
    let mut stream = client.stream_ids(request).await.unwrap().into_inner();
    let (ledger, name): (_, Arc<str>) = (Ledger::default(), "stream".into());
    for id in stream.message().await.unwrap().unwrap().ids {
        ledger.record(&name, id);
    }
    // Who is given more loses nothing.
    guarded.change(
        &[some_line.replace("ids:leaf-*", "ids:leaf-* ids:more"), other_line.clone()].concat(),
    );
    for _ in 0..100 {
        for id in stream.message().await.unwrap().unwrap().ids {
            ledger.record(&name, id);
        }
    }
    guarded.change(&other_line);
    let mut last = None;
    // What was taken ahead may come yet.
    for _ in 0..10_000 {
        match tokio::time::timeout(Duration::from_secs(20), stream.message()).await.unwrap() {
            Ok(message) => {
                for id in message.unwrap().ids {
                    ledger.record(&name, id);
                }
            }
            Err(status) => {
                last = Some(status);
                break;
            }
        }
    }
    assert_eq!(last.unwrap().code(), Code::Unauthenticated);
    assert_eq!(code(client.next_id(with(Some(&some))).await), Code::Unauthenticated);
}

/// Sets a flag at its end.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A reload ends access that it revokes, also on open connections, and no other caller notices.
#[test]
fn a_reload_ends_what_it_revokes_and_nothing_else() {
    let (kept, kept_line) = token("kept", "ids");
    let (first, first_line) = token("rotated", "ids");
    let (second, second_line) = token("rotated", "ids");
    let second_hash = second_line.split_whitespace().nth(1).unwrap();
    let both_line = first_line.replace("rotated ", &format!("rotated {second_hash} "));
    let guarded = Guarded::start(&[&*kept_line, &*first_line].concat(), &[]);
    let path = format!("/api/segment/get/{TAG}");

    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let ledger = Ledger::default();
    std::thread::scope(|scope| {
        // Also where this test fails: the others would go on.
        let _stop = StopsWhenDropped(&stop);
        let others: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let name: Arc<str> = "ids".into();
                    let mut http = HttpClient::connect(guarded.server.ids()).unwrap();
                    let mut redis = guarded.redis();
                    redis.command(&["AUTH", "kept", &kept]).unwrap();
                    let shown = format!("Host: a\r\nAuthorization: Bearer {kept}\r\n");
                    while !stop.load(Ordering::Relaxed) {
                        let answer = http.ask("GET", &path, &shown, "").unwrap();
                        assert_eq!(answer.status, 200, "{}", answer.body);
                        ledger.record(&name, answer.body.parse().unwrap());
                        let id = redis.command(&["INCR", TAG]).unwrap().id();
                        ledger.record(&name, id.expect("an id over Redis"));
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut http = HttpClient::connect(guarded.server.ids()).unwrap();
        let mut redis = guarded.redis();
        redis.command(&["AUTH", "rotated", &first]).unwrap();
        let mut status = |token: &str| {
            let shown = format!("Host: a\r\nAuthorization: Bearer {token}\r\n");
            http.ask("GET", &path, &shown, "").unwrap().status
        };
        for _ in 0..3 {
            assert_eq!((status(&first), status(&second)), (200, 401));
            guarded.change(&[&*kept_line, &*both_line].concat());
            assert_eq!((status(&first), status(&second)), (200, 200));
            assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
            guarded.change(&[&*kept_line, &*second_line].concat());
            assert_eq!((status(&first), status(&second)), (401, 200), "what was revoked goes on");
            assert!(error_of(redis.command(&["INCR", TAG]).unwrap()).starts_with("NOAUTH"));
            guarded.change(&[&*kept_line, &*first_line].concat());
            // The connection has shown it before.
            assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
        }
        stop.store(true, Ordering::Relaxed);
        for other in others {
            other.join().unwrap();
        }
    });
    assert!(asked.load(Ordering::Relaxed) > 100);
}

/// A tokens file with an error changes nothing, and the error is reported. A corrected file takes
/// effect without a signal.
#[test]
fn a_broken_file_changes_nothing_and_its_correction_needs_no_signal() {
    let (admin, admin_line) = token("admin", "admin ids");
    let (later, later_line) = token("later", "ids");
    let guarded = Guarded::start(&admin_line, &[]);
    let path = format!("/api/segment/get/{TAG}");
    let status = |token: &str| ask(guarded.server.ids(), Some(token), "GET", &path, "").status;
    let metric = || {
        let page = ask(guarded.server.ops(), Some(&admin), "GET", "/metrics", "").body;
        let line = page.lines().find_map(|it| it.strip_prefix("leaf_tokens_last_read_successful "));
        line.map(str::to_owned).unwrap()
    };
    assert_eq!(metric(), "1.0");
    std::fs::write(&guarded.file, format!("{later_line}canary of a line\n")).unwrap();
    guarded.server.signal("HUP");
    wait_until("it is told", Duration::from_secs(20), || {
        guarded.server.output().contains("tokens_file: ").then_some(())
    });
    let output = guarded.server.output();
    assert!(output.contains("line 2: the roles are"), "{output}");
    assert!(!output.contains("canary"), "{output}");
    assert_eq!((status(&admin), status(&later)), (200, 401));
    // The next look of its own.
    wait_until("the metric says so", Duration::from_secs(60), || (metric() == "0.0").then_some(()));
    std::fs::write(&guarded.file, format!("{admin_line}{later_line}")).unwrap();
    wait_until("it counts", Duration::from_secs(60), || (status(&later) == 200).then_some(()));
    assert_eq!((status(&admin), metric().as_str()), (200, "1.0"));
}

#[test]
fn who_shows_nothing_has_what_the_file_says() {
    let (admin, admin_line) = token("admin", "admin");
    let (service, service_line) = token("service", "ids:orders*");
    let lines = format!("anonymous ids:leaf-* read\n{admin_line}{service_line}");
    let guarded = Guarded::start(&lines, &[]);
    let (http, ops) = (guarded.server.ids(), guarded.server.ops());
    let path = format!("/api/segment/get/{TAG}");
    assert_eq!(ask(http, None, "GET", &path, "").status, 200);
    // A header for somebody else, such as a proxy in front, does not matter. Nor does an unknown
    // token, in a request that everybody may make.
    let mut client = HttpClient::connect(http).unwrap();
    for shown in ["Basic dXNlcjpwYXNz", "Bearer of-somebody-else", "Bearer", ""] {
        let headers = format!("Host: a\r\nAuthorization: {shown}\r\n");
        assert_eq!(client.ask("GET", &path, &headers, "").unwrap().status, 200, "{shown}");
    }
    assert_eq!(ask(http, None, "GET", "/api/segment/get/orders", "").status, 401);
    assert_eq!(ask(ops, None, "GET", "/metrics", "").status, 200);
    assert_eq!(ask(ops, None, "POST", "/v1/drain", "").status, 401);
    assert_eq!(ask(ops, Some(&admin), "POST", "/v1/drain", "").status, 200);
    let mut redis = guarded.redis();
    assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
    assert!(error_of(redis.command(&["INCR", "orders"]).unwrap()).starts_with("NOAUTH"));
    // Who is known may do what everybody may.
    assert_eq!(ask(http, Some(&service), "GET", &path, "").status, 200);
    assert_eq!(ask(http, Some(&service), "GET", "/api/segment/get/orders", "").status, 404);
    redis.command(&["AUTH", "service", &service]).unwrap();
    assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
    // As in Redis, whose user `default` needs no password then: the caller of before is gone.
    let nobody = ["AUTH", "default", "whatever"];
    assert_eq!(redis.command(&nobody).unwrap(), RedisReply::Simple("OK".into()));
    assert!(error_of(redis.command(&["INCR", "orders"]).unwrap()).starts_with("NOAUTH"));
    // Without anybody who administers nobody does, on loopback either.
    guarded.change(&lines.replace(&admin_line, ""));
    assert_eq!(ask(ops, Some(&admin), "POST", "/v1/drain", "").status, 401);
    assert_eq!(ask(ops, None, "POST", "/v1/drain", "").status, 401);
    assert!(guarded.server.output().contains("nobody administers this node"));
}

/// `redis.password` and `ops.token` of the configuration still work beside a tokens file.
#[test]
fn the_password_and_the_token_of_the_configuration_have_names() {
    let (_, line) = token("app", "ids:other");
    let (password, ops_token) = ("a-password-of-some-length", "a-token-of-some-length");
    let env = [("LEAF_REDIS__PASSWORD", password), ("LEAF_OPS__TOKEN", ops_token)];
    let guarded = Guarded::start(&format!("{line}anonymous ids\n"), &env);
    let mut redis = guarded.redis();
    assert!(error_of(redis.command(&["INCR", TAG]).unwrap()).starts_with("NOAUTH"));
    assert_eq!(
        redis.command(&["AUTH", "default", password]).unwrap(),
        RedisReply::Simple("OK".into())
    );
    assert!(redis.command(&["INCR", TAG]).unwrap().id().is_some());
    let ops = guarded.server.ops();
    assert_eq!(ask(ops, Some(ops_token), "POST", "/v1/drain", "").status, 200);
    assert_eq!(ask(ops, Some(password), "POST", "/v1/drain", "").status, 403);
    assert_eq!(ask(ops, None, "GET", "/v1/status", "").status, 401);
}

/// A client's certificate is as good as a token.
#[test]
fn a_certificate_gives_the_roles_of_a_name_in_it() {
    let certificates = Certificates::make();
    let text = |path: PathBuf| path.display().to_string();
    let (certificate, key) = (text(certificates.server()), text(certificates.server_key()));
    let authority = text(certificates.authority());
    let env = [
        ("LEAF_TLS__CERTIFICATE", certificate.as_str()),
        ("LEAF_TLS__KEY", &key),
        ("LEAF_TLS__CLIENT_CA", &authority),
        ("LEAF_HTTP__TLS", "required"),
    ];
    let (other, other_line) = token("other", "ids:nothing");
    let lines = format!(
        "orders dns:Orders.Local ids:leaf-*\nworker uri:spiffe://prod/worker ids:x\n{other_line}"
    );
    let guarded = Guarded::start(&lines, &env);
    let get = |own: &(PathBuf, PathBuf), token: Option<&str>| {
        status_over_tls(&certificates, own, guarded.server.ids(), token)
    };
    let orders = certificates.issue_to("ca", "orders", "DNS:www.x,DNS:orders.LOCAL");
    let worker = certificates.issue_to("ca", "worker", "URI:spiffe://prod/worker");
    let nobody = certificates.issue_to("ca", "nobody", "DNS:x.orders.local,URI:dns:orders.local");
    assert_eq!(get(&orders, None), 200);
    assert_eq!((get(&worker, None), get(&nobody, None)), (403, 401));
    // A token that is shown counts, and nothing else.
    assert_eq!(get(&orders, Some(&other)), 403);
    assert_eq!(get(&orders, Some("wrong")), 401);
    guarded.change(&lines.replace("ids:leaf-*", "ids:none"));
    assert_eq!(get(&orders, None), 403);
}

/// The status of a request for an id, by a client that shows a certificate.
fn status_over_tls(
    certificates: &Certificates,
    own: &(PathBuf, PathBuf),
    address: SocketAddr,
    token: Option<&str>,
) -> u16 {
    let shown = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /api/segment/get/{TAG} HTTP/1.1\r\nHost: a\r\n{shown}");
    over_tls(certificates, own, address, &request)
}

/// Sends a request from a client with a certificate, and returns the status of the answer.
/// `request` is a head without its end, which is added here.
fn over_tls(
    certificates: &Certificates,
    own: &(PathBuf, PathBuf),
    address: SocketAddr,
    request: &str,
) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.authority()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(&own.0).unwrap()],
            PrivateKeyDer::from_pem_file(&own.1).unwrap(),
        )
        .unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    write!(stream, "{request}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The end may come without the message that announces it.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()[9..12].parse().unwrap()
}

/// A browser sends its user's certificate with the requests of any page: a page of another host
/// must change nothing.
#[test]
fn a_page_of_another_host_cannot_use_an_operators_certificate() {
    let certificates = Certificates::make();
    let text = |path: PathBuf| path.display().to_string();
    let (certificate, key) = (text(certificates.server()), text(certificates.server_key()));
    let authority = text(certificates.authority());
    let env = [
        ("LEAF_TLS__CERTIFICATE", certificate.as_str()),
        ("LEAF_TLS__KEY", &key),
        ("LEAF_TLS__CLIENT_CA", &authority),
        ("LEAF_OPS__TLS", "optional"),
    ];
    let guarded = Guarded::start("alice dns:alice.corp admin\n", &env);
    let alice = certificates.issue_to("ca", "alice", "DNS:alice.corp");
    let post = |headers: &str| {
        let request = format!("POST /v1/drain HTTP/1.1\r\n{headers}Content-Length: 0\r\n");
        over_tls(&certificates, &alice, guarded.server.ops(), &request)
    };
    assert_eq!(post("Host: ops.corp:8081\r\n"), 200);
    assert_eq!(post("Host: ops.corp:8081\r\nOrigin: https://ops.corp:8081\r\n"), 200);
    assert_eq!(post("Host: ops.corp:8081\r\nOrigin: https://evil.example\r\n"), 403);
    assert_eq!(post("Host: ops.corp:8081\r\nOrigin: null\r\n"), 403);
}

/// A request that is still arriving when its caller's role is revoked is refused.
#[test]
fn a_slow_request_does_not_outlive_its_role() {
    let (alice, line) = token("alice", "admin");
    let guarded = Guarded::start(&line, &[]);
    let body = r#"{"tag":"late","step":100}"#;
    let mut client = HttpClient::connect(guarded.server.ops()).unwrap();
    let head = format!(
        "POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {alice}\r\nContent-Length: {}\r\n\r\n{{",
        body.len()
    );
    client.send(&head).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    guarded.change("anonymous read\n");
    client.send(&body[1..]).unwrap();
    assert_eq!(client.read().unwrap().status, 401);
    let tags = ask(guarded.server.ops(), None, "GET", "/v1/tags", "").body;
    assert!(!tags.contains("late"), "{tags}");
}

/// Each change is one line, with who asked for it and what became of it.
#[test]
fn the_audit_log_has_each_change_and_nothing_else() {
    let (alice, alice_line) = token("alice", "admin");
    let (reader, reader_line) = token("reader", "read");
    let guarded = Guarded::start(&[alice_line, reader_line].concat(), &[]);
    let ops = guarded.server.ops();
    let log = guarded.file.with_file_name("audit.log");
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    ask(ops, Some(&alice), "GET", "/v1/tags", "");
    ask(ops, Some(&reader), "POST", "/v1/drain", "");
    ask(ops, None, "POST", "/v1/drain", "");
    assert!(lines().is_empty());
    let made = ask(ops, Some(&alice), "POST", "/v1/tags", r#"{"tag":"a/b","step":5}"#);
    // It stands there when the answer is.
    assert_eq!((made.status, lines().len()), (201, 1));
    ask(ops, Some(&alice), "POST", "/v1/tags", r#"{"tag":"a/b","step":5}"#);
    ask(ops, Some(&alice), "DELETE", "/v1/tags/a%2Fb?confirm=a%2Fb", "");
    ask(ops, Some(&alice), "POST", "/v1/drain", "not JSON");
    let lines = lines();
    let part = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(part("status"), [201, 409, 200, 200]);
    assert_eq!(part("caller"), ["alice"; 4]);
    assert_eq!(part("method"), ["POST", "POST", "DELETE", "POST"]);
    assert_eq!(lines[2]["path"], "/v1/tags/a%2Fb?confirm=a%2Fb");
    assert_eq!(lines[0]["body"]["step"], 5);
    assert!(lines[1]["problem"].as_str().unwrap().contains("exists"), "{}", lines[1]);
    assert!(lines[3]["body"].is_null() && lines[3]["problem"].is_null());
    for line in &lines {
        assert!(line["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    let long = format!(r#"{{"tag":"x","description":"{}"}}"#, "x".repeat(3000));
    ask(ops, Some(&alice), "POST", "/v1/tags", &long);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.lines().count() == 5 && !text.contains("xxxx"), "{text}");
    assert!(!text.contains(alice.as_str()));
}

/// Where the disk refuses the line, the program's log has it.
#[test]
fn a_line_that_cannot_be_written_is_in_the_log() {
    let (alice, line) = token("alice", "admin");
    let guarded = Guarded::start(&line, &[]);
    std::fs::create_dir(guarded.file.with_file_name("audit.log")).unwrap();
    assert_eq!(ask(guarded.server.ops(), Some(&alice), "POST", "/v1/drain", "").status, 200);
    wait_until("the log has it", Duration::from_secs(20), || {
        let output = guarded.server.output();
        let written = output.lines().find(|line| line.contains("audit.log cannot be written"));
        written.map(|line| assert!(line.contains("\"caller\":\"alice\""), "{line}"))
    });
}

/// A server whose tokens file has an error does not start, and names the line and the reason.
#[test]
fn a_server_does_not_start_with_a_broken_file() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |file: &Path| {
        let output = std::process::Command::new(SERVER)
            .args(["check", "--data-dir"])
            .arg(directory.path())
            .env("LEAF_TOKENS_FILE", file)
            .env("LEAF_HTTP__LISTEN", "127.0.0.1:0")
            .env("LEAF_OPS__LISTEN", "127.0.0.1:0")
            .env("LEAF_REDIS__LISTEN", "off")
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let file = directory.path().join("tokens");
    let (ended, text) = refused(&file);
    assert!(!ended && text.contains("FAIL  tokens_file: tokens_file: "), "{text}");
    std::fs::write(&file, "app\n").unwrap();
    assert!(refused(&file).1.contains("line 1: give it a role"));
    std::fs::write(&file, token("app", "ids").1).unwrap();
    assert!(refused(&file).1.contains("ok    tokens_file: 1 callers"));
}
