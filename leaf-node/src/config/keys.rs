//! The keys that exist. The list is made by serializing a configuration, so that it cannot differ
//! from the structs.

use serde_json::Value;

use super::{Config, ConfigError};

/// All keys, dotted: `segment.store`.
pub(super) struct Known {
    keys: Vec<String>,
    /// A value of each key's type.
    examples: Vec<Value>,
}

impl Known {
    /// The keys of a configuration. A field of type `Option` is a key, too: it serializes to null.
    pub(super) fn new() -> Self {
        let value = serde_json::to_value(Config::example()).expect("plain structs serialize");
        let (keys, examples) = flat(&value).into_iter().unzip();
        Self { keys, examples }
    }

    /// Converts a text from the environment or the command line to the type of its key. A text that
    /// does not fit stays a text, and is refused later.
    pub(super) fn typed(&self, key: &str, text: String) -> config::Value {
        let at = self.keys.iter().position(|known| known == key);
        match at.map(|at| &self.examples[at]) {
            Some(Value::Bool(_)) => text.parse::<bool>().map_or(text.into(), Into::into),
            Some(Value::Number(_)) => text.parse::<u64>().map_or(text.into(), Into::into),
            _ => text.into(),
        }
    }

    /// All keys, sorted by name within each section.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Refuses a key that does not exist.
    pub(super) fn check_key(&self, key: &str) -> Result<(), ConfigError> {
        if self.keys.iter().any(|known| known == key) { Ok(()) } else { Err(self.unknown(key)) }
    }

    /// Refuses unknown keys in the table at `prefix` and in the tables below it. The value of
    /// `snowflake.worker_ids` is a table itself, whose names are not checked.
    pub(super) fn check_table(&self, prefix: &str, table: &toml::Table) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = join(prefix, name);
            let section = self
                .keys
                .iter()
                .any(|known| known.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
            match value {
                toml::Value::Table(inner) if section => self.check_table(&key, inner)?,
                // What stands below is part of the value, perhaps of a secret.
                toml::Value::Table(_)
                    if self.keys.contains(&key) && key != "snowflake.worker_ids" =>
                {
                    return Err(ConfigError(format!("{key}: expected a single value")));
                }
                toml::Value::Table(inner) if key != "snowflake.worker_ids" => {
                    let inner = inner.keys().next().map_or(key.clone(), |name| join(&key, name));
                    return Err(self.unknown(&inner));
                }
                _ if self.keys.contains(&key) => {}
                _ if section => {
                    let text = format!("`{key}` is a section: write [{key}] above its keys");
                    return Err(ConfigError(text));
                }
                _ => return Err(self.unknown(&key)),
            }
        }
        Ok(())
    }

    /// The error for an unknown key. It names the nearest known key if one is near, else all keys.
    fn unknown(&self, key: &str) -> ConfigError {
        // What is no name at all may be a value at a wrong place.
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !key.chars().all(is_name) {
            return match key.split_once('.').filter(|(section, _)| section.chars().all(is_name)) {
                Some((section, _)) => {
                    ConfigError(format!("unknown key in `{section}`: it is no name"))
                }
                None => ConfigError("unknown key: it is no name".into()),
            };
        }
        match self.nearest(key) {
            Some(near) => ConfigError(format!("unknown key `{key}`: did you mean `{near}`?")),
            None => {
                ConfigError(format!("unknown key `{key}`; the keys are {}", self.keys.join(", ")))
            }
        }
    }

    /// The known key with the fewest typing errors (insertions, deletions, replacements and swaps)
    /// between it and `key`. `None` if even this one is so different that it would mislead.
    fn nearest(&self, key: &str) -> Option<&str> {
        let distance = |known: &&String| strsim::damerau_levenshtein(known, key);
        let near = self.keys.iter().min_by_key(distance)?;
        (distance(&near) <= 2 + key.len() / 4).then_some(near)
    }

    /// Separates the variables that are keys from all others. `LEAF_SEGMENT__STORE` is
    /// `segment.store`: two underscores stand for the dot.
    ///
    /// A variable with two underscores can only be meant for Leaf, so that a wrong one is an error.
    /// Others are ignored with one warning: Kubernetes sets `LEAF_PORT` and the like for a Service
    /// named `leaf`.
    pub(super) fn sort_environment(
        &self,
        environment: Vec<(String, String)>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<(String, String)>, ConfigError> {
        let mut settings = Vec::new();
        let mut ignored = Vec::new();
        for (name, value) in environment {
            let Some(rest) = name.strip_prefix("LEAF_") else { continue };
            let key = rest.to_ascii_lowercase().replace("__", ".");
            if self.keys.contains(&key) {
                settings.push((key, value));
            } else if rest.contains("__") {
                let near = self.nearest(&key);
                let near = near.map(|near| format!(": did you mean {}?", variable(near)));
                return Err(ConfigError(format!("unknown key {name}{}", near.unwrap_or_default())));
            } else {
                ignored.push(name);
            }
        }
        ignored.sort();
        if !ignored.is_empty() {
            let ignored = ignored.join(", ");
            warnings
                .push(format!("these variables are no keys of Leaf and are ignored: {ignored}"));
        }
        Ok(settings)
    }
}

/// The environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("LEAF_{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The keys of a document and their values, in its order.
pub(super) fn flat(document: &Value) -> Vec<(String, Value)> {
    fn collect(prefix: &str, value: &Value, into: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    collect(&join(prefix, name), value, into);
                }
            }
            _ => into.push((prefix.to_owned(), value.clone())),
        }
    }
    let mut all = Vec::new();
    collect("", document, &mut all);
    all
}

/// The key of a name inside a section.
fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
