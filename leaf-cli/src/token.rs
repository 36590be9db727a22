//! The commands on tokens, which use neither a store nor a server.

use anyhow::Context as _;
use leaf_node::config::ConfigError;
use leaf_node::tokens::{self, Credential, Entry, TokenHash};
use serde::Serialize;

use crate::cli::{Output, Token};
use crate::{Done, output};

/// A new token, with its line for the server's file of tokens.
#[derive(Serialize)]
struct Made {
    name: String,
    token: String,
    /// The line for the server's file of tokens.
    line: String,
}

/// Runs a command.
///
/// # Errors
/// The name is invalid, or the system has no random numbers.
pub(crate) fn run(command: Token, output: Output) -> anyhow::Result<Done> {
    let Token::New { name, role } = command;
    tokens::check_name(&name).map_err(ConfigError::new)?;
    if name == tokens::ANONYMOUS {
        let text = "anonymous is who shows no token: write its roles into the file of tokens";
        return Err(ConfigError::new(text).into());
    }
    let token = tokens::draw().context("draw a token")?;
    let hash = TokenHash::of(token.as_bytes());
    let entry = Entry { name: name.clone(), shows: vec![Credential::Token(hash)], roles: role };
    let made = Made { name, token, line: entry.to_string() };
    let text = format!(
        "The token, which is nowhere else; give it to {}:\n\n  {}\n\n\
         The line for the server's tokens_file, which holds no secret:\n\n  {}",
        made.name, made.token, made.line
    );
    Ok(output::one(&made, text, output).into())
}
