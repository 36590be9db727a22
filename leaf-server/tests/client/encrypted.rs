//! The client over TLS, and with tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder};
use leaf_node::tokens::{TokenHash, draw};
use leaf_testkit::{Certificates, LeafServer};

use crate::{PROTOCOLS, Protocol, SERVER, TAG};

/// Starts a server that encrypts ids and health, and asks clients for certificates if `asks`.
fn start(
    certificates: &Certificates,
    data: &Path,
    asks: bool,
    tokens: Option<&Path>,
) -> LeafServer {
    let text = |path: PathBuf| path.display().to_string();
    let mut env = vec![
        ("LEAF_TLS__CERTIFICATE", text(certificates.server())),
        ("LEAF_TLS__KEY", text(certificates.server_key())),
        ("LEAF_HTTP__TLS", "required".into()),
        ("LEAF_GRPC__TLS", "required".into()),
    ];
    if asks {
        env.push(("LEAF_TLS__CLIENT_CA", text(certificates.authority())));
    }
    if let Some(tokens) = tokens {
        env.push(("LEAF_TOKENS_FILE", text(tokens.into())));
    }
    LeafServer::start(SERVER, data, &["--grpc-listen", "127.0.0.1:0"], &env)
}

fn url(protocol: Protocol, host: &str, server: &LeafServer) -> String {
    let scheme = match protocol {
        Protocol::Http => "https",
        Protocol::Grpc => "grpcs",
    };
    format!("{scheme}://{host}:{}", protocol.address(server).port())
}

fn builder(protocol: Protocol, host: &str, server: &LeafServer) -> LeafClientBuilder {
    LeafClient::builder().endpoint(url(protocol, host, server)).deadline(Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_encrypt_are_asked_and_their_certificates_verified() {
    let certificates = Certificates::make();
    let directory = tempfile::tempdir().unwrap();
    let server = start(&certificates, directory.path(), false, None);
    let authority = std::fs::read(certificates.authority()).unwrap();
    let other = std::fs::read(certificates.other_authority()).unwrap();
    for protocol in PROTOCOLS {
        let right = builder(protocol, "127.0.0.1", &server).tls_authority(authority.clone());
        let client = right.clone().build().unwrap();
        let tag = client.tag(TAG).await.unwrap();
        let first = tag.next().await.unwrap();
        for _ in 0..5000 {
            assert!(tag.next().await.unwrap() > first);
        }
        assert!(client.snowflake().next().await.is_ok());
        client.close().await;
        // Of several authorities one is enough.
        let client = right.tls_authority(other.clone()).build().unwrap();
        assert!(client.tag(TAG).await.unwrap().next().await.is_ok());
        client.close().await;

        for (wrong, why) in [
            (builder(protocol, "127.0.0.1", &server).tls_authority(other.clone()), "UnknownIssuer"),
            // The certificate is for the address alone.
            (builder(protocol, "localhost", &server).tls_authority(authority.clone()), "localhost"),
        ] {
            let client = wrong.deadline(Duration::from_secs(3)).build().unwrap();
            let error = client.tag(TAG).await.unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::Unavailable);
            let text = error.to_string();
            assert!(text.contains("certificate") && text.contains(why), "{text}");
        }
        // A name whose certificate is wrong has no part in the connections of another one.
        let both = builder(protocol, "127.0.0.1", &server)
            .endpoint(url(protocol, "localhost", &server))
            .tls_authority(authority.clone());
        let client = both.build().unwrap();
        let tag = client.tag(TAG).await.unwrap();
        for _ in 0..5000 {
            tag.next().await.unwrap();
        }
        client.close().await;
        // Without an authority those of the system count, which do not have ours.
        match builder(protocol, "127.0.0.1", &server).deadline(Duration::from_secs(3)).build() {
            Ok(client) => {
                let error = client.tag(TAG).await.unwrap_err().to_string();
                assert!(error.contains("UnknownIssuer"), "{error}");
            }
            Err(error) => assert_eq!(error.kind(), ClientErrorKind::BadConfig),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_certificate_where_servers_ask_for_one() {
    let certificates = Certificates::make();
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "orders dns:orders.local ids:leaf-*\n").unwrap();
    let server = start(&certificates, &directory.path().join("data"), true, Some(&tokens));
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    let authority = read(certificates.authority());
    let orders = certificates.issue_to("ca", "orders", "DNS:orders.local");
    let (orders, orders_key) = (read(orders.0), read(orders.1));
    let other = certificates.issue_to("other-ca", "other", "DNS:orders.local");
    for protocol in PROTOCOLS {
        let all = || {
            let builder = builder(protocol, "127.0.0.1", &server);
            builder.tls_authority(authority.clone()).deadline(Duration::from_secs(3))
        };
        let client = all().tls_identity(orders.clone(), orders_key.clone()).build().unwrap();
        assert!(client.tag(TAG).await.unwrap().next().await.is_ok());
        let denied = client.tag("elsewhere").await.unwrap_err();
        assert_eq!(denied.kind(), ClientErrorKind::Unauthorized);
        assert!(denied.to_string().contains("orders may not do this"), "{denied}");
        client.close().await;
        for nobody in [all(), all().tls_identity(read(other.0.clone()), read(other.1.clone()))] {
            let error = nobody.build().unwrap().tag(TAG).await.unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::Unavailable, "{error}");
        }
        let mixed = all().tls_identity(orders.clone(), read(other.1.clone())).build();
        assert!(mixed.unwrap_err().to_string().contains("not that of the certificate"));
        for (builder, why) in [
            (all().tls_authority("canary"), "tls_authority: there is no certificate"),
            (
                all().tls_identity("canary", orders_key.clone()),
                "tls_identity: there is no certificate",
            ),
            (all().tls_identity(orders.clone(), "canary"), "tls_identity: there is no private key"),
        ] {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::BadConfig);
            assert!(error.to_string().contains(why) && !error.to_string().contains("canary"));
        }
    }
}

/// A revoked token ends the leases, and a token that is granted again brings them back.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_token_follows_what_the_server_grants() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    let token = draw().unwrap();
    let line = format!("app {} ids:leaf-*\n", TokenHash::of(token.as_bytes()));
    std::fs::write(&file, &line).unwrap();
    let env = [("LEAF_TOKENS_FILE", file.display().to_string())];
    let arguments = ["--grpc-listen", "127.0.0.1:0"];
    let server = LeafServer::start(SERVER, &directory.path().join("data"), &arguments, &env);
    let change = |text: &str| {
        let before = server.output().matches("took over other tokens").count();
        std::fs::write(&file, text).unwrap();
        server.signal("HUP");
        leaf_testkit::wait_until("the file was read", Duration::from_secs(20), || {
            (server.output().matches("took over other tokens").count() > before).then_some(())
        });
    };
    for protocol in PROTOCOLS {
        let with = |token: &str| protocol.builder(&[&server]).token(token).build().unwrap();
        for (wrong, why) in [("wrong", "is not known"), ("", "needs a token")] {
            let error = with(wrong).tag(TAG).await.unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::Unauthorized);
            assert!(error.to_string().contains(why), "{error}");
        }
        let error = protocol.builder(&[&server]).build().unwrap().tag(TAG).await.unwrap_err();
        assert!(error.to_string().contains("needs a token"), "{error}");
        let client = with(&token);
        let denied = client.tag("orders").await.unwrap_err();
        assert_eq!(denied.kind(), ClientErrorKind::Unauthorized);
        assert!(denied.to_string().contains("app may not do this"), "{denied}");
        let tag = client.tag(TAG).await.unwrap();
        tag.next().await.unwrap();
        change("anonymous ids:none\n");
        // What was leased is the client's.
        let mut taken = 0;
        let refused = loop {
            match tag.next().await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
            assert!(taken < 3_000_000, "leases go on");
        };
        assert_eq!(refused.kind(), ClientErrorKind::Unauthorized, "{refused}");
        change(&line);
        let id = async {
            while tag.next().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), id).await.unwrap();
        client.close().await;
    }
}
