//! Families of tags: where there is a family `invoice/*`, a request for `invoice/acme` makes that
//! tag.
//!
//! A family is a record like that of a tag. Its name is the prefix of all its members' names and a
//! `*`. Nothing is allocated from it.
//!
//! Invariant: a member is made as a copy of the family's record, and counted, in one transaction
//! that has exclusive access to that record. So each member is made once in the whole cluster, and
//! never after its family was deleted. The failover guard advances a family like every tag: a
//! member that a failover lost is made again with numbers above the guard's margin.

use std::collections::HashMap;

use leaf_core::Tag;
use serde::{Deserialize, Serialize};

use crate::admin::EndedTag;
use crate::store::{TagSettings, TagSettingsError};
use crate::{NewTag, StoreErrorKind, TagRecord};

/// The limits of a family, and how many members were made.
///
/// ```
/// use leaf_core::Tag;
/// use leaf_segment::store::Family;
///
/// let family = |name| Family::of(&Tag::parse(name).ok()?);
/// assert_eq!(family("invoice/acme"), Tag::parse("invoice/*").ok());
/// assert_eq!(family("shop/7/invoice/acme"), Tag::parse("shop/7/invoice/*").ok());
/// assert_eq!(family("invoice/"), None);
/// assert_eq!(family("invoice/a b"), None, "not among the characters of a member");
/// assert_eq!(family("invoices"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// How many members were made, those included that were deleted since.
    pub members: u32,
    /// The most members that may be made. Default 1,000,000.
    pub max_members: u32,
    /// The most members that one node makes in a second. Default 1,000.
    pub members_per_second: u32,
}

impl Default for Family {
    fn default() -> Self {
        Self { members: 0, max_members: 1_000_000, members_per_second: 1000 }
    }
}

impl Family {
    pub(crate) const AT_LEAST_ONE: &str = "max_members and members_per_second are 1 at least";

    /// Returns the name of the family that could make a tag of this name: everything up to the last
    /// `/`, and a `*`. `None` if no family could: there is no `/`, nothing before or after the last
    /// one, or a character after it other than the letters `a` to `z` in both cases, digits and
    /// `-._:@+`.
    #[must_use]
    pub fn of(member: &Tag) -> Option<Tag> {
        let (before, own) = member.as_str().rsplit_once('/')?;
        let may_stand = |char: char| {
            char.is_ascii_alphanumeric() || matches!(char, '-' | '.' | '_' | ':' | '@' | '+')
        };
        let is_member = !before.is_empty() && !own.is_empty() && own.chars().all(may_stand);
        is_member.then(|| Tag::parse(&format!("{before}/*")).ok()).flatten()
    }

    /// Returns the prefix of the names of all members of this family; `None` if `name` is not a
    /// family's name: it does not end in `/*`, contains another `*`, or has nothing before the
    /// `/*`.
    #[must_use]
    pub fn prefix(name: &Tag) -> Option<&str> {
        let prefix = name.as_str().strip_suffix('*')?;
        let before = prefix.strip_suffix('/')?;
        (!before.is_empty() && !before.contains('*')).then_some(prefix)
    }
}

/// The outcome for one requested member: its record, which was made now or existed before, or an
/// error.
///
/// The error is `UsedBefore` if a tag of this name was deleted and the new one could repeat its
/// ids; `FamilyFull`, `BadRecord` or `UnknownTag`.
pub type Member = (Tag, Result<TagRecord, StoreErrorKind>);

/// The changes that a store must write to make members, while it has exclusive access to the
/// family's record.
#[derive(Debug)]
pub struct MembersPlan {
    /// The new members. Each becomes a copy of the family's row.
    pub new: Vec<Tag>,
    /// The settings of each new member.
    pub member: TagSettings,
    /// The settings of the family, in which the new members are counted.
    pub family: TagSettings,
    /// The answer to return once all of this is written.
    pub answer: Vec<Member>,
}

impl MembersPlan {
    /// Plans how to make these members of a family. `there` has the records of those that exist,
    /// `ended` what deleted tags of these names had granted.
    ///
    /// # Errors
    /// `BadRecord` if settings, step or meaning of the family cannot be read; `UnknownTag` if the
    /// record is not a family.
    pub fn of(
        family: &TagRecord,
        members: &[Tag],
        there: Vec<TagRecord>,
        ended: &HashMap<Tag, Result<EndedTag, TagSettingsError>>,
    ) -> Result<Self, StoreErrorKind> {
        let bad = |error: &dyn ToString| StoreErrorKind::BadRecord(error.to_string());
        let settings = family.settings.as_ref().map_err(|error| bad(error))?;
        let mut counted = settings.family.ok_or(StoreErrorKind::UnknownTag)?;
        let step = family.step.map_err(|error| bad(&error))?;
        let meaning = family.meaning.clone().map_err(|error| bad(&error))?;
        let member = settings.of_member();
        let mut there: HashMap<Tag, TagRecord> =
            there.into_iter().map(|record| (record.tag.clone(), record)).collect();
        let mut plan =
            Self { new: Vec::new(), member, family: settings.clone(), answer: Vec::new() };
        for tag in members {
            let new = || NewTag {
                tag: tag.clone(),
                max_id: family.max_id,
                step,
                meaning,
                settings: plan.member.clone(),
                description: family.description.clone(),
            };
            let made = match (there.remove(tag), ended.get(tag)) {
                (Some(record), _) => Ok(record),
                (None, Some(Err(unreadable))) => Err(bad(unreadable)),
                _ if family.is_sealed() => Err(StoreErrorKind::UnknownTag),
                (None, ended) => match ended.map(|ended| ended.as_ref().map(|it| it.check(&new())))
                {
                    Some(Ok(Err(why))) => Err(StoreErrorKind::UsedBefore(why)),
                    _ if counted.members >= counted.max_members => Err(StoreErrorKind::FamilyFull),
                    _ => {
                        counted.members += 1;
                        Ok(new().into())
                    }
                },
            };
            if made
                .as_ref()
                .is_ok_and(|made: &TagRecord| made.generation() == plan.member.generation)
            {
                plan.new.push(tag.clone());
            }
            plan.answer.push((tag.clone(), made));
        }
        plan.family.family = Some(counted);
        Ok(plan)
    }
}

impl TagRecord {
    /// Whether this is a family, from which nothing is allocated.
    #[must_use]
    pub fn is_family(&self) -> bool {
        self.settings.as_ref().is_ok_and(|settings| settings.family.is_some())
    }

    /// The name of the family that made this tag; `None` if none did, or the settings cannot be
    /// read.
    #[must_use]
    pub fn made_by(&self) -> Option<Tag> {
        let is_member = self.settings.as_ref().is_ok_and(|settings| settings.member);
        is_member.then(|| Family::of(&self.tag)).flatten()
    }

    /// Fills in the family's settings where the tag has none of its own. If they cannot be read,
    /// the tag's become an error, too, because whether the tag is disabled, for example, is then
    /// unknown.
    pub(crate) fn follow_family(&mut self, family: &TagRecord) {
        if let (Ok(_), Err(error)) = (&self.settings, &family.settings) {
            self.settings = Err(error.clone());
        }
        if let (Ok(own), Ok(family)) = (&mut self.settings, &family.settings)
            && family.family.is_some()
        {
            own.enabled &= family.enabled;
            own.min_step = own.min_step.or(family.min_step);
            own.max_step = own.max_step.or(family.max_step);
            own.max_take = own.max_take.or(family.max_take);
        }
    }
}
