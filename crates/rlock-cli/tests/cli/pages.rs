//! Completions for shells, and manual pages.

use std::process::{Command, Stdio};

use super::program::{Running, finished, rlock_at};

/// An address without a server: these commands need none.
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
fn bash_accepts_its_completions() {
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
    assert!(page.stdout.contains(".TH rlock 1") && page.stdout.contains("EXIT STATUS"));
    for command in [
        "exec",
        "elect",
        "observe",
        "info",
        "list",
        "force",
        "top",
        "doctor",
        "bench",
        "exporter",
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

/// The lines of a manual page, without fonts.
fn manual(command: &str) -> Vec<String> {
    let page = finished(rlock_at(NOWHERE).args(["man", command])).stdout;
    let fonts = ["\\fB", "\\fI", "\\fR"];
    let page = fonts.iter().fold(page, |page, font| page.replace(font, ""));
    let page = page.replace("\\-", "-");
    page.lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[test]
fn a_manual_page_names_forms_values_defaults_variables_and_codes() {
    let page = manual("exec");
    for line in [
        "rlock exec [OPTIONS] KEY -- COMMAND [ARGS]...",
        "rlock exec [OPTIONS] KEY --shell STRING",
        "-w, --wait <DURATION>",
        "--lease <DURATION> [default: 30s]",
        "-E, --conflict-exit-code <CODE> [default: 124]",
        "--url <URL>",
        ".SH ENVIRONMENT",
        "RLOCK_URL",
        "REDIS_URL",
        "RLOCK_FENCE",
        ".SH \"EXIT STATUS\"",
        "121",
        "124",
        "128+n",
    ] {
        assert!(page.iter().any(|it| it == line), "`{line}` in {page:#?}");
    }
    let options = page.iter().position(|line| line == ".SH OPTIONS").unwrap();
    assert_eq!(page[options + 2], "-w, --wait <DURATION>");
    let top = manual("top");
    assert!(top.contains(&"rlock top [OPTIONS]".to_owned()), "{top:#?}");
}

#[test]
fn a_closed_stdout_ends_it_quietly() {
    let mut command = rlock_at(NOWHERE);
    command.args(["completions", "zsh"]);
    let (reader, writer) = std::io::pipe().unwrap();
    command.stdout(Stdio::from(writer));
    drop(reader);
    let ended = Running::start(&mut command).finish();
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
}
