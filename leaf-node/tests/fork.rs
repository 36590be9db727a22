//! A forked child must end like any other process. The threads of its node exist only in the
//! parent, so the child must not wait for them. This is the only test in its file: forking a test
//! process that runs other tests could deadlock.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use fork::{Fork, fork, waitpid_nohang};
use leaf_node::blocking::Leaf;
use rustix::process::{Pid, Signal, getpid, kill_process};

#[test]
#[expect(clippy::disallowed_methods, reason = "a process is waited for in real time")]
fn a_forked_child_closes_its_node_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let leaf = Leaf::build(leaf_node::Leaf::builder().data_dir(directory.path())).unwrap();
    let before = leaf.next_snowflake().unwrap();
    match fork().unwrap() {
        Fork::Child => {
            let refused = leaf.leaf().snowflake().try_next().is_err();
            leaf.close();
            let signal = if refused { Signal::KILL } else { Signal::TERM };
            // Without a destructor: other threads of the parent held locks.
            loop {
                let _ = kill_process(getpid(), signal);
            }
        }
        Fork::Parent(child) => {
            let ended = (0..1000).find_map(|_| {
                std::thread::sleep(Duration::from_millis(10));
                waitpid_nohang(child).unwrap()
            });
            let _ = kill_process(Pid::from_raw(child).unwrap(), Signal::KILL);
            assert_eq!(ended, Some(Signal::KILL.as_raw()), "it waits, or got an id");
        }
    }
    assert!(leaf.next_snowflake().unwrap() > before, "the parent goes on");
    leaf.close();
}
