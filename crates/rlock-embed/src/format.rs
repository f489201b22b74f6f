//! Events and actions as bytes.
//!
//! Numbers are little-endian. A text or byte string starts with its length, a
//! list with the number of its items; both have 32 bits. [`NONE`] stands for a
//! time without a limit.

use std::time::Duration;

use rlock_engine::endpoint::ConnectionId;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Lease, Queueing, Terms};
use rlock_engine::error::{Error, Failure, Loss};
use rlock_engine::servers::Address;
use rlock_engine::wire::resp::Frame;

/// The version of this format. It changes with everything that an older host
/// would not understand.
pub const VERSION: u32 = 1;

/// Instead of a time: no limit, or none at all.
pub(crate) const NONE: u64 = u64::MAX;

/// The bytes are not an event, or not one that is valid here: a mistake of the
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(
    /// What is wrong.
    pub &'static str,
);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed event: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

const SHORT: Malformed = Malformed("it is too short");

/// The unread rest of an event.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn seed(&mut self) -> Result<[u8; 32], Malformed> {
        self.array()
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    /// A time in milliseconds; none for no limit.
    pub(crate) fn millis(&mut self) -> Result<Option<Duration>, Malformed> {
        let millis = self.u64()?;
        Ok((millis != NONE).then(|| Duration::from_millis(millis)))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| SHORT)?)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub(crate) fn list(&mut self) -> Result<Vec<&'a [u8]>, Malformed> {
        let count = self.u32()?;
        (0..count).map(|_| self.bytes()).collect()
    }

    /// The mode of a lock. A value out of range is the caller's error.
    pub(crate) fn ask(&mut self) -> Result<Result<Ask, Error>, Malformed> {
        let (mode, permits, limit) = (self.u8()?, self.u32()?, self.u32()?);
        match mode {
            0 => Ok(Ok(Ask::Exclusive)),
            1 => Ok(Ok(Ask::Shared)),
            2 => Ok(Ask::of_permits(permits, limit)),
            _ => Err(Malformed("there is no such mode")),
        }
    }

    pub(crate) fn queueing(&mut self) -> Result<Result<Queueing, Error>, Malformed> {
        Ok(match self.millis()? {
            None => Ok(Queueing::Unlimited),
            Some(wait) => Queueing::at_most(wait),
        })
    }

    pub(crate) fn terms(&mut self) -> Result<Result<Terms, Error>, Malformed> {
        let (lease, is_renewed) = (Duration::from_millis(self.u64()?), self.flag()?);
        let (max_hold, bound, replicas) = (self.millis()?, self.millis()?, self.u16()?);
        let lease = match is_renewed {
            true => Lease::Renewed(lease),
            false => Lease::Fixed(lease),
        };
        let terms = || {
            let mut terms = Terms::new().lease(lease)?;
            if let Some(max_hold) = max_hold {
                terms = terms.max_hold(max_hold)?;
            }
            if let Some(grace) = bound {
                terms = terms.bound(grace)?;
            }
            terms.replicas(replicas)
        };
        Ok(terms())
    }

    pub(crate) fn failure(&mut self) -> Result<Failure, Malformed> {
        let (kind, text) = (self.u8()?, self.text()?.to_owned());
        Ok(match kind {
            0 => Failure::Io(text),
            1 => Failure::TimedOut(text),
            2 => Failure::Setup(text),
            3 => Failure::Certificate(text),
            _ => return Err(Malformed("there is no such failure")),
        })
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed("it is too long")),
        }
    }
}

/// Writes actions, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(buffer: Vec<u8>) -> Self {
        let mut writer = Self(buffer);
        writer.0.clear();
        // The place for the deadline.
        writer.u64(NONE);
        writer
    }

    /// The output, which starts with the next deadline.
    pub(crate) fn finish(mut self, deadline: Option<Instant>) -> Vec<u8> {
        if let Some(deadline) = deadline
            && let Some(first) = self.0.first_chunk_mut()
        {
            *first = deadline.nanos().to_le_bytes();
        }
        self.0
    }

    fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    fn u16(&mut self, number: u16) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u32(&mut self, number: usize) -> &mut Self {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.bytes(text.as_ref().as_bytes())
    }

    pub(crate) fn connect(&mut self, connection: ConnectionId, address: &Address) {
        self.u8(1).u64(connection.number());
        match address {
            Address::Tcp { host, port, tls } => {
                let kind = match tls {
                    None => 0,
                    Some(tls) if tls.insecure => 2,
                    Some(_) => 1,
                };
                self.u8(kind).text(host).u16(*port);
            }
            Address::Unix { path } => {
                self.u8(3).text(path.to_string_lossy()).u16(0);
            }
        }
    }

    pub(crate) fn write(&mut self, connection: ConnectionId, output: &[u8]) {
        self.u8(2).u64(connection.number()).bytes(output);
    }

    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.u8(3).u64(connection.number());
    }

    pub(crate) fn granted(&mut self, call: u64, guard: u64, owner: &str, fences: &[(&[u8], u64)]) {
        self.u8(4).u64(call).u64(guard).text(owner);
        self.u32(fences.len());
        for (key, fence) in fences {
            self.bytes(key).u64(*fence);
        }
    }

    pub(crate) fn refused(&mut self, call: u64) {
        self.u8(5).u64(call);
    }

    pub(crate) fn done(&mut self, call: u64) {
        self.u8(6).u64(call);
    }

    pub(crate) fn failed(&mut self, call: u64, error: &Error) {
        let text = error.with_causes();
        self.u8(7).u64(call).text(error.code()).text(text);
        self.u8(error.is_transient().into());
    }

    pub(crate) fn answered(&mut self, call: u64, answers: &[Frame]) {
        self.u8(8).u64(call).frames(3, answers);
    }

    pub(crate) fn over(&mut self, guard: u64, why: Loss) {
        self.u8(9).u64(guard).u8(match why {
            Loss::LeaseEnded => 0,
            Loss::EndedByServer => 1,
            // Nothing was lost.
            _ => 2,
        });
    }

    pub(crate) fn note(&mut self, level: u8, text: &str) {
        self.u8(10).u8(level).text(text);
    }

    /// The leader: the fence and the value. With details, also the name and the
    /// remaining time.
    pub(crate) fn leader(
        &mut self,
        call: u64,
        leader: Option<(u64, &[u8], &str, Option<Duration>)>,
        missed: bool,
    ) {
        self.u8(11).u64(call).u8(leader.is_some().into());
        let (fence, value, owner, left) = leader.unwrap_or_default();
        let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(NONE);
        self.u64(fence).bytes(value).text(owner);
        self.u64(left.map_or(NONE, millis)).u8(missed.into());
    }

    fn frames(&mut self, kind: u8, frames: &[Frame]) -> &mut Self {
        self.u8(kind).u32(frames.len());
        for frame in frames {
            self.frame(frame);
        }
        self
    }

    fn frame(&mut self, frame: &Frame) {
        match frame {
            Frame::Nil => self.u8(0),
            Frame::Boolean(yes) => self.u8(1).u64((*yes).into()),
            Frame::Integer(number) => self.u8(1).u64(number.cast_unsigned()),
            Frame::Double(number) => self.u8(2).text(number.to_string()),
            Frame::Simple(text) | Frame::BigNumber(text) => self.u8(2).text(text),
            Frame::Bulk(bytes) | Frame::Verbatim(bytes) => self.u8(2).bytes(bytes),
            Frame::Array(items) | Frame::Set(items) | Frame::Push(items) => self.frames(3, items),
            Frame::Map(pairs) => {
                self.u8(4).u32(pairs.len());
                for (key, value) in pairs {
                    self.frame(key);
                    self.frame(value);
                }
                self
            }
            Frame::Error(error) => self.u8(5).text(error.to_string()),
        };
    }
}
