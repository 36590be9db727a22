//! A generator is dropped together with its runtime, while the keeper may be about to write. This
//! is the only test in its file: a panic in a task fails no test, so a hook counts all panics of
//! the process.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};

static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_drop_at_any_moment_panics_nowhere() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        told(panic);
    }));
    let directory = tempfile::tempdir().unwrap();
    for life in 0..1000 {
        let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
        config.state_file = Some(directory.path().join(life.to_string()));
        let registry = Arc::new(MemoryFenceStore::default());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let flakes = runtime.block_on(SnowflakeGenerator::open(registry, config)).unwrap();
        runtime.block_on(flakes.next()).unwrap();
        drop(flakes);
        drop(runtime);
    }

    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
