//! The targets of a document's links.

use std::path::Path;

/// The links of a document without a target. Links to other hosts are not followed.
pub(super) fn broken(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).expect("the page can be read");
    let links = targets(&text).filter(|link| !link.contains("://"));
    let broken = links.filter(|link| !leads_somewhere(page, link));
    broken
        .map(|link| format!("{}: {link}", page.display()))
        .collect()
}

/// The text in the round brackets of `[text](target)`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.split("](").skip(1);
    starts.filter_map(|rest| Some(rest.split_once(')')?.0))
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let directory = page.parent().expect("a page is in a directory");
    let target = if path.is_empty() {
        page.to_owned()
    } else {
        directory.join(path)
    };
    if anchor.is_empty() {
        return target.exists();
    }
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    headings(&text).any(|heading| anchor_of(heading) == anchor)
}

/// The headings of a page; a `#` in a block of code is not a heading.
fn headings(text: &str) -> impl Iterator<Item = &str> {
    let outside_code = text.split("\n```").step_by(2);
    let lines = outside_code.flat_map(str::lines);
    lines.filter_map(|line| {
        line.trim_start_matches('#')
            .strip_prefix(' ')
            .filter(|_| line.starts_with('#'))
    })
}

/// The anchor of a heading: in lower case, without punctuation, with `-` for spaces.
fn anchor_of(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let letters = heading.chars().filter(kept);
    letters.collect::<String>().to_lowercase().replace(' ', "-")
}
