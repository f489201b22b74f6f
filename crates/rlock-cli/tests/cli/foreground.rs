//! `exec` in a terminal.

use super::server::Asks;
use super::terminal::Terminal;
use rlock_testkit::Server;

const SCRIPT: &str = "trap 'echo interrupted' INT; trap 'exit 3' TERM; echo ready; \
     while [ -d \"$PWD\" ]; do sleep 0.01; done";

#[test]
fn an_interrupt_from_the_keyboard_reaches_the_command_once() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["exec", "k", "--", "sh", "-c", SCRIPT]);
    terminal.until_shows("ready");
    // The command could see two interrupts in a row as one, so rlock gets its
    // own interrupt only after the command has handled the first.
    terminal.signal("-STOP");
    terminal.types("\u{3}");
    terminal.until_shows("interrupted");
    terminal.signal("-CONT");
    // A second interrupt would arrive before this.
    terminal.signal("-TERM");
    assert_eq!(terminal.finish(), 3);
    assert_eq!(terminal.shows().matches("interrupted").count(), 1);
}

#[test]
fn a_signal_to_rlock_alone_reaches_the_command_too() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["exec", "k", "--", "sh", "-c", SCRIPT]);
    terminal.until_shows("ready");
    terminal.signal("-INT");
    terminal.until_shows("interrupted");
    terminal.signal("-TERM");
    assert_eq!(terminal.finish(), 3);
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let server = Server::start();
    let script = "echo ready; read line; echo got $line";
    let mut terminal = Terminal::start(&server, &["exec", "k", "--", "sh", "-c", script]);
    terminal.until_shows("ready");
    terminal.types("words\n");
    terminal.until_shows("got words");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn a_loss_ends_the_command_in_a_terminal_too() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["exec", "k", "--", "sh", "-c", SCRIPT]);
    terminal.until_shows("ready");
    let _: u64 = server.admin().run("RLOCK.FORCE k");
    assert_eq!(terminal.finish(), 121);
}

#[test]
fn an_interrupt_from_the_keyboard_ends_the_wait() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let mut terminal = Terminal::start(&server, &["exec", "k", "--", "echo", "ran"]);
    server.admin().queued(1);
    terminal.types("\u{3}");
    assert_eq!(terminal.finish(), 130);
    server.admin().queued(0);
}
