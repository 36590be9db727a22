//! The error message for a command line that cannot be parsed.
//!
//! Invariant: the message repeats no value of the command line, since a value in the wrong place
//! may be a password.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Whether a command line that cannot be read asks for JSON.
pub(super) fn asked_for_json() -> bool {
    let words: Vec<String> = std::env::args().collect();
    let is_option = |word: &str| ["-o", "--output"].contains(&word);
    words.windows(2).any(|pair| is_option(&pair[0]) && pair[1] == "json")
        || words.iter().any(|word| ["-ojson", "--output=json"].contains(&word.as_str()))
}

/// Options whose parse errors may be shown: they say what to give, and repeat no value.
const TOLD: [&str; 6] = ["--shape", "--reset", "--as", "--role", "--grace", "--duration"];

/// Explains the error in one line. It repeats no value, which may be a password; only clap's names
/// of arguments and commands.
pub(super) fn explain(error: &clap::Error) -> String {
    let names = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.split('=').next().unwrap_or_default().to_owned(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    // A word that was not expected may be a URL with a password at a wrong place.
    let word = |kind| match names(kind) {
        word if word.is_empty()
            || word.len() > 40
            || word.contains("://")
            || word.contains('@') =>
        {
            String::new()
        }
        word => format!(" {word}"),
    };
    let what = match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            let missing = names(ContextKind::InvalidArg);
            match usage(error) {
                Some(usage) => format!("missing: {missing}; write `{usage}`"),
                None => format!("missing: {missing}"),
            }
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let argument = names(ContextKind::InvalidArg);
            match error.source().filter(|_| TOLD.iter().any(|name| argument.starts_with(name))) {
                Some(why) => format!("{argument}: {why}"),
                None => format!("{argument}: the value is missing or wrong"),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a command is missing, like `leaf tag list`".into()
        }
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument => {
            let what = match error.kind() {
                ErrorKind::InvalidSubcommand => {
                    format!("unknown command{}", word(ContextKind::InvalidSubcommand))
                }
                _ => format!("unknown argument{}", word(ContextKind::InvalidArg)),
            };
            match names(ContextKind::SuggestedSubcommand) + &names(ContextKind::SuggestedArg) {
                near if near.is_empty() => what,
                near => format!("{what}: did you mean {near}?"),
            }
        }
        ErrorKind::ArgumentConflict => {
            // Without their values' names.
            let name = |kind| names(kind).split(' ').next().unwrap_or_default().to_owned();
            let (one, other) = (name(ContextKind::InvalidArg), name(ContextKind::PriorArg));
            format!("either {one} or {other}")
        }
        _ => "this command line is wrong".into(),
    };
    format!("{what}; see {} --help", command(error))
}

/// The usage line of the command, with the names of missing arguments and without values.
fn usage(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    let usage = usage.to_string();
    let from = usage.find("leaf")?;
    Some(usage[from..].split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The command whose arguments are wrong, from the beginning of its usage line, like `leaf tag
/// list`.
fn command(error: &clap::Error) -> String {
    let usage = usage(error).unwrap_or_default();
    let words = usage.split_whitespace().skip_while(|word| *word != "leaf");
    let words = words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    match words.collect::<Vec<_>>() {
        words if words.is_empty() => "leaf".into(),
        words => words.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_wrong_command_line_is_one_line_without_values() {
        let cases = [
            (&["mysql://leaf:canary@h/d"][..], "unknown command"),
            (&["tag", "lst"], "did you mean list?"),
            (
                &["tag", "list", "mysql://leaf:canary@h/d"],
                "unknown argument; see leaf tag list --help",
            ),
            (&["tag", "list", "--wide"], "unknown argument --wide; see leaf tag list --help"),
            (&["worker", "show", "3"], "unknown command show; see leaf worker --help"),
            (&["tag", "advance", "orders", "7"], "unknown argument 7; see leaf tag advance --help"),
            (&["tag", "list", "--stor=mysql://leaf:canary@h/d"], "did you mean --store?"),
            (
                &["tag", "advance", "canary"],
                "missing: --at-least <ID>; write `leaf tag advance --at-least <ID> <TAG>`",
            ),
            (
                &["tag", "set", "orders", "--step", "canary"],
                "--step <STEP>: the value is missing or wrong",
            ),
            (&["tag", "set", "orders"], "missing: "),
            (
                &["tag", "create", "a", "--shape", "canary"],
                "--shape <SHAPE>: give plain, interleave:",
            ),
            (&["tag", "create", "a", "--reset", "canary"], "give daily, monthly or yearly"),
            (&["decode", "1", "--as", "canary"], "give one of uuid"),
            (&["token", "new", "a", "--role", "canary"], "the roles are ids, ids:TAG"),
            (&["tag"], "a command is missing"),
        ];
        for (args, expected) in cases {
            let error = Cli::try_parse_from([&["leaf"], args].concat()).unwrap_err();
            let text = explain(&error);
            assert!(text.contains(expected), "{args:?}: {text}");
            assert!(!text.contains("canary") && !text.contains('\n'), "{text}");
        }
    }
}
