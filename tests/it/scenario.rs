//! Runs the scenario files on a real server, in real time.
//!
//! A machine may stall for longer than a scenario leaves between its steps. A run that differs from its file counts
//! only if each of its steps came in time; otherwise it says nothing, and is repeated.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use redis::Value;

use crate::client::{Client, PATIENCE, Subscriber, eventually};
use crate::rendering::{Rendering, agree};
use crate::script::{Step, steps};
use crate::server::Server;

/// How late a step may be: scenarios leave at least 40 ms around each deadline.
const LATE: Duration = Duration::from_millis(20);
const ATTEMPTS: usize = 8;

/// The commands of the module, which scenarios name without their prefix.
const OURS: [&str; 11] = [
    "ACQUIRE",
    "RENEW",
    "RELEASE",
    "CANCEL",
    "DOWNGRADE",
    "FORCE",
    "MACQUIRE",
    "MRENEW",
    "MRELEASE",
    "INFO",
    "LIST",
];

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// Runs a file until it agrees with the server, or disagrees in a run without delays.
fn holds(name: &str) {
    let path = directory().join(name).with_extension("txt");
    let script = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let steps = steps(&script).unwrap_or_else(|error| panic!("{name}.txt:{error}"));
    assert!(!steps.is_empty(), "{name} has no steps");
    for attempt in 1..=ATTEMPTS {
        let server = Server::start();
        let mut run = Run::new(&server);
        let Err(difference) = steps.iter().try_for_each(|step| run.check(step)) else {
            return;
        };
        assert!(run.late && attempt < ATTEMPTS, "{name}.txt, {difference}");
    }
}

/// One run of a scenario.
struct Run<'a> {
    server: &'a Server,
    start: Instant,
    late: bool,
    clients: BTreeMap<String, Client>,
    subscriber: Subscriber,
    rendering: Rendering,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server) -> Self {
        Self {
            server,
            subscriber: server.listen_to_unlocks(),
            clients: BTreeMap::new(),
            rendering: Rendering::default(),
            late: false,
            start: Instant::now(),
        }
    }

    /// Does what the step says, and compares what is to be seen.
    fn check(&mut self, step: &Step) -> Result<(), String> {
        let at = Duration::from_millis(step.at_ms);
        std::thread::sleep(at.saturating_sub(self.start.elapsed()));
        self.client(&step.client);
        self.note_delay(at);
        let mut seen = Vec::from_iter(self.perform(step));
        self.note_delay(at);
        let has_reply = seen.len();
        let due = Instant::now() + Duration::from_millis(500);
        let missing = step.expected.len().saturating_sub(has_reply);
        let (mut replies, mut messages) = (Vec::new(), Vec::new());
        loop {
            self.collect(&mut replies, &mut messages);
            if replies.len() + messages.len() >= missing || Instant::now() > due {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        seen.append(&mut self.outcomes(replies, &messages));
        if agree(&step.expected, &seen, has_reply) {
            return Ok(());
        }
        let (expected, seen) = (step.expected.join("\n  "), seen.join("\n  "));
        Err(format!(
            "line {}: {:?}\nexpected:\n  {expected}\nseen:\n  {seen}",
            step.line, step.command
        ))
    }

    fn note_delay(&mut self, at: Duration) {
        self.late |= self.start.elapsed() > at + LATE;
    }

    fn client(&mut self, name: &str) -> &Client {
        self.clients
            .entry(name.to_owned())
            .or_insert_with(|| self.server.client())
    }

    /// Carries out the command of a step, and gives its reply, if it has one.
    fn perform(&mut self, step: &Step) -> Option<String> {
        let mut arguments = step.command.clone();
        match arguments.first()?.as_str() {
            "CLOSE" => {
                let client = self.clients.remove(&step.client)?;
                let gone = format!("CLIENT LIST ID {}", client.id());
                client.close();
                eventually("the server sees the end of a connection", || {
                    self.server.ask(&gone).trim().is_empty()
                });
                return None;
            }
            "LISTEN" => self.subscriber.change("SUBSCRIBE", &arguments[1]),
            "UNLISTEN" => self.subscriber.change("UNSUBSCRIBE", &arguments[1]),
            "CONFIG" => arguments[2].insert_str(0, "rlock."),
            command if OURS.contains(&command) => arguments[0].insert_str(0, "RLOCK."),
            _ => {}
        }
        if arguments[0].ends_with("LISTEN") {
            return None;
        }
        self.client(&step.client)
            .send_bytes(&crate::client::request(&arguments));
        let reply = self.reply_or_block(&step.client);
        Some(reply.map_or_else(
            || "blocked".to_owned(),
            |reply| self.rendering.reply(&arguments[0], &reply),
        ))
    }

    /// The reply, or nothing once the server has the connection among the blocked ones.
    fn reply_or_block(&self, client: &str) -> Option<Value> {
        let client = &self.clients[client];
        let start = Instant::now();
        loop {
            if let Some(reply) = client.reply_within(Duration::from_millis(5)) {
                return Some(reply);
            }
            if self.server.is_blocked(client.id()) {
                return None;
            }
            assert!(start.elapsed() < PATIENCE, "neither answered nor blocked");
        }
    }

    /// Takes what has reached others since it was last asked for. What was
    /// sent in one turn may be read by one connection before another.
    fn collect(&mut self, replies: &mut Vec<(String, Value)>, messages: &mut Vec<String>) {
        self.server.ask("PING");
        let arrived = self
            .clients
            .iter()
            .filter_map(|(name, client)| Some((name.clone(), client.reply_by_now()?)));
        replies.extend(arrived);
        messages.append(&mut self.subscriber.messages());
    }

    /// What has happened to others, in words.
    fn outcomes(&mut self, mut arrived: Vec<(String, Value)>, messages: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        // Grants are told apart by their fences, so they have to be met in that order.
        arrived.sort_by_key(|(_, reply)| {
            if let Value::Int(fence) = reply {
                *fence
            } else {
                0
            }
        });
        for (name, reply) in arrived {
            lines.push(format!(
                "{name}: {}",
                self.rendering.reply("RLOCK.ACQUIRE", &reply)
            ));
        }
        for message in messages {
            lines.push(self.rendering.message(message));
        }
        lines
    }
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(#[test] fn $name() { holds(stringify!($name)); })*

        #[test]
        fn each_scenario_file_is_run() {
            let files = std::fs::read_dir(directory()).expect("there are scenarios").flatten();
            let scripts = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "txt"));
            let mut found = scripts.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect::<Vec<_>>();
            found.sort();
            assert_eq!(found, [$(stringify!($name)),*]);
        }
    };
}

scenarios! {
    acquire_and_release
    bad_arguments_change_nothing
    bound_hold_is_cut
    bound_hold_moves
    bound_hold_without_grace
    cancel_withdraws_a_request
    closed_connection_leaves_the_queue
    deadlock_across_several_locks
    deadlock_behind_an_upgrade
    deadlock_of_permits
    deadlock_of_three
    deadlock_of_two
    deadlock_through_an_upgrade
    deadlocks_may_be_left_alone
    downgrade_lets_readers_in
    exclusive_hold_covers_shared
    force_ends_all_holds
    force_ends_the_hold
    hand_off_is_first_come_first_served
    hold_of_a_foreign_client
    key_removed_by_others
    lapsed_hold_refuses_nobody
    lease_end_hands_over
    limit_is_judged_by_each_request
    list_shows_the_most_contended_first
    modes_in_one_queue
    notify_ends_with_its_connection
    notify_skips_who_cannot_be_reached
    notify_tells_of_a_grant
    notify_tells_of_a_loss
    once_is_harmless_to_repeat
    once_takes_over_its_place
    other_data_under_the_name
    owner_queues_once
    partial_release_keeps_the_queue_waiting
    permit_goes_from_hand_to_hand
    permits_are_taken_together
    readers_in_a_row_are_let_in_together
    reentry_and_counts
    reentry_keeps_permits
    renewal_moves_the_end
    second_upgrade_is_a_deadlock
    several_locks_all_or_none
    several_locks_and_other_data
    several_locks_are_withdrawn_as_one
    several_locks_by_message
    several_locks_held_in_part
    several_locks_queue_for_each
    several_locks_renewed_and_released
    several_locks_take_over_their_place
    several_locks_wait_for_leases_and_deletions
    shared_arguments_have_limits
    shared_fields_deleted_by_hand
    shared_holders_together
    shared_lease_ends_alone
    shared_lock_is_a_hash
    shared_loss_is_told_to_its_holder
    shared_ttl_is_the_longest_lease
    shared_ttl_set_by_others
    shorter_renewal_is_told
    takeover_between_call_and_channel
    takeover_keeps_the_mode
    try_never_passes_the_queue
    ttl_set_by_others
    ttl_taken_away_by_others
    upgrade_at_once_when_alone
    upgrade_that_ends_leaves_the_shared_hold
    upgrade_that_nobody_hears
    upgrade_waits_at_the_front
    upgrade_whose_shared_hold_ends
    value_set_over_a_held_lock
    wait_ends_with_nil
    waiter_that_does_not_fit_holds_up_the_rest
    writer_is_not_overtaken_by_later_readers
}
