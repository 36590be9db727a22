//! A private Galera cluster of three MariaDB nodes.
//!
//! All start from copies of one data directory, so that none needs a state transfer: its scripts would
//! need a package that starts a server of its own.

use std::process::Command;
use std::time::Duration;

use crate::{MariaDb, free_port, wait_until};

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// Three nodes on 127.0.0.1.
#[derive(Debug)]
pub struct Galera {
    nodes: Vec<MariaDb>,
}

impl Galera {
    /// Starts the cluster.
    ///
    /// # Panics
    /// When MariaDB or Galera is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        assert!(
            std::path::Path::new(PROVIDER).is_file(),
            "{PROVIDER} is not there: run scripts/test, or\n  \
             apt-get install -y --no-install-recommends galera-4"
        );
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port())).collect();
        let addresses: Vec<_> =
            ports.iter().map(|(base, _)| format!("127.0.0.1:{base}")).collect();
        let options = |node: usize| {
            let (base, transfer) = ports[node];
            vec![
                "--binlog-format=ROW".to_owned(),
                "--innodb-autoinc-lock-mode=2".into(),
                "--wsrep-on=ON".into(),
                format!("--wsrep-provider={PROVIDER}"),
                format!("--wsrep-cluster-address=gcomm://{}", addresses.join(",")),
                format!("--wsrep-node-address=127.0.0.1:{base}"),
                format!(
                    "--wsrep-provider-options=base_port={base};\
                     gmcast.listen_addr=tcp://127.0.0.1:{base};\
                     ist.recv_addr=127.0.0.1:{transfer};\
                     evs.inactive_timeout=PT3S;evs.suspect_timeout=PT1S"
                ),
            ]
        };
        // Once alone, so that the data has the cluster's identity.
        let first = MariaDb::start_cluster_node(None, &options(0), true);
        first.create_user();
        first.stop();
        let copy = |node: usize| MariaDb::start_cluster_node(Some(&first), &options(node), false);
        let others: Vec<_> = {
            // The first must be there before others join.
            first.start_again_with("--wsrep-new-cluster");
            (1..3).map(copy).collect()
        };
        let nodes: Vec<_> = std::iter::once(first).chain(others).collect();
        for node in &nodes {
            wait_until("the node has joined", Duration::from_secs(60), || {
                let size = node.sql("SHOW STATUS LIKE 'wsrep_cluster_size'");
                let ready = node.sql("SHOW STATUS LIKE 'wsrep_ready'");
                (size.ends_with('3') && ready.ends_with("ON")).then_some(())
            });
        }
        Self { nodes }
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

    /// Kills a node, as a crash would.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn crash(&self, node: usize) {
        self.nodes[node].crash();
    }
}

/// Copies a directory with all that is in it.
pub(crate) fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success(), "cp -a {} {}", from.display(), to.display());
}
