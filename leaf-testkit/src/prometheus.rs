//! A private Prometheus.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::{HttpClient, Process, free_port, require, wait_until};

/// The package of `prometheus` and `promtool`.
const PACKAGE: &str = "prometheus";

/// A Prometheus that scrapes its nodes and evaluates its rules every second.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    _process: Process,
    /// Declared after the process, which writes to the directory until it is killed.
    _directory: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these nodes, as `job="leaf"` and `cluster="test"`, and
    /// waits until it answers. `rules` is the content of its rule file.
    ///
    /// # Panics
    /// When it is not installed, refuses the rules or does not start.
    #[must_use]
    pub fn start(nodes: &[SocketAddr], rules: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("leaf-prometheus-").tempdir();
        let directory = directory.expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let mut config = String::from(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [leaf.rules.yml]\n\
             scrape_configs:\n- job_name: leaf\n  static_configs:\n  - labels: {cluster: test}\n    targets: [",
        );
        for node in nodes {
            write!(config, "\"{node}\", ").expect("a String takes everything");
        }
        config.push_str("]\n");
        std::fs::write(path("prometheus.yml"), config).expect("a file that can be written");
        std::fs::write(path("leaf.rules.yml"), rules).expect("a file that can be written");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let args = [
            format!("--config.file={}", path("prometheus.yml")),
            format!("--storage.tsdb.path={}", path("data")),
            format!("--web.listen-address={address}"),
        ];
        let program = require("prometheus", PACKAGE).display().to_string();
        let process = Process::start(&program, &args, &[]);
        let prometheus = Self { address, _process: process, _directory: directory };
        wait_until("Prometheus", Duration::from_secs(60), || {
            let mut client = HttpClient::connect(address).ok()?;
            client.request("GET", "/-/ready").ok().filter(|answer| answer.status == 200)
        });
        prometheus
    }

    /// Asks a query, and returns the samples that it finds: their labels, and their values.
    ///
    /// # Panics
    /// When it refuses the query.
    #[must_use]
    pub fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let answer = HttpClient::once(self.address, "GET", &path);
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        let mut answer = answer.json();
        let samples = answer["data"]["result"].take();
        let samples = samples.as_array().expect("a vector").iter();
        let value = |sample: &Value| sample["value"][1].as_str().and_then(|it| it.parse().ok());
        let samples = samples.map(|sample| (sample["metric"].clone(), value(sample)));
        samples.map(|(labels, value)| (labels, value.expect("a number"))).collect()
    }

    /// Runs the cases of a file against the rules that it names.
    ///
    /// # Panics
    /// When a case fails.
    pub fn test_rules(file: &Path) {
        let program = require("promtool", PACKAGE);
        let output = std::process::Command::new(program).args(["test", "rules"]).arg(file).output();
        let output = output.expect("promtool can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (told, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && told.contains("SUCCESS"), "{told}{error}");
    }
}
