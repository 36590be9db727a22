//! Tags in strict order, whose every id waits for a commit, beside a redis-server that syncs every
//! command.

use std::path::Path;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, MariaDb};

use super::{Contender, Load, ROUNDS, SERVER, median, redis, run};

const TAG: &str = "turns";
/// The number of callers in the last line of the output, spread over three servers.
const MANY: usize = 2000;

const LOADS: &[Load] = &[
    Load { name: "1 client", arguments: &["-c", "1"], commands: 0.004 },
    Load { name: "32 clients", arguments: &["-c", "32"], commands: 0.03 },
    Load { name: "32, 16 deep", arguments: &["-c", "32", "-P", "16"], commands: 0.3 },
    Load { name: "32, 64 deep", arguments: &["-c", "32", "-P", "64"], commands: 1.0 },
];

pub(super) fn run_all(directory: &Path) {
    let database = MariaDb::start();
    let name = database.new_database();
    let in_mariadb = MariaDb::url(database.port(), &name);
    make_tables(directory, &in_mariadb);
    let on_sqlite = leaf(&directory.join("sqlite"), None);
    let on_mariadb = leaf(&directory.join("mariadb"), Some(&in_mariadb));
    create(&on_sqlite);
    create(&on_mariadb);
    let (durable, durable_at) =
        redis(directory, &["--appendonly", "yes", "--appendfsync", "always"]);
    let contenders = [
        Contender { name: "leaf, SQLite", address: on_sqlite.redis(), pid: on_sqlite.pid() },
        Contender { name: "leaf, MariaDB", address: on_mariadb.redis(), pid: on_mariadb.pid() },
        Contender { name: "durable redis", address: durable_at, pid: durable.pid() },
    ];

    println!("INCR {TAG}, in strict order; {ROUNDS} rounds, medians");
    println!("{:>14} {:>14} {:>10} {:>8} {:>12}", "", "", "k/s", "x redis", "x one commit");
    let mut commits = Vec::new();
    for load in LOADS {
        let rates = rates(&contenders, load);
        if commits.is_empty() {
            // A client that is alone waits for nothing but its own commit.
            commits = rates.iter().map(|rate| 1.0 / rate).collect();
        }
        let waiting = if load.name == "1 client" { 1.0 } else { 32.0 };
        for ((contender, rate), commit) in contenders.iter().zip(&rates).zip(&commits) {
            // With one command at a time per client: how long one waits, in commits.
            let mean = match load.name.contains("deep") {
                true => "-".to_owned(),
                false => format!("{:.2}", waiting / rate / commit),
            };
            println!(
                "{:>14} {:>14} {:>10.1} {:>8.2} {mean:>12}",
                load.name,
                contender.name,
                rate / 1000.0,
                rate / rates[contenders.len() - 1]
            );
        }
    }

    let more = [directory.join("second"), directory.join("third")];
    let more = more.map(|directory| leaf(&directory, Some(&in_mariadb)));
    let addresses = [on_mariadb.redis(), more[0].redis(), more[1].redis()];
    let clients = (MANY / addresses.len()).to_string();
    let rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let runs = addresses.map(|address| {
                let clients = clients.clone();
                std::thread::spawn(move || {
                    let arguments: &[&str] = &["-c", &clients];
                    run(address, arguments, 100_000, TAG)
                })
            });
            runs.map(|run| run.join().unwrap()).iter().sum()
        })
        .collect();
    println!("{MANY} clients on three servers, MariaDB: {:.1} k/s", median(rates) / 1000.0);
}

fn leaf(directory: &Path, store: Option<&str>) -> LeafServer {
    let mut arguments = vec!["-c", "1", SERVER];
    if let Some(store) = store {
        arguments.extend(["--segment-store", store]);
    }
    LeafServer::start_wrapped("taskset", &arguments, directory)
}

fn make_tables(directory: &Path, store: &str) {
    let arguments = ["schema", "--apply", "--segment-store", store];
    let mut process = LeafServer::process(SERVER, directory, &arguments, &[]);
    assert!(process.wait(Duration::from_secs(30)).success(), "{}", process.output());
}

/// Makes the tag on the server's store.
fn create(leaf: &LeafServer) {
    let body = format!("{{\"tag\":\"{TAG}\",\"order\":\"strict\"}}");
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let made = HttpClient::connect(leaf.ops()).unwrap().ask("POST", "/v1/tags", headers, &body);
    assert_eq!(made.as_ref().map(|made| made.status).unwrap(), 201, "{made:?}");
}

/// Commands per second of each.
fn rates(contenders: &[Contender], load: &Load) -> Vec<f64> {
    let mut runs = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let commands = (load.commands * 1e6) as u64;
            runs.push(run(contender.address, load.arguments, commands, TAG));
        }
    }
    runs.into_iter().map(median).collect()
}
