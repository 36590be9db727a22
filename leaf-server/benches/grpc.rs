//! Ids over gRPC, compared with a service on tonic's own server that answers a constant, in
//! alternating runs: `NextId` with 32 requests in flight on one connection, and `NextIds` of 1,000.
//! Each server runs on one processor, the load on the other. `scripts/bench grpc` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic, and sleeps while others work"
)]

use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::Stream;
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::id_service_server::{IdService, IdServiceServer};
use leaf_proto::v1::{
    ClockRequest, ClockResponse, DecodeRequest, DecodeResponse, DescribeServerRequest,
    DescribeServerResponse, DescribeTagRequest, DescribeTagResponse, LeaseRangeRequest,
    LeaseRangeResponse, NextIdRequest, NextIdResponse, NextIdsRequest, NextIdsResponse,
    ReturnRangeRequest, ReturnRangeResponse, next_id_request, next_ids_request,
};
use leaf_testkit::{LeafServer, free_port, wait_until};
use tokio::time::Instant;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const LIST: u32 = 1000;

/// Answers constants.
struct Echo;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl IdService for Echo {
    async fn next_id(&self, _: Request<NextIdRequest>) -> Answer<NextIdResponse> {
        Ok(Response::new(NextIdResponse { id: 123_456_789 }))
    }

    async fn next_ids(&self, request: Request<NextIdsRequest>) -> Answer<NextIdsResponse> {
        let count = i64::from(request.into_inner().count);
        Ok(Response::new(NextIdsResponse { ids: (123_456_789..123_456_789 + count).collect() }))
    }

    type StreamIdsStream = Pin<Box<dyn Stream<Item = Result<NextIdsResponse, Status>> + Send>>;

    async fn stream_ids(&self, _: Request<NextIdsRequest>) -> Answer<Self::StreamIdsStream> {
        Err(Status::unimplemented("not measured"))
    }

    async fn lease_range(&self, _: Request<LeaseRangeRequest>) -> Answer<LeaseRangeResponse> {
        Err(Status::unimplemented("not measured"))
    }

    async fn return_range(&self, _: Request<ReturnRangeRequest>) -> Answer<ReturnRangeResponse> {
        Err(Status::unimplemented("not measured"))
    }

    async fn decode(&self, _: Request<DecodeRequest>) -> Answer<DecodeResponse> {
        Err(Status::unimplemented("not measured"))
    }

    async fn clock(&self, _: Request<ClockRequest>) -> Answer<ClockResponse> {
        Err(Status::unimplemented("not measured"))
    }

    async fn describe_tag(&self, _: Request<DescribeTagRequest>) -> Answer<DescribeTagResponse> {
        Err(Status::unimplemented("not measured"))
    }

    async fn describe_server(
        &self,
        _: Request<DescribeServerRequest>,
    ) -> Answer<DescribeServerResponse> {
        Err(Status::unimplemented("not measured"))
    }
}

fn echo(address: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::builder().add_service(IdServiceServer::new(Echo));
    runtime.block_on(server.serve(address)).unwrap();
}

/// What is measured, and where.
struct Contender {
    name: &'static str,
    pid: u32,
    address: SocketAddr,
}

impl Contender {
    /// Processor time so far, in seconds.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // User and system time, in hundredths of a second.
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }
}

/// Requests a second, and processor time of the server for one, in microseconds.
async fn run(contender: &Contender, in_flight: usize, list: bool) -> (f64, f64) {
    let channel = Channel::from_shared(format!("http://{}", contender.address)).unwrap();
    let client = IdServiceClient::new(channel.connect().await.unwrap());
    let (done, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let mut callers = tokio::task::JoinSet::new();
    let (started, before) = (Instant::now(), contender.cpu());
    for _ in 0..in_flight {
        let (mut client, done, asked) = (client.clone(), Arc::clone(&done), Arc::clone(&asked));
        callers.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                if list {
                    let source = Some(next_ids_request::Source::Tag(TAG.into()));
                    let request = NextIdsRequest { source, count: LIST };
                    let ids = client.next_ids(request).await.unwrap().into_inner().ids;
                    assert_eq!(ids.len(), LIST as usize);
                } else {
                    let source = Some(next_id_request::Source::Tag(TAG.into()));
                    assert!(
                        client.next_id(NextIdRequest { source }).await.unwrap().into_inner().id > 0
                    );
                }
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(ROUND).await;
    done.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let asked = asked.load(Ordering::Relaxed) as f64;
    let cpu = (contender.cpu() - before) * 1e6 / asked;
    (asked / started.elapsed().as_secs_f64(), cpu)
}

fn main() {
    let mut args = std::env::args().skip(1);
    if let (Some("--echo"), Some(address)) = (args.next().as_deref(), args.next()) {
        return echo(address.parse().unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let wrapped = ["-c", "1", SERVER, "--grpc-listen", "127.0.0.1:0", "--log-level", "off"];
    let leaf = LeafServer::start_wrapped("taskset", &wrapped, directory.path());
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(own).args(["--echo", &at.to_string()]);
    let mut echo = command.spawn().unwrap();
    wait_until("the echo listens", Duration::from_secs(10), || {
        std::net::TcpStream::connect(at).ok()
    });
    let own = std::process::id().to_string();
    assert!(Command::new("taskset").args(["-cp", "0", &own]).output().unwrap().status.success());
    let contenders = [
        Contender { name: "leaf-server", pid: leaf.pid(), address: leaf.grpc() },
        Contender { name: "tonic, constant", pid: echo.id(), address: at },
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{ROUNDS} rounds of {ROUND:?}, medians");
    for (what, in_flight, list) in
        [("NextId, 32 in flight", 32, false), ("NextIds of 1,000, 8 in flight", 8, true)]
    {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (contender, figures) in contenders.iter().zip(&mut figures) {
                figures.push(runtime.block_on(run(contender, in_flight, list)));
            }
        }
        let [ours, theirs] = figures.map(|figures| {
            let median = |mut values: Vec<f64>| {
                values.sort_by(f64::total_cmp);
                values[ROUNDS / 2]
            };
            let (rates, cpu) = figures.into_iter().unzip();
            (median(rates), median(cpu))
        });
        println!("{what}");
        for (contender, (rate, cpu)) in contenders.iter().zip([ours, theirs]) {
            println!(
                "{:>18}: {:8.1} k/s, {cpu:6.1} us of CPU per request; {:.2} and {:.2} of tonic's",
                contender.name,
                rate / 1000.0,
                rate / theirs.0,
                cpu / theirs.1
            );
            if list {
                println!("{:>18}  {:8.1} M ids/s", "", rate * f64::from(LIST) / 1e6);
            }
        }
    }
    // It may have ended by itself.
    let _ = echo.kill();
    let _ = echo.wait();
}
