//! `/cache` and `/db`: the tables of the Java Leaf, with its columns; as JSON if the client accepts
//! that.
//!
//! Every cell is escaped: names and descriptions come from the database.

use hyper::StatusCode;
use hyper::header::HeaderMap;
use leaf_core::IdRange;
use leaf_segment::TagRecord;
use leaf_segment::view::TagView;
use serde_json::{Value, json};

use super::super::problem::{Form, Problem};
use super::super::reply::{self, Reply};
use super::part::{self, Part};
use crate::node::{Node, Store};

/// The columns of `/cache`, as the Java Leaf names the fields of its double buffer.
const CACHE: [&str; 10] =
    ["name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"];
/// The columns of `/db`.
const DB: [&str; 4] = ["tag", "max", "step", "description"];

/// A table, as a page for browsers or as JSON for programs.
fn page(
    title: &str,
    columns: &[&str],
    rows: Vec<Vec<Value>>,
    next_url: Option<String>,
    headers: &HeaderMap,
) -> Reply {
    if Form::accepted(headers, Form::Text) == Form::Json {
        let rows: Vec<Value> = rows
            .into_iter()
            .map(|row| columns.iter().map(|name| (*name).to_owned()).zip(row).collect())
            .collect();
        let mut reply = reply::json(StatusCode::OK, &rows);
        next_url.iter().for_each(|url| part::link(reply.headers_mut(), url));
        return reply;
    }
    let line = |cells: Vec<String>, kind: &str| {
        let cells: String =
            cells.iter().map(|cell| format!("<{kind}>{}</{kind}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line(columns.iter().map(ToString::to_string).collect(), "th");
    let text = |cell: Value| match cell {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let body: String =
        rows.into_iter().map(|row| line(row.into_iter().map(text).collect(), "td")).collect();
    let more = next_url.map(|url| format!("<p><a href=\"{}\">more</a></p>\n", escaped(&url)));
    let more = more.unwrap_or_default();
    reply::html(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body><table border=\"1\">\n{head}{body}</table>\n{more}</body></html>\n"
    ))
}

/// Escapes a text for HTML. Tags and descriptions are whatever somebody wrote into the database.
fn escaped(text: &str) -> String {
    // The first one first: the others make more of it.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// The table of the double buffers of the tags in this node's memory, sorted by name.
pub(super) fn cache(node: &Node, part: &Part, headers: &HeaderMap) -> Reply {
    let after = part.after.as_deref();
    // One more than is shown tells whether there are more.
    let views = node.ids.segments().map(|segments| segments.views(after, part.limit + 1));
    let mut views = views.unwrap_or_default();
    let is_more = views.len() > part.limit;
    views.truncate(part.limit);
    let last = views.last().filter(|_| is_more);
    let next_url = last.map(|last| part.next_url(last.tag.as_str()));
    page("cache", &CACHE, views.iter().map(buffer).collect(), next_url, headers)
}

/// One row of `/cache`.
fn buffer(view: &TagView) -> Vec<Value> {
    let slot = |at: usize| {
        let range = view.slots[at];
        let start = range.map_or(0, IdRange::start);
        // Of the slot in use the next id; of the other its first.
        let value = match (at == view.current, view.position) {
            (true, Some(position)) => position,
            (true, None) => range.map_or(0, IdRange::end),
            (false, _) => start,
        };
        let (max, step) = (range.map_or(0, IdRange::end), range.map_or(0, IdRange::len));
        [json!(value.to_string()), json!(max.to_string()), json!(step)]
    };
    let other = view.slots[1 - view.current];
    let ready =
        other.zip(view.slots[view.current]).is_some_and(|(next, now)| next.start() > now.start());
    let mut row = vec![
        json!(view.tag.as_str()),
        json!(view.slots[view.current].is_some()),
        json!(ready),
        json!(view.current),
    ];
    row.extend(slot(0));
    row.extend(slot(1));
    row
}

/// Answers `/db`: the table of the records in the stores.
pub(super) async fn db(node: &Node, part: &Part, headers: &HeaderMap) -> Result<Reply, Problem> {
    let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
    let list =
        leaf_node::list_tags(stores, Store::opened, part.family.as_ref(), part.from()?, part.limit)
            .await;
    if let Some((_, error)) = list.failed.into_iter().next() {
        return Err(error.into());
    }
    let row = |(_, record): &(_, TagRecord)| {
        vec![
            json!(record.tag.as_str()),
            json!(record.max_id.to_string()),
            json!(record.step.ok().map(leaf_core::Step::get)),
            json!(record.description),
        ]
    };
    let next_url = list.next.map(|next| part.next_url(&next.to_string()));
    Ok(page("db", &DB, list.records.iter().map(row).collect(), next_url, headers))
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_tag_is_no_markup() {
        assert_eq!(escaped("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }
}
