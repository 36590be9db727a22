//! The requests that a client sends to servers, each for both protocols: HTTP and gRPC.

use hyper::Method;
use leaf_core::{Id, IdRange, Step};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::endpoint::Mode;
#[cfg(feature = "grpc")]
use crate::wire::usual_weight;
use crate::wire::{Ids, Lease, Returned, Server, TagShown};

#[cfg(feature = "grpc")]
use crate::transport::client::{Client, Sent};
#[cfg(feature = "grpc")]
use leaf_proto::v1;

/// The characters that are escaped in a path: all but the unreserved ones (RFC 3986, section 2.3).
/// A server parses a path without escapes faster.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Limit in bytes for an answer without a list.
const SMALL: usize = 64 << 10;
/// Limit in bytes for one id in a list: 19 digits, two quotes, a comma, and two bytes to spare.
const PER_ID: usize = 24;

/// A request to a server, with its answer.
pub(crate) trait Ask: Sync {
    /// The type of the answer.
    type Answer: Send;

    /// The mode that a server must have to serve this request; `None` if any server can serve it.
    fn mode(&self) -> Option<Mode> {
        Some(Mode::Segment)
    }

    /// Method and path over HTTP.
    fn http(&self) -> (Method, String);

    /// The most bytes of an answer.
    fn limit(&self) -> usize {
        SMALL
    }

    /// Reads the answer from a JSON body; `None` if the body is not an answer to this request.
    fn read(&self, body: &[u8]) -> Option<Self::Answer>;

    /// Sends the request over gRPC.
    #[cfg(feature = "grpc")]
    fn grpc(&self, client: Client) -> impl Future<Output = Sent<Self::Answer>> + Send;
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// The path of a route of `tag`; `rest` is the part after the tag.
fn path_of(tag: &str, rest: &str) -> String {
    format!("/v1/segments/{}{rest}", utf8_percent_encode(tag, ESCAPED))
}

/// Asks a server for its health, zone and weight.
pub(crate) struct AskServer;

impl Ask for AskServer {
    type Answer = Server;

    fn mode(&self) -> Option<Mode> {
        None
    }

    fn http(&self) -> (Method, String) {
        (Method::GET, "/v1/server".into())
    }

    fn read(&self, body: &[u8]) -> Option<Server> {
        json(body)
    }

    #[cfg(feature = "grpc")]
    async fn grpc(&self, client: Client) -> Sent<Server> {
        let told = client.send(v1::DescribeServerRequest {}, async |mut stub, request| {
            stub.describe_server(request).await
        });
        let told = told.await?;
        let weight = told.weight.unwrap_or_else(usual_weight);
        Ok(Some(Server { zone: told.zone, weight, ready: told.ready }))
    }
}

/// Asks for the properties of a tag: its order, limits and generation, and whether it can be
/// leased.
pub(crate) struct AskTag<'a>(pub(crate) &'a str);

impl Ask for AskTag<'_> {
    type Answer = TagShown;

    fn http(&self) -> (Method, String) {
        (Method::GET, path_of(self.0, ""))
    }

    fn read(&self, body: &[u8]) -> Option<TagShown> {
        json(body)
    }

    #[cfg(feature = "grpc")]
    async fn grpc(&self, client: Client) -> Sent<TagShown> {
        let request = v1::DescribeTagRequest { tag: self.0.into() };
        let told = client.send(request, async |mut stub, request| stub.describe_tag(request).await);
        let told = told.await?;
        let order = match told.order() {
            v1::Order::Relaxed => leaf_shape::Order::Relaxed,
            v1::Order::Strict => leaf_shape::Order::Strict,
            v1::Order::Unspecified => return Ok(None),
        };
        Ok(Some(TagShown {
            order,
            leases: told.leases,
            step: told.step.map(i64::from),
            max_take: told.max_take.into(),
            max_count: told.max_count as usize,
            generation: told.generation.and_then(|text| text.parse().ok()),
        }))
    }
}

/// Leases a range of `count` ids of a tag.
pub(crate) struct AskLease<'a> {
    pub(crate) tag: &'a str,
    pub(crate) count: Step,
}

/// A range that a server has leased to this client.
pub(crate) struct Leased {
    pub(crate) range: IdRange,
    /// A secret number, as the server wrote it. Only a request with this ticket can give ids of the
    /// range back.
    pub(crate) ticket: String,
}

impl AskLease<'_> {
    /// Checks the range of a server's answer; `None` if it is invalid or does not have `count` ids.
    fn leased(&self, start: i64, end: i64, ticket: String) -> Option<Leased> {
        let range = IdRange::new(start, end);
        let range = range.filter(|range| range.len() == u64::from(self.count.get()))?;
        Some(Leased { range, ticket })
    }
}

impl Ask for AskLease<'_> {
    type Answer = Leased;

    fn http(&self) -> (Method, String) {
        (Method::POST, path_of(self.tag, &format!("/lease?count={}", self.count.get())))
    }

    fn read(&self, body: &[u8]) -> Option<Leased> {
        let Lease { start, end, ticket } = json(body)?;
        self.leased(start.parse().ok()?, end.parse().ok()?, ticket)
    }

    #[cfg(feature = "grpc")]
    async fn grpc(&self, client: Client) -> Sent<Leased> {
        let request = v1::LeaseRangeRequest { tag: self.tag.into(), count: self.count.get() };
        let told = client.send(request, async |mut stub, request| stub.lease_range(request).await);
        let told = told.await?;
        Ok(self.leased(told.start, told.end, told.ticket.to_string()))
    }
}

/// Gives the unused end of a leased range back to its server.
pub(crate) struct AskReturn<'a> {
    pub(crate) tag: &'a str,
    pub(crate) ticket: &'a str,
    pub(crate) unused: IdRange,
}

impl Ask for AskReturn<'_> {
    /// Whether the server took the ids back.
    type Answer = bool;

    fn http(&self) -> (Method, String) {
        let ticket = utf8_percent_encode(self.ticket, ESCAPED);
        let (start, end) = (self.unused.start(), self.unused.end());
        let rest = format!("/return?ticket={ticket}&start={start}&end={end}");
        (Method::POST, path_of(self.tag, &rest))
    }

    fn read(&self, body: &[u8]) -> Option<bool> {
        json(body).map(|Returned { returned }| returned)
    }

    #[cfg(feature = "grpc")]
    async fn grpc(&self, client: Client) -> Sent<bool> {
        let request = v1::ReturnRangeRequest {
            tag: self.tag.into(),
            // It came from this server, as a number.
            ticket: self.ticket.parse().unwrap_or_default(),
            start: self.unused.start(),
            end: self.unused.end(),
        };
        let told = client.send(request, async |mut stub, request| stub.return_range(request).await);
        Ok(Some(told.await?.returned))
    }
}

/// Which ids are requested: those of a tag, or snowflake ids.
#[derive(Debug, Clone)]
pub(crate) enum IdsOf {
    Tag(String),
    Snowflake,
}

/// Asks for a list of `count` ids.
pub(crate) struct AskIds<'a> {
    pub(crate) of: &'a IdsOf,
    pub(crate) count: usize,
}

impl AskIds<'_> {
    /// The ids of a response; `None` if one of them is invalid or their number is not the requested
    /// one.
    fn ids(&self, ids: impl ExactSizeIterator<Item = Option<i64>>) -> Option<Vec<Id>> {
        let enough = ids.len() == self.count;
        let ids = ids.map(|id| id.and_then(Id::new)).collect::<Option<Vec<Id>>>();
        ids.filter(|_| enough)
    }
}

impl Ask for AskIds<'_> {
    type Answer = Vec<Id>;

    fn mode(&self) -> Option<Mode> {
        Some(match self.of {
            IdsOf::Tag(_) => Mode::Segment,
            IdsOf::Snowflake => Mode::Snowflake,
        })
    }

    fn http(&self) -> (Method, String) {
        let rest = format!("/ids?count={}", self.count);
        let path = match self.of {
            IdsOf::Tag(tag) => path_of(tag, &rest),
            IdsOf::Snowflake => format!("/v1/snowflake{rest}"),
        };
        (Method::GET, path)
    }

    fn limit(&self) -> usize {
        SMALL + self.count * PER_ID
    }

    fn read(&self, body: &[u8]) -> Option<Vec<Id>> {
        let Ids { ids } = json(body)?;
        self.ids(ids.iter().map(|id| id.parse().ok()))
    }

    #[cfg(feature = "grpc")]
    async fn grpc(&self, client: Client) -> Sent<Vec<Id>> {
        let source = match self.of {
            IdsOf::Tag(tag) => v1::next_ids_request::Source::Tag(tag.clone()),
            IdsOf::Snowflake => v1::next_ids_request::Source::Snowflake(v1::Snowflake {}),
        };
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        let request = v1::NextIdsRequest { source: Some(source), count };
        let told = client.send(request, async |mut stub, request| stub.next_ids(request).await);
        let told = told.await?;
        Ok(self.ids(told.ids.into_iter().map(Some)))
    }
}
