//! The file of an embedded store: what happens to it under a process that has it open.

use std::sync::Arc;

use leaf_registry::StoreOptions;
use leaf_segment::StoreErrorKind;
use leaf_testkit::all_tags;

use crate::fixture::{self, Database, sqlite};
use crate::{create, refusal, step, tag};

/// A file that was removed or replaced is not the store any more: a process that opens the file at
/// that path now grants the same ids. The same holds for its log.
#[tokio::test]
async fn a_file_that_is_not_in_its_place_grants_nothing() {
    for (put_another, log_only) in [(false, false), (true, false), (false, true)] {
        let f = sqlite().await;
        let Database::Sqlite(directory) = &f.database else { unreachable!() };
        let file = directory.path().join("leaf.db");
        create(&*f.store, "orders", 10).await;
        let before = f.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
        let backup = directory.path().join("backup.db");
        std::fs::copy(&file, &backup).unwrap();
        if put_another {
            std::fs::rename(&backup, &file).unwrap();
        } else if log_only {
            for end in ["wal", "shm"] {
                std::fs::remove_file(directory.path().join(format!("leaf.db-{end}"))).unwrap();
            }
        } else {
            std::fs::remove_file(&file).unwrap();
        }

        for _ in 0..3 {
            let kind = refusal(f.store.allocate(&tag("orders"), step(10), step(10).into())).await;
            assert_eq!(kind, StoreErrorKind::Replaced);
        }
        assert_eq!(refusal(all_tags(&*f.store)).await, StoreErrorKind::Replaced);
        if log_only {
            // Only another process can open it now.
            continue;
        }

        let fresh = fixture::open(&f.url).await;
        fresh.admin.apply().await.unwrap();
        if fresh.store.tag(&tag("orders")).await.unwrap().is_none() {
            create(&*fresh.store, "orders", 10).await;
        }
        let after = fresh.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
        println!("{before} before, {after} after, by another process");
        let kind = refusal(f.store.allocate(&tag("orders"), step(10), step(10).into())).await;
        assert_eq!(kind, StoreErrorKind::Replaced, "also while there is a good file");
    }
}

/// G-29: a hard link is a second name for the file, and SQLite keeps a separate log for each name.
#[tokio::test]
async fn a_file_with_two_names_grants_nothing() {
    let f = sqlite().await;
    let Database::Sqlite(directory) = &f.database else { unreachable!() };
    let (file, other) = (directory.path().join("leaf.db"), directory.path().join("other.db"));
    create(&*f.store, "orders", 10).await;
    let orders = tag("orders");
    let take = || f.store.allocate(&orders, step(10), step(10).into());
    assert_eq!(take().await.unwrap().start(), 1);
    std::fs::hard_link(&file, &other).unwrap();
    assert_eq!(refusal(take()).await, StoreErrorKind::SecondName);
    assert_eq!(refusal(all_tags(&*f.store)).await, StoreErrorKind::SecondName);
    for name in [&file, &other] {
        let url: leaf_registry::StoreUrl = format!("sqlite:{}", name.display()).parse().unwrap();
        let refused = url.open(directory.path(), &StoreOptions::default()).await.unwrap_err();
        assert_eq!(*refused.kind(), StoreErrorKind::SecondName, "{refused}");
        assert!(refused.to_string().contains("share the directory"), "{refused}");
    }
    assert!(!directory.path().join("other.db-wal").exists(), "nobody opened it there");
    std::fs::remove_file(other).unwrap();
    assert!(take().await.unwrap().start() > 10, "and it goes on");
}

/// A symbolic link is no second name: SQLite keeps the log beside the file that the link leads to.
#[tokio::test]
async fn a_log_that_is_gone_is_noticed_through_a_symbolic_link() {
    let f = sqlite().await;
    let Database::Sqlite(directory) = &f.database else { unreachable!() };
    create(&*f.store, "orders", 10).await;
    let link = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(directory.path().join("leaf.db"), link.path().join("l.db")).unwrap();
    let linked = fixture::open(&format!("sqlite:{}", link.path().join("l.db").display())).await;
    let orders = tag("orders");
    let take = || linked.store.allocate(&orders, step(10), step(10).into());
    assert_eq!(take().await.unwrap().start(), 1);
    let direct = f.store.allocate(&orders, step(10), step(10).into()).await.unwrap();
    assert_eq!(direct.start(), 11, "it is one file");
    assert_eq!(take().await.unwrap().start(), 21);
    for end in ["wal", "shm"] {
        std::fs::remove_file(directory.path().join(format!("leaf.db-{end}"))).unwrap();
    }
    assert_eq!(refusal(take()).await, StoreErrorKind::Replaced);
}

/// Allocations that come at the same time share a transaction: one that the database itself refuses
/// fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_fails_takes_no_other_allocation_with_it() {
    let f = sqlite().await;
    let mut names: Vec<String> = (0..100).map(|i| format!("tag-{i}")).collect();
    names.push("forbidden".to_owned());
    for name in &names {
        create(&*f.store, name, 10).await;
    }
    f.sql(
        "CREATE TRIGGER refuses BEFORE UPDATE ON leaf_alloc WHEN NEW.biz_tag = 'forbidden' \
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    .await;
    let mut allocations = tokio::task::JoinSet::new();
    for name in names {
        let store = Arc::clone(&f.store);
        allocations.spawn(async move {
            (store.allocate(&tag(&name), step(10), step(10).into()).await, name)
        });
    }
    while let Some(done) = allocations.join_next().await {
        match done.unwrap() {
            (Ok(range), _) => assert_eq!((range.start(), range.end()), (1, 11)),
            (Err(error), name) => {
                assert_eq!(name, "forbidden", "{error}");
                assert!(format!("{error}").contains("not this one"), "{error}");
            }
        }
    }
}
