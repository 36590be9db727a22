//! A database that lost its last changes, the nodes that notice it, and the command that repairs
//! it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::{
    HighWaterMarks, NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, StoreErrorKind,
    TagHandle,
};
use leaf_testkit::MariaDb;
use support::{leaf, leaf_with};

const TAG: &str = "leaf-segment-test";

/// A node with a data directory.
struct Node {
    segments: SegmentGenerator,
    handle: TagHandle,
}

impl Node {
    async fn start(url: &str, directory: &Path) -> Self {
        let url: StoreUrl = url.parse().unwrap();
        let open = url.open(directory, &StoreOptions::default()).await.unwrap();
        let marks = Arc::new(HighWaterMarks::open(&directory.join("segment.marks")).unwrap());
        let config = SegmentConfig { marks, ..SegmentConfig::default() };
        let segments = SegmentGenerator::open(open.store, config).await;
        let handle = segments.tag(TAG).await.unwrap();
        Self { segments, handle }
    }

    async fn take(&self, count: usize) -> Vec<i64> {
        self.handle.take(count).await.unwrap().map(|id| id.get()).collect()
    }

    /// Takes ids until the regression guard refuses. Returns the ids that came from the stock, the
    /// start of the range that was refused, and the mark.
    async fn until_refused(&self) -> (Vec<i64>, i64, i64) {
        let mut ids = Vec::new();
        loop {
            match self.handle.next().await {
                Ok(id) => ids.push(id.get()),
                Err(error) => {
                    assert_eq!(*error.kind(), SegmentErrorKind::Guard, "{error}");
                    match error.store_error().unwrap().kind() {
                        StoreErrorKind::Regression { start, mark } => return (ids, *start, *mark),
                        other => panic!("{other}"),
                    }
                }
            }
        }
    }
}

fn assert_distinct(mut ids: Vec<i64>) {
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an id was repeated");
}

async fn database() -> (Arc<MariaDb>, String, String) {
    let server = tokio::task::spawn_blocking(MariaDb::shared).await.unwrap();
    let name = server.new_database();
    let url = MariaDb::url(server.port(), &name);
    let parsed: StoreUrl = url.parse().unwrap();
    let open = parsed.open(Path::new("."), &StoreOptions::default()).await.unwrap();
    open.admin.apply().await.unwrap();
    open.store.create(&NewTag::sample()).await.unwrap();
    (server, name, url)
}

/// G-08: somebody lowers `max_id` by hand under two live nodes. Both refuse, and continue after the
/// repair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_edited_down_is_refused_by_both_nodes() {
    let (server, name, url) = database().await;
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = Node::start(&url, directories[0].path()).await;
    let second = Node::start(&url, directories[1].path()).await;
    let mut ids = first.take(3000).await;
    ids.extend(second.take(3000).await);

    server.sql(&format!("UPDATE {name}.leaf_alloc SET max_id = 1"));
    let mut highest = 0;
    for node in [&first, &second] {
        let (stock, start, mark) = node.until_refused().await;
        assert!(start < mark, "{start} {mark}");
        highest = highest.max(mark);
        ids.extend(stock);
    }
    let at_least = highest.to_string();
    for directory in &directories {
        let found = leaf_with(
            directory.path(),
            &["doctor", "--data-dir", "."],
            &[("LEAF_SEGMENT__STORE", &url)],
        );
        let named = leaf(directory.path(), &["doctor", "--data-dir", ".", "--store", &url]);
        for found in [found, named] {
            let told = found.code == 1
                && found.out.contains("went back")
                && found.out.contains("granted ids below");
            assert!(told, "{found:?}");
        }
        // Without the directory the store may be any other.
        leaf(directory.path(), &["doctor", "--store", &url]).ok();
    }
    leaf(directories[0].path(), &["tag", "advance", TAG, "--at-least", &at_least, "--store", &url])
        .ok();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for directory in &directories {
        let found = leaf_with(
            directory.path(),
            &["doctor", "--data-dir", "."],
            &[("LEAF_SEGMENT__STORE", &url)],
        );
        assert!(!found.out.contains("went back"), "{found:?}");
    }
    for node in [&first, &second] {
        ids.extend(node.take(5000).await);
        node.segments.close().await;
    }
    assert_distinct(ids);
}

/// G-07: a restored backup. A node that has the high-water mark refuses, also after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_is_refused_by_whoever_remembers() {
    let (server, name, url) = database().await;
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&url, directory.path()).await;
    let mut ids = node.take(100).await;
    server.sql(&format!("CREATE TABLE {name}.backup AS SELECT * FROM {name}.leaf_alloc"));
    ids.extend(node.take(10_000).await);
    // Killed: nothing goes back.
    drop(node);
    server.sql(&format!(
        "UPDATE {name}.leaf_alloc a JOIN {name}.backup b USING (biz_tag) SET a.max_id = b.max_id"
    ));

    let node = Node::start(&url, directory.path()).await;
    let (stock, start, mark) = node.until_refused().await;
    assert!(stock.is_empty() && start < mark && mark > 10_000, "{start} {mark}");
    let at_least = mark.to_string();
    leaf(directory.path(), &["tag", "advance", TAG, "--at-least", &at_least, "--store", &url]).ok();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    ids.extend(node.take(10_000).await);
    node.segments.close().await;
    assert_distinct(ids);
}

/// G-26: after its last changes were lost, a database granted a node the ids that another node has
/// in memory. Nobody noticed it. The repair makes both nodes drop these ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_reaches_both_nodes() {
    let (server, name, url) = database().await;
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = Node::start(&url, directories[0].path()).await;
    let issued = first.take(10).await;
    server.sql(&format!("UPDATE {name}.leaf_alloc SET max_id = 1"));
    let second = Node::start(&url, directories[1].path()).await;
    assert_eq!(second.take(10).await, issued, "the same ids, and neither node can know");

    let args = ["tag", "advance", TAG, "--at-least", "100000", "--store", &url];
    let told = leaf(directories[0].path(), &args).ok();
    assert!(told.contains("every node drops the ids that it has"), "{told}");
    let mut ids = Vec::new();
    for node in [&first, &second] {
        node.segments.read_soon();
        let changed = async {
            while node.handle.next().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), changed).await.unwrap();
        let error = node.handle.next().await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::Changed, "{error}");
        let again = node.segments.tag(TAG).await.unwrap();
        for _ in 0..1000 {
            ids.push(again.next().await.unwrap().get());
        }
        node.segments.close().await;
    }
    assert!(ids.iter().all(|id| *id >= 100_000), "an id of before the repair: {ids:?}");
    assert_distinct(ids);
    // Nothing of before went back, and it is repeated with the same number without harm.
    assert!(leaf(directories[0].path(), &args).ok().contains("was that high already"));
}

/// G-04: the doctor reports semi-synchronous replication that fell back to asynchronous, before ids
/// are lost.
#[test]
fn the_doctor_names_replication_that_fell_back() {
    let (primary, replica) = MariaDb::start_replicated();
    let name = primary.new_database();
    let url = MariaDb::url(primary.port(), &name);
    let home = tempfile::tempdir().unwrap();
    let doctor = || leaf(home.path(), &["doctor", "--store", &url]);
    let no_tables = doctor();
    assert!(no_tables.out.contains("leaf-server schema --apply"), "{no_tables:?}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let parsed: StoreUrl = url.parse().unwrap();
        let open = parsed.open(Path::new("."), &StoreOptions::default()).await.unwrap();
        open.admin.apply().await.unwrap();
        open.store.create(&NewTag::sample()).await.unwrap();
    });
    assert_eq!(doctor().ok(), "nothing found\n");

    replica.sql("STOP SLAVE IO_THREAD");
    primary.sql(&format!("UPDATE {name}.leaf_alloc SET description = 'a write that waits'"));
    let found = doctor();
    assert!(found.out.contains("has fallen back to asynchronous") && found.code == 1, "{found:?}");
    assert!(!found.out.contains("leaf:leaf"), "no password: {found:?}");
}

/// G-33: a row that is inserted with plain SQL may be below the ids that a deleted tag granted.
#[test]
fn the_doctor_names_a_row_below_the_ids_of_a_deleted_tag() {
    let (mysql, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let database = mysql.new_database();
    let url = MariaDb::url(mysql.port(), &database);
    let run = |args: &[&str]| leaf(home.path(), &[args, &["--store", &url]].concat());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place: StoreUrl = url.parse().unwrap();
        let open = place.open(home.path(), &StoreOptions::default()).await.unwrap();
        open.admin.apply().await.unwrap();
        open.store.close().await;
    });
    run(&["tag", "create", "orders", "--step", "10", "--first", "500"]).ok();
    run(&["tag", "delete", "orders", "--yes"]).ok();
    let insert = |max_id: u32| {
        let table = format!("{database}.leaf_alloc");
        mysql.sql(&format!(
            "REPLACE INTO {table} (biz_tag, max_id, step) VALUES ('orders', {max_id}, 10)"
        ));
    };
    insert(499);
    let found = run(&["doctor"]);
    assert!(found.out.contains("orders") && found.out.contains("500 or more"), "{found:?}");
    insert(500);
    run(&["doctor"]).ok();
}
