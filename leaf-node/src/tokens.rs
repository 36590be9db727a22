//! The file of tokens: who may ask a server for what.
//!
//! A line is a name, what its caller shows, and what that caller may do:
//!
//! ```text
//! # name    what it shows                  what it may do
//! orders    sha256:5f0c… dns:orders.local  ids:orders*
//! grafana   sha256:77ab…                   read
//! alice     sha256:09de…                   admin ids
//! anonymous                                ids:public*
//! ```
//!
//! The file holds only the hash of a token, so that a reader of the file cannot use the token. A
//! token has 256 random bits. These cannot be guessed, so that a plain hash is enough.

use std::fmt;
use std::io::Read as _;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::config::{Config, ConfigError};

/// The largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// The longest name of a caller.
const LONGEST_NAME: usize = 64;
/// The first characters of a token, by which programs that search for leaked secrets can find it.
const PREFIX: &str = "leaf_";
/// The name of the line for callers that show nothing. Every other caller has the roles of this
/// line, too.
pub const ANONYMOUS: &str = "anonymous";
/// The caller name that `redis.password` stands for, as in Redis. It is reserved: no line of the
/// file may use it.
pub const REDIS_USER: &str = "default";
/// The caller name that `ops.token` stands for. It is reserved: no line of the file may use it.
pub const OPS_TOKEN: &str = "ops.token";

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

/// What a caller shows to prove who it is. Written as `sha256:…` (a token by its hash), `dns:…` or
/// `uri:…` (a name in the client's certificate).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Credential {
    /// A token of this hash.
    Token(TokenHash),
    /// A certificate with this DNS name, in lower case.
    Dns(String),
    /// A certificate with this URI.
    Uri(String),
}

impl FromStr for Credential {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("sha256", digits)) => {
                let mut hash = [0; 32];
                let read = hex::decode_to_slice(digits, &mut hash);
                read.map_err(|_| "sha256: give 64 hexadecimal digits")?;
                Ok(Self::Token(TokenHash(hash)))
            }
            Some(("dns", name)) if !name.is_empty() => Ok(Self::Dns(name.to_ascii_lowercase())),
            Some(("uri", uri)) if !uri.is_empty() => Ok(Self::Uri(uri.to_owned())),
            _ => Err("give sha256:HASH, dns:NAME or uri:URI"),
        }
    }
}

/// One thing that a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// `ids`: ids of all tags; `ids:orders`: ids of one tag; `ids:orders*`: ids of the tags with
    /// this prefix. Each of the three also allows snowflake ids, which belong to no tag.
    Ids(Pattern),
    /// `read`: may see all that the ops listener shows.
    Read,
    /// `admin`: may see and change all that the ops listener offers. It gives no ids.
    Admin,
}

/// The tags that a role covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// The tag of this name.
    Exactly(String),
    /// All tags with this prefix.
    Prefix(String),
}

impl Pattern {
    /// Whether the pattern covers this tag.
    #[must_use]
    pub fn has(&self, tag: &str) -> bool {
        match self {
            Self::Exactly(name) => tag == name,
            Self::Prefix(prefix) => tag.starts_with(prefix.as_str()),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // They would end the word, or the line, in the file.
        if text.contains(|c: char| c.is_whitespace() || c == '#') {
            return Err(
                "a role has no blank and no #: give a tag with one by its beginning and *".into()
            );
        }
        match (text, text.strip_prefix("ids:")) {
            ("ids", _) => Ok(Self::Ids(Pattern::Prefix(String::new()))),
            ("read", _) => Ok(Self::Read),
            ("admin", _) => Ok(Self::Admin),
            (_, Some(pattern)) if !pattern.is_empty() => {
                let pattern = match pattern.strip_suffix('*') {
                    Some(prefix) => Pattern::Prefix(prefix.to_owned()),
                    None => Pattern::Exactly(pattern.to_owned()),
                };
                Ok(Self::Ids(pattern))
            }
            _ => Err("the roles are ids, ids:TAG, ids:PREFIX*, read and admin".into()),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids(Pattern::Prefix(prefix)) if prefix.is_empty() => f.write_str("ids"),
            Self::Ids(Pattern::Prefix(prefix)) => write!(f, "ids:{prefix}*"),
            Self::Ids(Pattern::Exactly(name)) => write!(f, "ids:{name}"),
            Self::Read => f.write_str("read"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

/// One line of the file: a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The caller's name, in logs and limits.
    pub name: String,
    /// The credentials, each of which alone proves who the caller is; empty for [`ANONYMOUS`].
    pub shows: Vec<Credential>,
    /// The roles of the caller; at least one.
    pub roles: Vec<Role>,
}

impl fmt::Display for Entry {
    /// Writes the caller as a line of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for shown in &self.shows {
            match shown {
                Credential::Token(hash) => write!(f, " {hash}")?,
                Credential::Dns(name) => write!(f, " dns:{name}")?,
                Credential::Uri(uri) => write!(f, " uri:{uri}")?,
            }
        }
        self.roles.iter().try_for_each(|role| write!(f, " {role}"))
    }
}

/// Refuses a name that no caller can have.
///
/// # Errors
/// The name is reserved, is too long, or has characters that the error text does not list.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=LONGEST_NAME).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(format!("a name has 1 to {LONGEST_NAME} letters, digits, `-`, `_` and `.`"));
    }
    if [REDIS_USER, OPS_TOKEN].contains(&name) {
        return Err(format!("the name {name} stands for a secret of the configuration"));
    }
    Ok(())
}

/// A new token: 256 bits of the system's generator of random numbers, as text.
///
/// # Errors
/// The system has no random numbers.
pub fn draw() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex::encode(bytes)))
}

/// Reads the callers from the file of the key `tokens_file`. Returns no callers if the key is not
/// set. Blocks the thread while it reads.
///
/// # Errors
/// The file cannot be read, a line is wrong, or a line has the hash of a secret of the
/// configuration. The text names the line or the caller, and repeats nothing else of the file.
pub fn read(config: &Config) -> Result<Vec<Entry>, ConfigError> {
    let Some(file) = config.tokens_file() else { return Ok(Vec::new()) };
    let refuse = |why: String| ConfigError::new(format!("tokens_file: {}: {why}", file.display()));
    let bytes = leaf_registry::read_file(file, LARGEST).map_err(refuse)?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".into()))?;
    let entries = parse(&text).map_err(refuse)?;
    let secrets = [("ops.token", &config.ops.token), ("redis.password", &config.redis.password)];
    for (key, secret) in secrets {
        let Some(secret) = secret else { continue };
        let shown = Credential::Token(TokenHash::of(secret.expose().as_bytes()));
        if let Some(entry) = entries.iter().find(|entry| entry.shows.contains(&shown)) {
            let name = &entry.name;
            return Err(refuse(format!("{name} shows the secret of {key}: draw another token")));
        }
    }
    Ok(entries)
}

/// The callers that the text of a file names.
///
/// # Errors
/// A line is wrong; the text gives its number, and repeats nothing of the line but a name.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut names = std::collections::HashSet::new();
    let mut shown = std::collections::HashSet::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if line.is_empty() {
            continue;
        }
        let refuse = |why: &str| format!("line {}: {why}", at + 1);
        let entry = entry(line).map_err(|why| refuse(&why))?;
        if !names.insert(entry.name.clone()) {
            return Err(refuse("another line has this name, too"));
        }
        if !entry.shows.iter().all(|credential| shown.insert(credential.clone())) {
            return Err(refuse("what it shows stands twice: nobody could tell whose it is"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// The caller that a line names.
fn entry(line: &str) -> Result<Entry, String> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    check_name(name)?;
    let mut entry = Entry { name: name.to_owned(), shows: Vec::new(), roles: Vec::new() };
    for word in words {
        match ["sha256:", "dns:", "uri:"].iter().any(|kind| word.starts_with(kind)) {
            true => entry.shows.push(word.parse()?),
            false => entry.roles.push(word.parse()?),
        }
    }
    if entry.roles.is_empty() {
        return Err("give it a role: ids, ids:TAG, ids:PREFIX*, read or admin".into());
    }
    match (entry.name == ANONYMOUS, entry.shows.is_empty()) {
        (true, false) => Err(format!("{ANONYMOUS} is who shows nothing")),
        (true, true) if entry.roles.contains(&Role::Admin) => {
            Err(format!("{ANONYMOUS} never administers: give that role to a name with a token"))
        }
        (false, true) => Err("give what it shows: sha256:HASH, dns:NAME or uri:URI".into()),
        _ => Ok(entry),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_a_name_what_it_shows_and_what_it_may_do() {
        let token = draw().unwrap();
        assert!(token.len() == 69 && token.starts_with("leaf_"), "{token}");
        assert_ne!(token, draw().unwrap());
        let hash = TokenHash::of(token.as_bytes());
        let text = format!(
            "# who may what\n\norders {hash} dns:Orders.Local uri:spiffe://a/b ids:orders* ids:x # tail\n\
             anonymous ids:public read\nalice {} admin ids\n",
            TokenHash::of(b"x"),
        );
        let entries = parse(&text).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(
            entries[0].shows,
            [
                Credential::Token(hash),
                Credential::Dns("orders.local".into()),
                Credential::Uri("spiffe://a/b".into())
            ]
        );
        let may = |entry: &Entry, tag: &str| {
            entry.roles.iter().any(|role| matches!(role, Role::Ids(pattern) if pattern.has(tag)))
        };
        assert!(may(&entries[0], "orders") && may(&entries[0], "orders.eu"));
        assert!(may(&entries[0], "x") && !may(&entries[0], "xy") && !may(&entries[0], "order"));
        assert!(may(&entries[2], "anything") && !may(&entries[1], "orders"));
        // What is written is what was read.
        let written: Vec<_> = entries.iter().map(ToString::to_string).collect();
        assert_eq!(parse(&written.join("\n")).unwrap(), entries);
    }

    #[test]
    fn a_wrong_line_is_named_and_not_repeated() {
        let hash = TokenHash::of(b"x").to_string();
        let cut = &hash[..70];
        for (line, why) in [
            (format!("{hash} ids"), "a name has"),
            ("default ids".to_owned(), "stands for a secret"),
            (format!("a {hash}"), "give it a role"),
            ("a ids".to_owned(), "give what it shows"),
            (format!("a {cut} ids"), "64 hexadecimal"),
            (format!("a {hash}00 ids"), "64 hexadecimal"),
            (format!("a {hash} canary"), "the roles are"),
            (format!("a {hash} ids:"), "the roles are"),
            (format!("a {hash} write"), "the roles are"),
            (format!("anonymous {hash} ids"), "who shows nothing"),
            ("anonymous admin".to_owned(), "never administers"),
            ("a dns: ids".to_owned(), "give sha256:HASH"),
            (format!("a {hash} ids\nb {hash} ids"), "stands twice"),
            (format!("a {hash} {hash} ids"), "stands twice"),
            (format!("a {hash} ids\na dns:b ids"), "has this name"),
        ] {
            let error = parse(&format!("# first\n{line}\n")).unwrap_err();
            assert!(error.contains(why) && error.starts_with("line "), "{line}: {error}");
            assert!(!error.contains("canary") && !error.contains(&hash[7..]), "{error}");
        }
    }

    #[test]
    fn the_secrets_of_the_configuration_are_in_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens");
        let secret = "a-secret-of-some-length";
        std::fs::write(&file, format!("app {} ids\n", TokenHash::of(secret.as_bytes()))).unwrap();
        let mut config = Config { tokens_file: Some(file), ..Config::default() };
        assert_eq!(read(&config).unwrap().len(), 1);
        for key in ["ops.token", "redis.password"] {
            let shown = Some(serde_json::from_value(secret.into()).unwrap());
            let (ops, redis) = if key == "ops.token" { (shown, None) } else { (None, shown) };
            (config.ops.token, config.redis.password) = (ops, redis);
            let error = read(&config).unwrap_err().to_string();
            assert!(error.contains(&format!("app shows the secret of {key}")), "{error}");
            assert!(!error.contains(secret), "{error}");
        }
        config.tokens_file = Some("".into());
        assert_eq!((config.tokens_file(), read(&config).unwrap().len()), (None, 0));
        config.ops.token.clone_from(&config.redis.password);
        assert!(config.check().unwrap_err().to_string().contains("are the same"));
    }

    #[test]
    fn a_role_is_one_word_of_its_line() {
        for role in ["ids:orders admin", "ids:a\tb", "ids:orders#eu", "ids:a\nb"] {
            assert!(role.parse::<Role>().unwrap_err().contains("no blank"), "{role}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = parse(&text);
        }

        #[test]
        fn words_in_any_order_do_not_panic(words in proptest::collection::vec("[a-z:*#é0-9]{0,70}", 0..6)) {
            let _ = parse(&words.join(" "));
            let _ = parse(&format!("a sha256:{}", words.join("")));
        }
    }
}
