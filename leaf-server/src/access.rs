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
use crate::traffic::Barred;

/// How long the file of tokens may take to be read.
const READ: Duration = Duration::from_secs(10);
/// The longest token that is looked at, in bytes.
const LONGEST_TOKEN: usize = 1024;

/// Whether these roles are for the ids of every tag.
fn has_all(roles: &[Role]) -> bool {
    roles.iter().any(|role| matches!(role, Role::Ids(Pattern::Prefix(prefix)) if prefix.is_empty()))
}

/// What a caller may do that shows one certain thing.
#[derive(Debug)]
pub(crate) struct Grant {
    name: Box<str>,
    /// A reload may change them: whoever holds the grant follows.
    roles: ArcSwap<Box<[Role]>>,
    /// Whether they are for the ids of every tag, as without a file of tokens: most requests need know no
    /// more.
    has_all: AtomicBool,
    /// Whether a reload has taken it back, or given it to another name.
    ended: AtomicBool,
}

impl Grant {
    fn new(name: &str, roles: &[Role]) -> Self {
        let has_all = AtomicBool::new(has_all(roles));
        let roles = ArcSwap::from_pointee(roles.into());
        Self { name: name.into(), roles, has_all, ended: AtomicBool::new(false) }
    }

    /// Replaces its roles.
    fn change(&self, roles: &[Role]) {
        self.has_all.store(false, Ordering::SeqCst);
        self.roles.store(Arc::new(roles.into()));
        self.has_all.store(has_all(roles), Ordering::SeqCst);
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
        let has = self.has_all.load(Ordering::Relaxed) || self.roles.load().iter().any(is_for);
        has && self.is_current()
    }

    fn reads(&self) -> bool {
        let is_for = |role: &Role| matches!(role, Role::Read | Role::Admin);
        self.roles.load().iter().any(is_for) && self.is_current()
    }

    fn administers(&self) -> bool {
        self.roles.load().contains(&Role::Admin) && self.is_current()
    }
}

/// What `read` reads, on a thread that may block; `None` where that takes too long, or the reading before
/// it has not ended yet.
pub(crate) async fn read_alone<T: Send + 'static>(
    reading: &Arc<AtomicBool>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if reading.swap(true, Ordering::AcqRel) {
        return None;
    }
    let reading = Arc::clone(reading);
    let read = tokio::task::spawn_blocking(move || {
        let read = read();
        reading.store(false, Ordering::Release);
        read
    });
    // Late, it goes on by itself, and what it finds is not used.
    tokio::time::timeout(READ, read).await.ok()?.ok()
}

/// The callers that this node knows.
pub(crate) struct Access {
    table: ArcSwap<Table>,
    /// Whether the file of tokens could be used when it was read last.
    last_read: Mutex<Result<(), String>>,
    /// Whoever reads the file holds this until what is in it is in force.
    turn: tokio::sync::Mutex<()>,
    /// Whether the file is being read: a disk that hangs gets one reader, not one after the other.
    reading: Arc<AtomicBool>,
}

/// Who is known, and by what.
struct Table {
    by: HashMap<Credential, Arc<Grant>>,
    /// Of whoever shows nothing that is known; the second over the Redis protocol.
    anonymous: [Arc<Grant>; 2],
    /// Whether the ops listener asks callers who they are. Else it answers on loopback only.
    ops_has_callers: bool,
}

impl Table {
    /// The callers of a configuration, and whether any of them differs. What is shown by the same name
    /// as before keeps its grant, which gets the new roles: whoever holds it loses no more than it must.
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

    /// Tells the operator of a file that shuts him out.
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
        let (table, _) = Table::new(config, entries, None);
        table.warn();
        Self {
            table: ArcSwap::from_pointee(table),
            last_read: Mutex::new(Ok(())),
            turn: tokio::sync::Mutex::default(),
            reading: Arc::default(),
        }
    }

    /// Reads the file of tokens again, and takes over what is in it and in the configuration. A file
    /// that cannot be used changes nothing, and is told once.
    pub(crate) async fn read_again(&self, live: &Live) {
        let _alone = self.turn.lock().await;
        let config = Arc::clone(&live.config());
        let read = read_alone(&self.reading, {
            let config = Arc::clone(&config);
            move || tokens::read(&config)
        });
        let read = read
            .await
            .unwrap_or_else(|| Err(ConfigError::new("tokens_file: it cannot be read in time")));
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
        let changed = differs || !ended.is_empty();
        if changed {
            newer.warn();
        }
        changed
    }

    /// Whether the ops listener asks callers who they are. Else it answers on loopback only.
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

    /// Whether it may ask for ids though it shows nothing.
    pub(crate) fn is_open(&self) -> bool {
        look_up(&self.caller.node, self.face, &self.peer, None).may_ask()
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
    fn has_ids(&self, tag: Option<&str>) -> bool {
        self.grant.has_ids(tag)
    }

    /// Whether it may have ids of this tag (`None`: snowflake ids), as many as it likes.
    pub(crate) fn is_free(&self, tag: Option<&str>) -> bool {
        self.has_ids(tag) && self.node.traffic.is_free(self.name(), tag)
    }

    /// Counts ids that it asks for by the rules of traffic.
    pub(crate) fn pass(&self, tag: Option<&str>, ids: usize) -> Result<(), Barred> {
        self.node.traffic.pass(self.name(), tag, ids)
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

    /// Whether it may still read what operators read, on the ops listener.
    pub(crate) fn may_read(&self) -> bool {
        self.check_reads().is_ok() || !self.access.ops_has_callers()
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
