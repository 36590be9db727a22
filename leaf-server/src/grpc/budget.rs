//! How much of its answers a connection may hold in memory.
//!
//! Invariant: the lists of ids that were made for a connection and not sent yet are at most [`LISTS`]
//! together, or one list; the messages of streams at most [`STREAMS`]. Who asks for a hundred lists at once and reads none costs no more than
//! that; the other calls wait until the client reads, or until the connection is closed because
//! nothing is read.
//!
//! A list counts until its bytes were written to the socket: they go with it ([`Slot::guard`]).

use std::sync::{Arc, Mutex};

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serve::{Control, Unread};

/// What the lists of a connection may hold.
const LISTS: usize = 160 * 1024;
/// What the streams of a connection may hold: each keeps its next message while its client reads
/// others.
const STREAMS: usize = 512 * 1024;
/// The unit of the semaphores: one permit stands for this many bytes.
const PART: usize = 1024;
/// A large id in a message.
const ID: usize = 10;
/// What a message costs beside its ids: the buffer that it is encoded in.
const MESSAGE: usize = 8 * 1024;

/// The budget of one connection.
#[derive(Clone)]
pub(super) struct Budget {
    lists: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// What an answer's next message holds of the budget. The answer has a clone in its extensions.
#[derive(Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

/// The bytes of a message, and what they hold until they are freed.
struct Guarded {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
    /// The stream itself may wait for the budget meanwhile, and then has nothing to read.
    _unread: Unread,
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Budget {
    /// The budget of a new connection.
    pub(super) fn new() -> Self {
        let of = |bytes| Arc::new(Semaphore::new(bytes / PART));
        Self { lists: of(LISTS), streams: of(STREAMS) }
    }

    /// Waits until the budget has room for a list of `ids` ids, and puts its permits into `slot`.
    pub(super) async fn hold_list(&self, ids: usize, slot: &Slot) {
        slot.replace(hold(&self.lists, LISTS, ids).await);
    }

    /// Waits until the budget has room for a stream's next message, of `ids` ids, and puts its permits
    /// into `slot`. Returns at once if the slot has permits already.
    pub(super) async fn hold_message(&self, ids: usize, slot: &Slot) {
        if slot.is_empty() {
            slot.replace(hold(&self.streams, STREAMS, ids).await);
        }
    }
}

async fn hold(all: &Arc<Semaphore>, bytes: usize, ids: usize) -> Option<OwnedSemaphorePermit> {
    let parts = ((MESSAGE + ids * ID) / PART).min(bytes / PART);
    let parts = u32::try_from(parts).expect("there are few");
    Arc::clone(all).acquire_many_owned(parts).await.ok()
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.0.lock().expect("no holder of this lock panics").is_none()
    }

    fn replace(&self, permit: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        std::mem::replace(&mut *self.0.lock().expect("no holder of this lock panics"), permit)
    }

    /// The bytes of a message, which hold what the message held, and which the client has yet to read.
    pub(super) fn guard(&self, bytes: Bytes, control: &Arc<Control>) -> Bytes {
        match self.replace(None) {
            Some(_permit) => {
                let _unread = Unread::begin(control);
                Bytes::from_owner(Guarded { bytes, _permit, _unread })
            }
            None => bytes,
        }
    }
}
