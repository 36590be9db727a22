//! A failover to a replica that lacks the last allocations, under running servers.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic and sleep")]

use std::collections::HashSet;
use std::time::Duration;

use leaf_testkit::{FaultProxy, HttpClient, LeafServer, Ledger, MariaDb, Postgres, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
/// The failover margin in the test of leases: exactly as many ids as the failover loses.
const LEASED: i64 = 20_000;

/// Takes ids until there have been this many; the database may be away meanwhile.
fn take(server: &LeafServer, count: usize) -> Vec<i64> {
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let mut ids = Vec::with_capacity(count);
    wait_until("ids flow", Duration::from_secs(60), || {
        while ids.len() < count {
            let answer = client.request("GET", SEGMENT).unwrap();
            if answer.status != 200 {
                return None;
            }
            ids.push(answer.body.parse().unwrap());
        }
        Some(())
    });
    ids
}

/// What became of two servers when their database failed over.
struct Outcome {
    /// All ids that they issued, before and after.
    ids: Vec<i64>,
    /// The greatest id before the failover.
    last_before: i64,
    log: String,
}

/// The steps of the failure catalogue: with semi-synchronous replication, the replica is cut off
/// until the primary goes on without it. After more allocations the primary is killed, the replica
/// is promoted, and the address points to it. The servers keep running.
fn fail_over(guard: bool) -> Outcome {
    let (primary, replica) = MariaDb::start_replicated();
    let name = primary.new_database();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(([127, 0, 0, 1], primary.port()).into()));
    let url = MariaDb::url(proxy.address().port(), &name);
    let start = || {
        let directory = tempfile::tempdir().unwrap();
        let env = [
            ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
            ("LEAF_SEGMENT__FAILOVER_GUARD", guard.to_string()),
        ];
        let args = ["--segment-store", url.as_str()];
        (LeafServer::launch(SERVER, directory.path(), &args, &env), directory)
    };
    LeafServer::make_tables(SERVER, &url);
    primary.sql(&format!("UPDATE {name}.leaf_alloc SET step = 100"));
    let ((mut busy, _kept), (mut idle, _also_kept)) = (start(), start());
    busy.wait_ready();
    idle.wait_ready();
    let mut ids = take(&busy, 1000);
    ids.extend(take(&idle, 50));
    // The idle server fetches its next segment now. If the replica lacked that segment, the
    // regression guard would refuse the ranges that the replica grants.
    let max_id = |database: &MariaDb| {
        database.sql(&format!(
            "SELECT max_id FROM {name}.leaf_alloc WHERE biz_tag = 'leaf-segment-test'"
        ))
    };
    wait_until("the replica has all that was granted", Duration::from_secs(30), || {
        let status = HttpClient::once(idle.ops(), "GET", "/v1/status").json();
        let stock: u64 = status["segment"]["stores"][0]["stock"].as_str().unwrap().parse().unwrap();
        // The rest of its first segment is less than a segment.
        let fetched = stock > 100;
        (fetched && max_id(&replica) == max_id(&primary)).then_some(())
    });

    // What one server is granted from now on only the primary knows.
    replica.sql("STOP SLAVE IO_THREAD");
    ids.extend(take(&busy, 20_000));
    let status = primary.sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_status'");
    assert!(status.ends_with("OFF"), "the primary waits no more, without a word: {status}");
    let last_before = ids.iter().copied().max().unwrap();
    primary.crash();
    replica.sql("STOP SLAVE; SET GLOBAL read_only = 0");
    proxy.point_to(([127, 0, 0, 1], replica.port()).into());

    // The other server's stock is soon used up: it asks the promoted replica.
    ids.extend(take(&idle, 20_000));
    if guard {
        ids.extend(take(&busy, 20_000));
    }
    Outcome { ids, last_before, log: busy.output() + &idle.output() }
}

fn repeats(ids: &[i64]) -> usize {
    let mut seen = HashSet::new();
    ids.iter().filter(|id| !seen.insert(**id)).count()
}

/// G-03, with the guards.
#[test]
fn a_failover_that_lost_allocations_repeats_nothing() {
    let outcome = fail_over(true);

    assert_eq!(repeats(&outcome.ids), 0);
    assert!(outcome.ids.iter().max().unwrap() - outcome.last_before > 9_000_000, "it jumped");
    assert!(
        outcome.log.contains("every tag of leaf_alloc was advanced by 10000000"),
        "{}",
        outcome.log
    );
    assert!(!outcome.log.contains("leaf:leaf"), "no password in the log");
}

/// The negative control: without the failover guard the same steps repeat ids, so the test above
/// can fail.
#[test]
fn without_the_guard_the_same_failover_repeats_ids() {
    let outcome = fail_over(false);

    assert!(repeats(&outcome.ids) > 100, "{} of {}", repeats(&outcome.ids), outcome.ids.len());
}

/// A range that a client holds: it hands the ids out itself.
struct Lease {
    ids: std::ops::Range<i64>,
    ticket: String,
}

/// Leases ids; the database may be away meanwhile.
fn lease(server: &LeafServer) -> Lease {
    let path = format!("/v1/segments/leaf-segment-test/lease?count={LEASED}");
    let answer = wait_until("a lease is granted", Duration::from_secs(60), || {
        let answer = HttpClient::once(server.ids(), "POST", &path);
        (answer.status == 200).then(|| answer.json())
    });
    let number = |name: &str| answer[name].as_str().unwrap().parse::<i64>().unwrap();
    let ticket = answer["ticket"].as_str().unwrap().to_owned();
    Lease { ids: number("start")..number("end"), ticket }
}

/// Gives the end of a lease back; whether the store took it.
fn give_back(server: &LeafServer, ticket: &str, ids: &std::ops::Range<i64>) -> bool {
    let (start, end) = (ids.start, ids.end);
    let path =
        format!("/v1/segments/leaf-segment-test/return?ticket={ticket}&start={start}&end={end}");
    let answer = wait_until("the return is answered", Duration::from_secs(60), || {
        Some(HttpClient::once(server.ids(), "POST", &path)).filter(|answer| answer.status == 200)
    });
    answer.json()["returned"].as_bool().unwrap()
}

/// G-25: the promoted replica has the first of two leases and lacks the second. The unused end of
/// the first lease, the last range that the replica has, is not accepted back: the jump would then
/// begin lower, and end below the end of the second lease.
#[test]
fn nothing_goes_back_to_a_promoted_mariadb() {
    let (primary, replica) = MariaDb::start_replicated();
    let name = primary.new_database();
    let query = format!("SELECT max_id FROM {name}.leaf_alloc WHERE biz_tag = 'leaf-segment-test'");
    nothing_goes_back(&Pair {
        ports: [primary.port(), replica.port()],
        url: &|port| MariaDb::url(port, &name),
        replicated: &|| replica.sql(&query),
        stop_following: &|| _ = replica.sql("STOP SLAVE IO_THREAD"),
        fail_over: &|| {
            primary.crash();
            replica.sql("STOP SLAVE; SET GLOBAL read_only = 0");
        },
    });
}

#[test]
fn nothing_goes_back_to_a_promoted_postgres() {
    let primary = Postgres::start();
    let replica = primary.start_replica();
    let name = primary.new_database();
    let query = "SELECT max_id FROM leaf_alloc WHERE biz_tag = 'leaf-segment-test'";
    nothing_goes_back(&Pair {
        ports: [primary.port(), replica.port()],
        url: &|port| Postgres::url(port, &name),
        replicated: &|| replica.sql(&name, query),
        stop_following: &|| replica.stop_following(),
        fail_over: &|| {
            primary.crash();
            replica.promote();
        },
    });
}

/// A database and its replica.
struct Pair<'a> {
    ports: [u16; 2],
    url: &'a dyn Fn(u16) -> String,
    /// Reads the `max_id` that has reached the replica.
    replicated: &'a dyn Fn() -> String,
    stop_following: &'a dyn Fn(),
    fail_over: &'a dyn Fn(),
}

fn nothing_goes_back(pair: &Pair<'_>) {
    let [primary, replica] = pair.ports;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(([127, 0, 0, 1], primary).into()));
    let url = (pair.url)(proxy.address().port());
    let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let env = [
        ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
        ("LEAF_SEGMENT__MAX_STEP", "2000".to_owned()),
        ("LEAF_SEGMENT__FAILOVER_MARGIN", LEASED.to_string()),
    ];
    // By this configuration: the table remembers the greatest margin of any node.
    let args = ["schema", "--apply", "--segment-store", url.as_str()];
    let mut schema = LeafServer::process(SERVER, directories[2].path(), &args, &env);
    assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
    LeafServer::make_sample(&url);
    let start = |number: usize| {
        let args = ["--segment-store", url.as_str()];
        LeafServer::start(SERVER, directories[number].path(), &args, &env)
    };
    let (one, other) = (start(0), start(1));
    let ledger = Ledger::default();
    let use_ids = |holder: &str, ids: std::ops::Range<i64>| {
        ids.for_each(|id| ledger.record(&holder.into(), id));
    };

    let first = lease(&one);
    wait_until("the replica knows the first lease", Duration::from_secs(30), || {
        ((pair.replicated)().trim() == first.ids.end.to_string()).then_some(())
    });
    (pair.stop_following)();
    let second = lease(&other);
    assert_eq!(second.ids.start, first.ids.end, "nobody else asked");
    (pair.fail_over)();
    proxy.point_to(([127, 0, 0, 1], replica).into());

    // A ticket is valid for one call, which must not meet a broken connection. Reading first
    // replaces the broken connections.
    wait_until("the connections lead to the replica", Duration::from_secs(60), || {
        let read = |server: &LeafServer| {
            HttpClient::once(server.ops(), "GET", "/v1/tags/leaf-segment-test").status
        };
        (0..20).all(|_| read(&one) == 200 && read(&other) == 200).then_some(())
    });
    let used = first.ids.start + LEASED / 4;
    let returned = give_back(&one, &first.ticket, &(used..first.ids.end));
    use_ids("the first lease", first.ids.start..used);
    let half = second.ids.start + LEASED / 2;
    assert!(!give_back(&other, &second.ticket, &(half..second.ids.end)), "the replica lacks it");
    use_ids("the second lease", second.ids);
    for server in [&one, &other] {
        // What was leased after the failover goes back as before.
        let later = lease(server);
        let middle = later.ids.start + LEASED / 2;
        use_ids("a lease after the failover", later.ids.start..middle);
        assert!(give_back(server, &later.ticket, &(middle..later.ids.end)));
        use_ids("a lease after that", lease(server).ids);
    }
    assert!(!returned, "the promoted server did not grant it");
}
