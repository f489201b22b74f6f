//! What is written for shells and for `man`.

use std::process::{Command, Stdio};

use super::program::{Running, finished, rlock_at};

/// Where no server is; none of this asks one.
const NOWHERE: &str = "redis://127.0.0.1:1/";

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = finished(rlock_at(NOWHERE).args(["completions", shell]));
        ended.assert_code(0);
        assert!(ended.stdout.contains("kill-after"), "{shell}");
    }
}

#[test]
fn bash_takes_its_completions() {
    let script = finished(rlock_at(NOWHERE).args(["completions", "bash"])).stdout;
    let ask = "COMP_WORDS=(rlock fo) COMP_CWORD=1; _rlock rlock fo rlock; echo ${COMPREPLY[@]}";
    let bash = Command::new("bash")
        .args(["-c", &format!("{script}\n{ask}")])
        .output();
    let bash = bash.unwrap();
    assert_eq!(
        String::from_utf8(bash.stdout).unwrap(),
        "force\n",
        "{:?}",
        bash.stderr
    );
}

#[test]
fn there_is_a_manual_page_for_rlock_and_for_every_command() {
    let page = finished(rlock_at(NOWHERE).arg("man"));
    page.assert_code(0);
    assert!(page.stdout.contains(".TH rlock 1") && page.stdout.contains("Exit codes"));
    for command in [
        "exec",
        "info",
        "list",
        "force",
        "top",
        "bench",
        "completions",
        "man",
    ] {
        let page = finished(rlock_at(NOWHERE).args(["man", command]));
        page.assert_code(0);
        assert!(
            page.stdout.contains(&format!(".TH rlock-{command} 1")),
            "{}",
            page.stdout
        );
    }
    finished(rlock_at(NOWHERE).args(["man", "nothing"])).assert_code(2);
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut command = rlock_at(NOWHERE);
    command.args(["completions", "zsh"]);
    let (reader, writer) = std::io::pipe().unwrap();
    command.stdout(Stdio::from(writer));
    drop(reader);
    let ended = Running::start(&mut command).finish();
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
}
