//! Any bytes as replies: they decode to the same frames, and are refused at the
//! same place, whether they arrive at once, byte by byte, or in other pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlock_engine::wire::resp::{Decoder, Frame, Malformed};

/// All frames of `bytes`, and why there are no more, if they come in pieces of
/// `size`.
fn decoded(bytes: &[u8], size: usize) -> (Vec<Frame>, Option<Malformed>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(size) {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(malformed) => return (frames, Some(malformed)),
            }
        }
    }
    (frames, None)
}

fuzz_target!(|bytes: &[u8]| {
    let at_once = decoded(bytes, usize::MAX);
    let piece = bytes.first().map_or(1, |byte| usize::from(byte % 7) + 2);
    for size in [1, piece] {
        let in_pieces = decoded(bytes, size);
        // NaN does not equal itself, but is written the same.
        if in_pieces != at_once {
            assert_eq!(format!("{in_pieces:?}"), format!("{at_once:?}"));
        }
    }
});
