//! The file of an embedded store: what happens to it under a process that has it open.

use leaf_segment::StoreErrorKind;

use crate::fixture::{self, Database, sqlite};
use crate::{create, refusal, step, tag};

/// A file that was removed, or in whose place another was put, is not the store any more: who opens
/// what is there now grants the same ids. The same holds of its log.
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
        assert_eq!(refusal(f.store.tags()).await, StoreErrorKind::Replaced);
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
