use super::*;
use crate::{Fence, FenceState};
use leaf_core::UnixMillis;
use proptest::prelude::*;

fn saved(ceiling: u64) -> SavedLease {
    SavedLease {
        worker: 7,
        fence: Fence {
            term: 3,
            floor: UnixMillis::new(1000),
            ceiling: UnixMillis::new(ceiling + 600_000),
            reported_at: UnixMillis::new(ceiling),
            instance: uuid::Uuid::from_u128(1),
            nonce: uuid::Uuid::from_u128(2),
            layout: "t41-w10-s12/1ms".into(),
            epoch_ms: UnixMillis::new(1_288_834_974_657),
            workers: None,
            state: FenceState::Held,
            unknown: UnknownFields::default(),
        },
        local_ceiling: UnixMillis::new(ceiling),
        lost: false,
        provenance: Provenance::Proven,
    }
}

fn state(ceiling: u64) -> State {
    let saved = saved(ceiling);
    State {
        instance: saved.fence.instance,
        pending_claim: None,
        saved_lease: Some(saved),
        unknown: UnknownFields::default(),
    }
}

fn path(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("state")
}

#[test]
fn remembers_the_last_write() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, nothing) = StateFile::open(&path(&directory)).unwrap();
    assert_eq!(nothing, None);

    for ceiling in [1000, 2000, 3000] {
        file.write(&state(ceiling)).unwrap();
    }
    drop(file);

    let (_, remembered) = StateFile::open(&path(&directory)).unwrap();
    assert_eq!(remembered, Some(state(3000)));
}

#[test]
fn a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _open = StateFile::open(&path(&directory)).unwrap();

    let second = StateFile::open(&path(&directory));

    let error = second.expect_err("two processes hold one worker id");
    assert!(matches!(error, StateFileError::Locked(_)), "{error}");
}

#[test]
fn a_copied_file_is_read_but_not_genuine() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    file.write(&state(1000)).unwrap();

    let copy = directory.path().join("copy");
    fs::copy(path(&directory), &copy).unwrap();

    let (_, remembered) = StateFile::open(&copy).unwrap();
    let remembered = remembered.unwrap();
    let copied = SavedLease { provenance: Provenance::Copied, ..saved(1000) };
    assert_eq!(remembered.saved_lease, Some(copied), "a copy is no original");
    assert_ne!(remembered.instance, saved(1000).fence.instance, "another instance");
}

#[test]
fn a_file_removed_in_use_is_noticed_at_the_next_write() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    fs::remove_file(path(&directory)).unwrap();

    let error = file.write(&state(1000)).unwrap_err();

    assert!(matches!(error, StateFileError::Replaced(_)), "{error}");
}

/// Two processes on a shared file system without locks: the one that wrote last goes on.
#[test]
fn a_file_that_another_process_wrote_is_left_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    file.write(&state(1000)).unwrap();
    let elsewhere = OpenOptions::new().write(true).open(path(&directory)).unwrap();
    elsewhere.write_all_at(&encode(2, "{}").unwrap(), 0).unwrap();

    let written = file.write(&state(2000));

    let error = written.expect_err("the other process counts on what it wrote");
    assert!(matches!(error, StateFileError::Locked(_)), "{error}");
    assert!(matches!(file.check_untouched(), Err(StateFileError::Locked(_))));
}

#[test]
fn a_write_that_failed_hides_no_other_process() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    file.write(&state(1000)).unwrap();
    let elsewhere = OpenOptions::new().write(true).open(path(&directory)).unwrap();
    let attempted = encode(2, "attempted").unwrap();
    file.failed = Some((0, attempted));

    // Written and not synced, half written, not written: all are this process's own.
    for left_behind in [attempted, [0; SLOT]] {
        elsewhere.write_all_at(&left_behind, 0).unwrap();
        assert!(file.check_untouched().is_ok());
    }
    elsewhere.write_all_at(&encode(2, "another's").unwrap(), 0).unwrap();

    assert!(matches!(file.write(&state(2000)), Err(StateFileError::Locked(_))));
}

#[test]
fn an_unwritable_place_is_named() {
    let error = StateFile::open(Path::new("/proc/leaf-state")).unwrap_err();

    assert!(error.to_string().starts_with("create /proc/leaf-state: "), "{error}");
}

#[test]
fn a_fifo_is_refused_instead_of_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(path(&directory)).status();
    assert!(made.unwrap().success());

    let error = StateFile::open(&path(&directory)).unwrap_err();

    assert!(error.to_string().ends_with("not a regular file"), "{error}");
}

#[test]
fn leaves_no_draft_behind() {
    let directory = tempfile::tempdir().unwrap();
    let _open = StateFile::open(&path(&directory)).unwrap();

    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A torn write is one that wrote any prefix of its page, or garbage.
    #[test]
    fn a_torn_write_leaves_the_memory_before_it(
        writes in 1u64..6,
        cut in 0usize..SLOT,
        garbage in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = path(&directory);
        let (mut file, _) = StateFile::open(&path).unwrap();
        for write in 1..=writes {
            file.write(&state(write * 1000)).unwrap();
        }
        drop(file);
        let record = Record {
            version: FORMAT_VERSION,
            instance: uuid::Uuid::from_u128(1),
            saved_lease: Some(saved((writes + 1) * 1000)),
            pending_claim: None,
            origin: Origin { machine: None, boot: None, device: None, inode: 1 },
            unknown: UnknownFields::default(),
        };
        let page = encode(writes + 1, &serde_json::to_string(&record).unwrap()).unwrap();
        let at = ((writes + 1) % 2) * SLOT as u64;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&page[..cut], at).unwrap();
        if garbage {
            file.write_all_at(&[0xff; 16], at).unwrap();
        }
        drop(file);

        let (_, remembered) = StateFile::open(&path).expect("one of the two slots is whole");

        let ceiling = remembered.unwrap().saved_lease.unwrap().local_ceiling.get();
        prop_assert!(ceiling >= writes * 1000, "went back to {ceiling}");
    }

}

/// Failure W-10 (docs/failures.md): the file is cut off at every byte offset.
#[test]
fn a_truncated_file_is_damage_never_an_older_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    let (mut file, _) = StateFile::open(&path).unwrap();
    file.write(&state(1000)).unwrap();
    file.write(&state(2000)).unwrap();
    drop(file);
    let whole = fs::read(&path).unwrap();
    let damaged = |length: usize| {
        let file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        file.write_all_at(&whole[..length], 0).unwrap();
        let opened = StateFile::open(&path);
        assert!(matches!(opened, Err(StateFileError::Damaged(_))), "{length}: {opened:?}");
        let checked = StateFile::check(&path);
        assert!(matches!(checked, Err(StateFileError::Damaged(_))), "{length}: {checked:?}");
    };

    (0..whole.len()).for_each(damaged);
}

#[test]
fn a_check_changes_nothing_and_passes_a_file_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    StateFile::check(&path).unwrap();
    assert!(!path.exists());

    let (mut file, _) = StateFile::open(&path).unwrap();
    StateFile::check(&path).unwrap();
    file.write(&state(1000)).unwrap();
    let before = fs::read(&path).unwrap();
    StateFile::check(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    file.write(&state(2000)).unwrap();
}

#[test]
fn a_reboot_is_noticed() {
    let here =
        Origin { machine: Some("m".into()), boot: Some("2".into()), device: Some(5), inode: 1 };
    let provenance = |machine: &str, boot: Option<&str>, inode| {
        let (machine, boot) = (Some(machine.to_owned()), boot.map(str::to_owned));
        here.provenance(&Origin { machine, boot, device: Some(5), inode })
    };
    assert_eq!(here.provenance(&Origin { device: Some(6), ..here.clone() }), Provenance::Uncertain);

    assert_eq!(provenance("m", Some("2"), 1), Provenance::Proven);
    assert_eq!(provenance("m", Some("1"), 1), Provenance::Uncertain);
    assert_eq!(provenance("m", None, 1), Provenance::Uncertain, "no id of the boot");
    assert_eq!(provenance("m", Some("2"), 9), Provenance::Copied);
    assert_eq!(provenance("other", Some("2"), 1), Provenance::Copied);
}

/// Replaces the newer slot of the file at `path` by `text`.
fn write_slot(path: &Path, text: &str) {
    drop(StateFile::open(path).unwrap());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&encode(1, text).unwrap(), SLOT as u64).unwrap();
}

/// The durable format: a change of this text is a change of the format.
const VERSION_1: &str = r#"{"version":1,"instance":"67e55044-10b1-426f-9247-bb680e5fe0c8","saved_lease":{"worker":7,"fence":{"term":3,"floor":1000,"ceiling":601000,"reported_at":1000,"instance":"67e55044-10b1-426f-9247-bb680e5fe0c8","nonce":"936da01f-9abd-4d9d-80c7-02af85c822a8","layout":"t41-w10-s12/1ms","epoch_ms":1288834974657,"state":"held"},"local_ceiling":1000,"lost":false},"pending_claim":null,"written_at":{"machine":null,"boot":null,"device":null,"inode":1}}"#;

#[test]
fn version_1_is_read_and_written_like_this() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    write_slot(&path, VERSION_1);

    let (_, remembered) = StateFile::open(&path).unwrap();

    let saved = remembered.unwrap().saved_lease.unwrap();
    assert_eq!((saved.worker, saved.local_ceiling.get(), saved.fence.term), (7, 1000, 3));
    let record: Record = serde_json::from_str(VERSION_1).unwrap();
    assert_eq!(serde_json::to_string(&record).unwrap(), VERSION_1);
}

#[test]
fn fields_of_a_later_version_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    let later =
        VERSION_1.replacen('{', r#"{"zone":"b","#, 1).replace(r#""term":"#, r#""lane":4,"term":"#);
    write_slot(&path, &later);

    let (mut file, remembered) = StateFile::open(&path).unwrap();
    file.write(&remembered.unwrap()).unwrap();
    drop(file);

    let (_, again) = StateFile::open(&path).unwrap();
    let again = again.unwrap();
    assert_eq!(again.unknown.get("zone"), Some(&"b".into()));
    assert_eq!(again.saved_lease.unwrap().fence.unknown.get("lane"), Some(&4.into()));
}

#[test]
fn other_versions_are_refused_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text, expected) in [
        ("newer", VERSION_1.replace(r#""version":1"#, r#""version":2"#), "update this program"),
        ("older", VERSION_1.replace(r#""version":1,"#, ""), "a version before 0.1.0 wrote it"),
    ] {
        let path = directory.path().join(name);
        write_slot(&path, &text);
        let error = StateFile::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
