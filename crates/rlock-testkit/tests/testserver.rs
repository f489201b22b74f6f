//! The program that starts servers for tests in other languages.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rlock_testkit::{Client, eventually, signal};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rlock-testserver");

/// Starts it, and reads its line.
fn start(arguments: &[&str]) -> (Child, Value) {
    started(Command::new(PROGRAM).args(arguments))
}

fn started(command: &mut Command) -> (Child, Value) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut line = String::new();
    let output = program.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let addresses = serde_json::from_str(&line);
    (
        program,
        addresses.unwrap_or_else(|error| panic!("{line:?}: {error}")),
    )
}

fn ports(addresses: &Value) -> Vec<u16> {
    let servers = addresses["servers"].as_array().unwrap().iter();
    servers
        .map(|server| server["port"].as_u64().unwrap() as u16)
        .collect()
}

/// Asserts that no process and no file is left.
fn assert_nothing_is_left(addresses: &Value) {
    for server in addresses["servers"].as_array().unwrap() {
        let process = format!("/proc/{}", server["pid"]);
        eventually("the server has ended", || !Path::new(&process).exists());
        assert!(!Path::new(server["log"].as_str().unwrap()).exists());
    }
}

#[test]
fn servers_end_when_standard_input_closes() {
    let (mut program, addresses) = start(&["one", "--set", "maxclients 77", "--members", "2"]);
    assert_eq!(addresses["members"].as_array().unwrap().len(), 2);
    let server = Client::connect(ports(&addresses)[0]);
    assert_eq!(server.ask("CONFIG GET maxclients"), "[maxclients 77]");
    assert!(server.number("RLOCK.ACQUIRE k ann 1000") > 0);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert_nothing_is_left(&addresses);
}

#[test]
fn servers_end_with_a_program_that_is_terminated() {
    // Signals from a user, from a closed terminal, and from the end of a session.
    for signal in ["INT", "HUP", "TERM"] {
        let (mut program, addresses) = start(&["replica"]);
        let [master, replica] = ports(&addresses)[..] else {
            panic!("{addresses}");
        };
        assert!(Client::connect(master).ask("ROLE").starts_with("[master"));
        assert!(Client::connect(replica).ask("ROLE").starts_with("[slave"));
        signal::send(program.id(), signal);
        assert!(program.wait().unwrap().success());
        assert_nothing_is_left(&addresses);
    }
}

#[test]
fn servers_end_with_a_program_that_is_killed() {
    // Only the files stay.
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    let command = command.arg("sentinel").env("TMPDIR", directory.path());
    let (mut program, addresses) = started(command);
    let sentinel = addresses["sentinels"][0]["port"].as_u64().unwrap();
    let mut ports = ports(&addresses);
    ports.push(u16::try_from(sentinel).unwrap());
    signal::send(program.id(), "KILL");
    program.wait().unwrap();
    for port in ports {
        eventually("the server has ended", || {
            TcpStream::connect(("127.0.0.1", port)).is_err()
        });
    }
}

#[test]
fn a_program_terminated_while_it_starts_servers_leaves_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command
        .args(["one", "--members", "3"])
        .stdin(Stdio::piped());
    let mut program = command.env("TMPDIR", directory.path()).spawn().unwrap();
    let made = || std::fs::read_dir(directory.path()).unwrap().count();
    eventually("one is started", || made() > 0);
    signal::send(program.id(), "TERM");
    assert!(program.wait().unwrap().success());
    assert_eq!(made(), 0);
}

#[test]
fn a_failed_start_is_reported() {
    let failed = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), error)
    };
    let (code, error) = failed(&["one", "--set", "no-such-line yes"]);
    assert!(code == Some(1) && error.contains("no-such-line"), "{error}");
    let (code, error) = failed(&["one", "--", "no-such-program"]);
    assert!(
        code == Some(127) && error.contains("no-such-program"),
        "{error}"
    );
}

#[test]
fn clusters_and_sentinels_are_complete_when_they_are_printed() {
    let (mut cluster, addresses) = start(&["cluster", "--nodes", "3"]);
    let url = addresses["url"].as_str().unwrap();
    assert!(url.starts_with("redis+cluster://127.0.0.1:"), "{url}");
    let info = Client::connect(ports(&addresses)[2]).ask("CLUSTER INFO");
    assert!(
        info.contains("cluster_state:ok") && info.contains("cluster_size:3"),
        "{info}"
    );
    drop(cluster.stdin.take());
    assert!(cluster.wait().unwrap().success());
    assert_nothing_is_left(&addresses);
    let (mut watched, addresses) = start(&["sentinel", "--sentinels", "1"]);
    let port = addresses["sentinels"][0]["port"].as_u64().unwrap();
    let sentinel = Client::connect(u16::try_from(port).unwrap());
    let master = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
    assert_eq!(master, format!("[127.0.0.1 {}]", ports(&addresses)[0]));
    drop(watched.stdin.take());
    assert!(watched.wait().unwrap().success());
    assert_nothing_is_left(&addresses);
}

#[test]
fn a_command_runs_with_the_servers_and_its_exit_code_is_returned() {
    // The command may also end servers.
    let script = "echo $RLOCK_URL; kill -9 $(redis-cli -p $RLOCK_PORT info server | sed -n 's/^process_id:\\([0-9]*\\).*/\\1/p'); exit 7";
    let mut command = Command::new(PROGRAM);
    let command = command.args(["one", "--tls", "--", "sh", "-c", script]);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = String::new();
    let read = program.stdout.as_mut().unwrap().read_to_string(&mut output);
    read.unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(7));
    let port = output
        .trim()
        .trim_end_matches('/')
        .rsplit(':')
        .next()
        .unwrap();
    let gone = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap()));
    assert!(gone.is_err());
}
