//! The system's allocator, counting requests of all threads.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

struct Counting;

static REQUESTS: AtomicUsize = AtomicUsize::new(0);

/// How often memory was asked for.
pub fn requests() -> usize {
    REQUESTS.load(SeqCst)
}

// SAFETY: every call goes to the system's allocator unchanged; its caller keeps the trait's rules.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.fetch_add(1, SeqCst);
        // SAFETY: passed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        REQUESTS.fetch_add(1, SeqCst);
        // SAFETY: passed on as it came.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        REQUESTS.fetch_add(1, SeqCst);
        // SAFETY: passed on as it came.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: passed on as it came.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
