//! Limits how many ids tags and callers get, by the rules of traffic.
//!
//! Without rules a request looks at one flag and no more. Each node applies a rule and counts for
//! it on its own, from the moment that it has read the rule.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use leaf_node::traffic::{Rate, Rules, RulesError, Subject};
use tokio::sync::SetOnce;

use crate::refusal::Reason;

/// The rules that are in force.
pub(crate) struct Traffic {
    /// Whether the rules were read from the store since the start, or the store cannot show any.
    /// Until then no ids of tags are issued: the tags may be cut.
    known: SetOnce<()>,
    /// Whether a request must look at the rules: there are some, or they were not read yet.
    some: AtomicBool,
    table: ArcSwap<Table>,
    /// The error of the last reading, if the stored text is not valid rules.
    trouble: Mutex<Option<RulesError>>,
}

/// The rules in force, with a valve for each, found by its subject.
#[derive(Default)]
struct Table {
    rules: Rules,
    all: BTreeMap<Subject, Arc<Valve>>,
    tags: HashMap<String, Arc<Valve>>,
    /// The valves of prefixes of tags, each with its prefix; the longest prefix first.
    prefixes: Vec<(String, Arc<Valve>)>,
    clients: HashMap<String, Arc<Valve>>,
}

/// Lets the ids of one subject pass, as many as its rule allows.
struct Valve {
    subject: Subject,
    /// The allowed ids a second, and the limiter that counts them; `None` if the subject is cut.
    limiter: Option<(NonZeroU32, DefaultDirectRateLimiter)>,
}

impl Valve {
    fn new(subject: Subject, rate: Rate) -> Arc<Self> {
        // As many at once as in a second.
        let limiter = rate.map(|rate| (rate, RateLimiter::direct(Quota::per_second(rate))));
        Arc::new(Self { subject, limiter })
    }

    fn most(&self) -> usize {
        self.limiter.as_ref().map_or(0, |(rate, _)| rate.get() as usize)
    }
}

/// Why a caller gets no ids now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Barred {
    /// An operator has cut the tag or the caller.
    #[error("{0} is cut by an operator (`leaf traffic`)")]
    Cut(Subject),
    /// The tag or the caller has reached its limit of ids a second.
    #[error("{subject} gets {rate} ids a second of this node: try again in a second")]
    TooFast { subject: Subject, rate: NonZeroU32 },
    /// The rules were not read from the store yet.
    #[error("which tags are cut is not known yet: the store does not answer")]
    Unknown,
    /// The request asks for more ids at once than the tag or the caller gets in a second.
    #[error("{subject} gets {rate} ids a second of this node: ask for so many at most")]
    TooMany { subject: Subject, rate: NonZeroU32 },
}

impl Barred {
    /// The reason for the refusal, the same in all protocols.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Cut(_) => Reason::Cut,
            Self::TooFast { .. } => Reason::TooFast,
            Self::Unknown => Reason::Unavailable,
            Self::TooMany { .. } => Reason::BadRequest,
        }
    }
}

impl Table {
    /// Each rule about a tag, the narrowest first.
    fn of_tag(&self, tag: &str) -> impl Iterator<Item = &Arc<Valve>> {
        let of = move |(prefix, _): &&(String, _)| tag.starts_with(prefix.as_str());
        let prefixes = self.prefixes.iter().filter(of).map(|(_, valve)| valve);
        self.tags.get(tag).into_iter().chain(prefixes)
    }

    /// Each rule about this caller and tag, the narrowest first: ids that a narrow rule refuses do
    /// not count for the wider ones.
    fn about(&self, client: &str, tag: Option<&str>) -> impl Iterator<Item = &Arc<Valve>> {
        let of_tag = tag.into_iter().flat_map(|tag| self.of_tag(tag));
        of_tag.chain(self.clients.get(client))
    }
}

impl Traffic {
    /// Begins without rules. If there is a store that may have some, they are not known yet.
    pub(crate) fn new(has_store: bool) -> Self {
        Self {
            known: SetOnce::new_with((!has_store).then_some(())),
            some: AtomicBool::new(has_store),
            table: ArcSwap::default(),
            trouble: Mutex::default(),
        }
    }

    /// Whether the rules were read since the start, or the store cannot show any.
    pub(crate) fn is_known(&self) -> bool {
        self.known.initialized()
    }

    /// Waits until the rules are known, for at most `at_most`.
    pub(crate) async fn wait_until_known(&self, at_most: Duration) {
        // Late, the caller sees that it is not known.
        let _ = tokio::time::timeout(at_most, self.known.wait()).await;
    }

    /// Whether no rule is about this caller and tag; `None` stands for snowflake ids. `false` for
    /// every tag while the rules are not known.
    pub(crate) fn is_free(&self, client: &str, tag: Option<&str>) -> bool {
        if !self.some.load(Ordering::Relaxed) {
            return true;
        }
        (tag.is_none() || self.is_known()) && self.table.load().about(client, tag).next().is_none()
    }

    /// The most ids that a caller gets at once of a tag; `usize::MAX` without a rule.
    pub(crate) fn most(&self, client: &str, tag: &str) -> usize {
        let table = self.table.load();
        table.about(client, Some(tag)).map(|valve| valve.most()).min().unwrap_or(usize::MAX)
    }

    /// Counts `ids` for each rule about this caller and tag. With 0 ids this only checks that
    /// neither is cut.
    ///
    /// # Errors
    /// A rule does not let the ids pass, or the rules are not known yet.
    pub(crate) fn pass(&self, client: &str, tag: Option<&str>, ids: usize) -> Result<(), Barred> {
        if !self.some.load(Ordering::Relaxed) {
            return Ok(());
        }
        if tag.is_some() && !self.is_known() {
            return Err(Barred::Unknown);
        }
        for valve in self.table.load().about(client, tag) {
            let subject = || valve.subject.clone();
            let Some((rate, limiter)) = &valve.limiter else { return Err(Barred::Cut(subject())) };
            let ids = u32::try_from(ids).unwrap_or(u32::MAX);
            let Some(ids) = NonZeroU32::new(ids) else { continue };
            match limiter.check_n(ids) {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Barred::TooFast { subject: subject(), rate: *rate }),
                Err(_) => return Err(Barred::TooMany { subject: subject(), rate: *rate }),
            }
        }
        Ok(())
    }

    /// How many ids of a tag pass in a second: the smallest number of the rules about it, 0 where
    /// it is cut, `None` without a rule. Rules about callers do not count.
    pub(crate) fn limit_of(&self, tag: &str) -> Option<usize> {
        if !self.some.load(Ordering::Relaxed) {
            return None;
        }
        self.table.load().of_tag(tag).map(|valve| valve.most()).min()
    }

    /// How many rules are in force.
    pub(crate) fn rules(&self) -> usize {
        self.table.load().rules.rates.len()
    }

    /// Whether the rules in the store are in force, as far as they were read.
    pub(crate) fn last_read_successful(&self) -> bool {
        self.trouble.lock().expect("no holder of this lock panics").is_none()
    }

    /// Goes on without rules, unless they are known already: the store cannot have any, or does not
    /// show them.
    pub(crate) fn has_none(&self) {
        if !self.is_known() {
            self.follow(None);
        }
    }

    /// Puts the rules of a stored text in force; `None` stands for no rules. Rules that have not
    /// changed go on counting. After a text that is not valid, the rules before it stay in force.
    pub(crate) fn follow(&self, text: Option<&str>) {
        let mut trouble = self.trouble.lock().expect("no holder of this lock panics");
        let rules = match Rules::decode(text.unwrap_or_default()) {
            Ok(rules) => rules,
            Err(error) => {
                if trouble.as_ref() != Some(&error) {
                    tracing::error!("{error}; those of before stay in force");
                }
                *trouble = Some(error);
                return self.now_known();
            }
        };
        *trouble = None;
        let before = self.table.load();
        if before.rules == rules {
            return self.now_known();
        }
        let mut table = Table { rules, ..Table::default() };
        for (subject, rate) in &table.rules.rates {
            let stays = before.rules.rates.get(subject) == Some(rate);
            let kept = before.all.get(subject).filter(|_| stays).cloned();
            let valve = kept.unwrap_or_else(|| Valve::new(subject.clone(), *rate));
            table.all.insert(subject.clone(), Arc::clone(&valve));
            match subject {
                Subject::Tag(pattern) => match pattern.strip_suffix('*') {
                    Some(prefix) => table.prefixes.push((prefix.to_owned(), valve)),
                    None => drop(table.tags.insert(pattern.clone(), valve)),
                },
                Subject::Client(name) => drop(table.clients.insert(name.clone(), valve)),
            }
        }
        // The longest first, which is the narrowest.
        table.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let told: Vec<_> = table.rules.rates.iter().map(rule).collect();
        tracing::warn!(
            "rules of traffic: {}",
            if told.is_empty() { "none".into() } else { told.join(", ") }
        );
        self.table.store(Arc::new(table));
        self.now_known();
    }

    fn now_known(&self) {
        // It may be known already.
        let _ = self.known.set(());
        self.some.store(self.rules() > 0, Ordering::Relaxed);
    }
}

/// The text of a rule for the log.
fn rule((subject, rate): (&Subject, &Rate)) -> String {
    match rate {
        None => format!("{subject} is cut"),
        Some(rate) => format!("{subject} gets {rate} ids a second"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(text: &str) -> Traffic {
        let traffic = Traffic::new(true);
        let unknown = traffic.pass("app", Some("orders"), 1).map_err(|barred| barred.reason());
        assert_eq!((unknown, traffic.pass("app", None, 1)), (Err(Reason::Unavailable), Ok(())));
        assert!(!traffic.is_free("app", Some("orders")) && traffic.is_free("app", None));
        traffic.follow(Some(text));
        traffic
    }

    #[test]
    fn each_rule_counts_for_what_it_is_about() {
        let text =
            r#"{"version":1,"tags":{"cut":0,"slow":10,"a/*":20},"clients":{"web":100,"gone":0}}"#;
        let traffic = traffic(text);
        assert!(traffic.is_free("app", Some("orders")) && traffic.is_free("app", None));
        assert!(!traffic.is_free("app", Some("a/b")) && !traffic.is_free("web", None));
        let reason = |client: &str, tag: Option<&str>, ids: usize| {
            traffic.pass(client, tag, ids).map_err(|barred| barred.reason())
        };
        assert_eq!(reason("app", Some("cut"), 1), Err(Reason::Cut));
        assert_eq!(reason("gone", None, 1), Err(Reason::Cut));
        assert_eq!(reason("app", Some("slow"), 11), Err(Reason::BadRequest));
        assert_eq!(reason("app", Some("slow"), 10), Ok(()));
        assert_eq!(reason("app", Some("slow"), 5), Err(Reason::TooFast));
        // All tags of a prefix together.
        assert_eq!(reason("app", Some("a/b"), 15), Ok(()));
        assert_eq!(reason("app", Some("a/c"), 15), Err(Reason::TooFast));
        assert_eq!(reason("web", Some("orders"), 60), Ok(()));
        assert_eq!(reason("web", None, 60), Err(Reason::TooFast));
        assert_eq!((traffic.most("web", "slow"), traffic.most("app", "orders")), (10, usize::MAX));
        // What a narrow rule refuses costs a wide one nothing.
        let nested = self::traffic(r#"{"version":1,"tags":{"p/*":100,"p/q/*":1}}"#);
        for _ in 0..1000 {
            let _ = nested.pass("app", Some("p/q/x"), 1);
        }
        assert!(nested.pass("app", Some("p/z"), 90).is_ok());
        // A rule that stays has not forgotten, and a text that cannot be read changes nothing.
        traffic.follow(Some(&text.replace("\"gone\":0", "\"gone\":50")));
        assert_eq!(reason("web", None, 60), Err(Reason::TooFast));
        assert_eq!(reason("gone", None, 50), Ok(()));
        for broken in ["x", r#"{"version":9}"#] {
            traffic.follow(Some(broken));
            assert_eq!(reason("app", Some("cut"), 1), Err(Reason::Cut));
        }
        traffic.follow(None);
        assert_eq!(reason("app", Some("cut"), 1), Ok(()));
    }
}
