//! What is printed, and what is read: one line each.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use serde_json::{Value, json};

/// `[caller, asked, granted, releasing, released]`.
pub(crate) type Acquisition = [u64; 5];

/// Wall clock, in microseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

pub(crate) fn print(line: &Value) {
    print_all(&format!("{line}\n"));
}

pub(crate) fn event(name: &str) {
    print(&json!({ "event": name }));
}

pub(crate) fn event_at(name: &str) {
    print(&json!({ "event": name, "at": now() }));
}

pub(crate) fn finish(rows: &[Acquisition], errors: u64) {
    let lines: Vec<_> = rows.iter().map(|row| format!("{row:?}\n")).collect();
    print_all(&lines.concat());
    print(&json!({ "event": "done", "errors": errors }));
}

fn print_all(text: &str) {
    let mut out = stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = printed {
        eprintln!("contestant: printing: {error}");
        std::process::exit(1);
    }
}

/// Waits for the driver's word.
pub(crate) async fn await_line() -> anyhow::Result<()> {
    let read = tokio::task::spawn_blocking(|| stdin().lock().read_line(&mut String::new()));
    ensure!(
        read.await?? > 0,
        "standard input has ended: nobody says when to go on"
    );
    Ok(())
}
