//! Families of tags over several servers: a member is made once, by its first use, whichever
//! servers are asked for it and whichever are killed meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leaf_testkit::{HttpClient, LeafServer, MariaDb, RedisClient, Response};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

/// Asks the ops listener.
fn ops(server: &LeafServer, method: &str, path: &str, body: &str) -> Response {
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    client.ask(method, path, headers, body).unwrap()
}

fn get(server: &LeafServer, path: &str) -> Response {
    HttpClient::once(server.ids(), "GET", path)
}

#[test]
fn a_family_from_its_creation_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let env = [("LEAF_SEGMENT__REFRESH", "1s".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &[], &env);
    let year = jiff::Timestamp::now().to_string()[..4].to_owned();

    let create = |body: &str| ops(&server, "POST", "/v1/tags", body);
    let named = r#"{"tag":"invoice/*","order":"strict"}"#;
    let refused = create(named);
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("say that it is one"), "{}", refused.body);
    let scrambled = r#"{"tag":"a/*","step":10,"shape":"scramble:63","family":true}"#;
    assert!(create(scrambled).body.contains("one by one"));
    let made = create(
        r#"{"tag":"invoice/*","family":true,"order":"strict","reset":"yearly","text":"{date:%Y}-{n:06}","max_members":5}"#,
    );
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.json()["family"]["max_members"], 5);
    assert_eq!(create(r#"{"tag":"chat/*","family":true,"step":100}"#).status, 201);

    // Every protocol makes members.
    let text = get(&server, "/v1/segments/invoice%2Facme/ids?as=text");
    assert_eq!(text.json()["ids"][0], format!("{year}-000001"), "{}", text.body);
    let java = get(&server, "/api/segment/get/chat/java");
    assert_eq!((java.status, &*java.body), (200, "1"));
    let mut redis = RedisClient::connect(server.redis()).unwrap();
    assert_eq!(redis.command(&["INCR", "chat/redis"]).unwrap().id(), Some(1));
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let path = "/v1/segments/chat%2Flease/lease?count=50";
    let lease = client.ask("POST", path, "Host: localhost\r\n", "").unwrap();
    assert_eq!(lease.status, 200, "{}", lease.body);

    let of_family = get(&server, "/v1/segments/invoice%2F*/ids");
    assert_eq!(of_family.status, 404);
    assert!(of_family.body.contains("family"), "{}", of_family.body);
    for n in 1..5 {
        assert_eq!(get(&server, &format!("/v1/segments/invoice%2F{n}/ids")).status, 200);
    }
    let full = get(&server, "/v1/segments/invoice%2F5/ids");
    assert!(full.body.contains("max_members"), "{}", full.body);
    let more = r#"{"max_members":6}"#;
    let changed = ops(&server, "PATCH", "/v1/tags/invoice%2F*", more);
    assert_eq!((changed.status, &changed.json()["family"]["members"]), (200, &5.into()));
    assert_eq!(ops(&server, "PATCH", "/v1/tags/leaf-segment-test", more).status, 409);
    leaf_testkit::wait_until("a new member", Duration::from_secs(5), || {
        (get(&server, "/v1/segments/invoice%2F5/ids").status == 200).then_some(())
    });

    // Listed by the family.
    let first = ops(&server, "GET", "/v1/tags?family=invoice%2F*&limit=4", "").json();
    let rest = first["next"].as_str().unwrap();
    let rest = ops(&server, "GET", &format!("/v1/tags?family=invoice%2F*&after={rest}"), "").json();
    let names = |list: &serde_json::Value| {
        let tags = list["tags"].as_array().unwrap().clone();
        tags.iter().map(|tag| tag["tag"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut all = [names(&first), names(&rest)].concat();
    all.sort();
    assert_eq!(all, ["1", "2", "3", "4", "5", "acme"].map(|name| format!("invoice/{name}")));
    assert_eq!(first["tags"][0]["member_of"], "invoice/*");
    assert_eq!(ops(&server, "GET", "/v1/tags?family=invoice", "").status, 400);

    // Switched off, and deleted.
    let off = ops(&server, "PATCH", "/v1/tags/invoice%2F*", r#"{"enabled":false}"#);
    assert_eq!(off.status, 200, "{}", off.body);
    leaf_testkit::wait_until("a member that is disabled", Duration::from_secs(5), || {
        (get(&server, "/v1/segments/invoice%2Facme/ids").status == 404).then_some(())
    });
    let delete = |confirm| ops(&server, "DELETE", &format!("/v1/tags/chat%2F*{confirm}"), "");
    let unconfirmed = delete("");
    assert!(unconfirmed.body.contains("as tags of their own"), "{}", unconfirmed.body);
    assert_eq!(delete("?confirm=chat%2F*").status, 200);
    assert_eq!(get(&server, "/api/segment/get/chat/java").body, "2");
    assert_eq!(get(&server, "/api/segment/get/chat/new").status, 404);
}

/// Three servers of which one is killed every other second.
struct Cluster {
    directories: Vec<tempfile::TempDir>,
    servers: Vec<Mutex<LeafServer>>,
    addresses: Vec<Mutex<SocketAddr>>,
    url: String,
}

impl Cluster {
    fn start(url: String) -> Self {
        let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let servers: Vec<_> = directories.iter().map(|it| Self::server(it, &url)).collect();
        let addresses = servers.iter().map(|server| Mutex::new(server.ids())).collect();
        Self { directories, servers: servers.into_iter().map(Mutex::new).collect(), addresses, url }
    }

    fn server(directory: &tempfile::TempDir, url: &str) -> LeafServer {
        let env = [
            ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
            ("LEAF_SEGMENT__IDLE", "20s".to_owned()),
            ("LEAF_SEGMENT__REFRESH", "10s".to_owned()),
        ];
        LeafServer::start(SERVER, directory.path(), &["--segment-store", url], &env)
    }

    fn kill_and_start(&self, at: usize) {
        let mut server = self.servers[at].lock().unwrap();
        server.kill();
        *server = Self::server(&self.directories[at], &self.url);
        *self.addresses[at].lock().unwrap() = server.ids();
    }

    /// The most memory that one of them has.
    fn kib(&self) -> u64 {
        let servers = self.servers.iter().map(|server| server.lock().unwrap().resident_kib());
        servers.max().unwrap_or_default()
    }
}

/// A client of all three.
struct Client<'a> {
    cluster: &'a Cluster,
    connections: [Option<HttpClient>; 3],
    /// Answers that were no number.
    failed: &'a AtomicU64,
}

impl Client<'_> {
    fn connection(&mut self, at: usize) -> Option<&mut HttpClient> {
        if self.connections[at].is_none() {
            let address = *self.cluster.addresses[at].lock().unwrap();
            self.connections[at] = HttpClient::connect(address).ok();
        }
        self.connections[at].as_mut()
    }

    fn ask(&mut self, at: usize, member: &str) -> bool {
        let request = format!("GET /v1/segments/{member}/ids?as=text HTTP/1.1\r\nHost: a\r\n\r\n");
        let sent = self.connection(at).is_some_and(|client| client.send(&request).is_ok());
        if !sent {
            self.connections[at] = None;
        }
        sent
    }

    fn answer(&mut self, at: usize) -> Option<String> {
        let answer = self.connections[at].as_mut()?.read();
        let number = answer.as_ref().ok().filter(|answer| answer.status == 200);
        let number = number.map(|answer| answer.json()["ids"][0].as_str().unwrap().to_owned());
        if number.is_none() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            if answer.is_err() {
                self.connections[at] = None;
            }
        }
        number
    }

    /// Takes numbers of one member: two with simultaneous requests, which make the member, and then
    /// one more. Returns how many numbers were taken.
    fn use_member(&mut self, n: usize, prefix: &str) -> u64 {
        let member = format!("invoice%2Fm{n}");
        let number = |text: &str| {
            let digits = text.strip_prefix(prefix).unwrap_or_else(|| panic!("{member}: {text}"));
            assert_eq!(digits.len(), 6, "{member}: {text}");
            digits.parse::<u64>().unwrap()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut seen, mut turn) = (Vec::new(), n);
        while seen.len() < 2 {
            assert!(Instant::now() < deadline, "{member} has no numbers within a minute");
            let asked = [turn % 3, (turn + 1) % 3].map(|at| (at, self.ask(at, &member)));
            for (at, _) in asked.into_iter().filter(|(_, sent)| *sent) {
                seen.extend(self.answer(at).map(|text| number(&text)));
            }
            turn += 1;
        }
        let greatest = *seen.iter().max().unwrap();
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all, "{member}: {seen:?}");
        let last = loop {
            assert!(Instant::now() < deadline, "{member} has no further number within a minute");
            turn += 1;
            if self.ask(turn % 3, &member)
                && let Some(text) = self.answer(turn % 3)
            {
                break number(&text);
            }
        };
        assert!(last > greatest, "{member}: {last} after {seen:?}");
        (all + 1) as u64
    }
}

/// `LEAF_TEST_MEMBERS` makes it long: a million take an hour.
#[test]
fn members_are_made_once_over_three_servers_that_are_killed() {
    let count = std::env::var("LEAF_TEST_MEMBERS").ok().and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(3000);
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let cluster = Cluster::start(url);
    let body = r#"{"tag":"invoice/*","family":true,"order":"strict","reset":"yearly","text":"{date:%Y}-{n:06}",
        "members_per_second":1000000}"#;
    let made = ops(&cluster.servers[0].lock().unwrap(), "POST", "/v1/tags", body);
    assert_eq!(made.status, 201, "{}", made.body);
    let prefix = format!("{}-", &jiff::Timestamp::now().to_string()[..4]);

    let (next, numbers, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (over, kills, begun) = (AtomicBool::new(false), AtomicUsize::new(0), Instant::now());
    let most = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..48)
            .map(|_| {
                scope.spawn(|| {
                    let connections = [None, None, None];
                    let mut client = Client { cluster: &cluster, connections, failed: &failed };
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= count {
                            return;
                        }
                        if n > 0 && n % 50_000 == 0 {
                            let (took, kib) = (begun.elapsed().as_secs(), cluster.kib());
                            eprintln!("{n} members after {took} s, {kib} KiB");
                        }
                        numbers.fetch_add(client.use_member(n, &prefix), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs(2));
                most.fetch_max(cluster.kib(), Ordering::Relaxed);
                cluster.kill_and_start(kills.fetch_add(1, Ordering::Relaxed) % 3);
            }
        });
        for worker in workers {
            if let Err(panic) = worker.join() {
                over.store(true, Ordering::Relaxed);
                std::panic::resume_unwind(panic);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    most.fetch_max(cluster.kib(), Ordering::Relaxed);

    let family = ops(&cluster.servers[0].lock().unwrap(), "GET", "/v1/tags/invoice%2F*", "");
    let members = family.json()["family"]["members"].as_u64().unwrap();
    eprintln!(
        "{members} members, {} numbers, {} kills, {} requests without a number, {} s, at most {} KiB",
        numbers.load(Ordering::Relaxed),
        kills.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed),
        begun.elapsed().as_secs(),
        most.load(Ordering::Relaxed),
    );
    assert_eq!(members, count as u64, "each is counted once");
    assert!(most.load(Ordering::Relaxed) < 400_000, "the memory is bounded");
}
