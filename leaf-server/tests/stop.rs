//! SIGTERM: what is under way is answered, the worker id is given back, the exit code is 0.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, wait_until};

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

/// HTTP/2 announces the end by itself: what was sent before is answered, what comes after is not
/// taken.
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
