//! Finds the commit of the source and passes it to the compiler as `RLOCK_COMMIT`.
//! It takes the environment variable `RLOCK_COMMIT`, the published package,
//! or git, in this order, or else `unknown`. Two packages share this file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many digits of a hash are shown. The length of git's own short form depends on
/// the number of objects in a clone.
const DIGITS: usize = 10;

fn main() {
    println!("cargo::rerun-if-env-changed=RLOCK_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = match env::var("RLOCK_COMMIT") {
        Ok(named) if !named.is_empty() => Some(named),
        _ => packaged(&package).or_else(|| checked_out(&package)),
    };
    let commit = commit.as_deref().unwrap_or("unknown");
    println!("cargo::rustc-env=RLOCK_COMMIT={commit}");
}

/// The commit of a published package: cargo has written it into the package.
fn packaged(package: &Path) -> Option<String> {
    let noted = fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let (_, hash) = noted.split_once("\"sha1\": \"")?;
    hash.get(..DIGITS).map(str::to_owned)
}

/// The commit that git has checked out. If the source lies in a repository of
/// somebody else, that repository's commit says nothing about it.
fn checked_out(package: &Path) -> Option<String> {
    let roots = [package.to_owned(), package.join("../..")];
    let is_ours =
        |root: &&PathBuf| root.join(".git").exists() && root.join("crates/rlock-cli").exists();
    let root = roots.iter().find(is_ours)?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(root)
            .args(arguments)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Git writes these at each commit, and when the branch changes.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        let file = git(&["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(file) = file.filter(|file| file.exists()) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    git(&["rev-parse", "HEAD"])?
        .get(..DIGITS)
        .map(str::to_owned)
}
