//! Ids in strict order: asked for when they are wanted, never ahead.
//!
//! Invariant: an id goes to a call that began before the request that fetched it was sent. So a call that begins
//! after another one's end gets the higher id, as the tag promises. All who wait share one request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use leaf_core::Id;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::api::{Api, AskError, path_of};
use crate::error::{ClientError, ClientErrorKind};
use crate::transport::Failure;
use crate::wire::Ids;

#[derive(Debug)]
pub(crate) struct InTurn {
    api: Arc<Api>,
    tag: String,
    most: usize,
    wait: Duration,
    /// Who waits for one id.
    waiting: Mutex<VecDeque<oneshot::Sender<Id>>>,
    /// Whoever holds it asks for all who wait.
    asking: tokio::sync::Mutex<()>,
}

impl InTurn {
    pub(crate) fn new(api: Arc<Api>, tag: &str, most: usize, wait: Duration) -> Arc<Self> {
        Arc::new(Self {
            api,
            tag: tag.to_owned(),
            most: most.max(1),
            wait,
            waiting: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    fn name(&self) -> String {
        format!("tag {:?}", self.tag)
    }

    pub(crate) async fn next(&self) -> Result<Id, ClientError> {
        let deadline = Instant::now() + self.wait;
        loop {
            let (sender, mut mine) = oneshot::channel();
            self.waiting.lock().expect("no holder of this lock panics").push_back(sender);
            let asked = tokio::select! {
                biased;
                id = &mut mine => match id {
                    Ok(id) => return Ok(id),
                    // Whoever asked for this call failed, or left.
                    Err(_) if Instant::now() < deadline => continue,
                    Err(_) => Err(self.late()),
                },
                turn = self.asking.lock() => {
                    let asked = self.ask_for_all(deadline).await;
                    drop(turn);
                    asked.map_err(|error| ClientError::asking(&self.name(), &error))
                }
                () = tokio::time::sleep_until(deadline) => Err(self.late()),
            };
            asked?;
            // Of a list that was shorter than the queue this call got none.
            if let Ok(id) = mine.try_recv() {
                return Ok(id);
            }
        }
    }

    /// So many ids that follow each other in the order of the tag.
    pub(crate) async fn take(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        if !(1..=self.most).contains(&count) {
            let text = format!("{}: {count} ids at once: give 1 to {}", self.name(), self.most);
            return Err(ClientError::new(ClientErrorKind::BadCount, text));
        }
        let ids = self.ask(count, Instant::now() + self.wait).await;
        ids.map_err(|error| ClientError::asking(&self.name(), &error))
    }

    async fn ask_for_all(&self, deadline: Instant) -> Result<(), AskError> {
        let callers: Vec<oneshot::Sender<Id>> = {
            let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
            // Those who left need none.
            waiting.retain(|caller| !caller.is_closed());
            let count = waiting.len().min(self.most);
            waiting.drain(..count).collect()
        };
        if callers.is_empty() {
            return Ok(());
        }
        let ids = self.ask(callers.len(), deadline).await?;
        for (caller, id) in callers.into_iter().zip(ids) {
            // A caller that left meanwhile leaves a gap.
            let _ = caller.send(id);
        }
        Ok(())
    }

    async fn ask(&self, count: usize, deadline: Instant) -> Result<Vec<Id>, AskError> {
        let path = path_of(&self.tag, &format!("/ids?count={count}"));
        let (ids, from) = self.api.ask_on::<Ids>(Method::GET, &path, count, deadline).await?;
        ids.parse().filter(|ids| ids.len() == count).ok_or_else(|| {
            let why = "its list has not the ids that it was asked for";
            AskError::Failed(Failure::of(&from, why))
        })
    }

    fn late(&self) -> ClientError {
        let text = format!("{}: no ids within {:?}", self.name(), self.wait);
        ClientError::new(ClientErrorKind::Unavailable, text)
    }
}
