//! Fuzzes the parser of Redis commands: whatever arrives, it does not panic and takes little time,
//! and its result does not depend on how the network splits the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/resp/codec.rs"]
mod codec;

use codec::{LARGEST, Malformed, Words, increment, read};

/// The words of each command that was read, and the error that ended the reading, if there was one.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<Malformed>);

/// Reads the commands like a connection that receives `piece` bytes at a time.
fn converse(bytes: &[u8], piece: usize) -> Outcome {
    let (mut input, mut words, mut commands) = (Vec::new(), Words::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        input.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match read(&input[at..], &mut words) {
                Ok(Some(length)) => {
                    assert!(length > 0 && length <= LARGEST);
                    // The quick look sees nothing else.
                    if let Some((tag, quick)) = increment(&input[at..]) {
                        assert_eq!((quick, words.len()), (length, 2));
                        assert!(words.word(&input[at..], 0).eq_ignore_ascii_case(b"INCR"));
                        assert_eq!(words.word(&input[at..], 1), tag.as_bytes());
                    }
                    commands.push(words.of(&input[at..]).map(<[u8]>::to_vec).collect());
                    at += length;
                }
                Ok(None) => {
                    assert_eq!(increment(&input[at..]), None);
                    break;
                }
                Err(malformed) => return (commands, Some(malformed)),
            }
        }
        input.drain(..at);
        assert!(input.len() < LARGEST + piece.len());
    }
    (commands, None)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = converse(bytes, bytes.len().max(1));
    for piece in [1, 2, 7, 100] {
        assert_eq!(converse(bytes, piece), whole, "in pieces of {piece}");
    }
});
