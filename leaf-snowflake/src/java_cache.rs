//! The cache files that a Java Leaf left on this machine. They are read at every start, because a
//! Java Leaf may have run in between.
//!
//! The original writes `workerID.properties` with `workerID=N`; the community fork adds
//! `maxTimestamp=N`, and in its local mode writes `workerID.json` instead. Both lie in
//! `{java.io.tmpdir}/{leaf.name}/leafconf/{port}/`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use leaf_core::UnixMillis;
use serde::Deserialize;

use crate::{SnowflakeConfig, SnowflakeError, SnowflakeErrorKind};

/// How long after its last report a Java Leaf may still issue ids: it reports every 3 s.
const ISSUES_AFTER_REPORT: Duration = Duration::from_secs(4);
/// A live Java Leaf writes the file anew within this time: two reports, and one second for the
/// write.
pub(crate) const WATCH: Duration = Duration::from_secs(7);
const LARGEST: u64 = 64 * 1024;

/// The content of the cache files of a Java Leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JavaCache {
    pub(crate) worker: u32,
    /// No Java Leaf of this machine has issued a timestamp at or above this; `None` if the file has
    /// no time.
    pub(crate) floor: Option<UnixMillis>,
}

impl JavaCache {
    /// The time from which an unchanged file proves that no live Java Leaf writes it; `None` if the
    /// file has no time.
    pub(crate) fn silent_at(&self) -> Option<UnixMillis> {
        self.floor.map(|floor| floor - ISSUES_AFTER_REPORT + WATCH)
    }
}

/// The content of `workerID.json`, which the community fork writes in its local mode.
#[derive(Deserialize)]
struct Json {
    #[serde(rename = "workId")]
    worker: u32,
    timestamp: Option<u64>,
}

impl JavaCache {
    /// Reads the cache files of the configured directory, and logs what was found. `None` if no
    /// directory is configured, or it has no cache file.
    ///
    /// # Errors
    /// `BadConfig` that names the file.
    pub(crate) fn of(config: &SnowflakeConfig) -> Result<Option<Self>, SnowflakeError> {
        let Some(directory) = &config.java_cache else { return Ok(None) };
        let cache = Self::read(directory).map_err(SnowflakeErrorKind::BadConfig)?;
        match cache {
            Some(Self { worker, floor: Some(_), .. }) => tracing::info!(
                "a Java Leaf had worker id {worker} on this machine: ids start above every timestamp that it may have issued"
            ),
            Some(Self { worker, floor: None, .. }) => tracing::warn!(
                "a Java Leaf had worker id {worker} on this machine, and its cache file holds no time: nothing is \
                 known of what it issued"
            ),
            None => tracing::warn!(
                "{} holds no cache file of a Java Leaf: nothing is known of what it issued",
                directory.display()
            ),
        }
        Ok(cache)
    }

    /// Reads the cache files of `directory`; `None` where there are none.
    ///
    /// # Errors
    /// A text that names the file, when it cannot be read or understood.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, String> {
        let properties = read_file(&directory.join("workerID.properties"), parse_properties)?;
        let json = read_file(&directory.join("workerID.json"), parse_json)?;
        Ok(match (properties, json) {
            // The later one was used last.
            (Some(a), Some(b)) => Some(if b.floor > a.floor { b } else { a }),
            (one, other) => one.or(other),
        })
    }

    fn new(worker: u32, reported: Option<u64>) -> Self {
        Self { worker, floor: reported.map(|at| UnixMillis::new(at) + ISSUES_AFTER_REPORT) }
    }
}

fn read_file(
    path: &Path,
    parse: fn(&str) -> Option<JavaCache>,
) -> Result<Option<JavaCache>, String> {
    let at_fault = |why: &str| {
        format!(
            "{}: {why}: correct or remove it, it is read to take over from a Java Leaf",
            path.display()
        )
    };
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(found) if !found.is_file() || found.len() > LARGEST => {
            return Err(at_fault("not a cache file of Java Leaf"));
        }
        _ => fs::read_to_string(path).map_err(|error| at_fault(&error.to_string()))?,
    };
    parse(&text).map(Some).ok_or_else(|| at_fault("not a cache file of Java Leaf"))
}

fn parse_properties(text: &str) -> Option<JavaCache> {
    let value = |key: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
        let mut pairs = lines.filter_map(|line| line.split_once('='));
        pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
    };
    let reported = value("maxTimestamp").map(|at| at.parse()).transpose().ok()?;
    Some(JavaCache::new(value("workerID")?.parse().ok()?, reported))
}

fn parse_json(text: &str) -> Option<JavaCache> {
    let Json { worker, timestamp } = serde_json::from_str(text).ok()?;
    Some(JavaCache::new(worker, timestamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<Option<JavaCache>, String> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        JavaCache::read(directory.path())
    }

    #[test]
    fn reads_what_the_java_programs_write() {
        let original = "#\n#Fri Sep 06 09:35:00 CST 2019\nworkerID=3\n";
        let fork = "workerID=7\nmaxTimestamp=1567733700834\n";
        let json = r#"{"ip":"10.1.46.33","port":"8080","workId":1,"timestamp":1567733700834}"#;
        let floor = Some(UnixMillis::new(1_567_733_704_834));

        let properties = |text| read(&[("workerID.properties", text)]).unwrap().unwrap();
        assert_eq!(properties(original), JavaCache { worker: 3, floor: None });
        assert_eq!(properties(fork), JavaCache { worker: 7, floor });
        let local = read(&[("workerID.json", json)]).unwrap().unwrap();
        assert_eq!(local, JavaCache { worker: 1, floor });
        let both = read(&[("workerID.properties", original), ("workerID.json", json)]);
        assert_eq!(both.unwrap().unwrap().floor, floor, "the one that knows more");
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn what_is_none_is_named() {
        for (name, text) in [
            ("workerID.properties", "workerID=x"),
            ("workerID.properties", ""),
            ("workerID.properties", "workerID=1\nmaxTimestamp=-5"),
            ("workerID.json", "{}"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.contains(name) && error.contains("correct or remove it"), "{error}");
        }
    }
}
