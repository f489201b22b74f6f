//! One address for every kind of place, and what each master there says of itself.

use std::time::Duration;

use rlock_client::{Client, Error, Terms, blocking};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Server, eventually};
use rlock_testkit::cluster::Cluster;

/// The address of the cluster, by two of its servers.
fn url(cluster: &Cluster) -> String {
    let hosts = [0, 1].map(|node| format!("127.0.0.1:{}", cluster.server(node).port()));
    format!("redis+cluster://{}", hosts.join(","))
}

#[tokio::test]
async fn counters_are_those_of_the_server() {
    let server = Server::start().await;
    let client = server.client().await;
    client
        .mutex("k")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let [master] = client.counters().await.try_into().unwrap();
    assert_eq!(master.address, format!("127.0.0.1:{}", server.port()));
    let numbers = master.answer.unwrap().numbers;
    assert_eq!((numbers["grants"], numbers["releases"]), (1, 1));
    assert_eq!(numbers["waiters"], 0);
    assert!(numbers.contains_key("wait_usec_p99"));
    let _: () = server.admin().await.run("ACL SETUSER default -info").await;
    let [master] = client.counters().await.try_into().unwrap();
    let refused = master.answer.unwrap_err();
    assert!(matches!(refused, Error::Denied(_)), "{refused:?}");
}

#[tokio::test]
async fn masters_answer_each_for_itself() {
    let mut cluster = Cluster::start(3, 0).await;
    let builder = Client::builder().retry_timeout(Duration::from_millis(300));
    let client = builder.connect(&url(&cluster)).await.unwrap();
    let key = cluster.key_at(0).await;
    let terms = Terms::new().lease(Duration::from_secs(60)).unwrap();
    let _held = client.mutex(&key).with(terms).lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex(&key);
        async move { mutex.lock().await }
    });
    cluster.admin(0).await.queued(1).await;
    let address = |node| format!("127.0.0.1:{}", cluster.server(node).port());
    let addresses = [address(0), address(1), address(2)];
    let masters = client.counters().await;
    let waiters = |address: &str| {
        let master = masters.iter().find(|master| master.address == address);
        master.unwrap().answer.as_ref().unwrap().numbers["waiters"]
    };
    assert_eq!(addresses.each_ref().map(|it| waiters(it)), [1, 0, 0]);
    let asking = url(&cluster);
    let of_others = tokio::task::spawn_blocking(move || {
        let client = blocking::Client::connect(&asking).unwrap();
        (client.counters().len(), client.list(10).unwrap())
    });
    let (count, list) = of_others.await.unwrap();
    assert_eq!((count, list.len()), (3, 1));
    cluster.kill(2);
    eventually("the reason is said, with the address", async || {
        let masters = client.list_each(10).await.unwrap();
        let is_away = |error: &Error| {
            let Error::Unavailable { source, .. } = error else {
                return false;
            };
            let reason = source.as_ref().map(ToString::to_string);
            reason.is_some_and(|reason| reason.contains(&addresses[2]))
        };
        masters.iter().all(|master| match &master.answer {
            Ok(list) => list.is_empty() == (master.address != addresses[0]),
            Err(error) => master.address == addresses[2] && is_away(error),
        }) && masters.iter().any(|master| master.answer.is_err())
    })
    .await;
    waiting.abort();
}
