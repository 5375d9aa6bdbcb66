//! GPUs and NPUs as an inventory: what is there, and whether this process could compute on it.
//!
//! In: DRM, accel and PCI devices, NVIDIA's driver files and tool, the device tree. Out: [`Accelerator`]s.
//! Invariant: hardware that is there but out of reach is listed with the reason, never called absent; hardware that
//! nothing shows is never guessed; memory sizes come from drivers, not from tables of names.

use std::collections::BTreeSet;

use super::environment::Signs;
use super::hardware::Accelerator;
use super::nvidia;
use super::root::Root;
use crate::base::Bytes;

const PCI: &str = "/sys/bus/pci/devices";
/// More devices than any real machine has.
const MAX_DEVICES: usize = 4096;

/// AMD processors with graphics (PCI ids): they share the system's memory even where a carve-out looks like a card's.
const AMD_APUS: &[u32] = &[
    0x1114, 0x13c0, 0x13fe, 0x1435, 0x1506, 0x150e, 0x1586, 0x15bf, 0x15c8, 0x15d8, 0x15dd, 0x15e7, 0x1636,
    0x1638, 0x163f, 0x164c, 0x164d, 0x164e, 0x1681, 0x1900, 0x1901, 0x1902, 0x9870, 0x9874, 0x98e4,
];
/// NPUs by PCI id: vendor, device, name, driver that makes them usable.
const NPUS: &[(u32, u32, &str, &str)] = &[
    (0x1022, 0x17f0, "XDNA 2", "amdxdna (Linux 6.14 or newer)"),
    (0x1022, 0x1502, "XDNA", "amdxdna (Linux 6.14 or newer)"),
    (0x8086, 0x7d1d, "Meteor Lake NPU", "intel_vpu"),
    (0x8086, 0xad1d, "Arrow Lake NPU", "intel_vpu"),
    (0x8086, 0x643e, "Lunar Lake NPU", "intel_vpu"),
    (0x8086, 0xb03e, "Panther Lake NPU", "intel_vpu"),
];

/// A device as sysfs shows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    /// Folder of the device.
    pub folder: String,
    /// PCI address, where known.
    pub slot: Option<String>,
    /// PCI vendor id.
    pub vendor: u32,
    /// PCI device id.
    pub id: u32,
    /// PCI class, 24 bits.
    pub class: Option<u32>,
    pub driver: Option<String>,
}

/// Lists them all: graphics first, then NPUs.
#[must_use]
pub fn inventory(root: &Root, signs: Signs) -> Vec<Accelerator> {
    let pci: Vec<Device> = root
        .list(PCI)
        .iter()
        .take(MAX_DEVICES)
        .filter_map(|slot| pci_device(root, slot))
        .collect();
    let mut graphics: Vec<Device> = Vec::new();
    for card in root.numbered("/sys/class/drm", "card").iter().take(64) {
        graphics.extend(device_at(root, &format!("/sys/class/drm/card{card}/device")));
    }
    for device in pci
        .iter()
        .filter(|d| d.class.is_some_and(|class| class >> 16 == 0x03))
    {
        let known = graphics.iter().any(|seen| match (&seen.slot, &device.slot) {
            (Some(a), Some(b)) => a == b,
            _ => (seen.vendor, seen.id) == (device.vendor, device.id),
        });
        if !known {
            graphics.push(device.clone());
        }
    }
    let mut found = nvidia::gpus(root, signs, &graphics);
    found.extend(graphics.iter().filter_map(|device| gpu(root, device)));
    found.extend(npus(root, &pci));
    found
}

/// AMD and Intel graphics; other vendors' display controllers (server boards, virtual machines) cannot compute.
fn gpu(root: &Root, device: &Device) -> Option<Accelerator> {
    let (vendor, integrated, route) = match device.vendor {
        0x1002 | 0x1022 => ("amd", AMD_APUS.contains(&device.id), "vulkan or rocm"),
        0x8086 => ("intel", intel_integrated(device), "vulkan or level-zero"),
        _ => return None,
    };
    let node = render_node(root, device);
    let (usable, reason) = match (&node, &device.driver) {
        (Some(node), _) => match root.access(node) {
            Some(true) => (true, None),
            _ => (false, Some(format!("no permission for {node}: add this user to the `render` group"))),
        },
        (None, Some(driver)) => {
            (false, Some(format!("driver {driver} is bound but no /dev/dri render node is visible here; pass /dev/dri into the container")))
        }
        (None, None) => (false, Some("no driver or render node is visible; load the kernel driver or pass /dev/dri into the container".to_owned())),
    };
    Some(Accelerator {
        kind: if integrated {
            "gpu_integrated"
        } else {
            "gpu_discrete"
        }
        .to_owned(),
        vendor: vendor.to_owned(),
        name: root.line(&format!("{}/product_name", device.folder)),
        vram_bytes: root
            .number(&format!("{}/mem_info_vram_total", device.folder))
            .map(Bytes),
        unified_memory: integrated,
        driver: device.driver.clone(),
        usable,
        reason,
        route: Some(route.to_owned()),
        source: device.folder.clone(),
    })
}

/// Intel's integrated graphics is always function 0 of device 2 on the first bus; without the address, the id
/// ranges of the discrete families tell.
fn intel_integrated(device: &Device) -> bool {
    match &device.slot {
        Some(slot) => slot.ends_with(":00:02.0") || slot == "00:02.0",
        None => !matches!(device.id, 0x0bd0..=0x0bdf | 0x4905..=0x4909 | 0x5690..=0x56ff | 0xe200..=0xe2ff),
    }
}

fn render_node(root: &Root, device: &Device) -> Option<String> {
    root.list(&format!("{}/drm", device.folder))
        .into_iter()
        .filter(|name| name.starts_with("renderD"))
        .map(|name| format!("/dev/dri/{name}"))
        .find(|node| root.exists(node))
}

fn npus(root: &Root, pci: &[Device]) -> Vec<Accelerator> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for index in root.numbered("/sys/class/accel", "accel").iter().take(64) {
        let folder = format!("/sys/class/accel/accel{index}/device");
        let device = device_at(root, &folder).unwrap_or_default();
        let known = NPUS
            .iter()
            .find(|npu| (npu.0, npu.1) == (device.vendor, device.id));
        let node = format!("/dev/accel/accel{index}");
        let reason = match (root.exists(&node), root.access(&node)) {
            (true, Some(true)) => None,
            (true, _) => Some(format!(
                "no permission for {node}: add this user to the `render` group"
            )),
            (false, _) => Some(format!(
                "{node} is not visible here; pass /dev/accel into the container"
            )),
        };
        seen.insert((device.vendor, device.id));
        found.push(npu(&device, known.map(|npu| npu.2), reason, folder));
    }
    for device in pci {
        let key = (device.vendor, device.id);
        let Some(known) = NPUS.iter().find(|npu| (npu.0, npu.1) == key) else {
            continue;
        };
        if seen.insert(key) {
            let reason = match &device.driver {
                Some(driver) => format!("driver {driver} is bound but shows no /dev/accel node"),
                None => format!("no driver is bound; load {}", known.3),
            };
            found.push(npu(device, Some(known.2), Some(reason), device.folder.clone()));
        }
    }
    found
}

fn npu(device: &Device, name: Option<&str>, reason: Option<String>, source: String) -> Accelerator {
    let vendor = match device.vendor {
        0x1022 | 0x1002 => "amd",
        0x8086 => "intel",
        0x17cb => "qualcomm",
        0x1da3 => "habana",
        _ => device.driver.as_deref().unwrap_or("unknown"),
    };
    Accelerator {
        kind: "npu".to_owned(),
        vendor: vendor.to_owned(),
        name: name.map(str::to_owned),
        vram_bytes: None,
        unified_memory: true,
        driver: device.driver.clone(),
        usable: reason.is_none(),
        reason,
        route: Some("onnxruntime execution provider".to_owned()),
        source,
    }
}

fn pci_device(root: &Root, slot: &str) -> Option<Device> {
    let folder = format!("{PCI}/{slot}");
    // The class is read first: most devices are neither graphics (03) nor accelerators (11, 12).
    let class = hex(&root.line(&format!("{folder}/class"))?)?;
    if !matches!(class >> 16, 0x03 | 0x11 | 0x12) {
        return None;
    }
    let mut device = device_at(root, &folder)?;
    device.class = Some(class);
    device.slot = Some(slot.to_owned());
    Some(device)
}

fn device_at(root: &Root, folder: &str) -> Option<Device> {
    let event = root.read(&format!("{folder}/uevent")).unwrap_or_default();
    let field = |name: &str| {
        event
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    let id = |name: &str| root.line(&format!("{folder}/{name}")).and_then(|text| hex(&text));
    let vendor = id("vendor");
    let driver = field("DRIVER");
    if vendor.is_none() && driver.is_none() {
        return None;
    }
    Some(Device {
        folder: folder.to_owned(),
        slot: field("PCI_SLOT_NAME"),
        vendor: vendor.unwrap_or(0),
        id: id("device").unwrap_or(0),
        class: None,
        driver,
    })
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}
