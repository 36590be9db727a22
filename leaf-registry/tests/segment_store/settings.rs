//! What an operator sets for one tag, and what a later version of Leaf may have written there.

use leaf_registry::Note;
use leaf_segment::store::{TagSettings, TagSettingsError};
use leaf_segment::{MemoryStore, NewTag, StoreErrorKind, TagCatalog as _};
use leaf_testkit::Edit as _;
use leaf_testkit::all_tags;

use crate::fixture::{Database, Fixture};
use crate::{create, refusal, step, tag};

pub(crate) async fn settings_are_kept_beside_the_record(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let settings = TagSettings {
        enabled: false,
        min_step: Some(step(5)),
        max_step: Some(step(500)),
        max_take: Some(step(7)),
        // A later version's setting outlives a change by this one.
        unknown: TagSettings::decode(r#"{"version":1,"order":"strict"}"#).unwrap().unknown,
        ..TagSettings::default()
    };
    let unknown = refusal(f.store.set_settings(&tag("other"), &settings)).await;
    assert_eq!(unknown, StoreErrorKind::UnknownTag);
    f.store.set_settings(&tag("orders"), &settings).await.unwrap();
    f.store.set_settings(&tag("orders"), &settings).await.unwrap();

    let record = f.another().await.tag(&tag("orders")).await.unwrap().unwrap();
    let settings = TagSettings { generation: record.generation(), ..settings };
    assert_eq!(record.settings, Ok(settings.clone()));
    let records = all_tags(&*f.store).await.unwrap();
    let of = |name: &str| {
        records.iter().find(|record| record.tag == tag(name)).unwrap().settings.clone()
    };
    assert_eq!(of("orders"), Ok(settings));
    let sample = of("leaf-segment-test").unwrap();
    assert_eq!(sample, TagSettings { generation: sample.generation, ..TagSettings::default() });

    let of_the_first = record.generation();
    f.store.remove(&tag("orders")).await.unwrap();
    create(&*f.store, "orders", 10).await;
    let record = f.store.tag(&tag("orders")).await.unwrap().unwrap();
    let settings = record.settings.clone().unwrap();
    assert_ne!(record.generation(), of_the_first, "they do not outlive the tag");
    assert_eq!(TagSettings { generation: None, ..settings }, TagSettings::default());
}

/// An unknown field is kept. Settings of a newer format version are refused, and no command
/// overwrites them.
pub(crate) async fn settings_of_a_later_version_are_not_overruled(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    f.store.set_settings(&tag("orders"), &TagSettings::default()).await.unwrap();
    let set = async |text: &str| {
        if let Database::Etcd(..) = f.database {
            f.set("orders", "settings", serde_json::from_str::<serde_json::Value>(text).unwrap())
                .await;
        } else {
            f.sql(&format!("UPDATE leaf_tag_settings SET settings = '{text}'")).await;
        }
    };
    let read = async || f.store.tag(&tag("orders")).await.unwrap().unwrap().settings;
    let admin = leaf_segment::admin::TagAdmin::new(&*f.store);
    let off = leaf_segment::admin::TagChange { enabled: Some(false), ..Default::default() };

    set(r#"{"version":1,"order":"strict"}"#).await;
    admin.change(&tag("orders"), off).await.unwrap();
    let kept = read().await.unwrap();
    assert!(!kept.enabled && kept.unknown.get("order").is_some(), "{kept:?}");

    set(r#"{"version":2,"enabled":true}"#).await;
    assert_eq!(read().await, Err(TagSettingsError::Newer("version 2".into())));
    let refused = admin.change(&tag("orders"), off).await.unwrap_err().to_string();
    assert!(refused.contains("of a later version of Leaf (version 2)"), "{refused}");
    assert!(refused.contains("upgrade"), "{refused}");
    let old = MemoryStore::with_tags([NewTag::new(tag("orders"), step(10))]);
    let refused = leaf_registry::import(&tag("orders"), &old, &*f.store, 0).await.unwrap_err();
    assert!(refused.to_string().contains("its settings are of a later version"), "{refused}");
    assert!(!old.tag(&tag("orders")).await.unwrap().unwrap().is_sealed(), "nothing is moved");
    assert_eq!(read().await, Err(TagSettingsError::Newer("version 2".into())), "still there");

    set(r#"{"version":1,"min_step":0}"#).await;
    assert!(matches!(read().await, Err(TagSettingsError::Damaged(_))));
    admin.change(&tag("orders"), off).await.unwrap();
    assert!(!read().await.unwrap().enabled, "to set them again repairs them");
}

/// G-34: a store's place among the shards is kept beside the settings of tags, but does not appear
/// as a tag. Of two writers only one succeeds.
pub(crate) async fn a_store_remembers_its_place(f: Fixture) {
    let admin = &f.open.admin;
    let tags = all_tags(&*f.store).await.unwrap().len();
    let [one, two] = [1, 2].map(|of| format!(r#"{{"version":1,"of":{of}}}"#));
    assert_eq!(admin.note(Note::Shards).await.unwrap(), None);
    assert!(
        !admin.write_note(Note::Shards, Some(&one), &two).await.unwrap(),
        "there is nothing to replace"
    );
    assert!(admin.write_note(Note::Shards, None, &one).await.unwrap());
    assert!(!admin.write_note(Note::Shards, None, &two).await.unwrap(), "somebody was faster");
    assert!(!admin.write_note(Note::Shards, Some(&two), &two).await.unwrap());
    assert_eq!(admin.note(Note::Shards).await.unwrap().as_deref(), Some(&*one));
    assert!(admin.write_note(Note::Shards, Some(&one), &two).await.unwrap());
    assert_eq!(admin.note(Note::Shards).await.unwrap().as_deref(), Some(&*two));
    // Each note has its place, and room for the longest text.
    let longest = "x".repeat(Note::LONGEST);
    assert!(admin.write_note(Note::Traffic, None, &longest).await.unwrap());
    assert_eq!(admin.note(Note::Traffic).await.unwrap().as_deref(), Some(&*longest));
    assert_eq!(admin.note(Note::Shards).await.unwrap().as_deref(), Some(&*two));
    assert_eq!(all_tags(&*f.store).await.unwrap().len(), tags);
}

/// A table that somebody made by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_settings_without_the_column_is_refused_with_the_way_out() {
    for f in [crate::sqlite().await, crate::mysql().await, crate::postgres().await] {
        f.sql("DROP TABLE leaf_tag_settings").await;
        f.sql("CREATE TABLE leaf_tag_settings (biz_tag VARCHAR(128), enabled INTEGER)").await;
        let error = all_tags(&*f.store).await.unwrap_err();
        assert_eq!(*error.kind(), StoreErrorKind::Refused, "{error}");
        let text = error.to_string();
        assert!(text.contains("correct the table, and keep its rows"), "{text}");
        let sample = leaf_core::Tag::parse("leaf-segment-test").unwrap();
        let error = f.store.set_settings(&sample, &TagSettings::default()).await.unwrap_err();
        assert!(error.to_string().contains("correct the table"), "{error}");
        // What was granted is in another table.
        let orders = leaf_core::Tag::parse("leaf-segment-test").unwrap();
        f.sql("ALTER TABLE leaf_alloc RENAME TO leaf_alloc_of_others").await;
        f.sql("CREATE TABLE leaf_alloc (biz_tag VARCHAR(128), step INTEGER)").await;
        let error = f.store.allocate(&orders, step(2000), step(2000).into()).await.unwrap_err();
        assert!(!error.to_string().contains("correct the table"), "{error}");
    }
}
