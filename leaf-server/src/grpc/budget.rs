//! Limits how much memory the answers of one connection may hold.
//!
//! Invariant: the lists of ids that were made for a connection and are not sent yet have at most
//! [`LISTS`] bytes together, or are one list; the messages of its streams have at most [`STREAMS`].
//! A client that asks for a hundred lists at once and reads none costs no more: its other calls
//! wait until it reads, or until the listener closes the connection because nothing is read.
//!
//! A list counts until its bytes are written to the socket: its permits are dropped with its bytes
//! ([`Slot::guard`]).

use std::sync::{Arc, Mutex};

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::serve::{Control, Unread};

/// How many bytes the lists of a connection may hold.
const LISTS: usize = 160 * 1024;
/// How many bytes the streams of a connection may hold. Each stream holds its next message while
/// its client reads other answers.
const STREAMS: usize = 512 * 1024;
/// The unit of the semaphores: one permit stands for this many bytes.
const PART: usize = 1024;
/// The most bytes of one id in a message.
const ID: usize = 10;
/// The bytes of a message beside its ids: the buffer that it is encoded in.
const MESSAGE: usize = 8 * 1024;

/// The budget of one connection.
#[derive(Clone)]
pub(super) struct Budget {
    lists: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// The permits of the budget that an answer's next message holds. The answer has a clone of this in
/// its extensions.
#[derive(Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

/// The bytes of a message, and the permits that they hold until they are freed.
struct Guarded {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
    /// Counts these bytes as unread until they are sent. The body of the answer counts as read
    /// while its stream waits for the budget, even if earlier messages are still unsent.
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

    /// Waits until the budget has room for a stream's next message, of `ids` ids, and puts its
    /// permits into `slot`. Returns at once if the slot has permits already.
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

    /// Lets the bytes of a message hold the permits of this slot, and count as unread, until they
    /// are freed. Returns them unchanged if the slot is empty.
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
