//! The free buffers of each thread of the data plane. A connection has a buffer only while there
//! are bytes in it: so ten thousand idle connections cost little, and busy ones reuse buffers that
//! are in the processor's cache.

use std::cell::RefCell;

/// The capacity of a new buffer, in bytes: about what one read from a socket yields.
pub(crate) const LENGTH: usize = 16 * 1024;
/// The most free buffers that a thread keeps.
const KEPT: usize = 32;

thread_local! {
    /// The buffers of this thread that nobody uses.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Replaces `buffer` by an empty one with room, if it has no capacity.
pub(crate) fn provide(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        let free = FREE.with_borrow_mut(Vec::pop);
        *buffer = free.unwrap_or_else(|| Vec::with_capacity(LENGTH));
    }
}

/// Gives `buffer` back to the thread if it is empty, and leaves a buffer without capacity in its
/// place.
pub(crate) fn give_back(buffer: &mut Vec<u8>) {
    if !buffer.is_empty() || buffer.capacity() == 0 {
        return;
    }
    let mut buffer = std::mem::take(buffer);
    // One that has grown for a large answer.
    buffer.shrink_to(LENGTH);
    FREE.with_borrow_mut(|free| {
        if free.len() < KEPT && buffer.capacity() == LENGTH {
            free.push(buffer);
        }
    });
}
