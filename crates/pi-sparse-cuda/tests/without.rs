//! Machines without a driver.

use pi_sparse_cuda::{Cuda, Unavailable, count, devices};

// P14
#[test]
fn without_a_driver_there_is_a_reason_and_no_panic() {
    // Nothing loads the emulated driver in this process; a real one may be there.
    match count() {
        Err(e) => {
            assert!(!e.to_string().is_empty());
            assert_eq!(Cuda::open(0).unwrap_err(), e);
            assert_eq!(devices().unwrap_err(), e);
        }
        Ok(n) => assert_eq!(Cuda::open(n).unwrap_err(), Unavailable::NoSuchDevice { ordinal: n, count: n }),
    }
}
