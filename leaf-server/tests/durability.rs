//! The order of writes: data that an answer relies on is on the disk before the answer is sent.
//!
//! After kill -9 the kernel still has all writes, so a test that kills a process cannot detect a
//! missing fsync. This test reads the system calls: strace shows each write, sync and answer in
//! their order.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashMap;

use leaf_testkit::{HttpClient, LeafServer};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
const RANGE: usize = 10;

/// A system call of interest: a sync counts when it has ended, everything else when it begins.
#[derive(Debug)]
enum Call {
    Write { file: String, text: String },
    Synced { file: String },
    Sent { text: String },
}

/// The calls of a trace, in their order.
fn calls(trace: &str) -> Vec<Call> {
    let mut syncing: HashMap<&str, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        // `pwrite64(7</dir/snowflake.state>, "...", 4096, 0) = 4096`
        let file = || {
            let start = rest.split_once('<')?.1;
            Some(start.split_once('>')?.0.to_owned())
        };
        let name = rest.split('(').next().unwrap_or_default();
        match name {
            "fdatasync" | "fsync" => match (rest.ends_with("= 0"), file()) {
                (true, Some(file)) => calls.push(Call::Synced { file }),
                (false, Some(file)) => _ = syncing.insert(thread, file),
                _ => {}
            },
            "pwrite64" | "write" if !rest.contains("<socket:") && !rest.contains("<TCP:") => {
                if let Some(file) = file() {
                    calls.push(Call::Write { file, text: rest.into() });
                }
            }
            "sendto" | "write" | "writev" | "sendmsg" => {
                calls.push(Call::Sent { text: rest.into() })
            }
            _ if rest.contains("sync resumed") && rest.ends_with("= 0") => {
                if let Some(file) = syncing.remove(thread) {
                    calls.push(Call::Synced { file });
                }
            }
            _ => {}
        }
    }
    calls
}

/// The id in an answer.
fn id(text: &str) -> Option<i64> {
    let body = text.split_once("\\r\\n\\r\\n")?.1;
    let digits: String = body.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[test]
fn what_an_answer_relies_on_is_on_the_disk_before_it_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let file = trace.display().to_string();
    // So that every tenth id begins a range of its own.
    let limits = ["LEAF_SEGMENT__MAX_STEP=1"];
    let data = directory.path().join("data");
    let args = ["-f", "-y", "-s", "2000", "-qq", "-o", &file];
    let only = "trace=pwrite64,write,writev,sendto,sendmsg,fdatasync,fsync";
    let args = [&args[..], &["-e", only, "env"], &limits, &[SERVER]].concat();
    {
        let mut server = LeafServer::start_wrapped("strace", &args, &data);
        let ops = |method: &str, path: &str, body: &str| {
            let mut client = HttpClient::connect(server.ops()).unwrap();
            let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
            client.ask(method, path, headers, body).unwrap()
        };
        let step = format!("{{\"step\":{RANGE}}}");
        assert_eq!(ops("PATCH", "/v1/tags/leaf-segment-test", &step).status, 200);
        let mut client = HttpClient::connect(server.ids()).unwrap();
        // The first segments were fetched, if any, with the step of before.
        for _ in 0..400 {
            assert_eq!(client.request("GET", SEGMENT).unwrap().status, 200);
            assert_eq!(client.request("GET", SNOWFLAKE).unwrap().status, 200);
        }
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(3);
        while tokio::time::Instant::now() < until {
            assert_eq!(client.request("GET", SNOWFLAKE).unwrap().status, 200);
        }
        // The server is strace's child.
        let pid = server.pid();
        let child = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let killed = std::process::Command::new("kill").args(["-s", "TERM", child.trim()]).status();
        assert!(killed.unwrap().success());
        let ended = server.process_mut().wait(std::time::Duration::from_secs(20));
        assert!(ended.success(), "{}", server.output());
    }

    let trace = std::fs::read_to_string(&trace).unwrap();
    let (mut log_synced, mut marks_synced, mut marks_written) = (0usize, 0usize, 0usize);
    let (mut written, mut durable) = (0u64, 0u64);
    let (mut segment_ids, mut snowflake_ids) = (0, 0);
    let mut greatest = 0;
    for call in calls(&trace) {
        match call {
            Call::Write { file, text } if file.ends_with("snowflake.state") => {
                let ceiling = text.split_once("local_ceiling\\\":").map(|(_, rest)| rest);
                let digits = ceiling.map(|rest| rest.chars().take_while(char::is_ascii_digit));
                let ceiling = digits.and_then(|digits| digits.collect::<String>().parse().ok());
                written = written.max(ceiling.unwrap_or(0));
            }
            Call::Synced { file } if file.ends_with("snowflake.state") => durable = written,
            Call::Synced { file } if file.ends_with("leaf.db-wal") => log_synced += 1,
            Call::Write { file, .. } if file.ends_with("segment.marks") => marks_written += 1,
            Call::Synced { file } if file.ends_with("segment.marks") => {
                marks_synced = marks_written
            }
            Call::Sent { text } => match id(&text) {
                Some(id) if id >> 22 > 1 << 30 => {
                    snowflake_ids += 1;
                    let at = (id >> 22) as u64 + 1_288_834_974_657;
                    assert!(at < durable, "{at} left, {durable} was on the disk");
                }
                Some(id) => {
                    segment_ids += 1;
                    // Each range is a commit of its own, and a mark.
                    if id > greatest && (id as usize - 1).is_multiple_of(RANGE) {
                        let ranges = (id as usize - 1) / RANGE + 1;
                        let (log, marks) = (log_synced, marks_synced);
                        assert!(log >= ranges, "{id} left after {log} commits, it needs {ranges}");
                        assert!(
                            marks >= ranges,
                            "{id} left after {marks} marks, it needs {ranges}"
                        );
                    }
                    greatest = greatest.max(id);
                }
                None => {}
            },
            _ => {}
        }
    }
    assert!(
        segment_ids >= 400 && snowflake_ids >= 400,
        "{segment_ids} and {snowflake_ids} ids seen"
    );
}
