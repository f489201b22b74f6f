//! What every kind of guard can be asked, in the same words.

/// For a guard type around a [`Guard`](crate::Guard) in its field `guard`.
macro_rules! held {
    ($kind:ident) => {
        impl $kind {
            /// The fencing token; see [`Guard::fence`](crate::Guard::fence).
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

            /// For how long it is held for certain; zero if it was lost. See
            /// [`Guard::remaining`](crate::Guard::remaining).
            pub fn remaining(&self) -> std::time::Duration {
                self.guard.remaining()
            }

            /// Whether it is held for certain at this moment; once false it
            /// stays false. See [`Guard::is_valid`](crate::Guard::is_valid).
            pub fn is_valid(&self) -> bool {
                self.guard.is_valid()
            }

            /// Tells when it is lost; see [`Guard::loss`](crate::Guard::loss).
            pub fn loss(&self) -> $crate::Lost {
                self.guard.loss()
            }

            /// Runs `work` for as long as it is held; see
            /// [`Guard::run`](crate::Guard::run).
            ///
            /// # Errors
            ///
            /// The loss that ended `work`.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops `work`, and changes nothing else.
            pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, $crate::Loss> {
                self.guard.run(work).await
            }

            /// Has it last for at least `lease` from now; see
            /// [`Guard::extend`](crate::Guard::extend).
            ///
            /// # Errors
            ///
            /// Those of [`Guard::extend`](crate::Guard::extend).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves open whether it lasts for longer.
            pub async fn extend(&self, lease: std::time::Duration) -> Result<(), $crate::Error> {
                self.extending(lease).await
            }

            /// The same, for another thread.
            pub(crate) fn extending(
                &self,
                lease: std::time::Duration,
            ) -> impl Future<Output = Result<(), $crate::Error>> + Send + 'static {
                self.guard.extending(lease)
            }

            /// Releases it and waits for the server's word; see
            /// [`Guard::release`](crate::Guard::release).
            ///
            /// # Errors
            ///
            /// Those of [`Guard::release`](crate::Guard::release).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves the release to the background.
            pub async fn release(self) -> Result<(), $crate::Error> {
                self.guard.release().await
            }
        }

        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($kind)).field(&self.guard).finish()
            }
        }
    };
}

pub(crate) use held;
