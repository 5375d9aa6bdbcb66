//! NVIDIA GPUs: cards, Tegra, and the ones that WSL2 passes through.
//!
//! In: PCI and driver files, the device tree, and on the live machine NVIDIA's management library, else `nvidia-smi`.
//! Out: [`Accelerator`]s. Invariant: "Not supported" for memory means one pool with the processor, never a card of
//! unknown size; for a snapshot no program is started and no library opened.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::accelerators::Device;
use super::environment::Signs;
use super::hardware::Accelerator;
use super::root::Root;
use crate::base::Bytes;
use crate::sys::nvml;

/// Where the tool lies; a service's PATH often lacks the WSL one.
const TOOL_PATHS: &[&str] = &[
    "/usr/bin/nvidia-smi",
    "/usr/local/bin/nvidia-smi",
    "/usr/local/nvidia/bin/nvidia-smi",
    "/usr/sbin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
];
/// The management library: by name where the loader looks, then where WSL2 puts it.
const LIBRARIES: &[&str] = &["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];
/// Library and tool normally answer in 0.1 s; a wedged driver can block them for ever.
const PATIENCE: Duration = Duration::from_secs(5);
/// GB10 ("DGX Spark"): a PCI device that shares the processor's memory.
const UNIFIED_IDS: &[u32] = &[0x2e12, 0x2e2a];

/// More GPUs than any real machine has.
const MAX_ROWS: usize = 64;

/// One GPU of the library's or the tool's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name without the `(nvgpu)` mark.
    pub name: String,
    /// Own memory; `None` where there is none to report.
    pub memory: Option<Bytes>,
    /// Shares the system's memory.
    pub unified: bool,
}

/// The tool's place on this machine or capture.
#[must_use]
pub fn tool_path(root: &Root) -> Option<String> {
    TOOL_PATHS
        .iter()
        .find(|path| root.exists(path))
        .map(|&path| path.to_owned())
}

/// Lists NVIDIA's GPUs.
#[must_use]
pub(super) fn gpus(root: &Root, signs: Signs, graphics: &[Device]) -> Vec<Accelerator> {
    let cards: Vec<&Device> = graphics.iter().filter(|device| device.vendor == 0x10de).collect();
    let passed_through = signs.wsl2 && root.exists("/usr/lib/wsl/lib/nvidia-smi");
    let driver_loaded = root.exists("/proc/driver/nvidia/version") || root.exists("/dev/nvidiactl");
    if cards.is_empty() && !signs.tegra && !passed_through && !driver_loaded {
        return Vec::new();
    }
    let tool = tool_path(root);
    let (rows, source) = if root.is_live() {
        answers(LIBRARIES, tool.as_deref(), PATIENCE)
    } else {
        (Vec::new(), String::new())
    };
    let (usable, reason) = reach(root, signs);
    let describe =
        |name: Option<String>, memory, unified: bool, driver: Option<String>, source: &str| Accelerator {
            kind: if unified { "gpu_integrated" } else { "gpu_discrete" }.to_owned(),
            vendor: "nvidia".to_owned(),
            name,
            vram_bytes: memory,
            unified_memory: unified,
            driver,
            usable,
            reason: reason.clone(),
            route: Some("cuda".to_owned()),
            source: source.to_owned(),
        };
    if !rows.is_empty() {
        return rows
            .into_iter()
            .map(|row| {
                let unified = row.unified || signs.tegra;
                describe(
                    Some(row.name),
                    row.memory.filter(|_| !unified),
                    unified,
                    Some("nvidia".to_owned()),
                    &source,
                )
            })
            .collect();
    }
    if signs.tegra {
        return vec![describe(
            tegra_name(root),
            None,
            true,
            Some("nvgpu".to_owned()),
            "/proc/device-tree/model",
        )];
    }
    if !cards.is_empty() {
        return cards
            .into_iter()
            .map(|card| {
                let name = card.slot.as_ref().and_then(|slot| driver_name(root, slot));
                let unified = UNIFIED_IDS.contains(&card.id);
                describe(name, None, unified, card.driver.clone(), &card.folder)
            })
            .collect();
    }
    let source = if passed_through {
        "/usr/lib/wsl/lib/nvidia-smi"
    } else {
        "/proc/driver/nvidia"
    };
    vec![describe(None, None, false, None, source)]
}

/// Whether a CUDA context could be opened here, as far as device nodes and libraries tell.
fn reach(root: &Root, signs: Signs) -> (bool, Option<String>) {
    let nodes: &[&str] = if signs.wsl2 {
        &["/dev/dxg"]
    } else if signs.tegra {
        &[
            "/dev/nvhost-gpu",
            "/dev/nvgpu/igpu0/ctrl",
            "/dev/nvhost-ctrl-gpu",
            "/dev/nvmap",
        ]
    } else {
        &["/dev/nvidiactl"]
    };
    let Some(node) = nodes.iter().find(|node| root.exists(node)) else {
        let remedy = if signs.container.is_some() {
            "start the container with the NVIDIA runtime (`--gpus all`)"
        } else {
            "load NVIDIA's kernel driver"
        };
        return (false, Some(format!("{} is not visible here: {remedy}", nodes[0])));
    };
    if root.access(node) != Some(true) {
        return (
            false,
            Some(format!(
                "no permission for {node}: add this user to the `video` group"
            )),
        );
    }
    const FOLDERS: [&str; 7] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu/tegra",
        "/usr/lib/aarch64-linux-gnu/nvidia",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
    ];
    if FOLDERS
        .iter()
        .any(|folder| root.exists(&format!("{folder}/libcuda.so.1")))
    {
        (true, None)
    } else {
        (
            false,
            Some("libcuda.so.1 is not in the usual folders: install NVIDIA's user-space driver".to_owned()),
        )
    }
}

/// The family in the board's model: `NVIDIA Jetson Orin NX …` → `Orin`.
fn tegra_name(root: &Root) -> Option<String> {
    let model = root.line("/proc/device-tree/model")?;
    ["Thor", "Orin", "Xavier", "TX2", "TX1", "Nano"]
        .iter()
        .find(|family| model.contains(*family))
        .map(|&family| family.to_owned())
}

/// The name that the kernel driver gives for a PCI address.
fn driver_name(root: &Root, slot: &str) -> Option<String> {
    let text = root.read(&format!("/proc/driver/nvidia/gpus/{slot}/information"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("Model:"))
        .map(|name| name.trim().to_owned())
}

/// Rows of the first library that answers, else of the tool, and which of them it was. A library that hangs hangs for
/// the tool as well, so then nothing more is asked.
#[must_use]
pub fn answers(libraries: &[&str], tool: Option<&str>, patience: Duration) -> (Vec<Row>, String) {
    for library in libraries {
        let start = Instant::now();
        match nvml::devices(library, patience) {
            Ok(found) if !found.is_empty() => {
                let rows = found.into_iter().take(MAX_ROWS).map(Row::from).collect();
                return (rows, (*library).to_owned());
            }
            Err(why) if start.elapsed() >= patience => {
                tracing::warn!("{why}; NVIDIA's driver may hang");
                return (Vec::new(), String::new());
            }
            Err(why) => tracing::debug!("{why}"),
            Ok(_) => {}
        }
    }
    let rows = tool.map(ask).unwrap_or_default();
    (rows, tool.unwrap_or_default().to_owned())
}

impl From<nvml::NvmlDevice> for Row {
    fn from(device: nvml::NvmlDevice) -> Self {
        Self {
            memory: device.memory_bytes.map(Bytes),
            unified: device.memory_bytes.is_none(),
            name: device.name,
        }
    }
}

fn ask(tool: &str) -> Vec<Row> {
    let query = [
        "--query-gpu=name,memory.total,addressing_mode",
        "--format=csv,noheader",
    ];
    // Older tools do not know the addressing mode and answer with an error.
    let text =
        run(tool, &query).or_else(|| run(tool, &["--query-gpu=name,memory.total", "--format=csv,noheader"]));
    text.map(|text| parse_rows(&text)).unwrap_or_default()
}

/// Rows of `name, memory, addressing mode`; a header row is skipped.
#[must_use]
pub fn parse_rows(text: &str) -> Vec<Row> {
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("name,"))
        .take(MAX_ROWS)
        .map(|line| {
            let mut cells = line.split(',').map(str::trim);
            let name = cells.next().unwrap_or_default();
            let memory = cells.next().and_then(|cell| cell.parse::<Bytes>().ok());
            let mode = cells.next().unwrap_or_default();
            Row {
                unified: memory.is_none() || name.contains("nvgpu") || mode == "ATS" && name.contains("GB10"),
                name: name.replace("(nvgpu)", "").trim().to_owned(),
                memory,
            }
        })
        .collect()
}

/// Output of a program that ends in time with success; at most 64 KiB.
fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // Ended badly or too late; a failed kill means that it has just ended.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let mut text = String::new();
    child
        .stdout
        .take()?
        .take(1 << 16)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_tool() {
        let rows = parse_rows("name, memory.total [MiB], addressing_mode\nOrin (nvgpu), [N/A], N/A\n");
        assert_eq!(
            rows,
            [Row {
                name: "Orin".to_owned(),
                memory: None,
                unified: true
            }]
        );
        let rows = parse_rows("NVIDIA H200, 143771 MiB, HMM\nNVIDIA GB10, [N/A], ATS\n");
        assert_eq!(
            (rows[0].memory, rows[0].unified),
            (Some(Bytes::mib(143_771)), false)
        );
        assert!(rows[1].unified);
        assert!(parse_rows("").is_empty());
    }
}
