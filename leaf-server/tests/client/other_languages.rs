//! The range caches of `docs/clients`, and the programs of the pages about clients.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use leaf_testkit::Ledger;

use crate::{make_tag, start};

/// The range caches of docs/clients in other languages, if these are installed. Each skips a server
/// that is away, and uses a tag whose name must be encoded.
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

/// The programs of a page: language and text.
fn programs(page: &str) -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join(page)).unwrap();
    let blocks = text.split("\n```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.split_once('\n'));
    let blocks = blocks.map(|(language, text)| (language.to_owned(), text.to_owned()));
    blocks
        .filter(|(language, _)| ["python", "javascript", "go", "java"].contains(&&**language))
        .collect()
}

/// Runs the programs of docs/clients.md and docs/grpc.md with other ports, and with a timeout that
/// a busy machine does not exceed; each must print one id.
#[test]
fn the_programs_of_the_pages_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Where the packages are that they import.
    let packages = root.join("target/clients");
    let commands = std::fs::read_to_string(packages.join("commands"));
    let commands = commands.expect("scripts/redis-clients prepares them; scripts/test runs it");
    let directory = tempfile::tempdir_in(&packages).unwrap();
    let server = start(&directory.path().join("data"), &[]);
    make_tag(&server, r#"{"tag":"orders","step":100}"#);
    let python = root.join("target/python/bin/python");
    let stubs = Command::new(&python)
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", root.join("leaf-proto/proto").display()))
        .arg(format!("--python_out={}", directory.path().display()))
        .arg(format!("--grpc_python_out={}", directory.path().display()))
        .arg("leaf/v1/leaf.proto")
        .output()
        .unwrap();
    assert!(stubs.status.success(), "{stubs:?}");
    let (ledger, name) = (Ledger::default(), Arc::<str>::from("a program"));
    let mut run = 0;
    let all = programs("clients.md").into_iter().chain(programs("grpc.md"));
    for (number, (language, text)) in all.enumerate() {
        let ports = [("6380", server.redis()), ("8080", server.ids()), ("50051", server.grpc())];
        let mut text = ports
            .iter()
            .fold(text, |text, (port, address)| text.replace(port, &address.port().to_string()));
        for (second, longer) in [
            ("timeout=1)", "timeout=30)"),
            ("timeout(1000)", "timeout(30000)"),
            ("Timeout: time.Second", "Timeout: 30 * time.Second"),
            ("ofSeconds(1)", "ofSeconds(30)"),
        ] {
            text = text.replace(second, longer);
        }
        let file = |name: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, &text).unwrap();
            file
        };
        let known = |package: &str| commands.contains(package);
        let output = match &*language {
            "python" => Command::new(&python)
                .arg(file(&format!("{number}.py")))
                .current_dir(&directory)
                .output(),
            "javascript" if known("ioredis") => {
                Command::new("node").arg(file(&format!("{number}.mjs"))).output()
            }
            "go" if known("go-redis") => {
                // A program of the module whose packages are there.
                let own = tempfile::tempdir_in(packages.join("go")).unwrap();
                let main = own.path().join("main.go");
                std::fs::write(&main, &text).unwrap();
                Command::new("go").arg("run").arg(&main).current_dir(packages.join("go")).output()
            }
            "java" if known("jedis") => {
                let jars = format!("{}/*", packages.join("java/lib").display());
                let source: PathBuf = file(&format!("NextOrder{number}.java"));
                Command::new("java").args(["-cp", &jars]).arg(source).output()
            }
            _ => {
                println!("== no test of a program in {language}: it is not installed");
                continue;
            }
        };
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{language}: {text}\n{errors}");
        let id = String::from_utf8(output.stdout).unwrap();
        ledger.record(&name, id.trim().parse().unwrap_or_else(|_| panic!("{language}: {id:?}")));
        run += 1;
    }
    ledger.expect_at_least(run);
    assert!(run >= 3, "three are in Python");
}
