//! Tests of [`TagAdmin`] with a [`MemoryStore`].

use super::*;
use crate::MemoryStore;
use crate::RangeSource as _;

fn step(value: i64) -> Step {
    Step::new(value).unwrap()
}

fn store() -> (MemoryStore, Tag) {
    let stock = NewTag::sample();
    let tag = stock.tag.clone();
    (MemoryStore::with_tags([stock]), tag)
}

#[tokio::test]
async fn only_what_is_named_changes() {
    let (store, tag) = store();
    let admin = TagAdmin::new(&store);
    let limits = TagChange {
        min_step: Some(Some(step(10))),
        max_step: Some(Some(step(20))),
        ..TagChange::default()
    };
    admin.change(&tag, limits).await.unwrap();
    let off = TagChange { enabled: Some(false), ..TagChange::default() };
    let record = admin.change(&tag, off).await.unwrap();
    let settings = record.settings.unwrap();
    assert_eq!((settings.min_step, settings.enabled), (Some(step(10)), false));

    let crossed = TagChange { step: Some(step(7)), min_step: Some(Some(step(21))), ..off };
    let error = admin.change(&tag, crossed).await.unwrap_err().to_string();
    assert_eq!(error, "min_step would be above max_step");
    assert_eq!(admin.read(&tag).await.unwrap().step, Ok(step(2000)), "nothing was changed");
    let free = TagChange { max_step: Some(None), ..TagChange::default() };
    assert_eq!(admin.change(&tag, free).await.unwrap().settings.unwrap().max_step, None);
}

#[tokio::test]
async fn the_next_id_never_falls_and_jumps_far_only_when_confirmed() {
    let (store, tag) = store();
    let admin = TagAdmin::new(&store);
    assert!(admin.advance(&tag, 5000, Confirm::No).await.unwrap().1);
    let before = admin.read(&tag).await.unwrap().generation();
    let (record, raised) = admin.advance(&tag, 4000, Confirm::No).await.unwrap();
    assert_eq!((record.max_id, raised), (5001, false), "what was granted cannot come back");
    assert_ne!(record.generation(), before);

    let far = FAR + 5002;
    let refused = admin.advance(&tag, far, Confirm::No).await.unwrap_err();
    assert!(matches!(refused, TagAdminError::Unconfirmed(_)), "{refused}");
    assert_eq!(admin.advance(&tag, far, Confirm::Yes).await.unwrap().0.max_id, far);
    let guarded = admin.with_failover_margin(Some(1000));
    assert!(guarded.advance(&tag, far + 500, Confirm::No).await.unwrap().1);
    let refused = guarded.advance(&tag, far + 1001, Confirm::No).await.unwrap_err().to_string();
    assert!(refused.contains("every replica"), "{refused}");
    assert!(guarded.advance(&tag, far + 1001, Confirm::Yes).await.unwrap().1);
    // A daily tag of four digits jumps by a tenth of its numbers, whatever the margin is.
    let reset = leaf_shape::Reset::new(leaf_shape::Period::Daily, leaf_shape::Zone::utc(), 4);
    let mut receipts = NewTag::strict(Tag::parse("receipts").unwrap());
    receipts.meaning.reset = reset;
    assert_eq!(receipts.own_failover_margin(), Some(1001));
    admin.create(&receipts).await.unwrap();
    let guarded = admin.with_failover_margin(Some(10_000_000));
    assert!(guarded.advance(&receipts.tag, 501, Confirm::No).await.unwrap().1);
    let refused = guarded.advance(&receipts.tag, 1101, Confirm::No).await.unwrap_err();
    assert!(refused.to_string().contains("only 1001 ids"), "{refused}");

    for bad in [-1, i64::MAX] {
        let refused = admin.advance(&tag, bad, Confirm::Yes).await.unwrap_err();
        assert!(matches!(refused, TagAdminError::Refused(_)), "{refused}");
    }
}

#[tokio::test]
async fn a_tag_is_deleted_when_confirmed_and_tells_where_to_go_on() {
    let (store, tag) = store();
    let admin = TagAdmin::new(&store);
    let refused = admin.delete(&tag, Confirm::No).await.unwrap_err();
    assert!(matches!(refused, TagAdminError::Unconfirmed(_)), "{refused}");
    let granted = store.allocate(&tag, step(2000), step(2000).into()).await.unwrap();
    let ended = admin.delete(&tag, Confirm::Yes).await.unwrap().ended.unwrap();
    assert_eq!(ended.next, granted.end());
    let gone = admin.delete(&tag, Confirm::Yes).await.unwrap_err().to_string();
    let told = format!("had granted ids below {}", granted.end());
    assert!(gone.contains("no such tag") && gone.contains(&told), "{gone}");
    let low = NewTag { max_id: granted.end() - 1, ..NewTag::sample() };
    let refused = admin.create(&low).await.unwrap_err().to_string();
    assert!(refused.contains(&told), "{refused}");
    let next = NewTag { max_id: granted.end(), ..NewTag::sample() };
    assert_eq!(admin.create(&next).await.unwrap().ended(), None);

    let long = NewTag { description: Some("x".repeat(257)), ..NewTag::sample() };
    let refused = admin.create(&long).await.unwrap_err().to_string();
    assert!(refused.contains("give at most 256"), "{refused}");
    assert!(admin.create(&NewTag { max_id: -1, ..NewTag::sample() }).await.is_err());
}

#[tokio::test]
async fn a_dry_run_refuses_and_answers_as_the_command_does_and_writes_nothing() {
    let (store, tag) = store();
    let (admin, dry) = (TagAdmin::new(&store), TagAdmin::new(&store).with_dry_run(true));
    let before = admin.read(&tag).await.unwrap();

    let change = TagChange { step: Some(step(7)), ..TagChange::default() };
    assert_eq!(dry.change(&tag, change).await.unwrap().step, Ok(step(7)));
    let crossed =
        TagChange { min_step: Some(Some(step(2))), max_step: Some(Some(step(1))), ..change };
    assert!(matches!(dry.change(&tag, crossed).await, Err(TagAdminError::Conflict(_))));
    let (advanced, raised) = dry.advance(&tag, 5000, Confirm::No).await.unwrap();
    assert_eq!((advanced.max_id, raised), (5000, true));
    let far = dry.advance(&tag, FAR + 5002, Confirm::No).await.unwrap_err();
    assert!(matches!(far, TagAdminError::Unconfirmed(_)), "{far}");
    let told = dry.delete(&tag, Confirm::Yes).await.unwrap();
    assert_eq!(told.ended.unwrap().next, before.max_id);
    assert_eq!(admin.read(&tag).await.unwrap(), before);

    let new = NewTag::new(Tag::parse("new").unwrap(), step(10));
    let (told, made) = (dry.create(&new).await.unwrap(), admin.create(&new).await.unwrap());
    assert_eq!((told.max_id, told.step, told.meaning), (made.max_id, made.step, made.meaning));
    let kind = |error| match error {
        TagAdminError::Store(error) => StoreError::kind(&error).clone(),
        other => panic!("{other}"),
    };
    assert_eq!(kind(dry.create(&new).await.unwrap_err()), StoreErrorKind::TagExists);
    admin.advance(&new.tag, 500, Confirm::No).await.unwrap();
    admin.delete(&new.tag, Confirm::Yes).await.unwrap();
    let used = kind(dry.create(&new).await.unwrap_err());
    assert!(matches!(used, StoreErrorKind::UsedBefore(_)), "{used:?}");
}

#[tokio::test]
async fn a_sealed_tag_is_left_as_it_is() {
    let (store, tag) = store();
    let admin = TagAdmin::new(&store);
    let generation = admin.read(&tag).await.unwrap().generation();
    store.seal(&tag, generation).await.unwrap();
    let change = TagChange { step: Some(step(7)), ..TagChange::default() };
    for refused in
        [admin.change(&tag, change).await.err(), admin.advance(&tag, 9000, Confirm::No).await.err()]
    {
        assert!(matches!(refused, Some(TagAdminError::Conflict(_))), "{refused:?}");
    }
}
