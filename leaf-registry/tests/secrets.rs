//! S-11: a password in an address is in no `Debug` text, no error and so in no panic text: `unwrap`
//! and `expect` print the `Debug` text of an error.
#![cfg(feature = "full")]
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fmt::Debug;
use std::path::Path;

use leaf_registry::{RegistryOptions, RegistryUrl, StoreOptions, StoreUrl};
use leaf_testkit::{all_tags, free_port};

const SECRET: &str = "canary";

/// All that may be printed of `value`.
fn clean(what: &str, value: &(impl Debug + ?Sized)) {
    for text in [format!("{value:?}"), format!("{value:#?}")] {
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
}

fn no_secret_in_panic(what: &str, error: impl Debug) {
    clean(what, &error);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::iter::once(Err::<(), _>(error)).for_each(|result| result.expect("it is an error"));
    }));
    let text = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("it is an error") && !text.contains(SECRET), "{what}: {text}");
}

#[tokio::test]
async fn no_password_in_debug_errors_and_panics() {
    let nowhere = free_port();
    let home = Path::new(".");
    let options = RegistryOptions::default();
    for url in [
        format!("mysql://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
        format!("postgres://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
        format!("etcd://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
    ] {
        // The control: what is swept has the secret in it.
        assert!(url.contains(SECRET));
        let parsed: StoreUrl = url.parse().unwrap();
        clean(&url, &parsed);
        assert!(!parsed.to_string().contains(SECRET));
        let store = parsed.open(home, &StoreOptions::default()).await.unwrap();
        clean(&url, &store);
        let error = all_tags(&*store.store).await.unwrap_err();
        assert!(!error.to_string().contains(SECRET), "{error}");
        no_secret_in_panic(&url, error);
    }
    for url in [
        format!("ordinal+mysql://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
        format!("postgres://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
        format!("etcd://leaf:{SECRET}@127.0.0.1:{nowhere}/leaf"),
        format!("zk-normal://leaf:{SECRET}@127.0.0.1:{nowhere}"),
    ] {
        let parsed: RegistryUrl = url.parse().unwrap();
        clean(&url, &parsed);
        assert!(!parsed.to_string().contains(SECRET));
        let open = parsed.open(home, &options).await.unwrap();
        clean(&url, &open);
        let error = open.registry.workers().await.unwrap_err();
        assert!(!error.to_string().contains(SECRET), "{error}");
        no_secret_in_panic(&url, error);
    }

    // Whatever is wrong with an address, it is not repeated.
    for wrong in ["mysql://leaf:canary@", "postgres:canary", "etcd://leaf:canary@", "canary"] {
        no_secret_in_panic(wrong, wrong.parse::<StoreUrl>().unwrap_err());
    }
}
