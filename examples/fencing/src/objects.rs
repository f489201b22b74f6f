//! Objects of an HTTP store that keep a balance.

use serde_json::{Value, json};
use ureq::http::Request;
use ureq::{Agent, SendBody};

use crate::{Outcome, Receiver};

/// A connection to one object.
struct Connection {
    agent: Agent,
    url: String,
}

/// What the store has answered.
struct Answer {
    status: u16,
    etag: String,
    content: String,
}

impl Connection {
    fn open(name: &str) -> Outcome<Self> {
        // An answer that refuses is an answer, not an error.
        let settings = Agent::config_builder().http_status_as_error(false);
        Ok(Self {
            agent: settings.build().into(),
            url: format!("{}/{name}", std::env::var("STORE")?),
        })
    }

    fn send(&self, method: &str, header: Option<(&str, &str)>, body: &str) -> Outcome<Answer> {
        let mut request = Request::builder().method(method).uri(&self.url);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let body = body.as_bytes();
        let mut answer = if method == "GET" {
            self.agent.run(request.body(SendBody::none())?)?
        } else {
            self.agent.run(request.body(body)?)?
        };
        let etag = answer.headers().get("ETag");
        Ok(Answer {
            status: answer.status().as_u16(),
            etag: etag.map_or(Ok(""), |it| it.to_str())?.to_owned(),
            content: answer.body_mut().read_to_string()?,
        })
    }
}

/// An object that takes every write.
pub struct Object(Connection);

impl Object {
    pub fn open() -> Outcome<Self> {
        Connection::open("object").map(Self)
    }
}

impl Receiver for Object {
    fn name(&self) -> &'static str {
        "object"
    }

    fn read(&mut self) -> Outcome<Option<i32>> {
        Ok(Some(self.0.send("GET", None, "")?.content.parse()?))
    }

    fn write(&mut self, balance: i32) -> Outcome<bool> {
        Ok(self.0.send("PUT", None, &balance.to_string())?.status == 200)
    }
}

/// An object of a store that knows fences.
pub struct FencedObject {
    connection: Connection,
    fence: String,
}

impl FencedObject {
    pub fn open(fence: u64) -> Outcome<Self> {
        Ok(Self {
            connection: Connection::open("fenced-object")?,
            fence: fence.to_string(),
        })
    }

    fn send(&self, method: &str, body: &str) -> Outcome<Answer> {
        self.connection
            .send(method, Some(("x-fence", &self.fence)), body)
    }
}

impl Receiver for FencedObject {
    fn name(&self) -> &'static str {
        "fenced-object"
    }

    fn read(&mut self) -> Outcome<Option<i32>> {
        let answer = self.send("POST", "")?;
        Ok(match answer.status {
            200 => Some(answer.content.parse()?),
            _ => None,
        })
    }

    fn write(&mut self, balance: i32) -> Outcome<bool> {
        Ok(self.send("PUT", &balance.to_string())?.status == 200)
    }
}

/// An object of a store that compares ETags, as S3 does.
///
/// The fence is a part of the content, so that announcing it changes the ETag.
pub struct S3Object {
    connection: Connection,
    fence: u64,
    etag: String,
}

impl S3Object {
    pub fn open(fence: u64) -> Outcome<Self> {
        Ok(Self {
            connection: Connection::open("s3-object")?,
            fence,
            etag: String::new(),
        })
    }

    fn put(&mut self, balance: i64) -> Outcome<u16> {
        let content = json!({"balance": balance, "fence": self.fence}).to_string();
        let unchanged = Some(("If-Match", self.etag.as_str()));
        let answer = self.connection.send("PUT", unchanged, &content)?;
        if answer.status == 200 {
            self.etag = answer.etag;
        }
        Ok(answer.status)
    }
}

impl Receiver for S3Object {
    fn name(&self) -> &'static str {
        "s3-object"
    }

    fn read(&mut self) -> Outcome<Option<i32>> {
        loop {
            let answer = self.connection.send("GET", None, "")?;
            let account: Value = serde_json::from_str(&answer.content)?;
            let seen = account["fence"].as_u64().ok_or("the object has no fence")?;
            let balance = account["balance"].as_i64();
            let balance = balance.ok_or("the object has no balance")?;
            if seen > self.fence {
                return Ok(None);
            }
            self.etag = answer.etag;
            if self.put(balance)? == 200 {
                return Ok(Some(balance.try_into()?));
            }
        }
    }

    fn write(&mut self, balance: i32) -> Outcome<bool> {
        loop {
            match self.put(balance.into())? {
                // Somebody has come between. Was it under a larger fence?
                409 | 412 if self.read()?.is_none() => return Ok(false),
                409 | 412 => {}
                status => return Ok(status == 200),
            }
        }
    }
}
