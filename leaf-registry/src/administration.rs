//! What an operator needs of a segment store or a worker registry: its tables, and what is risky
//! about it.

use std::fmt;

use leaf_segment::store::StoreFuture;

/// A text that a segment store keeps beside its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Its place among the shards, see [`ShardMemory`](leaf_segment::shards::ShardMemory).
    Shards,
    /// Which tags and callers get no ids, or so many a second. In the store of `segment.store`.
    Traffic,
}

impl Note {
    /// The longest text, in bytes.
    pub const LONGEST: usize = 2000;

    /// Every note.
    #[cfg(feature = "etcd")]
    pub(crate) const ALL: [Self; 2] = [Self::Shards, Self::Traffic];

    /// Its key, among those of the tags' settings. The leading space keeps it distinct from every tag's
    /// name.
    #[cfg(any(feature = "sql", feature = "etcd"))]
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Shards => " shards",
            Self::Traffic => " traffic",
        }
    }
}

/// Shows and makes the tables of a segment store or of a worker registry, and looks at the settings
/// of its server.
///
/// The tables themselves are documented in docs/stores.md and docs/registries.md; a program may
/// show them with [`Self::tables`], so that an administrator can make them with other rights than
/// the service has.
pub trait Administration: fmt::Debug + Send + Sync + 'static {
    /// The tables, each with the statements that make it, to be read or run by hand.
    fn tables(&self) -> &'static [Table];

    /// Makes the tables that do not exist yet, and in a new SQLite file the Java Leaf's sample tag
    /// `leaf-segment-test`, for first steps. What exists stays as it is. Returns the names of those that it
    /// made.
    ///
    /// # Errors
    /// Failures of the store.
    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>>;

    /// What could cost ids or their uniqueness as the store is set up now, each with the way out.
    ///
    /// # Errors
    /// Failures of the store.
    fn risks(&self) -> StoreFuture<'_, Vec<String>>;

    /// Why the store may lose allocations that it has acknowledged, as it is set up and replicated now: at
    /// a crash, or at a failover. A part of [`Self::risks`].
    ///
    /// # Errors
    /// Failures of the store.
    fn losses(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// What stands in a note of a segment store; `None` where nobody has written it, where the database has
    /// no table for it, and in a registry.
    ///
    /// # Errors
    /// Failures of the store.
    fn note(&self, note: Note) -> StoreFuture<'_, Option<String>> {
        let _ = note;
        Box::pin(async { Ok(None) })
    }

    /// Replaces a note of a segment store, if that is still `before`; tells whether it did.
    ///
    /// # Errors
    /// Failures of the store: this user may not write there, say.
    fn write_note<'a>(
        &'a self,
        note: Note,
        before: Option<&'a str>,
        after: &'a str,
    ) -> StoreFuture<'a, bool> {
        let _ = (note, before, after);
        Box::pin(async { Ok(false) })
    }

    /// The greatest number in a column of any table of the database, for a tag that is to go on above it;
    /// `None` where the table is empty, and in a store that is no SQL database. A column of other types is refused, and
    /// a negative number. `table` may name a schema:
    /// `shop.orders`. Names have 1 to 64 letters, digits, `_` and `$`.
    ///
    /// # Errors
    /// Failures of the store: no such table, say.
    fn greatest<'a>(&'a self, table: &'a str, column: &'a str) -> StoreFuture<'a, Option<i64>> {
        let _ = (table, column);
        Box::pin(async { Ok(None) })
    }

    /// By how many ids the store's failover guard advances every tag when another server answers;
    /// `None` (the default) where it has none.
    fn failover_margin(&self) -> Option<i64> {
        None
    }
}

/// One table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What makes it, and its first rows.
    pub statements: &'static str,
}
