use super::*;
use loom::thread;

const NOW: u64 = 1000;

#[test]
fn callers_never_share_an_id_and_close_is_final() {
    loom::model(|| {
        let floor = Layout::LEAF.instant(NOW);
        let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), floor, floor, 0);
        sequencer.raise(Layout::LEAF.instant(NOW + 10));
        let sequencer = loom::sync::Arc::new(sequencer);
        let takers: Vec<_> = [NOW, NOW + 1]
            .into_iter()
            .map(|now| {
                let sequencer = loom::sync::Arc::clone(&sequencer);
                thread::spawn(move || sequencer.take_run(now, now - NOW + 1).ok())
            })
            .collect();

        let next_free = sequencer.close().unwrap();
        let runs = takers.into_iter().filter_map(|taker| taker.join().unwrap());
        let ids: Vec<_> = runs.flatten().collect();

        for (nth, id) in ids.iter().enumerate() {
            assert!(!ids[..nth].contains(id), "{ids:?}");
            assert!(Layout::LEAF.decode(*id).unwrap().timestamp < next_free);
        }
    });
}
