//! Families of tags, as a generator makes and follows their members. Time is paused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{TestStore, open, step, tag};
use leaf_segment::admin::{Confirm, TagAdmin, TagChange, TagSpec};
use leaf_segment::{
    NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, TagCatalog as _, TagStore as _,
};
use leaf_shape::keys::KeyRing;

fn relaxed() -> TagSpec {
    TagSpec { step: Some(step(10)), family: true, ..TagSpec::default() }
}

/// A store with the family `invoice/*`.
async fn store_of(spec: TagSpec) -> Arc<TestStore> {
    let store = Arc::new(TestStore::default());
    let family = spec.record(tag("invoice/*"), &KeyRing::default()).unwrap();
    TagAdmin::new(&*store).create(&family).await.unwrap();
    store
}

async fn first(segments: &SegmentGenerator, name: &str) -> Result<i64, SegmentErrorKind> {
    let tag = segments.tag(name).await.map_err(|error| error.kind().clone())?;
    tag.next().await.map(|id| id.get()).map_err(|error| error.kind().clone())
}

#[tokio::test(start_paused = true)]
async fn a_member_is_made_by_its_first_use() {
    let store = store_of(relaxed()).await;
    let segments = open(&store).await;
    store.create(&NewTag::new(tag("invoice/own"), step(7))).await.unwrap();

    assert_eq!(first(&segments, "invoice/acme").await, Ok(1));
    assert_eq!(first(&segments, "invoice/acme").await, Ok(2));
    assert_eq!(first(&segments, "invoice/other").await, Ok(1));
    assert_eq!(first(&segments, "invoice/own").await, Ok(1));
    assert_eq!(first(&segments, "invoice/*").await, Err(SegmentErrorKind::Family));
    for none in ["invoice/", "invoice/a b", "invoice/a/b", "invoice/é", "invoice/a*", "invoices/a"]
    {
        assert_eq!(first(&segments, none).await, Err(SegmentErrorKind::UnknownTag), "{none}");
    }

    let record = store.tag(&tag("invoice/acme")).await.unwrap().unwrap();
    assert_eq!(record.made_by(), Some(tag("invoice/*")));
    let own = store.tag(&tag("invoice/own")).await.unwrap().unwrap();
    assert_eq!((own.made_by(), own.step), (None, Ok(step(7))), "the family changes no tag");
    let family = store.tag(&tag("invoice/*")).await.unwrap().unwrap();
    assert_eq!(family.settings.unwrap().family.unwrap().members, 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_has_room_for_128_characters() {
    let store = store_of(relaxed()).await;
    let segments = open(&store).await;
    let longest = format!("invoice/{}", "x".repeat(120));

    assert_eq!(first(&segments, &longest).await, Ok(1));
    let longer = first(&segments, &format!("{longest}x")).await;
    assert!(matches!(longer, Err(SegmentErrorKind::BadTag(_))), "{longer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_family_has_no_more_members_than_it_may() {
    let store = store_of(TagSpec { max_members: Some(2), ..relaxed() }).await;
    let (segments, another) = (open(&store).await, open(&store).await);
    assert_eq!(first(&segments, "invoice/a").await, Ok(1));
    assert_eq!(first(&another, "invoice/b").await, Ok(1));

    assert_eq!(first(&segments, "invoice/c").await, Err(SegmentErrorKind::FamilyFull));
    assert_eq!(first(&another, "invoice/a").await, Ok(11), "what is there is served");
    let admin = TagAdmin::new(&*store);
    let more = TagChange { max_members: Some(3), ..TagChange::default() };
    admin.change(&tag("invoice/*"), more).await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(first(&segments, "invoice/c").await, Ok(1));
}

/// A flood of new names makes at most as many members as the family allows in a second, and
/// existing members are served meanwhile.
#[tokio::test(start_paused = true)]
async fn a_flood_of_new_members_is_bounded() {
    let spec = TagSpec { members_per_second: Some(100), ..relaxed() };
    let store = store_of(spec).await;
    let segments = open(&store).await;
    assert_eq!(first(&segments, "invoice/old").await, Ok(1));

    let (mut made, begun) = (0, tokio::time::Instant::now());
    for n in 0..1000 {
        match first(&segments, &format!("invoice/{n}")).await {
            Ok(_) => made += 1,
            Err(kind) => assert_eq!(kind, SegmentErrorKind::TooManyNames),
        }
    }
    let may = 100.0 * (1.0 + begun.elapsed().as_secs_f64());
    assert!(made >= 99 && f64::from(made) <= may, "{made} of {may}");
    assert!(first(&segments, "invoice/old").await.is_ok());
    let family = store.tag(&tag("invoice/*")).await.unwrap().unwrap();
    assert_eq!(family.settings.unwrap().family.unwrap().members, made + 1);

    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(first(&segments, "invoice/999").await, Ok(1));
}

/// A change of the family holds within `refresh` for members that have no setting of their own.
#[tokio::test(start_paused = true)]
async fn members_follow_their_family() {
    let store = store_of(relaxed()).await;
    let refresh = Duration::from_secs(10);
    let config = SegmentConfig { refresh, ..SegmentConfig::default() };
    let segments = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
    let admin = TagAdmin::new(&*store);
    let (follows, own) = (tag("invoice/follows"), tag("invoice/own"));
    for name in [&follows, &own] {
        assert_eq!(first(&segments, name.as_str()).await, Ok(1));
    }
    let take = |most| TagChange { max_take: Some(Some(step(most))), ..TagChange::default() };
    admin.change(&own, take(5)).await.unwrap();
    admin.change(&tag("invoice/*"), take(3)).await.unwrap();
    tokio::time::sleep(refresh * 2).await;

    let most = async |name: &leaf_core::Tag| {
        let error = segments.tag(name.as_str()).await.unwrap().take(10).await.unwrap_err();
        match error.kind() {
            SegmentErrorKind::BadCount { most, .. } => *most,
            other => panic!("{other}"),
        }
    };
    assert_eq!((most(&follows).await, most(&own).await), (3, 5));

    let enabled = |enabled| TagChange { enabled: Some(enabled), ..TagChange::default() };
    admin.change(&tag("invoice/*"), enabled(false)).await.unwrap();
    tokio::time::sleep(refresh * 2).await;
    for name in ["invoice/follows", "invoice/own", "invoice/new"] {
        assert_eq!(first(&segments, name).await, Err(SegmentErrorKind::Disabled), "{name}");
    }
    admin.change(&tag("invoice/*"), enabled(true)).await.unwrap();
    admin.change(&own, enabled(false)).await.unwrap();
    tokio::time::sleep(refresh * 2).await;
    assert!(first(&segments, "invoice/follows").await.is_ok());
    assert_eq!(first(&segments, "invoice/own").await, Err(SegmentErrorKind::Disabled));
    assert_eq!(first(&segments, "invoice/new").await, Ok(1));
}

/// A family that is deleted makes no more; its members stay. A member that was deleted is not made
/// again with the same ids.
#[tokio::test(start_paused = true)]
async fn what_is_deleted_is_not_made_again() {
    let store = store_of(relaxed()).await;
    let segments = open(&store).await;
    let admin = TagAdmin::new(&*store);
    assert_eq!(first(&segments, "invoice/a").await, Ok(1));
    assert_eq!(first(&segments, "invoice/b").await, Ok(1));

    admin.delete(&tag("invoice/b"), Confirm::Yes).await.unwrap();
    segments.follow(&tag("invoice/b")).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(first(&segments, "invoice/b").await, Err(SegmentErrorKind::UnknownTag));

    let why = admin.delete(&tag("invoice/*"), Confirm::No).await.unwrap_err().to_string();
    assert!(why.contains("stay, as tags of their own"), "{why}");
    admin.delete(&tag("invoice/*"), Confirm::Yes).await.unwrap();
    assert_eq!(first(&segments, "invoice/a").await, Ok(2));
    assert_eq!(first(&segments, "invoice/c").await, Err(SegmentErrorKind::UnknownTag));

    // Made again, it goes on.
    let family = relaxed().record(tag("invoice/*"), &KeyRing::default()).unwrap();
    admin.create(&family).await.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(first(&segments, "invoice/c").await, Ok(1));
    assert_eq!(first(&segments, "invoice/b").await, Err(SegmentErrorKind::UnknownTag));

    let deleted = admin.delete_members(&tag("invoice/*"), None).await.unwrap();
    assert_eq!(deleted, (2, None));
}

/// Members that are requested together are made together. Two generators that request one name make
/// it once.
#[tokio::test(start_paused = true)]
async fn members_that_are_asked_for_together_are_made_together() {
    let store = store_of(relaxed()).await;
    let (a, b) = (open(&store).await, open(&store).await);
    let mut asked = Vec::new();
    for n in 0..200 {
        for segments in [a.clone(), b.clone()] {
            let name = format!("invoice/{n}");
            asked.push(tokio::spawn(async move { first(&segments, &name).await.unwrap() }));
        }
    }
    let mut ids = Vec::new();
    for asked in asked {
        ids.push(asked.await.unwrap());
    }
    assert_eq!(ids.iter().filter(|id| **id == 1).count(), 200, "each member begins once");
    assert_eq!(ids.iter().filter(|id| **id == 11).count(), 200);
    let made = store.makings.load(Ordering::SeqCst);
    assert!(made <= 8, "{made} makings of 200 members");
}

/// A failover may lose a member's record. Its handle then ends with `Changed`, and the next look-up
/// makes the member again. The handle of a tag without a family ends with `UnknownTag`.
#[tokio::test(start_paused = true)]
async fn a_member_whose_record_is_lost_is_asked_for_anew() {
    let store = store_of(relaxed()).await;
    let refresh = Duration::from_secs(10);
    let config = SegmentConfig { refresh, ..SegmentConfig::default() };
    let segments = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
    store.create(&NewTag::new(tag("orders"), step(10))).await.unwrap();
    let member = segments.tag("invoice/acme").await.unwrap();
    let plain = segments.tag("orders").await.unwrap();
    for handle in [&member, &plain] {
        handle.next().await.unwrap();
        store.inner.lose(handle.tag());
    }
    tokio::time::sleep(refresh * 2).await;
    assert_eq!(*member.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    assert_eq!(*plain.next().await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
    assert!(segments.tag("invoice/acme").await.is_ok());
    assert_eq!(first(&segments, "orders").await, Err(SegmentErrorKind::UnknownTag));

    // The same where an allocation finds out.
    let member = segments.tag("invoice/other").await.unwrap();
    store.inner.lose(member.tag());
    assert_eq!(*member.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    store.inner.lose(&tag("invoice/*"));
    assert_eq!(first(&segments, "invoice/other").await, Err(SegmentErrorKind::UnknownTag));
}

/// A family that does not answer, for example because its row is locked, does not delay the first
/// use of other tags.
#[tokio::test(start_paused = true)]
async fn a_family_that_does_not_answer_holds_no_other_tag_up() {
    let store = store_of(relaxed()).await;
    for name in 0..20 {
        store.create(&NewTag::new(tag(&format!("orders{name}")), step(10))).await.unwrap();
    }
    let segments = open(&store).await;
    store.set_making_delay(Duration::from_secs(60));
    let asking = segments.clone();
    let names = tokio::spawn(async move {
        let mut refused = 0;
        loop {
            let answer = asking.tag("invoice/acme").await.map_err(|error| error.kind().clone());
            assert!(answer.is_err(), "{answer:?}");
            refused += 1;
            if refused == 30 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    for name in 0..20 {
        let begun = tokio::time::Instant::now();
        assert!(segments.tag(&format!("orders{name}")).await.is_ok());
        assert!(begun.elapsed() <= Duration::from_millis(1100), "{:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    tokio::time::timeout(Duration::from_secs(60), names).await.unwrap().unwrap();
    store.set_making_delay(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(first(&segments, "invoice/acme").await, Ok(1));
}
