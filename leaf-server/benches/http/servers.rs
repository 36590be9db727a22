//! The servers that are compared, each alone on the second processor.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leaf_testkit::{HttpClient, LeafServer, Process, free_port, wait_until};

pub(crate) const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
const PROCESSOR: &str = "1";

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) path: &'static str,
    pid: u32,
    /// Stops with it.
    _process: Running,
}

#[allow(dead_code, reason = "held for their ends")]
enum Running {
    Leaf(LeafServer),
    Other(Process),
}

impl Contender {
    /// What all its threads have used of processors so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // utime and stime, in ticks of 10 ms.
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

/// Starts Leaf, a bare hyper and nginx; nginx, the last, is the reference.
pub(crate) fn start(directory: &Path) -> Vec<Contender> {
    let args = ["-c", PROCESSOR, env!("CARGO_BIN_EXE_leaf-server")];
    let leaf = LeafServer::start_wrapped("taskset", &args, &directory.join("leaf"));
    let leaf = Contender {
        name: "leaf-server",
        address: leaf.ids(),
        path: SEGMENT,
        pid: leaf.pid(),
        _process: Running::Leaf(leaf),
    };

    let port = free_port().to_string();
    let own = std::env::current_exe().unwrap().display().to_string();
    let hyper = other("bare hyper", &port, &[&own, "--bare-hyper", &port]);

    let port = free_port().to_string();
    let config = directory.join("nginx.conf");
    let home = directory.display();
    let text = format!(
        "daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/nginx.log;\n\
         events {{ worker_connections 2048; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;\n\
         client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;\n\
         uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"1234567\"; }} }} }}\n"
    );
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let nginx = other("nginx", &port, &["nginx", "-c", &config]);
    vec![leaf, hyper, nginx]
}

fn other(name: &'static str, port: &str, command: &[&str]) -> Contender {
    let mut args = vec!["-c".to_owned(), PROCESSOR.to_owned()];
    args.extend(command.iter().map(ToString::to_string));
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let process = Process::start("taskset", &args, &[("PATH", path)]);
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    wait_until(name, Duration::from_secs(10), || HttpClient::connect(address).ok());
    Contender { name, address, path: "/", pid: process.pid(), _process: Running::Other(process) }
}

/// What an HTTP server in Rust costs at the least: a constant body, one thread.
pub(crate) fn bare_hyper(port: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let answer = async |_: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"1234567"))))
            };
            tokio::spawn(async move {
                let stream = TokioIo::new(stream);
                http1::Builder::new()
                    .pipeline_flush(true)
                    .serve_connection(stream, service_fn(answer))
                    .await
            });
        }
    });
}
