//! A private Galera cluster of three MariaDB nodes.
//!
//! All nodes start from copies of one data directory, so a joining node needs no data. The state
//! transfer is therefore only a script that reports success on both sides. MariaDB's own transfer
//! scripts are in a package that starts a server when it is installed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::mariadb::LEAF_USER;
use crate::{MariaDb, free_port, wait_until};

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// The script that MariaDB runs on both sides of a state transfer.
const TRANSFER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        --role) role=$2 ;;
        --address) address=$2 ;;
        --gtid) state=$2 ;;
    esac
    shift
done
if [ "$role" = donor ]; then
    echo "$state" >"$LEAF_TRANSFER/$address.new"
    mv "$LEAF_TRANSFER/$address.new" "$LEAF_TRANSFER/$address"
    echo "done $state"
else
    echo "ready 127.0.0.1:$$"
    until [ -e "$LEAF_TRANSFER/127.0.0.1:$$" ]; do sleep 0.05; done
    cat "$LEAF_TRANSFER/127.0.0.1:$$"
fi
"#;

/// Three nodes on 127.0.0.1.
#[derive(Debug)]
pub struct Galera {
    nodes: Vec<MariaDb>,
    /// Declared after `nodes`, so that the nodes are killed before the directory is removed.
    _transfers: TempDir,
}

impl Galera {
    /// Starts the cluster.
    ///
    /// # Panics
    /// When MariaDB or Galera is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        assert!(
            Path::new(PROVIDER).is_file(),
            "{PROVIDER} is not there: run scripts/test, or\n  \
             apt-get install -y --no-install-recommends galera-4"
        );
        let transfers = tempfile::Builder::new().prefix("leaf-galera-").tempdir();
        let transfers = transfers.expect("a temporary directory");
        let script = transfers.path().join("wsrep_sst_leaf");
        std::fs::write(&script, TRANSFER).expect("a writable directory");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))
            .expect("the script is ours");
        let bases: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let nodes: Vec<MariaDb> =
            (0..3).map(|node| prepare(node, &bases, transfers.path())).collect();

        // Once alone and ended in order, so that the copies know the state that they are in.
        nodes[0].install();
        nodes[0].launch(&["--wsrep-new-cluster"]);
        nodes[0].wait_for_answer();
        wait_for(&nodes[0], 1);
        nodes[0].sql(LEAF_USER);
        nodes[0].stop();
        for node in &nodes[1..] {
            let copied = Command::new("cp").arg("-a").args([nodes[0].data(), node.data()]).status();
            assert!(copied.expect("cp runs").success(), "the data can be copied");
        }
        nodes[0].launch(&["--wsrep-new-cluster"]);
        nodes[0].wait_for_answer();
        wait_for(&nodes[0], 1);
        for (number, node) in nodes.iter().enumerate().skip(1) {
            node.launch(&[]);
            node.wait_for_answer();
            wait_for(node, number + 1);
        }
        Self { nodes, _transfers: transfers }
    }

    /// The nodes' ports on 127.0.0.1.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(MariaDb::port).collect()
    }

    /// Makes an empty database and returns its name.
    #[must_use]
    pub fn new_database(&self) -> String {
        self.nodes[0].new_database()
    }

    /// Makes nodes report every conflict to the client. By default a node first retries the
    /// statement once.
    ///
    /// # Panics
    /// When a node does not answer.
    pub fn show_conflicts(&self) {
        self.nodes.iter().for_each(|node| _ = node.sql("SET GLOBAL wsrep_retry_autocommit = 0"));
    }

    /// How many transactions of a node were rolled back because of a conflict with another node's
    /// transaction.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn conflicts(&self, node: usize) -> u64 {
        let count = |name: &str| -> u64 {
            let status = self.nodes[node].sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'"));
            status.split_whitespace().last().and_then(|count| count.parse().ok()).unwrap_or(0)
        };
        count("wsrep_local_cert_failures") + count("wsrep_local_bf_aborts")
    }

    /// Kills a node, as a crash would.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn crash(&self, node: usize) {
        self.nodes[node].crash();
    }
}

fn prepare(node: usize, bases: &[u16], transfers: &Path) -> MariaDb {
    let members: Vec<_> = bases.iter().map(|base| format!("127.0.0.1:{base}")).collect();
    let base = bases[node];
    let options = vec![
        "--binlog-format=ROW".to_owned(),
        "--innodb-autoinc-lock-mode=2".into(),
        "--wsrep-on=ON".into(),
        format!("--wsrep-provider={PROVIDER}"),
        format!("--wsrep-cluster-address=gcomm://{}", members.join(",")),
        format!("--wsrep-node-address=127.0.0.1:{base}"),
        "--wsrep-sst-method=leaf".into(),
        format!(
            "--wsrep-provider-options=base_port={base};gmcast.listen_addr=tcp://127.0.0.1:{base};\
             ist.recv_addr=127.0.0.1:{};evs.keepalive_period=PT0.3S;evs.suspect_timeout=PT2S;\
             evs.inactive_timeout=PT6S",
            free_port()
        ),
    ];
    let path = std::env::var("PATH").unwrap_or_default();
    let environment = vec![
        ("PATH", format!("{}:{path}", transfers.display())),
        ("LEAF_TRANSFER", transfers.display().to_string()),
    ];
    MariaDb::prepare(options, environment)
}

/// Waits until a node accepts statements and its cluster has `size` nodes.
fn wait_for(node: &MariaDb, size: usize) {
    wait_until("the node has joined", Duration::from_secs(60), || {
        let now = node.sql("SHOW STATUS LIKE 'wsrep_cluster_size'");
        let ready = node.sql("SHOW STATUS LIKE 'wsrep_ready'");
        (now.ends_with(&size.to_string()) && ready.ends_with("ON")).then_some(())
    });
}
