//! Making a tag: its row, and its settings.
//!
//! Invariant: one transaction makes both, or nothing. Two processes that make a tag of the same
//! name wait for each other, and one of them is refused. A tag is refused if it could issue an id
//! of a deleted tag of its name.

use leaf_segment::store::TagSettings;
use leaf_segment::{NewTag, StoreErrorKind};

use super::connections::{WorkError, advised, no_row_if_tag_unencodable};
use super::dialect::{Connection, Dialect, ErrorMeaning, TagStatements};
use super::store::{ALLOC_COLUMNS, SETTINGS_COLUMNS, SqlStore, ended_tag};
use super::values::Value;

impl<D: Dialect> SqlStore<D> {
    /// Makes a tag, whose name must be in neither table.
    pub(super) async fn make_tag(
        connection: &mut Connection<D>,
        new: &NewTag,
    ) -> Result<(), WorkError> {
        let meaning = new.meaning.encode();
        let values = [
            Value::Text(new.tag.as_str()),
            Value::Int(new.max_id),
            Value::Int(new.step.get().into()),
            Value::MaybeText(new.description.as_deref()),
            Value::Text(&meaning),
            Value::MaybeInt(new.own_failover_margin()),
        ];
        let name = [Value::Tag(new.tag.as_str())];
        let (row, plain) = (&values[..4], new.meaning.is_plain());
        if let Some(begin) = D::BEGIN {
            D::run_text(connection, begin).await?;
        }
        // Whoever makes the same name at the same time waits here, whichever table it is for.
        match D::execute(connection, D::SEQUENCE.create, &values).await {
            Ok(_) => {}
            // `leaf_sequence` does not exist: so all tags are plain, and nothing needs to be locked
            // there. If it exists and this user has no right on it, the error is another one.
            Err(error) if plain && (D::ERROR_MEANING)(&error) == ErrorMeaning::MissingTable => {
                Self::end(connection, "ROLLBACK").await?;
                let read = D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await;
                // The database of a Java Leaf has no place for a generation.
                let others = TagSettings { generation: None, ..new.settings.clone() };
                let of_java = read.is_err() && others == TagSettings::default();
                if let Some(begin) = D::BEGIN {
                    D::run_text(connection, begin).await?;
                }
                D::execute(connection, D::ALLOC.create, row).await?;
                if !of_java {
                    Self::finish_tag(connection, new, &D::ALLOC).await?;
                }
                return Ok(Self::end(connection, "COMMIT").await?);
            }
            Err(error) => return Err(explain_sequences::<D>(error).into()),
        }
        if plain {
            D::execute(connection, D::ALLOC.create, row).await?;
            D::execute(connection, D::SEQUENCE.delete, &name).await?;
            Self::finish_tag(connection, new, &D::ALLOC).await?;
        } else {
            let taken = D::fetch(connection, D::ALLOC.read, &name, ALLOC_COLUMNS).await;
            if !no_row_if_tag_unencodable::<D, _>(taken)?.is_empty() {
                Self::end(connection, "ROLLBACK").await?;
                return Err(WorkError::Refused(StoreErrorKind::TagExists));
            }
            Self::finish_tag(connection, new, &D::SEQUENCE).await?;
        }
        Ok(Self::end(connection, "COMMIT").await?)
    }

    /// Writes the settings, with the generation, of a tag whose row was just inserted. If the tag
    /// could issue an id of a deleted tag of its name, undoes the transaction and refuses. Nobody
    /// else can write settings of this name now, since the row is locked.
    async fn finish_tag(
        connection: &mut Connection<D>,
        new: &NewTag,
        table: &TagStatements,
    ) -> Result<(), WorkError> {
        let name = Value::Tag(new.tag.as_str());
        let rows = D::fetch(connection, D::SETTINGS.read, &[name], SETTINGS_COLUMNS).await?;
        let refused = match ended_tag(rows) {
            Ok(ended) => ended.and_then(|it| it.check(new).err()).map(StoreErrorKind::UsedBefore),
            Err(unreadable) => Some(StoreErrorKind::BadRecord(unreadable.to_string())),
        };
        if let Some(refused) = refused {
            Self::end(connection, "ROLLBACK").await?;
            return Err(WorkError::Refused(refused));
        }
        let settings = new.settings.of_new_tag().encode();
        D::execute(connection, table.set_settings, &[Value::Text(&settings), name]).await?;
        Ok(())
    }
}

/// Adds the remedy to the error of a user who may not write `leaf_sequence`.
fn explain_sequences<D: Dialect>(error: sqlx::Error) -> sqlx::Error {
    if (D::ERROR_MEANING)(&error) != ErrorMeaning::Forbidden {
        return error;
    }
    advised(
        error,
        "a tag's name is reserved in leaf_sequence, whatever its order: make the table with `leaf-server schema \
         --apply` where it is missing, and grant INSERT and DELETE on it",
    )
}
