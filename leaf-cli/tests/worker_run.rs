//! `leaf worker run`: programs that make ids themselves, by worker ids that it gives them.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and children go by the real clock"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use leaf_testkit::{Etcd, FakeClock, Fault, FaultProxy, Process, wait_until};
use support::leaf_with;

const LIMIT: Duration = Duration::from_secs(30);
/// The variable that makes [`minter`] mint, into files of this directory.
const INTO: &str = "MINT_INTO";

fn now() -> u64 {
    u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}

/// The registry and the times of a test, as variables.
struct Place {
    home: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    fn new(registry: String, lease: Duration) -> Self {
        let lease = format!("{}ms", lease.as_millis());
        let variables = vec![
            ("LEAF_SNOWFLAKE__REGISTRY", registry),
            ("LEAF_SNOWFLAKE__OFFLINE_FOR", lease),
            ("LEAF_SNOWFLAKE__REPORT_INTERVAL", "300ms".into()),
            ("LEAF_SNOWFLAKE__RECYCLE_AFTER", "0s".into()),
        ];
        Self { home: tempfile::tempdir().unwrap(), variables }
    }

    fn run(&self, args: &[&str]) -> support::Ran {
        let variables = self.variables.iter().map(|(name, value)| (*name, value.as_str()));
        leaf_with(self.home.path(), args, &variables.collect::<Vec<_>>())
    }

    /// A `leaf worker run` with this command.
    fn start(&self, options: &[&str], command: &[&str]) -> Process {
        let args = [&["worker", "run"], options, &["--"], command].concat();
        let args: Vec<_> = args.into_iter().map(String::from).collect();
        let into = (INTO, self.home.path().display().to_string());
        let variables = [&self.variables[..], &[into]].concat();
        Process::start(env!("CARGO_BIN_EXE_leaf"), &args, &variables)
    }

    /// A command that mints ids until it is killed.
    fn start_minter(&self, options: &[&str]) -> Process {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        self.start(options, &[own, "--exact", "minter", "--ignored", "--nocapture"])
    }

    /// What was minted: for each file, the worker id and the milliseconds of the ids.
    fn minted(&self) -> Vec<Minted> {
        let files = fs::read_dir(self.home.path()).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|it| it == "ids")).map(read).collect()
    }
}

/// The ids of one run of a command.
#[derive(Debug)]
struct Minted {
    file: PathBuf,
    worker: u64,
    at: Vec<u64>,
}

fn read(file: PathBuf) -> Minted {
    let text = fs::read_to_string(&file).unwrap();
    // The last line may be cut off: nobody has read that id.
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let numbers = whole.lines().map(|line| line.parse::<u64>().unwrap());
    let (workers, at): (BTreeSet<_>, Vec<_>) = numbers.map(|id| (id & 0x3ff, id >> 10)).unzip();
    assert!(workers.len() <= 1, "{workers:?}");
    Minted { file, worker: workers.first().copied().unwrap_or_default(), at }
}

/// Not a test: the other tests run it as their command. It generates ids as a program with its own
/// snowflake generator does, from the clock and LEAF_WORKER_ID.
#[test]
#[ignore = "the command that the other tests run"]
fn minter() {
    let Ok(directory) = std::env::var(INTO) else { return };
    let worker: u64 = std::env::var("LEAF_WORKER_ID").unwrap().parse().unwrap();
    let name = format!("{}-{}.ids", std::process::id(), UNIX_EPOCH.elapsed().unwrap().as_nanos());
    let mut file = fs::File::create(Path::new(&directory).join(name)).unwrap();
    let mut last = 0;
    loop {
        let at = now();
        if at > last {
            file.write_all(format!("{}\n", at << 10 | worker).as_bytes()).unwrap();
            last = at;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The arguments of a process.
fn arguments(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Whether a process runs. A zombie does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// The guard and the command of a `leaf worker run`, once the command runs.
fn parts(run: &Process) -> (u32, u32) {
    wait_until("a command that runs", LIMIT, || {
        let all = children(run.pid());
        let (guards, commands): (Vec<u32>, Vec<u32>) =
            all.into_iter().partition(|pid| arguments(*pid).contains("worker guard"));
        let command = commands.first().filter(|pid| !arguments(**pid).contains("worker exec"));
        Some((*guards.first()?, *command.filter(|pid| !arguments(**pid).is_empty())?))
    })
}

fn send(signal: &str, pid: u32) {
    // It may have ended by itself.
    let _ = Command::new("kill").args(["-s", signal, &pid.to_string()]).output();
}

#[test]
fn a_command_has_a_worker_id_and_its_own_exit_code() {
    let file = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", file.path().join("workers.db").display());
    let place = Place::new(url, Duration::from_secs(20));
    let run = |command: &[&str]| place.run(&[&["worker", "run", "--"], command].concat());
    let ran =
        run(&["sh", "-c", "echo $LEAF_WORKER_ID $LEAF_DATACENTER_ID $LEAF_MACHINE_ID; exit 7"]);
    assert_eq!((ran.code, ran.out.as_str()), (7, "0 0 0\n"), "{ran:?}");
    assert_eq!(ran.error, "leaf: sh has worker id 0\n");
    // In two parts of five bits.
    let others = format!("sqlite:{}", file.path().join("others.db").display());
    let mut other = Place::new(others, Duration::from_secs(20));
    other.variables.push(("LEAF_SNOWFLAKE__WORKER_RANGE", "999..1001".into()));
    let script = "echo $LEAF_WORKER_ID $LEAF_DATACENTER_ID $LEAF_MACHINE_ID";
    let ran = other.run(&["worker", "run", "--", "sh", "-c", script]);
    assert_eq!(ran.out, "999 31 7\n", "{ran:?}");

    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).code, 137, "128 and the signal");
    let absent = run(&["/nonesuch"]);
    assert_eq!(absent.code, 127, "{absent:?}");
    assert!(absent.error.contains("/nonesuch: No such file"), "{absent:?}");
    assert_eq!(run(&["/"]).code, 126);
    // Given back each time: the next one had it at once.
    let list = place.run(&["worker", "list"]).ok();
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.contains("0  released"), "{list}");
}

#[test]
fn what_cannot_work_is_told_with_what_would() {
    let refused = |registry: &str, args: &[&str]| {
        let place = Place::new(registry.into(), Duration::from_secs(10));
        place.run(&[&["worker", "run"], args].concat()).failed(2)
    };
    let (local, etcd, file) = ("local", "etcd://127.0.0.1:1", "sqlite:/nowhere/workers.db");
    let example = "leaf worker run --namespace orders -- java";
    for (registry, args, told) in [
        (local, &["--", "true"][..], "set snowflake.registry, like sqlite:/"),
        (local, &["--namespace", "a", "--", "true"], "set snowflake.registry, like sqlite:/"),
        (local, &[], "missing: <COMMAND>"),
        (local, &["--grace", "10", "--", "true"], "write it like 5ms, 1s, 10min"),
        (file, &["--", "true"], "shorten --grace"),
        (file, &["--namespace", "a", "--", "true"], "share its worker ids: leave --namespace out"),
        (etcd, &["--", "true"], example),
        (etcd, &["--namespace", "a/b", "--", "true"], "--namespace: give 1 to 64 letters"),
        ("etcd://127.0.0.1:1/b", &["--namespace", "a", "--", "true"], "share its worker ids"),
        (
            "zk-normal://127.0.0.1:1",
            &["--namespace", "a", "--grace", "1s", "--", "true"],
            "by --name",
        ),
    ] {
        let text = refused(registry, args);
        assert!(text.contains(told), "{registry} {args:?}: {text}");
    }
}

/// `leaf worker run` passes signals on like the first process of a container, and ends all
/// processes of the command.
#[test]
fn signals_reach_the_command_and_nothing_of_it_stays_behind() {
    let file = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", file.path().join("workers.db").display());
    let place = Place::new(url, Duration::from_secs(20));
    let script = "trap 'echo hup' HUP; trap 'echo term; exit 3' TERM; sleep 1000 & echo left $!; \
                  while :; do sleep 0.1; done";
    let mut run = place.start(&[], &["sh", "-c", script]);
    let left = wait_until("the command's word", LIMIT, || {
        run.output().lines().find_map(|line| line.strip_prefix("left ")?.parse::<u32>().ok())
    });
    run.signal("HUP");
    wait_until("the signal", LIMIT, || run.output().contains("hup").then_some(()));
    assert!(runs(left));
    run.signal("TERM");
    assert_eq!(run.wait(LIMIT).code(), Some(3), "{}", run.output());
    assert!(
        !runs(left),
        "what the command left behind is ended before the worker id is given back"
    );

    // Whoever is killed, the command does not outlive it.
    for victims in [&["run"][..], &["run", "guard"], &["guard", "run"]] {
        let run = place.start(&[], &["sleep", "1000"]);
        let (guard, command) = parts(&run);
        for victim in victims {
            send("KILL", if *victim == "run" { run.pid() } else { guard });
        }
        wait_until("its end", LIMIT, || (!runs(command) && !runs(guard)).then_some(()));
    }
    // A guard that is killed is replaced, and so is one that is frozen, once it is seen to read nothing.
    let mut place = place;
    place.variables.push(("LEAF_SNOWFLAKE__REPORT_INTERVAL", "100ms".into()));
    let run = place.start(&[], &["sleep", "1000"]);
    for signal in ["KILL", "STOP"] {
        let (guard, command) = parts(&run);
        send(signal, guard);
        wait_until("another guard", LIMIT, || (parts(&run).0 != guard).then_some(()));
        assert!(runs(command));
        wait_until("the end of the first one", LIMIT, || (!runs(guard)).then_some(()));
    }
}

/// The registry is away for good, and the command does not end when it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_ignores_sigterm_is_dead_before_the_ceiling() {
    let etcd = Etcd::start(1);
    let proxy = FaultProxy::start(([127, 0, 0, 1], etcd.ports()[0]).into()).await;
    let place = Place::new(format!("etcd://{}", proxy.address()), Duration::from_secs(6));
    let own = std::env::current_exe().unwrap();
    let script = format!("trap '' TERM; exec {} --exact minter --ignored", own.display());
    let mut run = place.start(&["--namespace", "shop", "--grace", "1s"], &["sh", "-c", &script]);
    parts(&run);
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(Fault::BlackHole);
    let status = run.wait(LIMIT);
    assert_eq!(status.code(), Some(1), "{}", run.output());
    assert!(run.output().contains("is asked to end"), "{}", run.output());
    assert!(run.output().contains("the lease of worker id 0 was lost"), "{}", run.output());
    proxy.set(Fault::None);
    let list = place.run(&["worker", "list", "--namespace", "shop", "--output", "json"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let ceiling = list[0]["ceiling_ms"].as_str().unwrap().parse::<u64>().unwrap();
    let minted = place.minted();
    let last = *minted[0].at.last().unwrap();
    assert!(last < ceiling, "{last} is not below {ceiling}");
    assert!(ceiling - last < 3000, "it had its time: {last}, {ceiling}");
    // The servers' worker ids are others.
    let servers = place.run(&["worker", "list"]).ok();
    assert_eq!(servers.lines().count(), 1, "{servers}");
}

/// A process that waits for a worker id gets the one that is given back. A process whose output
/// nobody reads keeps its worker id.
#[test]
fn neither_a_full_pool_nor_a_full_pipe_is_the_end() {
    let file = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", file.path().join("workers.db").display());
    let mut place = Place::new(url, Duration::from_secs(4));
    place.variables.push(("LEAF_SNOWFLAKE__WORKER_RANGE", "0..0".into()));
    // Its standard error is a pipe without room, from its first word on.
    let (_unread, full) = rustix::pipe::pipe().unwrap();
    let room = rustix::pipe::fcntl_setpipe_size(&full, 4096).unwrap();
    rustix::io::write(&full, &vec![b'x'; room]).unwrap();
    let mut first = Command::new(env!("CARGO_BIN_EXE_leaf"))
        .args(["worker", "run", "--grace", "500ms", "--", "sleep", "1000"])
        .envs(place.variables.iter().map(|(name, value)| (*name, value)))
        .stdin(std::process::Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    wait_until("the command", LIMIT, || (children(first.id()).len() == 2).then_some(()));
    let mut second = place.start(&["--grace", "500ms"], &["echo", "begun"]);
    wait_until("its word", LIMIT, || {
        second.output().contains("waiting for a worker id").then_some(())
    });
    // Longer than a lease.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(children(first.id()).len(), 2, "it goes on");
    assert!(!second.output().contains("begun"), "{}", second.output());
    send("TERM", first.id());
    let ended = wait_until("its end", LIMIT, || first.try_wait().unwrap());
    assert_eq!(ended.code(), Some(128 + 15));
    assert!(second.wait(LIMIT).success(), "{}", second.output());
    assert!(second.output().contains("begun"), "{}", second.output());
}

/// The first host's clock is 6 s ahead, which no other one's is.
#[test]
fn the_next_holder_waits_until_its_clock_is_past_what_the_last_one_used() {
    let file = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", file.path().join("workers.db").display());
    let mut place = Place::new(url, Duration::from_secs(20));
    let clock = FakeClock::new();
    clock.set("+6");
    place.variables.push(("LEAF_SNOWFLAKE__WORKER_RANGE", "0..0".into()));
    place.variables.extend(clock.environment());
    let mut ahead = place.start_minter(&[]);
    parts(&ahead);
    wait_until("ids", LIMIT, || {
        let minted = place.minted();
        minted.first().is_some_and(|minted| minted.at.len() > 100).then_some(())
    });
    // Between two looks, perhaps: what it showed before counts.
    clock.set("+3");
    ahead.signal("TERM");
    ahead.wait(LIMIT);
    let used = *place.minted()[0].at.last().unwrap();
    assert!(used > now() + 1000, "its clock was ahead");

    place.variables.retain(|(name, _)| name.starts_with("LEAF_"));
    let after = place.start_minter(&[]);
    parts(&after);
    let minted = wait_until("ids of the next holder", LIMIT, || {
        place.minted().into_iter().find(|minted| minted.at.last().is_some_and(|at| *at > used))
    });
    assert_eq!(minted.worker, 0, "it has the same worker id");
    // Nor in the second that was used, by whose number other generators count.
    assert!(minted.at[0] / 1000 > used / 1000, "{} is not above {used}", minted.at[0]);
}

/// 40 commands by 44 worker ids, so that each worker id goes from hand to hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_commands_under_kills_freezes_and_a_lost_registry_share_no_moment() {
    const COMMANDS: usize = 40;
    let full = std::env::var_os("LEAF_TEST_FULL").is_some();
    let duration = Duration::from_secs(if full { 300 } else { 25 });
    let etcd = Etcd::start(1);
    let proxy = FaultProxy::start(([127, 0, 0, 1], etcd.ports()[0]).into()).await;
    let mut place = Place::new(format!("etcd://{}", proxy.address()), Duration::from_secs(5));
    place.variables.push(("LEAF_SNOWFLAKE__WORKER_RANGE", "0..43".into()));
    let start = || place.start_minter(&["--namespace", "shop", "--grace", "500ms"]);
    let mut runs: Vec<Process> = (0..COMMANDS).map(|_| start()).collect();
    let begun = Instant::now();
    let mut step = 0_usize;
    // The frozen, and when they go on.
    let mut frozen: Vec<(u32, Instant)> = Vec::new();
    while begun.elapsed() < duration {
        // One run after the other, each fault on each.
        let run = &runs[step * 7 % COMMANDS];
        let all = children(run.pid());
        let guard = all.iter().copied().find(|pid| arguments(*pid).contains("worker guard"));
        let command = all.iter().copied().find(|pid| arguments(*pid).contains("minter"));
        if let (Some(guard), Some(command)) = (guard, command) {
            // Longer than a lease.
            let until = Instant::now() + Duration::from_secs(7);
            match step % 6 {
                0 => send("KILL", run.pid()),
                1 => {
                    send("STOP", run.pid());
                    frozen.push((run.pid(), until));
                }
                2 => {
                    send("STOP", command);
                    frozen.push((command, until));
                }
                3 => send("KILL", command),
                4 => send("KILL", guard),
                _ => {
                    send("STOP", guard);
                    frozen.push((guard, until));
                }
            }
        }
        step += 1;
        match begun.elapsed().as_secs() % 20 {
            8..15 => proxy.set(Fault::BlackHole),
            _ => proxy.set(Fault::None),
        }
        frozen.retain(|(pid, until)| {
            let stays = Instant::now() < *until;
            if !stays {
                send("CONT", *pid);
            }
            stays
        });
        for run in &mut runs {
            if run.ended().is_some() {
                *run = start();
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for run in &mut runs {
        run.kill();
    }
    // A guard that goes on finds out that its leaf is gone.
    frozen.iter().for_each(|(pid, _)| send("CONT", *pid));
    let mut by_worker: BTreeMap<u64, Vec<Minted>> = BTreeMap::new();
    for minted in place.minted().into_iter().filter(|minted| !minted.at.is_empty()) {
        by_worker.entry(minted.worker).or_default().push(minted);
    }
    let (mut holders, mut ids) = (0, 0);
    for (worker, held) in &mut by_worker {
        held.sort_by_key(|minted| minted.at[0]);
        holders += held.len();
        ids += held.iter().map(|minted| minted.at.len()).sum::<usize>();
        for pair in held.windows(2) {
            let (last, first) = (*pair[0].at.iter().max().unwrap(), pair[1].at[0]);
            assert!(
                last < first,
                "worker id {worker}: one holder until {last}, the next from {first} on: {:?} {:?}",
                pair[0].file,
                pair[1].file
            );
        }
    }
    println!("{ids} ids of {holders} holders of {} worker ids", by_worker.len());
    assert!(holders > COMMANDS * 3 / 2, "{holders} holders: worker ids went from hand to hand");
    assert!(by_worker.len() <= 44);
}
