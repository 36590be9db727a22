//! TLS of the listeners: with real certificates, by real clients, and while certificates change.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_testkit::{Certificates, HttpClient, LeafServer, Ledger, RedisClient, wait_until};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const ID: &str = "/api/segment/get/leaf-segment-test";

/// An encrypted connection.
type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Starts a server that encrypts: `modes` are those of HTTP, Redis, gRPC and ops.
fn start(
    certificates: &Certificates,
    modes: [&str; 4],
    env: &[(&str, &str)],
) -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.display().to_string();
    let mut all = vec![
        ("LEAF_TLS__CERTIFICATE", text(&certificates.server())),
        ("LEAF_TLS__KEY", text(&certificates.server_key())),
        ("LEAF_GRPC__LISTEN", "127.0.0.1:0".into()),
    ];
    let keys = ["LEAF_HTTP__TLS", "LEAF_REDIS__TLS", "LEAF_GRPC__TLS", "LEAF_OPS__TLS"];
    all.extend(keys.into_iter().zip(modes.map(String::from)));
    all.extend(env.iter().map(|(key, value)| (*key, (*value).to_owned())));
    let server = LeafServer::launch(SERVER, directory.path(), &[], &all);
    (directory, server)
}

/// The configuration of a client that trusts the authority, and shows a certificate if it has one.
fn client(
    certificates: &Certificates,
    own: Option<(&Path, &Path)>,
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(certificates.authority()).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(certificate).unwrap()],
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Connects, and does the handshake.
fn connect(config: &Arc<ClientConfig>, address: SocketAddr) -> io::Result<Tls> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(session, socket))
}

/// One request on a connection that goes on; the body of its answer.
fn get(stream: &mut Tls, path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut answer = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let length = stream.read(&mut bytes)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&bytes[..length]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        if body.len() == length {
            assert!(head.starts_with("http/1.1 200"), "{text}");
            return Ok(body.to_owned());
        }
    }
}

/// The value of a series of the page of metrics.
fn metric(config: &Arc<ClientConfig>, server: &LeafServer, series: &str) -> f64 {
    let page = get(&mut connect(config, server.ops()).unwrap(), "/metrics").unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
}

/// Waits until the server closes the connection, and returns what it sends before.
fn ends(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut said = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn every_listener_encrypts_and_offers_its_protocols() {
    let certificates = Certificates::make();
    let (_directory, server) = start(&certificates, ["required"; 4], &[]);
    let output = server.output();
    for url in [
        "  ids        https://",
        "  redis      rediss://",
        "  grpc       https://",
        "  ops        https://",
    ] {
        assert!(output.contains(url), "{output}");
    }
    let all = ["h2", "http/1.1"];
    let offered = |address, protocols: &[&str]| {
        let stream = connect(&client(&certificates, None, protocols), address);
        let chosen = stream.map(|stream| stream.conn.alpn_protocol().map(<[u8]>::to_vec));
        chosen.map(|chosen| chosen.map(|name| String::from_utf8(name).unwrap()))
    };
    let some = |name: &str| Some(name.to_owned());
    for http in [server.ids(), server.ops()] {
        assert_eq!(offered(http, &all).unwrap(), some("h2"));
        assert_eq!(offered(http, &["http/1.1"]).unwrap(), some("http/1.1"));
        assert_eq!(offered(http, &[]).unwrap(), None);
    }
    assert_eq!(offered(server.grpc(), &all).unwrap(), some("h2"));
    assert_eq!(offered(server.redis(), &[]).unwrap(), None);

    let plain = client(&certificates, None, &[]);
    let mut ids = connect(&plain, server.ids()).unwrap();
    assert_eq!(get(&mut ids, ID).unwrap(), "1");
    assert_eq!(get(&mut ids, ID).unwrap(), "2");
    let mut ops = connect(&plain, server.ops()).unwrap();
    assert_eq!(get(&mut ops, "/healthz").unwrap(), "ok");
    let authority = certificates.authority().display().to_string();
    let port = server.redis().port().to_string();
    let redis = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", &authority])
        .args(["INCR", "leaf-segment-test"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&redis.stdout).trim(), "3", "{redis:?}");
    // HTTP/2, as gRPC has it: the server's settings come first.
    let mut grpc = connect(&client(&certificates, None, &["h2"]), server.grpc()).unwrap();
    grpc.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    grpc.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "a frame of settings");

    // Who does not encrypt gets nothing.
    for address in [server.ids(), server.redis(), server.grpc(), server.ops()] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let said = ends(&mut stream);
        assert!(!said.contains("HTTP") && !said.contains("ERR"), "{said:?}");
    }
    // Nor does one that trusts another authority talk to it.
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.other_authority()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let other = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert!(connect(&Arc::new(other), server.ids()).is_err());

    let handshakes = |outcome: &str| {
        format!(r#"leaf_tls_handshakes_total{{protocol="http",outcome="{outcome}"}}"#)
    };
    assert!(metric(&plain, &server, &handshakes("done")) >= 4.0);
    assert_eq!(metric(&plain, &server, &handshakes("failed")), 2.0);
    let end = metric(&plain, &server, "leaf_tls_certificate_end_timestamp_seconds");
    let now = jiff::Timestamp::now().as_second() as f64;
    assert!((end - now - 2.0 * 86_400.0).abs() < 600.0, "{end}");
}

#[test]
fn an_optional_listener_serves_both() {
    let certificates = Certificates::make();
    let (_directory, mut server) = start(&certificates, ["optional"; 4], &[]);
    server.wait_ready();
    let config = client(&certificates, None, &[]);
    // One that says nothing yet keeps its connection.
    let mut silent = HttpClient::connect(server.ids()).unwrap();
    for round in 0..3 {
        assert_eq!(server.id(ID), 1 + 3 * round);
        let mut stream = connect(&config, server.ids()).unwrap();
        assert_eq!(get(&mut stream, ID).unwrap(), (2 + 3 * round).to_string());
        let mut redis = RedisClient::connect(server.redis()).unwrap();
        assert_eq!(
            redis.command(&["INCR", "leaf-segment-test"]).unwrap().id(),
            Some(3 + 3 * round)
        );
        let mut stream = connect(&config, server.redis()).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
        let mut ops = connect(&config, server.ops()).unwrap();
        assert_eq!(get(&mut ops, "/healthz").unwrap(), "ok");
    }
    assert_eq!(silent.request("GET", ID).unwrap().body, "10");
}

/// Does something at its end, also where that is a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The certificate that a server shows.
fn shown(config: &Arc<ClientConfig>, address: SocketAddr) -> Vec<u8> {
    let stream = connect(config, address).unwrap();
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Replaces a file as a whole, as programs that renew certificates do.
fn replace(file: &Path, by: &Path) {
    let beside = file.with_extension("new");
    std::fs::copy(by, &beside).unwrap();
    std::fs::rename(beside, file).unwrap();
}

#[test]
fn certificates_change_under_load_and_bad_ones_change_nothing() {
    let certificates = Certificates::make();
    let (_directory, server) =
        start(&certificates, ["required", "required", "off", "required"], &[]);
    let config = client(&certificates, None, &[]);
    let (ledger, ended, answered) = (Ledger::default(), AtomicBool::new(false), AtomicU64::new(0));
    let ready = r#"leaf_health{state="ready"}"#;
    wait_until("ready", Duration::from_secs(60), || {
        (metric(&config, &server, ready) == 1.0).then_some(())
    });
    let reload = || server.signal("HUP");
    let take = |stream: &mut Tls, issuer: &Arc<str>| {
        ledger.record(issuer, get(stream, ID).unwrap().parse().unwrap());
        answered.fetch_add(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        let _end = OnDrop(|| ended.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            let issuer: Arc<str> = "one connection".into();
            let mut stream = connect(&config, server.ids()).unwrap();
            while !ended.load(Ordering::Relaxed) {
                take(&mut stream, &issuer);
            }
        });
        scope.spawn(|| {
            let issuer: Arc<str> = "a connection each".into();
            while !ended.load(Ordering::Relaxed) {
                take(&mut connect(&config, server.ids()).unwrap(), &issuer);
            }
        });
        let mut last = shown(&config, server.ids());
        for round in 0..5 {
            let (certificate, key) = certificates.issue("ca", &format!("server-{round}"));
            // Between the two they do not fit together.
            replace(&certificates.server(), &certificate);
            reload();
            std::thread::sleep(Duration::from_millis(100));
            let without_its_key = shown(&config, server.ids()) != last;
            assert!(!without_its_key, "a certificate is in force without its key");
            replace(&certificates.server_key(), &key);
            reload();
            last = wait_until("the new certificate", Duration::from_secs(20), || {
                let now = shown(&config, server.ids());
                (now != last).then_some(now)
            });
            assert_eq!(last, CertificateDer::from_pem_file(&certificate).unwrap().to_vec());
            assert_eq!(last, shown(&config, server.redis()));
        }
        let successful = "leaf_tls_last_read_successful";
        assert_eq!(metric(&config, &server, successful), 1.0);
        let good = std::fs::read(certificates.server()).unwrap();
        for bad in [&b""[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(certificates.server(), bad).unwrap();
            reload();
            wait_until("the metric", Duration::from_secs(20), || {
                (metric(&config, &server, successful) == 0.0).then_some(())
            });
            assert_eq!(shown(&config, server.ids()), last);
        }
        std::fs::write(certificates.server(), good).unwrap();
        reload();
        wait_until("the metric", Duration::from_secs(20), || {
            (metric(&config, &server, successful) == 1.0).then_some(())
        });
    });
    let output = server.output();
    assert!(output.contains("tls.key: it is not the key of tls.certificate"), "{output}");
    assert_eq!(output.matches("took over another certificate").count(), 5, "{output}");
    println!("{} ids", answered.load(Ordering::Relaxed));
    ledger.expect_at_least(50);
}

#[test]
fn clients_show_a_certificate_where_there_is_an_authority_for_them() {
    let certificates = Certificates::make();
    let authority = certificates.authority().display().to_string();
    let (_directory, server) =
        start(&certificates, ["required"; 4], &[("LEAF_TLS__CLIENT_CA", &authority)]);
    let (good, good_key) = certificates.issue("ca", "client");
    let (bad, bad_key) = certificates.issue("other-ca", "stranger");
    let with = |own| client(&certificates, own, &[]);
    let ask = |config: &Arc<ClientConfig>| get(&mut connect(config, server.ids())?, ID);
    assert!(ask(&with(None)).is_err());
    assert!(ask(&with(Some((&bad, &bad_key)))).is_err());
    let config = with(Some((&good, &good_key)));
    assert_eq!(ask(&config).unwrap(), "1");
    // A session that is resumed would not show the certificate again.
    for _ in 0..3 {
        let mut stream = connect(&config, server.ids()).unwrap();
        get(&mut stream, ID).unwrap();
        assert_eq!(stream.conn.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(stream.conn.tls13_tickets_received(), 0);
    }
}

#[test]
fn clients_that_stop_in_the_handshake_hold_nobody_up() {
    let certificates = Certificates::make();
    let (_directory, server) = start(
        &certificates,
        ["required", "off", "off", "required"],
        &[("LEAF_HTTP__THREADS", "1")],
    );
    let config = client(&certificates, None, &[]);
    let begun = Instant::now();
    let mut silent: Vec<_> = (0..200).map(|_| TcpStream::connect(server.ids()).unwrap()).collect();
    // A part of a first message.
    silent.iter_mut().skip(100).for_each(|it| it.write_all(&[22, 3, 1, 1, 0, 1, 0]).unwrap());
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(2) {
        let begun = Instant::now();
        get(&mut connect(&config, server.ids()).unwrap(), ID).unwrap();
        slowest = slowest.max(begun.elapsed());
    }
    println!("the slowest handshake and request took {slowest:?}");
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
    for stream in &mut silent {
        assert_eq!(ends(stream), "");
    }
    let took = begun.elapsed();
    assert!((4..20).contains(&took.as_secs()), "they ended after {took:?}");
    let late = r#"leaf_tls_handshakes_total{protocol="http",outcome="too-slow"}"#;
    assert_eq!(metric(&config, &server, late), 200.0);
}

#[test]
fn nodes_ask_each_other_for_their_clocks() {
    let certificates = Certificates::make();
    let shared = tempfile::tempdir().unwrap();
    let registry = format!("sqlite:{}", shared.path().join("workers.db").display());
    let authority = certificates.authority().display().to_string();
    let env = [("LEAF_SNOWFLAKE__REGISTRY", &*registry), ("LEAF_TLS__CLIENT_CA", &*authority)];
    let one = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.display().to_string();
    let mut all: Vec<_> = env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    all.extend([
        ("LEAF_TLS__CERTIFICATE", text(&certificates.server())),
        ("LEAF_TLS__KEY", text(&certificates.server_key())),
        ("LEAF_HTTP__TLS", "required".into()),
    ]);
    // It shows the others where it is.
    let [ids, ops] = [(); 2].map(|()| format!("127.0.0.1:{}", leaf_testkit::free_port()));
    all.push(("LEAF_ADVERTISE", ids.clone()));
    let data = text(one.path());
    let args =
        ["--http-listen", &ids, "--ops-listen", &ops, "--redis-listen", "off", "--data-dir", &data];
    let _server = leaf_testkit::Process::start(SERVER, &args.map(String::from), &all);
    wait_until("ready", Duration::from_secs(60), || {
        let mut client = HttpClient::connect(ops.parse().unwrap()).ok()?;
        client.request("GET", "/readyz").ok().filter(|answer| answer.status == 200)
    });
    let two = tempfile::tempdir().unwrap();
    all.pop();
    all.push(("LEAF_ADVERTISE", "two:1".into()));
    let mut check = LeafServer::process(SERVER, two.path(), &["check"], &all);
    let status = check.wait(Duration::from_secs(60));
    let output = check.output();
    assert!(output.contains("clocks of the other nodes: 1 of 1 agree"), "{status}: {output}");
    assert!(output.contains("tls: the certificate ends on 2"), "{output}");
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    let certificates = Certificates::make();
    let directory = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.display().to_string();
    let (server, key) = (text(&certificates.server()), text(&certificates.server_key()));
    let (_, other) = certificates.issue("ca", "other");
    let nothing = text(&directory.path().join("nothing.pem"));
    let cases: [(&[(&str, &str)], &str); 6] = [
        (
            &[("LEAF_REDIS__TLS", "required")],
            "redis.tls: set tls.certificate and tls.key, or `off`",
        ),
        (&[("LEAF_TLS__CERTIFICATE", &server)], "tls: no listener uses it"),
        (&[("LEAF_HTTP__TLS", "on")], "give off, optional or required"),
        (
            &[
                ("LEAF_HTTP__TLS", "required"),
                ("LEAF_TLS__CERTIFICATE", &server),
                ("LEAF_TLS__KEY", &nothing),
            ],
            "tls.key: ",
        ),
        (
            &[
                ("LEAF_HTTP__TLS", "required"),
                ("LEAF_TLS__CERTIFICATE", &key),
                ("LEAF_TLS__KEY", &key),
            ],
            "tls.certificate: the file has no certificate in PEM",
        ),
        (
            &[
                ("LEAF_HTTP__TLS", "required"),
                ("LEAF_TLS__CERTIFICATE", &server),
                ("LEAF_TLS__KEY", &text(&other)),
            ],
            "tls.key: it is not the key of tls.certificate",
        ),
    ];
    for (env, text) in cases {
        let env: Vec<_> = env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        let mut process = LeafServer::process(SERVER, directory.path(), &[], &env);
        let status = process.wait(Duration::from_secs(20));
        let output = process.output();
        assert_eq!(status.code(), Some(2), "{output}");
        assert!(output.contains(text), "{text}: {output}");
        assert!(!output.contains("PRIVATE"), "{output}");
    }
}
