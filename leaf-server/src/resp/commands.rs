//! The commands that take ids or ask about them: one function each.

use leaf_core::Id;
use leaf_segment::{SegmentErrorKind, TagHandle};
use leaf_shape::Order;
use leaf_shape::TextForm;

use super::codec::{self, equal_commands};
use super::command::{Answer, Call, Outcome};
use super::session::Refusal;
use super::task::{Reply, Told, text_or_nil};
use crate::caller::Caller;
use crate::decoded::Decoded;
use crate::ids::{self, IdError};

/// `INCR tag`: the next id as an integer, since that is what Redis answers. If the tag is in strict
/// order, the ids of all equal calls that came together are taken at once.
pub(super) fn increment(call: &mut Call<'_>) -> Answer {
    let tag = call.text(1)?;
    if let Some(Some(id)) = ids::known(call.caller(), tag, TagHandle::try_next) {
        call.to().integer(id.get());
        return Ok(Outcome::Done);
    }
    let most = ids::known(call.caller(), tag, |handle| {
        (handle.meaning().order == Order::Strict).then(|| handle.max_take())
    });
    let calls = most.flatten().map(|most| equal_commands(call.input, call.length).min(most));
    match calls {
        Some(calls @ 2..) => {
            let tag = tag.to_owned();
            call.wait_for(calls, move |caller| next_in_order(caller, tag, calls))
        }
        _ => wait_for_one(call, tag, |id| Reply::Integer(id.get())),
    }
}

/// Waits for the next id of a tag.
fn wait_for_one(call: &Call<'_>, tag: &str, reply: fn(Id) -> Reply) -> Answer {
    let tag = tag.to_owned();
    call.wait(async move |caller| {
        Ok(reply(ids::next(&caller, &ids::handle(&caller, &tag).await?).await?))
    })
}

/// The next ids of a tag in strict order, one for each of `calls` equal calls.
async fn next_in_order(caller: Caller, tag: String, calls: usize) -> Result<Reply, IdError> {
    let handle = ids::handle(&caller, &tag).await?;
    match ids::take_singles(&caller, &handle, calls).await {
        // Fewer are left: the first calls get them.
        Err(IdError::Segment(error))
            if *error.kind() == SegmentErrorKind::Exhausted && calls > 1 =>
        {
            let mut each = Vec::with_capacity(calls);
            for _ in 0..calls {
                each.push(ids::next(&caller, &handle).await);
            }
            Ok(Reply::Each(each))
        }
        ids => Ok(Reply::Each(ids?.map(Ok).collect())),
    }
}

/// `INCRBY tag n`: the last of n ids that follow each other.
pub(super) fn increment_by(call: &mut Call<'_>) -> Answer {
    let (tag, count) = (call.text(1)?, call.count(2, 1, ids::LARGEST_RANGE)?);
    if count == 1 {
        // Of any tag, also of one whose ids do not follow each other.
        return increment(call);
    }
    call.session.answers_several();
    let tag = tag.to_owned();
    call.wait(async move |caller| {
        let handle = ids::handle(&caller, &tag).await?;
        Ok(Reply::Integer(ids::take_contiguous(&caller, &handle, count).await?.end() - 1))
    })
}

/// `SEGMENT tag [COUNT n] [TEXT]`
pub(super) fn segment(call: &mut Call<'_>) -> Answer {
    match call.len() {
        2 => next(call),
        3 if call.is(2, "TEXT") => take(call, None, true),
        length @ (4 | 5) if call.is(2, "COUNT") && (length == 4 || call.is(4, "TEXT")) => {
            let count = call.count(3, 1, ids::most_ids(call.caller()))?;
            take(call, Some(count), length == 5)
        }
        _ => Err(call.syntax_error().into()),
    }
}

/// `LPOP tag [n]`
pub(super) fn pop(call: &mut Call<'_>) -> Answer {
    if call.len() == 2 {
        return next(call);
    }
    match call.count(2, 0, ids::most_ids(call.caller()))? {
        0 => {
            call.text(1)?;
            call.to().array(0);
            Ok(Outcome::Done)
        }
        count => take(call, Some(count), false),
    }
}

/// The next id of a tag as a string.
fn next(call: &mut Call<'_>) -> Answer {
    let tag = call.text(1)?;
    if let Some(Some(id)) = ids::known(call.caller(), tag, TagHandle::try_next) {
        call.to().id(id);
        return Ok(Outcome::Done);
    }
    wait_for_one(call, tag, |id| Reply::Text(Some(Told::Id(id))))
}

/// One id of a tag as a string, or `count` of them; `as_texts`: by the tag's template.
fn take(call: &mut Call<'_>, count: Option<usize>, as_texts: bool) -> Answer {
    if count.is_some() {
        call.session.answers_several();
    }
    let tag = call.text(1)?.to_owned();
    call.wait(async move |caller| {
        let handle = ids::handle(&caller, &tag).await?;
        let texts = as_texts.then(|| ids::texts(&handle)).transpose()?;
        let ids = ids::take(&caller, &handle, count.unwrap_or(1)).await?;
        let text = move |id| texts.as_ref().and_then(|texts| texts.write(id));
        Ok(several(count, ids.map(move |id| text(id).map_or(Told::Id(id), Told::Text))))
    })
}

/// The reply with one id as a string; with `count`, the reply with an array of `count` ids.
fn several(count: Option<usize>, mut ids: impl Iterator<Item = Told> + Send + 'static) -> Reply {
    match count {
        Some(count) => Reply::Ids(count, Box::new(ids)),
        None => Reply::Text(ids.next()),
    }
}

/// `SNOWFLAKE [COUNT n] [AS form]`
pub(super) fn snowflake(call: &mut Call<'_>) -> Answer {
    if call.len().is_multiple_of(2) {
        return Err(call.syntax_error().into());
    }
    let (mut count, mut form) = (None, None);
    for at in (1..call.len()).step_by(2) {
        if call.is(at, "COUNT") && count.is_none() {
            count = Some(call.count(at + 1, 1, ids::most_ids(call.caller()))?);
        } else if call.is(at, "AS") && form.is_none() {
            form = Some(text_form(call, at + 1)?);
        } else {
            return Err(call.syntax_error().into());
        }
    }
    if let Some(form) = form {
        ids::fits(call.caller(), form).map_err(|error| error.to_string())?;
    }
    if count.is_some() || form.is_some() {
        return snowflakes(call, count, form);
    }
    if let Some(id) = ids::snowflake_at_once(call.caller()) {
        call.to().id(id);
        return Ok(Outcome::Done);
    }
    call.wait(async |caller| Ok(Reply::Text(Some(Told::Id(ids::snowflake_next(&caller).await?)))))
}

/// The next snowflake id, or `count` of them, in `form` or, without one, in digits.
fn snowflakes(call: &mut Call<'_>, count: Option<usize>, form: Option<TextForm>) -> Answer {
    if count.is_some() {
        call.session.answers_several();
    }
    call.wait(async move |caller| {
        let runs = ids::snowflake_take(&caller, count.unwrap_or(1)).await?;
        let layout = caller.layout;
        // In digits also where the form ended this very moment.
        let text = move |id| form.and_then(|form| form.write(layout, id).ok());
        let write = move |id| text(id).map_or(Told::Id(id), Told::Text);
        Ok(several(count, runs.into_iter().flatten().map(write)))
    })
}

/// Reads a word as the name of a form of snowflake ids.
fn text_form(call: &Call<'_>, at: usize) -> Result<TextForm, String> {
    call.text(at)?.parse().map_err(|why| format!("AS: {why}"))
}

/// `GET tag`: the highest id that this node issued.
pub(super) fn get(call: &mut Call<'_>) -> Answer {
    let tag = call.text(1)?;
    if let Some(last) = ids::known(call.caller(), tag, TagHandle::last_issued) {
        text_or_nil(call.to(), last.map(Told::Id));
        return Ok(Outcome::Done);
    }
    let tag = tag.to_owned();
    call.wait(async move |caller| {
        let handle = existing(ids::handle(&caller, &tag).await)?;
        Ok(Reply::Text(handle.and_then(|handle| handle.last_issued()).map(Told::Id)))
    })
}

/// `LLEN tag`: how many ids this node has in memory.
pub(super) fn length(call: &mut Call<'_>) -> Answer {
    let tag = call.text(1)?;
    if let Some(stock) = ids::known(call.caller(), tag, TagHandle::stock) {
        call.to().integer(stock.cast_signed());
        return Ok(Outcome::Done);
    }
    let tag = tag.to_owned();
    call.wait(async move |caller| {
        let handle = existing(ids::handle(&caller, &tag).await)?;
        Ok(Reply::Integer(handle.map_or(0, |handle| handle.stock().cast_signed())))
    })
}

/// `EXISTS tag [tag ...]`
pub(super) fn exists(call: &mut Call<'_>) -> Answer {
    let tags = call.words.of(call.input).skip(1).map(|tag| codec::text(tag).map(String::from));
    let tags: Vec<_> = tags.collect::<Result<_, _>>()?;
    call.wait(async move |caller| {
        let mut count = 0;
        for tag in tags {
            count += i64::from(existing(ids::handle(&caller, &tag).await)?.is_some());
        }
        Ok(Reply::Integer(count))
    })
}

/// Turns the errors of a tag that does not exist, and of an invalid name, into `None`.
///
/// A disabled tag counts as one that does not exist.
fn existing(found: Result<TagHandle, IdError>) -> Result<Option<TagHandle>, IdError> {
    match found {
        Ok(handle) => Ok(Some(handle)),
        Err(IdError::Segment(error))
            if matches!(
                error.kind(),
                SegmentErrorKind::UnknownTag
                    | SegmentErrorKind::BadTag(_)
                    | SegmentErrorKind::Disabled
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// `DECODE id [AS form]`: the parts of a snowflake id, as pairs of name and value.
pub(super) fn decode(call: &mut Call<'_>) -> Answer {
    let form = match call.len() {
        2 => None,
        4 if call.is(2, "AS") => Some(text_form(call, 3)?),
        _ => return Err(call.syntax_error().into()),
    };
    let decoded = Decoded::of(call.caller(), call.text(1)?, form);
    let decoded =
        decoded.map_err(|error| Refusal::new(error.reason(), "ERR", error.to_string()))?;
    let number = |number: u64| itoa::Buffer::new().format(number).to_owned();
    let pairs = [
        ("id", Some(decoded.id)),
        ("timestamp_ms", Some(decoded.timestamp_ms)),
        ("time", decoded.time),
        ("datacenter", decoded.datacenter.map(|it| number(it.into()))),
        ("worker", Some(number(decoded.worker.into()))),
        ("sequence", Some(number(decoded.sequence))),
    ];
    let pairs = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let to = call.to();
    to.map(pairs.clone().count());
    for (name, value) in pairs {
        to.bulk(name.as_bytes());
        to.bulk(value.as_bytes());
    }
    Ok(Outcome::Done)
}
