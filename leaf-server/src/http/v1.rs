//! The routes of `/v1` for ids: JSON, in which every id is a string, since JavaScript loses digits
//! above 2^53.

use std::fmt::{self, Display, Write};
use std::str::FromStr;

use hyper::{StatusCode, Version};
use leaf_core::{Id, IdRange};
use leaf_segment::{LeasedRange, TagHandle};
use leaf_shape::TextError;
use leaf_shape::{IdText, TextForm};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::json;

use super::problem::Problem;
use super::reply::{self, Reply};
use crate::caller::Caller;
use crate::decoded::Decoded;
use crate::ids::{self, IdError};
use crate::node::Node;
use crate::refusal::Reason;

/// Reads `?count=`, the only parameter, from 1 to `most`; 1 if it is not given.
fn count(query: Option<&str>, most: usize) -> Result<usize, Problem> {
    let [count] = parameters(query, ["count"], "unknown parameter: there is `count`")?;
    read_count(count, most)
}

/// Parses a number of ids from 1 to `most`; 1 if none is given.
fn read_count(count: Option<&str>, most: usize) -> Result<usize, Problem> {
    let count = count.map_or(Some(1), number).filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| Problem::bad_request(format!("count: give 1 to {most}")))
}

/// Parses a number that has digits alone: no `+`, which stands for a blank in a query.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Parses the value of `?as=`, the form of snowflake ids.
fn form(name: &str) -> Result<TextForm, Problem> {
    name.parse().map_err(|why| Problem::bad_request(format!("as: {why}")))
}

/// Reads `?count=`, as [`count`] does, and the text of `?as=`, if it is given.
fn count_and_form(query: Option<&str>, most: usize) -> Result<(usize, Option<&str>), Problem> {
    let unknown = "unknown parameter: there are `count` and `as`";
    let [count, form] = parameters(query, ["count", "as"], unknown)?;
    Ok((read_count(count, most)?, form))
}

/// The values of the parameters `names`, each given at most once. `unknown` is the text that
/// refuses any other parameter.
pub(super) fn parameters<'a, const N: usize>(
    query: Option<&'a str>,
    names: [&str; N],
    unknown: &str,
) -> Result<[Option<&'a str>; N], Problem> {
    let mut values = [None; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = names.iter().position(|known| *known == name);
        match at.map(|at| &mut values[at]) {
            Some(place @ None) => *place = Some(value),
            Some(_) => return Err(Problem::bad_request(format!("{name} is given twice"))),
            None => return Err(Problem::bad_request(unknown)),
        }
    }
    Ok(values)
}

/// A list of ids: `{"ids":["1","2"]}`. Over HTTP/1 it is made whole, with its length: answers leave
/// one after the other, and an unread one stops the next. Over HTTP/2 it is made while the client
/// reads it.
fn ids_json<T: Display>(
    count: usize,
    mut ids: impl Iterator<Item = T> + Send + 'static,
    version: Version,
) -> Reply {
    /// What stands before a list of ids.
    const START: &str = "{\"ids\":[";
    /// What stands behind a list of ids.
    const END: &str = "]}";
    if version < Version::HTTP_2 {
        // An id has up to 19 digits, two quotes and a comma; a text of it more.
        let mut body = String::with_capacity(16 + count * 22);
        body.push_str(START);
        for (at, id) in ids.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            // A String takes everything.
            let _ = write!(body, "{comma}\"{id}\"");
        }
        body.push_str(END);
        return reply::json_text(body);
    }
    let start = ids.next().map_or(START.to_owned(), |id| format!("{START}\"{id}\""));
    let rest = ids.map(|id| format!(",\"{id}\""));
    reply::json_pieces([start].into_iter().chain(rest).chain([END.to_owned()]))
}

/// `GET /v1/segments/{tag}/ids?count=&as=text`: `count` ids of a tag, as numbers in strings or as
/// texts of its template.
pub(super) async fn segment_ids(
    caller: &Caller,
    handle: &TagHandle,
    query: Option<&str>,
    version: Version,
) -> Result<Reply, Problem> {
    let texts = match count_and_form(query, ids::most_ids(caller))? {
        (count, None) => {
            let ids = ids::take(caller, handle, count).await?;
            return Ok(ids_json(count, ids, version));
        }
        (count, Some("text")) => ids::texts(handle).map(|texts| (count, texts)),
        (_, Some(_)) => return Err(Problem::bad_request("as: give text")),
    };
    let (count, texts) = texts?;
    let ids = ids::take(caller, handle, count).await?;
    let texts = ids.map(move |id| Written { id, text: texts.write(id) });
    Ok(ids_json(count, texts, version))
}

/// The refusal of a text that is no id of the tag, or of a tag that has no template.
fn not_a_text(error: &TextError) -> Problem {
    match error {
        TextError::NoTemplate => IdError::NoTemplate.into(),
        error => Problem::new(Reason::NoSuchId, error.to_string()),
    }
}

/// An id that a text stands for.
#[derive(Serialize)]
struct Read<'a> {
    tag: &'a str,
    id: String,
}

/// Reads `?tag=`, which must be the only parameter; `None` if it is not given.
pub(super) fn tag_of(query: Option<&str>) -> Result<Option<&str>, Problem> {
    let query = query.unwrap_or_default();
    let Some(tag) = query.split('&').find_map(|pair| pair.strip_prefix("tag=")) else {
        return Ok(None);
    };
    match query.split('&').count() {
        1 => Ok(Some(tag)),
        _ => Err(Problem::new(
            Reason::Conflict,
            "`tag` asks for the id of a tag's text: give it without `as`",
        )),
    }
}

/// `GET /v1/ids/{text}?tag=`: the id that a text of a tag stands for.
pub(super) fn read_text(handle: &TagHandle, text: &str) -> Result<Reply, Problem> {
    let text = percent_decode_str(text).decode_utf8_lossy();
    let id = handle.read_text(&text).map_err(|error| not_a_text(&error))?;
    Ok(reply::json(StatusCode::OK, &Read { tag: handle.tag().as_str(), id: id.to_string() }))
}

/// A leased range, in its JSON form.
#[derive(Serialize)]
struct Lease<'a> {
    tag: &'a str,
    /// The range's first id.
    start: String,
    /// One past the range's last id.
    end: String,
    count: u64,
    /// The ticket, which the client shows to give the unused rest back.
    ticket: String,
}

/// `GET /v1/segments/{tag}`: what a client must know before it leases.
pub(super) fn tag(caller: &Caller, handle: &TagHandle) -> Reply {
    reply::json(StatusCode::OK, &ids::facts(caller, handle))
}

/// The description of this server for clients, in JSON form.
#[derive(Serialize)]
struct ServerShown<'a> {
    version: &'static str,
    zone: Option<&'a str>,
    /// The share of requests that clients should send to this server, relative to the weights of
    /// other servers.
    weight: u32,
    /// Whether ids can be had now.
    ready: bool,
    /// `ready`, `degraded` or `not ready`.
    state: &'static str,
    segment: bool,
    snowflake: bool,
}

/// `GET /v1/server`: what a client may want to know before it chooses among servers.
pub(super) fn server(node: &Node) -> Reply {
    let health = node.health_lately();
    let shown = ServerShown {
        version: env!("CARGO_PKG_VERSION"),
        zone: node.config.zone.as_deref(),
        weight: node.live.config().weight,
        ready: health.can_answer(),
        state: health.state(),
        segment: node.ids.segments().is_some(),
        snowflake: node.ids.snowflake().is_some(),
    };
    reply::json(StatusCode::OK, &shown)
}

/// `POST /v1/segments/{tag}/lease?count=`: a contiguous range that the client hands out itself.
/// Each range is sent only once: a client that got no answer leases another one.
pub(super) async fn lease(
    caller: &Caller,
    handle: &TagHandle,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let count = count(query, ids::LARGEST_RANGE)?;
    let LeasedRange { range, ticket } = ids::lease(caller, handle, count).await?;
    let lease = Lease {
        tag: handle.tag().as_str(),
        start: range.start().to_string(),
        end: range.end().to_string(),
        count: range.len(),
        ticket: format!("{ticket:016x}"),
    };
    Ok(reply::json(StatusCode::OK, &lease))
}

/// `POST /v1/segments/{tag}/return?ticket=&start=&end=`: gives the unused end of a leased range
/// back. `returned` is `false` if ids of the tag were allocated after the lease: then the unused
/// ids are never issued.
pub(super) async fn return_unused(
    node: &Node,
    handle: &TagHandle,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let (ticket, unused) = ticket_and_range(query)?;
    let returned = ids::return_unused(node, handle, ticket, unused).await?;
    Ok(reply::json(StatusCode::OK, &json!({ "returned": returned })))
}

/// Reads the ticket and the unused range from `?ticket=&start=&end=`, each given exactly once.
fn ticket_and_range(query: Option<&str>) -> Result<(u64, IdRange), Problem> {
    let unknown = "unknown parameter: there are `ticket`, `start` and `end`";
    let values = parameters(query, ["ticket", "start", "end"], unknown)?;
    let [ticket, start, end] = values.map(Option::unwrap_or_default);
    let is_hex = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let ticket = u64::from_str_radix(ticket, 16).ok().filter(|_| is_hex(ticket));
    let ticket = ticket
        .ok_or_else(|| Problem::bad_request("ticket: give the 16 characters of the lease's"))?;
    let range = number(start).zip(number(end)).and_then(|(start, end)| IdRange::new(start, end));
    let range = range.ok_or_else(|| {
        Problem::bad_request("start, end: give the first unused id, and the lease's end")
    })?;
    Ok((ticket, range))
}

/// `GET /v1/snowflake/ids?count=&as=`: `count` snowflake ids in rising order, as numbers in strings
/// or in another form.
pub(super) async fn snowflake_ids(
    caller: &Caller,
    query: Option<&str>,
    version: Version,
) -> Result<Reply, Problem> {
    ids::snowflake(caller)?;
    let (count, form) = count_and_form(query, ids::most_ids(caller))?;
    let Some(form) = form.map(self::form).transpose()? else {
        let runs = ids::snowflake_take(caller, count).await?;
        return Ok(ids_json(count, runs.into_iter().flatten(), version));
    };
    let layout = caller.layout;
    ids::fits(caller, form).map_err(|error| Problem::bad_request(format!("as: {error}")))?;
    let runs = ids::snowflake_take(caller, count).await?;
    let texts =
        runs.into_iter().flatten().map(move |id| Written { id, text: form.write(layout, id).ok() });
    Ok(ids_json(count, texts, version))
}

/// An id with its text in a form or a template. Without a text it is written in digits: the form or
/// the template ended just after it was checked.
struct Written {
    id: Id,
    text: Option<IdText>,
}

impl Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => text.fmt(f),
            None => self.id.fmt(f),
        }
    }
}

/// `GET /v1/ids/{id}?as=`: time, worker id and sequence of a snowflake id.
pub(super) fn decode(node: &Node, text: &str, query: Option<&str>) -> Result<Reply, Problem> {
    let [form] = parameters(query, ["as"], "there is one parameter, `as` or `tag`")?;
    let form = form.map(self::form).transpose()?;
    let id = percent_decode_str(text).decode_utf8_lossy();
    let decoded = Decoded::of(node, &id, form);
    let decoded = decoded.map_err(|error| Problem::new(error.reason(), error.to_string()))?;
    Ok(reply::json(StatusCode::OK, &decoded))
}
