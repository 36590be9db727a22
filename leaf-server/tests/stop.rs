//! SIGTERM: what is under way is answered, the worker id is given back, the exit code is 0.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/test";

#[test]
fn a_stopped_server_answers_what_it_took_and_gives_the_worker_id_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut last = server.id(SNOWFLAKE);
    let (address, ops) = (server.ids(), server.ops());
    let mut probe = HttpClient::connect(ops).unwrap();
    assert_eq!(probe.request("GET", "/readyz").unwrap().status, 200);
    let clients: Vec<_> = (0..64)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = HttpClient::connect(address).unwrap();
                let mut answered = 0u64;
                loop {
                    let answer = match client.request("GET", SNOWFLAKE) {
                        Ok(answer) => answer,
                        Err(error) => panic!("after {answered} answers: {error}"),
                    };
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    answered += 1;
                    // The announcement: nothing more on this connection.
                    if answer.header("connection") == Some("close") {
                        return answer.body.parse::<i64>().unwrap();
                    }
                }
            })
        })
        .collect();
    wait_until("ids flow", Duration::from_secs(10), || {
        (server.id(SNOWFLAKE) > last + (1 << 22)).then_some(())
    });

    server.process_mut().signal("TERM");

    for client in clients {
        last = last.max(client.join().unwrap());
    }
    let status = server.process_mut().wait(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "{}", server.output());
    assert!(server.output().contains("worker id released"), "{}", server.output());
    assert!(!server.output().contains("did not end"), "{}", server.output());
    assert!(HttpClient::connect(ops).is_err());

    // At once, without waiting for its own former time to pass.
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    assert!(server.id(SNOWFLAKE) > last);
    assert!(!server.output().contains("waiting"), "{}", server.output());
}

/// HTTP/2 announces the end of a connection: requests sent before it are answered, later ones are
/// not accepted.
#[test]
fn a_stop_fails_no_request_of_http2() {
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Bytes;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let directory = tempfile::tempdir().unwrap();
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let address = server.ids();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clients = runtime.block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            let (sender, connection) =
                builder.handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..16 {
                let mut sender = sender.clone();
                clients.spawn(async move {
                    let mut answered = 0;
                    loop {
                        let request = hyper::Request::get(format!("http://{address}{SNOWFLAKE}"));
                        let request = request.body(Empty::new()).unwrap();
                        // Not taken any more.
                        if sender.ready().await.is_err() {
                            return answered;
                        }
                        let answer = match sender.try_send_request(request).await {
                            Ok(answer) => answer,
                            // It comes back where it was not sent, or not taken.
                            Err(mut error) => match error.take_message() {
                                Some(_) => return answered,
                                None => {
                                    // One beyond the last that GOAWAY names was not taken, either.
                                    let error = format!("{:?}", error.into_error());
                                    let not_taken =
                                        error.contains("GoAway(b\"\", NO_ERROR, Remote)");
                                    assert!(not_taken, "after {answered}: {error}");
                                    return answered;
                                }
                            },
                        };
                        assert_eq!(answer.status(), 200);
                        let body = answer.into_body().collect().await.unwrap().to_bytes();
                        assert!(std::str::from_utf8(&body).unwrap().parse::<i64>().is_ok());
                        answered += 1;
                    }
                });
            }
        }
        clients
    });
    let first = server.id(SNOWFLAKE);
    wait_until("ids flow", Duration::from_secs(10), || {
        (server.id(SNOWFLAKE) > first + (1 << 22)).then_some(())
    });

    server.process_mut().signal("TERM");

    let answered: Vec<u64> = runtime.block_on(clients.join_all());
    assert!(answered.iter().sum::<u64>() > 100, "{answered:?}");
    let status = server.process_mut().wait(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "{}", server.output());
}

#[test]
fn an_idle_connection_does_not_hold_the_stop_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut idle = HttpClient::connect(server.ids()).unwrap();
    assert_eq!(idle.request("GET", SNOWFLAKE).unwrap().status, 200);
    let _silent = HttpClient::connect(server.ids()).unwrap();

    server.process_mut().signal("INT");

    let status = server.process_mut().wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0), "{}", server.output());
}

#[test]
fn unused_segment_ids_are_not_lost_by_a_stop() {
    const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
    let directory = tempfile::tempdir().unwrap();
    let mut next = 1;
    for _ in 0..3 {
        let mut server = LeafServer::start(SERVER, directory.path(), &[], &[]);
        for _ in 0..5 {
            assert_eq!(server.id(SEGMENT), next);
            next += 1;
        }
        assert!(server.stop().success());
    }
}

/// A drain is the first half of a stop: balancers send no new requests, and everything else goes
/// on.
#[test]
fn a_node_that_is_drained_serves_on_until_it_is_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let ready = || HttpClient::once(server.ops(), "GET", "/readyz");
    for _ in 0..2 {
        let drained = HttpClient::once(server.ops(), "POST", "/v1/drain");
        assert_eq!(drained.json()["codes"], serde_json::json!(["drained"]), "{drained:?}");
        assert!(
            ready().status == 503 && ready().body.contains("DELETE /v1/drain"),
            "{:?}",
            ready()
        );
        let _ = server.id(SNOWFLAKE);
        assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").status, 200);
    }
    assert_eq!(HttpClient::once(server.ops(), "DELETE", "/v1/drain").status, 200);
    assert_eq!(ready().body, "ready");
    assert_eq!(HttpClient::once(server.ops(), "DELETE", "/v1/drain?now=1").status, 400);
}

/// During `stop_delay` only `/readyz` reports the stop: clients are still served, also new ones.
#[test]
fn a_stop_gives_balancers_time_to_notice() {
    const DELAY: Duration = Duration::from_secs(3);
    for signal in ["TERM", "QUIT"] {
        let directory = tempfile::tempdir().unwrap();
        let env = [("LEAF_STOP_DELAY", "3s".to_owned())];
        let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
        let mut kept = HttpClient::connect(server.ids()).unwrap();
        for ignored in ["USR1", "USR2"] {
            server.process_mut().signal(ignored);
        }
        let begun = Instant::now();
        server.process_mut().signal(signal);

        wait_until("/readyz says so", Duration::from_secs(2), || {
            let ready = HttpClient::once(server.ops(), "GET", "/readyz");
            (ready.status == 503 && ready.body.contains("stopping")).then_some(())
        });
        while begun.elapsed() < DELAY - Duration::from_millis(500) {
            let answer = kept.request("GET", SNOWFLAKE).unwrap();
            assert_eq!((answer.status, answer.header("connection")), (200, None));
            let _ = server.id(SNOWFLAKE);
        }

        let status = server.process_mut().wait(Duration::from_secs(15));
        assert_eq!(status.code(), Some(0), "{}", server.output());
        assert!(begun.elapsed() >= DELAY);
        let output = server.output();
        assert!(output.contains(&format!("stopping: SIG{signal}")), "{output}");
        assert!(output.contains("stopped after 3."), "{output}");
    }
}

/// Nobody reads standard error: ids flow, health is answered, and a stop ends in time. When it is
/// read again, the log says how many lines are missing.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // Open for both, so that neither side waits for the other.
    let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let script = format!("LEAF_LOG__LEVEL=trace exec \"$0\" \"$@\" 2>{}", pipe.display());
    let data = directory.path().join("data");
    let mut server = LeafServer::start_wrapped("sh", &["-c", &script, SERVER], &data);
    let unread = |reader: &std::fs::File| rustix::io::ioctl_fionread(reader).unwrap();
    let mut leases = 0;
    let mut serves = |server: &LeafServer, time: Duration| {
        let begun = Instant::now();
        let mut client = HttpClient::connect(server.ids()).unwrap();
        while begun.elapsed() < time {
            let _ = server.id(SNOWFLAKE);
            // Each is a line or more at this level.
            let lease = "/v1/segments/leaf-segment-test/lease?count=1";
            for _ in 0..50 {
                assert_eq!(client.request("POST", lease).unwrap().status, 200);
                leases += 1;
            }
            assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").status, 200);
            assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 200);
        }
        leases
    };
    wait_until("the pipe is full", Duration::from_secs(60), || {
        serves(&server, Duration::from_millis(100));
        (unread(&reader) > 60_000).then_some(())
    });
    // Longer than any ceiling lasts that was raised before, and more lines than wait.
    serves(&server, Duration::from_secs(8));
    wait_until("lines are dropped", Duration::from_secs(120), || {
        (serves(&server, Duration::from_millis(100)) > 12_000).then_some(())
    });

    let mut told = String::new();
    let mut part = vec![0; 1 << 16];
    wait_until("the log says what is missing", Duration::from_secs(30), || {
        while unread(&reader) > 0 {
            let read = std::io::Read::read(&mut reader, &mut part).unwrap();
            told += &String::from_utf8_lossy(&part[..read]);
        }
        told.contains("lines of the log were dropped").then_some(())
    });

    wait_until("the pipe is full again", Duration::from_secs(60), || {
        serves(&server, Duration::from_millis(100));
        (unread(&reader) > 60_000).then_some(())
    });
    server.process_mut().signal("TERM");
    assert!(server.process_mut().wait(Duration::from_secs(12)).success());
}
