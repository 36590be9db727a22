use super::*;
use proptest::prelude::*;

fn tag(name: &str) -> Tag {
    Tag::parse(name).unwrap()
}

fn marks_in(text: &[u8]) -> BTreeMap<Tag, i64> {
    parse(text).unwrap().marks
}

#[tokio::test]
async fn a_restart_remembers_the_last_of_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let marks = HighWaterMarks::open(&path).unwrap();
    for mark in [10, 20, 15] {
        marks.raise(&tag("orders"), mark).await.unwrap();
    }
    marks.raise(&tag("a b é"), 7).await.unwrap();
    for (name, granted, issued) in
        [("a b é", 7, 5), ("orders", 15, 1), ("orders", 20, 30), ("other", 1, 0)]
    {
        marks.lower(&tag(name), granted, issued).await.unwrap();
    }
    drop(marks);

    let marks = HighWaterMarks::open(&path).unwrap();
    assert_eq!(marks.get(&tag("orders")), Some(20), "it does not rise by sinking");
    assert_eq!(marks.get(&tag("a b é")), Some(5));
    assert_eq!(marks.get(&tag("other")), None);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let _marks = HighWaterMarks::open(&path).unwrap();

    let error = HighWaterMarks::open(&path).unwrap_err().to_string();
    assert!(error.contains("another process uses it"), "{error}");
    HighWaterMarks::check(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_stays_small_and_whole_under_many_writers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let marks = Arc::new(HighWaterMarks::open(&path).unwrap());
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let marks = Arc::clone(&marks);
            tokio::spawn(async move {
                let name = tag(&format!("{writer}-{}", "x".repeat(100)));
                for mark in 1..=300 {
                    marks.raise(&name, mark).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 2 * SMALL, "4,800 lines of 116 bytes were written: {size}");
    drop(marks);

    let marks = HighWaterMarks::open(&path).unwrap();
    let all = marks.known().marks.clone();
    assert_eq!(all.len(), 16);
    assert!(all.values().all(|mark| *mark == 300), "{all:?}");
}

#[tokio::test]
async fn a_disk_that_refuses_is_told_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let marks = HighWaterMarks::open(&path).unwrap();
    marks.raise(&tag("orders"), 1).await.unwrap();
    // Read only: appending fails.
    marks.log.as_ref().unwrap().lock().await.file = File::open(&path).unwrap();

    let error = marks.raise(&tag("orders"), 2).await.unwrap_err().to_string();
    assert!(error.contains("segment.marks"), "{error}");
    assert_eq!(marks.get(&tag("orders")), Some(2), "it holds for this process");
    assert!(marks.trouble().is_some());

    marks.log.as_ref().unwrap().lock().await.file =
        OpenOptions::new().append(true).open(&path).unwrap();
    marks.raise(&tag("other"), 9).await.unwrap();
    assert_eq!(marks.trouble(), None);
    let written = marks_in(&std::fs::read(&path).unwrap());
    assert_eq!(written.len(), 2, "the missed one is there too");
}

/// Reads a file of version 1, and keeps a line that a later version added to it.
#[tokio::test]
async fn version_1_is_read_and_what_a_later_version_adds_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let later = with_crc("node {\"zone\":\"a\"}");
    std::fs::write(&path, format!("7a8e8e98 version 1\n{later}00000000 7 torn\n")).unwrap();

    let marks = HighWaterMarks::open(&path).unwrap();
    marks.raise(&tag("orders"), 2001).await.unwrap();
    drop(marks);
    let marks = HighWaterMarks::open(&path).unwrap();

    assert_eq!(marks.get(&tag("orders")), Some(2001));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("7a8e8e98 version 1\n{}{later}", line(&tag("orders"), 2001)));
}

#[test]
fn a_format_of_a_later_version_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("segment.marks");
    let text = with_crc("version 2") + &line(&tag("orders"), 2001);
    std::fs::write(&path, &text).unwrap();

    let refused = HighWaterMarks::open(&path).unwrap_err().to_string();

    assert!(refused.contains("format version 2") && refused.contains("update"), "{refused}");
    assert_eq!(HighWaterMarks::check(&path).unwrap_err().to_string(), refused);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

proptest! {
    /// A write that was cut at any byte loses the line it was writing, never another.
    #[test]
    fn a_torn_end_costs_its_own_line_only(
        entries in prop::collection::vec(("[a-c ]{0,4}[a-c]", 0..i64::MAX), 1..20),
        cut in 0usize..64,
    ) {
        let entries: Vec<_> = entries
            .into_iter()
            .filter_map(|(name, mark)| Some((Tag::parse(&name).ok()?, mark)))
            .collect();
        let lines: Vec<String> = entries.iter().map(|(tag, mark)| line(tag, *mark)).collect();
        let Some((last, whole)) = lines.split_last() else { return Ok(()) };
        let torn = &last[..cut.min(last.len() - 2)];

        let read = marks_in(format!("{}{torn}", whole.concat()).as_bytes());
        let expected: BTreeMap<_, _> = entries[..whole.len()].iter().cloned().collect();
        prop_assert_eq!(&read, &expected);

        // The next write begins with an empty line.
        let read = marks_in(format!("{}{torn}\n{last}", whole.concat()).as_bytes());
        prop_assert_eq!(read, entries.iter().cloned().collect::<BTreeMap<_, _>>());
    }
}
