//! The range caches of `docs/clients`.

use std::path::Path;
use std::sync::Arc;

use leaf_testkit::Ledger;

use crate::{make_tag, start};

/// The range caches of docs/clients in other languages, where these are on the machine: each past a server that is
/// away, and at a tag whose name must be encoded.
#[test]
fn range_caches_in_other_languages_work() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients");
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &[]);
    make_tag(&server, r#"{"tag":"a/b c","step":100}"#);
    let ledger = Ledger::default();
    for (program, words, file) in [
        ("python3", &[][..], "range_cache.py"),
        ("node", &[], "range_cache.mjs"),
        ("go", &["run"], "range_cache.go"),
        ("java", &[], "RangeCache.java"),
    ] {
        let run = |servers: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(words).arg(docs.join(file)).args(["a/b c", "5000"]).args(servers).output()
        };
        // Java needs its compiler, too.
        let tool = if program == "java" { "javac" } else { program };
        if std::process::Command::new(tool).arg("--help").output().is_err() {
            println!("== no test of {file}: {tool} is not installed");
            continue;
        }
        let url = format!("http://{}", server.ids());
        let output = run(&["http://127.0.0.1:1", &url]).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        let ids: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(ids.len() == 5000 && ids.is_sorted_by(|a, b| a < b), "{file}: {errors}");
        let name: Arc<str> = file.into();
        ids.iter().for_each(|id| ledger.record(&name, *id));
        let nowhere = run(&["http://127.0.0.1:1"]).unwrap();
        let errors = String::from_utf8_lossy(&nowhere.stderr);
        assert!(!nowhere.status.success() && errors.contains("127.0.0.1:1"), "{file}: {errors}");
    }
    ledger.expect_at_least(5000);
}

/// A forked process hands out none of its parent's ids.
#[test]
fn the_range_cache_in_python_knows_that_it_was_forked() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients");
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let program = r#"
import os, sys
sys.path.insert(0, sys.argv[1])
from range_cache import RangeCache
ids = RangeCache([sys.argv[2]], "leaf-segment-test", 100)
mine = [ids.next_id() for _ in range(10)]
child = os.fork()
mine += [ids.next_id() for _ in range(200)]
os.write(1, "".join(f"{id}\n" for id in (mine if child else mine[10:])).encode())
if child:
    assert os.waitpid(child, 0)[1] == 0
"#;
    let python = leaf_testkit::require("python3", "python3");
    let mut command = std::process::Command::new(python);
    command.args(["-c", program]).arg(docs).arg(format!("http://{}", server.ids()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (ledger, name) = (Ledger::default(), Arc::<str>::from("python"));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        ledger.record(&name, line.parse().unwrap());
    }
    ledger.expect_at_least(410);
}
