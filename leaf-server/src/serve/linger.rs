//! Ends a connection whose client may still be sending.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::ReadBuf;

/// How long a client may go on sending after its last answer.
const LINGER: Duration = Duration::from_secs(2);
/// How many bytes a client may go on sending after its last answer.
const LINGER_BYTES: usize = 4 * 1024 * 1024;

/// After the last answer, reads what the client still sends, until it closes its side or a limit is
/// reached. If the connection were closed with input unread, the system would reset it and drop
/// answers that the client has not read yet.
pub(crate) async fn linger(
    mut read: impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
) {
    let mut left = LINGER_BYTES;
    let unread = poll_fn(|context| {
        // Not a part of the future, which every connection has room for all its life.
        let mut scratch = [0; 4096];
        loop {
            let mut scratch = ReadBuf::new(&mut scratch);
            let read = read(context, &mut scratch);
            let length = scratch.filled().len();
            if ready!(read).is_err() || length == 0 || length > left {
                return Poll::Ready(());
            }
            left -= length;
        }
    });
    let _ = tokio::time::timeout(LINGER, unread).await;
}
