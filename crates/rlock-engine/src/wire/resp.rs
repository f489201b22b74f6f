//! RESP, versions 2 and 3: decodes replies and encodes commands.
//!
//! This module knows their form, not their meaning.

use std::fmt;

use crate::error::ServerError;

/// The longest line, with its end: a status, an error, a number, or a length.
const LINE_MAX: usize = 64 * 1024;
/// The longest string.
const BULK_MAX: usize = 64 * 1024 * 1024;
/// The largest number of bytes in a frame, including its elements. It limits
/// the memory of an incomplete frame.
const FRAME_MAX: usize = 128 * 1024 * 1024;
/// The largest number of elements in a frame, including those of inner lists; a
/// pair in a map counts as two.
const ELEMENTS_MAX: usize = 1 << 20;
/// The largest depth of nested lists. `HELLO` and `RLOCK.INFO` need 4.
const DEPTH_MAX: usize = 8;
/// The capacity of the buffer that is kept while it is empty.
const BUFFER_KEPT: usize = 64 * 1024;
/// The capacity for the words of a command that is kept for the next one.
const COMMAND_KEPT: usize = 4 * 1024;

/// One reply, or one message.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Nothing; in RESP2 a null string or a null list.
    Nil,
    /// A boolean.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A floating-point number, including NaN and infinity.
    Double(f64),
    /// A status, such as `OK`. Bytes that are not UTF-8 are replaced.
    Simple(String),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// A verbatim string, without the three letters that name its format.
    Verbatim(Vec<u8>),
    /// The digits of a big number, which may be too large for
    /// [`Frame::Integer`].
    BigNumber(String),
    /// The command failed. In a list: one of several commands failed.
    Error(ServerError),
    /// A list.
    Array(Vec<Self>),
    /// A set.
    Set(Vec<Self>),
    /// A map, in the order of arrival.
    Map(Vec<(Self, Self)>),
    /// A push: a message that is no reply to a command; never in another frame.
    Push(Vec<Self>),
}

impl Frame {
    /// The bytes of a string, a text or a status; `None` for anything else.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) | Self::Verbatim(bytes) => Some(bytes),
            Self::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The same as text; bytes that are not UTF-8 are replaced.
    pub fn into_text(self) -> Option<String> {
        match self {
            Self::Simple(text) => Some(text),
            other => other.as_bytes().map(lossy),
        }
    }

    /// The elements of a list or a message; `None` for anything else.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => Some(items),
            _ => None,
        }
    }

    /// The value of that name in a map. A map is a list of names and values in
    /// RESP2.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let is_name = |it: &Self| it.as_bytes() == Some(name.as_bytes());
        match self {
            Self::Map(pairs) => pairs.iter().find(|it| is_name(&it.0)).map(|it| &it.1),
            Self::Array(items) => {
                let mut pairs = items.as_chunks().0.iter();
                pairs.find_map(|[known, value]| is_name(known).then_some(value))
            }
            _ => None,
        }
    }
}

/// The bytes are not RESP, or exceed a limit of this client. The connection can
/// no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed reply: {0}")]
pub struct Malformed(&'static str);

/// Decodes frames from bytes, which may be split anywhere.
///
/// Each byte is examined a bounded number of times, in pieces of any size. A
/// list's memory grows with its received elements, not with its announced
/// length. A frame has at most 128 MiB and 1,048,576 elements, a string 64 MiB,
/// and a line 64 KiB; lists are nested at most 8 deep.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// All bytes before this position are decoded.
    at: usize,
    /// The number of bytes from there on that were searched for the end of a
    /// line.
    searched: usize,
    /// The incomplete lists, the outermost first.
    open: Vec<Open>,
    /// The bytes of the incomplete frame.
    bytes: usize,
    elements: usize,
    malformed: Option<Malformed>,
}

/// An incomplete list.
#[derive(Debug)]
struct Open {
    kind: Kind,
    left: usize,
    items: Vec<Frame>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Array,
    Set,
    Map,
    Push,
    /// Information about the next frame; ignored.
    Attribute,
}

/// One line: a scalar, a string with its bytes, or the start of a list.
enum Item {
    Whole(Frame),
    Begun(Kind, usize),
}

impl Decoder {
    /// Adds received bytes. Decoding happens in [`Decoder::next`].
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.malformed.is_some() {
            return;
        }
        if self.at >= self.buffer.len() {
            self.at = 0;
            self.buffer.clear();
            self.buffer.shrink_to(BUFFER_KEPT);
        } else if self.at > self.buffer.len() / 2 {
            // This moves fewer bytes than were decoded since the last time.
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame; `None` until more bytes have arrived.
    ///
    /// # Errors
    ///
    /// [`Malformed`]; every later call returns the same error.
    #[allow(clippy::should_implement_trait)] // Bytes may come after `None`.
    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        if let Some(malformed) = self.malformed {
            return Err(malformed);
        }
        let next = self.frame();
        if let Err(malformed) = next {
            *self = Self {
                malformed: Some(malformed),
                ..Self::default()
            };
        }
        next
    }

    fn frame(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            let whole = match self.item()? {
                None => return Ok(None),
                Some(Item::Whole(frame)) => Some(frame),
                Some(Item::Begun(kind, left)) => {
                    self.begin(kind, left)?;
                    None
                }
            };
            if let Some(frame) = self.nest(whole) {
                (self.bytes, self.elements) = (0, 0);
                return Ok(Some(frame));
            }
        }
    }

    /// Starts a list of `left` elements.
    fn begin(&mut self, kind: Kind, left: usize) -> Result<(), Malformed> {
        self.elements += left;
        if self.elements > ELEMENTS_MAX {
            return Err(Malformed("too many elements"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(Malformed("lists too deep in lists"));
        }
        if kind == Kind::Push && !self.open.is_empty() {
            return Err(Malformed("a message in a reply"));
        }
        self.open.push(Open {
            kind,
            left,
            items: Vec::with_capacity(left.min(4)),
        });
        Ok(())
    }

    /// Adds a complete frame to the list that it is in, and each list that is
    /// complete then to the list around it. Returns the outermost frame if it is
    /// complete.
    fn nest(&mut self, mut whole: Option<Frame>) -> Option<Frame> {
        loop {
            let Some(list) = self.open.last_mut() else {
                return whole;
            };
            if let Some(frame) = whole.take() {
                list.items.push(frame);
                list.left -= 1;
            }
            if list.left > 0 {
                return None;
            }
            whole = self.open.pop().and_then(Open::close);
        }
    }

    /// Reads the next line, and the string that it announces.
    fn item(&mut self) -> Result<Option<Item>, Malformed> {
        let Some(length) = self.line()? else {
            return Ok(None);
        };
        let rest = self.buffer.get(self.at..).unwrap_or_default();
        let line = rest.get(..length).unwrap_or_default();
        let Some((kind, text)) = line.split_first() else {
            return Err(Malformed("an empty line"));
        };
        let mut size = length + 2;
        let item = match kind {
            b'$' | b'*' if text == b"-1" => Item::Whole(Frame::Nil),
            b'$' | b'=' | b'!' => {
                let string = count(text, BULK_MAX)?;
                let start = size;
                size += string + 2;
                self.check_size(size)?;
                let Some(string) = rest.get(start..size) else {
                    return Ok(None);
                };
                let string = string.strip_suffix(b"\r\n");
                let string = string.ok_or(Malformed("a string without its end"))?;
                Item::Whole(match kind {
                    b'$' => Frame::Bulk(string.into()),
                    b'=' => verbatim(string)?,
                    _ => Frame::Error(error(string)),
                })
            }
            b'*' => Item::Begun(Kind::Array, count(text, ELEMENTS_MAX)?),
            b'~' => Item::Begun(Kind::Set, count(text, ELEMENTS_MAX)?),
            b'>' => Item::Begun(Kind::Push, count(text, ELEMENTS_MAX)?),
            b'%' => Item::Begun(Kind::Map, 2 * count(text, ELEMENTS_MAX)?),
            b'|' => Item::Begun(Kind::Attribute, 2 * count(text, ELEMENTS_MAX)?),
            kind => Item::Whole(scalar(*kind, text)?),
        };
        self.check_size(size)?;
        self.bytes += size;
        self.at += size;
        Ok(Some(item))
    }

    /// The length of the next line without its end; `None` until the end has
    /// arrived.
    fn line(&mut self) -> Result<Option<usize>, Malformed> {
        let rest = self.buffer.get(self.at..).unwrap_or_default();
        let window = rest.get(..LINE_MAX).unwrap_or(rest);
        let unsearched = window.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = window.len();
            return match window.len() == LINE_MAX {
                true => Err(Malformed("a line is too long")),
                false => Ok(None),
            };
        };
        let end = self.searched + end;
        self.searched = 0;
        let line = window.get(..end).and_then(|it| it.strip_suffix(b"\r"));
        let line = line.ok_or(Malformed("a line without its end"))?;
        Ok(Some(line.len()))
    }

    /// Checks whether the frame may have `more` bytes.
    fn check_size(&self, more: usize) -> Result<(), Malformed> {
        match self.bytes + more > FRAME_MAX {
            true => Err(Malformed("a reply is too large")),
            false => Ok(()),
        }
    }
}

impl Open {
    /// The list as a frame; `None` for ignored information.
    fn close(self) -> Option<Frame> {
        Some(match self.kind {
            Kind::Array => Frame::Array(self.items),
            Kind::Set => Frame::Set(self.items),
            Kind::Push => Frame::Push(self.items),
            Kind::Attribute => return None,
            Kind::Map => {
                let mut pairs = Vec::with_capacity(self.items.len() / 2);
                let mut items = self.items.into_iter();
                while let (Some(name), Some(value)) = (items.next(), items.next()) {
                    pairs.push((name, value));
                }
                Frame::Map(pairs)
            }
        })
    }
}

/// Decodes one line.
fn scalar(kind: u8, text: &[u8]) -> Result<Frame, Malformed> {
    Ok(match kind {
        b'+' => Frame::Simple(lossy(text)),
        b'-' => Frame::Error(error(text)),
        b':' => Frame::Integer(integer(text).ok_or(Malformed("no number"))?),
        b',' => Frame::Double(number(text).ok_or(Malformed("no number"))?),
        b'(' => {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(Malformed("no number"));
            }
            Frame::BigNumber(lossy(text))
        }
        b'#' if text == b"t" => Frame::Boolean(true),
        b'#' if text == b"f" => Frame::Boolean(false),
        b'_' if text.is_empty() => Frame::Nil,
        _ => return Err(Malformed("an unknown type")),
    })
}

/// Three letters and a colon precede the text.
fn verbatim(string: &[u8]) -> Result<Frame, Malformed> {
    match string {
        [_, _, _, b':', text @ ..] => Ok(Frame::Verbatim(text.into())),
        _ => Err(Malformed("a text without its format")),
    }
}

fn error(line: &[u8]) -> ServerError {
    let line = String::from_utf8_lossy(line);
    let (code, message) = line.split_once(' ').unwrap_or((&line, ""));
    ServerError {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A whole number. Most replies are one, and [`number`] would look at each digit
/// twice.
fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let add = |number: i64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        let shifted = number.checked_mul(10)?;
        match is_negative {
            true => shifted.checked_sub(digit.into()),
            false => shifted.checked_add(digit.into()),
        }
    };
    let number = digits.iter().try_fold(0, add)?;
    (!digits.is_empty()).then_some(number)
}

/// An announced length, at most `max`.
fn count(text: &[u8], max: usize) -> Result<usize, Malformed> {
    match number(text) {
        Some(count) if count <= max => Ok(count),
        Some(_) => Err(Malformed("too much is announced")),
        None => Err(Malformed("no number")),
    }
}

/// A command with its arguments, as a server reads it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Command {
    words: usize,
    bytes: Vec<u8>,
}

impl Command {
    /// A command without arguments.
    pub fn new(name: &str) -> Self {
        let mut command = Self {
            words: 0,
            bytes: Vec::with_capacity(256),
        };
        command.begin(name);
        command
    }

    /// The same in the memory of the command that was here.
    pub(crate) fn begin(&mut self, name: &str) {
        self.words = 0;
        self.bytes.clear();
        self.bytes.shrink_to(COMMAND_KEPT);
        self.arg(name);
    }

    /// Adds an argument of any bytes.
    pub fn arg(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        let arg = arg.as_ref();
        self.words += 1;
        announce(&mut self.bytes, b'$', arg.len());
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Adds an argument, in decimal.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.arg(itoa::Buffer::new().format(number))
    }

    /// Appends the command to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        announce(out, b'*', self.words);
        out.extend_from_slice(&self.bytes);
    }
}

/// Writes a line with a number. Most numbers are below 100.
fn announce(out: &mut Vec<u8>, kind: u8, number: usize) {
    let digit = |number: usize| b'0' + u8::try_from(number % 10).unwrap_or(0);
    match number {
        0..10 => out.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
        10..100 => {
            let tens = digit(number / 10);
            out.extend_from_slice(&[kind, tens, digit(number), b'\r', b'\n']);
        }
        _ => announce_large(out, kind, number),
    }
}

#[cold]
fn announce_large(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Shows only the name: arguments may be secret.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.bytes.split(|byte| *byte == b'\n').nth(1);
        let name = String::from_utf8_lossy(name.unwrap_or_default());
        write!(
            f,
            "{} and {} more",
            name.trim_end(),
            self.words.saturating_sub(1)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of `bytes`, fed in pieces of `size`, and the error that ends
    /// them.
    fn decoded(bytes: &[u8], size: usize) -> (Vec<Frame>, Option<Malformed>) {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(size) {
            decoder.feed(piece);
            loop {
                match decoder.next() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(malformed) => return (frames, Some(malformed)),
                }
            }
        }
        (frames, None)
    }

    fn whole(bytes: &[u8]) -> Vec<Frame> {
        let (frames, malformed) = decoded(bytes, usize::MAX);
        assert_eq!(malformed, None, "{}", lossy(bytes));
        frames
    }

    fn why(bytes: &[u8]) -> &'static str {
        match decoded(bytes, usize::MAX).1 {
            Some(Malformed(why)) => why,
            None => panic!("{} is not refused", lossy(bytes)),
        }
    }

    fn bulk(text: &str) -> Frame {
        Frame::Bulk(text.into())
    }

    fn server_error(code: &str, message: &str) -> Frame {
        let (code, message) = (code.to_owned(), message.to_owned());
        Frame::Error(ServerError { code, message })
    }

    /// A frame of each type.
    fn each() -> Vec<(&'static [u8], Frame)> {
        let one = || Frame::Integer(1);
        let inner = Frame::Array(vec![one(), Frame::Set(vec![])]);
        vec![
            (b"_\r\n", Frame::Nil),
            (b"$-1\r\n", Frame::Nil),
            (b"*-1\r\n", Frame::Nil),
            (b"#t\r\n", Frame::Boolean(true)),
            (b"#f\r\n", Frame::Boolean(false)),
            (b":12\r\n", Frame::Integer(12)),
            (b":+12\r\n", Frame::Integer(12)),
            (b":-9223372036854775808\r\n", Frame::Integer(i64::MIN)),
            (b",-1.5e3\r\n", Frame::Double(-1500.0)),
            (b",inf\r\n", Frame::Double(f64::INFINITY)),
            (b"+OK\r\n", Frame::Simple("OK".into())),
            (b"+\xff\r\n", Frame::Simple("\u{fffd}".into())),
            (b"$0\r\n\r\n", bulk("")),
            (
                b"$6\r\na\r\nb\xff\n\r\n",
                Frame::Bulk(b"a\r\nb\xff\n".into()),
            ),
            (b"=7\r\ntxt:a:b\r\n", Frame::Verbatim(b"a:b".into())),
            (
                b"(-123456789012345678901\r\n",
                Frame::BigNumber("-123456789012345678901".into()),
            ),
            (b"-ERR no such\r\n", server_error("ERR", "no such")),
            (b"-OOM\r\n", server_error("OOM", "")),
            (b"!8\r\nERR a\r\nb\r\n", server_error("ERR", "a\r\nb")),
            (b"*0\r\n", Frame::Array(vec![])),
            (
                b"*2\r\n:1\r\n*2\r\n:1\r\n~0\r\n",
                Frame::Array(vec![one(), inner]),
            ),
            (b"~1\r\n_\r\n", Frame::Set(vec![Frame::Nil])),
            (
                b"%1\r\n$1\r\na\r\n*1\r\n:1\r\n",
                Frame::Map(vec![(bulk("a"), Frame::Array(vec![one()]))]),
            ),
            (
                b">2\r\n$1\r\na\r\n:1\r\n",
                Frame::Push(vec![bulk("a"), one()]),
            ),
            (
                b"|1\r\n+ttl\r\n:9\r\n|0\r\n*2\r\n|1\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
                Frame::Array(vec![one(), one()]),
            ),
        ]
    }

    #[test]
    fn each_type_is_decoded_wherever_its_bytes_are_split() {
        let mut all = Vec::new();
        for (bytes, frame) in each() {
            for split in 0..bytes.len() {
                let mut decoder = Decoder::default();
                decoder.feed(&bytes[..split]);
                assert_eq!(decoder.next(), Ok(None), "{} at {split}", lossy(bytes));
                decoder.feed(&bytes[split..]);
                assert_eq!(decoder.next(), Ok(Some(frame.clone())));
                assert_eq!(decoder.next(), Ok(None));
            }
            all.extend_from_slice(bytes);
        }
        let frames: Vec<_> = each().into_iter().map(|(_, frame)| frame).collect();
        for size in 1..=all.len() {
            assert_eq!(decoded(&all, size), (frames.clone(), None));
        }
        let nan = whole(b",nan\r\n");
        assert!(matches!(nan[..], [Frame::Double(it)] if it.is_nan()));
    }

    #[test]
    fn invalid_resp_is_refused_with_everything_after_it() {
        let malformed: [&[u8]; 35] = [
            b"\r\n",
            b"\n",
            b"+OK\n",
            b"OK\r\n",
            b"?\r\n",
            b":\r\n",
            b":1a\r\n",
            b":1:\r\n",
            b": 1\r\n",
            b":9223372036854775808\r\n",
            b",\r\n",
            b",x\r\n",
            b"(\r\n",
            b"(-\r\n",
            b"(1.5\r\n",
            b"#\r\n",
            b"#x\r\n",
            b"_x\r\n",
            b"$\r\n",
            b"$-2\r\n",
            b"$?\r\n",
            b"$1\r\nab\r\n",
            b"$1\r\na\n\r",
            b"=3\r\ntxt\r\n",
            b"=4\r\ntext\r\n",
            b"!-1\r\n",
            b"*?\r\n",
            b"*-2\r\n",
            b"~-1\r\n",
            b"%-1\r\n",
            b"*1\r\n>1\r\n:1\r\n",
            b"|1\r\n>0\r\n",
            b";4\r\n",
            b".\r\n",
            b"*18446744073709551616\r\n",
        ];
        for bytes in malformed {
            let mut fed = b":7\r\n".to_vec();
            fed.extend_from_slice(bytes);
            fed.extend_from_slice(b":8\r\n");
            let at_once = decoded(&fed, usize::MAX);
            assert_eq!(at_once.0, [Frame::Integer(7)], "{}", lossy(bytes));
            assert!(at_once.1.is_some(), "{}", lossy(bytes));
            assert_eq!(decoded(&fed, 1), at_once);
        }
        let mut decoder = Decoder::default();
        decoder.feed(b"?\r\n");
        let malformed = decoder.next();
        decoder.feed(b":1\r\n");
        assert!(malformed.is_err() && decoder.next() == malformed);
    }

    #[test]
    fn a_line_has_at_most_64_kib() {
        let line = |length: usize| [b"+", &*vec![b'a'; length - 3], b"\r\n"].concat();
        assert_eq!(whole(&line(LINE_MAX)).len(), 1);
        assert_eq!(why(&line(LINE_MAX + 1)), "a line is too long");
        assert_eq!(decoded(&line(LINE_MAX + 1), 1000).0, []);
        // A line that is too long is not read to its end.
        assert_eq!(why(&line(LINE_MAX + 1)[..LINE_MAX]), "a line is too long");
    }

    #[test]
    fn a_string_has_at_most_64_mib() {
        let announced = |length: usize| format!("${length}\r\n").into_bytes();
        assert_eq!(whole(&announced(BULK_MAX)), []);
        assert_eq!(why(&announced(BULK_MAX + 1)), "too much is announced");
        let mut decoder = Decoder::default();
        decoder.feed(&announced(BULK_MAX));
        // Searching all received bytes each time would take minutes.
        let piece = vec![b'a'; 1024];
        for _ in 0..BULK_MAX / piece.len() {
            decoder.feed(&piece);
            assert_eq!(decoder.next(), Ok(None));
        }
        decoder.feed(b"\r\n");
        let frame = decoder.next().unwrap();
        assert!(matches!(frame, Some(Frame::Bulk(bytes)) if bytes.len() == BULK_MAX));
        decoder.feed(b":1\r\n");
        assert!(decoder.buffer.capacity() <= BUFFER_KEPT);
    }

    /// The connection never has a moment with nothing left.
    #[test]
    fn what_was_decoded_is_forgotten_though_more_has_begun() {
        let mut decoder = Decoder::default();
        decoder.feed(b":");
        for _ in 0..10_000 {
            decoder.feed(b"1\r\n:");
            assert_eq!(decoder.next(), Ok(Some(Frame::Integer(1))));
        }
        assert!(decoder.buffer.len() < 100);
    }

    #[test]
    fn a_frame_has_at_most_128_mib() {
        let half = [
            format!("${}\r\n", BULK_MAX - 32).as_bytes(),
            &*vec![0; BULK_MAX - 32],
            b"\r\n",
        ]
        .concat();
        // With its length, the last string has 34 bytes or 35.
        let too_large = Err(Malformed("a reply is too large"));
        for (last, expected) in [(b"$27\r\n", Ok(None)), (b"$28\r\n", too_large)] {
            let mut decoder = Decoder::default();
            for bytes in [b"*3\r\n", &*half, &*half] {
                decoder.feed(bytes);
                assert_eq!(decoder.next(), Ok(None));
            }
            decoder.feed(last);
            assert_eq!(decoder.next(), expected);
        }
        // The limit is for each frame.
        let mut decoder = Decoder::default();
        for _ in 0..3 {
            decoder.feed(&half);
            assert!(matches!(decoder.next(), Ok(Some(Frame::Bulk(_)))));
        }
    }

    #[test]
    fn a_frame_has_at_most_1048576_elements_and_takes_no_memory_for_those_to_come() {
        let mut decoder = Decoder::default();
        decoder.feed(format!("*{ELEMENTS_MAX}\r\n").as_bytes());
        assert_eq!(decoder.next(), Ok(None));
        assert!(decoder.open[0].items.capacity() < 100);
        decoder.feed(&b":1\r\n".repeat(ELEMENTS_MAX));
        let frame = decoder.next().unwrap().unwrap();
        assert_eq!(frame.as_list().map(<[Frame]>::len), Some(ELEMENTS_MAX));
        let half = ELEMENTS_MAX / 2;
        let announced = "too much is announced";
        assert_eq!(
            why(format!("*{}\r\n", ELEMENTS_MAX + 1).as_bytes()),
            announced
        );
        assert_eq!(
            why(format!("%{}\r\n", half + 1).as_bytes()),
            "too many elements"
        );
        assert_eq!(
            why(format!("*{half}\r\n*{half}\r\n:1\r\n*1\r\n").as_bytes()),
            "too many elements"
        );
        assert_eq!(
            whole(format!("*{half}\r\n*{half}\r\n:1\r\n").as_bytes()),
            []
        );
    }

    #[test]
    fn lists_are_nested_at_most_8_deep() {
        let deep = |depth: usize| [&*b"*1\r\n".repeat(depth), b":1\r\n"].concat();
        assert_eq!(whole(&deep(8)).len(), 1);
        assert_eq!(why(&deep(9)), "lists too deep in lists");
    }

    #[test]
    fn a_command_is_a_list_of_strings() {
        let mut command = Command::new("AUTH");
        command
            .arg("user")
            .arg(b"a\r\n\xff")
            .arg("")
            .number(u64::MAX);
        let mut out = b":1\r\n".to_vec();
        command.write(&mut out);
        let number = bulk("18446744073709551615");
        let words = vec![
            bulk("AUTH"),
            bulk("user"),
            Frame::Bulk(b"a\r\n\xff".into()),
            bulk(""),
            number,
        ];
        assert_eq!(whole(&out), [Frame::Integer(1), Frame::Array(words)]);
        assert_eq!(format!("{command:?}"), "AUTH and 4 more");
    }
}
