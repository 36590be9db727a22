use super::*;
use crate::{Fence, FenceState};
use leaf_core::UnixMillis;
use proptest::prelude::*;

fn memory(ceiling: u64) -> Memory {
    Memory {
        worker: 7,
        fence: Fence {
            epoch: 3,
            ceiling: UnixMillis::new(ceiling + 600_000),
            instance: uuid::Uuid::from_u128(1),
            nonce: uuid::Uuid::from_u128(2),
            layout: "t41-w10-s12/1ms".into(),
            epoch_ms: UnixMillis::new(1_288_834_974_657),
            state: FenceState::Held,
        },
        local_ceiling: UnixMillis::new(ceiling),
        lost: false,
        origin: Origin::Own,
    }
}

fn state(ceiling: u64) -> State {
    let memory = memory(ceiling);
    State { instance: memory.fence.instance, claim: None, memory: Some(memory) }
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

    let error = StateFile::open(&path(&directory)).unwrap_err();

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
    let copied = Memory { origin: Origin::Copied, ..memory(1000) };
    assert_eq!(remembered.memory, Some(copied));
    assert_ne!(remembered.instance, memory(1000).fence.instance, "another instance");
}

#[test]
fn a_file_removed_in_use_is_noticed_at_the_next_write() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    fs::remove_file(path(&directory)).unwrap();

    let error = file.write(&state(1000)).unwrap_err();

    assert!(matches!(error, StateFileError::Replaced(_)), "{error}");
}

/// As on a shared file system without locks: the later one goes on.
#[test]
fn a_file_that_another_process_wrote_is_left_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, _) = StateFile::open(&path(&directory)).unwrap();
    file.write(&state(1000)).unwrap();
    let elsewhere = OpenOptions::new().write(true).open(path(&directory)).unwrap();
    elsewhere.write_all_at(&encode(2, "{}").unwrap(), 0).unwrap();

    let error = file.write(&state(2000)).unwrap_err();

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
            memory: Some(memory((writes + 1) * 1000)),
            place: Place { machine: None, boot: None, device: None, inode: 1 },
            instance: None,
            claim: None,
        };
        let page = encode(writes + 1, &serde_json::to_string(&record).unwrap()).unwrap();
        let at = ((writes + 1) % 2) * SLOT as u64;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&page[..cut], at).unwrap();
        if garbage {
            file.write_all_at(&[0xff; 16], at).unwrap();
        }
        drop(file);

        let (_, remembered) = StateFile::open(&path).unwrap();

        let ceiling = remembered.unwrap().memory.unwrap().local_ceiling.get();
        prop_assert!(ceiling >= writes * 1000, "went back to {ceiling}");
    }

}

/// W-10: at every byte offset.
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
    };

    (0..whole.len()).for_each(damaged);
}

#[test]
fn a_reboot_is_noticed() {
    let here =
        Place { machine: Some("m".into()), boot: Some("2".into()), device: Some(5), inode: 1 };
    let origin = |machine: &str, boot: Option<&str>, inode| {
        let (machine, boot) = (Some(machine.to_owned()), boot.map(str::to_owned));
        here.origin(&Place { machine, boot, device: Some(5), inode })
    };
    assert_eq!(here.origin(&Place { device: Some(6), ..here.clone() }), Origin::Uncertain);

    assert_eq!(origin("m", Some("2"), 1), Origin::Own);
    assert_eq!(origin("m", Some("1"), 1), Origin::Uncertain);
    assert_eq!(origin("m", None, 1), Origin::Uncertain, "written by an earlier version");
    assert_eq!(origin("m", Some("2"), 9), Origin::Copied);
    assert_eq!(origin("other", Some("2"), 1), Origin::Copied);
}

/// What 0.1.0 wrote before the file named its instance and claim.
#[test]
fn a_file_of_an_earlier_version_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(&directory);
    drop(StateFile::open(&path).unwrap());
    let fence = memory(1000).fence.encode();
    let text = format!(
        r#"{{"memory":{{"worker":7,"fence":{fence},"local_ceiling":1000,"lost":false}},"origin":{{"machine":null,"inode":1}}}}"#
    );
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&encode(1, &text).unwrap(), SLOT as u64).unwrap();
    drop(file);

    let (_, remembered) = StateFile::open(&path).unwrap();

    let memory = remembered.unwrap().memory.unwrap();
    assert_eq!((memory.worker, memory.local_ceiling.get()), (7, 1000));
}
