//! The rooms of the crate use each other in one direction only.

use std::fs;
use std::path::Path;

/// From the lowest to the highest.
const ROOMS: [&str; 4] = ["pump", "locks", "quorum", "blocking"];

#[test]
fn rooms_use_only_those_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut upwards = Vec::new();
    for (level, room) in ROOMS.iter().enumerate() {
        for entry in fs::read_dir(src.join(room)).expect("a room is a folder") {
            let path = entry.expect("a folder can be read").path();
            let text = fs::read_to_string(&path).expect("a source is text");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for above in &ROOMS[level + 1..] {
                if code.contains(&format!("crate::{above}::")) {
                    upwards.push(format!("{} uses {above}", path.display()));
                }
            }
        }
    }
    assert!(upwards.is_empty(), "{upwards:#?}");
}
