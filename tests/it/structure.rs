//! The files of the module use each other in one direction, that of the list in `src/lib.rs`.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

#[test]
fn every_file_of_the_module_uses_only_those_before_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = read_to_string(src.join("lib.rs")).expect("lib.rs can be read");
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! - `"));
    let listed: Vec<_> = items.filter_map(|item| item.split('`').next()).collect();
    let mut wrong = Vec::new();
    for path in files(&src).iter().filter(|path| !path.ends_with("lib.rs")) {
        let file = path.strip_prefix(&src).expect("it is below src");
        let file = file.to_str().expect("names are text");
        let words: Vec<_> = file.split(['/', '.']).collect();
        let code = read_to_string(path).expect("the file can be read");
        let used = later(&listed, words[0], &code, words.len() > 2);
        wrong.extend(used.iter().map(|it| format!("\n{file} uses {it}")));
    }
    let wrong = wrong.concat();
    assert_eq!(wrong, "", "uses against the list in src/lib.rs");
}

#[test]
fn use_of_a_later_file_is_found_however_it_is_written() {
    let found = |code, is_in_folder| later(&["a", "b", "c", "d"], "b", code, is_in_folder);
    assert!(found("use crate::{a::{self, d}, b::c};\nuse super::c;", true).is_empty());
    assert!(found("// crate::c\nfn f() { crate::a::f() }", false).is_empty());
    assert_eq!(
        found("use crate::{\n    a::{b, d},\n    c, d::e,\n};", false),
        ["c", "d"]
    );
    assert_eq!(found("fn f() { crate::c::f() }", true), ["c"]);
    assert_eq!(found("use super::c;", false), ["c"]);
    assert_eq!(found("use super::super::d;", true), ["d"]);
}

/// The files in a folder and in those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    let (folders, mut all): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all
}

/// What the code of `level` uses that does not come before it in the list.
fn later(listed: &[&str], level: &str, code: &str, is_in_folder: bool) -> Vec<String> {
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let above = if is_in_folder {
        "super::super::"
    } else {
        "super::"
    };
    let code = lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace(above, "crate::");
    // A file that is not listed may use nothing.
    let at = listed.iter().position(|it| *it == level).unwrap_or(0);
    let used = code.split("crate::").skip(1).flat_map(names);
    used.filter(|it| it != level && !listed[..at].contains(&it.as_str()))
        .collect()
}

/// The first name of a path, or of each path in the braces that it begins with.
fn names(path: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let (mut depth, mut paths) = (0, String::new());
    for c in path.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth < 2 => paths.push(c),
            _ => {}
        }
        if depth == 0 && !is_name(c) {
            break;
        }
    }
    let names = paths
        .split(',')
        .filter_map(|it| it.trim().split(|c| !is_name(c)).next());
    names
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}
