//! The operator's view of a segment store or a worker registry: its tables, and the risks of its
//! setup.

use std::fmt;

use leaf_segment::store::StoreFuture;

/// A text that a segment store keeps beside its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The store's places among the shards, as `leaf_node::ShardMemory` encodes them.
    Shards,
    /// The rules of traffic: which tags and callers get no ids, or only a number of ids a second.
    /// Used only in the store that `segment.store` names.
    Traffic,
}

impl Note {
    /// The greatest length of a note, in bytes.
    pub const LONGEST: usize = 2000;

    /// Every note.
    #[cfg(feature = "etcd")]
    pub(crate) const ALL: [Self; 2] = [Self::Shards, Self::Traffic];

    /// The name under which the store keeps the note, among the names of tags. The leading space
    /// keeps it distinct from every tag's name.
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
    /// `leaf-segment-test`, for first steps. Existing tables are left unchanged. Returns the names
    /// of the tables that it made.
    ///
    /// # Errors
    /// Failures of the store.
    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>>;

    /// Lists what, in the store's current setup, could lose ids or make them repeat, each with a
    /// remedy.
    ///
    /// # Errors
    /// Failures of the store.
    fn risks(&self) -> StoreFuture<'_, Vec<String>>;

    /// Lists why the store, in its current setup and state of replication, may lose acknowledged
    /// allocations in a crash or a failover. [`Self::risks`] includes these texts.
    ///
    /// # Errors
    /// Failures of the store.
    fn losses(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Reads a note of a segment store; `None` if nobody has written it, if the database has no
    /// table for it, and in a registry.
    ///
    /// # Errors
    /// Failures of the store.
    fn note(&self, note: Note) -> StoreFuture<'_, Option<String>> {
        let _ = note;
        Box::pin(async { Ok(None) })
    }

    /// Replaces a note of a segment store if it is still `before` (`None`: not yet written);
    /// returns whether it did.
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

    /// Reads the greatest number in a column of any table of the database, so that a tag can
    /// continue above it; `None` if the table is empty, and in a store that is not an SQL database.
    /// Refuses a column that does not hold whole numbers, and a negative greatest number. `table`
    /// may name a schema: `shop.orders`. Names have 1 to 64 letters, digits, `_` and `$`.
    ///
    /// # Errors
    /// Failures of the store: no such table, say.
    fn greatest<'a>(&'a self, table: &'a str, column: &'a str) -> StoreFuture<'a, Option<i64>> {
        let _ = (table, column);
        Box::pin(async { Ok(None) })
    }

    /// The margin, in ids, by which the store's failover guard advances every tag when another
    /// server answers than before; `None` (the default) if the store has no failover guard.
    fn failover_margin(&self) -> Option<i64> {
        None
    }
}

/// A table of a segment store or a worker registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The name of the table.
    pub name: &'static str,
    /// The SQL statements that make the table and insert its first rows.
    pub statements: &'static str,
}
