//! Scans the fields of a hash that is a lock.

use std::{cell::OnceCell, ops::ControlFlow, sync::Arc};

use rlock_core::{
    Extra, Holder, Timestamp,
    codec::{self, ExclusiveHolder, Field, SharedHolders, SoleHolder},
};

use crate::api::{Key, MainThread, OwnedText, Text};

/// The number of fields of an exclusive lock without extras: its holder and its
/// fence.
pub(crate) const FIELDS_OF_PLAIN: usize = 2;
/// The largest number of fields of an exclusive lock.
pub(crate) const FIELDS_OF_EXCLUSIVE: usize = FIELDS_OF_PLAIN + Extra::ALL.len();
/// The number of fields of a lock that one owner holds in shared mode.
pub(crate) const FIELDS_OF_ONE: usize = 4;
/// A hash with more fields than this is not an exclusive lock and is not
/// scanned, even if a later version writes it.
const FIELDS_MAX: usize = 16;

/// Strings that many grants need, made once.
pub(crate) struct Constants {
    pub(crate) fence: OwnedText,
    pub(crate) extras: [OwnedText; Extra::ALL.len()],
    pub(crate) mode: OwnedText,
    pub(crate) shared: OwnedText,
    pub(crate) one: OwnedText,
}

pub(crate) static CONSTANTS: MainThread<OnceCell<Constants>> = MainThread::new(OnceCell::new());

pub(crate) fn constants() -> &'static Constants {
    CONSTANTS.get().get_or_init(|| Constants {
        fence: OwnedText::new(codec::FENCE.as_bytes()),
        extras: Extra::ALL.map(|it| OwnedText::new(it.field().as_bytes())),
        mode: OwnedText::new(codec::MODE.as_bytes()),
        shared: OwnedText::new(codec::SHARED.as_bytes()),
        one: OwnedText::new(b"1"),
    })
}

/// The extras of an exclusive hold, each with its field.
pub(crate) fn extra_fields() -> impl Iterator<Item = (Extra, Text<'static>)> {
    let fields = constants().extras.iter().map(OwnedText::text);
    Extra::ALL.into_iter().zip(fields)
}

/// Scans a hash for its one holder; `None` if it is not an exclusive lock.
pub(crate) fn sole_owner(key: &Key<'_>) -> Option<ExclusiveHolder> {
    if key.len() > FIELDS_MAX {
        return None;
    }
    let mut sole = SoleHolder::default();
    let _ = key.for_each_field(&mut |field, value| sole.add(field, value));
    sole.found()
}

/// The shared holders of a lock.
pub(crate) struct Scanned {
    pub(crate) holders: Vec<(Arc<[u8]>, Holder)>,
    /// The holders with only a count.
    pub(crate) without_terms: Vec<Arc<[u8]>>,
}

/// How many fields are read between two checks of the time.
const FIELDS_AT_ONCE: usize = 64;

/// Scans a hash for all its shared holders; `None` if it is not a lock, or if
/// that takes too long.
pub(crate) fn scan(
    key: &Key<'_>,
    deadline: Timestamp,
    is_over: &dyn Fn() -> bool,
) -> Option<Scanned> {
    let mut shared = SharedHolders::of(key.len());
    let mut seen = 0_usize;
    let scan = key.for_each_field(&mut |field, value| {
        shared.add(field, value)?;
        seen += 1;
        if seen.is_multiple_of(FIELDS_AT_ONCE) && is_over() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    if scan.is_break() {
        return None;
    }
    let mut without_terms = Vec::new();
    let holders = shared.found(deadline, |owner| without_terms.push(Arc::clone(owner)))?;
    Some(Scanned {
        holders,
        without_terms,
    })
}

/// Counts the shared holders of a hash, and how many of them have leases that
/// have not ended; `None` if a full scan is needed.
pub(crate) fn count_holders(key: &Key<'_>, now: Timestamp) -> Option<[usize; 2]> {
    let (mut owners, mut terms, mut live) = (0, 0, 0);
    let scan = key.for_each_field(&mut |field, value| {
        match Field::named(field) {
            Field::Terms(_) => {
                let Some(holder) = codec::holder(value) else {
                    return ControlFlow::Break(());
                };
                terms += 1;
                live += usize::from(!holder.deadline.has_passed(now));
            }
            Field::Count(_) if codec::count(value).is_none() => return ControlFlow::Break(()),
            Field::Count(_) => owners += 1,
            Field::Fence | Field::Extra(_) | Field::Reserved => {}
        }
        ControlFlow::Continue(())
    });
    (scan.is_continue() && owners == terms).then_some([owners, live])
}

/// The field with the details of a shared holder.
pub(crate) fn holder_field(owner: &[u8]) -> OwnedText {
    codec::with_terms_field(owner, OwnedText::new)
}

/// The content of that field.
pub(crate) fn holder_terms(holder: &Holder) -> OwnedText {
    codec::with_terms(holder, OwnedText::new)
}
