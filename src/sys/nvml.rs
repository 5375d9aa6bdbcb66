//! NVIDIA's management library, opened at run time where a driver has brought it.
//!
//! In: the library's file name. Out: name and memory of each GPU, or why they are unknown.
//! Invariant: the library is never linked; a driver that hangs costs at most the patience given; numbers and texts that
//! come back are checked before they are used.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::mpsc;
use std::time::Duration;

/// One GPU as the library describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlDevice {
    /// Its name.
    pub name: String,
    /// Its own memory in bytes; `None` where the library says "not supported": it shares the system's memory.
    pub memory_bytes: Option<u64>,
}

/// More GPUs than any real machine has.
const MAX_DEVICES: c_uint = 64;
/// Room for a name, as the library's own header has it.
const NAME_BYTES: usize = 96;
/// Success, and "not supported by this device" (nvml.h).
const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;

/// `nvmlMemory_t`: total, free and used bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

type Init = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type Handle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
type Name = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int;
type Memory = unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int;

/// Asks the library `file` (a path, or a name that the loader looks for). The call runs on a thread of its own, which
/// is left behind if it does not answer within `patience`.
///
/// # Errors
/// What did not work, in words.
pub fn devices(file: &str, patience: Duration) -> Result<Vec<NvmlDevice>, String> {
    let (send, receive) = mpsc::channel();
    let owned = file.to_owned();
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || {
            // Nobody listens any more when it took too long.
            let _ = send.send(ask(&owned));
        })
        .map_err(|error| format!("no thread for {file}: {error}"))?;
    receive
        .recv_timeout(patience)
        .map_err(|_| format!("{file} did not answer within {} ms", patience.as_millis()))?
}

/// An open library; closed on drop.
struct Library(*mut c_void);

impl Library {
    fn open(file: &str) -> Result<Self, String> {
        let name = CString::new(file).map_err(|_| format!("{file:?} is no file name"))?;
        // SAFETY: the name is a C string that lives through the call. Opening runs the library's own constructors,
        // which is what using it means; the caller names only NVIDIA's library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("{file} cannot be opened"));
        }
        Ok(Self(handle))
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is open and the name is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if found.is_null() {
            return Err(format!("it has no {}", name.to_string_lossy()));
        }
        Ok(found)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle came from dlopen and is closed once; no function of it is called afterwards, because
        // every pointer taken from it lives shorter than `self`.
        unsafe { libc::dlclose(self.0) };
    }
}

/// Takes a function out of the library as the named type.
macro_rules! function {
    ($library:expr, $name:literal, $kind:ty) => {{
        let pointer = $library.symbol($name)?;
        // SAFETY: the symbol is not null, and nvml.h declares it with exactly this type since driver 319 (2013).
        unsafe { std::mem::transmute::<*mut c_void, $kind>(pointer) }
    }};
}

fn ask(file: &str) -> Result<Vec<NvmlDevice>, String> {
    let library = Library::open(file)?;
    let init = function!(library, c"nvmlInit_v2", Init);
    let shutdown = function!(library, c"nvmlShutdown", Init);
    let count = function!(library, c"nvmlDeviceGetCount_v2", Count);
    let handle = function!(library, c"nvmlDeviceGetHandleByIndex_v2", Handle);
    let name = function!(library, c"nvmlDeviceGetName", Name);
    let memory = function!(library, c"nvmlDeviceGetMemoryInfo", Memory);
    // SAFETY: takes no argument; it may be called by any thread, any number of times.
    let code = unsafe { init() };
    if code != SUCCESS {
        return Err(format!("{file} cannot start (code {code})"));
    }
    let listed = list(count, handle, name, memory);
    // SAFETY: once for the successful start above; no handle is used after it. Its code says nothing we could act on.
    unsafe { shutdown() };
    listed
}

fn list(count: Count, handle: Handle, name: Name, memory: Memory) -> Result<Vec<NvmlDevice>, String> {
    let mut total: c_uint = 0;
    // SAFETY: writes one unsigned number to a place that is ours.
    let code = unsafe { count(&raw mut total) };
    if code != SUCCESS {
        return Err(format!("it cannot count its devices (code {code})"));
    }
    let mut found = Vec::new();
    for index in 0..total.min(MAX_DEVICES) {
        let mut device = std::ptr::null_mut();
        // SAFETY: writes one pointer to a place that is ours; the index is below the count.
        if unsafe { handle(index, &raw mut device) } != SUCCESS {
            // A device that this process may not see.
            continue;
        }
        let mut text = [0u8; NAME_BYTES];
        // SAFETY: the device is valid until shutdown, and the length given is that of the buffer less the last byte,
        // which stays zero.
        let code = unsafe { name(device, text.as_mut_ptr().cast(), NAME_BYTES as c_uint - 1) };
        let named = (code == SUCCESS)
            .then(|| CStr::from_bytes_until_nul(&text).ok())
            .flatten()
            .map(|text| text.to_string_lossy().trim().to_owned())
            .unwrap_or_default();
        let mut info = MemoryInfo::default();
        // SAFETY: the device is valid until shutdown; writes three numbers to a place that is ours and of that form.
        let memory_bytes = match unsafe { memory(device, &raw mut info) } {
            SUCCESS if info.total > 0 => Some(info.total),
            SUCCESS | NOT_SUPPORTED => None,
            code => return Err(format!("device {index} does not say its memory (code {code})")),
        };
        found.push(NvmlDevice {
            name: named,
            memory_bytes,
        });
    }
    Ok(found)
}
