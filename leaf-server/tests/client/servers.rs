//! Servers that die, hang, come back, or are in another zone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use leaf_client::{ClientErrorKind, LeafClient, Step, TagHandle};
use leaf_testkit::{Fault, FaultProxy, LeafServer};
use tokio::time::Instant;

use crate::{Caller, PROTOCOLS, Protocol, TAG, builder, make_tag, start};

/// Takes ids for this time, and returns how long the slowest call took.
async fn take_for(length: Duration, tag: &TagHandle, caller: &mut Caller) -> Duration {
    let (until, mut slowest) = (Instant::now() + length, Duration::ZERO);
    while Instant::now() < until {
        let asked = Instant::now();
        let id = tag.next().await;
        slowest = slowest.max(asked.elapsed());
        caller
            .got_rising(id.unwrap_or_else(|error| panic!("after {:?}: {error}", asked.elapsed())));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    slowest
}

/// All servers are away: callers notice nothing while the stock lasts, then get a precise error
/// within their deadline, and get ids again when a server is back.
#[tokio::test(flavor = "multi_thread")]
async fn servers_may_go_away_while_the_stock_lasts() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = start(&data, &[]);
    let proxy = FaultProxy::start(server.ids()).await;
    let place = format!("http://{}", proxy.address());
    let client = LeafClient::builder().endpoint(&place).build().unwrap();
    let orders = client.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    take_for(Duration::from_millis(500), &orders, &mut caller).await;

    server.kill();
    let slowest = take_for(Duration::from_secs(2), &orders, &mut caller).await;
    assert!(slowest < Duration::from_millis(500), "somebody waited {slowest:?}");
    // To the end of the stock.
    while let Some(id) = orders.try_next() {
        caller.got_rising(id);
    }
    let asked = Instant::now();
    let error = orders.next().await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
    assert!(error.retryable() && error.to_string().contains(&place), "{error}");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(4), "the deadline is 1 s, and it took {took:?}");

    let server = start(&data, &[]);
    proxy.point_to(server.ids());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match orders.next().await {
            Ok(id) => break caller.got_rising(id),
            Err(error) if error.retryable() && Instant::now() < deadline => {}
            Err(error) => panic!("{error}"),
        }
    }
    take_for(Duration::from_millis(500), &orders, &mut caller).await;
    client.close().await;
}

/// Two servers on one store, told apart by their worker ids.
fn two_servers(directory: &Path, zones: [&str; 2]) -> [LeafServer; 2] {
    let store = format!("sqlite:{}", directory.join("leaf.db").display());
    [0, 1].map(|number| {
        let host = format!("leaf-{number}");
        let env = [
            ("LEAF_ZONE", zones[number]),
            ("LEAF_SEGMENT__STORE", store.as_str()),
            ("LEAF_SNOWFLAKE__REGISTRY", "ordinal"),
            ("LEAF_SNOWFLAKE__HOST_NAME", host.as_str()),
        ];
        start(&directory.join(&host), &env)
    })
}

async fn workers(client: &LeafClient, lists: usize) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    for _ in 0..lists {
        let id = client.snowflake().next().await.unwrap();
        seen.insert(leaf_core::Layout::LEAF.decode(id).unwrap().worker.get());
        // The next one is of another list.
        while client.snowflake().try_next().is_some() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_the_own_zone_are_asked_others_when_they_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = two_servers(directory.path(), ["a", "b"]);
    let both = builder(&[&servers[0], &servers[1]]).build().unwrap();
    assert_eq!(workers(&both, 40).await, BTreeSet::from([0, 1]), "no zone: both");

    let near = builder(&[&servers[0], &servers[1]]).zone("b").build().unwrap();
    near.tag(TAG).await.unwrap().warm_up().await.unwrap();
    // It asks them for their zones first.
    let deadline = Instant::now() + Duration::from_secs(20);
    while workers(&near, 20).await != BTreeSet::from([1]) {
        assert!(Instant::now() < deadline, "servers of another zone are asked");
    }
    servers[1].kill();
    // What lies in the client is a second old at most.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(workers(&near, 20).await, BTreeSet::from([0]), "and nobody saw an error");
    let tag = near.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    for _ in 0..10_000 {
        caller.got_rising(tag.next().await.unwrap());
    }
}

/// One of two servers hangs: a request that reaches it is sent to the other one, and soon no
/// request reaches it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_ejected() {
    for protocol in PROTOCOLS {
        one_of_two_hangs_over(protocol).await;
    }
}

async fn one_of_two_hangs_over(protocol: Protocol) {
    let directory = tempfile::tempdir().unwrap();
    let servers = two_servers(directory.path(), ["a", "a"]);
    let proxy = FaultProxy::start(protocol.address(&servers[0])).await;
    let urls = [proxy.address(), protocol.address(&servers[1])].map(|at| protocol.url_of(at));
    let deadline = Duration::from_secs(3);
    let client = LeafClient::builder()
        .endpoints(urls)
        .attempt(Duration::from_millis(500))
        .deadline(deadline)
        .max_lease(Step::new(50).unwrap())
        .build()
        .unwrap();
    let tag = client.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    for fault in [Fault::SwallowRequests, Fault::Cut, Fault::None] {
        proxy.set(fault);
        let started = Instant::now();
        for _ in 0..3000 {
            caller.got_rising(tag.next().await.unwrap());
        }
        let took = started.elapsed();
        // 60 leases, half of which met the bad server would take 15 s.
        assert!(took < Duration::from_secs(10), "{protocol:?}, {fault:?}: {took:?}");
    }
    client.close().await;
}

/// A connection that is dead is given up after one late answer, even if it is the only one.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_dead_is_made_anew() {
    for protocol in PROTOCOLS {
        let directory = tempfile::tempdir().unwrap();
        let server = start(directory.path(), &[]);
        let proxy = FaultProxy::start(protocol.address(&server)).await;
        let client = LeafClient::builder()
            .endpoint(protocol.url_of(proxy.address()))
            .attempt(Duration::from_millis(300))
            .deadline(Duration::from_secs(3))
            .build()
            .unwrap();
        let mut caller = Caller::new();
        let snowflake = client.snowflake();
        caller.got_rising(snowflake.next().await.unwrap());
        proxy.set(Fault::BlackHole);
        while snowflake.try_next().is_some() {}
        assert!(snowflake.next().await.is_err());
        // Those that were there stay dead.
        proxy.set(Fault::None);
        let healed = Instant::now();
        while snowflake.next().await.is_err() {}
        assert!(healed.elapsed() < Duration::from_secs(10), "{protocol:?}: {:?}", healed.elapsed());
    }
}

/// A server that allows fewer ids in a list than the client asks for is asked for fewer.
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_as_long_as_servers_allow() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[("LEAF_HTTP__MAX_COUNT", "100")]);
    for protocol in PROTOCOLS {
        let client = protocol.builder(&[&server]).build().unwrap();
        let (snowflake, mut caller) = (client.snowflake(), Caller::new());
        for _ in 0..3000 {
            caller.got_rising(snowflake.next().await.unwrap());
        }
    }
}

/// A client leases ranges of a member of a family, which its first request makes.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_family_is_made_by_its_first_lease() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &[]);
    make_tag(&server, r#"{"tag":"chat/*","family":true,"step":100}"#);
    for protocol in PROTOCOLS {
        let client = protocol.builder(&[&server]).build().unwrap();
        let tag = client.tag(&format!("chat/{protocol:?}")).await.unwrap();
        assert_eq!(tag.next().await.unwrap().get(), 1);
        let family = client.tag("chat/*").await.unwrap_err();
        assert!(family.to_string().contains("family of tags"), "{family}");
        client.close().await;
    }
}
