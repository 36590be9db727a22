//! More requests than the processor can answer: what is answered, and how late, beside the peak.
//!
//! The server has a fifth of one processor, so that one thread can send three times its load.
//! Requests are due at a constant rate, even if earlier ones are not answered yet (an open loop). A
//! client takes an idle connection for each request, or opens one, as pools do, up to a limit. It
//! gives up after a second, and closes that connection. Latencies count from the moment when a
//! request was due. `scripts/bench overload` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic"
)]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leaf_testkit::{HttpClient, LeafServer};
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

const REQUEST: &[u8] = b"GET /api/segment/get/leaf-segment-test HTTP/1.1\r\nHost: leaf\r\n\r\n";
/// The time after which a client gives up.
const PATIENCE: Duration = Duration::from_secs(1);
/// The server's quota of processor time and its period, in microseconds. The period is short, so
/// that the quota alone does not make answers late.
const SHARE: (u32, u32) = (1000, 5000);

/// A group of processes with a part of a processor.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let (quota, period) = SHARE;
        let name = format!("leaf-bench-{}", std::process::id());
        let old = PathBuf::from("/sys/fs/cgroup/cpu").join(&name);
        let new = PathBuf::from("/sys/fs/cgroup").join(&name);
        if std::fs::create_dir(&old).is_ok() {
            std::fs::write(old.join("cpu.cfs_period_us"), period.to_string()).ok()?;
            std::fs::write(old.join("cpu.cfs_quota_us"), quota.to_string()).ok()?;
            return Some(Self(old));
        }
        std::fs::create_dir(&new).ok()?;
        std::fs::write(new.join("cpu.max"), format!("{quota} {period}")).ok()?;
        Some(Self(new))
    }

    fn add(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn main() {
    let mut program = env!("CARGO_BIN_EXE_leaf-server").to_owned();
    let mut seconds = 6;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--server" => program = args.next().unwrap(),
            "--seconds" => seconds = args.next().unwrap().parse().unwrap(),
            // What cargo itself says.
            _ => {}
        }
    }
    let mut processor = rustix::thread::CpuSet::new();
    processor.set(0);
    rustix::thread::sched_setaffinity(None, &processor).unwrap();
    let Some(group) = Group::new() else {
        println!("no group of processes can be made here (cgroups): nothing was measured");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let program = format!("taskset -c 1 {program}");
    let words: Vec<&str> = program.split(' ').collect();
    let server = LeafServer::start_wrapped(words[0], &words[1..], directory.path());
    group.add(server.pid());
    let length = Duration::from_secs(seconds);

    let peak = Load::new(server.ids(), 32).run(u64::MAX / 4, length);
    println!(
        "peak, 32 connections in a closed loop: {:.1} k/s",
        peak.answered_per_second() / 1000.0
    );
    for (connections, times) in [(32, 1), (1000, 1), (1000, 3), (4000, 3)] {
        let rate = peak.answered_per_second() as u64 * times;
        let stop = AtomicBool::new(false);
        let (found, ready) = std::thread::scope(|scope| {
            let probe = scope.spawn(|| ready(server.ops(), &stop));
            let found = Load::new(server.ids(), connections).run(rate, length);
            stop.store(true, Ordering::Relaxed);
            (found, probe.join().unwrap())
        });
        let of = |histogram: &Histogram<u64>, quantile| {
            histogram.value_at_quantile(quantile) as f64 / 1e6
        };
        println!(
            "{times} x the peak, at most {connections} connections: answered {:.2} of the peak; p50 {:.1} ms, p99 \
             {:.1} ms, p99.9 {:.1} ms; given up {:.2} of the peak, not sent {:.2}; /readyz p99 {:.1} ms, max {:.1} ms",
            found.answered_per_second() / peak.answered_per_second(),
            of(&found.latencies, 0.5),
            of(&found.latencies, 0.99),
            of(&found.latencies, 0.999),
            found.given_up as f64 / length.as_secs_f64() / peak.answered_per_second(),
            found.not_sent as f64 / length.as_secs_f64() / peak.answered_per_second(),
            of(&ready, 0.99),
            ready.max() as f64 / 1e6,
        );
        // What is left of it ends.
        std::thread::sleep(Duration::from_secs(3));
    }
}

/// How long health took, asked ten times a second.
fn ready(ops: SocketAddr, stop: &AtomicBool) -> Histogram<u64> {
    let mut took = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        assert_eq!(HttpClient::once(ops, "GET", "/readyz").status, 200);
        took.record(begun.elapsed().as_nanos() as u64).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    took
}

/// What became of the requests, after a second to warm up.
struct Found {
    latencies: Histogram<u64>,
    given_up: u64,
    not_sent: u64,
    length: Duration,
}

impl Found {
    fn answered_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.length.as_secs_f64()
    }
}

struct Connection {
    stream: TcpStream,
    /// When the request under way was due, and whether it was sent.
    due: Option<(Instant, bool)>,
    answer: Vec<u8>,
}

struct Load {
    at: SocketAddr,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    /// Places of connections that wait for a request; the one that was used last comes first.
    idle: Vec<usize>,
    free: Vec<usize>,
    /// In the order in which they were due.
    under_way: VecDeque<(Instant, usize)>,
}

impl Load {
    fn new(at: SocketAddr, most: usize) -> Self {
        Self {
            at,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            connections: (0..most).map(|_| None).collect(),
            idle: Vec::new(),
            free: (0..most).rev().collect(),
            under_way: VecDeque::new(),
        }
    }

    fn run(mut self, rate: u64, length: Duration) -> Found {
        let latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        let mut found = Found { latencies, given_up: 0, not_sent: 0, length };
        let start = Instant::now();
        let warm = start + Duration::from_secs(1);
        let is_closed = rate > 1_000_000_000;
        let mut sent = 0u64;
        let mut events = Vec::with_capacity(1024);
        loop {
            let now = Instant::now();
            if now > warm + length {
                return found;
            }
            if is_closed {
                // Whenever there is a connection.
                while !self.idle.is_empty() || !self.free.is_empty() {
                    self.send(Instant::now());
                }
            } else {
                let due = (now - start).as_nanos() * u128::from(rate) / 1_000_000_000;
                while u128::from(sent) < due {
                    let due = start
                        + Duration::from_nanos(
                            (u128::from(sent) * 1_000_000_000 / u128::from(rate)) as u64,
                        );
                    sent += 1;
                    if !self.send(due) && due > warm {
                        found.not_sent += 1;
                    }
                }
            }
            self.give_up(now, warm, &mut found);
            events.clear();
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_once))
                .unwrap();
            for event in &events {
                self.on_event(event.data.u64() as usize, warm, &mut found);
            }
        }
    }

    /// Sends a request, if there is a connection for it or room for one more.
    fn send(&mut self, due: Instant) -> bool {
        if let Some(place) = self.idle.pop() {
            let connection = self.connections[place].as_mut().unwrap();
            let sent = connection.stream.write_all(REQUEST).is_ok();
            connection.due = Some((due, sent));
            self.under_way.push_back((due, place));
            return true;
        }
        let Some(place) = self.free.pop() else { return false };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let _ = connect(&socket, &self.at);
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).unwrap();
        let data = epoll::EventData::new_u64(place as u64);
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, data, interest).unwrap();
        self.connections[place] =
            Some(Connection { stream, due: Some((due, false)), answer: Vec::new() });
        self.under_way.push_back((due, place));
        true
    }

    fn on_event(&mut self, place: usize, warm: Instant, found: &mut Found) {
        let Some(connection) = &mut self.connections[place] else { return };
        if let Some((due, false)) = connection.due {
            match connection.stream.write(REQUEST) {
                Ok(_) => connection.due = Some((due, true)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close(place),
            }
        }
        match connection.answered() {
            Some(false) => {}
            Some(true) => {
                if let Some((due, _)) = connection.due.take() {
                    if due > warm {
                        found.latencies.record(due.elapsed().as_nanos() as u64).unwrap();
                    }
                    self.idle.push(place);
                }
            }
            None => self.close(place),
        }
    }

    /// Closes connections whose request is too late.
    fn give_up(&mut self, now: Instant, warm: Instant, found: &mut Found) {
        while let Some((due, place)) = self.under_way.front().copied() {
            let is_it = self.connections[place]
                .as_ref()
                .is_some_and(|connection| connection.due.is_some_and(|(at, _)| at == due));
            if is_it && now - due < PATIENCE {
                return;
            }
            self.under_way.pop_front();
            if is_it {
                found.given_up += u64::from(due > warm);
                self.close(place);
            }
        }
    }

    fn close(&mut self, place: usize) {
        self.connections[place] = None;
        self.idle.retain(|idle| *idle != place);
        self.free.push(place);
    }
}

impl Connection {
    /// Reads what is there; tells whether the answer is complete. `None`: the connection has ended.
    fn answered(&mut self) -> Option<bool> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.answer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
        let text = std::str::from_utf8(&self.answer).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Some(false) };
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        if body.len() < length.unwrap_or(0) {
            return Some(false);
        }
        self.answer.clear();
        Some(true)
    }
}
