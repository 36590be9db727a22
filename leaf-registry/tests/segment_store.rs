//! One conformance suite for every segment store, on the real database.
//!
//! A new backend is one more line in `backends!` and one function that makes an empty store.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use leaf_core::{IdRange, Step, StepError, Tag};
use leaf_registry::{OpenStore, StoreUrl};
use leaf_segment::{NewTag, SegmentStore, StoreErrorKind, TagRecord};
use leaf_testkit::MariaDb;

/// An empty store, and what must live as long as it does.
struct Fixture {
    store: Arc<dyn SegmentStore>,
    open: OpenStore,
    url: String,
    database: Database,
}

enum Database {
    Sqlite { _directory: tempfile::TempDir },
    Mysql(Arc<MariaDb>, String),
}

async fn sqlite() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("leaf.db").display());
    fixture(url, Database::Sqlite { _directory: directory }).await
}

async fn mysql() -> Fixture {
    let server = tokio::task::spawn_blocking(MariaDb::shared).await.unwrap();
    let database = server.new_database();
    let url = MariaDb::url(server.port(), &database);
    fixture(url, Database::Mysql(server, database)).await
}

async fn fixture(url: String, database: Database) -> Fixture {
    let parsed: StoreUrl = url.parse().unwrap();
    let open = parsed.open(std::path::Path::new(".")).await.unwrap();
    open.schema.apply().await.unwrap();
    Fixture { store: Arc::clone(&open.store), open, url, database }
}

impl Fixture {
    /// A second store on the same database, as another process would open it.
    async fn another(&self) -> Arc<dyn SegmentStore> {
        let url: StoreUrl = self.url.parse().unwrap();
        url.open(std::path::Path::new(".")).await.unwrap().store
    }

    /// Changes rows behind the store's back.
    async fn sql(&self, statement: &'static str) {
        match &self.database {
            Database::Sqlite { .. } => {
                let path = self.url.strip_prefix("sqlite:").unwrap();
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
                let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
                sqlx::query(statement).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Database::Mysql(server, database) => {
                let (server, database) = (Arc::clone(server), database.clone());
                tokio::task::spawn_blocking(move || {
                    server.sql(&format!("USE {database}; {statement}"))
                })
                .await
                .unwrap();
            }
        }
    }
}

fn tag(name: &str) -> Tag {
    Tag::parse(name).unwrap()
}

fn step(value: i64) -> Step {
    Step::new(value).unwrap()
}

async fn create(store: &dyn SegmentStore, name: &str, size: i64) {
    store.create(&NewTag::new(tag(name), step(size))).await.unwrap();
}

async fn refusal<T>(
    result: impl Future<Output = Result<T, leaf_segment::StoreError>>,
) -> StoreErrorKind {
    match result.await {
        Ok(_) => panic!("not refused"),
        Err(error) => error.kind().clone(),
    }
}

async fn the_first_range_is_the_records_own(f: Fixture) {
    let stock = tag("leaf-segment-test");
    let range = f.store.allocate(&stock, step(2000), step(2000)).await.unwrap();

    assert_eq!(range, IdRange::new(1, 2001).unwrap(), "Java's first ids are 1..2000");
    let record = f.store.tag(&stock).await.unwrap().unwrap();
    assert_eq!(
        record,
        TagRecord {
            tag: stock,
            max_id: 2001,
            step: Ok(step(2000)),
            description: Some("Test leaf Segment Mode Get Id".into()),
        }
    );
}

async fn sixteen_allocators_never_overlap(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let mut allocators = Vec::new();
    for i in 0..16i64 {
        // Half of them share a pool, half are another process.
        let store = if i % 2 == 0 { Arc::clone(&f.store) } else { f.another().await };
        allocators.push(tokio::spawn(async move {
            let mut ranges = Vec::new();
            for round in 0..20 {
                let amount = step(1 + (i + round) % 10);
                loop {
                    match store.allocate(&tag("orders"), amount, step(10)).await {
                        Ok(range) => break ranges.push(range),
                        Err(error) => assert!(error.retryable(), "{error}"),
                    }
                }
            }
            ranges
        }));
    }
    let mut ranges = Vec::new();
    for allocator in allocators {
        ranges.extend(allocator.await.unwrap());
    }

    assert_eq!(ranges.len(), 16 * 20);
    ranges.sort_by_key(|range| range.start());
    assert!(ranges.windows(2).all(|pair| !pair[0].overlaps(pair[1])));
    let sum: u64 = ranges.iter().map(|range| range.len()).sum();
    let max_id = f.store.tag(&tag("orders")).await.unwrap().unwrap().max_id;
    assert_eq!(max_id.cast_unsigned(), 1 + sum, "no id is lost when nothing failed");
}

async fn tags_are_compared_as_bytes(f: Fixture) {
    create(&*f.store, "order", 10).await;
    for other in ["Order", "ordér", "orde", "order-"] {
        let kind = refusal(f.store.allocate(&tag(other), step(10), step(10))).await;
        assert_eq!(kind, StoreErrorKind::UnknownTag, "{other}");
        assert_eq!(f.store.tag(&tag(other)).await.unwrap(), None);
        assert_eq!(f.store.advance(&tag(other), 99).await.unwrap_err().kind(), &kind);
        assert_eq!(f.store.set_step(&tag(other), step(9)).await.unwrap_err().kind(), &kind);
        assert_eq!(f.store.delete(&tag(other)).await.unwrap_err().kind(), &kind);
    }

    assert_eq!(f.store.tag(&tag("order")).await.unwrap().unwrap().max_id, 1);
}

async fn any_valid_tag_can_be_kept(f: Fixture) {
    for name in ["订单.v1", "a/b c", "'; DROP TABLE leaf_alloc; --", "%", "🍃", &"é".repeat(128)]
    {
        create(&*f.store, name, 10).await;
        let range = f.store.allocate(&tag(name), step(10), step(10)).await.unwrap();
        assert_eq!(range.start(), 1, "{name}");
    }
    assert_eq!(f.store.tags().await.unwrap().len(), 7);
}

async fn a_changed_step_is_told(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    f.store.set_step(&tag("orders"), step(500)).await.unwrap();

    let kind = refusal(f.store.allocate(&tag("orders"), step(10), step(10))).await;
    assert_eq!(kind, StoreErrorKind::StepChanged(step(500)));
    let range = f.store.allocate(&tag("orders"), step(1000), step(500)).await.unwrap();
    assert_eq!(range.len(), 1000, "the amount is the caller's, not the record's");
}

async fn bad_rows_are_errors_of_their_tag_only(f: Fixture) {
    for name in ["zero", "negative", "behind", "fine"] {
        create(&*f.store, name, 10).await;
    }
    f.sql("UPDATE leaf_alloc SET step = 0 WHERE biz_tag = 'zero'").await;
    f.sql("UPDATE leaf_alloc SET step = -5 WHERE biz_tag = 'negative'").await;
    f.sql("UPDATE leaf_alloc SET max_id = -7 WHERE biz_tag = 'behind'").await;
    f.sql("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES (' padded', 1, 1)").await;
    if let Database::Mysql(..) = f.database {
        f.sql("ALTER TABLE leaf_alloc MODIFY max_id BIGINT NULL").await;
        f.sql("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('null', NULL, 1)").await;
        let kind = refusal(f.store.allocate(&tag("null"), step(1), step(1))).await;
        assert!(matches!(kind, StoreErrorKind::BadRecord(_)), "{kind}");
    }

    for name in ["zero", "negative", "behind"] {
        let kind = refusal(f.store.allocate(&tag(name), step(10), step(10))).await;
        assert!(matches!(kind, StoreErrorKind::BadRecord(_)), "{name}: {kind}");
    }
    f.store.allocate(&tag("fine"), step(10), step(10)).await.unwrap();
    let records = f.store.tags().await.unwrap();
    assert_eq!(records.len(), 5, "the row that is no tag is left out");
    let zero = records.iter().find(|record| record.tag == tag("zero")).unwrap();
    assert!(matches!(zero.step, Err(StepError { .. })));
}

async fn the_end_of_the_ids_is_an_error(f: Fixture) {
    let last = NewTag { max_id: i64::MAX - 1500, ..NewTag::new(tag("last"), step(1000)) };
    f.store.create(&last).await.unwrap();

    let range = f.store.allocate(&tag("last"), step(1000), step(1000)).await.unwrap();
    assert_eq!(range.end(), i64::MAX - 500);
    let kind = refusal(f.store.allocate(&tag("last"), step(1000), step(1000))).await;
    assert_eq!(kind, StoreErrorKind::Exhausted);
    let rest = f.store.allocate(&tag("last"), step(500), step(1000)).await.unwrap();
    assert_eq!(rest.end(), i64::MAX);
}

async fn administration(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let again = NewTag::new(tag("orders"), step(10));
    assert_eq!(refusal(f.store.create(&again)).await, StoreErrorKind::TagExists);

    assert_eq!(f.store.advance(&tag("orders"), 5000).await.unwrap(), 5000);
    assert_eq!(f.store.advance(&tag("orders"), 10).await.unwrap(), 5000, "never lowered");

    let range = f.store.allocate(&tag("orders"), step(10), step(10)).await.unwrap();
    let tail = IdRange::new(range.start() + 4, range.end()).unwrap();
    assert!(f.store.give_back(&tag("orders"), tail).await.unwrap());
    assert!(!f.store.give_back(&tag("orders"), tail).await.unwrap(), "somebody allocated since");
    let next = f.store.allocate(&tag("orders"), step(10), step(10)).await.unwrap();
    assert_eq!(next.start(), tail.start());

    f.store.delete(&tag("orders")).await.unwrap();
    assert_eq!(f.store.tag(&tag("orders")).await.unwrap(), None);
}

async fn the_schema_is_made_once_and_never_touched_again(f: Fixture) {
    f.store.delete(&tag("leaf-segment-test")).await.unwrap();

    assert!(!f.open.schema.apply().await.unwrap(), "it exists");

    assert!(f.store.tags().await.unwrap().is_empty(), "the stock row does not come back");
}

async fn a_dropped_request_disturbs_no_later_one(f: Fixture) {
    create(&*f.store, "orders", 1).await;
    let mut last = 0;
    for delay in 0..200u64 {
        let name = tag("orders");
        let abandoned = f.store.allocate(&name, step(1), step(1));
        let limit = std::time::Duration::from_micros(delay * 7);
        let _ = tokio::time::timeout(limit, abandoned).await;

        let range = f.store.allocate(&tag("orders"), step(1), step(1)).await.unwrap();
        assert!(range.start() > last, "{range} after {last}");
        last = range.start();
    }
}

/// Tables that others made, with other character sets and collations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_are_compared_as_bytes_whatever_the_columns_collation() {
    for change in [
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci",
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    ] {
        let f = mysql().await;
        f.sql(change).await;
        let Database::Mysql(server, _) = &f.database else { panic!("mysql") };
        let _alive = Arc::clone(server);
        create(&*f.store, "é", 10).await;
        let store = Arc::clone(&f.store);
        tags_are_compared_as_bytes(f).await;

        let range = store.allocate(&tag("é"), step(10), step(10)).await.unwrap();
        assert_eq!(range.start(), 1, "{change}");
        assert_eq!(store.tag(&tag("🍃")).await.unwrap(), None, "{change}");
        let kind = refusal(store.allocate(&tag("🍃"), step(10), step(10))).await;
        assert_eq!(kind, StoreErrorKind::UnknownTag, "{change}");
    }
}

/// A narrow column under a lenient server would store less than was granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_column_is_exhausted_not_saturated() {
    let f = mysql().await;
    let Database::Mysql(server, _) = &f.database else { panic!("mysql") };
    server.sql("SET GLOBAL sql_mode = ''");
    f.sql("ALTER TABLE leaf_alloc MODIFY max_id INT NOT NULL").await;
    f.sql("UPDATE leaf_alloc SET max_id = 2147483640").await;
    let store = f.another().await;

    let kind = refusal(store.allocate(&tag("leaf-segment-test"), step(10), step(2000))).await;

    assert_eq!(kind, StoreErrorKind::Exhausted);
}

/// For every backend a module with one test per check.
macro_rules! backends {
    ($($backend:ident),*; $checks:tt) => { $( backends!(@module $backend $checks); )* };
    (@module $backend:ident { $($check:ident),* $(,)? }) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $check() {
                    super::$check(super::$backend().await).await;
                }
            )*
        }
    };
}

backends!(sqlite, mysql; {
    the_first_range_is_the_records_own,
    sixteen_allocators_never_overlap,
    tags_are_compared_as_bytes,
    any_valid_tag_can_be_kept,
    a_changed_step_is_told,
    bad_rows_are_errors_of_their_tag_only,
    the_end_of_the_ids_is_an_error,
    administration,
    the_schema_is_made_once_and_never_touched_again,
    a_dropped_request_disturbs_no_later_one,
});
