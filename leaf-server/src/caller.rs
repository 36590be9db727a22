//! The caller of a request, and what it may do.
//!
//! A caller shows a token, a certificate, or nothing. [`Access`](crate::access::Access) has the
//! roles of each. A connection keeps the result of that look-up ([`Client`]) until the client shows
//! another token, or a reload ends the grant.
//!
//! Invariant: the listeners for ids give ids and facts of a tag only to a [`Caller`] whose grant
//! includes the tag: the functions of `ids.rs` that find a tag take a `Caller`.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use hyper::header::HeaderValue;
use leaf_node::tokens::Credential;
use subtle::ConstantTimeEq as _;

use crate::access::Grant;
use crate::node::Node;
use crate::refusal::{Face, Reason};
use crate::traffic::Barred;

/// What is known of a client from its connection alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    /// The client's address, for the audit log; `None` if it is not known.
    pub(crate) address: Option<SocketAddr>,
    /// The names in the client's certificate, which an authority of `tls.client_ca` has signed;
    /// `None` without a certificate, or if it has no names.
    pub(crate) names: Option<Box<[Credential]>>,
}

/// The client of a connection.
pub(crate) struct Client {
    face: Face,
    peer: Peer,
    /// The token that the client shows; `None` if it shows none.
    token: Option<Box<[u8]>>,
    /// The result of the last look-up: the caller that the client is, by this token or by its
    /// certificate.
    caller: Caller,
}

/// The caller of a request. Dereferences to the node that received the request.
#[derive(Clone)]
pub(crate) struct Caller {
    node: Arc<Node>,
    /// The client's address, if it is known.
    pub(crate) address: Option<SocketAddr>,
    grant: Arc<Grant>,
    /// Whether the caller has shown an unknown token.
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
    /// The reason for the refusal, the same in all protocols.
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

    /// The caller of a request, by the token in its header `Authorization`.
    pub(crate) fn by(&mut self, authorization: Option<&HeaderValue>) -> &Caller {
        let shown = authorization.and_then(|value| bearer(value.as_bytes()));
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

    /// Returns the current caller. Looks it up again if a reload has ended its grant, or if its
    /// token or certificate was unknown at the last look-up.
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

    /// Accepts a token that the client shows, if it is known and, where `name` is given, belongs to
    /// the caller of that name. Returns whether it was accepted; if not, nothing changes.
    pub(crate) fn shows(&mut self, name: Option<&[u8]>, token: &[u8]) -> bool {
        let found = look_up(&self.caller.node, self.face, &self.peer, Some(token));
        let right =
            !found.is_wrong && name.is_none_or(|name| name == found.grant.name().as_bytes());
        if right {
            (self.token, self.caller) = (Some(token.into()), found);
        }
        right
    }

    /// Whether the client may ask for ids without a token.
    pub(crate) fn is_open(&self) -> bool {
        look_up(&self.caller.node, self.face, &self.peer, None).may_ask()
    }

    /// Removes the token that the client has shown.
    pub(crate) fn forget(&mut self) {
        self.token = None;
        self.caller = look_up(&self.caller.node, self.face, &self.peer, None);
    }

    /// The caller as of the last look-up; does not look it up again.
    pub(crate) const fn last(&self) -> &Caller {
        &self.caller
    }

    /// The node that the client is connected to.
    pub(crate) const fn node(&self) -> &Arc<Node> {
        &self.caller.node
    }
}

/// Looks up the caller that a client is, by its token or, without one, by its certificate.
fn look_up(node: &Arc<Node>, face: Face, peer: &Peer, token: Option<&[u8]>) -> Caller {
    let (grant, is_wrong) = node.access.find(face, peer.names.as_deref(), token);
    Caller { node: Arc::clone(node), address: peer.address, grant, is_wrong }
}

/// Reads the token from the value `Bearer TOKEN` of `Authorization`. `None` for other schemes,
/// which are meant for somebody else, such as a proxy.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let is_one = scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty();
    is_one.then_some(token)
}

/// Gives access to the node that serves the caller.
impl Deref for Caller {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.node
    }
}

impl Caller {
    /// The caller's name, as in the file of tokens.
    pub(crate) fn name(&self) -> &str {
        self.grant.name()
    }

    /// Whether the caller may ask for ids at all: it is known, or anonymous callers have a role for
    /// ids.
    pub(crate) fn may_ask(&self) -> bool {
        self.grant.is_current() && (!self.grant.is_anonymous() || self.grant.has_ids(None))
    }

    /// Whether the caller has a role for the ids of this tag; `None` stands for snowflake ids.
    fn has_ids(&self, tag: Option<&str>) -> bool {
        self.grant.has_ids(tag)
    }

    /// Whether the caller has a role for the ids of this tag, and no rule of traffic is about the
    /// caller or the tag; `None` stands for snowflake ids.
    pub(crate) fn is_free(&self, tag: Option<&str>) -> bool {
        self.has_ids(tag) && self.node.traffic.is_free(self.name(), tag)
    }

    /// Counts ids that the caller asks for against the rules of traffic; an error if a rule refuses
    /// them.
    pub(crate) fn pass(&self, tag: Option<&str>, ids: usize) -> Result<(), Barred> {
        self.node.traffic.pass(self.name(), tag, ids)
    }

    /// Refuses a caller without a role for the ids of this tag; `None` stands for snowflake ids.
    pub(crate) fn check_ids(&self, tag: Option<&str>) -> Result<(), Denial> {
        match self.has_ids(tag) {
            true => Ok(()),
            false => Err(self.denial(tag.map_or("ids".into(), |_| "ids:TAG for this tag".into()))),
        }
    }

    /// Refuses a caller that may not see what operators see.
    pub(crate) fn check_reads(&self) -> Result<(), Denial> {
        if self.grant.reads() { Ok(()) } else { Err(self.denial("read".into())) }
    }

    /// Whether the caller may still see what the ops listener shows: it has a role for that, or the
    /// listener demands none.
    pub(crate) fn may_read(&self) -> bool {
        self.check_reads().is_ok() || !self.access.ops_has_callers()
    }

    /// Refuses a caller that may not change what operators change.
    pub(crate) fn check_administers(&self) -> Result<(), Denial> {
        if self.grant.administers() { Ok(()) } else { Err(self.denial("admin".into())) }
    }

    fn denial(&self, role: String) -> Denial {
        if self.is_wrong || !self.grant.is_anonymous() && !self.grant.is_current() {
            Denial::WrongToken
        } else if self.grant.is_anonymous() {
            Denial::NoToken
        } else {
            Denial::NoRole { name: self.grant.name().into(), role }
        }
    }
}
