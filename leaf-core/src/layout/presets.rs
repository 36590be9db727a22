//! The layouts of Leaf and of the programs that it stands in for.

use super::{Field, Layout, Unit};
use crate::UnixMillis;

impl Layout {
    /// Leaf's layout: 41 bits of milliseconds, 10 of worker, 12 of sequence, counted from
    /// 2010-11-04T01:42:54.657Z. Good until July 2080.
    pub const LEAF: Self = Self::preset(
        [(Field::Timestamp, 41), (Field::Worker, 10), (Field::Sequence, 12)],
        Unit::Millisecond,
        1_288_834_974_657,
    );

    /// Twitter's layout: the bits and the epoch of [`Self::LEAF`], with the worker field split into
    /// 5 bits of datacenter and 5 bits of worker.
    pub const TWITTER: Self = Self { datacenter_bits: 5, ..Self::LEAF };

    /// Sonyflake's layout: 39 bits of 10 ms, 8 of sequence, 16 of machine, counted from 2014-09-01.
    /// Good until 2188.
    pub const SONYFLAKE: Self = Self::preset(
        [(Field::Timestamp, 39), (Field::Sequence, 8), (Field::Worker, 16)],
        Unit::Centisecond,
        1_409_529_600_000,
    );

    /// The layout of Baidu's uid-generator: 28 bits of seconds, 22 of worker, 13 of sequence,
    /// counted from 2016-05-19T16:00:00Z. With this epoch its timestamps ended on 2024-11-20: set a
    /// later epoch.
    pub const UID_GENERATOR: Self = Self::preset(
        [(Field::Timestamp, 28), (Field::Worker, 22), (Field::Sequence, 13)],
        Unit::Second,
        1_463_673_600_000,
    );

    /// 53 bits in all, so that JavaScript's numbers hold the ids exactly: 41 of milliseconds from
    /// Leaf's epoch, 5 of worker, 7 of sequence.
    pub const JAVASCRIPT: Self = Self::preset(
        [(Field::Timestamp, 41), (Field::Worker, 5), (Field::Sequence, 7)],
        Unit::Millisecond,
        1_288_834_974_657,
    );

    const fn preset(fields: [(Field, u32); 3], unit: Unit, epoch: u64) -> Self {
        Self { fields, datacenter_bits: 0, unit, epoch: UnixMillis::new(epoch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id, WorkerId};

    #[test]
    fn presets_take_apart_what_their_programs_put_together() {
        // The tweet in Twitter's API reference, "created_at": "Wed Oct 10 20:19:24 +0000 2018".
        let tweet = Layout::TWITTER.decode(Id::new(1_050_118_621_198_921_728).unwrap()).unwrap();
        assert_eq!(tweet.timestamp.get() / 1000, 1_539_202_764);
        // Sonyflake: elapsed 10 ms units, 8 bits of sequence, 16 of machine.
        let sony = Id::new(1234 << 24 | 5 << 16 | 0x2a2a).unwrap();
        let sony = Layout::SONYFLAKE.decode(sony).unwrap();
        assert_eq!(sony.timestamp.get(), 1_409_529_600_000 + 12_340);
        assert_eq!((sony.worker.get(), sony.sequence), (0x2a2a, 5));
        // uid-generator: seconds, worker, sequence.
        let uid = Id::new(100_000 << 35 | 77 << 13 | 8191).unwrap();
        let uid = Layout::UID_GENERATOR.decode(uid).unwrap();
        assert_eq!(uid.timestamp.get(), 1_463_673_600_000 + 100_000_000);
        assert_eq!((uid.worker.get(), uid.sequence), (77, 8191));
    }

    #[test]
    fn presets_keep_their_promises() {
        let last = Layout::JAVASCRIPT;
        let last = last.compose(last.max_tick(), last.max_worker(), last.max_sequence()).unwrap();
        assert_eq!(last.get(), (1 << 53) - 1, "Number.MAX_SAFE_INTEGER");
        assert_eq!(Layout::UID_GENERATOR.end().get(), 1_732_109_056_000);
        assert_eq!(Layout::TWITTER.datacenter_of(WorkerId::new(1023)), (31, 31));
        assert_eq!(Layout::TWITTER.worker_in(32, 0), None);
        assert_eq!(Layout::TWITTER.worker_in(0, 32), None);
        assert_eq!(Layout::LEAF.worker_in(0, 1023), Some(WorkerId::new(1023)));
        assert!(Layout::LEAF.with_datacenter_bits(10).is_err());
    }
}
