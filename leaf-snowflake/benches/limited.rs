//! The default layout holds 4,096 ids per millisecond. Measures how close a caller that wants more
//! comes to that limit, and how much of a core it uses while it waits.
//! `cargo bench -p leaf-snowflake --bench limited`
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};

const SECONDS: u64 = 3;
const LIMIT: f64 = 4_096_000.0;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn main() {
    // `cargo test --benches` only wants to know whether it starts.
    let seconds = if std::env::args().any(|arg| arg == "--test") { 0 } else { SECONDS };
    let config = SnowflakeConfig::new(Identity::parse("bench:1").unwrap());
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = SnowflakeGenerator::open(registry, config).await.unwrap();
    for batch in [1, 16, 256, 4096] {
        let (started, cpu) = (Instant::now(), cpu());
        let mut ids = 0;
        while started.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..4096 / batch {
                if batch == 1 {
                    black_box(flakes.next().await.unwrap());
                } else {
                    black_box(flakes.take(batch).await.unwrap());
                }
            }
            ids += 4096;
        }
        let elapsed = started.elapsed().as_secs_f64();
        let rate = f64::from(ids) / elapsed;
        println!(
            "{batch:4} at once: {:.3} M ids/s, {:.2} % of the limit, {:.1} % of a core",
            rate / 1e6,
            100.0 * rate / LIMIT,
            100.0 * (self::cpu() - cpu).as_secs_f64() / elapsed
        );
    }
}

/// Processor time of this process so far.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}
