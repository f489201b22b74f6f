//! The options of all commands: each at its limits and past them, without its required options, and in commands that do
//! not allow it.

use rlock_core::syntax::{Command, Max, Opt, Value};

use crate::arguments::{begun, nothing_changed, refused};
use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, text, words};

/// A valid value of an option, under any settings.
fn sample(option: Opt) -> &'static str {
    match option.spec().value {
        Value::None => "",
        Value::Number { .. } => "5",
        Value::Channel => "c",
        Value::Bytes => "v",
    }
}

/// The options that an option requires.
fn needed(option: Opt) -> String {
    let needs = option.spec().needs;
    needs.map_or_else(String::new, |it| with(it, sample(it)))
}

/// An option with this value, and with its required options.
fn with(option: Opt, value: &str) -> String {
    format!("{} {} {value}", needed(option), option.spec().token)
}

/// Asserts that the arguments of a command are valid, on a server without locks.
#[track_caller]
fn accepted(client: &Client, line: &str) {
    client.ask("FLUSHALL");
    let answer = client.ask(line);
    // The largest fence is too far ahead of the server's clock, which is another error.
    let is_understood = !answer.starts_with("ERR ") || answer.contains("ahead of");
    assert!(is_understood, "{line}: {answer}");
}

fn each_option() -> impl Iterator<Item = (String, Opt)> {
    let commands = Command::ALL.into_iter();
    commands.flat_map(|command| {
        command
            .options()
            .map(move |it| (begun(command).join(" "), it))
    })
}

#[test]
fn numbers_are_accepted_at_their_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    // The refusals come first, because no lock may exist after them.
    let lease_maxima = [86_400_000, 1000];
    for lease_max in lease_maxima {
        server.ask(&format!("CONFIG SET rlock.max-lease-ms {lease_max}"));
        for (begun, option) in each_option() {
            let Some((argument, min, max)) = limits(option, lease_max) else {
                continue;
            };
            let past = [min.checked_sub(1), Some(max + 1)].into_iter().flatten();
            let past = past.map(|it| it.to_string());
            let bad = [
                "-1",
                "+5",
                "00",
                "05",
                "5.0",
                "1e3",
                "x",
                "\"\"",
                "9223372036854775808",
                "18446744073709551616",
            ];
            for bad in past.chain(bad.map(str::to_owned)) {
                let line = format!("{begun}{}", with(option, &bad));
                let parts = [argument, bad.trim_matches('"'), &max.to_string()];
                refused(&a, &words(&line), &parts);
            }
        }
    }
    nothing_changed(&server);
    for lease_max in lease_maxima {
        server.ask(&format!("CONFIG SET rlock.max-lease-ms {lease_max}"));
        for (begun, option) in each_option() {
            for bound in limits(option, lease_max).map_or(vec![], |it| vec![it.1, it.2]) {
                accepted(&a, &format!("{begun}{}", with(option, &bound.to_string())));
            }
        }
    }
}

/// How errors name the number of an option, and its limits.
fn limits(option: Opt, lease_max: u64) -> Option<(&'static str, u64, u64)> {
    let Value::Number {
        argument, min, max, ..
    } = &option.spec().value
    else {
        return None;
    };
    let max = match *max {
        Max::Of(max) => max,
        Max::LeaseMs => lease_max,
        Max::Given(other) => sample(other).parse().expect("it is a number"),
    };
    Some((argument, *min, max))
}

/// How errors name the text of an option, and its length limits in bytes.
const fn lengths(option: Opt) -> Option<(&'static str, usize, usize)> {
    match option.spec().value {
        Value::Channel => Some(("channel", 1, 512)),
        Value::Bytes => Some(("VALUE value", 0, 1024)),
        Value::None | Value::Number { .. } => None,
    }
}

#[test]
fn texts_are_accepted_at_their_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let texts = || each_option().filter_map(|(begun, it)| Some((begun, it, lengths(it)?)));
    let text = |len: usize| match len {
        0 => "\"\"".to_owned(),
        len => "c".repeat(len),
    };
    for (begun, option, (argument, min, max)) in texts() {
        for bad in [min.checked_sub(1), Some(max + 1)].into_iter().flatten() {
            let line = format!("{begun}{}", with(option, &text(bad)));
            let limits = format!("must have {min} to {max}");
            refused(&a, &words(&line), &[argument, &bad.to_string(), &limits]);
        }
    }
    nothing_changed(&server);
    for (begun, option, (_, min, max)) in texts() {
        for good in [min, max] {
            accepted(&a, &format!("{begun}{}", with(option, &text(good))));
        }
    }
}

#[test]
fn options_are_refused_if_repeated_incomplete_or_of_another_command() {
    let server = Server::start();
    let a = server.client();
    for command in Command::ALL {
        let begun = begun(command).join(" ");
        let has_options = command.options().next().is_some();
        for unknown in ["SOON", "\"\""] {
            let line = format!("{begun} {unknown}");
            refused(&a, &words(&line), &[]);
        }
        for option in Opt::ALL {
            let spec = option.spec();
            let whole = with(option, sample(option));
            let token = spec.token;
            let refused = |options: &str, parts: &[&str]| {
                refused(&a, &words(&format!("{begun} {options}")), parts);
            };
            if !command.options().any(|it| it.spec().token == token) {
                // Without options there are too many arguments.
                let named = [token, "no option"];
                refused(
                    &format!("{token} 5"),
                    if has_options { &named } else { &[] },
                );
                continue;
            }
            // Another option of the command may have the same token.
            if !command.options().any(|it| it == option) {
                continue;
            }
            let again = format!("{} {}", token.to_lowercase(), sample(option));
            refused(&format!("{whole} {again}"), &[token, "twice"]);
            if !matches!(spec.value, Value::None) {
                refused(&format!("{} {token}", needed(option)), &[token, "value"]);
            }
            if let Some(other) = spec.needs {
                let alone = format!("{token} {}", sample(option));
                refused(&alone, &[token, "needs", other.spec().token]);
            }
            if let Some(other) = spec.excludes {
                let both = [
                    format!("{whole} {}", with(other, sample(other))),
                    format!("{} {whole}", with(other, sample(other))),
                ];
                for both in both {
                    let named = format!(" {}", other.spec().token);
                    refused(&both, &[token, &named, "cannot"]);
                }
            }
        }
    }
    nothing_changed(&server);
    for (begun, option) in each_option() {
        let whole = with(option, sample(option));
        accepted(&a, &format!("{begun}{whole}"));
        accepted(&a, &format!("{begun}{}", whole.to_lowercase()));
    }
}

#[test]
fn options_that_report_to_a_connection_require_one() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let before = server.hash("k");
    let script = "return redis.pcall(unpack(ARGV))";
    let a = server.client();
    for (option, named) in [
        ("NOTIFY c", "NOTIFY"),
        ("SNOTIFY c", "SNOTIFY"),
        ("WAIT 0 SNOTIFY c", "SNOTIFY"),
        ("WAIT 0 KEEP 5 SNOTIFY c", "SNOTIFY"),
        ("BIND 0", "BIND"),
    ] {
        let mut lines = vec![
            format!("RLOCK.ACQUIRE free o 60000 {option}"),
            format!("RLOCK.ACQUIRE k owner-a 60000 {option}"),
            format!("RLOCK.ACQUIRE k o 60000 {option}"),
        ];
        if named != "BIND" {
            lines.push(format!("RLOCK.MACQUIRE o 60000 2 free k {option}"));
        }
        if !option.starts_with("WAIT") {
            lines.push(format!("RLOCK.RENEW k owner-a 70000 {option}"));
        }
        if !option.starts_with("WAIT") && named != "BIND" {
            lines.push(format!("RLOCK.MRENEW owner-a 70000 2 free k {option}"));
        }
        for line in lines {
            let answer = text(&a.call(&[&["EVAL", script, "0"][..], &words(&line)].concat()));
            let is_clear = answer.contains(named) && answer.contains("script");
            assert!(answer.starts_with("ERR ") && is_clear, "{line}: {answer}");
        }
    }
    assert_eq!(server.hash("k"), before);
    assert_eq!(server.ask("DBSIZE"), "1");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.counter("watches"), 0);
    drop(contest);
}

#[test]
fn options_in_multi_apply_to_its_connection() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut subscriber =
        rlock_testkit::client::Subscriber::listen(server.port(), "SSUBSCRIBE", &["c"]);
    let a = server.client();
    let in_multi = |line: &str| {
        a.ask("MULTI");
        assert_eq!(a.ask(line), "QUEUED");
        a.ask("EXEC")
    };
    assert_eq!(
        in_multi("RLOCK.ACQUIRE k o 60000 WAIT 0 KEEP 60000 SNOTIFY c"),
        "[WAITING]"
    );
    // A call that cannot block has no place to keep.
    assert_eq!(
        in_multi("RLOCK.ACQUIRE k other 60000 WAIT 0 KEEP 5"),
        "[nil]"
    );
    assert_eq!(server.queued("k"), 2);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    let fence = contest.assert_handed_over();
    let target = fence + 5_000_000;
    let renew = format!("RLOCK.RENEW k owner-b 60000 FENCE {target}");
    assert_eq!(in_multi(&renew), format!("[{target}]"));
    let renew = format!("{renew} BIND 60000 SNOTIFY c");
    assert_eq!(in_multi(&renew), format!("[{target}]"));
    assert_eq!(server.counter("bound_holds"), 1);
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(subscriber.message().starts_with("grant "));
    assert!(in_multi("RLOCK.ACQUIRE k o 60000 REENTER") != "[nil]");
    assert_eq!(server.hash("k")["o"], "2");
}

#[test]
fn each_awaited_key_takes_a_place() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.max-waiters 2");
    let a = server.client();
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    for option in ["", " NOTIFY c", " KEEP 60000"] {
        let line = format!("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0{option}");
        let full = a.ask(&line);
        assert!(full.starts_with("QUEUEFULL "), "{full}");
        assert!(
            full.contains("rlock.max-waiters") && full.contains('2'),
            "{full}"
        );
    }
    for key in ["k1", "k2", "k3"] {
        assert_eq!(server.queued(key), 0);
    }
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("watches"), 0);
    let m = server.client();
    m.send("RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0");
    server.await_queued("k2", 1);
    assert_eq!(server.counter("waiters"), 2);
    let full = a.ask("RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    assert!(full.starts_with("QUEUEFULL "), "{full}");
    // A repeated request takes no more places, and an immediate grant takes none.
    let again = server.client();
    again.send("RLOCK.MACQUIRE owner-m 60000 2 k2 k1 WAIT 0");
    assert_eq!(m.answer(), "nil");
    a.number("RLOCK.MACQUIRE owner-b 60000 3 f1 f2 f3 WAIT 0");
    a.ask("RLOCK.RELEASE k1 owner-a");
    again.fence();
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn each_option_of_a_command_is_once_in_its_syntax() {
    for command in Command::ALL {
        let line = command.syntax();
        let words: Vec<_> = line.split([' ', '[', ']', '|']).collect();
        for option in Opt::ALL {
            let shown = words.iter().filter(|it| **it == option.spec().token);
            let is_its = command
                .options()
                .any(|it| it.spec().token == option.spec().token);
            assert_eq!(shown.count(), usize::from(is_its), "{option:?} in {line}");
        }
    }
}
