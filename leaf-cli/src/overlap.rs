//! Whether two stores can issue the same id of a tag.

use leaf_segment::TagRecord;
use leaf_shape::{Interleave, Shape};

/// Explains why two stores can issue the same id of a tag; `None` if they cannot.
///
/// Two settings keep the ids of stores apart: remainders (`interleave:0/2` and `interleave:1/2`)
/// and slices of the range of numbers (`0/2` and `1/2`). Nothing keeps scrambled ids of one size
/// apart: they fill the same range, whatever the key is. A record that cannot be read counts as an
/// overlap.
pub(crate) fn between(one: &TagRecord, other: &TagRecord) -> Option<String> {
    let (Ok(a), Ok(b)) = (&one.meaning, &other.meaning) else {
        return Some("its meaning is not known here in one of them".into());
    };
    let (Ok(of_a), Ok(of_b)) = (&one.settings, &other.settings) else {
        return Some("its settings cannot be read in one of them".into());
    };
    match (a.shape, b.shape) {
        (Shape::Interleave(a), Shape::Interleave(b)) => match meet(a, b) {
            true => Some(format!("both issue ids of interleave:{a} and interleave:{b}")),
            false => None,
        },
        (Shape::Scramble { domain: a, .. }, Shape::Scramble { domain: b, .. }) if a == b => {
            Some(format!("both permute scramble:{a}: their ids can meet, now or after a rekey"))
        }
        _ => match (of_a.slice, of_b.slice) {
            (Some(a), Some(b)) if !a.overlaps(b) => None,
            (Some(a), Some(b)) => Some(format!(
                "slice {a} below 2^{} and slice {b} below 2^{} overlap",
                a.bits(),
                b.bits()
            )),
            _ => Some("they have neither slices nor remainders that differ".into()),
        },
    }
}

/// Whether two remainders have a number in common: x = i mod m and x = j mod n have a common
/// solution exactly if i and j are equal modulo the greatest common divisor of m and n (Chinese
/// remainder theorem). The loop is Euclid's algorithm.
fn meet(a: Interleave, b: Interleave) -> bool {
    let (mut greatest, mut rest) = (a.of(), b.of());
    while rest > 0 {
        (greatest, rest) = (rest, greatest % rest);
    }
    a.index() % greatest == b.index() % greatest
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::{Step, Tag};
    use leaf_segment::admin::TagSpec;
    use leaf_shape::keys::KeyRing;

    fn record(shape: &str, slice: Option<&str>) -> TagRecord {
        let keys = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let spec = TagSpec {
            step: Some(Step::MIN),
            shape: shape.parse().unwrap(),
            slice: slice.map(Into::into),
            ..TagSpec::default()
        };
        let keys = KeyRing::new(keys.parse().unwrap());
        spec.record(Tag::parse("orders").unwrap(), &keys).unwrap().into()
    }

    #[test]
    fn parts_that_meet_are_told() {
        let plain = |slice| record("plain", slice);
        let part = |part: &str| record(&format!("interleave:{part}"), None);
        for (one, other, meet) in [
            (plain(None), plain(None), true),
            (plain(Some("0/2")), plain(None), true),
            (plain(Some("0/2")), plain(Some("1/2")), false),
            (plain(Some("0/2")), plain(Some("1/4")), true),
            (part("0/2"), part("1/2"), false),
            (part("0/2"), part("0/2"), true),
            (part("1/4"), part("3/8"), false),
            (part("1/4"), part("5/8"), true),
            (part("0/2"), part("1/3"), true),
            (part("0/2"), plain(Some("1/2")), true),
            (record("scramble:63", None), record("scramble:63", None), true),
            (record("scramble:63", None), plain(Some("1/2")), true),
        ] {
            assert_eq!(between(&one, &other).is_some(), meet, "{one:?} {other:?}");
            assert_eq!(between(&other, &one).is_some(), meet, "{one:?} {other:?}");
        }
    }
}
