//! W-11: a forked child has a copy of the generator and must not use it. Alone in its file: a fork of
//! a test process that runs other tests could deadlock.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use fork::{Fork, fork, waitpid};
use leaf_snowflake::{
    Identity, MemoryRegistry, SnowflakeConfig, SnowflakeErrorKind, blocking::SnowflakeGenerator,
};

#[test]
fn a_forked_child_gets_no_id() {
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let flakes = SnowflakeGenerator::open(Arc::new(MemoryRegistry::default()), config).unwrap();
    for round in 0..200 {
        // So that the process id was compared a moment before.
        let before = flakes.next().unwrap();
        match fork().unwrap() {
            Fork::Child => {
                let refused = flakes.try_next().map_err(|error| error.kind().clone());
                let refused = matches!(refused, Err(SnowflakeErrorKind::Forked));
                // No destructor: the worker id is the parent's.
                std::process::exit(if refused { 0 } else { 1 });
            }
            Fork::Parent(child) => {
                assert_eq!(waitpid(child).unwrap(), 0, "fork {round} got an id");
                assert!(flakes.next().unwrap() > before, "the parent goes on");
            }
        }
    }
}
