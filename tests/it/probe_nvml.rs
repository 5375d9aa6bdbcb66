//! NVIDIA's management library: a stand-in, built here by the C compiler, is opened as the real one would be.
//!
//! Needs `cc`; without one it is skipped aloud.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use edge_deploy::base::Bytes;
use edge_deploy::probe::nvidia;
use edge_deploy::sys::nvml::{self, NvmlDevice};

/// Two devices: a card with memory and one that shares the system's; macros change what goes wrong.
const STAND_IN: &str = r#"
#include <stddef.h>
#include <unistd.h>
struct memory { unsigned long long total, free, used; };
#ifdef HANG
int nvmlInit_v2(void) { sleep(3600); return 0; }
#else
#ifndef INIT
#define INIT 0
#endif
int nvmlInit_v2(void) { return INIT; }
#endif
int nvmlShutdown(void) { return 0; }
#ifndef COUNT
#define COUNT 3
#endif
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index == 1) return 4; /* no permission */
    *device = (void *)(size_t)(index + 1);
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
#ifdef LONG
    for (unsigned at = 0; at < length; at++) name[at] = 'x'; /* no end */
#else
    const char *text = (size_t)device == 1 ? "NVIDIA H200" : "NVIDIA GB10";
    unsigned at = 0;
    for (; text[at] && at + 1 < length; at++) name[at] = text[at];
    name[at] = 0;
#endif
    return 0;
}
#ifndef BARE
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    if ((size_t)device != 1) return 3; /* not supported */
    memory->total = 1024ull * 1024 * 1024 * 140;
    return 0;
}
#endif
"#;

/// Builds the stand-in with these macros; `None` without a compiler.
fn library(folder: &Path, macros: &[&str]) -> Option<PathBuf> {
    let source = folder.join("nvml.c");
    std::fs::write(&source, STAND_IN).unwrap();
    let target = folder.join(format!(
        "libnvidia-ml-{}.so",
        macros.concat().replace(['-', '='], "")
    ));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&target)
        .args(macros)
        .arg(&source)
        .output();
    match built {
        Err(error) => {
            skipped!("SKIPPED the management library's stand-in: no C compiler: {error}");
            None
        }
        Ok(output) => {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(target)
        }
    }
}

#[test]
fn devices_of_a_stand_in_library() {
    const LONG_ENOUGH: Duration = Duration::from_mins(1);
    let folder = tempfile::tempdir().unwrap();
    let Some(sound) = library(folder.path(), &[]) else {
        return;
    };
    let ask = |path: &Path, patience| nvml::devices(path.to_str().unwrap(), patience);
    let device = |name: &str, memory_bytes| NvmlDevice {
        name: name.to_owned(),
        memory_bytes,
    };
    assert_eq!(
        ask(&sound, LONG_ENOUGH).unwrap(),
        [
            device("NVIDIA H200", Some(140 << 30)),
            device("NVIDIA GB10", None)
        ]
    );
    let with = |macros: &[&str]| library(folder.path(), macros).expect("it was built before");
    assert!(
        ask(&with(&["-DINIT=9"]), LONG_ENOUGH)
            .unwrap_err()
            .contains("code 9")
    );
    assert!(ask(&with(&["-DCOUNT=0"]), LONG_ENOUGH).unwrap().is_empty());
    assert!(
        ask(&with(&["-DBARE"]), LONG_ENOUGH)
            .unwrap_err()
            .contains("nvmlDeviceGetMemoryInfo")
    );
    // A count that no machine has, and a name without an end.
    let many = ask(&with(&["-DCOUNT=4294967295u", "-DLONG"]), LONG_ENOUGH).unwrap();
    assert_eq!(many.len(), 63);
    assert!(
        many.iter()
            .all(|device| device.name.len() < 96 && device.name.starts_with("xxx"))
    );
    for nothing in ["libno-such-thing.so.1", "", "/dev/null", "a\0b"] {
        assert!(nvml::devices(nothing, LONG_ENOUGH).is_err());
    }
    // A driver that never answers is left alone.
    let hung = with(&["-DHANG"]);
    let start = Instant::now();
    assert!(
        ask(&hung, Duration::from_millis(200))
            .unwrap_err()
            .contains("did not answer")
    );
    assert!(start.elapsed() < Duration::from_mins(50), "it was waited for");
}

#[test]
fn the_first_library_that_answers_is_used_and_then_the_tool() {
    use std::os::unix::fs::PermissionsExt as _;
    let patience = Duration::from_mins(1);
    let folder = tempfile::tempdir().unwrap();
    let Some(sound) = library(folder.path(), &[]) else {
        return;
    };
    let sound = sound.to_str().unwrap();
    let (rows, source) = nvidia::answers(&["libno-such-thing.so.1", sound], None, patience);
    assert_eq!(source, sound);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.memory, row.unified))
        .collect();
    assert_eq!(
        seen,
        [
            ("NVIDIA H200", Some(Bytes(140 << 30)), false),
            ("NVIDIA GB10", None, true)
        ]
    );
    let tool = folder.path().join("nvidia-smi");
    std::fs::write(&tool, "#!/bin/sh\necho 'NVIDIA T4, 15360 MiB, N/A'\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tool = tool.to_str().unwrap();
    let (rows, source) = nvidia::answers(&["libno-such-thing.so.1"], Some(tool), patience);
    assert_eq!(
        (source.as_str(), rows[0].memory),
        (tool, Some(Bytes::mib(15_360)))
    );
    let hung = library(folder.path(), &["-DHANG"]).unwrap();
    let (rows, _) = nvidia::answers(&[hung.to_str().unwrap()], Some(tool), Duration::from_millis(200));
    assert!(rows.is_empty(), "the tool would hang as the library does");
    assert!(nvidia::answers(&[], None, patience).0.is_empty());
}
