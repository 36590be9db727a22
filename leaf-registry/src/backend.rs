//! Describes a kind of store: its URL schemes, and functions that check, show and open its URLs.

use std::path::Path;

use leaf_segment::store::StoreFuture;

use crate::open::{OpenRegistry, OpenStore};
use crate::options::{RegistryKind, RegistryOptions, StoreOptions};
use crate::setting::SettingError;

/// The description of one kind of store; each backend's folder defines one.
pub(crate) struct Backend {
    /// The schemes that a URL may begin with.
    pub(crate) schemes: &'static [&'static str],
    /// The kind of worker registry that a store of this kind holds, besides `Ordinal`.
    pub(crate) registry: RegistryKind,
    /// Checks a URL with one of the schemes; returns it in normalized form.
    pub(crate) check: fn(&str) -> Result<String, SettingError>,
    /// The URL without its password.
    pub(crate) show: fn(&str) -> String,
    /// The hosts of a URL, see [`RegistryUrl::hosts`](crate::RegistryUrl::hosts).
    pub(crate) hosts: fn(&str) -> Vec<String>,
    /// The path of an embedded store; `None` for a server.
    pub(crate) path: fn(&str) -> Option<&str>,
    /// Opens the segment store of a URL. Arguments: the URL, the directory from which a relative
    /// path in it counts, the options.
    pub(crate) open: for<'a> fn(&'a str, &'a Path, &'a StoreOptions) -> StoreFuture<'a, OpenStore>,
    /// Opens the worker registry of a URL. Arguments: the URL; the kind, which is that in
    /// `registry` or `Ordinal`; the directory from which a relative path counts; the options.
    pub(crate) open_workers: for<'a> fn(
        &'a str,
        RegistryKind,
        &'a Path,
        &'a RegistryOptions,
    ) -> StoreFuture<'a, OpenRegistry>,
}
