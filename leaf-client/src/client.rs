//! A client: its tags, and the tasks that keep them supplied.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leaf_core::{Health, Tag};
use leaf_segment::{Order, SegmentConfig, SegmentGenerator};
use tokio::task::AbortHandle;

use crate::api::{Api, path_of};
use crate::budget::RetryBudget;
use crate::builder::LeafClientBuilder;
use crate::error::{ClientError, ClientErrorKind};
use crate::in_turn::InTurn;
use crate::pool::Pool;
use crate::snowflake::Snowflake;
use crate::source::ServerSource;
use crate::stock::Stock;
use crate::tag::{TagHandle, TagIds};
use crate::transport::Transport;

/// The most snowflake ids of a list: what every server allows by default.
const SNOWFLAKES: usize = 1000;
/// How long a snowflake id may lie in a client.
const SNOWFLAKE_LIFE: Duration = Duration::from_secs(1);

/// A client of one cluster of `leaf-server`s. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeafClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    api: Arc<Api>,
    source: Arc<ServerSource>,
    segments: SegmentGenerator,
    /// The tags that have no leases.
    others: Mutex<HashMap<Tag, TagHandle>>,
    snowflake: OnceLock<Snowflake>,
    deadline: Duration,
    closed: AtomicBool,
    care: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.care.abort();
    }
}

impl LeafClient {
    /// Begins to configure a client.
    pub fn builder() -> LeafClientBuilder {
        LeafClientBuilder::new()
    }

    pub(crate) fn open(of: &LeafClientBuilder, pool: Pool, transport: Transport) -> Self {
        let attempt = of.attempt;
        let api = Arc::new(Api { pool, transport, budget: RetryBudget::new(), attempt });
        let source = Arc::new(ServerSource::new(Arc::clone(&api), of.deadline, of.max_lease));
        let config = SegmentConfig {
            max_step: of.max_lease,
            wait: of.deadline,
            // One request goes to several servers.
            attempt: of.deadline + attempt,
            refresh: of.refresh,
            ..SegmentConfig::default()
        };
        let segments = SegmentGenerator::start(Arc::clone(&source) as _, config);
        let care = tokio::spawn(Api::look_after(Arc::downgrade(&api))).abort_handle();
        let inner = Inner {
            api,
            source,
            segments,
            others: Mutex::default(),
            snowflake: OnceLock::new(),
            deadline: of.deadline,
            closed: AtomicBool::new(false),
            care,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A tag, ready to hand out ids. The first time a server is asked what it is like.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`; `Unavailable` after the deadline where no server answers; `Unauthorized`,
    /// `Refused`, `Closed`.
    pub async fn tag(&self, tag: &str) -> Result<TagHandle, ClientError> {
        let inner = &*self.inner;
        if inner.closed.load(Ordering::Acquire) {
            let text = format!("tag {tag:?}: the client was closed");
            return Err(ClientError::new(ClientErrorKind::Closed, text));
        }
        if let Some(handle) = inner.segments.known(tag) {
            return Ok(TagHandle { tag: handle.tag().clone(), ids: TagIds::Leased(handle) });
        }
        let parsed = Tag::parse(tag)
            .map_err(|error| ClientError::new(ClientErrorKind::BadTag, error.to_string()))?;
        if let Some(handle) = self.others().get(&parsed) {
            return Ok(handle.clone());
        }
        let name = format!("tag {tag:?}");
        let shown = inner.source.shown(&parsed).await;
        let shown = shown.map_err(|error| ClientError::asking(&name, &error))?;
        if shown.leases {
            let ids = TagIds::Leased(inner.segments.tag(tag).await?);
            return Ok(TagHandle { tag: parsed, ids });
        }
        let ids = match shown.order {
            Order::Strict => {
                let api = Arc::clone(&inner.api);
                TagIds::InTurn(InTurn::new(api, tag, shown.max_count, inner.deadline))
            }
            Order::Relaxed => {
                let path = path_of(tag, "/ids");
                TagIds::Listed(self.stock(name, path, shown.max_count, None))
            }
        };
        let handle = TagHandle { tag: parsed.clone(), ids };
        // Another caller may have been faster.
        Ok(self.others().entry(parsed).or_insert(handle).clone())
    }

    fn others(&self) -> std::sync::MutexGuard<'_, HashMap<Tag, TagHandle>> {
        self.inner.others.lock().expect("no holder of this lock panics")
    }

    fn stock(&self, name: String, path: String, most: usize, life: Option<Duration>) -> Arc<Stock> {
        Stock::new(Arc::clone(&self.inner.api), name, path, most, life, self.inner.deadline)
    }

    /// Snowflake ids.
    #[must_use]
    pub fn snowflake(&self) -> Snowflake {
        let made = self.inner.snowflake.get_or_init(|| {
            let path = "/v1/snowflake/ids".to_owned();
            let name = "snowflake ids".to_owned();
            Snowflake { stock: self.stock(name, path, SNOWFLAKES, Some(SNOWFLAKE_LIFE)) }
        });
        made.clone()
    }

    /// Whether ids of leased ranges can be had: `Degraded` while no server answers and the stock lasts.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.segments.health()
    }

    /// Ends every handle and gives unused ids back, where nobody was granted ids of the tag since.
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        for handle in self.others().values() {
            if let TagIds::Listed(stock) = &handle.ids {
                stock.close();
            }
        }
        if let Some(snowflake) = self.inner.snowflake.get() {
            snowflake.stock.close();
        }
        self.inner.segments.close().await;
        self.inner.care.abort();
    }
}
