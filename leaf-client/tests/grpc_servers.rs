//! gRPC servers that are no Leaf servers, or misbehave: the client returns typed errors that name
//! the server, and never the token.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(feature = "grpc")]

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder};
use leaf_proto::v1::id_service_server::{IdService, IdServiceServer};
use leaf_proto::v1::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

type Answer<T> = Result<Response<T>, Status>;

/// What a server answers.
#[derive(Debug, Clone, Default)]
struct Fake {
    /// The error with which it refuses every call, if any.
    refuses: Option<Status>,
    tag: DescribeTagResponse,
    lease: LeaseRangeResponse,
    ids: Vec<i64>,
    /// The `authorization` metadata that it requires, if any.
    wants: Option<&'static str>,
}

impl Fake {
    fn answer<M, T>(&self, request: &Request<M>, answer: T) -> Answer<T> {
        let shown = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if self.wants.is_some_and(|wanted| shown != Some(wanted)) {
            return Err(Status::unauthenticated("who are you?"));
        }
        // The time that is left goes along.
        assert!(request.metadata().contains_key("grpc-timeout"));
        self.refuses.clone().map_or_else(|| Ok(Response::new(answer)), Err)
    }
}

#[tonic::async_trait]
impl IdService for Fake {
    async fn next_id(&self, _: Request<NextIdRequest>) -> Answer<NextIdResponse> {
        Err(Status::unimplemented("no client of ours asks"))
    }

    async fn next_ids(&self, request: Request<NextIdsRequest>) -> Answer<NextIdsResponse> {
        self.answer(&request, NextIdsResponse { ids: self.ids.clone() })
    }

    type StreamIdsStream = Pin<Box<dyn Stream<Item = Result<NextIdsResponse, Status>> + Send>>;

    async fn stream_ids(&self, _: Request<NextIdsRequest>) -> Answer<Self::StreamIdsStream> {
        Err(Status::unimplemented("no client of ours asks"))
    }

    async fn lease_range(&self, request: Request<LeaseRangeRequest>) -> Answer<LeaseRangeResponse> {
        self.answer(&request, self.lease)
    }

    async fn return_range(
        &self,
        request: Request<ReturnRangeRequest>,
    ) -> Answer<ReturnRangeResponse> {
        self.answer(&request, ReturnRangeResponse { returned: false })
    }

    async fn decode(&self, _: Request<DecodeRequest>) -> Answer<DecodeResponse> {
        Err(Status::unimplemented("no client of ours asks"))
    }

    async fn clock(&self, _: Request<ClockRequest>) -> Answer<ClockResponse> {
        Err(Status::unimplemented("no client of ours asks"))
    }

    async fn describe_tag(
        &self,
        request: Request<DescribeTagRequest>,
    ) -> Answer<DescribeTagResponse> {
        self.answer(&request, self.tag.clone())
    }

    async fn describe_server(
        &self,
        request: Request<DescribeServerRequest>,
    ) -> Answer<DescribeServerResponse> {
        self.answer(&request, DescribeServerResponse::default())
    }
}

/// A tag with leases.
fn orders() -> DescribeTagResponse {
    DescribeTagResponse {
        tag: "orders".into(),
        order: Order::Relaxed.into(),
        leases: true,
        step: Some(10),
        max_take: 1000,
        max_count: 100,
        generation: None,
    }
}

async fn serve(fake: Fake) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = tonic::transport::Server::builder().add_service(IdServiceServer::new(fake));
    tokio::spawn(server.serve(address));
    while tokio::net::TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    format!("grpc://{address}")
}

fn builder(url: &str) -> LeafClientBuilder {
    LeafClient::builder().endpoint(url).deadline(Duration::from_millis(700))
}

/// The error status of a leaf-server, with its reason as a detail.
fn refusal(code: Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "leaf", HashMap::new());
    Status::with_error_details(code, "because\u{7}", details)
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_told_by_their_reason() {
    use ClientErrorKind as Kind;
    for (status, kind) in [
        (refusal(Code::NotFound, "unknown-tag"), Kind::UnknownTag),
        (refusal(Code::FailedPrecondition, "disabled"), Kind::Disabled),
        (refusal(Code::FailedPrecondition, "exhausted"), Kind::Exhausted),
        (refusal(Code::Internal, "record"), Kind::Refused),
        (refusal(Code::FailedPrecondition, "of a later version"), Kind::Refused),
        (refusal(Code::FailedPrecondition, "mode-disabled"), Kind::Unavailable),
        (refusal(Code::Unavailable, "unavailable"), Kind::Unavailable),
        (refusal(Code::ResourceExhausted, "unavailable"), Kind::Unavailable),
        // Of a gateway, or of an older server.
        (Status::not_found("no route"), Kind::Unavailable),
        (Status::unimplemented("what?"), Kind::Unavailable),
        (Status::permission_denied("not you"), Kind::Unauthorized),
    ] {
        let url = serve(Fake { refuses: Some(status.clone()), ..Fake::default() }).await;
        let error = builder(&url).build().unwrap().tag("orders").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status:?}: {error}");
        let text = error.to_string();
        assert!(text.contains(&url) && !text.contains('\u{7}') && text.len() < 500, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_asked_for_is_refused() {
    let unknown_order = DescribeTagResponse { order: 9, ..orders() };
    let url = serve(Fake { tag: unknown_order, ..Fake::default() }).await;
    let error = builder(&url).build().unwrap().tag("orders").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{error}");

    for (start, end) in [(1, 2), (5, 5), (i64::MAX, i64::MIN), (-20, -10)] {
        let lease = LeaseRangeResponse { start, end, ticket: 1 };
        let url = serve(Fake { tag: orders(), lease, ..Fake::default() }).await;
        let orders = builder(&url).build().unwrap().tag("orders").await.unwrap();
        let error = orders.next().await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{start} to {end}: {error}");
    }
    let listed = DescribeTagResponse { leases: false, ..orders() };
    for ids in [vec![], vec![-1; 16], (1..16).collect(), vec![1; 1_000_000]] {
        let url = serve(Fake { tag: listed.clone(), ids, ..Fake::default() }).await;
        let orders = builder(&url).build().unwrap().tag("orders").await.unwrap();
        let error = orders.next().await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&url), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_sent_and_never_told() {
    let fake = Fake { tag: orders(), wants: Some("Bearer right"), ..Fake::default() };
    let url = serve(fake).await;
    let client = builder(&url).token("a-canary").build().unwrap();
    assert!(!format!("{client:?}").contains("canary"), "{client:?}");
    let error = client.tag("orders").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unauthorized);
    assert!(
        error.to_string().contains("token") && !error.to_string().contains("canary"),
        "{error}"
    );
    assert!(builder(&url).token("right").build().unwrap().tag("orders").await.is_ok());
    let error = builder(&url).token("a\r\nhost: b").build().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::BadConfig);
}

/// A server of another protocol, one that says nothing, and none at all.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_speak_grpc_is_told_by_name_and_in_time() {
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"[..], b"", &[0xff; 1000]]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("grpc://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(bytes).await;
                open.push(stream);
            }
        });
        let begun = tokio::time::Instant::now();
        let error = builder(&url).build().unwrap().tag("orders").await.unwrap_err();
        assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&url), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    let error = builder("grpc://127.0.0.1:1").build().unwrap().tag("orders").await.unwrap_err();
    assert!(error.to_string().contains("grpc://127.0.0.1:1"), "{error}");
}
