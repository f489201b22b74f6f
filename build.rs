//! Finds the commit that the source is of, for the programs to tell: `RLOCK_COMMIT`
//! while they are compiled, `unknown` where nothing says it. The variable of that
//! name in the environment goes first. The command line's package has this file too.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much of a hash is shown. What git calls its short form depends on how many
/// objects a clone has.
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

/// The commit of a package from a registry, as cargo has noted it there.
fn packaged(package: &Path) -> Option<String> {
    let noted = fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let (_, hash) = noted.split_once("\"sha1\": \"")?;
    hash.get(..DIGITS).map(str::to_owned)
}

/// The commit that git has checked out here. Another repository, which has this
/// source among its own files, does not say.
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
    // What is written at a commit, and at a change of the branch.
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
