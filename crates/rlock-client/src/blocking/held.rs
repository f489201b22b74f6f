//! What every kind of guard can be asked, in the same words.

/// For a guard type around the async one, in its field `guard`.
macro_rules! held {
    ($kind:ident) => {
        impl $kind {
            /// The fencing token; see [`crate::Guard::fence`].
            pub fn fence(&self) -> u64 {
                self.guard.fence()
            }

            /// Who holds it.
            pub fn owner(&self) -> &$crate::Owner {
                self.guard.owner()
            }

            /// The lock's key.
            pub fn key(&self) -> &[u8] {
                self.guard.key()
            }

            /// For how long it is held for certain; see
            /// [`crate::Guard::remaining`].
            pub fn remaining(&self) -> std::time::Duration {
                self.guard.remaining()
            }

            /// Whether it is held for certain; see [`crate::Guard::is_valid`].
            pub fn is_valid(&self) -> bool {
                self.guard.is_valid()
            }

            /// Tells when it is lost; see [`crate::Guard::loss`].
            pub fn loss(&self) -> $crate::blocking::Lost {
                $crate::blocking::Lost::of(self.guard.loss(), &self.runtime)
            }

            /// Has it last for at least `lease` from now; see
            /// [`crate::Guard::extend`].
            ///
            /// # Errors
            ///
            /// Those of [`crate::Guard::extend`].
            pub fn extend(&self, lease: std::time::Duration) -> Result<(), $crate::Error> {
                $crate::blocking::run(&self.runtime, self.guard.extending(lease))?
            }

            /// Releases it and waits for the server's word; see
            /// [`crate::Guard::release`].
            ///
            /// # Errors
            ///
            /// Those of [`crate::Guard::release`].
            pub fn release(self) -> Result<(), $crate::Error> {
                let guard = self.guard;
                $crate::blocking::run(&self.runtime, async move { guard.release().await })?
            }
        }

        impl $crate::blocking::on_thread::OnThread for $crate::$kind {
            type Blocking = $kind;

            fn on(self, runtime: &tokio::runtime::Handle) -> $kind {
                let runtime = runtime.clone();
                $kind {
                    guard: self,
                    runtime,
                }
            }
        }
    };
}

pub(super) use held;
