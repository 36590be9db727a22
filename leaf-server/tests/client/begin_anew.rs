//! Copies of a process, made by a fork or from a snapshot of its memory; and the range caches of
//! `docs/clients` in programs with several threads.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaf_client::ClientErrorKind;
use leaf_testkit::{LeafServer, Ledger};

use crate::{Caller, PROTOCOLS, TAG, make_tag, start};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients")
}

fn url(server: &LeafServer) -> String {
    format!("http://{}", server.ids())
}

/// Returns what a program printed; it must have succeeded.
fn printed(output: std::io::Result<Output>) -> String {
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// C-01: a forked process hands out none of its parent's ids, even if C code forks, as uWSGI does,
/// and no fork hook of Python runs.
#[test]
fn the_range_cache_in_python_knows_that_it_was_forked() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let program = r#"
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from range_cache import RangeCache
fork = {"python": os.fork, "c": ctypes.PyDLL(None).fork}[sys.argv[3]]
ids = RangeCache([sys.argv[2]], "leaf-segment-test", 100)
mine = [ids.next_id() for _ in range(10)]
children = []
for _ in range(4):
    child = fork()
    if not child:
        mine = []
    mine += [ids.next_id() for _ in range(5)]
    if not child:
        break
    children.append(child)
os.write(1, "".join(f"{id}\n" for id in mine).encode())
if not child:
    os._exit(0)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"#;
    let python = leaf_testkit::require("python3", "python3");
    let ledger = Ledger::default();
    for fork in ["python", "c"] {
        let mut command = Command::new(&python);
        command.args(["-c", program]).arg(docs()).args([&url(&server), fork]);
        let name = Arc::<str>::from(fork);
        for line in printed(command.output()).lines() {
            ledger.record(&name, line.parse().unwrap());
        }
    }
    ledger.expect_at_least(2 * (10 + 8 * 5));
}

/// C-02: a process that continues from a snapshot issues nothing that was leased before the
/// snapshot. The second id of each program is from another range than the first.
#[test]
fn range_caches_begin_anew() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &[]);
    let (url, place) = (url(&server), directory.path());
    let file = |name: &str, text: &str| {
        std::fs::write(place.join(name), text).unwrap();
        place.join(name)
    };
    let mut outputs = Vec::new();
    let python = r#"
import sys
sys.path.insert(0, sys.argv[1])
from range_cache import RangeCache
ids = RangeCache([sys.argv[2]], "leaf-segment-test", 100)
print(ids.next_id())
ids.begin_anew()
print(ids.next_id())
"#;
    let python3 = leaf_testkit::require("python3", "python3");
    let output = Command::new(python3).args(["-c", python]).arg(docs()).arg(&url).output();
    outputs.push(("python", output));
    let is_there = |program: &str| Command::new(program).arg("--help").output().is_ok();
    if is_there("node") {
        let program = format!(
            "import {{ RangeCache }} from {:?};
             const ids = new RangeCache([process.argv[2]], {TAG:?}, 100);
             console.log(String(await ids.nextId()));
             ids.beginAnew();
             console.log(String(await ids.nextId()));",
            docs().join("range_cache.mjs").display()
        );
        let output = Command::new("node").arg(file("anew.mjs", &program)).arg(&url).output();
        outputs.push(("node", output));
    }
    if is_there("go") {
        let cache = std::fs::read_to_string(docs().join("range_cache.go")).unwrap();
        let cache = file("cache.go", &cache.replace("func main()", "func asDocumented()"));
        let program = format!(
            "package main
             import (\"fmt\"; \"os\")
             func main() {{
                 ids := RangeCache{{Servers: os.Args[1:], Tag: {TAG:?}, Size: 100}}
                 for range []int{{1, 2}} {{
                     id, err := ids.Next()
                     if err != nil {{ panic(err) }}
                     fmt.Println(id)
                     ids.BeginAnew()
                 }}
             }}"
        );
        let program = file("anew.go", &program);
        let output = Command::new("go").arg("run").args([cache, program]).arg(&url).output();
        outputs.push(("go", output));
    }
    if is_there("javac") {
        let program = format!(
            "class Anew {{
                 public static void main(String[] args) throws Exception {{
                     RangeCache ids = new RangeCache(java.util.List.of(args), {TAG:?}, 100);
                     System.out.println(next(ids));
                     ids.beginAnew();
                     System.out.println(next(ids));
                 }}
                 // On a busy machine the first request of a new JVM takes longer than the deadline. After a
                 // failure the cache asks no server for a moment, so that this waits, too.
                 static long next(RangeCache ids) throws Exception {{
                     for (int tries = 0; ; tries++) {{
                         try {{ return ids.nextId(); }}
                         catch (IllegalStateException late) {{ if (tries == 20) throw late; }}
                         Thread.sleep(250);
                     }}
                 }}
             }}"
        );
        outputs.push(("java", java(place, "Anew", &program, &[&url])));
    }
    for (language, output) in outputs {
        let text = printed(output);
        let ids: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(ids.len() == 2 && ids[1] >= ids[0] + 100, "{language}: {ids:?}");
    }
}

/// Compiles a class beside the range cache, and runs it.
fn java(place: &Path, class: &str, text: &str, args: &[&str]) -> std::io::Result<Output> {
    let source = place.join(format!("{class}.java"));
    std::fs::write(&source, text)?;
    let cache = docs().join("RangeCache.java");
    printed(Command::new("javac").arg("-d").arg(place).args([&cache, &source]).output());
    Command::new("java").arg("-cp").arg(place).arg(class).args(args).output()
}

/// C-03: the range cache in Java under threads that are not its own, and servers that answer late,
/// in part or not at all.
#[test]
fn the_range_cache_in_java_holds_nobody_up() {
    if Command::new("javac").arg("--help").output().is_err() {
        println!("== no test of RangeCache.java: javac is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &[]);
    make_tag(&server, r#"{"tag":"orders","step":100}"#);
    // A head, and a body that does not end.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stalls = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut client, _)) = listener.accept() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{");
            held.push(client);
        }
    });
    let program = r#"
import java.util.List;
import java.util.Set;
import java.util.concurrent.*;
import java.util.stream.IntStream;

class Check {
    interface Act { void run() throws Exception; }

    static long millis(Act act) throws Exception {
        long begun = System.nanoTime();
        act.run();
        return (System.nanoTime() - begun) / 1_000_000;
    }

    // On a busy machine an answer may take longer than the deadline.
    static long next(RangeCache ids) {
        for (int tries = 0; ; tries++) {
            try {
                return ids.nextId();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            } catch (IllegalStateException late) {
                if (tries == 20) throw late;
                // A cold JVM beside other tests: a moment for what it compiles.
                try { Thread.sleep(100); } catch (InterruptedException e) { throw late; }
            }
        }
    }

    static void tell(String what, Act act) throws Exception {
        System.out.println(what + " " + millis(act));
    }

    public static void main(String[] args) throws Exception {
        String real = args[0], stalls = args[1], away = "http://127.0.0.1:1";
        Set<Long> seen = ConcurrentHashMap.newKeySet();
        RangeCache ids = new RangeCache(List.of(real), "orders", 100);
        tell("parallel", () -> IntStream.range(0, 5000).parallel().forEach(n -> {
            if (!seen.add(next(ids))) throw new IllegalStateException("an id twice");
        }));
        CountDownLatch end = new CountDownLatch(1);
        for (int n = 0; n < 64; n++) {
            CompletableFuture.runAsync(() -> {
                try { end.await(); } catch (InterruptedException e) { }
            });
        }
        RangeCache anew = new RangeCache(List.of(real), "orders", 100);
        tell("busy-pool", () -> next(anew));
        end.countDown();
        RangeCache past = new RangeCache(List.of(stalls, real), "orders", 100);
        tell("stalled", () -> next(past));
        RangeCache nowhere = new RangeCache(List.of(stalls), "orders", 100);
        ExecutorService callers = Executors.newFixedThreadPool(12);
        tell("twelve", () -> {
            List<Callable<Boolean>> all = java.util.Collections.nCopies(12, () -> {
                try { nowhere.nextId(); return false; } catch (IllegalStateException e) { return e.getMessage().contains("no whole answer"); }
            });
            for (Future<Boolean> one : callers.invokeAll(all)) {
                if (!one.get()) throw new IllegalStateException("no error");
            }
        });
        callers.shutdown();
        Thread.sleep(200);
        Thread waits = new Thread(() -> {
            try { nowhere.nextId(); } catch (InterruptedException e) { System.out.println("interrupted 0"); }
        });
        waits.start();
        Thread.sleep(200);
        tell("interrupt", () -> { waits.interrupt(); waits.join(); });
        ExecutorService light;
        try {
            light = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (NoSuchMethodException before21) {
            return;
        }
        for (int n = 0; n < 2000; n++) {
            light.submit(() -> seen.add(next(ids)));
        }
        light.shutdown();
        tell("virtual", () -> {
            if (!light.awaitTermination(60, TimeUnit.SECONDS) || seen.size() != 7000) throw new IllegalStateException("" + seen.size());
        });
    }
}
"#;
    let begun = Instant::now();
    let text = printed(java(directory.path(), "Check", program, &[&url(&server), &stalls]));
    assert!(begun.elapsed() < Duration::from_secs(120));
    let millis = |what: &str| -> u64 {
        let line = text.lines().find(|line| line.split(' ').next() == Some(what));
        line.unwrap_or_else(|| panic!("{what}: {text}")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    // A second is what one server may take. Turn by turn twelve callers would wait twelve.
    for (what, most) in
        [("parallel", 30_000), ("busy-pool", 5000), ("stalled", 6000), ("twelve", 6000)]
    {
        assert!(millis(what) < most, "{what}: {text}");
    }
    assert!(millis("interrupt") < 700, "{text}");
    millis("interrupted");
}

/// C-02, of leaf-client: every handle ends, and new ones begin with ids that were leased since.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_begins_anew() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    make_tag(&server, r#"{"tag":"mixed","step":100,"shape":"interleave:0/2"}"#);
    for protocol in PROTOCOLS {
        let client = protocol.builder(&[&server]).build().unwrap();
        let (leased, listed) = (client.tag(TAG).await.unwrap(), client.tag("mixed").await.unwrap());
        let flakes = client.snowflake();
        let mut caller = Caller::new();
        for _ in 0..5 {
            caller.got(leased.next().await.unwrap());
            caller.got(flakes.next().await.unwrap());
        }
        let before = leased.next().await.unwrap().get();
        listed.next().await.unwrap();

        client.begin_anew();

        assert!(leased.try_next().is_none(), "the copies share this id");
        assert!(listed.try_next().is_none(), "the copies share this id");
        assert!(flakes.try_next().is_none());
        for error in [
            leased.next().await.unwrap_err(),
            listed.next().await.unwrap_err(),
            flakes.next().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ClientErrorKind::Changed, "{error}");
        }
        let again = client.tag(TAG).await.unwrap().next().await.unwrap().get();
        assert!(again > before + 1, "{again} after {before}: of the range of before");
        client.tag("mixed").await.unwrap().next().await.unwrap();
        caller.got(client.snowflake().next().await.unwrap());
        client.close().await;
    }
}

/// G-26: a repair through the server ends the handles of a client, also of tags without leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_ends_a_clients_handles() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[("LEAF_SEGMENT__REFRESH", "1s")]);
    make_tag(&server, r#"{"tag":"plain","step":100}"#);
    make_tag(&server, r#"{"tag":"mixed","step":100,"shape":"interleave:0/2"}"#);
    for protocol in PROTOCOLS {
        let builder = protocol.builder(&[&server]).refresh(Duration::from_secs(1));
        let client = builder.build().unwrap();
        for tag in ["plain", "mixed"] {
            let handle = client.tag(tag).await.unwrap();
            let before = handle.next().await.unwrap().get();
            let mut ops = leaf_testkit::HttpClient::connect(server.ops()).unwrap();
            let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
            let body = format!(r#"{{"at_least":"{}"}}"#, before + 100_000);
            let path = format!("/v1/tags/{tag}/advance");
            assert_eq!(ops.ask("POST", &path, headers, &body).unwrap().status, 200);
            let changed = async {
                while handle.next().await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), changed).await.expect("it ends");
            let error = handle.next().await.unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::Changed, "{tag}: {error}");
            let after = client.tag(tag).await.unwrap().next().await.unwrap().get();
            assert!(after >= before + 100_000, "{tag}: {after} after {before}");
        }
        client.close().await;
    }
}
