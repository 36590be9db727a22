//! Floods over HTTP/2, each for a while, with a client beside that asks as it should.
//!
//! How quickly that client is answered depends on the machine: the time is printed, and
//! docs/performance.md has figures. On every machine the client is answered, memory is bounded, and
//! the server survives.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leaf_testkit::{HttpClient, LeafServer, Ledger, http2_frame};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const ID: &str = "/api/segment/get/leaf-segment-test";
/// How long each flood lasts, and how much it sends at most.
const LENGTH: Duration = Duration::from_millis(1500);
const MOST: u64 = 48 << 20;
/// How much memory a flood may cost, in KiB.
const MEMORY: u64 = 64 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The header fields of a request for an id in HPACK (RFC 7541): two from the static table, two as
/// literals.
fn fields(method: u8) -> Vec<u8> {
    let literal =
        |name: u8, value: &str| [&[name, value.len() as u8][..], value.as_bytes()].concat();
    [&[method, 0x86][..], &literal(0x04, ID), &literal(0x01, "leaf")].concat()
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// A flood: returns the frames to send next, by their number; `None` when the connection has sent
/// enough.
type Flood = fn(u32) -> Option<Vec<u8>>;

const FLOODS: [(&str, Flood); 9] = [
    ("rapid reset", |number| {
        let stream = 2 * number + 1;
        let asked = http2_frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(GET));
        Some([asked, http2_frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat())
    }),
    ("requests that nobody reads", |number| {
        Some(http2_frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &fields(GET)))
    }),
    ("CONTINUATION", |number| {
        Some(match number {
            0 => http2_frame(HEADERS, END_STREAM, 1, &fields(GET)),
            // A field that means nothing, again and again.
            _ => http2_frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y"),
        })
    }),
    ("a bomb of fields", |number| {
        let mut block = fields(GET);
        // A field of 4,000 bytes goes into the table once, and is named 2,000 times with a byte each.
        block.extend_from_slice(b"\x40\x01x\x7f\xa1\x1e");
        block.extend(std::iter::repeat_n(b'a', 4000));
        block.extend(std::iter::repeat_n(0xbe, 2000));
        Some(http2_frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &block))
    }),
    ("SETTINGS", |_| Some(http2_frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]))),
    ("PING", |number| {
        Some(http2_frame(PING, 0, 0, &[&[0; 4][..], &number.to_be_bytes()].concat()))
    }),
    ("small DATA", |number| {
        Some(match number {
            0 => http2_frame(HEADERS, END_HEADERS, 1, &fields(POST)),
            _ => http2_frame(DATA, 0, 1, if number.is_multiple_of(2) { b"x" } else { b"" }),
        })
    }),
    ("WINDOW_UPDATE of nothing", |number| {
        (number < 4).then(|| http2_frame(WINDOW_UPDATE, 0, 0, &0u32.to_be_bytes()))
    }),
    ("WINDOW_UPDATE of too much", |number| {
        Some(match number {
            0 => http2_frame(HEADERS, END_HEADERS, 1, &fields(POST)),
            _ => http2_frame(WINDOW_UPDATE, 0, number % 2, &0x7fff_ffffu32.to_be_bytes()),
        })
    }),
];

/// Floods a server over one connection after the other; counts the bytes in `sent`, and returns the
/// number of connections.
fn flood(at: SocketAddr, flood: Flood, until: Instant, sent: &AtomicU64) -> u32 {
    let mut connections = 0;
    while Instant::now() < until && sent.load(Ordering::Relaxed) < MOST {
        connections += 1;
        let Ok(mut stream) = TcpStream::connect(at) else { continue };
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(http2_frame(SETTINGS, 0, 0, &[]));
        if stream.write_all(&begin).is_err() {
            continue;
        }
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut number = 0;
        let ended = 'connection: loop {
            let mut bytes = Vec::new();
            while bytes.len() < 16 * 1024 {
                let Some(frames) = flood(number) else { break };
                bytes.extend(frames);
                number += 1;
            }
            if bytes.is_empty() || Instant::now() > until || sent.load(Ordering::Relaxed) > MOST {
                break 'connection true;
            }
            if stream.write_all(&bytes).is_err() {
                break 'connection true;
            }
            sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let mut answer = [0; 64 * 1024];
            match stream.read(&mut answer) {
                Ok(0) => break 'connection true,
                Err(error)
                    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break 'connection true;
                }
                _ => {}
            }
        };
        assert!(ended);
    }
    connections
}

#[test]
fn floods_of_http2_hold_nobody_up_and_cost_little() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let (ledger, name): (_, Arc<str>) = (Ledger::default(), "ids".into());
    let mut honest = HttpClient::connect(server.ids()).unwrap();
    let mut ask = |stop: &dyn Fn() -> bool| {
        let mut took = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).unwrap();
        while !stop() {
            let begun = Instant::now();
            let answer = honest.request("GET", ID).unwrap();
            took.record(begun.elapsed().as_micros() as u64).unwrap();
            assert_eq!(answer.status, 200);
            ledger.record(&name, answer.body.parse().unwrap());
            std::thread::sleep(Duration::from_micros(500));
        }
        took
    };
    let alone = Instant::now() + LENGTH;
    let alone = ask(&|| Instant::now() > alone);
    println!("alone: p99 {} us", alone.value_at_quantile(0.99));
    for (what, frames) in FLOODS {
        let before = server.resident_kib();
        let (until, sent, over) =
            (Instant::now() + LENGTH, AtomicU64::new(0), AtomicBool::new(false));
        let (took, connections) = std::thread::scope(|scope| {
            let attack = scope.spawn(|| {
                let connections = flood(server.ids(), frames, until, &sent);
                over.store(true, Ordering::Relaxed);
                connections
            });
            let took = ask(&|| over.load(Ordering::Relaxed));
            (took, attack.join().unwrap())
        });
        let more = server.resident_kib().saturating_sub(before);
        println!(
            "{what}: {} requests beside it, p50 {} us, p99 {} us, max {} us; {:.1} MB over {connections} connections; \
             {more} KiB more memory",
            took.len(),
            took.value_at_quantile(0.5),
            took.value_at_quantile(0.99),
            took.max(),
            sent.load(Ordering::Relaxed) as f64 / 1e6,
        );
        assert!(took.len() > 20, "{what}: {} answers", took.len());
        assert!(more < MEMORY, "{what}: {more} KiB more memory");
    }
    assert!(server.id(ID) > 0);
}
