//! A client: its tags, and the tasks that keep them supplied.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use leaf_core::{Health, Step, Tag};
use leaf_segment::store::TagGeneration;
use leaf_segment::{SegmentConfig, SegmentGenerator};
use leaf_shape::{Meaning, Order};
use tokio::task::AbortHandle;

use crate::api::Api;
use crate::budget::RetryBudget;
use crate::calls::IdsOf;
use crate::error::{ClientError, ClientErrorKind};
use crate::failure::AskError;
use crate::in_turn::InTurn;
use crate::pool::Pool;
use crate::snowflake::Snowflake;
use crate::source::ServerSource;
use crate::stock::Stock;
use crate::tag::{TagHandle, TagIds};
use crate::transport::Transport;

/// The most snowflake ids that one request asks for: the default of a server's `http.max_count`.
const SNOWFLAKES: usize = 1000;
/// How old a snowflake id in a client's stock may become: older ones are dropped.
const SNOWFLAKE_LIFE: Duration = Duration::from_secs(1);

/// A client of one cluster of `leaf-server`s. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeafClient {
    inner: Arc<Inner>,
}

/// The deadlines and limits of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How long a request may take, over all servers.
    pub(crate) deadline: Duration,
    /// How long one server may take.
    pub(crate) attempt: Duration,
    /// The most ids of a lease.
    pub(crate) max_lease: Step,
    /// How often the properties of each tag in use are asked for again.
    pub(crate) refresh: Duration,
}

/// What all clones of a client share.
#[derive(Debug)]
struct Inner {
    /// Sends requests to the servers.
    api: Arc<Api>,
    /// The servers of the configuration, as the store from which `segments` allocates ranges.
    source: Arc<ServerSource>,
    /// Issues the ids of tags that can be leased.
    segments: SegmentGenerator,
    /// The handles of tags that cannot be leased.
    others: Mutex<HashMap<Tag, Other>>,
    /// Created by the first call of [`LeafClient::snowflake`].
    snowflake: Mutex<Option<Snowflake>>,
    /// How long a call waits.
    deadline: Duration,
    /// Whether the client was closed: then it makes no more handles.
    closed: AtomicBool,
    /// Background tasks: one probes servers, one looks up their names. Aborted with the client.
    tasks: Vec<AbortHandle>,
}

/// A tag that cannot be leased.
#[derive(Debug)]
struct Other {
    handle: TagHandle,
    /// The generation when the handle was made. `None` if the server named none: the tag has none,
    /// or the server is of an earlier version.
    generation: Option<TagGeneration>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Inner {
    fn others(&self) -> MutexGuard<'_, HashMap<Tag, Other>> {
        self.others.lock().expect("no holder of this lock panics")
    }

    fn snowflake(&self) -> MutexGuard<'_, Option<Snowflake>> {
        self.snowflake.lock().expect("no holder of this lock panics")
    }

    /// Ends the handles of tags that cannot be leased, and the stock of snowflake ids.
    fn end_lists(&self, why: ClientErrorKind) {
        for (_, other) in self.others().drain() {
            other.handle.ids.end(why);
        }
        if let Some(snowflake) = self.snowflake().take() {
            snowflake.stock.end(why);
        }
    }

    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Asks a server for the properties of the tags in use: one tag after the other, each about
    /// once per `refresh`.
    async fn follow_tags(inner: Weak<Self>, refresh: Duration) {
        loop {
            let names = {
                let Some(inner) = inner.upgrade() else { return };
                let others: Vec<Tag> = inner.others().keys().cloned().collect();
                let mut names = inner.source.names();
                names.extend(others);
                names
            };
            let pause = refresh / u32::try_from(names.len()).unwrap_or(u32::MAX).max(1);
            if names.is_empty() {
                tokio::time::sleep(refresh).await;
            }
            for tag in names {
                tokio::time::sleep(pause).await;
                let Some(inner) = inner.upgrade().filter(|inner| !inner.closed()) else { return };
                let other = inner.others().get(&tag).map(|other| other.handle.clone());
                match other {
                    Some(handle) => inner.follow_other(&handle).await,
                    // What it said is kept; where it said nothing, what is known stays.
                    None => {
                        let _ = inner.source.read(&tag).await;
                        // What it says counts at once.
                        inner.segments.read_soon();
                    }
                }
            }
        }
    }

    /// Whether a tag that cannot be leased was made again, or repaired, since its handle was made.
    /// `false` if the server named no generation, as an earlier version does: then it is not known.
    fn is_of_another_generation(&self, tag: &Tag, shown: Option<TagGeneration>) -> bool {
        let others = self.others();
        let known = others.get(tag).and_then(|other| other.generation);
        shown.is_some() && shown != known
    }

    /// Asks for the properties of a tag that cannot be leased. Ends its handle if the tag has
    /// changed, is disabled or does not exist any more; else updates its limit.
    async fn follow_other(&self, handle: &TagHandle) {
        let why = match self.source.shown(&handle.tag).await {
            Ok(shown) if self.is_of_another_generation(&handle.tag, shown.generation) => {
                ClientErrorKind::Changed
            }
            Ok(shown) => match &handle.ids {
                TagIds::Listed(stock) if !shown.leases && shown.order == Order::Relaxed => {
                    return stock.set_most(shown.max_count);
                }
                TagIds::InTurn(turns) if shown.order == Order::Strict => {
                    return turns.set_most(shown.max_count);
                }
                _ => ClientErrorKind::Changed,
            },
            Err(AskError::Refused {
                kind: kind @ (ClientErrorKind::UnknownTag | ClientErrorKind::Disabled),
                ..
            }) => kind,
            Err(_) => return,
        };
        self.others().remove(&handle.tag);
        handle.ids.end(why);
    }
}

impl LeafClient {
    /// Starts the tasks of a client. Asks no server yet.
    pub(crate) fn open(of: Settings, pool: Pool, transport: Transport) -> Self {
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
        let care = [
            tokio::spawn(Arc::clone(&api).look_after()).abort_handle(),
            tokio::spawn(Arc::clone(&api).follow_names()).abort_handle(),
        ];
        let inner = Inner {
            api,
            source,
            segments,
            others: Mutex::default(),
            snowflake: Mutex::default(),
            deadline: of.deadline,
            closed: AtomicBool::new(false),
            tasks: care.into(),
        };
        let inner = Arc::new(inner);
        // It ends with the client.
        tokio::spawn(Inner::follow_tags(Arc::downgrade(&inner), of.refresh));
        Self { inner }
    }

    /// Returns the handle of a tag. The first call for a tag asks a server for its properties.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`; `Unavailable` after the deadline where no server
    /// answers; `Unauthorized`, `Refused`, `Closed`.
    pub async fn tag(&self, tag: &str) -> Result<TagHandle, ClientError> {
        let inner = &*self.inner;
        let name = format!("tag {tag:?}");
        if inner.closed() {
            return Err(ClientError::ended(&name, ClientErrorKind::Closed));
        }
        let leased = |handle: &leaf_segment::TagHandle| handle.meaning() == Meaning::PLAIN;
        if let Some(handle) = inner.segments.known(tag).filter(leased) {
            return Ok(TagHandle { tag: handle.tag().clone(), ids: TagIds::Leased(handle) });
        }
        let parsed = Tag::parse(tag)
            .map_err(|error| ClientError::new(ClientErrorKind::BadTag, error.to_string()))?;
        if let Some(other) = inner.others().get(&parsed) {
            return Ok(other.handle.clone());
        }
        let shown = inner.source.shown(&parsed).await;
        let shown = shown.map_err(|error| ClientError::asking(&name, &error))?;
        if shown.leases {
            inner.source.keep(&parsed, &shown);
            let ids = TagIds::Leased(inner.segments.tag(tag).await?);
            return Ok(TagHandle { tag: parsed, ids });
        }
        let ids = match shown.order {
            Order::Strict => {
                let api = Arc::clone(&inner.api);
                TagIds::InTurn(InTurn::new(api, tag, shown.max_count, inner.deadline))
            }
            Order::Relaxed => {
                let of = IdsOf::Tag(tag.to_owned());
                TagIds::Listed(self.stock(name, of, shown.max_count, None))
            }
        };
        let handle = TagHandle { tag: parsed.clone(), ids };
        let mut others = inner.others();
        if inner.closed() {
            return Err(ClientError::ended(&format!("tag {tag:?}"), ClientErrorKind::Closed));
        }
        // Another caller may have been faster.
        let other = Other { handle, generation: shown.generation };
        Ok(others.entry(parsed).or_insert(other).handle.clone())
    }

    /// A stock of ids that is filled from this client's servers.
    fn stock(&self, name: String, of: IdsOf, most: usize, life: Option<Duration>) -> Arc<Stock> {
        Stock::new(Arc::clone(&self.inner.api), name, of, most, life, self.inner.deadline)
    }

    /// Returns the source of snowflake ids. No server is asked yet.
    #[must_use]
    pub fn snowflake(&self) -> Snowflake {
        let mut made = self.inner.snowflake();
        let made = made.get_or_insert_with(|| {
            let name = "snowflake ids".to_owned();
            Snowflake {
                stock: self.stock(name, IdsOf::Snowflake, SNOWFLAKES, Some(SNOWFLAKE_LIFE)),
            }
        });
        if self.inner.closed() {
            made.stock.end(ClientErrorKind::Closed);
        }
        made.clone()
    }

    /// Drops every id that this client holds. Each handle ends with `Changed`: get new ones from
    /// the client.
    ///
    /// Call it in a process that was restored from a snapshot of its memory (AWS Lambda SnapStart,
    /// CRIU), before it takes an id and while no call is under way. Else all processes restored
    /// from that snapshot issue the same ids.
    pub fn begin_anew(&self) {
        self.inner.segments.begin_anew();
        self.inner.end_lists(ClientErrorKind::Changed);
    }

    /// The health of the leased ranges: `Degraded` while no server answers and the stock still has
    /// ids.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.segments.health()
    }

    /// Ends every handle. Gives the unused ids of a tag back, unless later ids of the tag were
    /// granted meanwhile.
    pub async fn close(&self) {
        let inner = &*self.inner;
        inner.closed.store(true, Ordering::Release);
        inner.end_lists(ClientErrorKind::Closed);
        inner.segments.close().await;
        inner.tasks.iter().for_each(AbortHandle::abort);
    }
}
