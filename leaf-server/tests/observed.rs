//! What a server reports about its requests: request ids, repeated lines of the log, traces, and
//! never a secret.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::{NextIdRequest, next_id_request};
use leaf_testkit::{HttpClient, LeafServer, RedisClient, Response, wait_until};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const ID: &str = "/api/segment/get/leaf-segment-test";
const PATIENCE: Duration = Duration::from_secs(30);

/// A request with a header.
fn ask(at: SocketAddr, method: &str, path: &str, header: &str, body: &str) -> Response {
    let mut client = HttpClient::connect(at).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\n{header}\r\n");
    let body = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    client.send(&(head + &body)).unwrap();
    client.read().unwrap()
}

#[test]
fn an_error_has_the_id_of_its_request_which_the_logs_have_too() {
    let directory = tempfile::tempdir().unwrap();
    let env = [("LEAF_LOG__LEVEL", "info,leaf_server=debug"), ("LEAF_GRPC__LISTEN", "127.0.0.1:0")];
    let mut server =
        LeafServer::start(SERVER, directory.path(), &[], &env.map(|(key, it)| (key, it.into())));
    let (http, ops, grpc) = (server.ids(), server.ops(), server.grpc());

    let reply = ask(http, "GET", "/v1/segments/nope", "X-Request-ID: a-1.b:2_3", "");
    assert_eq!((reply.status, reply.header("x-request-id")), (404, Some("a-1.b:2_3")));
    assert_eq!(reply.json()["instance"], "urn:leaf:request:a-1.b:2_3");

    // One that means something in a log is not taken.
    let reply = ask(http, "GET", "/v1/segments/nope", "X-Request-ID: a\" b=<c>", "");
    let drawn = reply.header("x-request-id").unwrap().to_owned();
    assert!(drawn.len() == 16 && drawn.bytes().all(|byte| byte.is_ascii_hexdigit()), "{drawn}");

    // A head that cannot be trusted, and an answer that is none.
    let reply = ask(http, "GET", "/", "Host: other", "");
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.header("x-request-id").is_some());
    assert_eq!(server.get(ID).header("x-request-id"), None);

    // A change: refused and done.
    let body = r#"{"tag":"orders","step":1000}"#;
    let reply = ask(ops, "POST", "/v1/tags", "X-Request-ID: first", body);
    assert_eq!(reply.status, 201, "{}", reply.body);
    let reply = ask(ops, "POST", "/v1/tags", "X-Request-ID: second", body);
    assert_eq!((reply.status, reply.header("x-request-id")), (409, Some("second")));
    let audit = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let noted: Vec<_> = lines.iter().map(|line| (&line["request"], &line["status"])).collect();
    assert_eq!(noted, [(&"first".into(), &201.into()), (&"second".into(), &409.into())]);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{grpc}")).unwrap();
        let mut client = IdServiceClient::new(endpoint.connect().await.unwrap());
        let source = Some(next_id_request::Source::Tag("nope".into()));
        let mut request = tonic::Request::new(NextIdRequest { source });
        request.metadata_mut().insert("x-request-id", "by-grpc".parse().unwrap());
        let status = client.next_id(request).await.unwrap_err();
        assert_eq!(status.metadata().get("x-request-id").unwrap(), "by-grpc");
    });

    server.stop();
    let log = server.output();
    for (id, reason) in [
        ("a-1.b:2_3", "unknown-tag"),
        (&drawn, "unknown-tag"),
        ("second", "tag-exists"),
        ("by-grpc", "unknown-tag"),
    ] {
        let is_told = |line: &str| line.contains(&format!("request={id}")) && line.contains(reason);
        assert!(log.lines().any(is_told), "no line of {id} and {reason}: {log}");
    }
}

#[test]
fn a_line_that_comes_again_is_counted() {
    const TEXT: &str = "; everything stays as it is";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    std::fs::write(&file, "anonymous read ids\n").unwrap();
    let env = [("LEAF_TOKENS_FILE", file.display().to_string())];
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
    std::fs::write(&file, "anonymous read nonsense\n").unwrap();
    for times in 1..=5 {
        server.signal("HUP");
        wait_until("the signal was followed", PATIENCE, || {
            server.output().contains(TEXT).then_some(())
        });
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(server.output().matches(TEXT).count(), 1, "after {times} signals");
    }
    server.stop();
    let log = server.output();
    let again: Vec<_> = log.lines().filter(|line| line.contains(TEXT)).skip(1).collect();
    assert!(again.len() == 1 && again[0].contains(": 4 times more in "), "{log}");
}

/// A word that no output may have, in whatever form it is written.
const CANARY: &str = "Kanarienvogel7";

/// Everything that a server with secrets outputs: its log at the finest level, its answers, its
/// files.
#[test]
fn no_secret_is_ever_shown() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let tokens = directory.path().join("tokens");
    // A line that cannot be read, with a token in clear where its hash belongs.
    std::fs::write(&tokens, format!("anonymous read\nshop {CANARY} ids\n")).unwrap();
    let nobody = "127.0.0.1:1";
    let secrets = [
        ("LEAF_SEGMENT__URL", format!("mysql://leaf:{CANARY}@{nobody}/leaf?x={CANARY}")),
        ("LEAF_SNOWFLAKE__REGISTRY", "etcd".to_owned()),
        ("LEAF_SNOWFLAKE__ETCD_URL", format!("http://leaf:{CANARY}@{nobody}")),
        ("LEAF_REDIS__PASSWORD", format!("{CANARY}-of-redis")),
        ("LEAF_OPS__TOKEN", format!("{CANARY}-of-operators-0123456789")),
        ("LEAF_TOKENS_FILE", tokens.display().to_string()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://leaf:{CANARY}@{nobody}")),
        ("LEAF_LOG__LEVEL", "trace".to_owned()),
    ];
    let mut said = String::new();
    // Each source alone, and in one that starts.
    let mut runs: Vec<Vec<(&str, String)>> =
        secrets.iter().map(|(key, value)| vec![(*key, value.clone())]).collect();
    runs.push(secrets.to_vec());
    let fine = |key: &str| !["LEAF_SNOWFLAKE__ETCD_URL", "LEAF_TOKENS_FILE"].contains(&key);
    let mut env: Vec<_> = secrets.iter().filter(|(key, _)| fine(key)).cloned().collect();
    env.push(("LEAF_SNOWFLAKE__ENABLED", "false".into()));
    env.retain(|(key, _)| *key != "LEAF_SNOWFLAKE__REGISTRY");
    runs.push(env);
    let mut started = 0;
    for env in &runs {
        for verb in ["check", "config"] {
            said += &run(&data, &[verb], env);
        }
        match LeafServer::try_launch(SERVER, &data, &[], env) {
            Err((_, output)) => said += &output,
            Ok(mut server) => {
                started += 1;
                said += &talk(&server);
                server.stop();
                said += &server.output();
            }
        }
    }
    assert!(started >= 3, "only {started} of {} started: {said}", runs.len());
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            said += &String::from_utf8_lossy(&std::fs::read(path).unwrap());
        }
    }
    let line = said.lines().find(|line| {
        let line = line.to_lowercase();
        line.contains(&CANARY.to_lowercase())
    });
    assert_eq!(line, None, "a secret is shown");
    assert!(said.contains("leaf_build_info") && said.contains("unauthorized"), "{said}");
}

/// Runs a subcommand of the server and returns its output.
fn run(data: &Path, arguments: &[&str], env: &[(&str, String)]) -> String {
    let mut command = std::process::Command::new("timeout");
    command.args(["30", SERVER]).args(arguments).arg("--data-dir").arg(data);
    command.envs(env.iter().map(|(key, value)| (*key, value.as_str())));
    let output = command.output().unwrap();
    [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat()
}

/// Shows a server secrets that are wrong, and some that are right; what it says.
fn talk(server: &LeafServer) -> String {
    let mut said = String::new();
    let right = format!("{CANARY}-of-operators-0123456789");
    for token in [format!("{CANARY}-wrong"), right] {
        for path in ["/v1/status", "/metrics", "/v1/tags", "/db", "/cache", "/v1/nope"] {
            let header = format!("Authorization: Bearer {token}");
            let reply = ask(server.ops(), "GET", path, &header, "");
            said += &format!("{} {:?} {}\n", reply.status, reply.headers, reply.body);
        }
        let header = format!("Authorization: Bearer {token}\r\nX-Request-ID: {token}\"");
        let reply = ask(server.ids(), "GET", ID, &header, "");
        said += &format!("{} {:?} {}\n", reply.status, reply.headers, reply.body);
    }
    let mut client = RedisClient::connect(server.redis()).unwrap();
    for secret in [format!("{CANARY}-wrong"), format!("{CANARY}-of-redis")] {
        for command in [&["AUTH", &secret][..], &["INFO"], &["CONFIG", "GET", "*"]] {
            said += &format!("{:?}\n", client.command(command));
        }
    }
    said
}

/// A collector of traces: the service of OpenTelemetry's own protocol.
struct Collector(Sender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|it| it.key == "service.name").unwrap();
            let value = name.value.as_ref().unwrap().value.as_ref().unwrap();
            assert!(format!("{value:?}").contains("leaf-server"), "{value:?}");
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send(span);
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Where it listens, and what it gets.
    fn start(runtime: &tokio::runtime::Runtime) -> (SocketAddr, Receiver<Span>) {
        let (sender, spans) = channel();
        let _context = runtime.enter();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let service = TraceServiceServer::new(Self(sender));
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(incoming));
        (address, spans)
    }
}

/// The attributes of a span that are texts.
fn texts(span: &Span) -> HashMap<&str, String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let text = |value: &Value| match value {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    };
    let each = span
        .attributes
        .iter()
        .filter_map(|it| Some((it.key.as_str(), text(it.value.as_ref()?.value.as_ref()?)?)));
    each.collect()
}

#[test]
fn traces_reach_a_collector_as_part_of_the_clients_trace() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (collector, spans) = Collector::start(&runtime);
    let directory = tempfile::tempdir().unwrap();
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}")),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".into()),
    ];
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
    let parent = |trace: &str| format!("traceparent: 00-{}-00f067aa0ba902b7-01", trace.repeat(32));
    // Its first use loads the tag.
    assert_eq!(server.get(ID).status, 200);
    // Answered at once: no span. Asked of the store, and of operators: one each.
    assert_eq!(ask(server.ids(), "GET", ID, &parent("a"), "").status, 200);
    let nope = "/api/segment/get/nope";
    assert_eq!(ask(server.ids(), "GET", nope, &parent("b"), "").status, 404);
    let header = format!("X-Request-ID: of-c\r\n{}", parent("c"));
    assert_eq!(ask(server.ops(), "GET", "/v1/status", &header, "").status, 200);

    let (mut seen, until) = (Vec::<Span>::new(), Instant::now() + PATIENCE);
    let has = |seen: &[Span], what: &dyn Fn(&Span) -> bool| seen.iter().any(what);
    let of = |trace: u8| move |span: &Span| span.name == "request" && span.trace_id == [trace; 16];
    let store = |span: &Span| span.name == "store" && texts(span).contains_key("what");
    let registry = |span: &Span| span.name == "registry" && texts(span)["what"] == "claim";
    while !(has(&seen, &of(0xbb))
        && has(&seen, &of(0xcc))
        && has(&seen, &store)
        && has(&seen, &registry))
    {
        let left = until.saturating_duration_since(Instant::now());
        let names = || seen.iter().map(|span| &span.name).collect::<Vec<_>>();
        seen.push(spans.recv_timeout(left).unwrap_or_else(|_| panic!("only {:?}", names())));
    }
    let of_c = seen.iter().find(|span| of(0xcc)(span)).unwrap();
    let told = texts(of_c);
    assert_eq!((told["id"].as_str(), told["on"].as_str()), ("of-c", "ops"));
    assert_eq!((told["method"].as_str(), told["path"].as_str()), ("GET", "/v1/status"));
    assert_eq!(of_c.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert!(!has(&seen, &of(0xaa)), "a request that does not wait has no span");
    // A collector that is gone costs nothing else.
    drop(runtime);
    assert_eq!(ask(server.ids(), "GET", nope, &parent("d"), "").status, 404);
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "the end took {:?}", begun.elapsed());
}
