//! Who asks, and what a caller may do.
//!
//! A caller shows a token or a certificate, or nothing. [`Access`] knows the roles of each; a connection
//! keeps what it found there ([`Client`]) until the client shows something else, or a reload changes
//! the roles.
//!
//! Invariant: nothing of a tag leaves this node but through a [`Caller`] whose grant has the tag:
//! the functions of `ids.rs` that find a tag take one. A grant that a reload ended gives nothing any
//! more, to whoever holds it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::{AUTHORIZATION, HeaderMap};
use leaf_node::config::{Config, ConfigError};
use leaf_node::tokens::{
    self, ANONYMOUS, Credential, Entry, OPS_TOKEN, Pattern, REDIS_USER, Role, TokenHash,
};

use subtle::ConstantTimeEq as _;

use crate::live::Live;
use crate::node::Node;
use crate::refusal::{Face, Reason};

/// How long the file of tokens may take to be read.
const READ: Duration = Duration::from_secs(10);
/// The longest token that is looked at, in bytes.
const LONGEST_TOKEN: usize = 1024;

/// What a caller may do that shows one certain thing.
#[derive(Debug)]
pub(crate) struct Grant {
    name: Box<str>,
    roles: Box<[Role]>,
    /// Whether a reload has taken it back.
    ended: AtomicBool,
}

impl Grant {
    fn new(name: &str, roles: &[Role]) -> Self {
        Self { name: name.into(), roles: roles.into(), ended: AtomicBool::new(false) }
    }

    fn is_anonymous(&self) -> bool {
        &*self.name == ANONYMOUS
    }

    fn is_current(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Whether it has a role for this tag, or, for `None`, for any.
    fn has_ids(&self, tag: Option<&str>) -> bool {
        let is_for = |role: &Role| match role {
            Role::Ids(pattern) => tag.is_none_or(|tag| pattern.has(tag)),
            Role::Read | Role::Admin => false,
        };
        self.roles.iter().any(is_for) && self.is_current()
    }

    fn reads(&self) -> bool {
        self.roles.contains(&Role::Read) || self.administers()
    }

    fn administers(&self) -> bool {
        self.roles.contains(&Role::Admin)
    }
}

/// The callers that this node knows.
pub(crate) struct Access {
    table: ArcSwap<Table>,
    /// Whether the file of tokens could be used when it was read last.
    last_read: Mutex<Result<(), String>>,
    /// Whoever reads the file holds this until what is in it is in force.
    reading: tokio::sync::Mutex<()>,
}

/// Who is known, and by what.
struct Table {
    by: HashMap<Credential, Arc<Grant>>,
    /// Of whoever shows nothing that is known; the second over the Redis protocol.
    anonymous: [Arc<Grant>; 2],
    /// Whether the ops listener has callers that show something. Else it answers on loopback only.
    ops_has_callers: bool,
}

impl Table {
    /// The callers of a configuration. A grant that stays what it is stays the one of `before`: whoever
    /// holds it notices nothing.
    fn new(config: &Config, entries: &[Entry], before: Option<&Self>) -> Self {
        let kept = |grant: Grant, old: Option<&Arc<Grant>>| match old {
            Some(old) if old.name == grant.name && old.roles == grant.roles => Arc::clone(old),
            _ => Arc::new(grant),
        };
        let everything = [Role::Ids(Pattern::Prefix(String::new()))];
        let mut by = HashMap::new();
        let mut add = |shown: Credential, name: &str, roles: &[Role]| {
            let old = before.and_then(|before| before.by.get(&shown));
            by.insert(shown, kept(Grant::new(name, roles), old));
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
        let named = entries.iter().find(|entry| entry.name == ANONYMOUS);
        let roles = match (named, &config.tokens_file) {
            (Some(entry), _) => &entry.roles[..],
            (None, Some(_)) => &[],
            (None, None) => &everything[..],
        };
        let over_redis = if config.redis.password.is_some() { &[] } else { roles };
        let old = before.map(|before| &before.anonymous);
        let anonymous = [
            kept(Grant::new(ANONYMOUS, roles), old.map(|old| &old[0])),
            kept(Grant::new(ANONYMOUS, over_redis), old.map(|old| &old[1])),
        ];
        let ops_has_callers = by.values().any(|grant| grant.reads());
        Self { by, anonymous, ops_has_callers }
    }

    fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.by.values().chain(&self.anonymous)
    }

    /// The token is looked up by its hash, which nobody can choose: how long that takes tells nothing
    /// of the tokens that are known.
    fn of_token(&self, token: &[u8]) -> Option<&Arc<Grant>> {
        let fits = token.len() <= LONGEST_TOKEN;
        fits.then(|| self.by.get(&Credential::Token(TokenHash::of(token)))).flatten()
    }
}

impl Access {
    /// The callers of a configuration.
    pub(crate) fn new(config: &Config, entries: &[Entry]) -> Self {
        Self {
            table: ArcSwap::from_pointee(Table::new(config, entries, None)),
            last_read: Mutex::new(Ok(())),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Reads the file of tokens again, and takes over what is in it and in the configuration. A file
    /// that cannot be used changes nothing, and is told once.
    pub(crate) async fn read_again(&self, live: &Live) {
        let _alone = self.reading.lock().await;
        let config = Arc::clone(&live.config());
        let file = config.tokens_file.clone();
        let read = tokio::task::spawn_blocking(move || tokens::read(file.as_deref()));
        let read = match tokio::time::timeout(READ, read).await {
            Ok(Ok(read)) => read,
            // The reading goes on by itself.
            Ok(Err(_)) | Err(_) => Err(ConfigError::new("tokens_file: it cannot be read in time")),
        };
        let mut last = self.last_read.lock().expect("no holder of this lock panics");
        let read = read.map(|entries| self.follow(&config, &entries));
        match &read {
            Ok(true) => tracing::info!("took over other tokens or roles"),
            Ok(false) => {}
            Err(error) if *last == Err(error.to_string()) => {}
            Err(error) => tracing::error!("{error}; the tokens and roles of before stay in force"),
        }
        *last = read.map(drop).map_err(|error| error.to_string());
    }

    /// Whether the file of tokens could be used when it was read last.
    pub(crate) fn last_read_successful(&self) -> bool {
        self.last_read.lock().expect("no holder of this lock panics").is_ok()
    }

    /// Takes over other callers and roles. What was granted before and is not now gives nothing any
    /// more, to requests and streams under way either. Tells whether anything has changed.
    fn follow(&self, config: &Config, entries: &[Entry]) -> bool {
        let before = self.table.load_full();
        let newer = Arc::new(Table::new(config, entries, Some(&before)));
        let stay: HashSet<_> = newer.grants().map(Arc::as_ptr).collect();
        let ended: Vec<_> =
            before.grants().filter(|grant| !stay.contains(&Arc::as_ptr(grant))).collect();
        if ended.is_empty() && newer.by.len() == before.by.len() {
            return false;
        }
        // First the new ones: whose grant has ended looks there.
        self.table.store(Arc::clone(&newer));
        for grant in ended {
            grant.ended.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Whether the ops listener has callers that show something. Else it answers on loopback only.
    pub(crate) fn ops_has_callers(&self) -> bool {
        self.table.load().ops_has_callers
    }
}

/// What is known of a client from its connection alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    /// Where it is; for the audit log.
    pub(crate) address: Option<SocketAddr>,
    /// The names in the certificate that it has shown, which an authority of `tls.client_ca` has signed.
    pub(crate) names: Option<Box<[Credential]>>,
}

/// The client of a connection.
pub(crate) struct Client {
    face: Face,
    peer: Peer,
    /// The token that it has shown last.
    token: Option<Box<[u8]>>,
    /// Who it was with that when this was looked up.
    caller: Caller,
}

/// Who asks, and this node as it is for that caller.
#[derive(Clone)]
pub(crate) struct Caller {
    node: Arc<Node>,
    /// Where it is, if that is known.
    pub(crate) address: Option<SocketAddr>,
    grant: Arc<Grant>,
    /// Whether it has shown a token that is not known.
    is_wrong: bool,
}

/// Why a caller may not do what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("this needs a token: Authorization: Bearer TOKEN, or AUTH NAME TOKEN")]
    NoToken,
    #[error("the token is not known, or not any more")]
    WrongToken,
    #[error("{name} may not do this: it needs the role {role} in tokens_file")]
    NoRole { name: Box<str>, role: String },
}

impl Denial {
    /// The reason that all protocols know.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::NoToken => Reason::Unauthorized,
            Self::WrongToken => Reason::BadToken,
            Self::NoRole { .. } => Reason::NoRole,
        }
    }
}

impl Client {
    /// A client that has shown no token yet.
    pub(crate) fn new(node: Arc<Node>, face: Face, peer: Peer) -> Self {
        let caller = look_up(&node, face, &peer, None);
        Self { face, peer, token: None, caller }
    }

    /// Who it is by the headers of a request.
    pub(crate) fn by(&mut self, headers: &HeaderMap) -> &Caller {
        let shown = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let same = match (&self.token, shown) {
            (None, None) => true,
            // Two clients may share the connection of a proxy.
            (Some(before), Some(now)) => before.ct_eq(now).into(),
            _ => false,
        };
        if same {
            return self.caller();
        }
        self.token = shown.map(Box::from);
        self.caller = look_up(&self.caller.node, self.face, &self.peer, shown);
        &self.caller
    }

    /// Who it is now, by what it has shown.
    pub(crate) fn caller(&mut self) -> &Caller {
        let Caller { grant, is_wrong, .. } = &self.caller;
        // What is not known may be known since.
        let unknown = *is_wrong || self.peer.names.is_some() && grant.is_anonymous();
        if unknown || !grant.is_current() {
            let token = self.token.as_deref();
            self.caller = look_up(&self.caller.node, self.face, &self.peer, token);
        }
        &self.caller
    }

    /// It shows a token that must be known, and of this name where one is given. A wrong one changes
    /// nothing.
    pub(crate) fn shows(&mut self, name: Option<&[u8]>, token: &[u8]) -> bool {
        let found = look_up(&self.caller.node, self.face, &self.peer, Some(token));
        let right = !found.is_wrong && name.is_none_or(|name| name == found.grant.name.as_bytes());
        if right {
            (self.token, self.caller) = (Some(token.into()), found);
        }
        right
    }

    /// It shows nothing any more.
    pub(crate) fn forget(&mut self) {
        self.token = None;
        self.caller = look_up(&self.caller.node, self.face, &self.peer, None);
    }

    /// Who it was when that was last asked for.
    pub(crate) const fn last(&self) -> &Caller {
        &self.caller
    }

    /// The node that it asks.
    pub(crate) const fn node(&self) -> &Arc<Node> {
        &self.caller.node
    }
}

/// Who a client is that shows this.
fn look_up(node: &Arc<Node>, face: Face, peer: &Peer, token: Option<&[u8]>) -> Caller {
    let table = node.access.table.load();
    let found = match (token, &peer.names) {
        (Some(token), _) => table.of_token(token),
        (None, Some(names)) => names.iter().find_map(|name| table.by.get(name)),
        (None, None) => None,
    };
    let anonymous = &table.anonymous[usize::from(face == Face::Redis)];
    let grant = Arc::clone(found.unwrap_or(anonymous));
    Caller {
        node: Arc::clone(node),
        address: peer.address,
        is_wrong: token.is_some() && found.is_none(),
        grant,
    }
}

/// The token of `Authorization: Bearer TOKEN`. Other schemes are meant for somebody else, such as a proxy.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let is_one = scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty();
    is_one.then_some(token)
}

/// The node that is asked.
impl Deref for Caller {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.node
    }
}

impl Caller {
    /// As the file of tokens names it.
    pub(crate) fn name(&self) -> &str {
        &self.grant.name
    }

    /// Whether it is anybody, or may have ids without being so.
    pub(crate) fn may_ask(&self) -> bool {
        self.grant.is_current() && (!self.grant.is_anonymous() || self.grant.has_ids(None))
    }

    /// Whether it may have ids of this tag; of `None`: snowflake ids.
    pub(crate) fn has_ids(&self, tag: Option<&str>) -> bool {
        self.grant.has_ids(tag)
    }

    /// Why it gets no ids of a tag, or no snowflake ids.
    pub(crate) fn check_ids(&self, tag: Option<&str>) -> Result<(), Denial> {
        match self.has_ids(tag) {
            true => Ok(()),
            false => Err(self.denial(tag.map_or("ids".into(), |_| "ids:TAG for this tag".into()))),
        }
    }

    /// Whether it may see what operators see.
    pub(crate) fn check_reads(&self) -> Result<(), Denial> {
        if self.grant.reads() { Ok(()) } else { Err(self.denial("read".into())) }
    }

    /// Whether it may change what operators change.
    pub(crate) fn check_administers(&self) -> Result<(), Denial> {
        if self.grant.administers() { Ok(()) } else { Err(self.denial("admin".into())) }
    }

    fn denial(&self, role: String) -> Denial {
        if self.is_wrong || !self.grant.is_anonymous() && !self.grant.is_current() {
            Denial::WrongToken
        } else if self.grant.is_anonymous() {
            Denial::NoToken
        } else {
            Denial::NoRole { name: self.grant.name.clone(), role }
        }
    }
}
