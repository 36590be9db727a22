//! A load at a constant rate. Latencies count from the moment when a request was due: a server that
//! stands still makes all requests late that are due meanwhile, not only those that were sent.
//!
//! One thread that never sleeps: a timer's granularity would be most of what it measures.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use tokio::time::Instant;

const CONNECTIONS: usize = 32;

struct Connection {
    stream: TcpStream,
    /// When the request under way was due.
    due: Option<Instant>,
    answer: Vec<u8>,
}

/// Latencies in nanoseconds, after a second to warm up.
pub(crate) fn run(at: SocketAddr, path: &str, rate: u64, length: Duration) -> Histogram<u64> {
    let mut processor = rustix::thread::CpuSet::new();
    processor.set(0);
    rustix::thread::sched_setaffinity(None, &processor).unwrap();

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut connections: Vec<_> =
        (0..CONNECTIONS).map(|number| connect(at, &epoll, number)).collect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: leaf\r\n\r\n");
    let mut idle: VecDeque<usize> = (0..CONNECTIONS).collect();
    let mut late: VecDeque<Instant> = VecDeque::new();
    let mut latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    let start = Instant::now();
    let warm = start + Duration::from_secs(1);
    let (mut sent, mut events) = (0u64, Vec::with_capacity(CONNECTIONS));
    loop {
        let now = Instant::now();
        if now > warm + length {
            return latencies;
        }
        let due = (now - start).as_nanos() as u64 * rate / 1_000_000_000;
        while sent < due {
            late.push_back(start + Duration::from_nanos(sent * 1_000_000_000 / rate));
            sent += 1;
        }
        while !late.is_empty() && !idle.is_empty() {
            let connection = &mut connections[idle.pop_front().unwrap()];
            connection.due = late.pop_front();
            connection.stream.write_all(request.as_bytes()).unwrap();
        }
        events.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&epoll, room, Some(&at_once)).unwrap();
        for event in &events {
            let number = event.data.u64() as usize;
            let connection = &mut connections[number];
            if connection.answered()
                && let Some(due) = connection.due.take()
            {
                let now = Instant::now();
                if due > warm {
                    latencies.record((now - due).as_nanos() as u64).unwrap();
                }
                idle.push_back(number);
            }
        }
    }
}

fn connect(at: SocketAddr, epoll: &OwnedFd, number: usize) -> Connection {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let data = epoll::EventData::new_u64(number as u64);
    epoll::add(epoll, &stream, data, epoll::EventFlags::IN).unwrap();
    Connection { stream, due: None, answer: Vec::new() }
}

impl Connection {
    /// Reads what is there; tells whether the answer is complete.
    fn answered(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(read) => self.answer.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
        let text = std::str::from_utf8(&self.answer).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        if body.len() < length.unwrap_or(0) {
            return false;
        }
        self.answer.clear();
        true
    }
}
