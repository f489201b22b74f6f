//! Starts servers with the module for tests in any language, and prints their addresses as one line of JSON. They end
//! when its standard input closes, and leave nothing behind. If this program is killed, they end too, but their
//! directories stay.
//!
//! `RLOCK_SERVER` names the server program (`redis-server`), `RLOCK_MODULE` the module
//! (`target/release/librlock.so`).

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;

use clap::{Args, Parser, Subcommand};
use rlock_testkit::certificates::Authority;
use rlock_testkit::cluster::Cluster;
use rlock_testkit::sentinel::{Sentinel, replica_of};
use rlock_testkit::{Server, Setup, block_on};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

#[derive(Parser)]
#[command(
    name = "rlock-testserver",
    about = "Servers with the module, until standard input closes"
)]
struct Cli {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// One server
    One(One),
    /// A master and its replica, which is in sync
    Replica,
    /// A cluster of masters with equal shares of the slots
    Cluster {
        /// The number of masters
        #[arg(long, default_value_t = 3)]
        nodes: usize,
        /// The number of replicas for each master
        #[arg(long, default_value_t = 0)]
        replicas: usize,
    },
    /// A master, its replica, and Sentinels that know the master as `locks`
    Sentinel {
        /// The number of Sentinels
        #[arg(long, default_value_t = 1)]
        sentinels: usize,
        /// The port of an existing master, instead of a new one
        #[arg(long, value_name = "PORT")]
        of: Option<u16>,
    },
}

#[derive(Args)]
struct One {
    /// A line of configuration, such as `appendonly yes`
    #[arg(long = "set", value_name = "LINE")]
    lines: Vec<String>,
    /// The arguments of the module, such as `max-waiters 10`
    #[arg(long, default_value = "")]
    module_arguments: String,
    /// A server without the module
    #[arg(long)]
    without_module: bool,
    /// Also listens with TLS on a separate port, as `localhost`
    #[arg(long)]
    tls: bool,
    /// The number of additional servers for a quorum: after a crash each grants nothing for two seconds
    #[arg(long, default_value_t = 0)]
    members: usize,
    /// Runs while the servers do, with RLOCK_URL, RLOCK_PORT, RLOCK_PID, RLOCK_MEMBERS and RLOCK_LOG in its
    /// environment, instead of waiting for standard input
    #[arg(last = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let kind = Cli::parse().kind;
    // Before any start, so that a signal that ends this program leaves nothing behind.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    kind.run(signals.expect("signals can be waited for"))
        .unwrap_or_else(|error| {
            eprintln!("rlock-testserver: {error}");
            ExitCode::FAILURE
        })
}

impl Kind {
    fn run(self, signals: Signals) -> Result<ExitCode, String> {
        match self {
            Self::One(one) => return one.run(signals),
            Self::Replica => {
                let master = started(Setup::new())?;
                let replica = block_on(replica_of(&master)).into_inner();
                replica.may_end();
                until_end(
                    signals,
                    json!({"url": master.url(), "servers": servers([&master, &replica])}),
                );
            }
            Self::Cluster { nodes, replicas } => {
                let cluster = block_on(Cluster::start(nodes, replicas));
                let url = cluster.url();
                let all = cluster.into_servers();
                all.iter().for_each(Server::may_end);
                until_end(signals, json!({"url": url, "servers": servers(&all)}));
            }
            Self::Sentinel { sentinels, of } => {
                let mut pair = Vec::new();
                if of.is_none() {
                    let master = started(Setup::new())?;
                    let replica = block_on(replica_of(&master)).into_inner();
                    replica.may_end();
                    pair.extend([master, replica]);
                }
                let master = of.unwrap_or_else(|| pair[0].port());
                let watch = |_| block_on(Sentinel::start(master, sentinels / 2 + 1, ""));
                let watching: Vec<_> = (0..sentinels).map(watch).collect();
                let urls: Vec<_> = watching.iter().map(Sentinel::url).collect();
                let url = rlock_testkit::asynchronous::together("sentinel", &urls) + "/locks";
                let sentinels = watching.iter();
                let sentinels = sentinels.map(|it| json!({"url": it.url(), "port": it.port()}));
                let sentinels: Vec<_> = sentinels.collect();
                until_end(
                    signals,
                    json!({"url": url, "servers": servers(&pair), "sentinels": sentinels}),
                );
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl One {
    fn run(self, signals: Signals) -> Result<ExitCode, String> {
        let setup = Setup::new().module_arguments(&self.module_arguments);
        let setup = self
            .lines
            .iter()
            .fold(setup, |setup, line| setup.line(line));
        let setup = if self.without_module {
            setup.without_module()
        } else {
            setup
        };
        let files = tempfile::tempdir().expect("a directory can be made");
        let (setup, authority) = if self.tls {
            let (setup, authority) = with_tls(setup, &files);
            (setup, Some(authority))
        } else {
            (setup, None)
        };
        let server = started(setup)?;
        let member = |_| started(Setup::new().module_arguments("startup-grace-ms 2000"));
        let members = (0..self.members)
            .map(member)
            .collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<_> = members.iter().map(Server::url).collect();
        if let [program, arguments @ ..] = &self.command[..] {
            let mut command = Command::new(program);
            let plain = |url: &str| url.trim_end_matches('/').to_owned();
            command
                .args(arguments)
                .env("RLOCK_URL", plain(&server.url()));
            command.env("RLOCK_PORT", server.port().to_string());
            let urls: Vec<_> = urls.iter().map(|url| plain(url)).collect();
            command.env("RLOCK_MEMBERS", urls.join(","));
            command.env("RLOCK_LOG", server.file("log"));
            command.env("RLOCK_PID", server.process_id().to_string());
            return Ok(run(command, signals));
        }
        let tls = authority.map(|authority| {
            let url = format!("rediss://localhost:{}/", server.tls_port());
            json!({"url": url, "port": server.tls_port(), "authority": authority})
        });
        let servers = servers([&server]);
        let addresses =
            json!({"url": server.url(), "servers": servers, "members": urls, "tls": tls});
        until_end(signals, addresses);
        Ok(ExitCode::SUCCESS)
    }
}

/// A server that other processes may kill by its process id.
fn started(setup: Setup) -> Result<Server, String> {
    let server = setup.try_start();
    let server = server.map_err(|log| format!("the server did not start:\n{log}"))?;
    server.may_end();
    Ok(server)
}

/// The setup of a server that also listens with TLS, and the certificate of its authority.
fn with_tls(setup: Setup, files: &tempfile::TempDir) -> (Setup, PathBuf) {
    let authority = Authority::new("the authority of this test");
    let file = files.path().join("authority.pem");
    std::fs::write(&file, &authority.pem).expect("a file can be written");
    let (certificate, key) = authority.certify("localhost").write(files.path(), "server");
    (setup.tls(&certificate, &key, &file, "no"), file)
}

fn servers<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Vec<Value> {
    let one = |server: &Server| json!({"url": server.url(), "port": server.port(), "pid": server.process_id(), "log": server.file("log")});
    servers.into_iter().map(one).collect()
}

/// Prints the addresses, and waits until standard input closes or a signal ends this program.
fn until_end(mut signals: Signals, addresses: Value) {
    println!("{addresses}");
    let (ended_sender, ended) = channel();
    std::thread::spawn({
        let ended_sender = ended_sender.clone();
        move || {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            let _ = ended_sender.send(());
        }
    });
    std::thread::spawn(move || {
        signals.wait();
        let _ = ended_sender.send(());
    });
    let _ = ended.recv();
}

/// Runs a command to its end, and returns its exit code. Signals to this program are passed on.
fn run(mut command: Command, mut signals: Signals) -> ExitCode {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = command.get_program().display();
            eprintln!("rlock-testserver: {program} cannot be started: {error}");
            // The exit code of a shell in this case.
            return ExitCode::from(127);
        }
    };
    let process = child.id();
    std::thread::spawn(move || {
        for signal in &mut signals {
            // A signal from a terminal reaches this program and the command.
            if signal == SIGTERM {
                rlock_testkit::signal::send(process, "TERM");
            } else if signal == SIGHUP {
                rlock_testkit::signal::send(process, "HUP");
            }
        }
    });
    let status = child.wait().expect("a child can be waited for");
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
