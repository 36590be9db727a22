//! Runs `leaf` as a user would.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses some of it"
)]

use std::path::Path;
use std::process::Command;

/// What a command printed, and its exit code.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub error: String,
}

impl Ran {
    /// Standard output of a command that has worked.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.error.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// Standard error of one that has not.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{} {}", self.out, self.error);
        self.error
    }
}

/// Runs `leaf` in a directory.
pub fn leaf(directory: &Path, args: &[&str]) -> Ran {
    leaf_with(directory, args, &[])
}

/// Runs `leaf` with these arguments and environment variables on the data in `directory`.
pub fn leaf_with(directory: &Path, args: &[&str], environment: &[(&str, &str)]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_leaf"))
        .args(args)
        // A developer's contexts are none of a test's business.
        .env("XDG_CONFIG_HOME", directory)
        .envs(environment.iter().copied())
        .current_dir(directory)
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}
