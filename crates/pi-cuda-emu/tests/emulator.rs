//! What the emulator reports: planted mistakes, and launches that cannot be.
#![allow(unsafe_code)]

use pi_cuda_emu::{Arg, Failure, Launch, Order, is_there, launch};

fn run(kernel: &str, threads: u32, shared: u32, order: Order, y: &mut [f32]) -> Result<(), Failure> {
    let size = Launch { grid: [1; 3], block: [threads, 1, 1], shared, order };
    // SAFETY: these kernels write 64 numbers at most.
    unsafe { launch(kernel, size, &[Arg::Out(0)], &mut [y]) }
}

#[test]
fn planted_mistakes_are_reported() {
    if !is_there() {
        assert!(std::env::var_os("CI").is_none(), "the emulator has to be there in CI");
        return eprintln!("SKIPPED: {}", Failure::Absent);
    }
    let mut y = [0.0; 64];
    for (kernel, threads, shared, said) in [
        ("mistake_divergent_barrier", 32, 0, "deadlock"),
        ("mistake_exited_lane", 32, 0, "1 exited"),
        ("mistake_overrun", 64, 64 * 4 - 4, "past the end of dynamic shared memory"),
        ("mistake_outside_the_mask", 32, 0, "not in its own mask"),
        ("mistake_of_nobody", 32, 0, "no such kernel"),
        ("mistake_overrun", 2048, 0, "invalid launch"),
    ] {
        for order in Order::ALL {
            match run(kernel, threads, shared, order, &mut y) {
                Err(Failure::Kernel(text)) => assert!(text.contains(said), "{kernel}: {text}"),
                other => panic!("{kernel}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_missing_barrier_gives_wrong_numbers_in_every_order() {
    for order in Order::ALL.into_iter().filter(|_| is_there()) {
        let mut y = [-1.0; 64];
        run("mistake_missing_barrier", 64, 0, order, &mut y).unwrap();
        let wrong = y.iter().zip((0..64).rev()).filter(|(y, want)| **y != *want as f32).count();
        assert!(wrong > 0, "{order:?}");
    }
}

#[test]
fn arguments_of_other_sizes_are_refused() {
    let size = Launch { grid: [1; 3], block: [32, 1, 1], shared: 0, order: Order::Forward };
    for args in [&[Arg::Int(1)][..], &[], &[Arg::Out(0), Arg::Int(2)]] {
        // SAFETY: nothing runs.
        let error = unsafe { launch("mistake_overrun", size, args, &mut []) }.unwrap_err();
        assert!(!is_there() || matches!(&error, Failure::Kernel(text) if text.contains("takes arguments")), "{error}");
    }
}
