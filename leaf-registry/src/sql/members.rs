//! Making members of families.
//!
//! Invariant: one transaction locks the family's row, and copies it for every new member. So
//! processes that make members of one family wait for each other. If the failover guard is on, and
//! another server answers than before, the row is advanced before it is copied: a member that the
//! failover lost is not made again with its old numbers.

use leaf_core::{Clock as _, SystemClock, Tag, UnixMillis};
use leaf_segment::store::{Member, MembersPlan, TagSettings};
use leaf_segment::{StoreError, StoreErrorKind};

use super::connections::WorkError;
use super::dialect::{Connection, Dialect, GuardStatements};
use super::locked::{Change, Locked};
use super::store::{
    ALLOC_COLUMNS, SEQUENCE_COLUMNS, SETTINGS_COLUMNS, SqlStore, TRIES, records, texts,
};
use super::values::{Column, Value};

/// Makes those of these members that do not exist.
struct MakeMembers<'a>(&'a [Tag]);

/// The outcome of [`MakeMembers`].
enum Made {
    Members(Vec<Member>),
    /// Another server allocated last: the guard must first jump by this margin.
    OtherServer(GuardStatements, i64),
}

impl<D: Dialect> Change<D> for MakeMembers<'_> {
    type Done = Made;

    async fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<Made, WorkError> {
        if let Some((margin, guard)) = store.guard.active_margin().zip(locked.table.guard)
            && !store.allocated_last(connection, guard).await?
        {
            return Ok(Made::OtherServer(guard, margin));
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
            enter_period::<D>(connection, locked).await?;
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
        Ok(Made::Members(plan.answer))
    }
}

/// Moves the locked row of a family with periods into the running period, if a failover has
/// advanced the family. (For the row of a tag, an allocation does the same.) The numbers to skip
/// then count for this period and for no later one: otherwise they would add up with each failover,
/// until new members begin behind the end of the period. The running period is the one that the
/// clocks of the server and of this host agree on.
async fn enter_period<D: Dialect>(
    connection: &mut Connection<D>,
    locked: &Locked,
) -> Result<(), WorkError> {
    let reset = locked.record.meaning.as_ref().ok().and_then(|meaning| meaning.reset);
    let (Some(statement), Some(clock), Some(reset)) = (D::ENTER_PERIOD, D::SERVER_CLOCK, reset)
    else {
        return Ok(());
    };
    let ours = SystemClock.wall_millis();
    let max_id = locked.record.max_id;
    // As it was made, or in the period already.
    if max_id <= 1 || reset.first_number(ours, ours).is_none_or(|first| first <= max_id) {
        return Ok(());
    }
    let shown = D::fetch(connection, clock, &[], &[Column::Int]).await?;
    let shown = shown.first().and_then(|row| row.int(0)).unwrap_or_default();
    let theirs = UnixMillis::new(shown.max(0).cast_unsigned());
    if let Some(first) = reset.first_number(ours, theirs) {
        let family = Value::Tag(locked.record.tag.as_str());
        let values = [Value::Int(first), family, Value::Int(first)];
        D::execute(connection, statement, &values).await?;
    }
    Ok(())
}

impl<D: Dialect> SqlStore<D> {
    /// Makes those of these members that do not exist.
    pub(super) async fn make_members(
        &self,
        family: &Tag,
        members: &[Tag],
    ) -> Result<Vec<Member>, StoreError> {
        match self.make_together(family, members).await {
            // The table's collation treats one of the names as equal to another, or somebody has
            // just made a tag of one of these names.
            Err(error) if *error.kind() == StoreErrorKind::TagExists => {}
            made => return made,
        }
        let mut made = Vec::with_capacity(members.len());
        for tag in members {
            match self.make_together(family, std::slice::from_ref(tag)).await {
                Err(error) if *error.kind() == StoreErrorKind::TagExists => {
                    made.push((tag.clone(), Err(StoreErrorKind::TagExists)));
                }
                one => made.extend(one?),
            }
        }
        Ok(made)
    }

    async fn make_together(
        &self,
        family: &Tag,
        members: &[Tag],
    ) -> Result<Vec<Member>, StoreError> {
        for _ in 0..TRIES {
            match self.change_locked("make members of", family, &mut MakeMembers(members)).await? {
                Made::Members(made) => return Ok(made),
                Made::OtherServer(guard, margin) => _ = self.jump(guard, margin).await?,
            }
        }
        let operation = super::store::operation::<D>("make members of", family);
        Err(StoreError::new(StoreErrorKind::Conflict, operation))
    }

    /// Whether this server is the one that has allocated last.
    pub(super) async fn allocated_last(
        &self,
        connection: &mut Connection<D>,
        guard: GuardStatements,
    ) -> Result<bool, WorkError> {
        // The server may have got another name since the connection was made.
        D::identify_server(connection, &self.guard).await?;
        let last = D::fetch(connection, guard.allocated_last, &[], &[Column::Int]).await?;
        Ok(last.first().and_then(|row| row.int(0)) == Some(1))
    }
}
