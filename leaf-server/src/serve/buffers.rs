//! Buffers of a thread of the data plane: a connection has one only while it has something to keep
//! in it, so that ten thousand idle ones cost little, and that busy ones share what is in the
//! processor's cache.

use std::cell::RefCell;

/// How long a fresh one is: what a socket yields at a time.
pub(crate) const LENGTH: usize = 16 * 1024;
/// How many are kept.
const KEPT: usize = 32;

thread_local! {
    /// The buffers of this thread that nobody uses.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty one in place of `buffer`, if that has none.
pub(crate) fn provide(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        let free = FREE.with_borrow_mut(Vec::pop);
        *buffer = free.unwrap_or_else(|| Vec::with_capacity(LENGTH));
    }
}

/// Gives an empty one back.
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
