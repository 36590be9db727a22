//! The unmodified `leaf.properties` of a Java Leaf starts the server on the real services, in each
//! of its four snowflake modes, and its paths answer.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use leaf_testkit::{HttpClient, LeafServer, MariaDb, ZooKeeper};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
const SNOWFLAKE: &str = "/api/snowflake/get/test";

/// The IPv4 address that a Java Leaf takes: the last that is not loopback.
fn own_address() -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().unwrap();
    let addresses = interfaces.iter().map(if_addrs::Interface::ip);
    let fits = |ip: &std::net::IpAddr| ip.is_ipv4() && !ip.is_loopback();
    addresses.rev().find(fits).map(|ip| ip.to_string())
}

/// The file as it is in the community fork's repository, with other addresses.
fn properties(port: u16, schema: &str, zookeeper: &ZooKeeper, name: &str, mode: &str) -> String {
    let address = own_address().unwrap_or_else(|| "10.0.0.7".into());
    format!(
        "leaf.name={name}\n\
         leaf.segment.enable=true\n\
         leaf.jdbc.url=jdbc:mysql://127.0.0.1:{port}/{schema}?useUnicode=true&characterEncoding=utf8\
         &characterSetResults=utf8&useSSL=false&serverTimezone=GMT%2B8\n\
         leaf.jdbc.username=leaf\n\
         leaf.jdbc.password=leaf\n\
         \n\
         leaf.snowflake.enable=true\n\
         # zk_normal, zk_recycle, mysql, local\n\
         leaf.snowflake.mode={mode}\n\
         leaf.snowflake.zk.address={zookeeper}\n\
         leaf.snowflake.port=8686\n\
         leaf.snowflake.local.workIdMap={{\"{address}:8686\":77,\"10.1.46.33:8081\":2}}\n",
        zookeeper = ZooKeeper::address(&zookeeper.ports()),
    )
}

/// A machine without a network needs to be told its name.
fn environment() -> Vec<(&'static str, String)> {
    match own_address() {
        Some(_) => Vec::new(),
        None => vec![("LEAF_ADVERTISE", "10.0.0.7:8686".into())],
    }
}

fn schema(directory: &Path, file: &str) {
    let args = ["schema", "--apply", "--config", file];
    let mut made = LeafServer::process(SERVER, directory, &args, &environment());
    let status = made.wait(std::time::Duration::from_secs(20));
    assert!(status.success(), "{}", made.output());
}

fn serves(mode: &str) {
    let (database, zookeeper) = (MariaDb::shared(), ZooKeeper::shared());
    let name = format!("{}-{mode}", zookeeper.new_name()).replace('_', "-");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leaf.properties");
    let (port, in_mysql) = (database.port(), database.new_database());
    std::fs::write(&file, properties(port, &in_mysql, &zookeeper, &name, mode)).unwrap();
    let file = file.display().to_string();
    schema(&directory.path().join("data"), &file);
    LeafServer::make_sample(&MariaDb::url(port, &in_mysql));

    let data = directory.path().join("data");
    let mut server = LeafServer::start(SERVER, &data, &["--config", &file], &environment());
    assert_eq!(server.id(SEGMENT), 1);
    let id = server.id(SNOWFLAKE);
    let decoded = server.get(&format!("/decodeSnowflakeId?snowflakeId={id}"));
    assert_eq!(decoded.status, 200, "{}", decoded.body);
    for path in ["/cache", "/db"] {
        let moved = server.get(path);
        assert_eq!(moved.status, 307, "{}", moved.body);
        let to = moved.header("location").unwrap();
        assert_eq!(to, format!("http://localhost:{}{path}", server.ops().port()));
        let page = HttpClient::once(server.ops(), "GET", path);
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body.contains("<td>leaf-segment-test</td>"), "{}", page.body);
    }
    let address = own_address().unwrap_or_else(|| "10.0.0.7".into());
    let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
    assert_eq!(status["snowflake"]["registry"], *mode);
    assert_eq!(status["snowflake"]["identity"], format!("{address}:8686"));
    if mode == "local" {
        assert_eq!(status["snowflake"]["worker"], 77);
    }
    assert_eq!(status["name"], *name);

    // Given back, so that the next start need not wait.
    assert!(server.stop().success(), "{}", server.output());
    let server = LeafServer::start(SERVER, &data, &["--config", &file], &environment());
    assert!(server.id(SNOWFLAKE) > id);
    assert_eq!(server.id(SEGMENT), 2);
}

#[test]
fn zk_normal() {
    serves("zk_normal");
}

#[test]
fn zk_recycle() {
    serves("zk_recycle");
}

#[test]
fn mysql() {
    serves("mysql");
}

#[test]
fn local() {
    serves("local");
}
