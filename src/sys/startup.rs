//! What has to happen to the process before it has a second thread.
//!
//! In: nothing. Out: environment variables that C libraries read when they start, and settings of the allocator.
//! Invariant: the environment is changed only while this is the only thread.

/// Lets freed memory go back to the system: few arenas, large blocks mapped on their own, a bounded rest on top.
/// glibc would otherwise keep an arena for each thread and raise its bounds with every large block that is freed, so
/// that a burst of large requests stays resident. Other C libraries have no such settings.
pub fn keep_allocator_small() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_ARENA_MAX, 4),
        (libc::M_MMAP_THRESHOLD, 256 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
    ] {
        // SAFETY: takes two integers by value and no pointer; it may be called at any time. A setting that is
        // refused keeps its default.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Points hwloc's plugin folder to nothing, so that it does not load plugins, which would open OpenCL, OpenGL and
/// PCI libraries. Call it first in `main`. Returns whether it was done: not if other threads run already.
pub fn keep_hwloc_plugins_out() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return false;
    }
    // SAFETY: changing the environment is unsound only while another thread may read or change it. The count above
    // shows that this is the only thread, and it starts none before the call returns.
    unsafe { std::env::set_var("HWLOC_PLUGINS_PATH", "/dev/null") };
    true
}
