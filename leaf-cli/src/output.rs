//! Results, as a table, as JSON or as CSV.
//!
//! The result of every command is a value that serializes, and a table is only one way to show it.
//! So scripts get the same fields as people.

use std::collections::BTreeSet;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::Output;

/// A row of a table.
pub(crate) trait Row: Serialize {
    /// The names and alignments of the columns; numbers are aligned to the right.
    const COLUMNS: &'static [(&'static str, CellAlignment)];

    /// The cells in the order of [`COLUMNS`](Self::COLUMNS), as people read them.
    fn cells(&self) -> Vec<String>;
}

/// Formats several results.
pub(crate) fn rows<R: Row>(rows: &[R], output: Output) -> String {
    match output {
        Output::Json => json(&rows),
        Output::Csv => csv(rows),
        Output::Table => {
            let mut table = Table::new();
            table
                .load_style(presets::NOTHING)
                .set_content_arrangement(ContentArrangement::Disabled);
            table.set_header(R::COLUMNS.iter().map(|(name, _)| *name));
            for (at, (_, alignment)) in R::COLUMNS.iter().enumerate() {
                if let Some(column) = table.column_mut(at) {
                    column.set_cell_alignment(*alignment);
                    // Columns start where the line does.
                    column.set_padding((0, 2));
                }
            }
            for row in rows {
                table.add_row(row.cells().into_iter().map(|cell| printable(&cell)));
            }
            table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
        }
    }
}

/// Formats one result; a table is replaced by `text`.
pub(crate) fn one(value: &impl Serialize, text: String, output: Output) -> String {
    match output {
        Output::Json => json(value),
        Output::Csv => csv(&[value]),
        Output::Table => format!("{text}\n"),
    }
}

/// Formats results as CSV: a line with the names of the fields, then a line for each result.
/// Objects and lists are written as JSON.
pub(crate) fn csv(rows: &[impl Serialize]) -> String {
    let object = |row| match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let rows: Vec<Map<String, Value>> = rows.iter().map(object).collect();
    let names: BTreeSet<&String> = rows.iter().flat_map(Map::keys).collect();
    if names.is_empty() {
        return String::new();
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let cell = |value: Option<&Value>| match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    // A vector takes everything, and all lines have as many cells.
    let _ = writer.write_record(&names);
    for row in &rows {
        let _ = writer.write_record(names.iter().map(|name| cell(row.get(*name))));
    }
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Replaces characters with which a text from a database could control the terminal: control
/// characters, and those that change the direction of text. Each becomes U+FFFD.
///
/// JSON is for programs, and stays unchanged.
pub(crate) fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_has_all_fields_and_quotes_what_needs_it() {
        let rows = [
            serde_json::json!({ "b": "x,\"y\"\nz", "a": 1 }),
            serde_json::json!({ "a": null, "c": [1, 2] }),
        ];
        assert_eq!(csv(&rows), "a,b,c\n1,\"x,\"\"y\"\"\nz\",\n,,\"[1,2]\"\n");
    }

    #[test]
    fn what_is_printed_cannot_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\u{202e}c"), "a\u{fffd}[31mb\u{fffd}c");
    }
}
