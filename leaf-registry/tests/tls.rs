//! Connections to the databases by TLS, to real servers with real certificates.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::StoreError;
use leaf_testkit::{Certificates, MariaDb, Postgres};
use tokio::task::spawn_blocking;

async fn ask(url: &str) -> Result<(), StoreError> {
    let url: StoreUrl = url.parse().unwrap();
    let open = url.open(Path::new("."), &StoreOptions::default()).await?;
    open.admin.apply().await.map(|_| ())
}

async fn refusal(url: &str) -> String {
    ask(url).await.unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let certificates = Certificates::make();
    let directory = certificates.directory().display().to_string();
    let (server, certificates) = spawn_blocking(|| {
        let server = MariaDb::start_with_tls(&certificates);
        (server, certificates)
    })
    .await
    .unwrap();
    let database = server.new_database();
    // Whoever has this login can come by TLS alone.
    server.sql("CREATE USER tls IDENTIFIED BY 'tls' REQUIRE SSL; GRANT ALL ON *.* TO tls");
    let url = |host: &str, parameters: &str| {
        format!("mysql://tls:tls@{host}:{}/{database}?{parameters}", server.port())
    };
    let ca = certificates.authority().display().to_string();
    let other = certificates.other_authority().display().to_string();

    ask(&url("127.0.0.1", &format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"))).await.unwrap();
    ask(&url("localhost", &format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"))).await.unwrap();
    ask(&url("127.0.0.1", "ssl-mode=REQUIRED")).await.unwrap();
    ask(&url("127.0.0.1", "")).await.unwrap();
    let error = refusal(&url("127.0.0.1", "ssl-mode=DISABLED")).await;
    assert!(error.contains("Access denied"), "{error}");
    let wrong = format!("ssl-mode=VERIFY_CA&ssl-ca={other}");
    let error = refusal(&url("127.0.0.1", &wrong)).await;
    assert!(error.contains("UnknownIssuer"), "{error}");
    let identity = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}");
    let error = refusal(&url("localhost", &identity)).await;
    assert!(error.contains("not valid for name \"localhost\""), "{error}");
    let absent = format!("ssl-mode=VERIFY_CA&ssl-ca={directory}/none.pem");
    let error = refusal(&url("127.0.0.1", &absent)).await;
    assert!(error.contains("none.pem: No such file"), "{error}");

    let plain = spawn_blocking(MariaDb::shared).await.unwrap();
    let required = MariaDb::url(plain.port(), &plain.new_database()) + "?ssl-mode=REQUIRED";
    let error = refusal(&required).await;
    assert!(error.contains("server does not support TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let certificates = Certificates::make();
    let (server, certificates) = spawn_blocking(|| {
        let server = Postgres::start_with_tls(&certificates);
        (server, certificates)
    })
    .await
    .unwrap();
    let database = server.new_database();
    let url = |parameters: &str| Postgres::url(server.port(), &database) + "?" + parameters;
    let ca = certificates.authority().display().to_string();
    let other = certificates.other_authority().display().to_string();

    ask(&url(&format!("sslmode=verify-full&sslrootcert={ca}"))).await.unwrap();
    ask(&url("sslmode=require")).await.unwrap();
    let error = refusal(&url("sslmode=disable")).await;
    assert!(error.contains("no encryption"), "{error}");
    let error = refusal(&url(&format!("sslmode=verify-ca&sslrootcert={other}"))).await;
    assert!(error.contains("UnknownIssuer"), "{error}");

    let plain = spawn_blocking(Postgres::shared).await.unwrap();
    let required = Postgres::url(plain.port(), &plain.new_database()) + "?sslmode=require";
    let error = refusal(&required).await;
    assert!(error.contains("server does not support TLS"), "{error}");
}
