//! The sources of the configuration, from the lowest to the highest rank: defaults, leaf.toml,
//! leaf.properties, environment, flags.
//!
//! A key that is unknown in a file, or in an environment variable that can only be meant for Leaf,
//! is refused with the nearest known one. Other `LEAF_…` variables (Kubernetes makes some for a
//! Service named `leaf`) and unknown keys of a `leaf.properties` get one warning.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, ConfigError, Grpc, Http, Log, Ops, Redis, Segment, keys, properties};

/// The largest configuration file.
const LARGEST: u64 = 1024 * 1024;

/// The configuration files and the settings that a command line gives.
///
/// ```
/// use leaf_node::config::Sources;
///
/// let flags = vec![("segment.min_step", "100".to_owned())];
/// let sources = Sources { flags, ..Sources::default() };
/// let loaded = sources.load_without_environment()?;
/// assert_eq!(loaded.config.segment.min_step, 100);
/// assert_eq!(loaded.origins["segment.min_step"], "the command line");
/// # Ok::<(), leaf_node::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The files, see [`Self::with_default_files`].
    pub files: Vec<PathBuf>,
    /// Keys and their values, which outrank everything else.
    pub flags: Vec<(&'static str, String)>,
    /// Whether only stores and registry are needed. Files with secrets of `ops` and `redis` are
    /// then not read: the user of the command may have no permission.
    pub stores_only: bool,
}

/// A configuration that was read.
///
/// A server keeps this value, and compares it with the newer one at a reload.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// The source of each key's value, by key.
    pub origins: BTreeMap<String, String>,
    /// The merged sources from which `config` was read, with the contents of the files of secrets.
    document: Hidden<Value>,
    /// Each key's value in `document`; for `segment.keys_file` the contents of that file.
    written: Hidden<BTreeMap<String, Value>>,
}

/// A value that `Debug` does not show.
struct Hidden<T>(T);

impl<T> std::fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// The keys whose changes need no restart; all other keys need one.
fn live_keys() -> Vec<&'static str> {
    [Config::LIVE, Grpc::LIVE, Http::LIVE, Log::LIVE, Ops::LIVE, Redis::LIVE, Segment::LIVE]
        .concat()
}

impl Loaded {
    /// Returns the keys whose values differ: first those whose change needs no restart, then the
    /// others.
    #[must_use]
    pub fn changes(&self, newer: &Self) -> (Vec<String>, Vec<String>) {
        let (old, new) = (&self.written.0, &newer.written.0);
        let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        let changed = keys.filter(|key| old.get(*key) != new.get(*key)).cloned();
        let live = live_keys();
        changed.partition(|key| live.contains(&key.as_str()))
    }

    /// Takes over the newer values of the keys that need no restart, and nothing else.
    pub fn take_live(&mut self, newer: &Self) {
        for key in live_keys() {
            let value = value_of(&newer.document.0, key).cloned().unwrap_or_default();
            set(&mut self.document.0, key, value);
            let written = newer.written.0.get(key).cloned().unwrap_or_default();
            self.written.0.insert(key.to_owned(), written);
        }
        self.config = parse(&self.document.0).expect("each value was read before");
    }
}

/// One file that was read.
#[derive(Clone)]
struct FileSource {
    /// Its path, for errors and origins.
    name: String,
    /// The settings of the file, by section and key.
    settings: Value,
    /// Warnings for the operator.
    warnings: Vec<String>,
}

impl Sources {
    /// If there are no files yet, adds the file that `LEAF_CONFIG` names, or else the default files
    /// of the working directory. A file that is a broken link or cannot be examined counts as
    /// present, so that reading it reports why.
    #[must_use]
    pub fn with_default_files(mut self) -> Self {
        let named = std::env::var_os(CONFIG).filter(|name| !name.is_empty());
        if let (true, Some(file)) = (self.files.is_empty(), named) {
            self.files.push(file.into());
        }
        self.with_files_in(Path::new(""))
    }

    /// If there are no files yet, adds those of `leaf.toml` and `leaf.properties` that a directory
    /// has.
    #[must_use]
    pub fn with_files_in(mut self, directory: &Path) -> Self {
        let is_there = |file: &PathBuf| match std::fs::symlink_metadata(file) {
            Ok(_) => true,
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        if self.files.is_empty() {
            let defaults = ["leaf.toml", "leaf.properties"].map(|name| directory.join(name));
            self.files = defaults.into_iter().filter(is_there).collect();
        }
        self
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// One line that names the key, and what was written there unless that may hold a secret.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        self.load_with(environment()?)
    }

    /// Reads all sources but the environment, which belongs to the program that embeds Leaf.
    ///
    /// # Errors
    /// One line that names the key, and what was written there unless that may hold a secret.
    pub fn load_without_environment(&self) -> Result<Loaded, ConfigError> {
        self.load_with(Vec::new())
    }

    /// Reads the files, and merges all sources. The files rank by their kind, not by their order: a
    /// `leaf.properties` outranks a `leaf.toml`.
    fn load_with(&self, environment: Vec<(String, String)>) -> Result<Loaded, ConfigError> {
        let known = keys::Known::new();
        self.flags.iter().try_for_each(|(key, _)| known.check_key(key))?;
        let mut read = Vec::new();
        for file in &self.files {
            read.push(FileSource::read(file, &known)?);
        }
        // However they are named on the command line.
        read.sort_by_key(FileSource::is_properties);
        if read.windows(2).any(|pair| pair[0].is_properties() == pair[1].is_properties()) {
            let why = "two configuration files of one kind: give one .toml, one .properties, or one of each";
            return Err(ConfigError::new(why));
        }
        merge(&known, read, environment, &self.flags, self.stores_only)
    }
}

/// The variable that names the configuration file.
const CONFIG: &str = "LEAF_CONFIG";

/// The variables that may be meant for Leaf.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_owned();
        (name.starts_with("LEAF_") && name != CONFIG).then_some((name, value))
    });
    ours.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(ConfigError(format!("{name} is not UTF-8"))),
    })
    .collect()
}

/// Whether `path` has the extension of a file of a Java Leaf.
fn is_properties(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "properties")
}

/// Passes the settings on unchanged: the crate `config` itself would read the names of keys as
/// paths.
impl config::Source for FileSource {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<config::Map<String, config::Value>, config::ConfigError> {
        serde_json::from_value(self.settings.clone())
            .map_err(|error| config::ConfigError::Foreign(Box::new(error)))
    }
}

impl std::fmt::Debug for FileSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl FileSource {
    /// Reads one file, of at most 1 MiB.
    fn read(path: &Path, known: &keys::Known) -> Result<Self, ConfigError> {
        let refuse = |why: String| ConfigError(format!("read {}: {why}", path.display()));
        let bytes = leaf_registry::read_file(path, LARGEST).map_err(refuse)?;
        if is_properties(path) {
            return Self::properties(&bytes, path);
        }
        let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".into()))?;
        Self::toml(&text, path, known)
    }

    /// If this file gives a value itself, sets the `…_file` key of that value to null: where the
    /// file gives `ops.token`, an `ops.token_file` of a lower source no longer counts.
    fn drop_shadowed_files(&mut self, known: &keys::Known) {
        for in_file in known.iter().filter(|key| key.ends_with("_file")) {
            let key = in_file.trim_end_matches("_file");
            let Some((section, name)) = in_file.rsplit_once('.') else { continue };
            let has = |key| value_of(&self.settings, key).is_some();
            if has(key) && !has(in_file) {
                self.settings[section][name] = Value::Null;
            }
        }
    }

    /// Whether this source is a file of a Java Leaf.
    fn is_properties(&self) -> bool {
        is_properties(Path::new(&self.name))
    }

    /// The defaults of Leaf, the source of the lowest rank.
    fn defaults() -> Self {
        let settings = serde_json::to_value(Config::default()).expect("plain structs serialize");
        Self { name: "default".into(), settings, warnings: Vec::new() }
    }

    /// The defaults of a Java Leaf. They rank below all files, and are used if one of these is a
    /// `leaf.properties`.
    pub(super) fn java_defaults() -> Self {
        let name = properties::DEFAULT_ORIGIN.to_owned();
        Self { name, settings: properties::defaults(), warnings: Vec::new() }
    }

    /// A file of a Java Leaf, translated.
    pub(super) fn properties(bytes: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let (settings, warnings) = properties::translate(bytes, path)?;
        Ok(Self { name: path.display().to_string(), settings, warnings })
    }

    /// Reads a `leaf.toml`, and refuses unknown keys.
    pub(super) fn toml(text: &str, path: &Path, known: &keys::Known) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The error's own text quotes the line, which may hold a password.
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.unwrap_or_default().matches('\n').count() + 1;
            ConfigError(format!("{}, line {line}: {}", path.display(), error.message()))
        })?;
        known.check_table("", &table)?;
        let settings = serde_json::to_value(table);
        let settings = settings.map_err(|error| ConfigError(error.to_string()))?;
        Ok(Self { name: path.display().to_string(), settings, warnings: Vec::new() })
    }
}

/// Merges all sources, from the lowest to the highest rank, and records which source gave each key
/// its value.
///
/// # Errors
/// A value does not fit its key or is out of bounds, or the file that holds it cannot be read.
fn merge(
    known: &keys::Known,
    files: Vec<FileSource>,
    environment: Vec<(String, String)>,
    flags: &[(&'static str, String)],
    stores_only: bool,
) -> Result<Loaded, ConfigError> {
    let java = files.iter().any(FileSource::is_properties);
    let mut origins: BTreeMap<String, String> =
        known.iter().map(|key| (key.to_owned(), "default".to_owned())).collect();
    let implied = java.then(FileSource::java_defaults);
    let mut warnings = Vec::new();
    let mut builder = config::Config::builder().add_source(FileSource::defaults());
    for mut file in implied.into_iter().chain(files) {
        file.drop_shadowed_files(known);
        for key in origins.iter_mut().filter(|(key, _)| value_of(&file.settings, key).is_some()) {
            key.1.clone_from(&file.name);
        }
        warnings.append(&mut file.warnings);
        builder = builder.add_source(file);
    }
    let mut variables = known.sort_environment(environment, &mut warnings)?;
    // A value before the file that may hold it: of the two the file counts.
    variables.sort();
    let variables = variables.into_iter().map(|(key, value)| {
        let variable = keys::variable(&key);
        (key, value, variable)
    });
    let flags = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone(), "the command line".to_owned()));
    for (key, value, origin) in variables.chain(flags) {
        // A value outranks the file that a lower source names for it.
        let in_file = format!("{key}_file");
        if let Some(outranked) = origins.get_mut(&in_file) {
            builder = builder.set_override(&in_file, None::<String>).map_err(not_merged)?;
            outranked.clone_from(&origin);
        }
        builder = builder.set_override(&key, known.typed(&key, value)).map_err(not_merged)?;
        origins.insert(key, origin);
    }
    let built = builder.build().map_err(not_merged)?;
    let mut document: Value = built.try_deserialize().map_err(not_merged)?;
    read_files(&mut document, known, &mut origins, stores_only)?;
    let config = check(&document, java.then_some(&origins));
    let config = config.map_err(|error| located(error, &origins, &document))?;
    if java {
        warnings.extend(properties::warning(&config, &origins));
    }
    let mut written: BTreeMap<_, _> = keys::flat(&document).into_iter().collect();
    if let Some(file) = file_name(&document, "segment.keys_file") {
        // A secret may be replaced there: the name of the file stays.
        let text = leaf_registry::read_secret(&file).unwrap_or_default();
        written.insert("segment.keys_file".into(), text.into());
    }
    Ok(Loaded { config, warnings, origins, document: Hidden(document), written: Hidden(written) })
}

/// The error of a merge that failed. The text of the crate `config` is not repeated, because it may
/// hold a value.
fn not_merged(_: config::ConfigError) -> ConfigError {
    ConfigError::new("the configuration cannot be merged")
}

/// Reads the configuration from the merged sources and checks it. `java` has the origins of the
/// keys if there is a `leaf.properties`.
fn check(document: &Value, java: Option<&BTreeMap<String, String>>) -> Result<Config, ConfigError> {
    let config = parse(document)?;
    if let Some(origins) = java {
        properties::check(&config, origins)?;
    }
    config.check()?;
    Ok(config)
}

/// Reads a document of which every key is known. An error begins with the key, and never holds the
/// value, which may be a secret at a wrong place.
fn parse(document: &Value) -> Result<Config, ConfigError> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let (key, text) = (error.path().to_string(), error.inner().to_string());
        let key = match key.rsplit_once(']') {
            // The name of an unknown field may be a value at a wrong place, so the key is cut
            // before that name. Only tables of a list (`segment.shard`) refuse unknown fields here.
            _ if !text.starts_with("unknown field") => key,
            Some(_) => key[..=key.find(']').unwrap_or(0)].to_owned(),
            None => "a table".to_owned(),
        };
        ConfigError(format!("{key}: {}", without_value(&text)))
    })
}

/// Reads the files of secrets, and sets the values that they hold.
fn read_files(
    document: &mut Value,
    known: &keys::Known,
    origins: &mut BTreeMap<String, String>,
    stores_only: bool,
) -> Result<(), ConfigError> {
    let read = |key: &str, file: &Path| {
        let text = leaf_registry::read_secret(file);
        text.map(Value::from).map_err(|error| ConfigError(format!("{key}: {error}")))
    };
    for in_file in known.iter().filter(|key| key.ends_with("_file")) {
        let key = in_file.trim_end_matches("_file");
        let of_server = key.starts_with("ops.") || key.starts_with("redis.");
        if known.check_key(key).is_err() || (stores_only && of_server) {
            continue;
        }
        if let Some(file) = file_name(document, in_file) {
            set(document, key, read(in_file, &file)?);
            origins.insert(key.to_owned(), in_file.to_owned());
        }
    }
    let shards = document["segment"]["shard"].as_array_mut();
    for (at, shard) in shards.into_iter().flatten().enumerate() {
        if let Some(file) = file_name(shard, "store_file") {
            shard["store"] = read(&format!("segment.shard {}: store_file", at + 1), &file)?;
        }
    }
    Ok(())
}

/// The file that a key names. An empty name counts as no file: some deployments set every variable,
/// with or without a value.
fn file_name(document: &Value, key: &str) -> Option<PathBuf> {
    let name = value_of(document, key)?.as_str()?;
    (!name.is_empty()).then(|| name.into())
}

/// The value of a key.
fn value_of<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(document, |value, name| value.get(name))
}

/// Replaces the value of a key.
fn set(document: &mut Value, key: &str, value: Value) {
    *key.split('.').fold(document, |at, name| &mut at[name]) = value;
}

/// Adds to an error the value of the key that it begins with, and where the value was set. A value
/// that may hold a secret, like a URL, is left out.
fn located(error: ConfigError, origins: &BTreeMap<String, String>, written: &Value) -> ConfigError {
    let ConfigError(text) = error;
    let whole = |key: &str| {
        let rest = text.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with([':', ' ', '[']))
    };
    let Some((key, origin)) = origins.iter().rfind(|(key, _)| whole(key)) else {
        return ConfigError(text);
    };
    let value = value_of(written, key);
    let secrets = ["password", "token", "store", "registry", "shard"];
    let name = key.rsplit('.').next().unwrap_or(key);
    let shown = value.filter(|value| {
        let text = value.to_string();
        !secrets.contains(&name)
            && !text.contains(['@', '{'])
            && !text.contains("://")
            && text.len() <= 80
    });
    ConfigError(match (shown, origin.as_str()) {
        (_, "default") => text,
        (Some(value), origin) => format!("{text} (it is {value}, from {origin})"),
        (None, origin) => format!("{text} (from {origin})"),
    })
}

/// The text of a serde error without the value in it. Errors of serde are like
/// `invalid type: string "…", expected u32` or
/// ``unknown variant `…`, expected one of `off`, `optional`, `required` ``.
fn without_value(error: &str) -> String {
    let unknown = error.strip_prefix("unknown variant ");
    if let Some((_, words)) = unknown.and_then(|unknown| unknown.rsplit_once(", expected ")) {
        let words = words.trim_start_matches("one of ").replace('`', "");
        return match words.rsplit_once(", ") {
            Some((others, last)) => format!("give {others} or {last}"),
            None => format!("give {words}"),
        };
    }
    let quotes = ["invalid type: ", "invalid value: ", "unknown field "];
    let quoted = |(before, _): &(&str, &str)| quotes.iter().any(|quote| before.starts_with(quote));
    match error.rsplit_once(", expected ").filter(quoted) {
        Some((_, "u8" | "u16" | "u32" | "u64")) => "expected a whole number".into(),
        Some((_, "a boolean")) => "expected true or false".into(),
        // Of a word from a list: serde also takes a map for an enumeration.
        Some((_, "string or map")) => "expected a string".into(),
        Some((_, "a map")) => "expected a table of names and numbers".into(),
        Some((_, expected)) => format!("expected {expected}"),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests;
