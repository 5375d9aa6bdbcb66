//! What has to happen to the process before it has a second thread.
//!
//! In: nothing. Out: environment variables that C libraries read when they start.
//! Invariant: the environment is changed only while this is the only thread.

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
