//! Whether the operating system lets this process use AMX tiles.
//!
//! In: `arch_prctl`. Out: [`AmxState`]. Invariant: asks only; never requests the permission.

/// Linux hands out the 8 KiB tile state on request, once per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmxState {
    /// The kernel does not support it.
    Unsupported,
    /// The kernel would give it on request.
    OnRequest,
    /// This process has it.
    Granted,
}

impl AmxState {
    /// `unsupported`, `on_request` or `granted`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::OnRequest => "on_request",
            Self::Granted => "granted",
        }
    }
}

/// The state for this process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[must_use]
pub fn state() -> AmxState {
    /// Kernel-supported and process-permitted state components (`asm/prctl.h`).
    const GET_SUPPORTED: libc::c_long = 0x1021;
    const GET_PERMITTED: libc::c_long = 0x1022;
    /// The tile data component of XCR0.
    const TILE_DATA: u64 = 1 << 18;
    let ask = |what: libc::c_long| {
        let mut mask = 0u64;
        // SAFETY: both requests only write one u64 through the pointer, which points to a live, aligned u64.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, what, &raw mut mask) };
        result == 0 && mask & TILE_DATA != 0
    };
    if ask(GET_PERMITTED) {
        AmxState::Granted
    } else if ask(GET_SUPPORTED) {
        AmxState::OnRequest
    } else {
        AmxState::Unsupported
    }
}

/// Other systems have no AMX.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[must_use]
pub fn state() -> AmxState {
    AmxState::Unsupported
}
