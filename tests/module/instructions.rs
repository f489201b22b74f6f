//! What an acquire and a release cost the server, in instructions, beside a string that is set and deleted.

use rlock_testkit::client::Client;
use rlock_testkit::{Counted, Server};

/// How many times `SET` and `DEL`, on Debian's Redis 7.0.15. A change that lowers them also lowers these figures.
const PLAIN: f64 = 2.12;
const BY_A_CLIENT: f64 = 2.85;
/// How much more is an error. Two builds of one commit differ by less.
const GROWTH_MAX: f64 = 1.02;

const PAIRS: usize = 2000;
/// The number of pairs that are sent at once.
const AT_ONCE: usize = 100;
const OWNER: &str = "f0cac2db-3c15-4003-80b6-7bdc48e0c2a8:1";
const CHANNEL: &str = "rlock:client:f0cac2db-3c15-4003-80b6-7bdc48e0c2a8";

/// Instructions for one pair of commands.
fn cost(counted: &Counted, pair: [&str; 2]) -> f64 {
    let client = Client::connect(counted.server().port());
    counted.instructions(PAIRS, || {
        for _ in 0..PAIRS / AT_ONCE {
            (0..AT_ONCE).for_each(|_| pair.iter().for_each(|line| client.send(line)));
            (0..2 * AT_ONCE).for_each(|_| drop(client.reply()));
        }
    })
}

#[test]
fn a_lock_costs_no_more_than_it_did() {
    let version = Server::start().info("server", "redis_version");
    let counted = Counted::start().filter(|_| version == "7.0.15");
    let Some(counted) = counted else {
        let why = "not counted: the figures are those of Redis 7.0.15 under valgrind";
        let must_count = std::env::var_os("CI").is_some() && version.starts_with("7.0.");
        assert!(!must_count, "{why}, and this is {version}");
        return println!("{why}");
    };
    let string = [format!("SET k {OWNER} NX PX 30000"), "DEL k".to_owned()];
    let plain = [
        format!("RLOCK.ACQUIRE k {OWNER} 30000"),
        format!("RLOCK.RELEASE k {OWNER}"),
    ];
    let by_client = [
        format!("RLOCK.ACQUIRE k {OWNER} 30000 WAIT 0 KEEP 10000 NOTIFY {CHANNEL}"),
        format!("RLOCK.RELEASE k {OWNER} ALL"),
    ];
    let _listening = counted.server().listen(&[CHANNEL]);
    let [string, plain, by_client] =
        [string, plain, by_client].map(|pair| cost(&counted, pair.each_ref().map(|it| &**it)));
    for (what, cost, figure) in [
        ("plain", plain, PLAIN),
        ("by a client", by_client, BY_A_CLIENT),
    ] {
        let ratio = cost / string;
        println!("{what}: {cost:.0} instructions, {ratio:.3} times {string:.0}");
        assert!(
            ratio <= figure * GROWTH_MAX,
            "{what}: {ratio:.3} instead of {figure}"
        );
    }
}
