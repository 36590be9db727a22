//! Members of families, made once over all processes.

use std::collections::HashMap;
use std::sync::Arc;

use leaf_core::{IdRange, Tag};
use leaf_segment::admin::{Confirm, TagAdmin, TagSpec};
use leaf_segment::store::{Expected, Family, TagCursor};
use leaf_segment::{NewTag, StoreErrorKind, TagRecord, TagStore};
use leaf_shape::keys::KeyRing;
use leaf_shape::{Order, Period};

use crate::fixture::Fixture;
use crate::{create, refusal, step, tag};

/// A family in relaxed order, another in strict order whose numbers begin again.
pub(crate) fn specs() -> [(Tag, TagSpec); 2] {
    let spec = || TagSpec { family: true, max_members: Some(1000), ..TagSpec::default() };
    let relaxed = TagSpec {
        step: Some(step(10)),
        text: Some("C-{n}".into()),
        description: Some("chats".into()),
        first: Some(100),
        ..spec()
    };
    let strict = TagSpec {
        order: Some(Order::Strict),
        reset: Some(Period::Yearly),
        text: Some("{date:%Y}-{n:06}".into()),
        ..spec()
    };
    [(tag("chat's \"best\"/*"), relaxed), (tag("invoice/*"), strict)]
}

async fn make(store: &dyn TagStore, name: &Tag, spec: &TagSpec) -> NewTag {
    let family = spec.clone().record(name.clone(), &KeyRing::default()).unwrap();
    TagAdmin::new(store).create(&family).await.unwrap();
    family
}

fn member(family: &Tag, name: &str) -> Tag {
    tag(&format!("{}{name}", Family::prefix(family).unwrap()))
}

async fn made(store: &dyn TagStore, family: &Tag, names: &[Tag]) -> HashMap<Tag, TagRecord> {
    let made = store.make_members(family, names).await.unwrap();
    made.into_iter().map(|(tag, record)| (tag, record.unwrap())).collect()
}

async fn members(store: &dyn TagStore, family: &Tag) -> u32 {
    store.tag(family).await.unwrap().unwrap().settings.unwrap().family.unwrap().members
}

/// `make_members` returns the records as the store then has them, and ids are made according to
/// them.
pub(crate) async fn a_member_is_a_copy_of_its_family(f: Fixture) {
    for (family, spec) in specs() {
        let new = make(&*f.store, &family, &spec).await;
        let (a, b, own) = (member(&family, "a"), member(&family, "b"), member(&family, "own"));
        create(&*f.store, own.as_str(), 7).await;

        let names = [a.clone(), own.clone(), b.clone()];
        let records = made(&*f.store, &family, &names).await;
        assert_eq!(members(&*f.store, &family).await, 2);
        assert_eq!(made(&*f.another().await, &family, &names).await, records, "they are there");
        assert_eq!(members(&*f.store, &family).await, 2);
        for name in &names {
            let stored = f.store.tag(name).await.unwrap();
            assert_eq!(stored.as_ref(), records.get(name), "{name}");
        }
        let (record, other) = (&records[&a], &records[&own]);
        assert_eq!((other.made_by(), other.step), (None, Ok(step(7))));
        assert_eq!(record.made_by().as_ref(), Some(&family));
        assert_eq!(record.max_id, new.max_id);
        assert_eq!((record.step, record.meaning.clone()), (Ok(new.step), Ok(new.meaning)));
        assert_eq!(record.description, new.description);
        let settings = record.settings.as_ref().unwrap();
        assert_eq!(
            (&settings.text, settings.time_zone),
            (&new.settings.text, new.settings.time_zone)
        );
        assert!(settings.generation.is_some() && settings.family.is_none());

        let expected = Expected::new(new.step, new.meaning);
        let range = f.store.allocate(&b, step(5), expected).await.unwrap();
        assert_eq!(range, IdRange::new(new.max_id, new.max_id + 5).unwrap());
    }
}

/// Sixteen tasks on several stores make the same 300 members at once, in different orders.
pub(crate) async fn makers_at_the_same_time_make_each_member_once(f: Fixture) {
    for (family, spec) in specs() {
        let new = make(&*f.store, &family, &spec).await;
        let mut makers = Vec::new();
        for maker in 0..16 {
            let store = if maker % 2 == 0 { Arc::clone(&f.store) } else { f.another().await };
            let family = family.clone();
            makers.push(tokio::spawn(async move {
                let mut names: Vec<Tag> =
                    (0..300).map(|n| member(&family, &format!("m{n}"))).collect();
                fastrand::shuffle(&mut names);
                let (mut records, mut ids) = (Vec::new(), Vec::new());
                for names in names.chunks(60) {
                    let made = loop {
                        match store.make_members(&family, names).await {
                            Ok(made) => break made,
                            Err(error) => assert!(error.retryable(), "{error}"),
                        }
                    };
                    records.extend(made.into_iter().map(|(_, record)| record.unwrap()));
                    let expected = Expected::new(new.step, new.meaning);
                    for name in &names[..4] {
                        match store.allocate(name, step(1), expected).await {
                            Ok(range) => ids.push((name.clone(), range.start())),
                            Err(error) => assert!(error.retryable(), "{error}"),
                        }
                    }
                }
                (records, ids)
            }));
        }
        let (mut generations, mut issued) = (HashMap::new(), Vec::new());
        for maker in makers {
            let (records, ids) = maker.await.unwrap();
            issued.extend(ids);
            for record in records {
                let generation = record.generation();
                let first = generations.entry(record.tag.clone()).or_insert(generation);
                assert_eq!(*first, generation, "{} was made twice", record.tag);
            }
        }
        assert_eq!((generations.len(), members(&*f.store, &family).await), (300, 300));
        let all = issued.len();
        issued.sort();
        issued.dedup();
        assert_eq!(issued.len(), all, "an id was granted twice");
    }
}

pub(crate) async fn what_a_family_may_not_is_refused(f: Fixture) {
    for (family, spec) in specs() {
        make(&*f.store, &family, &TagSpec { max_members: Some(3), ..spec.clone() }).await;
        let name = |name: &str| member(&family, name);
        let one = async |tag: &Tag| {
            let made = f.store.make_members(&family, std::slice::from_ref(tag)).await;
            made.unwrap().pop().unwrap().1.map(|record| record.tag)
        };
        assert_eq!(one(&name("a")).await, Ok(name("a")));
        assert_eq!(one(&name("b")).await, Ok(name("b")));
        let names = [name("c"), name("d"), name("a")];
        let made = f.store.make_members(&family, &names).await.unwrap();
        let made: Vec<_> = made.into_iter().map(|(_, made)| made.map(|it| it.tag)).collect();
        assert_eq!(made, [Ok(name("c")), Err(StoreErrorKind::FamilyFull), Ok(name("a"))]);
        assert_eq!(members(&*f.store, &family).await, 3);

        // One that was deleted is not made again with the same ids.
        let admin = TagAdmin::new(&*f.store);
        let expected =
            Expected::from(f.store.tag(&name("a")).await.unwrap().unwrap().step.unwrap());
        let meaning = spec.clone().record(family.clone(), &KeyRing::default()).unwrap().meaning;
        f.store.allocate(&name("a"), step(1), Expected { meaning, ..expected }).await.unwrap();
        admin.delete(&name("a"), Confirm::Yes).await.unwrap();
        let again = one(&name("a")).await;
        assert!(matches!(again, Err(StoreErrorKind::UsedBefore(_))), "{again:?}");

        admin.delete(&family, Confirm::Yes).await.unwrap();
        let gone = refusal(f.store.make_members(&family, &names)).await;
        assert_eq!(gone, StoreErrorKind::UnknownTag);
        assert!(f.store.tag(&name("b")).await.unwrap().is_some(), "members stay");

        // A tag is no family because of its name.
        let new = NewTag { max_id: 100, ..NewTag::new(family.clone(), step(10)) };
        f.store.create(&new).await.unwrap();
        let no_family = refusal(f.store.make_members(&family, &names[1..2])).await;
        assert_eq!(no_family, StoreErrorKind::UnknownTag);
    }
}

/// Lists members page by page, without tags whose names only look similar.
pub(crate) async fn members_are_listed_by_their_family(f: Fixture) {
    for (family, spec) in specs() {
        make(&*f.store, &family, &spec).await;
        let names: Vec<Tag> = (0..130).map(|n| member(&family, &format!("m{n:03}"))).collect();
        made(&*f.store, &family, &names).await;
        let prefix = Family::prefix(&family).unwrap();
        for other in [
            prefix.trim_end_matches('/').to_owned(),
            format!("{prefix}x/y"),
            prefix.to_uppercase() + "a",
        ] {
            create(&*f.store, &other, 10).await;
        }
        let (mut listed, mut place): (Vec<Tag>, Option<TagCursor>) = (Vec::new(), None);
        loop {
            let page = f.store.page(place.as_ref(), prefix, 50).await.unwrap();
            assert!(page.records.iter().all(|record| record.tag.as_str().starts_with(prefix)));
            let members = page.records.iter().filter(|it| it.made_by().as_ref() == Some(&family));
            listed.extend(members.map(|record| record.tag.clone()));
            place = page.next;
            if place.is_none() {
                break;
            }
        }
        listed.sort();
        assert_eq!(listed, names);

        let admin = TagAdmin::new(&*f.store);
        admin.delete(&family, Confirm::Yes).await.unwrap();
        let (mut deleted, mut place) = (0, None);
        loop {
            let (some, next) = admin.delete_members(&family, place.as_ref()).await.unwrap();
            deleted += some;
            place = next;
            if place.is_none() {
                break;
            }
        }
        assert_eq!(deleted, 130);
        assert!(f.store.tag(&tag(&format!("{prefix}x/y"))).await.unwrap().is_some());
    }
}
