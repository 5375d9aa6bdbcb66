//! Large buffers straight from the kernel, and giving heap memory back to it.
//!
//! In: a size. Out: [`Region`], zeroed and 2 MiB-aligned, returned to the system on drop.
//! Invariant: a region's pointer and length never change; its contents are reached only through typed slices.

use std::ffi::c_void;
use std::ptr::NonNull;

use bytemuck::Pod;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::base::{Bytes, Code, Problem};

/// Size and alignment of a transparent huge page on x86-64 and on aarch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

/// An anonymous, zeroed, 2 MiB-aligned mapping.
///
/// Type invariant: `start` is valid for reads and writes of `mapped ≥ len` bytes until drop, and owned by this value.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    mapped: usize,
    huge_pages: bool,
}

// SAFETY: a region owns plain memory; shared access is through `&self` as `&[T]`, exclusive through `&mut self`.
unsafe impl Send for Region {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes. With `huge_pages`, asks for transparent huge pages; a kernel that has none ignores that.
    ///
    /// # Errors
    /// `memory_short` when the system refuses the mapping.
    pub fn new(len: usize, huge_pages: bool) -> Result<Self, Problem> {
        // Without the advice the system's own setting holds.
        Self::advised(len, huge_pages.then_some(Advice::LinuxHugepage))
    }

    /// Maps `len` bytes that fill up bit by bit: never in huge pages, of which the first byte makes 2 MiB resident.
    ///
    /// # Errors
    /// `memory_short` when the system refuses the mapping.
    pub fn sparse(len: usize) -> Result<Self, Problem> {
        Self::advised(len, Some(Advice::LinuxNoHugepage))
    }

    fn advised(len: usize, advice: Option<Advice>) -> Result<Self, Problem> {
        let page = rustix::param::page_size();
        let refused = |reason: &str| {
            Problem::new(
                Code::MemoryShort,
                format!("the system refused {} of memory: {reason}", Bytes(len as u64)),
                "free memory, or use a smaller model, context or number of sequences",
            )
        };
        let mapped = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| refused("size overflow"))?;
        let padded = mapped
            .checked_add(HUGE_PAGE)
            .ok_or_else(|| refused("size overflow"))?;
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses cannot overlap anything of ours.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                padded,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| refused(&error.to_string()))?;
        let before = base.cast::<u8>().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let after = padded - before - mapped;
        let at = |offset: usize| base.cast::<u8>().wrapping_add(offset);
        for (start, bytes) in [(at(0), before), (at(before + mapped), after)] {
            if bytes > 0 {
                // SAFETY: page-aligned ends of the mapping made above, outside the part we keep; nobody has seen them.
                let unmapped = unsafe { munmap(start.cast::<c_void>(), bytes) };
                unmapped.map_err(|error| refused(&error.to_string()))?;
            }
        }
        if let Some(advice) = advice {
            // SAFETY: our own mapping; the advice changes page sizes, never contents. Failure (EINVAL on kernels
            // without huge pages) leaves ordinary pages, which is what the plan's `thp` fact already told.
            let _ = unsafe { madvise(at(before).cast::<c_void>(), mapped, advice) };
        }
        let start = NonNull::new(at(before)).ok_or_else(|| refused("null mapping"))?;
        Ok(Self {
            start,
            len,
            mapped,
            huge_pages: matches!(advice, Some(Advice::LinuxHugepage)),
        })
    }

    /// Usable bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether huge pages were asked for.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.len
    }

    /// Bytes that are resident now, by `mincore`, at most the region's length.
    ///
    /// # Errors
    /// `probe_failed` when the kernel does not answer.
    pub fn resident(&self) -> Result<Bytes, Problem> {
        let page = rustix::param::page_size();
        // One byte for each page; asked in pieces, so that the answer for a large cache stays small.
        let mut answer = [0u8; 4096];
        let mut pages = 0u64;
        for first in (0..self.mapped).step_by(page * answer.len()) {
            let bytes = (self.mapped - first).min(page * answer.len());
            // SAFETY: page-aligned part of our own mapping; `answer` has a byte for each of its pages.
            let status = unsafe {
                libc::mincore(
                    self.start.as_ptr().add(first).cast::<c_void>(),
                    bytes,
                    answer.as_mut_ptr(),
                )
            };
            if status != 0 {
                let error = std::io::Error::last_os_error();
                return Err(Problem::new(
                    Code::ProbeFailed,
                    format!("the system does not say which pages are resident (mincore): {error}"),
                    "report this with the kernel's version",
                ));
            }
            let asked = bytes.div_ceil(page);
            pages += answer[..asked].iter().filter(|&&flags| flags & 1 == 1).count() as u64;
        }
        Ok(Bytes((pages * page as u64).min(self.len as u64)))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: type invariant; the mapping is zero-initialised, `u8` has no invalid values.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: type invariant; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The region as elements of `T`; a remainder smaller than one element is left out.
    #[must_use]
    pub fn slice<T: Pod>(&self) -> &[T] {
        let whole = self.len - self.len % size_of::<T>().max(1);
        bytemuck::cast_slice(&self.bytes()[..whole])
    }

    /// The region as elements of `T`, to write.
    #[must_use]
    pub fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.len - self.len % size_of::<T>().max(1);
        bytemuck::cast_slice_mut(&mut self.bytes_mut()[..whole])
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: type invariant: we own these pages, and no slice of them can outlive `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.mapped) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes = self.mapped, "could not return a memory region");
        }
    }
}

/// Bytes of the heap that are in use, over all arenas and with large blocks that have mappings of their own; `None`
/// where the C library does not count them.
#[must_use]
pub fn heap_in_use() -> Option<Bytes> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: takes no pointer; may be called at any time.
        let counts = unsafe { libc::mallinfo2() };
        Some(Bytes((counts.uordblks + counts.hblkhd) as u64))
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

/// Returns free heap memory to the system. Does nothing where the C library has no such call.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes no pointer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_aligned_and_writable() {
        for huge in [false, true] {
            let mut region = Region::new(5_000_001, huge).unwrap();
            assert_eq!(region.bytes().as_ptr() as usize % HUGE_PAGE, 0);
            assert!(region.bytes().iter().all(|&b| b == 0));
            assert_eq!(region.slice::<f32>().len(), 1_250_000);
            region.slice_mut::<f32>()[1_249_999] = 1.5;
            assert!((region.slice::<f32>()[1_249_999] - 1.5).abs() < f32::EPSILON);
        }
        assert!(Region::new(0, false).unwrap().is_empty());
    }

    #[test]
    fn an_impossible_size_is_refused() {
        assert_eq!(
            Region::new(usize::MAX - 5, false).unwrap_err().code,
            Code::MemoryShort
        );
        assert_eq!(
            Region::new(usize::MAX / 2, false).unwrap_err().code,
            Code::MemoryShort
        );
    }
}
