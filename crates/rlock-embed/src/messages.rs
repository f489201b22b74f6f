//! All events and actions, and the configuration: the only place that lists them.
//!
//! What hosts in other languages know of them, and the tables in
//! `docs/embedding.md`, are generated from here by the test `generated`.

use std::time::Duration;

use crate::format::{
    Choice, Data, Fence, Field, Form, Group, Malformed, Message, Reader, Value, Wire, Writer,
};

/// A number that stands for one of a few things.
macro_rules! choice {
    ($(#[doc = $doc:literal])* $Choice:ident { $($number:literal $Option:ident $meaning:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Choice {
            $(#[doc = $meaning] $Option = $number,)*
        }

        impl Wire<'_> for $Choice {
            const FORM: Form = Form::Choice(&Choice {
                name: stringify!($Choice),
                options: &[$(($number, stringify!($Option), $meaning)),*],
            });

            fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                match reader.get::<u8>()? {
                    $($number => Ok(Self::$Option),)*
                    _ => Err(Malformed(concat!("there is no such ", stringify!($Choice)))),
                }
            }

            fn write(&self, writer: &mut Writer) {
                writer.put(&(*self as u8));
            }
        }
    };
}

/// Fields that are written one after the other.
macro_rules! group {
    ($(#[doc = $doc:literal])* <$all:lifetime> $Group:ident $(<$life:lifetime>)? {
        $($field:ident: $type:ty $(= $about:literal)?,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Group $(<$life>)? {
            $(#[doc = concat!(stringify!($field), $(": ", $about)?)] pub $field: $type,)*
        }

        impl<$all> Wire<$all> for $Group $(<$life>)? {
            const FORM: Form = Form::Group(&Group {
                name: stringify!($Group),
                doc: concat!($($doc),*),
                fields: &[$(Field { name: stringify!($field), doc: concat!($($about)?), form: <$type as Wire<$all>>::FORM }),*],
            });

            fn read(reader: &mut Reader<$all>) -> Result<Self, Malformed> {
                Ok(Self { $($field: reader.get()?),* })
            }

            fn write(&self, writer: &mut Writer) {
                $(writer.put(&self.$field);)*
            }
        }
    };
}

/// The kinds of events, or of actions. `(call)` is the number of the call that an
/// event starts.
macro_rules! messages {
    ($(#[doc = $doc:literal])* $Messages:ident<$life:lifetime> $what:literal {
        $($number:literal $Message:ident $(($call:ident))? {
            $($field:ident: $type:ty $(= $about:literal)?),* $(,)?
        } $($ends:literal)?,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $Messages<$life> {
            $(
                #[doc = concat!($what, " ", $number, $(". It ends with: ", $ends)?)]
                $Message {
                    $(#[doc = "the number of the call"] $call: u64,)?
                    $(#[doc = concat!(stringify!($field), $(": ", $about)?)] $field: $type,)*
                },
            )*
        }

        impl<$life> $Messages<$life> {
            #[doc = concat!("Each ", $what, ", in the order of its number.")]
            pub const ALL: &'static [Message] = &[$(Message {
                number: $number,
                name: stringify!($Message),
                starts_call: [$(stringify!($call),)? ""].len() > 1,
                ends: concat!($($ends)?),
                fields: &[
                    $(Field { name: stringify!($call), doc: "", form: Form::U64 },)?
                    $(Field { name: stringify!($field), doc: concat!($($about)?), form: <$type as Wire<$life>>::FORM },)*
                ],
            }),*];

            /// Takes the next one from the bytes.
            ///
            /// # Errors
            ///
            /// [`Malformed`] if they are something else.
            pub fn read(reader: &mut Reader<$life>) -> Result<Self, Malformed> {
                Ok(match reader.get::<u8>()? {
                    $($number => Self::$Message { $($call: reader.get()?,)? $($field: reader.get()?,)* },)*
                    _ => return Err(Malformed(concat!("there is no such ", $what))),
                })
            }

            /// The number of the call that it starts.
            #[must_use]
            pub const fn starts(&self) -> Option<u64> {
                match self {
                    $(Self::$Message { $($call,)? .. } => [$(Some(*$call),)? None][0],)*
                }
            }

            /// Only this one.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                let mut writer = Writer::default();
                self.write(&mut writer);
                writer.into_bytes()
            }

            /// Appends it.
            pub fn write(&self, writer: &mut Writer) {
                match self {
                    $(Self::$Message { $($call,)? $($field,)* } => {
                        let number: u8 = $number;
                        writer.put(&number)$(.put($call))?$(.put($field))*;
                    })*
                }
            }
        }
    };
}

choice! {
    /// Who asks for a lock.
    Owning {
        0 New "a new one",
        1 Activity "an activity",
        2 Named "by name",
    }
}

choice! {
    /// What the servers are together.
    Together {
        0 Single "one server, a master that Sentinels name, or a cluster: one URL",
        1 Quorum "a quorum: one URL for each member",
        2 AnyGrace "a quorum that allows leases above the startup grace of a member",
    }
}

choice! {
    /// How a lock is held.
    Access {
        0 Exclusive "exclusive",
        1 Shared "shared",
        2 Permits "permits",
    }
}

choice! {
    /// Why a connection has ended.
    Fault {
        0 Io "input or output",
        1 Time "time",
        2 Setup "set-up",
        3 Certificate "certificate",
    }
}

choice! {
    /// How to reach a server.
    Transport {
        0 Tcp "TCP",
        1 Tls "TLS",
        2 Insecure "TLS with any certificate",
        3 Unix "a Unix socket",
    }
}

choice! {
    /// Why a guard is over.
    Ending {
        0 LeaseEnded "its lease ended",
        1 EndedByServer "the server ended it",
        2 Released "it was released with the client",
    }
}

choice! {
    /// How important a note is.
    Level {
        0 Debug "debugging",
        1 Information "information",
        2 Warning "warning",
    }
}

group! {
    /// An activity re-enters its locks, and so does an owner with a name. A host counts the activities of all its clients together, so that an activity of one client is another owner in every other client.
    <'a> Owner<'a> {
        owner: Owning,
        activity: u64 = "number of the activity",
        name: &'a str,
    }
}

group! {
    /// Several keys require exclusive mode; in a cluster they may have different slots. An empty key ends with `OutOfRange`.
    <'a> Mode {
        mode: Access,
        permits: u32,
        limit: u32 = "their limit",
    }
}

group! {
    /// Everything of a request that stays the same if it is repeated with another wait.
    <'a> Wanted<'a> {
        owner: Owner<'a>,
        keys: Vec<&'a [u8]>,
        mode: Mode,
    }
}

group! {
    /// The documentation of `Terms` in the Rust client explains them.
    <'a> Terms {
        lease: Duration = "lease in milliseconds, from 3",
        renewed: bool = "whether it is renewed",
        max_hold: Option<Duration> = "longest hold",
        bound: Option<Duration> = "grace of a hold that is bound to its connection (none: it is not bound)",
        replicas: u16,
        margin: Duration = "how long before its lease the guard ends",
    }
}

group! {
    /// An observer receives neither the owner nor the time left.
    <'a> Leader<'a> {
        fence: Fence,
        value: &'a [u8],
        owner: &'a str,
        time_left: Option<Duration>,
    }
}

group! {
    /// The configuration of a machine.
    <'a> Configuration<'a> {
        version: u32,
        urls: Vec<&'a [u8]> = "URLs",
        together: Together = "what the servers are together",
        name: &'a str = "name of the client (empty: none)",
        library: &'a str = "name of the library",
        library_version: &'a str = "its version",
        response: Option<Duration> = "response timeout (none: 5 s)",
        retry: Option<Duration> = "retry timeout (none: 10 s)",
        replication: Option<Duration> = "replication timeout (none: 1 s)",
        listens: bool = "whether to report each occurrence",
        seed: [u8; 32] = "32 random bytes",
    }
}

messages! {
    /// What a host reports to its machine.
    Event<'a> "event" {
        1 Connect(call) {} "done",
        2 Lock(call) {
            wanted: Wanted<'a>,
            wait: Option<Duration> = "wait (0: one try)",
            terms: Terms,
        } "granted, refused",
        3 Release(call) {
            guard: u64,
            least: Option<Duration> = "least time since the grant (none: at once; above 30 days the call fails, and the lock is free when its lease ends)",
        } "done",
        4 Upgrade(call) { guard: u64, wait: Option<Duration> } "granted, with the number of that guard; refused",
        5 Extend(call) { guard: u64, lease: Duration = "lease in milliseconds" } "done",
        6 Downgrade(call) { guard: u64 } "done",
        7 Question(call) {
            key: &'a [u8] = "key that selects the server (empty: each server)",
            words: Vec<&'a [u8]> = "the words of a command",
            changes: bool = "whether it changes something",
            limit: Option<Duration> = "limit (none: the retry timeout)",
        } "answered, once each server has answered; failed if one of them has not",
        8 Abandon { call: u64 } "nothing: the caller no longer waits or observes",
        9 Metrics(call) {} "answered: grants, waits, losses, late renewals, reconnects",
        10 Opened { connection: u64 },
        11 Received { connection: u64, bytes: Data<'a> = "what has arrived" },
        12 Ended { connection: u64, failure: Fault = "why", text: &'a str = "what happened, for a person" },
        13 Flush(call) {} "done, once nothing is left to clean up; failed with `NotReleased` if the server refused releases that nobody waits for, or the client ended before them, and their leases have not ended",
        14 LeaveAll {} "Waiting calls end with `Closed`, and all holds are released.",
        15 Closed {},
        16 Tick {},
        17 Leave { guard: u64 } "nothing: a release without an answer",
        18 Untaken { guard: u64 } "nothing: as if it had not been granted",
        19 Campaign(call) {
            wanted: Wanted<'a> = "one key, in exclusive mode",
            wait: Option<Duration> = "wait (0: one try)",
            terms: Terms,
            value: &'a [u8] = "value to publish",
        } "granted, refused",
        20 Proclaim(call) { guard: u64, value: &'a [u8] } "done",
        21 Observe(call) { key: &'a [u8] } "*leader*, any number of times, until *failed* or *abandon*",
        22 Leader(call) { key: &'a [u8] } "*leader*, once",
        23 ReleasePermits(call) {
            guard: u64,
            permits: u32 = "how many of the guard's permits (all of them: as *release*)",
        } "done",
    }
}

messages! {
    /// What a host does for its machine.
    Action<'a> "action" {
        1 Connect { connection: u64, how: Transport, host: &'a str = "host or path", port: u16 },
        2 Write { connection: u64, bytes: Data<'a> = "what to send" },
        3 Close { connection: u64 },
        4 Granted { call: u64, guard: u64, owner: &'a str, fences: Vec<(&'a [u8], Fence)> = "the fence of each key" },
        5 Refused { call: u64 },
        6 Done { call: u64 },
        7 Failed {
            call: u64,
            code: &'a str,
            text: &'a str = "message",
            transient: bool = "whether a retry may help",
        },
        8 Answered { call: u64, answers: Value<'a> = "a list with the answer of each server" },
        9 Over { guard: u64, why: Ending },
        10 Note { level: Level, text: &'a str = "message" },
        11 Leader {
            call: u64,
            leader: Option<Leader<'a>> = "whether somebody leads",
            missed: bool = "whether changes may have been missed",
        },
        12 Occurred {
            guard: u64 = "number of the guard that it concerns (0: none)",
            what: &'a str = "kind of the occurrence, as in [telemetry](telemetry.md); the configuration says whether it reports others than `at_risk`",
            outcome: &'a str,
            nanoseconds: u64,
            keys: Vec<&'a [u8]>,
            text: &'a str,
        },
    }
}

impl<'a> Wire<'a> for Option<Leader<'a>> {
    const FORM: Form = match <Leader<'_> as Wire<'_>>::FORM {
        Form::Group(group) => Form::Optional(group),
        other => other,
    };

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (leads, leader) = (reader.get()?, reader.get()?);
        Ok(Some(leader).filter(|_| leads))
    }

    fn write(&self, writer: &mut Writer) {
        let nobody = Leader {
            fence: Fence(0),
            value: &[],
            owner: "",
            time_left: None,
        };
        writer
            .put(&self.is_some())
            .put(self.as_ref().unwrap_or(&nobody));
    }
}

/// The deadline and the actions of an output.
///
/// # Errors
///
/// [`Malformed`] if it is something else.
pub fn read_output(output: &[u8]) -> Result<(u64, Vec<Action<'_>>), Malformed> {
    let mut reader = Reader::new(output);
    let (deadline, mut actions) = (reader.get()?, Vec::new());
    while reader.end().is_err() {
        actions.push(Action::read(&mut reader)?);
    }
    Ok((deadline, actions))
}

/// The fields of the configuration.
#[must_use]
pub fn configuration() -> &'static [Field] {
    match <Configuration<'_> as Wire<'_>>::FORM {
        Form::Group(group) => group.fields,
        _ => &[],
    }
}
