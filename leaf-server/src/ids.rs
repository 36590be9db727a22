//! Ids for every protocol: looks tags up, takes ids, and limits how many requests wait.
//!
//! No types of a protocol are used here: each protocol maps [`IdError`] to its own answers, in one
//! place. [`known`], [`next_of_each`] and [`snowflake_at_once`] take what is in memory; they never
//! wait and allocate nothing. The `async` functions may wait; how many requests wait at a time is
//! limited.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use leaf_core::{Clock as _, Id, IdRange, Step, WorkerId};
use leaf_node::Shards;
use leaf_segment::KnownTags;
use leaf_segment::{Ids, LeasedRange, SegmentError, SegmentErrorKind, TagHandle};
use leaf_shape::{Order, Shape, Texts};
use leaf_shape::{TextForm, TextFormError};
use leaf_snowflake::{IdRun, SnowflakeError, SnowflakeErrorKind, SnowflakeGenerator, SystemClock};
use serde::Serialize;

use crate::caller::{Caller, Denial};
use crate::node::Node;
use crate::refusal::Reason;
use crate::serve::Pressure;
use crate::traffic::Barred;

/// The most ids of one contiguous range: its answer is small, whatever its length. A tag may have a
/// lower limit of its own.
pub(crate) const LARGEST_RANGE: usize = 1_000_000;

impl IdError {
    /// The reason of this error. Errors share a reason if programs would react to them in the same
    /// way.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::ModeDisabled(_) => Reason::ModeDisabled,
            Self::NoTemplate => Reason::NoTemplate,
            Self::NoText => Reason::NoText,
            Self::Busy(_) => Reason::Busy,
            Self::Denied(denial) => denial.reason(),
            Self::Barred(barred) => barred.reason(),
            Self::Segment(error) => match error.kind() {
                SegmentErrorKind::BadTag(_) | SegmentErrorKind::BadCount { .. } => {
                    Reason::BadRequest
                }
                SegmentErrorKind::UnknownTag | SegmentErrorKind::Family => Reason::UnknownTag,
                SegmentErrorKind::Disabled => Reason::Disabled,
                SegmentErrorKind::TooManyNames => Reason::Busy,
                SegmentErrorKind::NoRanges => Reason::NoRanges,
                SegmentErrorKind::StrictOrder => Reason::StrictOrder,
                SegmentErrorKind::Exhausted | SegmentErrorKind::FamilyFull => Reason::Exhausted,
                SegmentErrorKind::Guard | SegmentErrorKind::Record => Reason::Record,
                _ => Reason::Unavailable,
            },
            Self::Snowflake(error) => match error.kind() {
                SnowflakeErrorKind::BadCount { .. } => Reason::BadRequest,
                SnowflakeErrorKind::EndOfTime { .. } => Reason::EndOfTime,
                _ => Reason::Unavailable,
            },
        }
    }
}

/// Why a caller gets no id. The text is fit for clients.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdError {
    /// The mode of ids is switched off on this node.
    #[error("{0} mode is disabled")]
    ModeDisabled(&'static str),
    /// The caller asks for texts of a tag that has no template.
    #[error("the tag has no template: its ids are numbers")]
    NoTemplate,
    /// The tag's template cannot hold today's date.
    #[error(
        "the tag's template cannot hold this server's date: its clock is wrong, or the years of %y are over"
    )]
    NoText,
    /// Too many requests wait already; worth another try.
    #[error("{0}")]
    Busy(&'static str),
    /// The caller has no role for these ids.
    #[error("{0}")]
    Denied(#[from] Denial),
    /// A rule of traffic refuses the request.
    #[error("{0}")]
    Barred(#[from] Barred),
    /// Why there is no id of a tag.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Why there is no snowflake id.
    #[error("{0}")]
    Snowflake(#[from] SnowflakeError),
}

thread_local! {
    /// The tags that are known, as this thread last read them. Only threads of a data plane use it,
    /// and each of them serves one node all its life ([`crate::serve::DataPlane`]).
    static KNOWN: RefCell<Option<Shards<KnownTags>>> = const { RefCell::new(None) };
}

/// Calls `using` with the handle of a tag that is already in memory; allocates nothing. Returns
/// `None` if the tag is not in memory, if the caller has no role for it, or if a rule of traffic is
/// about the tag or the caller.
pub(crate) fn known<T>(
    caller: &Caller,
    name: &str,
    using: impl FnOnce(&TagHandle) -> T,
) -> Option<T> {
    if !caller.is_free(Some(name)) {
        return None;
    }
    with_known(caller, |known| known.get(name).map(using))?
}

/// Calls `using` with the next id of each of these tags in turn. Ends at the first tag that has no
/// id in memory, or that [`known`] would refuse to the caller; allocates nothing.
pub(crate) fn next_of_each(caller: &Caller, names: &[&str], mut using: impl FnMut(Id)) {
    let allowed = names.iter().take_while(|name| caller.is_free(Some(name))).count();
    with_known(caller, |known| {
        known.each(&names[..allowed], |handle| match handle.and_then(TagHandle::try_next) {
            Some(id) => {
                using(id);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
    });
}

/// Calls `using` with this thread's view of the tags that are known; `None` without segment mode.
fn with_known<T>(node: &Node, using: impl FnOnce(&mut Shards<KnownTags>) -> T) -> Option<T> {
    let segments = node.ids.segments()?;
    KNOWN.with_borrow_mut(|known| {
        Some(using(known.get_or_insert_with(|| segments.map(|shard| shard.known_tags()))))
    })
}

/// Returns the handle of a tag; looks it up in the store if this node does not know it.
///
/// # Errors
/// The caller has no role for the tag, the tag or the caller is cut, segment mode is switched off,
/// the tag does not exist, its store cannot be asked, or too many requests look tags up.
pub(crate) async fn handle(caller: &Caller, tag: &str) -> Result<TagHandle, IdError> {
    caller.check_ids(Some(tag))?;
    if !caller.traffic.is_known() {
        let _waiting = Waiting::for_a_look_up(caller)?;
        caller.traffic.wait_until_known(caller.config.segment.wait.duration()).await;
    }
    caller.pass(Some(tag), 0)?;
    find(caller, tag).await
}

/// Returns the handle of a tag to a caller that gives ids back, even if the tag is cut.
pub(crate) async fn handle_of_lease(caller: &Caller, tag: &str) -> Result<TagHandle, IdError> {
    caller.check_ids(Some(tag))?;
    find(caller, tag).await
}

/// Returns the handle of a tag. The caller's role must have been checked before.
async fn find(node: &Node, tag: &str) -> Result<TagHandle, IdError> {
    let segments = node.ids.segments().ok_or(IdError::ModeDisabled("segment"))?;
    // One that came a moment ago is not yet among those that this thread sees.
    let seen = with_known(node, |known| known.get(tag).cloned()).flatten();
    match seen.or_else(|| segments.of(tag).known(tag)) {
        Some(handle) => Ok(handle),
        None => {
            let _waiting = Waiting::for_a_look_up(node)?;
            Ok(segments.tag(tag).await?)
        }
    }
}

/// Takes the next id of a tag.
///
/// A handle ends when the tag is given another key or meaning. The request is then served by a new
/// handle: the caller asked for an id of the tag, not of the handle.
pub(crate) async fn next(caller: &Caller, handle: &TagHandle) -> Result<Id, IdError> {
    caller.pass(Some(handle.tag().as_str()), 1)?;
    let _waiting = Waiting::for_ids(caller)?;
    match handle.next().await {
        Err(error) => Ok(renewed(caller, handle, error).await?.next().await?),
        id => Ok(id?),
    }
}

/// Returns a new handle of the tag if the old one has ended, since it may have another key by now;
/// otherwise returns `error`.
async fn renewed(
    node: &Node,
    handle: &TagHandle,
    error: SegmentError,
) -> Result<TagHandle, IdError> {
    match error.kind() {
        SegmentErrorKind::Changed => find(node, handle.tag().as_str()).await,
        _ => Err(error.into()),
    }
}

/// Takes `count` ids of a tag.
///
/// Their numbers rise; only in strict order they follow each other.
pub(crate) async fn take(
    caller: &Caller,
    handle: &TagHandle,
    count: usize,
) -> Result<Ids, IdError> {
    if count > 1 {
        check_spare(caller)?;
    }
    take_singles(caller, handle, count).await
}

/// Takes `count` ids for as many requests of one id each. Unlike [`take`], does so even on an
/// overloaded thread, since single ids come first.
pub(crate) async fn take_singles(
    caller: &Caller,
    handle: &TagHandle,
    count: usize,
) -> Result<Ids, IdError> {
    caller.pass(Some(handle.tag().as_str()), count)?;
    let _waiting = Waiting::for_ids(caller)?;
    match handle.take(count).await {
        Err(error) => Ok(renewed(caller, handle, error).await?.take(count).await?),
        ids => Ok(ids?),
    }
}

/// Returns the object that writes the ids of a tag as texts, as of now.
///
/// # Errors
/// `NoTemplate` for a tag whose ids are plain numbers; `NoText` where the date does not fit its
/// template.
pub(crate) fn texts(handle: &TagHandle) -> Result<Texts, IdError> {
    let texts = handle.texts().ok_or(IdError::NoTemplate)?;
    if texts.can_be_written() { Ok(texts) } else { Err(IdError::NoText) }
}

/// Takes `count` ids of a tag that follow each other.
///
/// # Errors
/// As [`take`], and also if no range of this length is available: ids of some shapes never follow
/// each other.
pub(crate) async fn take_contiguous(
    caller: &Caller,
    handle: &TagHandle,
    count: usize,
) -> Result<IdRange, IdError> {
    check_spare(caller)?;
    caller.pass(Some(handle.tag().as_str()), count)?;
    let _waiting = Waiting::for_ids(caller)?;
    match handle.take_contiguous(count).await {
        Err(error) => Ok(renewed(caller, handle, error).await?.take_contiguous(count).await?),
        range => Ok(range?),
    }
}

/// Leases a range of `count` ids of a tag to a client, which hands them out itself.
///
/// The ids come straight from the store, so that the segment in memory is kept for other callers.
pub(crate) async fn lease(
    caller: &Caller,
    handle: &TagHandle,
    count: usize,
) -> Result<LeasedRange, IdError> {
    check_spare(caller)?;
    caller.pass(Some(handle.tag().as_str()), count)?;
    let _waiting = Waiting::for_ids(caller)?;
    match handle.lease(count).await {
        Err(error) => Ok(renewed(caller, handle, error).await?.lease(count).await?),
        lease => Ok(lease?),
    }
}

/// Gives the unused ids of a leased range back to the store; returns whether the store took them.
///
/// It takes them only if nobody has allocated from the tag since the lease. Else the ids are lost:
/// that costs numbers, never uniqueness.
pub(crate) async fn return_unused(
    node: &Node,
    handle: &TagHandle,
    ticket: u64,
    unused: IdRange,
) -> Result<bool, IdError> {
    let _waiting = Waiting::for_ids(node)?;
    Ok(handle.return_unused(ticket, unused).await?)
}

/// Takes a snowflake id if one is available without waiting, and no other request waits for one.
pub(crate) fn snowflake_at_once(caller: &Caller) -> Option<Id> {
    if !caller.is_free(None) {
        return None;
    }
    let id = snowflake(caller).ok()?.try_next_unless_queued()?;
    caller.requests.took_snowflakes(1);
    Some(id)
}

/// The next snowflake id.
pub(crate) async fn snowflake_next(caller: &Caller) -> Result<Id, IdError> {
    let generator = snowflake(caller)?;
    caller.pass(None, 1)?;
    let _waiting = Waiting::for_ids(caller)?;
    let id = generator.next().await?;
    caller.requests.took_snowflakes(1);
    Ok(id)
}

/// Takes `count` snowflake ids, in runs.
///
/// Each run has one timestamp and consecutive sequence numbers; the ids of one call rise.
pub(crate) async fn snowflake_take(caller: &Caller, count: usize) -> Result<Vec<IdRun>, IdError> {
    let generator = snowflake(caller)?;
    if count > 1 {
        check_spare(caller)?;
    }
    caller.pass(None, count)?;
    let _waiting = Waiting::for_ids(caller)?;
    let runs = generator.take_runs(count).await?;
    caller.requests.took_snowflakes(count);
    Ok(runs)
}

/// Refuses a request for many ids while this thread is overloaded: another node may have a
/// processor to spare, and single ids come first.
fn check_spare(node: &Node) -> Result<(), IdError> {
    match node.pressure_here().is_some_and(Pressure::lasts) {
        false => Ok(()),
        true => Err(IdError::Busy("this server's processor is overloaded: ask another one")),
    }
}

/// Checks that the ids of this node's layout can be written in this form now.
pub(crate) fn fits(node: &Node, form: TextForm) -> Result<(), TextFormError> {
    let now = node.layout.tick_at(SystemClock.wall_millis()).min(node.layout.max_tick());
    let id = node.layout.compose(now, WorkerId::new(0), 0).ok_or(TextFormError::OtherLayout)?;
    form.write(node.layout, id).map(|_| ())
}

/// The most ids of a request for several ids (`http.max_count`).
pub(crate) fn most_ids(node: &Node) -> usize {
    node.live.config().http.max_count as usize
}

impl IdError {
    /// The text of the error for clients. It does not repeat a text that is not a valid tag.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Segment(error) => match error.kind() {
                SegmentErrorKind::BadTag(why) => why.to_string(),
                _ => error.to_string(),
            },
            error => error.to_string(),
        }
    }
}

/// The description of a tag for clients. As JSON it is the answer of `GET /v1/segments/{tag}`: the
/// names of the fields are API.
#[derive(Serialize)]
pub(crate) struct TagFacts<'a> {
    tag: &'a str,
    pub(crate) order: Order,
    /// Whether the tag's ids can be leased.
    pub(crate) leases: bool,
    /// The tag's step: how many ids a node reserves at least; `None` in strict order, where nodes
    /// reserve none.
    pub(crate) step: Option<u32>,
    /// The most ids of a lease.
    pub(crate) max_take: usize,
    /// The most ids of a list.
    pub(crate) max_count: usize,
    /// The generation of the tag's record. A client that holds leased ids of another generation
    /// drops them.
    pub(crate) generation: Option<String>,
    /// For a tag whose ids are scrambled: the newest key that this node has for it, as
    /// `version:check`. `leaf tag rekey` asks all nodes before it gives the tag that key.
    newest_key: Option<String>,
}

/// Returns the description of a tag for clients.
pub(crate) fn facts<'a>(caller: &Caller, handle: &'a TagHandle) -> TagFacts<'a> {
    let tag = handle.tag().as_str();
    let most = handle.max_take().min(caller.traffic.most(caller.name(), tag));
    let order = handle.meaning().order;
    let relaxed = order == Order::Relaxed;
    TagFacts {
        tag,
        order,
        leases: relaxed && handle.meaning().has_ranges(),
        step: handle.step().filter(|_| relaxed).map(Step::get),
        max_take: most.min(LARGEST_RANGE),
        max_count: most_ids(caller).min(most),
        generation: handle.generation().map(|generation| generation.to_string()),
        newest_key: match handle.meaning().shape {
            Shape::Scramble { domain, .. } => caller.ids.keys().newest(domain, handle.tag()),
            Shape::Plain | Shape::Interleave(_) => None,
        }
        .map(|newest| format!("{}:{}", newest.key().version, newest.key().check)),
    }
}

/// The generator of snowflake ids.
///
/// # Errors
/// The caller has no role for ids, or is cut, or the mode is switched off.
pub(crate) fn snowflake(caller: &Caller) -> Result<&SnowflakeGenerator, IdError> {
    caller.check_ids(None)?;
    caller.pass(None, 0)?;
    let snowflake = caller.ids.snowflake().ok_or(IdError::ModeDisabled("snowflake"))?;
    Ok(&snowflake.generator)
}

/// The place of a request that may wait; free again when this is dropped.
///
/// Requests beyond the limit are refused at once: a queue that grows while the store is away would
/// only make every answer late and the memory full.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    /// Reserves one of `http.max_waiting` places for requests that wait for ids; `Busy` if none is
    /// free.
    fn for_ids(node: &'a Node) -> Result<Self, IdError> {
        let most = node.live.config().http.max_waiting as usize;
        Self::begin(&node.waiting, most, "too many requests are waiting for ids")
    }

    /// Reserves a place for a request that waits until it is known whether its tag exists; `Busy`
    /// if none is free. Names that do not exist must not keep requests for known tags from their
    /// places.
    fn for_a_look_up(node: &'a Node) -> Result<Self, IdError> {
        let most = (node.live.config().http.max_waiting as usize / 10).max(1);
        Self::begin(
            &node.looking_up,
            most,
            "too many requests are waiting for tags that this node does not know yet",
        )
    }

    /// Takes a place, unless `most` are taken. A request may be refused although a place has just
    /// become free: another request that is being refused still counts for a moment.
    fn begin(count: &'a AtomicUsize, most: usize, refusal: &'static str) -> Result<Self, IdError> {
        if count.fetch_add(1, Ordering::Relaxed) >= most {
            count.fetch_sub(1, Ordering::Relaxed);
            return Err(IdError::Busy(refusal));
        }
        Ok(Self(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
