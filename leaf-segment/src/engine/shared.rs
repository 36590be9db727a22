//! The state that the tasks and the clones of a generator share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::time::Instant;

use super::look_ups::LookUps;
use super::member_rates::MemberRates;
use super::store_client::StoreClient;
use super::tag_set::TagSet;
use crate::{SegmentConfig, SegmentErrorKind, SegmentSource};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store_client: Arc<StoreClient>,
    pub(crate) tags: Arc<TagSet>,
    pub(crate) look_ups: LookUps,
    pub(crate) member_rates: MemberRates,
    /// Held while records are read and applied to tags, so that readings never overlap.
    pub(crate) reading: tokio::sync::Mutex<()>,
    /// Whether the store could be read at least once.
    pub(crate) loaded: AtomicBool,
    /// How often the record of a known tag is read, in milliseconds.
    pub(crate) refresh_millis: AtomicU64,
    /// Whether the last reading of records failed; used to log the recovery.
    pub(crate) reading_fails: AtomicBool,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Arc<Self> {
        let refresh = u64::try_from(config.refresh.as_millis()).unwrap_or(u64::MAX);
        Arc::new(Self {
            store_client: Arc::new(StoreClient::new(store, config)),
            tags: Arc::default(),
            look_ups: LookUps::default(),
            member_rates: MemberRates::default(),
            reading: tokio::sync::Mutex::default(),
            loaded: AtomicBool::new(false),
            refresh_millis: AtomicU64::new(refresh),
            reading_fails: AtomicBool::new(false),
        })
    }

    pub(crate) fn end_all(&self, why: &SegmentErrorKind) {
        for handle in self.tags.all().values() {
            handle.state.end(why.clone());
        }
    }

    pub(crate) fn sample_rates(&self) {
        let now = Instant::now();
        for handle in self.tags.all().values() {
            let issued = handle.state.issued();
            handle.state.control().rate.sample(now, issued);
        }
    }
}
