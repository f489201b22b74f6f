//! The ways to a server: as a user, into a database, by a socket. What every
//! way has to carry, TLS too.

use rlock_client::{Client, Error, Guard};
use tokio::task::JoinHandle;

use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually};

fn wait(client: &Client) -> JoinHandle<Guard> {
    let mutex = client.mutex("k");
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

async fn granted(waiting: JoinHandle<Guard>) -> Guard {
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap()
}

/// A lock, a hand-off, and another one after the connection was killed. The
/// administrator sees the same database.
pub(crate) async fn locks_waits_and_comes_back(client: &Client, admin: &mut Admin) {
    let handoffs = admin.gauge("handoffs").await;
    let guard = client.mutex("k").lock().await.unwrap();
    let waiting = wait(client);
    admin.queued(1).await;
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    let waiting = wait(client);
    admin.queued(1).await;
    let waits = admin.gauge("waits").await;
    admin.kill_lock_clients().await;
    eventually("queued again", async || admin.gauge("waits").await > waits).await;
    assert!(guard.is_valid() && client.metrics().reconnects == 1);
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(admin.gauge("handoffs").await, handoffs + 2);
    guard.release().await.unwrap();
    admin.untouched("k").await;
}

/// A server with a socket at a path that has a space in it.
async fn with_socket() -> (Server, String) {
    let server = Server::start_locking(&[("unixsocket", "\"a socket\"")]).await;
    let path = server.file("a socket").display().to_string();
    (server, path.replace(' ', "%20"))
}

#[tokio::test]
async fn a_unix_socket_carries_locks_and_messages() {
    let (server, path) = with_socket().await;
    for scheme in ["redis+unix", "unix"] {
        let client = Client::connect(&format!("{scheme}://{path}"))
            .await
            .unwrap();
        let mut admin = server.admin().await;
        locks_waits_and_comes_back(&client, &mut admin).await;
    }
}

/// All connections have one address there, and the numbers of another server,
/// or of the same one after a restart, start again.
#[tokio::test]
async fn at_a_unix_socket_nobody_else_is_disconnected() {
    let settings = [("unixsocket", "socket")];
    let (first, second) = (
        Server::start_locking(&settings).await,
        Server::start_locking(&settings).await,
    );
    let path = first.file("path");
    let leads_to = |server: &Server| {
        let next = first.file("next");
        std::os::unix::fs::symlink(server.file("socket"), &next).unwrap();
        std::fs::rename(next, &path).unwrap();
    };
    leads_to(&first);
    let (mut admin, mut other) = (first.admin().await, second.admin().await);
    let url = format!("unix://{}", path.display());
    let client = Client::connect(&url).await.unwrap();
    let number: u64 = admin.lock_clients().await[0].parse().unwrap();
    let _: () = other.run("CONFIG RESETSTAT").await;
    let stranger = redis::Client::open(format!("unix://{}", second.file("socket").display()));
    let stranger = stranger.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..=number {
        let connected = stranger.get_multiplexed_async_connection().await;
        strangers.push(connected.unwrap());
    }
    leads_to(&second);
    admin.kill_lock_clients().await;
    let guard = client.mutex("k").lock_timeout(PATIENCE).await.unwrap();
    assert!(guard.is_some() && client.metrics().reconnects == 1);
    assert_eq!(other.calls().await.get("client|kill"), None);
    for stranger in &mut strangers {
        let _: String = redis::cmd("PING").query_async(stranger).await.unwrap();
    }
}

#[tokio::test]
async fn a_unix_socket_leads_to_the_database_and_the_user_that_are_named() {
    let (server, path) = with_socket().await;
    let mut admin = server.admin().await;
    let _: () = admin.run("ACL SETUSER ann on >se&cret ~* &* +@all").await;
    let url = format!("redis+unix://{path}?db=2&user=ann&pass=se%26cret");
    let client = Client::connect(&url).await.unwrap();
    let _: () = admin.run("SELECT 2").await;
    locks_waits_and_comes_back(&client, &mut admin).await;
    let guard = client.mutex("k").lock().await.unwrap();
    let holders: bool = admin.run("EXISTS k").await;
    assert!(holders);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_user_with_a_password_locks_and_comes_back() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let rules = "ACL SETUSER ann on >p@ss:wo/rd? ~k &rlock:client:* +@all -@admin +client";
    let _: () = admin.run(rules).await;
    let url = |user: &str| format!("redis://{user}@127.0.0.1:{}/", server.port());
    let client = Client::connect(&url("ann:p%40ss%3Awo%2Frd%3F"))
        .await
        .unwrap();
    locks_waits_and_comes_back(&client, &mut admin).await;
    let error = Client::connect(&url("ann:guessed")).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
    assert!(!error.is_transient(), "{error:?}");
    assert!(!error.to_string().contains("guessed"), "{error}");
    let address = format!(
        "cannot connect to the server: 127.0.0.1:{}: ",
        server.port()
    );
    assert!(error.to_string().starts_with(&address), "{error}");
    let _: () = admin.run("ACL SETUSER eve on nopass ~k &* +@all").await;
    let _eve = Client::connect(&url("eve:")).await.unwrap();
    let clients: String = admin.run("CLIENT LIST").await;
    assert!(clients.contains("user=eve"), "{clients}");
    let _: () = admin.run("CONFIG SET requirepass secret").await;
    let client = Client::connect(&url(":secret")).await.unwrap();
    client
        .mutex("k")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    Client::connect(&server.url()).await.unwrap_err();
}

#[tokio::test]
async fn a_database_has_locks_of_its_own() {
    let server = Server::start().await;
    let in_database = async |number: u32| {
        let url = format!("{}{number}", server.url());
        Client::connect(&url).await.unwrap()
    };
    let (third, zeroth) = (in_database(3).await, in_database(0).await);
    let mut admin = server.admin().await;
    let _: () = admin.run("SELECT 3").await;
    locks_waits_and_comes_back(&third, &mut admin).await;
    let guard = third.mutex("k").lock().await.unwrap();
    let waiting = wait(&third);
    admin.queued(1).await;
    // The same name is another lock there, and its release wakes nobody here.
    let other = zeroth.mutex("k").try_lock().await.unwrap().unwrap();
    other.release().await.unwrap();
    admin.queued(1).await;
    assert!(guard.is_valid() && !waiting.is_finished());
    guard.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    admin.untouched("k").await;
}
