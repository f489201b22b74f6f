//! Owners who would wait for each other.

use rlock_client::Error;

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};

#[tokio::test]
async fn a_deadlock_names_the_owners_of_the_cycle_in_their_order() {
    let server = Server::start().await;
    let client = server.client().await;
    let owners = ["ümlaut", "it's", "c"].map(|name| rlock_client::Owner::new(name).unwrap());
    let mut guards = Vec::new();
    for (owner, key) in owners.iter().zip(["a", "b", "c"]) {
        guards.push(client.mutex(key).by(owner).lock().await.unwrap());
    }
    let mut waiting = Vec::new();
    for (owner, key) in owners.iter().zip(["b", "c"]) {
        let (mutex, owner) = (client.mutex(key), owner.clone());
        waiting.push(tokio::spawn(async move { mutex.by(&owner).lock().await }));
    }
    server.admin().await.queued(2).await;
    let refused = client.mutex("a").by(&owners[2]).lock().await;
    let Err(Error::Deadlock {
        owners: cycle,
        text,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(cycle, ["c", "ümlaut", "it's"], "{text}");
    assert!(text.contains("'a'"), "it names the key: {text}");
    // The one who was refused gives way, and the others go on.
    guards.pop().unwrap().release().await.unwrap();
    let guard = waiting.pop().unwrap();
    let guard = tokio::time::timeout(PATIENCE, guard)
        .await
        .unwrap()
        .unwrap();
    drop((guard.unwrap(), guards.pop()));
    let guard = waiting.pop().unwrap();
    let guard = tokio::time::timeout(PATIENCE, guard)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.unwrap().is_valid());
    assert_eq!(server.admin().await.gauge("deadlocks").await, 1);
}

#[tokio::test]
async fn a_request_refused_as_a_deadlock_leaves_nothing() {
    let server = Server::start().await;
    let client = server.client().await;
    let (one, two) = (client.owner(), client.owner());
    let first = client.mutex("a").by(&one).lock().await.unwrap();
    let second = client.rwlock("b").by(&two).read().await.unwrap();
    let waiting = tokio::spawn({
        let multi = client.multi(["b", "c"]);
        async move { multi.by(&one).lock().await.unwrap() }
    });
    server.admin().await.queued(2).await;
    let refused = client.mutex("a").by(&two).lock().await;
    assert!(
        matches!(refused, Err(Error::Deadlock { .. })),
        "{refused:?}"
    );
    assert_eq!(server.admin().await.gauge("waiters").await, 2);
    second.release().await.unwrap();
    let both = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(both.is_valid() && first.is_valid());
}
