//! Fuzzes the check of HTTP/1 request heads: whatever arrives, it does not panic and takes little
//! time, and its verdict does not depend on how the network splits the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/http/heads.rs"]
mod heads;

use heads::Heads;

fuzz_target!(|bytes: &[u8]| {
    let mut whole = Heads::default();
    let verdict = whole.read(bytes);
    for piece in [1, 2, 7, 100] {
        let mut cut = Heads::default();
        let same = bytes.chunks(piece).try_for_each(|bytes| cut.read(bytes));
        assert_eq!(same, verdict, "in pieces of {piece}");
    }
});
