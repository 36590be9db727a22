//! Rules of traffic. A rule stops the ids of a tag or of a caller, or limits how many of them each
//! node issues in a second.
//!
//! The rules are one text in the store of `segment.store`. Every server reads it every few seconds;
//! the command `leaf` writes it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use leaf_core::{Tag, record_version};
use leaf_registry::{Administration, Note};
use leaf_segment::StoreError;
use serde::{Deserialize, Serialize};

use crate::tokens;

/// The version of the text.
const VERSION: u32 = 1;

/// The tags or the caller to which a rule applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The tag of this name. If the name ends in `*`: all tags with the prefix before the `*`,
    /// which share one limit.
    Tag(String),
    /// The caller of this name, as the file of tokens has it.
    Client(String),
}

impl Subject {
    /// The tag `pattern`, or all tags with a prefix if it ends in `*`.
    ///
    /// # Errors
    /// No tag can have this name.
    pub fn tag(pattern: &str) -> Result<Self, String> {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern != "*" {
            Tag::parse(name).map_err(|error| error.to_string())?;
        }
        Ok(Self::Tag(pattern.to_owned()))
    }

    /// A caller of the file of tokens, `anonymous`, or the caller of a secret in the configuration:
    /// `default` (`redis.password`) or `ops.token`.
    ///
    /// # Errors
    /// No caller can have this name.
    pub fn client(name: &str) -> Result<Self, String> {
        if ![tokens::REDIS_USER, tokens::OPS_TOKEN].contains(&name) {
            tokens::check_name(name)?;
        }
        Ok(Self::Client(name.to_owned()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(pattern) => write!(f, "tag {pattern}"),
            Self::Client(name) => write!(f, "client {name}"),
        }
    }
}

/// How many ids a second a node issues for a subject; `None` if the subject is cut and gets none.
pub type Rate = Option<NonZeroU32>;

/// All rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rate of each subject that has a rule.
    pub rates: BTreeMap<Subject, Rate>,
}

/// Why rules cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// A later version of Leaf wrote the rules.
    #[error("the rules of traffic are of a later version of Leaf ({0}): upgrade this program")]
    Newer(u32),
    /// The text is damaged, or was written by hand.
    #[error("the rules of traffic cannot be read ({0})")]
    Damaged(String),
    /// The text of all rules is longer than a store can hold. The value is its length in bytes.
    #[error(
        "there are too many rules: their text has {0} bytes, and 2000 fit; `leaf allow` takes one away"
    )]
    TooMany(usize),
}

/// The rules as the store has them: ids a second by tag or prefix, and by caller. 0 stands for a
/// cut.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    clients: BTreeMap<String, u32>,
}

impl Rules {
    /// Reads the rules from a text; an empty text has none.
    ///
    /// # Errors
    /// The text is of a later version, or damaged.
    pub fn decode(text: &str) -> Result<Self, RulesError> {
        let damaged = |error: serde_json::Error| RulesError::Damaged(error.to_string());
        if text.is_empty() {
            return Ok(Self::default());
        }
        let version = record_version(text.as_bytes()).map_err(damaged)?;
        if version > VERSION {
            return Err(RulesError::Newer(version));
        }
        let Text { tags, clients, .. } = serde_json::from_str(text).map_err(damaged)?;
        let mut rates = BTreeMap::new();
        for (pattern, rate) in &tags {
            let subject = Subject::tag(pattern).map_err(RulesError::Damaged)?;
            rates.insert(subject, NonZeroU32::new(*rate));
        }
        for (name, rate) in &clients {
            let subject = Subject::client(name).map_err(RulesError::Damaged)?;
            rates.insert(subject, NonZeroU32::new(*rate));
        }
        Ok(Self { rates })
    }

    /// Writes the rules as a text.
    ///
    /// # Errors
    /// The text is too long for the store.
    pub fn encode(&self) -> Result<String, RulesError> {
        let (mut tags, mut clients) = (BTreeMap::new(), BTreeMap::new());
        for (subject, rate) in &self.rates {
            let rate = rate.map_or(0, NonZeroU32::get);
            match subject {
                Subject::Tag(pattern) => tags.insert(pattern.clone(), rate),
                Subject::Client(name) => clients.insert(name.clone(), rate),
            };
        }
        let text = Text { version: VERSION, tags, clients };
        let text = serde_json::to_string(&text).unwrap_or_default();
        if text.len() > Note::LONGEST {
            return Err(RulesError::TooMany(text.len()));
        }
        Ok(text)
    }
}

/// How many times a change is tried, if others change the rules at the same time.
const TRIES: u32 = 5;

/// Why rules were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The present rules cannot be read, or the changed ones are too long for the store.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The store that holds the rules failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others changed the rules at the same time, at each try.
    #[error("somebody else changes the rules at the same time: try again")]
    Overtaken,
}

/// Applies `change` to the rules in the store, and returns the changed rules. `change` gets the
/// present rules, and is called again whenever others have changed them first. With `dry_run`
/// nothing is written.
///
/// # Errors
/// See [`ChangeError`]. If the store did not answer, the change may have been made; after any other
/// error nothing was changed.
pub async fn change(
    admin: &dyn Administration,
    dry_run: bool,
    change: impl Fn(&mut Rules),
) -> Result<Rules, ChangeError> {
    for _ in 0..TRIES {
        let before = admin.note(Note::Traffic).await?;
        let mut rules = Rules::decode(before.as_deref().unwrap_or_default())?;
        change(&mut rules);
        let after = rules.encode()?;
        // What no server could read would end all rules.
        Rules::decode(&after)?;
        if dry_run
            || before.as_deref() == Some(&*after)
            || admin.write_note(Note::Traffic, before.as_deref(), &after).await?
        {
            return Ok(rules);
        }
    }
    Err(ChangeError::Overtaken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mut rules = Rules::default();
        assert_eq!(rules.encode().unwrap(), r#"{"version":1}"#);
        rules.rates.insert(Subject::tag("orders").unwrap(), None);
        rules.rates.insert(Subject::tag("invoice/*").unwrap(), NonZeroU32::new(7));
        rules.rates.insert(Subject::client("web").unwrap(), None);
        let text = rules.encode().unwrap();
        assert_eq!(text, r#"{"version":1,"tags":{"invoice/*":7,"orders":0},"clients":{"web":0}}"#);
        assert_eq!(Rules::decode(&text), Ok(rules.clone()));
        assert_eq!(Rules::decode(""), Ok(Rules::default()));
        assert_eq!(Rules::decode(r#"{"version":2,"new":1}"#), Err(RulesError::Newer(2)));
        for damaged in [
            "x",
            "{}",
            r#"{"version":1,"new":1}"#,
            r#"{"version":1,"tags":{"":1}}"#,
            r#"{"version":1,"tags":{"a":-1}}"#,
            r#"{"version":1,"clients":{"a b":1}}"#,
        ] {
            assert!(matches!(Rules::decode(damaged), Err(RulesError::Damaged(_))), "{damaged}");
        }
        for number in 0..100 {
            let name = format!("a-tag-of-some-length-{number}");
            rules.rates.insert(Subject::tag(&name).unwrap(), None);
        }
        assert!(matches!(rules.encode(), Err(RulesError::TooMany(2001..))));
        assert!(Subject::tag("").is_err() && Subject::tag("*").is_ok());
        assert!(Subject::client("default").is_ok() && Subject::client("a*").is_err());
    }
}
