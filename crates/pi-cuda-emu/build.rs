//! Compiles the emulator with all kernels, as a library to call and as a driver library to be loaded.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(emulated)");
    for path in ["emu", "../pi-sparse-cuda/kernels"] {
        println!("cargo::rerun-if-changed={path}");
    }
    // The emulator maps stacks and switches between them, which was written for this system alone.
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let mut build = cc::Build::new();
    // Kernels are made of fused multiplications, which are calls of a library without these. What is built here is run here.
    #[cfg(target_arch = "x86_64")]
    if env::var("TARGET") == env::var("HOST")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("f16c")
        && std::is_x86_feature_detected!("avx2")
    {
        for flag in ["-mfma", "-mf16c", "-mavx2", "-ffp-contract=off"] {
            build.flag(flag);
        }
    }
    build.cpp(true).std("c++20").opt_level(2).pic(true).warnings(false).include("../pi-sparse-cuda/kernels");
    // A machine without a C++ compiler builds and tests the rest of the project.
    let Ok(compiler) = build.try_get_compiler() else {
        println!("cargo::warning=no C++ compiler: CUDA kernels are not emulated");
        return;
    };
    // The kernels take most of a minute: what is called and what is loaded are made of the same objects.
    build.flag("-fvisibility=hidden");
    let compile = |source: &str| build.clone().file(source).try_compile_intermediates();
    let objects = ["emu/kernels.cpp", "emu/mistakes.cpp", "emu/fake_driver.cpp"].map(compile);
    let [Ok(kernels), Ok(mistakes), Ok(fake_driver)] = &objects else {
        for e in objects.iter().filter_map(|o| o.as_ref().err()) {
            println!("cargo::warning=CUDA kernels are not emulated: {e}");
        }
        return;
    };
    println!("cargo::rustc-cfg=emulated");
    build.clone().link_lib_modifier("+whole-archive").objects(kernels).objects(mistakes).compile("pi_cuda_emu");
    // cc makes static libraries only; the driver has to be loaded by name.
    let driver = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("libcuda.so.1");
    let mut command = compiler.to_command();
    command.args(["-shared", "-Wl,-soname,libcuda.so.1"]).args(kernels).args(fake_driver).arg("-o").arg(&driver);
    match command.status() {
        Ok(status) if status.success() => println!("cargo::rustc-env=PI_CUDA_EMU_DRIVER={}", driver.display()),
        other => panic!("the emulated driver was not built: {other:?}"),
    }
}
