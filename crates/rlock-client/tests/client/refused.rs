//! What is refused, and by which error.

use std::time::Duration;

use rlock_client::{Client, Error, Owner, Terms};

use crate::connects::Connects;
use rlock_testkit::Setup;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};

#[tokio::test]
async fn a_key_that_holds_something_else_is_no_lock() {
    let server = Server::start().await;
    let client = server.client().await;
    let _: () = server.admin().await.run("SET k v").await;
    assert!(matches!(
        client.mutex("k").lock().await,
        Err(Error::NotALock(_))
    ));
    assert!(matches!(
        client.mutex("k").info().await,
        Err(Error::NotALock(_))
    ));
}

#[tokio::test]
async fn a_full_queue_is_an_error_of_its_own() {
    let server = Server::start().await;
    let client = server.client().await;
    let _: () = server
        .admin()
        .await
        .run("CONFIG SET rlock.max-waiters 1")
        .await;
    let _guard = client.mutex("k").lock().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    server.admin().await.queued(1).await;
    assert!(matches!(
        client.mutex("k").lock().await,
        Err(Error::QueueFull(_))
    ));
    waiter.abort();
}

#[tokio::test]
async fn a_wait_that_an_operator_cancels_ends_with_an_error_of_its_own() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let (one, both, owner) = (
        client.mutex("k"),
        client.multi(["k", "free"]),
        client.owner(),
    );
    let guard = one.lock().await.unwrap();
    let others = tokio::spawn({
        let mutex = one.clone();
        async move { mutex.lock().await }
    });
    admin.queued(1).await;
    let connections = admin.lock_clients().await;
    let cancel = format!("RLOCK.CANCEL k {owner}");
    for several in [false, true] {
        let waiting = tokio::spawn({
            let (one, both, owner) = (one.clone(), both.clone(), owner.clone());
            async move {
                match several {
                    false => one.by(&owner).lock().await.err(),
                    true => both.by(&owner).lock_timeout(PATIENCE).await.err(),
                }
            }
        });
        eventually("cancelled", async || {
            let found: u64 = admin.run(&cancel).await;
            found == 1
        })
        .await;
        let error = tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(error, Some(Error::Cancelled)), "{error:?}");
    }
    // Nobody else was disturbed.
    assert_eq!(admin.lock_clients().await, connections);
    admin.queued(1).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, others)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.unwrap().is_valid());
}

#[tokio::test]
async fn durations_out_of_range_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = server.client().await;
    let build = |lease: Duration| Terms::new().lease(lease);
    assert!(matches!(
        build(Duration::ZERO),
        Err(Error::OutOfRange {
            argument: "lease",
            ..
        })
    ));
    assert!(matches!(
        build(Duration::MAX),
        Err(Error::OutOfRange { .. })
    ));
    // Its guard would never be valid.
    let short = build(Duration::from_millis(2)).unwrap_err().to_string();
    assert_eq!(short, "lease is 2ms, it must be from 3 ms to 30 days");
    let guard = client.mutex("k").lock().await.unwrap();
    let short = guard.extend(Duration::from_millis(2)).await;
    assert!(matches!(short, Err(Error::OutOfRange { .. })));
    guard.release().await.unwrap();
    let too_long = client.mutex("k").lock_timeout(Duration::MAX).await;
    assert!(matches!(
        too_long,
        Err(Error::OutOfRange {
            argument: "wait",
            ..
        })
    ));
    // What only this server's settings forbid is its own error.
    let month = build(Duration::from_secs(30 * 24 * 3600)).unwrap();
    let month = client.mutex("k").with(month);
    assert!(matches!(month.lock().await, Err(Error::Refused(_))));
}

/// Usually it is a variable that was not set.
#[tokio::test]
async fn an_empty_key_is_refused_for_every_kind_of_lock() {
    let server = Server::start().await;
    let client = server.client().await;
    let refused = [
        client.mutex("").lock().await.unwrap_err(),
        client.mutex("").try_lock().await.unwrap_err(),
        client.rwlock("").read().await.unwrap_err(),
        client.semaphore("", 2).acquire().await.unwrap_err(),
        client.election("").campaign("a").await.unwrap_err(),
        client.multi(["k", ""]).lock().await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(
            error.to_string(),
            "key is empty, it must be at least 1 byte"
        );
    }
    // Other programs may hold it, so it can be asked about.
    assert_eq!(client.mutex("").info().await.unwrap().queued, 0);
}

#[tokio::test]
async fn owners_are_checked() {
    for name in ["", "a b", "a\n", "rlock:x", "a\u{7f}", &"x".repeat(257)] {
        assert!(Owner::new(name).is_err(), "{name:?}");
    }
    for name in ["x", "ümlaut", &"x".repeat(256)] {
        assert!(Owner::new(name).is_ok(), "{name:?}");
    }
}

#[tokio::test]
async fn a_server_without_the_module_is_told_how_to_load_it() {
    let server = Setup::new().without_module().start_async().await;
    let error = Client::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, Error::ModuleMissing));
    assert!(error.to_string().contains("--loadmodule"), "{error}");
}

#[tokio::test]
async fn no_server_is_an_error_and_no_hang() {
    let server = Setup::new().without_module().start_async().await;
    let url = server.url();
    drop(server);
    let error = Client::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)) && error.is_transient());
    let error = Client::connect("no url").await.unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }) && !error.is_transient());
    let error = Client::connect("redis://host/name").await.unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error:?}");
}

/// A client as a user who may do no more than lock.
async fn as_locker(server: &Server, channels: &str) -> Result<Client, Error> {
    let commands = "+rlock.acquire +rlock.renew +rlock.release +rlock.cancel +rlock.info";
    let rules = format!("ACL SETUSER locker on >secret ~k {channels} -@all {commands} +subscribe");
    let _: () = server.admin().await.run(&rules).await;
    Client::connect(&format!(
        "redis://locker:secret@127.0.0.1:{}/",
        server.port()
    ))
    .await
}

#[tokio::test]
async fn a_user_needs_no_rights_but_to_the_lock_and_the_channel() {
    let server = Server::start().await;
    let client = as_locker(&server, "&rlock:client:*").await.unwrap();
    let mut admin = server.admin().await;
    let guard = client.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await.unwrap() }
    });
    admin.queued(1).await;
    // It may not have its earlier connection closed, but comes back as well.
    let waits = admin.gauge("waits").await;
    let _: u64 = admin.run("CLIENT KILL USER locker").await;
    eventually("queued again", async || admin.gauge("waits").await > waits).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
    let forced = client.mutex("k").force_release().await;
    assert!(matches!(forced, Err(Error::Denied(_))), "{forced:?}");
    let other = client.mutex("other").lock().await;
    assert!(matches!(other, Err(Error::Denied(_))), "{other:?}");
}

#[tokio::test]
async fn a_user_without_the_channel_cannot_connect() {
    let server = Server::start().await;
    let error = as_locker(&server, "resetchannels").await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
}

/// A server that has too few good replicas refuses all writes, for as long as that lasts.
#[tokio::test]
async fn a_release_outlasts_a_server_that_refuses_writes() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    let dropped = client.mutex("k2").lock().await.unwrap();
    let _: () = admin.run("CONFIG SET min-replicas-to-write 1").await;
    drop(dropped);
    let releasing = tokio::spawn(guard.release());
    eventually("both are refused", async || {
        let errors: String = admin.run("INFO errorstats").await;
        errors
            .split("errorstat_NOREPLICAS:count=")
            .nth(1)
            .and_then(|count| count.trim().lines().next()?.parse::<u64>().ok())
            .is_some_and(|count| count >= 4)
    })
    .await;
    let _: () = admin.run("CONFIG SET min-replicas-to-write 0").await;
    tokio::time::timeout(PATIENCE, releasing)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    client.flush().await.unwrap();
    admin.untouched("k").await;
    admin.untouched("k2").await;
}

#[tokio::test]
async fn what_the_server_does_not_release_is_reported_by_flush_and_close() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let _: () = admin
        .run("ACL SETUSER app on >p ~* &* +@all -rlock.mrelease")
        .await;
    let url = format!("redis://app:p@127.0.0.1:{}/", server.port());
    let client = Client::connect(&url).await.unwrap();
    let terms = Terms::new().lease(Duration::from_secs(1)).unwrap();
    let (one, several) = (
        client.mutex("a").with(terms),
        client.multi(["b", "c"]).with(terms),
    );
    // They are released one by one.
    drop(several.lock().await.unwrap());
    client.flush().await.unwrap();
    for key in ["b", "c"] {
        admin.untouched(key).await;
    }
    let _: () = admin.run("ACL SETUSER app -rlock.release").await;
    drop(one.lock().await.unwrap());
    drop(several.lock().await.unwrap());
    let error = client.flush().await.unwrap_err();
    assert!(matches!(&error, Error::NotReleased { count: 3, .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("a and 2 more were not released: not permitted: "),
        "{text}"
    );
    assert!(text.contains("+rlock.release"), "{text}");
    eventually("their leases have ended", async || {
        client.flush().await.is_ok()
    })
    .await;
    let held = client.mutex("d").lock().await.unwrap();
    // Its caller learns of it, so the background has nothing to report.
    let released = client.mutex("e").lock().await.unwrap().release().await;
    assert!(matches!(released, Err(Error::Denied(_))));
    client.flush().await.unwrap();
    let error = client.close(PATIENCE).await.unwrap_err().to_string();
    assert!(error.starts_with("d was not released: "), "{error}");
    assert_eq!(admin.run::<u64>("EXISTS d").await, 1);
    drop(held);
}

/// The server has to remember something of a hold only to tell of its loss.
#[tokio::test]
async fn a_lock_that_is_free_is_granted_when_the_server_can_remember_no_more() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let _: () = admin.run("CONFIG SET rlock.max-watches 1").await;
    let first = client.mutex("k").lock().await.unwrap();
    let second = client.mutex("k2").lock().await.unwrap();
    let third = client.mutex("k3").try_lock().await.unwrap().unwrap();
    assert!(second.is_valid() && third.is_valid());
    // Nobody could learn when it is free.
    let full = client.mutex("k").lock().await;
    assert!(matches!(full, Err(Error::QueueFull(_))), "{full:?}");
    for guard in [first, second, third] {
        guard.release().await.unwrap();
    }
    admin.untouched("k2").await;
}
