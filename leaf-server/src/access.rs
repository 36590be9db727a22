//! The callers that this node knows, by token or certificate, and the roles of each.
//!
//! Invariant: once a reload has ended a grant, it authorizes no request any more, not even on a
//! connection that is already open.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use leaf_node::config::Config;
use leaf_node::tokens::{
    self, ANONYMOUS, Credential, Entry, OPS_TOKEN, Pattern, REDIS_USER, Role, TokenHash,
};

use crate::live::Live;
use crate::refusal::Face;
use crate::reread::Rereading;

/// The longest token that is looked up, in bytes; a longer one counts as unknown.
const LONGEST_TOKEN: usize = 1024;

/// Whether one of these roles includes the ids of every tag.
fn has_all(roles: &[Role]) -> bool {
    roles.iter().any(|role| matches!(role, Role::Ids(Pattern::Prefix(prefix)) if prefix.is_empty()))
}

/// The name and the roles of the callers that show a certain credential, or no known one.
#[derive(Debug)]
pub(crate) struct Grant {
    name: Box<str>,
    /// A reload may change the roles, also for connections that hold the grant already.
    roles: ArcSwap<Box<[Role]>>,
    /// Whether the roles include the ids of every tag, as they do without a file of tokens. Most
    /// requests need to check only this.
    has_all: AtomicBool,
    /// Whether a reload has ended the grant: its credential is gone, or belongs to another name.
    ended: AtomicBool,
}

impl Grant {
    fn new(name: &str, roles: &[Role]) -> Self {
        let has_all = AtomicBool::new(has_all(roles));
        let roles = ArcSwap::from_pointee(roles.into());
        Self { name: name.into(), roles, has_all, ended: AtomicBool::new(false) }
    }

    /// Replaces the roles of the grant.
    fn change(&self, roles: &[Role]) {
        self.has_all.store(false, Ordering::SeqCst);
        self.roles.store(Arc::new(roles.into()));
        self.has_all.store(has_all(roles), Ordering::SeqCst);
    }

    /// The caller's name, as in the file of tokens.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the grant of callers without a known token or certificate.
    pub(crate) fn is_anonymous(&self) -> bool {
        &*self.name == ANONYMOUS
    }

    /// Returns `true` until a reload ends the grant.
    pub(crate) fn is_current(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Whether the grant has a role for the ids of this tag; with `None`, whether it has any role
    /// for ids.
    pub(crate) fn has_ids(&self, tag: Option<&str>) -> bool {
        let is_for = |role: &Role| match role {
            Role::Ids(pattern) => tag.is_none_or(|tag| pattern.has(tag)),
            Role::Read | Role::Admin => false,
        };
        let has = self.has_all.load(Ordering::Relaxed) || self.roles.load().iter().any(is_for);
        has && self.is_current()
    }

    /// Whether the grant has a role for what operators see: `read` or `admin`.
    pub(crate) fn reads(&self) -> bool {
        let is_for = |role: &Role| matches!(role, Role::Read | Role::Admin);
        self.roles.load().iter().any(is_for) && self.is_current()
    }

    /// Whether the grant has the role for what operators change: `admin`.
    pub(crate) fn administers(&self) -> bool {
        self.roles.load().contains(&Role::Admin) && self.is_current()
    }
}

/// The callers that this node knows.
pub(crate) struct Access {
    table: ArcSwap<Table>,
    /// The reading of the file of tokens.
    pub(crate) file: Rereading,
}

/// The callers and the credentials that they show.
struct Table {
    by: HashMap<Credential, Arc<Grant>>,
    /// The grants of callers that show no known credential; the second is for the Redis protocol,
    /// the first for all others.
    anonymous: [Arc<Grant>; 2],
    /// Whether the ops listener demands a role of its callers. Else it answers on loopback only.
    ops_has_callers: bool,
}

impl Table {
    /// The callers of a configuration, and whether any has a new grant or new roles. If a
    /// credential belongs to the same name as before, its grant stays and gets the new roles:
    /// connections that hold it go on.
    fn new(config: &Config, entries: &[Entry], before: Option<&Self>) -> (Self, bool) {
        let mut differs = false;
        let mut grant = |name: &str, roles: &[Role], old: Option<&Arc<Grant>>| match old {
            Some(old) if *old.name == *name => {
                if ***old.roles.load() != *roles {
                    old.change(roles);
                    differs = true;
                }
                Arc::clone(old)
            }
            _ => {
                differs = true;
                Arc::new(Grant::new(name, roles))
            }
        };
        let everything = [Role::Ids(Pattern::Prefix(String::new()))];
        let named = entries.iter().find(|entry| entry.name == ANONYMOUS);
        let nobody = match (named, config.tokens_file()) {
            (Some(entry), _) => &entry.roles[..],
            (None, Some(_)) => &[],
            (None, None) => &everything[..],
        };
        let mut by = HashMap::new();
        let mut add = |shown: Credential, name: &str, roles: &[Role]| {
            let old = before.and_then(|before| before.by.get(&shown));
            // What everybody may do, who is known may do, too.
            by.insert(shown, grant(name, &[roles, nobody].concat(), old));
        };
        for entry in entries {
            for shown in &entry.shows {
                add(shown.clone(), &entry.name, &entry.roles);
            }
        }
        let secrets = [
            (&config.redis.password, REDIS_USER, &everything[..]),
            (&config.ops.token, OPS_TOKEN, &[Role::Admin][..]),
        ];
        for (secret, name, roles) in secrets {
            if let Some(secret) = secret {
                let hash = TokenHash::of(secret.expose().as_bytes());
                add(Credential::Token(hash), name, roles);
            }
        }
        let over_redis = if config.redis.password.is_some() { &[] } else { nobody };
        let old = before.map(|before| &before.anonymous);
        let anonymous = [
            grant(ANONYMOUS, nobody, old.map(|old| &old[0])),
            grant(ANONYMOUS, over_redis, old.map(|old| &old[1])),
        ];
        let ops_has_callers = config.tokens_file().is_some() || config.ops.token.is_some();
        (Self { by, anonymous, ops_has_callers }, differs)
    }

    /// Warns the operator if no caller can administer this node.
    fn warn(&self) {
        if self.ops_has_callers && !self.by.values().any(|grant| grant.administers()) {
            tracing::warn!(
                "nobody administers this node: tokens_file gives nobody the role admin, and there is no ops.token"
            );
        }
    }

    fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.by.values().chain(&self.anonymous)
    }

    /// Finds the grant of a token by its hash, which no client can choose: so the time that this
    /// takes reveals nothing about the tokens that are known.
    fn of_token(&self, token: &[u8]) -> Option<&Arc<Grant>> {
        let fits = token.len() <= LONGEST_TOKEN;
        fits.then(|| self.by.get(&Credential::Token(TokenHash::of(token)))).flatten()
    }
}

impl Access {
    /// The callers of a configuration.
    pub(crate) fn new(config: &Config, entries: &[Entry]) -> Self {
        let (table, _) = Table::new(config, entries, None);
        table.warn();
        Self { table: ArcSwap::from_pointee(table), file: Rereading::default() }
    }

    /// Reads the file of tokens again, and takes over what is in it and in the configuration.
    pub(crate) async fn read_again(&self, live: &Arc<Live>) {
        let live = Arc::clone(live);
        let read = move || {
            // Not before its turn: an older configuration must not replace a newer one.
            let config = Arc::clone(&live.config());
            Ok((tokens::read(&config)?, config))
        };
        let what = ("tokens_file", "the tokens and roles of before stay in force");
        self.file.again(what, read, |(entries, config)| self.follow(&config, &entries)).await;
    }

    /// Replaces the callers and roles. A grant that the new ones no longer contain ends at once,
    /// also for requests and streams that are under way.
    fn follow(&self, config: &Config, entries: &[Entry]) {
        let before = self.table.load_full();
        let (newer, differs) = Table::new(config, entries, Some(&before));
        let newer = Arc::new(newer);
        let stay: HashSet<_> = newer.grants().map(Arc::as_ptr).collect();
        let ended: Vec<_> =
            before.grants().filter(|grant| !stay.contains(&Arc::as_ptr(grant))).collect();
        // First the new ones: whose grant has ended looks there.
        self.table.store(Arc::clone(&newer));
        for grant in &ended {
            grant.ended.store(true, Ordering::Relaxed);
        }
        if differs || !ended.is_empty() {
            newer.warn();
            tracing::info!("took over other tokens or roles");
        }
    }

    /// Finds the grant of a caller; also returns whether it shows a token that is not known. If
    /// there is a token, it alone counts, else the names in the certificate. A caller that shows
    /// nothing known gets the anonymous grant.
    pub(crate) fn find(
        &self,
        face: Face,
        names: Option<&[Credential]>,
        token: Option<&[u8]>,
    ) -> (Arc<Grant>, bool) {
        let table = self.table.load();
        let found = match (token, names) {
            (Some(token), _) => table.of_token(token),
            (None, Some(names)) => names.iter().find_map(|name| table.by.get(name)),
            (None, None) => None,
        };
        let anonymous = &table.anonymous[usize::from(face == Face::Redis)];
        (Arc::clone(found.unwrap_or(anonymous)), token.is_some() && found.is_none())
    }

    /// Whether the ops listener demands a role of its callers. Else it answers on loopback only.
    pub(crate) fn ops_has_callers(&self) -> bool {
        self.table.load().ops_has_callers
    }
}
