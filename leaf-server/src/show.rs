//! The verb `config`: the configuration in force, in the form of a `leaf.toml`, and the origin of
//! each value.

use std::io::Write;

use anyhow::Result;
use leaf_node::config::Loaded;
use serde_json::Value;

/// Prints all keys in alphabetical order, without passwords.
///
/// Except for the secrets, the output is a valid `leaf.toml`.
pub(crate) fn run(loaded: &Loaded) -> Result<()> {
    let document = serde_json::to_value(&loaded.config)?;
    let lines: Vec<_> = loaded
        .origins
        .iter()
        .map(|(key, origin)| {
            let value = key.split('.').try_fold(&document, |value, name| value.get(name));
            let line = match value {
                None | Some(Value::Null) => format!("# {key} is not set"),
                Some(value) => format!("{key} = {}", toml(value)),
            };
            (line, origin)
        })
        .collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(60);
    let mut out = std::io::stdout().lock();
    for (line, origin) in lines {
        writeln!(out, "{line:width$}  # {origin}")?;
    }
    Ok(())
}

/// Writes a value as TOML, without fields that are `null`.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => {
            let given = fields.iter().filter(|(_, value)| !value.is_null());
            let fields: Vec<_> = given
                .map(|(name, value)| format!("{} = {}", Value::from(name.as_str()), toml(value)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        // TOML's basic strings are JSON's, but for a character that no value here holds.
        value => value.to_string(),
    }
}
