//! What events and actions are made of, as bytes.
//!
//! Numbers are little-endian. A text or byte string starts with its length, a
//! list with the number of its items; both have 32 bits. [`NONE`] stands for a
//! time without a limit.

use std::borrow::Cow;
use std::time::Duration;

/// The version of this format. It changes with everything that an older host
/// would not understand.
pub const VERSION: u32 = 3;

/// Instead of a time: no limit, or none at all.
pub const NONE: u64 = u64::MAX;

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

/// An event or an action, for generators and documents.
#[derive(Debug)]
pub struct Message {
    /// The byte that it starts with.
    pub number: u8,
    /// In words.
    pub name: &'static str,
    /// Whether it begins with the number of a call that it starts.
    pub starts_call: bool,
    /// What comes after it.
    pub ends: &'static str,
    /// Also the number of the call.
    pub fields: &'static [Field],
}

/// A field of a message or a group.
#[derive(Debug)]
pub struct Field {
    /// As in Rust.
    pub name: &'static str,
    /// What it means, unless its name says that.
    pub doc: &'static str,
    /// How it is written.
    pub form: Form,
}

/// Fields that several messages have.
#[derive(Debug)]
pub struct Group {
    /// As in Rust.
    pub name: &'static str,
    /// What it is, and what is valid.
    pub doc: &'static str,
    /// In their order.
    pub fields: &'static [Field],
}

/// A number that stands for one of a few things.
#[derive(Debug)]
pub struct Choice {
    /// As in Rust.
    pub name: &'static str,
    /// The number, the name and the meaning of each.
    pub options: &'static [(u8, &'static str, &'static str)],
}

/// How a field is written.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A number of 8 bits.
    U8,
    /// A number of 16 bits.
    U16,
    /// A number of 32 bits.
    U32,
    /// A number of 64 bits.
    U64,
    /// A number of 64 bits, which a host must not round.
    Fence,
    /// A `u8`, 0 or 1.
    Flag,
    /// A `u64` in milliseconds, or [`NONE`].
    Millis,
    /// A short byte string: a key or a value.
    Bytes,
    /// The bytes that a connection carries.
    Data,
    /// UTF-8.
    Text,
    /// Byte strings.
    List,
    /// 32 random bytes.
    Seed,
    /// Keys with their fences.
    Fences,
    /// What a server answered.
    Value,
    /// A `u8`.
    Choice(&'static Choice),
    /// The fields of a group.
    Group(&'static Group),
    /// A flag, and the fields of a group, which are empty if the flag is 0.
    Optional(&'static Group),
}

/// What can be a field.
pub trait Wire<'a>: Sized {
    /// How it is written.
    const FORM: Form;

    /// Takes it from the bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they are something else.
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed>;

    /// Appends it.
    fn write(&self, writer: &mut Writer);
}

/// The unread rest of a message.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

const SHORT: Malformed = Malformed("it is too short");

impl<'a> Reader<'a> {
    /// Reads these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next field.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the bytes are something else.
    pub fn get<T: Wire<'a>>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if something is.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed("it is too long")),
        }
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

    /// A number of items, and as many of them.
    fn items<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        (0..self.get::<u32>()?).map(|_| item(self)).collect()
    }
}

/// Writes messages, one after the other.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Writes into `buffer`, from its start.
    #[must_use]
    pub fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self(buffer)
    }

    /// Appends a field.
    pub fn put<'a>(&mut self, field: &impl Wire<'a>) -> &mut Self {
        field.write(self);
        self
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.put(&u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// What has been written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Overwrites the first number.
    pub(crate) fn set_first(&mut self, number: u64) {
        if let Some(first) = self.0.first_chunk_mut() {
            *first = number.to_le_bytes();
        }
    }
}

macro_rules! numbers {
    ($($number:ty: $Form:ident),*) => {$(
        impl Wire<'_> for $number {
            const FORM: Form = Form::$Form;

            fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self::from_le_bytes(reader.array()?))
            }

            fn write(&self, writer: &mut Writer) {
                writer.0.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
numbers!(u8: U8, u16: U16, u32: U32, u64: U64);

macro_rules! forms {
    ($($type:ty: $Form:ident, |$reader:ident| $read:expr, |$it:ident, $writer:ident| $write:expr;)*) => {$(
        impl<'a> Wire<'a> for $type {
            const FORM: Form = Form::$Form;

            fn read($reader: &mut Reader<'a>) -> Result<Self, Malformed> {
                $read
            }

            fn write(&self, $writer: &mut Writer) {
                let $it = self;
                $write;
            }
        }
    )*};
}
forms! {
    bool: Flag, |reader| Ok(reader.get::<u8>()? != 0), |it, writer| writer.put(&u8::from(*it));
    // Every number is a time: a time out of range is the caller's error.
    Duration: U64, |reader| Ok(Self::from_millis(reader.get()?)), |it, writer| writer.put(&millis(*it));
    Option<Duration>: Millis,
        |reader| Ok(Some(reader.get()?).filter(|it| *it != NONE).map(Duration::from_millis)),
        |it, writer| writer.put(&it.map_or(NONE, millis));
    Fence: Fence, |reader| reader.get().map(Self), |it, writer| writer.put(&it.0);
    &'a [u8]: Bytes,
        |reader| {
            let length = reader.get::<u32>()?;
            reader.take(usize::try_from(length).map_err(|_| SHORT)?)
        },
        |it, writer| writer.count(it.len()).0.extend_from_slice(it);
    Data<'a>: Data, |reader| reader.get().map(Self), |it, writer| writer.put(&it.0);
    &'a str: Text,
        |reader| std::str::from_utf8(reader.get()?).map_err(|_| Malformed("a text is not UTF-8")),
        |it, writer| writer.put(&it.as_bytes());
    Vec<&'a [u8]>: List, |reader| reader.items(Reader::get), |it, writer| {
        writer.count(it.len());
        it.iter().for_each(|item| item.write(writer));
    };
    [u8; 32]: Seed, |reader| reader.array(), |it, writer| writer.0.extend_from_slice(it);
    Vec<(&'a [u8], Fence)>: Fences, |reader| reader.items(|it| Ok((it.get()?, it.get()?))), |it, writer| {
        writer.count(it.len());
        it.iter().for_each(|(key, fence)| _ = writer.put(key).put(fence));
    };
    Value<'a>: Value, |reader| Self::next(reader), |it, writer| it.append(writer);
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NONE)
}

/// The fence of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// The bytes that a connection carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data<'a>(pub &'a [u8]);

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Nothing.
    Nil,
    /// A number.
    Integer(i64),
    /// A byte string.
    Bytes(Cow<'a, [u8]>),
    /// A list.
    List(Vec<Self>),
    /// Pairs.
    Map(Vec<(Self, Self)>),
    /// An error of the server.
    Error(Cow<'a, str>),
}

impl<'a> Value<'a> {
    fn next(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match reader.get::<u8>()? {
            0 => Self::Nil,
            1 => Self::Integer(reader.get::<u64>()?.cast_signed()),
            2 => Self::Bytes(Cow::Borrowed(reader.get()?)),
            3 => Self::List(reader.items(Reader::get)?),
            4 => Self::Map(reader.items(|it| Ok((it.get()?, it.get()?)))?),
            5 => Self::Error(Cow::Borrowed(reader.get()?)),
            _ => return Err(Malformed("there is no such value")),
        })
    }

    fn append(&self, writer: &mut Writer) {
        match self {
            Self::Nil => _ = writer.put(&0_u8),
            Self::Integer(number) => _ = writer.put(&1_u8).put(&number.cast_unsigned()),
            Self::Bytes(bytes) => _ = writer.put(&2_u8).put(&&**bytes),
            Self::List(items) => {
                writer.put(&3_u8).count(items.len());
                items.iter().for_each(|item| item.append(writer));
            }
            Self::Map(pairs) => {
                writer.put(&4_u8).count(pairs.len());
                for (key, value) in pairs {
                    writer.put(key).put(value);
                }
            }
            Self::Error(text) => _ = writer.put(&5_u8).put(&&**text),
        }
    }
}
