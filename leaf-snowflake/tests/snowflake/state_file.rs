//! What a node's own file proves: after a crash, without the registry, after a reboot, in a copy.
//! The registry is in memory, the file real, the clocks are moved by the test.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Health, WorkerId};
use leaf_snowflake::{
    ClaimPolicy, Registry, RegistryErrorKind, SnowflakeErrorKind, SnowflakeGenerator, StoreFault,
};

use crate::support::*;

/// W-06: the answer to a claim is lost, and the node crashes right after. Its next start recognizes
/// the claim by the nonce in the state file, instead of waiting for the end of a stranger's lease.
#[test]
fn a_claim_whose_answer_was_lost_is_found_by_the_next_start() {
    let cluster = Cluster::new();
    cluster.store.set_fault(StoreFault::AnswersLost);
    for _crash in 0..3 {
        let error =
            until_killed(async || open(&cluster.store, cluster.config("a")).await.unwrap_err());
        assert_eq!(*registry_error(&error), RegistryErrorKind::Unavailable);
        cluster.clock.advance(seconds(1));
    }

    cluster.store.set_fault(StoreFault::None);
    until_killed(async || {
        let flakes = cluster.open("a").await;
        flakes.try_next().unwrap();
        let found = (flakes.worker().unwrap().get(), flakes.view().term);
        assert_eq!(found, (0, 1), "a claim that was lost is found again");
    });
    let records = until_killed(async || cluster.workers().await);
    assert_eq!(records.len(), 1, "one claim, however often it was sent");
}

/// W-09: a node is killed and started again 40 times, each time with its clock 250 ms later.
#[test]
fn a_killed_node_goes_on_at_once_and_repeats_nothing() {
    let cluster = Cluster::new();
    let mut ids = HashSet::new();

    for round in 0..40 {
        until_killed(async || take_all(&cluster.open("a").await, 100, &mut ids));
        match round % 4 {
            0 => cluster.clock.set_wall(START + millis(250 * round)),
            _ => cluster.clock.advance(millis(250)),
        }
    }
}

/// W-09: the registry gives this node one fixed worker id only.
#[test]
fn a_killed_node_whose_clock_went_back_an_hour_refuses_and_writes_nothing() {
    let cluster = Cluster::new();
    let policy = ClaimPolicy { fixed: Some(WorkerId::new(0)), ..ClaimPolicy::default() };
    let registry = Registry::shared(Arc::clone(&cluster.store), policy, None);
    let start = async || SnowflakeGenerator::open(registry.clone(), cluster.config("a")).await;
    until_killed(async || start().await.unwrap().next().await.unwrap());
    cluster.clock.set_wall(START - seconds(3600));

    let before = until_killed(async || cluster.workers().await);
    for _crash_loop in 0..5 {
        let opened = until_killed(async || start().await.map(|_| ()));
        let error = opened.unwrap_err();
        assert!(matches!(registry_error(&error), RegistryErrorKind::FloorAhead { .. }), "{error}");
    }

    let after = until_killed(async || cluster.workers().await);
    assert_eq!(before[0].fence, after[0].fence);
}

/// W-09, W-10: without its state file a node cannot prove that a record is its own.
#[test]
fn a_node_without_its_state_file_waits_for_the_registry_ceiling() {
    let cluster = Cluster::new();
    let open = async |name: &str| {
        let mut config = cluster.config(name);
        config.layout = two_workers();
        open(&cluster.store, config).await
    };
    until_killed(async || open("a").await.unwrap().next().await.unwrap());
    until_killed(async || open("b").await.unwrap().next().await.unwrap());

    let error = until_killed(async || open("fresh").await.unwrap_err());
    assert!(error.to_string().contains("all 2 worker ids are in use"), "{error}");

    cluster.clock.advance(seconds(601));
    until_killed(async || open("fresh").await.unwrap().next().await.unwrap());
}

/// W-10: the registry is away at the start. Only this machine's own file of the last term lets a
/// node start, and its ids stop at the registry ceiling.
#[test]
fn without_the_registry_only_ones_own_file_may_start() {
    let cluster = Cluster::new();
    let file = |name: &str| cluster.directory.path().join(name);
    let start = |name: &str| {
        cluster.clock.advance(millis(500));
        until_killed(async || {
            let flakes = open(&cluster.store, cluster.config(name)).await?;
            let view = flakes.view();
            assert!(!view.confirmed && matches!(view.health, Health::Degraded(_)), "{view:?}");
            flakes.next().await
        })
    };
    let refused = |name: &str, why: &str| {
        let error = start(name).unwrap_err();
        assert!(error.to_string().contains(why), "{name}: {error}");
    };
    let first = until_killed(async || cluster.open("own").await.next().await.unwrap());
    until_killed(async || {
        let released = cluster.open("released").await;
        released.next().await.unwrap();
        released.close().await;
    });
    std::fs::copy(file("own"), file("copied")).unwrap();
    std::fs::copy(file("own"), file("torn")).unwrap();
    let torn = std::fs::OpenOptions::new().write(true).open(file("torn")).unwrap();
    torn.set_len(5000).unwrap();
    cluster.store.set_fault(StoreFault::Away);

    let second = start("own").unwrap();
    assert!(second > first);
    assert!(start("own").unwrap() > second, "and again");
    refused("absent", "registry unavailable");
    refused("released", "registry unavailable");
    for _start in 0..3 {
        // A start that fails must not make the copy an original.
        refused("copied", "registry unavailable");
    }
    refused("torn", "the state file is damaged");
    rewrite(&file("own"), "\"boot\":\"", "\"boot\":\"another-");
    for _start in 0..2 {
        refused("own", "registry unavailable");
    }
    rewrite(&file("own"), "\"boot\":\"another-", "\"boot\":\"");
    start("own").unwrap();

    cluster.clock.advance(seconds(605));
    refused("own", "registry unavailable");
}

/// W-10: ids of a node that started alone stop at the registry's ceiling; when the registry is
/// back the lease is confirmed, and nobody notices.
#[test]
fn a_node_that_started_alone_is_confirmed_later() {
    let cluster = Cluster::new();
    until_killed(async || cluster.open("a").await.next().await.unwrap());
    let mut last = None;
    for fault in [StoreFault::Away, StoreFault::AnswersLost] {
        cluster.store.set_fault(fault);
        until_killed(async || {
            let flakes = cluster.open("a").await;
            let epoch = flakes.view().term;
            for _ in 0..200 {
                cluster.pass(millis(100)).await;
                let id = Some(flakes.try_next().unwrap());
                assert!(id > last);
                last = id;
            }
            assert!(!flakes.view().confirmed);

            cluster.store.set_fault(StoreFault::None);
            for _ in 0..50 {
                cluster.pass(millis(100)).await;
                let id = Some(flakes.try_next().unwrap());
                assert!(id > last);
                last = id;
            }
            let view = flakes.view();
            assert!(view.confirmed, "{view:?}");
            assert_eq!((view.term, view.leases_lost), (epoch + 1, 0));
        });
    }
}

/// W-10: while a node ran without the registry its ceiling passed, and its worker id was taken
/// over.
#[test]
fn a_node_that_started_alone_and_was_overtaken_repeats_nothing() {
    let cluster = Cluster::new();
    let config = |name: &str| {
        let mut config = cluster.config(name);
        config.layout = two_workers();
        config.offline_for = seconds(60);
        config
    };
    let mut ids = HashSet::new();
    until_killed(async || {
        take_all(&open(&cluster.store, config("a")).await.unwrap(), 10, &mut ids);
    });
    cluster.store.set_fault(StoreFault::Away);
    until_killed(async || {
        let alone = open(&cluster.store, config("a")).await.unwrap();
        take_all(&alone, 10, &mut ids);
        // No await that waits: its keeper does not run yet, as under SIGSTOP.
        cluster.clock.advance(seconds(61));
        cluster.store.set_fault(StoreFault::None);
        let mut thieves = Vec::new();
        for name in ["b:1", "c:1"] {
            let who = leaf_snowflake::Identity::parse(name).unwrap();
            let mut request = request(START + seconds(61));
            request.layout = two_workers();
            thieves.push(cluster.registry().claim(&who, &request).await.unwrap());
        }
        assert_eq!(Some(thieves[1].worker), alone.worker());
        for _ in 0..100 {
            if let Ok(id) = alone.try_next() {
                assert!(alone.layout().decode(id).unwrap().timestamp < thieves[1].fence.floor);
                assert!(ids.insert(id));
            }
            cluster.pass(millis(100)).await;
        }
        assert_eq!(alone.view().leases_lost, 1);
        assert!(alone.try_next().is_err(), "both worker ids are in use");
        assert!(alone.health().to_string().contains("in place of the lost one"));
    });
}

/// A stop writes to the state file before the registry. After a crash between the two, the node
/// must not start without the registry, because another node may hold the worker id by then.
#[test]
fn a_node_that_began_to_give_back_does_not_start_alone() {
    let cluster = Cluster::new();
    until_killed(async || {
        let flakes = cluster.open("a").await;
        flakes.next().await.unwrap();
        cluster.store.set_fault(StoreFault::AnswersLost);
        flakes.close().await;
    });
    cluster.store.set_fault(StoreFault::Away);

    let started = until_killed(async || open(&cluster.store, cluster.config("a")).await);

    assert_eq!(*registry_error(&started.unwrap_err()), RegistryErrorKind::Unavailable);
}

/// W-10: after a reboot the record is watched for two report intervals first.
#[tokio::test(start_paused = true)]
async fn after_a_reboot_the_record_must_be_silent() {
    let cluster = Cluster::new();
    let file = cluster.directory.path().join("a");
    cluster.live_and_die("a");
    rewrite(&file, "\"boot\":\"", "\"boot\":\"another-");
    // A start that is given up does not shorten the watch of the next.
    let given_up = tokio::time::timeout(seconds(3), cluster.open("a")).await;
    assert!(given_up.is_err());
    let started = tokio::time::Instant::now();

    let flakes = cluster.open("a").await;

    assert!(started.elapsed() >= seconds(8), "{:?}", started.elapsed());
    assert_eq!(flakes.worker().unwrap().get(), 0, "its own again");
    flakes.next().await.unwrap();
}

/// W-10: after a reboot another process writes the state file, on a file system that does not share
/// the lock.
#[tokio::test(start_paused = true)]
async fn after_a_reboot_the_file_must_be_silent_too() {
    let cluster = Cluster::new();
    let file = cluster.directory.path().join("a");
    cluster.live_and_die("a");
    rewrite(&file, "\"boot\":\"", "\"boot\":\"another-");
    let before = std::fs::read(&file).unwrap();
    let elsewhere = tokio::spawn({
        let file = file.clone();
        async move {
            tokio::time::sleep(seconds(1)).await;
            rewrite(&file, "\"local_ceiling\":1800000000800", "\"local_ceiling\":1800000001600");
        }
    });

    let error = open(&cluster.store, cluster.config("a")).await.unwrap_err();

    assert!(error.to_string().contains("another process uses this data directory"), "{error}");
    elsewhere.await.unwrap();
    let after = std::fs::read(&file).unwrap();
    assert_ne!(before, after, "the other wrote");
    let writes = |pages: &[u8]| {
        let heads =
            pages.chunks(4096).map(|page| String::from_utf8_lossy(&page[..40]).into_owned());
        heads.collect::<Vec<_>>()
    };
    assert_eq!(writes(&before), writes(&after), "and this one did not");
}

/// W-10: another process writes the state file between its opening and the claim.
#[test]
fn what_another_process_wrote_since_the_file_was_opened_counts() {
    let cluster = Cluster::new();
    until_killed(async || cluster.open("a").await.next().await.unwrap());
    let file = cluster.directory.path().join("a");
    for origin in ["\"boot\":\"another-", "\"boot\":\""] {
        rewrite(&file, "\"boot\":\"", origin);
        until_killed(async || {
            let registry = Arc::clone(&cluster.store);
            let opened = SnowflakeGenerator::prepare(registry, cluster.config("a")).unwrap();
            rewrite(&file, "\"local_ceiling\":18000000", "\"local_ceiling\":18000009");

            let error = opened.claim().await.unwrap_err();

            assert!(error.to_string().contains("another process uses"), "{error}");
        });
        rewrite(&file, "\"local_ceiling\":18000009", "\"local_ceiling\":18000000");
        rewrite(&file, "another-", "");
    }
}

/// A registry that was restored from an early backup has no record; the node's state file still has
/// its ceiling.
#[test]
fn a_registry_that_forgot_everything_does_not_take_the_floor_along() {
    let cluster = Cluster::new();
    let first = until_killed(async || cluster.open("a").await.next().await.unwrap());
    cluster.store.forget();
    cluster.clock.set_wall(START - millis(100));

    let second = until_killed(async || cluster.open("a").await.next().await.unwrap());

    assert!(second > first);
}

/// W-12: a copied data directory is another instance: it gets another worker id.
#[tokio::test(start_paused = true)]
async fn a_copied_data_directory_is_another_node() {
    let cluster = Cluster::new();
    let original = cluster.open("a").await;
    std::fs::copy(cluster.directory.path().join("a"), cluster.directory.path().join("copy"))
        .unwrap();

    for _start in 0..2 {
        let copy = cluster.open("copy").await;
        assert_ne!(original.worker(), copy.worker());
        drop(copy);
        tokio::time::sleep(seconds(1)).await;
    }
}

/// W-12: a copied data directory does not get the original's worker id, even if all others are in
/// use.
#[test]
fn a_copied_data_directory_never_becomes_the_original_by_trying() {
    let cluster = Cluster::new();
    let config = |name: &str| {
        let mut config = cluster.config(name);
        config.layout = two_workers();
        config
    };
    until_killed(async || {
        let a = open(&cluster.store, config("a")).await.unwrap();
        let b = open(&cluster.store, config("b")).await.unwrap();
        let file = |name: &str| cluster.directory.path().join(name);
        std::fs::copy(file("a"), file("copy")).unwrap();
        refused(&cluster, config("copy")).await;
        drop((a, b));
    });
    // The registry has not heard of them for a while; they may be cut off from it, and issue.
    cluster.clock.advance(seconds(60));
    until_killed(async || refused(&cluster, config("copy")).await);
}

async fn refused(cluster: &Cluster, config: leaf_snowflake::SnowflakeConfig) {
    for _start in 0..3 {
        let error = open(&cluster.store, config.clone()).await.unwrap_err();
        assert!(error.to_string().contains("all 2 worker ids are in use"), "{error}");
    }
}

/// W-12: a node crashed between a claim and its answer; the claim was its first, or followed a lost
/// lease. Two clones of its volume both find the claim in their file and its record in the
/// registry. The first clone is frozen before it reports.
#[test]
fn two_clones_of_a_pending_claim_do_not_share_its_worker_id() {
    for held_before in [false, true] {
        two_clones_of_a_pending_claim(held_before);
    }
}

fn two_clones_of_a_pending_claim(held_before: bool) {
    let cluster = Cluster::new();
    let config = |name: &str| {
        let mut config = cluster.config(name);
        config.layout = two_workers();
        config
    };
    if held_before {
        until_killed(async || open(&cluster.store, config("a")).await.unwrap());
        // It is nobody's any more, and not to be gone on with.
        cluster.clock.advance(seconds(7200));
    }
    cluster.store.set_fault(StoreFault::AnswersLost);
    until_killed(async || open(&cluster.store, config("a")).await.unwrap_err());
    cluster.store.set_fault(StoreFault::None);
    let file = |name: &str| cluster.directory.path().join(name);
    let inode = |name: &str| std::fs::metadata(file(name)).unwrap().ino();
    let written = inode("a");
    for clone in ["clone", "twin"] {
        std::fs::copy(file("a"), file(clone)).unwrap();
        // As on another device with the same inode numbers.
        rewrite(
            &file(clone),
            &format!("\"inode\":{written}"),
            &format!("\"inode\":{}", inode(clone)),
        );
        rewrite(&file(clone), "\"device\":", "\"device\":1");
    }

    until_killed(async || {
        // Neither has reported yet when the other one starts.
        let first = open(&cluster.store, config("clone")).await;
        let second = open(&cluster.store, config("twin")).await;
        let workers: Vec<_> =
            [&first, &second].into_iter().flatten().map(|it| it.worker()).collect();
        assert!(workers.len() < 2 || workers[0] != workers[1], "shared: {workers:?}");

        // Once the time of the claim is over its worker id is free.
        cluster.clock.advance(seconds(601));
        let first = match first {
            Ok(holder) => holder,
            Err(_) => open(&cluster.store, config("clone")).await.unwrap(),
        };
        first.next().await.unwrap();
    });
}

/// No id is issued above the ceiling that was written, not even when the file is gone.
#[tokio::test(start_paused = true)]
async fn ids_stop_at_the_ceiling_that_was_written_down() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;
    cluster.pass(seconds(5)).await;
    flakes.next().await.unwrap();
    let file = cluster.directory.path().join("a");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();

    let mut last = flakes.next().await.unwrap();
    for _ in 0..200 {
        cluster.pass(millis(10)).await;
        if let Ok(id) = flakes.try_next() {
            last = id;
        }
    }

    let written = text.split("\"local_ceiling\":").skip(1);
    let written = written.map(|rest| rest[..13].parse::<u64>().unwrap()).max().unwrap();
    let issued = flakes.layout().decode(last).unwrap().timestamp;
    assert!(issued.get() < written, "{issued} was issued, {written} is written down");
    assert!(matches!(flakes.try_next().unwrap_err().kind(), SnowflakeErrorKind::CeilingReached));
    assert!(flakes.health().to_string().contains("removed or replaced"), "{}", flakes.health());
}

#[tokio::test]
async fn a_claim_that_is_given_up_keeps_its_file_and_lock() {
    let cluster = Cluster::new();
    let registry = Arc::clone(&cluster.store);
    let config = cluster.config("a");
    let flakes = SnowflakeGenerator::prepare(Arc::clone(&registry), config.clone()).unwrap();
    // Polled until its write is under way.
    for _ in 0..3 {
        let claim = flakes.claim();
        let _ = tokio::time::timeout(Duration::ZERO, claim).await;
    }

    flakes.claim().await.unwrap();

    flakes.next().await.unwrap();
    let second = SnowflakeGenerator::prepare(registry, config.clone()).unwrap_err();
    assert!(second.to_string().contains("another process uses"), "{second}");
    let text = std::fs::read_to_string(config.state_file.unwrap()).unwrap();
    assert!(text.contains("\"term\":"));
}

/// Replaces a text in both slots of a state file, and corrects the checksums.
fn rewrite(file: &Path, from: &str, to: &str) {
    const SLOT: usize = 4096;
    let pages = std::fs::read(file).unwrap();
    let mut changed = Vec::new();
    for page in pages.chunks(SLOT) {
        let page = std::str::from_utf8(page).unwrap();
        let (line, rest) = page.split_once('\n').unwrap();
        let text = rest.lines().next().unwrap_or_default().replace(from, to);
        let head: Vec<_> = line.split(' ').collect();
        let head = format!("{} {} {:04}", head[0], head[1], text.len());
        let sum = crc32fast::hash(format!("{head}\n{text}").as_bytes());
        let mut page = format!("{head} {sum:08x}\n{text}\n").into_bytes();
        page.resize(SLOT, b'\n');
        changed.extend(page);
    }
    // In place: the inode stays.
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(file).unwrap(),
        &changed,
        0,
    )
    .unwrap();
}
