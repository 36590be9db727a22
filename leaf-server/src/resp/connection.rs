//! One connection: reads commands, answers them in order, and sends the replies to all commands
//! that came together at once.
//!
//! Everything has a limit: the length of a command, the replies that wait to be sent ([`UNSENT`],
//! and what one command adds), the time that a client may take to send the rest of a command or to
//! read a reply. A client without a command under way may stay.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::answer;
use super::codec::{self, Words};
use super::command::Outcome;
use super::session::Session;
use crate::caller::Client;
use crate::metrics::Operation;
use crate::serve::{Control, Order, Stream, buffers, linger};

/// How many bytes of replies may wait. If there are more, they are sent before the next command is
/// read. The rest of the buffer is room for what most commands add.
const UNSENT: usize = buffers::LENGTH - 4096;

/// The connection of one client. The thread lends it buffers while there are bytes in them
/// ([`buffers`]): an idle connection holds none.
pub(super) struct Connection<S> {
    stream: S,
    control: Arc<Control>,
    session: Session,
    words: Words,
    /// The bytes that were received and not answered yet.
    input: Vec<u8>,
    /// Whether the last read filled the buffer: perhaps the client has sent more.
    has_more: bool,
    /// When bytes were last received.
    arrived: Instant,
    /// Whether the connection was already ordered to end when the last read began.
    ends: bool,
    /// How many bytes of the replies have been sent.
    sent: usize,
    /// While only a part of a command has arrived: the mark of this transfer, see
    /// [`Control::transfer_begins`].
    rest_pending: Option<u32>,
}

impl<S: Stream> Connection<S> {
    /// A connection that was just accepted.
    pub(super) fn new(stream: S, client: Client, control: Arc<Control>) -> Self {
        let session = Session::new(client);
        Self {
            stream,
            control,
            session,
            words: Words::default(),
            input: Vec::new(),
            has_more: false,
            arrived: Instant::now(),
            ends: false,
            sent: 0,
            rest_pending: None,
        }
    }

    /// Serves the connection to its end.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        while self.receive().await? {
            let goes_on = self.answer().await?;
            self.send().await?;
            if !goes_on {
                break;
            }
            // One that always has more to say lets the other connections of this thread speak, too.
            if self.has_more {
                tokio::task::yield_now().await;
            }
        }
        let Self { stream, control, .. } = &mut self;
        let bye = async {
            stream.shutdown().await?;
            linger(|context, scratch| Pin::new(&mut *stream).poll_read(context, scratch)).await;
            Ok(())
        };
        control.unless(Order::Close, bye).await.unwrap_or(Ok(()))
    }

    /// Reads what has arrived, or waits until something does. Returns `false` at the end: the
    /// client has closed the connection, or the listener has ordered its end.
    async fn receive(&mut self) -> io::Result<bool> {
        if !self.input.is_empty() {
            self.rest_pending.get_or_insert_with(|| self.control.transfer_begins());
        }
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Reads from the socket once. The buffer is given back before it waits.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // After the order to end there is one more read, since what has arrived is still answered.
        // A client that always sends more must not hold up the end.
        let ends = self.control.order(context) > Order::Serve;
        if std::mem::replace(&mut self.ends, ends) {
            return Poll::Ready(Ok(false));
        }
        buffers::provide(&mut self.input);
        // A command that is longer than its buffer; a limit ends that.
        self.input.reserve(1);
        let stream = Pin::new(&mut self.stream);
        if let Poll::Ready(read) = tokio_util::io::poll_read_buf(stream, context, &mut self.input) {
            self.has_more = self.input.len() == self.input.capacity();
            self.arrived = Instant::now();
            return Poll::Ready(read.map(|length| length > 0));
        }
        buffers::give_back(&mut self.input);
        self.words.shrink();
        if ends { Poll::Ready(Ok(false)) } else { Poll::Pending }
    }

    /// Answers all commands that have arrived wholly, and leaves the rest in `input`: the beginning
    /// of a command.
    ///
    /// Before a command waits, the replies before it are sent. While it waits the connection can be
    /// closed. The ids that it then gets are lost, as an answer can be lost on any network.
    async fn answer(&mut self) -> io::Result<bool> {
        let mut at = 0;
        let mut goes_on = true;
        buffers::provide(&mut self.session.replies.bytes);
        while goes_on && at < self.input.len() {
            let input = &self.input[at..];
            let length = answer::increments(&mut self.session, input);
            if length > 0 {
                at += length;
                rest_arrived(&mut self.rest_pending, &self.control);
                self.send_if_many().await?;
                continue;
            }
            let length = match codec::read(input, &mut self.words) {
                Ok(Some(length)) => {
                    // What follows may wait for ids, which is not the client's fault.
                    rest_arrived(&mut self.rest_pending, &self.control);
                    length
                }
                Ok(None) => break,
                Err(malformed) => {
                    let text = format!("Protocol error: {malformed}");
                    self.session.answers(Operation::Other, 1);
                    self.session.refuse(&text.into());
                    goes_on = false;
                    break;
                }
            };
            let (outcome, length) = answer::answer(&mut self.session, &self.words, input, length);
            at += length;
            match outcome {
                Outcome::Done => {}
                Outcome::End => goes_on = false,
                Outcome::Wait(task) => {
                    let (operation, calls) = (task.operation, task.calls);
                    // What was asked before does not wait for it.
                    self.send().await?;
                    self.control.under_way.fetch_add(1, Ordering::Relaxed);
                    let result = self.control.unless(Order::Close, task.perform()).await;
                    self.control.under_way.fetch_sub(1, Ordering::Relaxed);
                    let Some(reply) = result else { return Ok(false) };
                    buffers::provide(&mut self.session.replies.bytes);
                    self.session.answers(operation, calls);
                    for id in reply.write(&mut self.session).into_iter().flatten() {
                        id.write(&mut self.session.replies);
                        self.send_if_many().await?;
                    }
                }
            }
            self.send_if_many().await?;
        }
        if at > 0 {
            self.control.requests.fetch_add(1, Ordering::Relaxed);
            self.input.drain(..at);
        }
        Ok(goes_on)
    }

    /// Sends the replies if there are [`UNSENT`] bytes of them or more.
    async fn send_if_many(&mut self) -> io::Result<()> {
        if self.session.replies.bytes.len() >= UNSENT {
            self.send().await?;
            buffers::provide(&mut self.session.replies.bytes);
        }
        Ok(())
    }

    /// Sends all replies that have been collected.
    async fn send(&mut self) -> io::Result<()> {
        self.session.count(self.arrived);
        let mut transfer = None;
        let sent = poll_fn(|context| self.poll_send(context, &mut transfer)).await;
        if let Some(mark) = transfer {
            self.control.transfer_ends(mark);
        }
        self.session.replies.bytes.clear();
        self.sent = 0;
        buffers::give_back(&mut self.session.replies.bytes);
        sent
    }

    /// Writes as much as the socket takes. While the client does not read, a transfer is pending:
    /// if that lasts too long, the listener closes the connection.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        transfer: &mut Option<u32>,
    ) -> Poll<io::Result<()>> {
        loop {
            let rest = &self.session.replies.bytes[self.sent..];
            let is_last = rest.is_empty();
            let mut stream = Pin::new(&mut self.stream);
            let written = match is_last {
                false => stream.as_mut().poll_write(context, rest),
                // A stream that encrypts may keep some of it.
                true => stream.as_mut().poll_flush(context).map_ok(|()| 0),
            };
            match written {
                Poll::Ready(flushed) if is_last => return Poll::Ready(flushed.map(drop)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(length) => {
                    self.sent += length?;
                    if let Some(mark) = transfer {
                        self.control.transfer_moves(mark);
                    }
                }
                Poll::Pending => {
                    transfer.get_or_insert_with(|| self.control.transfer_begins());
                    // What it has asked before is answered; a client that does not read is closed.
                    return match self.control.order(context) {
                        Order::Close => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                        Order::Serve | Order::Finish => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// Ends the transfer of a client that has sent the rest of a command.
fn rest_arrived(pending: &mut Option<u32>, control: &Control) {
    if let Some(mark) = pending.take() {
        control.transfer_ends(mark);
    }
}
