//! Questions that are not about locks, even where the module is missing.

use rlock_client::probe::{self, Command, Frame, Master};
use rlock_client::{Client, Error};

use rlock_testkit::Setup;
use rlock_testkit::asynchronous::Server;

fn words(words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command
}

async fn master(url: &str) -> Master {
    let masters = probe::masters(Client::builder(), url).await.unwrap();
    let [master] = masters.try_into().unwrap();
    master
}

#[tokio::test]
async fn a_server_without_the_module_answers_everything_that_is_asked() {
    let mut server = Setup::new().without_module().start_async().await;
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let master = master(&url).await;
    assert_eq!(master.address(), format!("127.0.0.1:{}", server.port()));
    let answer = async |question| master.ask(&words(question)).await.unwrap();
    let unknown = answer("RLOCK.HELP").await;
    assert!(matches!(unknown, Frame::Error(error) if error.code == "ERR"));
    // What a lock would try again is an answer, too.
    let replica = format!("REPLICAOF 127.0.0.1 {}", server.port());
    assert_eq!(answer(&replica).await, Frame::Simple("OK".to_owned()));
    let refused = answer("SET k v").await;
    assert!(matches!(refused, Frame::Error(error) if error.code == "READONLY"));
    let subscribed = answer("SUBSCRIBE channel").await;
    assert!(matches!(subscribed, Frame::Push(_)), "{subscribed:?}");
    server.kill();
    let away = master.ask(&words("PING")).await;
    assert!(matches!(away, Err(Error::Connect(_))), "{away:?}");
}

#[tokio::test]
async fn a_user_that_may_not_lock_may_ask() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let _: () = admin.run("ACL SETUSER ann on >pw +ping").await;
    let master = master(&format!("redis://ann:pw@127.0.0.1:{}/", server.port())).await;
    let pong = master.ask(&words("PING")).await.unwrap();
    assert_eq!(pong, Frame::Simple("PONG".to_owned()));
    let refused = master.ask(&words("SUBSCRIBE channel")).await.unwrap();
    assert!(matches!(refused, Frame::Error(error) if error.code == "NOPERM"));
}
