//! Making members of families.
//!
//! Invariant: one transaction locks the family's row, and copies it for every new member. So
//! processes that make members of one family wait for each other. If the failover guard is on, and
//! another server answers than before, the row is advanced before it is copied: a member that the
//! failover lost is not made again with its old numbers.

use leaf_core::Tag;
use leaf_segment::StoreError;
use leaf_segment::store::{Member, MembersPlan, TagSettings};

use super::connections::WorkError;
use super::dialect::{Connection, Dialect};
use super::locked::{Change, Locked};
use super::store::{
    ALLOC_COLUMNS, OtherServer, SEQUENCE_COLUMNS, SETTINGS_COLUMNS, SqlStore, records, texts,
};
use super::values::Value;

/// Makes the members in this list that do not exist yet.
struct MakeMembers<'a>(&'a [Tag]);

impl<D: Dialect> Change<D> for MakeMembers<'_> {
    type Done = Result<Vec<Member>, OtherServer>;

    async fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<Self::Done, WorkError> {
        if let Some(other) = store.other_server(connection, &locked.table).await? {
            return Ok(Err(other));
        }
        let names = [Value::Tags(self.0)];
        let mut rows = D::fetch(connection, D::ALLOC.read_many, &names, ALLOC_COLUMNS).await?;
        rows.extend(D::fetch(connection, D::SEQUENCE.read_many, &names, SEQUENCE_COLUMNS).await?);
        let settings =
            D::fetch(connection, D::SETTINGS.read_many, &names, SETTINGS_COLUMNS).await?;
        let texts = texts(settings);
        let ended = self.0.iter().filter_map(|tag| {
            let ended =
                TagSettings::decode(texts.get(tag.as_str())?).map(|settings| settings.ended);
            Some((tag.clone(), ended.transpose()?))
        });
        let ended = ended.collect();
        let plan = MembersPlan::of(&locked.record, self.0, records(rows, texts), &ended);
        let plan = plan.map_err(WorkError::Refused)?;
        if !plan.new.is_empty() {
            let family = Value::Tag(locked.record.tag.as_str());
            let (new, table) = (Value::Names(&plan.new), &locked.table);
            locked.enter_period::<D>(connection).await?;
            if table.is_plain {
                D::execute(connection, D::RESERVE, &[new]).await?;
                D::execute(connection, table.copy, &[new, family]).await?;
                D::execute(connection, D::RELEASE, &[Value::Tags(&plan.new)]).await?;
            } else {
                D::execute(connection, table.copy, &[new, family]).await?;
            }
            let settings = plan.member.encode();
            D::execute(connection, D::SETTINGS.set_many, &[Value::Text(&settings), new]).await?;
            locked.write_settings::<D>(connection, &plan.family).await?;
        }
        Ok(Ok(plan.answer))
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Makes the members in this list that do not exist yet, all in one transaction.
    pub(super) async fn make_together(
        &self,
        family: &Tag,
        members: &[Tag],
    ) -> Result<Vec<Member>, StoreError> {
        self.change_guarded("make members of", family, &mut MakeMembers(members)).await
    }
}
