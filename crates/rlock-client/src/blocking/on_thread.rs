//! How what an async call gives becomes what a blocking one gives: guards keep
//! the thread that they are released on, and all else stays as it is.

use tokio::runtime::Handle;

use super::run;
use crate::{Error, Info};

pub(super) trait OnThread: Send + 'static {
    type Blocking;

    fn on(self, runtime: &Handle) -> Self::Blocking;
}

/// Waits on this thread for a call that runs on the client's.
pub(super) fn wait_for<T: OnThread>(
    runtime: &Handle,
    call: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T::Blocking, Error> {
    Ok(run(runtime, call)??.on(runtime))
}

impl<T: OnThread> OnThread for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn on(self, runtime: &Handle) -> Self::Blocking {
        self.map(|value| value.on(runtime))
    }
}

macro_rules! unchanged {
    ($($kind:ty),*) => {$(
        impl OnThread for $kind {
            type Blocking = Self;

            fn on(self, _: &Handle) -> Self {
                self
            }
        }
    )*};
}

unchanged!((), bool, u64, Info);
