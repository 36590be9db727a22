//! Ids of a tag from a custom store: here a number in a file, in a real program a row, a key or a
//! service.
//!
//!     cargo run -p leaf-segment --example own_store
//!
//! What a store must promise: a range that `allocate` returned is durable and nobody else's, for
//! ever.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::sync::{Arc, Mutex};

use leaf_core::{IdRange, Step, Tag};
use leaf_segment::store::{Expected, StoreFuture, TagGeneration};
use leaf_segment::{
    NewTag, RangeSource, SegmentConfig, SegmentGenerator, StoreError, StoreErrorKind, TagCatalog,
    TagRecord,
};

/// One tag, whose next id is in a file of eight bytes. The lock keeps the threads of this process
/// apart; a store that several processes use must do the same for them.
#[derive(Debug)]
struct FileStore {
    tag: Tag,
    step: Step,
    file: Mutex<File>,
}

impl FileStore {
    /// Replaces the next id by what `change` makes of it, and returns the one before. Durable when
    /// it returns.
    fn change(&self, change: impl FnOnce(i64) -> Option<i64>) -> std::io::Result<i64> {
        let mut file = self.file.lock().expect("no holder of this lock panics");
        file.rewind()?;
        let mut bytes = 1_i64.to_be_bytes();
        if file.metadata()?.len() > 0 {
            file.read_exact(&mut bytes)?;
        }
        let next = i64::from_be_bytes(bytes);
        if let Some(changed) = change(next) {
            file.rewind()?;
            file.write_all(&changed.to_be_bytes())?;
            file.sync_all()?;
        }
        Ok(next)
    }

    fn unavailable(error: std::io::Error) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "use the file").because(error)
    }

    fn unknown(&self, tag: &Tag) -> Result<(), StoreError> {
        let unknown = || StoreError::new(StoreErrorKind::UnknownTag, "look the tag up");
        if *tag == self.tag { Ok(()) } else { Err(unknown()) }
    }
}

impl RangeSource for FileStore {
    fn allocate<'a>(&'a self, tag: &'a Tag, amount: Step, _: Expected) -> StoreFuture<'a, IdRange> {
        Box::pin(async move {
            self.unknown(tag)?;
            let amount = i64::from(amount.get());
            let start = self.change(|next| next.checked_add(amount)).map_err(Self::unavailable)?;
            let range = start.checked_add(amount).and_then(|end| IdRange::new(start, end));
            range.ok_or_else(|| StoreError::new(StoreErrorKind::Exhausted, "allocate"))
        })
    }

    /// The file has one tag, which is never made again: every generation is the same.
    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        _: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.unknown(tag)?;
            let is_last = |next| (next == unused.end()).then_some(unused.start());
            let next = self.change(is_last).map_err(Self::unavailable)?;
            Ok(next == unused.end())
        })
    }
}

impl TagCatalog for FileStore {
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            let max_id = self.change(|_| None).map_err(Self::unavailable)?;
            let record = NewTag { max_id, ..NewTag::new(self.tag.clone(), self.step) };
            Ok(if tags.contains(&self.tag) { vec![record.into()] } else { Vec::new() })
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (tag, step) = (Tag::parse("orders")?, Step::new(1000)?);
    let file = Mutex::new(tempfile::tempfile()?);
    let store = Arc::new(FileStore { tag, step, file });
    let generator = SegmentGenerator::open(store.clone(), SegmentConfig::default()).await;

    let orders = generator.tag("orders").await?;
    assert_eq!(orders.next().await?.get(), 1);
    let many = orders.take_contiguous(100).await?;
    println!("ids {many}");
    generator.close().await;

    // What was not handed out goes back, unless another segment was being fetched just then.
    let record = store.tag(&store.tag).await?.ok_or("the tag is there")?;
    println!("the next id is {}", record.max_id);
    Ok(())
}
