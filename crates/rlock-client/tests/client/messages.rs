//! Messages that do not fit what the client knows: late ones, and forged ones.

use std::time::Duration;

use rlock_client::{Client, Guard};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server};

/// The channel of the only client there is.
async fn channel(admin: &mut Admin) -> String {
    let channels: Vec<String> = admin.run("PUBSUB CHANNELS rlock:client:*").await;
    assert_eq!(channels.len(), 1, "{channels:?}");
    channels[0].clone()
}

async fn say(admin: &mut Admin, channel: &str, message: &str) {
    let heard: u64 = redis::cmd("PUBLISH")
        .arg(channel)
        .arg(message)
        .query_async(&mut admin.0)
        .await
        .unwrap();
    assert_eq!(heard, 1, "the client listens");
}

async fn works(guard: Guard, client: &Client) {
    assert!(guard.is_valid());
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// The owner's name is shown to everybody; the channel's is not.
#[tokio::test]
async fn the_name_of_the_channel_is_not_that_of_the_owners() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let owner = client.owner();
    let id = owner.as_str().split(':').next().unwrap();
    assert!(!channel(&mut admin).await.contains(id));
}

#[tokio::test]
async fn a_timeout_that_was_none_leaves_no_place_and_no_hold() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let channel = channel(&mut admin).await;
    let holder = client.owner();
    let held = client.mutex("k").by(&holder).lock().await.unwrap();
    let owner = client.owner();
    let waiting = tokio::spawn({
        let (mutex, owner) = (client.mutex("k"), owner.clone());
        async move { mutex.by(&owner).lock_timeout(PATIENCE).await }
    });
    admin.queued(1).await;
    say(&mut admin, &channel, &format!("timeout 0 {owner} k")).await;
    let refused = tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    assert!(refused.unwrap().unwrap().is_none());
    admin.queued(0).await;
    held.release().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn a_grant_that_nobody_waits_for_is_given_back_and_takes_nothing_else_away() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let channel = channel(&mut admin).await;
    // The client knows nothing of this request, as if it had forgotten it.
    let fence: u64 = admin.run("RLOCK.ACQUIRE lost ghost 30000").await;
    say(&mut admin, &channel, &format!("grant {fence} ghost lost")).await;
    admin.untouched("lost").await;
    // A hold that it does know is not touched.
    let owner = client.owner();
    let guard = client.mutex("k").by(&owner).lock().await.unwrap();
    say(&mut admin, &channel, &format!("grant 7 {owner} k")).await;
    client.flush().await.unwrap();
    works(guard, &client).await;
}

/// Several waits of one client; none hears what is meant for another.
#[tokio::test]
async fn a_message_wakes_the_one_that_it_names_only() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let channel = channel(&mut admin).await;
    let held = client.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await.unwrap() }
    });
    admin.queued(1).await;
    for message in ["timeout 0 stranger k", "withdrawn 0 stranger k", "nonsense"] {
        say(&mut admin, &channel, message).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    works(waiting.await.unwrap(), &client).await;
}
