//! The files of the module use each other in one direction, given by the list in `src/lib.rs`; `ARCHITECTURE.md`
//! shows the existing modules.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// A file or a folder of the repository.
fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The levels of the module, in the order of the list in `src/lib.rs`.
fn levels(lib: &str) -> Vec<&str> {
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! - `"));
    items.filter_map(|item| item.split('`').next()).collect()
}

#[test]
fn every_file_of_the_module_uses_only_those_before_it() {
    let src = at("src");
    let lib = read("src/lib.rs");
    let listed = levels(&lib);
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

#[test]
fn drawn_levels_match_the_module() {
    let lib = read("src/lib.rs");
    let mut levels = levels(&lib);
    levels.push("lib");
    let page = read("ARCHITECTURE.md");
    let drawn = page.split("`api` → ").nth(1).expect("levels are drawn");
    let drawn = drawn.split('.').next().unwrap_or_default();
    let drawn = drawn.split(" → ").map(|it| it.trim_matches('`'));
    let drawn: Vec<_> = std::iter::once("api").chain(drawn).collect();
    assert_eq!(drawn, levels);
    levels.sort_unstable();
    assert_eq!(modules("src"), levels);
}

#[test]
fn drawn_dependencies_match_the_crates() {
    let page = read("ARCHITECTURE.md");
    let mut drawn: Vec<_> = page
        .match_indices("` → `")
        .map(|(at, arrow)| {
            let from = page[..at].rsplit('`').next().unwrap_or_default();
            let to = page[at + arrow.len()..].split('`').next();
            (from.to_owned(), to.unwrap_or_default().to_owned())
        })
        .filter(|(from, _)| from.starts_with("rlock"))
        .collect();
    drawn.sort();
    let mut found = Vec::new();
    for name in [
        "rlock",
        "rlock-cli",
        "rlock-client",
        "rlock-core",
        "rlock-embed",
        "rlock-engine",
    ] {
        let manifest = match name {
            "rlock" => "Cargo.toml".to_owned(),
            other => format!("crates/{other}/Cargo.toml"),
        };
        let manifest = read(&manifest);
        let section = manifest.split("\n[dependencies]\n").nth(1);
        let section = section.and_then(|rest| rest.split("\n[").next());
        let names = section.unwrap_or_default().lines();
        let names = names.filter_map(|line| line.split(['.', ' ']).next());
        let own = names.filter(|it| it.starts_with("rlock"));
        found.extend(own.map(|it| (name.to_owned(), it.to_owned())));
    }
    found.sort();
    assert_eq!(drawn, found);
}

#[test]
fn names_in_a_box_are_modules_of_its_crate() {
    let page = read("ARCHITECTURE.md");
    let drawing = page.split("```text\n").nth(1).expect("there is a drawing");
    let drawing = drawing.split("```").next().unwrap_or_default();
    let lines: Vec<Vec<char>> = drawing.lines().map(|it| it.chars().collect()).collect();
    let titles = drawing.lines().next().unwrap_or_default().split("  ");
    let titles: Vec<_> = titles.map(str::trim).filter(|it| !it.is_empty()).collect();
    let (mut boxes, mut drawn) = (0, 0);
    for (row, line) in lines.iter().enumerate() {
        for (left, _) in line.iter().enumerate().filter(|(_, it)| **it == '┌') {
            let width = line[left..]
                .iter()
                .position(|it| *it == '┐')
                .expect("a corner");
            let cells = lines[row + 1..].iter().map_while(|line| {
                let cell = line.get(left + 1..left + width)?;
                (line[left] != '└').then(|| cell.iter().collect::<String>())
            });
            let cells: Vec<_> = cells.map(|it| it.trim().to_owned()).collect();
            // A box below another one has its title inside.
            let (crates, cells) = match titles.get(boxes) {
                Some(title) => (title.split(" (").next().unwrap_or_default(), &cells[..]),
                None => (cells[0].as_str(), &cells[1..]),
            };
            boxes += 1;
            let modules: Vec<_> = expanded(crates).iter().flat_map(|it| modules(it)).collect();
            for cell in cells {
                let Some((named, _)) = cell.split_once(':') else {
                    continue;
                };
                for name in named.split(", ") {
                    assert!(
                        modules.iter().any(|it| it == name),
                        "{crates} has no {name}"
                    );
                    drawn += 1;
                }
            }
        }
    }
    assert!(boxes == 4 && drawn > 15, "{boxes} boxes, {drawn} modules");
}

#[test]
fn paths_in_the_tables_exist_and_every_folder_of_the_client_is_there() {
    let page = read("ARCHITECTURE.md");
    // The rows of this section are indices of the table.
    let (before, rest) = page
        .split_once("## The data of the core")
        .expect("the section exists");
    let after = rest.split_once("\n## ").expect("a section follows").1;
    let rows = before.lines().chain(after.lines());
    let rows = rows.filter(|line| line.starts_with("| `"));
    let (mut paths, mut layers) = (0, Vec::new());
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let quoted = |cell: &str| -> Vec<String> {
            let words = cell.split('`').skip(1).step_by(2);
            words.flat_map(expanded).collect()
        };
        if cells[2].starts_with("`rlock-") {
            for (name, of) in quoted(cells[1]).into_iter().flat_map(|name| {
                let of = quoted(cells[2]).into_iter();
                of.map(move |of| (name.clone(), of))
            }) {
                assert!(
                    modules(&format!("crates/{of}")).contains(&name),
                    "{of} has no {name}"
                );
                layers.push(format!("crates/{of}/src/{name}"));
            }
        } else {
            for path in quoted(cells[1]) {
                assert!(at(&path).exists(), "there is no {path}");
                paths += 1;
            }
        }
    }
    assert!(paths > 8, "{paths} paths");
    for of in ["rlock-engine", "rlock-client"] {
        for name in modules(&format!("crates/{of}")) {
            let folder = format!("crates/{of}/src/{name}");
            assert!(
                !at(&folder).is_dir() || layers.contains(&folder),
                "{folder} is no layer"
            );
        }
    }
}

/// The files and folders at the top of a crate, by the names of their modules.
fn modules(of: &str) -> Vec<String> {
    let source = match of.starts_with("src") {
        true => at("src"),
        false => at(of).join("src"),
    };
    let entries = read_dir(source).expect("the folder can be read");
    let names = entries.map(|entry| entry.expect("the entry can be read").path());
    let names = names.map(|it| {
        it.file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// A path with alternatives in braces, each written out.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, (inside, after))) = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return vec![path.to_owned()];
    };
    let each = inside.split(',');
    each.map(|it| format!("{before}{it}{after}")).collect()
}

/// The files in a folder and in those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    let (folders, mut all): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all
}

/// The names that the code of `level` uses although they do not come before it in the list.
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
    // A file outside the list may use nothing.
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
