//! A database server that loses its last commits in a crash. It restarts as the same server, so no
//! failover guard can notice the loss.

use std::sync::Arc;

use leaf_testkit::Postgres;
use tokio::task::spawn_blocking;

use crate::support::{create, next, open};

/// How often the server crashes.
const ROUNDS: usize = 5;

/// G-35: on a PostgreSQL that confirms commits before they are written, Leaf sets its own commits
/// to wait. As a control, commits of psql at the same time are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_confirms_too_early_loses_nothing_of_leafs() {
    let server = Arc::new(spawn_blocking(Postgres::start).await.unwrap());
    let database = server.new_database();
    let url = Postgres::url(server.port(), &database);
    let sql = async |statement: &str| {
        let (server, database, statement) =
            (Arc::clone(&server), database.clone(), statement.to_owned());
        spawn_blocking(move || server.sql(&database, &statement)).await.unwrap()
    };
    sql("ALTER SYSTEM SET synchronous_commit = off").await;
    sql("ALTER SYSTEM SET wal_writer_delay = '10s'").await;
    sql("CREATE TABLE control (n INT); INSERT INTO control VALUES (0)").await;
    let crash = async || {
        let server = Arc::clone(&server);
        spawn_blocking(move || server.crash_and_restart()).await.unwrap();
    };
    crash().await;
    let store = open(&url, Some(1000)).await;
    create(&store).await;
    let risks = store.admin.risks().await.unwrap().join("; ");
    assert!(risks.contains("synchronous_commit is off"), "{risks}");
    let mut last = next(&*store.store).await;
    sql("CHECKPOINT").await;
    let mut lost = false;
    for round in 1..=ROUNDS {
        // The control in a round of its own: a later commit that waits takes it along.
        sql(&format!("UPDATE control SET n = {round}")).await;
        crash().await;
        lost |= sql("SELECT n FROM control").await.trim() != round.to_string();
        for _ in 0..3 {
            let range = next(&*store.store).await;
            assert!(
                range.start() >= last.end(),
                "{range} was granted after {last}, in round {round}"
            );
            last = range;
        }
        crash().await;
    }
    assert!(lost, "the server lost no commit: the fault was none");
}
