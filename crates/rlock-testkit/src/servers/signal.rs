//! Signals to other processes.

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal by its name, such as `STOP` or `-STOP`.
pub fn send(process: u32, name: &str) {
    let signal = match name.trim_start_matches('-') {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "QUIT" => Signal::QUIT,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        _ => panic!("no test sends SIG{name} so far"),
    };
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.expect("the number of a process");
    kill_process(process, signal).unwrap_or_else(|error| panic!("SIG{name}: {error}"));
}
