//! `pi plan`, and models of which a part is on a (simulated) accelerator.

use crate::common::*;
use pi_gguf::NeuronIndex;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A cache folder of its own.
fn cached(folder: &Path) -> std::process::Command {
    let mut command = pi();
    command.env("PI_CACHE_DIR", folder);
    command
}

fn run_in(cache: &Path, line: &str) -> Said {
    said(cached(cache).arg("run").args(line.split_whitespace()).args(["-n", "12", "--temp", "0", "-p", PROMPT]))
}

fn plan(line: &str) -> Said {
    call(["plan".into(), demo().into_os_string()].into_iter().chain(line.split_whitespace().map(Into::into)))
}

fn plan_json(line: &str) -> serde_json::Value {
    object(&plan(&format!("--json {line}")))
}

/// A profile of the demo model.
fn profile(folder: &Path) -> PathBuf {
    let (text, out) = (folder.join("text.txt"), folder.join("demo.profile"));
    fs::write(&text, "Once upon a time, a friendly girl lived near the forest. She had an idea. ".repeat(8)).unwrap();
    let args =
        ["profile".into(), demo().into_os_string(), "--text".into(), text.into(), "-o".into(), out.clone().into()];
    let done = call::<std::ffi::OsString>(args);
    assert_eq!(done.code, Some(0), "{}", done.err);
    out
}

/// Plans that are kept in a cache folder.
fn plans(cache: &Path) -> Vec<PathBuf> {
    let folder = cache.join("plans");
    if folder.is_dir() { names(&folder).into_iter().map(|n| folder.join(n)).collect() } else { Vec::new() }
}

#[test]
fn the_text_is_the_same_whatever_is_on_the_accelerator() {
    let cache = tempfile::tempdir().unwrap();
    let profile = profile(cache.path());
    let want = run_in(cache.path(), "");
    assert_eq!(want.code, Some(0), "{}", want.err);
    let profile = format!("--profile {}", profile.display());
    for options in [
        "--vram-budget 0",
        "--vram-budget 0.0001",
        "--vram-budget 0.008 --policy frequency",
        &format!("--vram-budget 0.009 --policy random:4 {profile}"),
        &format!("--vram-budget 0.01 --policy impact {profile}"),
        "--vram-budget 0.01 --disable-gpu-index",
        "--vram-budget 1000 --policy frequency",
        "",
    ] {
        let got = run_in(cache.path(), &format!("--device simulated {options}"));
        assert_eq!((got.code, got.out), (Some(0), want.out.clone()), "{options}: {}", got.err);
        assert!(got.err.contains("simulated by the CPU") && got.err.contains("plan: "), "{}", got.err);
    }
}

#[test]
fn a_budget_without_an_accelerator_is_refused_unless_the_cpu_will_do() {
    let cache = tempfile::tempdir().unwrap();
    for options in [
        "--vram-budget 1",
        "--policy time",
        "--disable-gpu-index",
        "--reset-gpu-index --device none",
        "--n-gpu-layers 1",
        "--n-cpu-ffn 1",
    ] {
        let flag = options.split(' ').next().unwrap();
        let refused = run_in(cache.path(), options);
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.err);
        assert!(refused.err.contains(&format!("{flag}: there is no accelerator")), "{}", refused.err);
        let allowed = run_in(cache.path(), &format!("{options} --allow-cpu"));
        assert_eq!(allowed.code, Some(0), "{}", allowed.err);
        assert!(allowed.err.contains("all of the model is on the CPU"), "{}", allowed.err);
    }
    for wrong in [
        "--vram-budget -1",
        "--vram-budget x",
        "--policy best",
        "--disable-gpu-index --policy time",
        "-ngl 1 --n-cpu-ffn 1",
        "-ngl 1 --policy time",
        "--n-cpu-ffn 1 --disable-gpu-index",
        "--n-cpu-ffn 1 --reset-gpu-index",
    ] {
        assert_eq!(run_in(cache.path(), &format!("--device simulated {wrong}")).code, Some(2), "{wrong}");
    }
}

#[test]
fn a_plan_counts_every_byte_and_says_where_its_figures_are_from() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile(folder.path());
    for (gib, policy) in [(0.0, "time"), (0.002, "impact"), (0.008, "frequency"), (0.009, "in-order"), (1.0, "random")]
    {
        let plan = plan_json(&format!("--vram-budget {gib} --policy {policy} --profile {}", profile.display()));
        let bytes = plan["bytes"].as_object().unwrap();
        let total = bytes["total"].as_u64().unwrap();
        let parts: u64 = bytes.iter().filter(|(k, _)| *k != "total").map(|(_, v)| v.as_u64().unwrap()).sum();
        assert_eq!(parts, total);
        assert!(total <= plan["budget"].as_u64().unwrap(), "{gib}: {total}");
        let layers = plan["layers"].as_array().unwrap();
        for class in ["norms", "attention", "kv", "neurons", "scratch"] {
            let sum: u64 = layers.iter().map(|l| l[class].as_u64().unwrap()).sum();
            assert_eq!(sum, bytes[class].as_u64().unwrap(), "{class}");
        }
        assert_eq!((layers.len(), plan["neurons"].as_u64()), (6, Some(6144)));
        assert_eq!(plan["statistics"], "counted");
        match total {
            0 => assert!(!plan["notes"].as_array().unwrap().is_empty()),
            _ => assert_eq!(plan["choice"]["policy"], policy),
        }
        assert!(plan["figures"].as_array().unwrap().iter().all(|f| f["value"].as_f64().unwrap() > 0.0));
        assert!(plan["tokens_per_second"].as_f64().unwrap() > 0.0);
    }
    let said = plan("--vram-budget 0.008");
    assert_eq!(said.code, Some(0), "{}", said.err);
    for text in ["KV cache", "expected hit rate", "(assumed)", "tokens/s", "neurons by: time", "note: no profile says"]
    {
        assert!(said.out.contains(text), "{text}: {}", said.out);
    }
}

#[test]
fn whole_layers_or_all_but_ffns_can_be_asked_for_and_must_fit() {
    let cache = tempfile::tempdir().unwrap();
    let want = run_in(cache.path(), "");
    for (options, hot, output) in [
        ("--n-gpu-layers 0", 0, false),
        ("--n-gpu-layers 2", 2, false),
        ("--n-gpu-layers 6", 6, false),
        ("--n-gpu-layers 99", 6, true),
        ("--n-cpu-ffn 0", 6, true),
        ("--n-cpu-ffn 4", 2, true),
        ("--n-cpu-ffn 99", 0, true),
    ] {
        let planned = plan_json(&format!("--vram-budget 1 {options}"));
        assert_eq!(planned["hot_neurons"].as_u64(), Some(hot * 1024), "{options}");
        assert_eq!(planned["bytes"]["output"].as_u64().unwrap() > 0, output, "{options}");
        assert!(planned["choice"].is_null(), "{options}");
        let run = run_in(cache.path(), &format!("--device simulated --vram-budget 1 {options}"));
        assert_eq!((run.code, &run.out), (Some(0), &want.out), "{options}: {}", run.err);
        assert!(run.err.contains("plan: ") && plans(cache.path()).is_empty(), "{options}: {}", run.err);
        let total = planned["bytes"]["total"].as_u64().unwrap();
        if total > 0 {
            for command in [
                run_in(cache.path(), &format!("--device simulated --vram-budget 0.0001 {options}")),
                plan(&format!("--vram-budget 0.0001 {options}")),
            ] {
                assert_eq!((command.code, command.out.as_str()), (Some(1), ""), "{options}: {}", command.err);
                for part in
                    ["keeps the budget of 107374 bytes", if options.starts_with("--n-g") { "last" } else { "first" }]
                {
                    assert!(command.err.contains(part), "{options}: {}", command.err);
                }
            }
        }
    }
    let short = run_in(cache.path(), "--device simulated --vram-budget 1 -ngl 2");
    assert_eq!((short.code, short.out), (Some(0), want.out), "{}", short.err);
}

#[test]
fn a_map_and_an_index_are_written_and_the_index_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (map, index) = (folder.path().join("map.svg"), folder.path().join("hot.gpuidx"));
    let options =
        format!("--vram-budget 0.009 --policy frequency --map {} --write-gpu-index {}", map.display(), index.display());
    let first = plan_json(&options);
    let svg = fs::read_to_string(&map).unwrap();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>") && svg.matches("<rect").count() > 6 * 256);
    let read = NeuronIndex::open(&index).unwrap();
    let hot: usize = read.layers.iter().map(|l| l.hot().len()).sum();
    assert_eq!((read.layers.len(), Some(hot as u64)), (6, first["hot_neurons"].as_u64()));
    assert!(hot > 0 && hot < 6144);
    let again = plan_json(&format!("--vram-budget 0.009 --gpu-index {}", index.display()));
    assert_eq!((&again["bytes"], &again["hot_neurons"]), (&first["bytes"], &first["hot_neurons"]));
    assert!(again["choice"].is_null());
    let cache = folder.path().join("cache");
    let run = run_in(&cache, &format!("--device simulated --vram-budget 0.009 --gpu-index {}", index.display()));
    assert_eq!((run.code, run.out), (Some(0), run_in(&cache, "").out), "{}", run.err);
    assert!(plans(&cache).is_empty(), "a given index is not kept");

    // what is no index, one of another shape, and a budget that is too small for it
    let wrong = NeuronIndex { layers: read.layers[..5].to_vec(), ..read };
    let other = folder.path().join("other.gpuidx");
    wrong.save(&other).unwrap();
    for (path, gib, said) in [
        (&other, 1.0, "one of 6 layers, as the model has, got one of 5 layers"),
        (&demo(), 1.0, "generic.gpu_index"),
        (&index, 0.001, "budget of the device"),
    ] {
        let refused = plan(&format!("--vram-budget {gib} --gpu-index {}", path.display()));
        assert_eq!(refused.code, Some(1));
        assert!(refused.err.contains(said), "{}", refused.err);
    }
    let both = folder.path().join("both");
    let twice = plan(&format!("--vram-budget 1 --map {0} --write-gpu-index {0}", both.display()));
    assert!(twice.code == Some(1) && twice.err.contains("the map") && !both.exists(), "{}", twice.err);
    let kept = plan(&format!("--vram-budget 1 --gpu-index {0} --write-gpu-index {0}", index.display()));
    assert!(kept.code == Some(1) && kept.err.contains("is not replaced"), "{}", kept.err);
}

#[test]
fn chosen_neurons_are_kept_for_the_same_settings_only() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("deep/cache");
    let run = |options: &str| {
        let said = run_in(&cache, &format!("--device simulated {options}"));
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.err
    };
    let earlier = "as chosen earlier";
    assert!(!run("--vram-budget 0.008").contains(earlier));
    assert_eq!(plans(&cache).len(), 1);
    assert!(run("--vram-budget 0.008").contains(earlier));
    for (i, other) in
        ["--vram-budget 0.009", "--vram-budget 0.008 --policy impact", "--vram-budget 0.008 -c 128"].iter().enumerate()
    {
        assert!(!run(other).contains(earlier), "{other}");
        assert_eq!(plans(&cache).len(), 2 + i, "{other}");
    }
    assert!(!run("--vram-budget 0.008 --reset-gpu-index").contains(earlier));
    assert!(!run("--vram-budget 0.007 --disable-gpu-index").contains(earlier));
    assert_eq!(plans(&cache).len(), 4);
    // another name for the same model, in another folder
    let copy = folder.path().join("copy.gguf");
    fs::copy(demo(), &copy).unwrap();
    assert!(run(&format!("--vram-budget 0.008 -m {}", copy.display())).contains(earlier));

    // damaged ones are said, passed over and replaced
    for (i, spoil) in [&b"not an index"[..], &b""[..]].iter().enumerate() {
        plans(&cache).iter().for_each(|p| fs::write(p, spoil).unwrap());
        let err = run("--vram-budget 0.008");
        assert!(err.contains("is ignored, and neurons are chosen anew") && !err.contains(earlier), "{i}: {err}");
        assert!(run("--vram-budget 0.008").contains(earlier), "{i}");
    }
    let path = plans(&cache).into_iter().find(|p| NeuronIndex::open(p).is_ok()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len() - 200;
    bytes[end] ^= 1;
    fs::write(&path, bytes).unwrap();
    let err = run("--vram-budget 0.008");
    assert!(err.contains("is ignored") && !err.contains(earlier), "{err}");
}

#[test]
fn a_cache_that_cannot_be_written_costs_nothing_but_time() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("a file");
    fs::write(&cache, "no folder").unwrap();
    let said = run_in(&cache, "--device simulated --vram-budget 0.008");
    assert_eq!((said.code, said.out), (Some(0), run_in(folder.path(), "").out), "{}", said.err);
    assert!(said.err.contains("is not kept"), "{}", said.err);
}

/// Row P11 of the list of faults that others had: names go through no shell, and nothing is written beside the model.
#[test]
fn folders_may_have_any_name_and_need_not_be_writable() {
    let root = tempfile::tempdir().unwrap();
    let want = run_in(root.path(), "").out;
    for name in ["with space", "quote's \"two\"", "semi;colon $(x) `y` & |", "Übermäßig-模型", "-dash"] {
        if cfg!(windows) && name.contains(['"', '|']) {
            continue;
        }
        let folder = root.path().join(name);
        fs::create_dir(&folder).unwrap();
        let (model, cache) = (folder.join("model.gguf"), root.path().join("cache of it").join(name));
        fs::copy(demo(), &model).unwrap();
        read_only(&folder, true);
        for _ in 0..2 {
            let mut command = cached(&cache);
            command.args([
                "run",
                "--device",
                "simulated",
                "--vram-budget",
                "0.008",
                "-n",
                "12",
                "--temp",
                "0",
                "-p",
                PROMPT,
            ]);
            let said = said(command.arg("-m").arg(&model));
            assert_eq!((said.code, &said.out), (Some(0), &want), "{name}: {}", said.err);
        }
        let index = root.path().join(format!("{name}.gpuidx"));
        let mut command = cached(&cache);
        let said = said(command.arg("plan").arg(&model).args(["--vram-budget", "1", "--write-gpu-index"]).arg(&index));
        assert_eq!(said.code, Some(0), "{}", said.err);
        assert!(NeuronIndex::open(&index).is_ok());
        read_only(&folder, false);
        assert_eq!((names(&folder), plans(&cache).len()), (vec!["model.gguf".to_string()], 1), "{name}");
    }
}

/// Makes a folder read-only, or writable again.
fn read_only(folder: &Path, on: bool) {
    let mut permissions = fs::metadata(folder).unwrap().permissions();
    #[cfg(unix)]
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, if on { 0o555 } else { 0o755 });
    #[cfg(not(unix))]
    permissions.set_readonly(on);
    fs::set_permissions(folder, permissions).unwrap();
}

/// Row P22: each budget has a plan of its own, whoever writes last.
#[test]
fn two_processes_with_two_budgets_do_not_disturb_each_other() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("models");
    fs::create_dir(&folder).unwrap();
    let (model, cache) = (folder.join("model.gguf"), root.path().join("cache"));
    fs::copy(demo(), &model).unwrap();
    read_only(&folder, true);
    let start = |budget: &str| {
        let mut command = cached(&cache);
        command.args(["run", "--device", "simulated", "--vram-budget", budget, "-n", "8", "--temp", "0", "-p", PROMPT]);
        command.arg("-m").arg(&model).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let budgets = ["0.0075", "0.009", "0.0075", "0.009"];
    let children: Vec<_> = budgets.map(start).into();
    let texts: Vec<_> = children
        .into_iter()
        .map(|c| {
            let done = c.wait_with_output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            done.stdout
        })
        .collect();
    assert!(texts.iter().all(|t| *t == texts[0]));
    let mut kept: Vec<_> = plans(&cache).iter().map(|p| NeuronIndex::open(p).unwrap().vram_capacity).collect();
    kept.sort();
    assert_eq!(kept, [0.0075, 0.009].map(|gib: f64| (gib * f64::from(1 << 30)) as u64));
    for budget in ["0.0075", "0.009"] {
        let done = start(budget).wait_with_output().unwrap();
        assert!(String::from_utf8_lossy(&done.stderr).contains("as chosen earlier"), "{budget}");
    }
    read_only(&folder, false);
    assert_eq!(names(&folder), ["model.gguf"]);
}

#[test]
fn a_profile_of_another_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile(folder.path());
    let other = folder.path().join("other.gguf");
    remake(&other, &[], |t| {
        let mut made = Made::copy(t);
        made.data[0] ^= 1; // the same shape
        made
    });
    let mut command = cached(folder.path());
    let refused = said(command.arg("plan").arg(&other).args(["--vram-budget", "1", "--profile"]).arg(&profile));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("demo.profile: the profile's model: expected"), "{}", refused.err);
}

#[test]
fn other_commands_take_an_accelerator_too() {
    let cache = tempfile::tempdir().unwrap();
    let options = ["--device", "simulated", "--vram-budget", "0.01", "--policy", "frequency"];
    let mut bench = cached(cache.path());
    let rows =
        said(bench.args(["bench", "-p", "8", "-n", "4", "-r", "1", "--bandwidth", "0", "-o", "json"]).args(options));
    assert_eq!(object(&rows).as_array().unwrap().len(), 2);
    assert!(rows.err.contains("plan: "), "{}", rows.err);
    let text = cache.path().join("text.txt");
    fs::write(&text, "Once upon a time, a friendly girl lived near the forest. She had an idea. ".repeat(6)).unwrap();
    let perplexity = |more: &[&str]| {
        let mut command = cached(cache.path());
        let said =
            said(command.args(["perplexity", "--json", "-c", "64", "-f"]).arg(&text).arg("-m").arg(demo()).args(more));
        object(&said)["ppl"].as_f64().unwrap()
    };
    let (cpu, both) = (perplexity(&[]), perplexity(&options));
    assert!((cpu - both).abs() < 1e-3 * cpu, "{cpu} {both}");
}

#[test]
fn the_graph_of_operators_shows_both_sides_where_there_are_two() {
    let graph = |line: &str| {
        let said = plan(line);
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.out
    };
    let mermaid = graph("--vram-budget 0.008 --graph mermaid");
    assert!(mermaid.starts_with("flowchart") || mermaid.starts_with("graph"), "{mermaid}");
    let dot = graph("--vram-budget 0.008 --graph dot");
    assert!(dot.starts_with("digraph") && dot.matches(" -> ").count() > 20, "{dot}");
    assert_ne!(dot, graph("--vram-budget 0 --graph dot"));
    assert_eq!(plan("--vram-budget 1 --graph dot --json").code, Some(2));
}
