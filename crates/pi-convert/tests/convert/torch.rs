//! PyTorch's files: what is read, and what is refused.

use pi_convert::{
    Error, PredictorDir, TorchFile, TorchTensor, pickle::Pickle, read_activations, torch_dict, torch_tensor,
    write_activations,
};
use pi_testkit::data::test_data;
use std::{fs, io::Write, path::Path};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn counts(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 13) as f32 - 0.5).collect()
}

/// An archive as PyTorch makes it, but of any records.
fn archive(method: CompressionMethod, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in records {
        let options = SimpleFileOptions::default().compression_method(method).large_file(true);
        zip.start_file(format!("x/{name}"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A pickle of one tensor: a storage of `len` numbers of type `ty`, and offset, shape and strides.
fn tensor(ty: &str, len: u32, offset: u32, shape: &[u32], strides: &[u32]) -> Vec<u8> {
    let int = |x: u32| [b"J".to_vec(), x.to_le_bytes().to_vec()].concat();
    let tuple = |xs: &[u32]| [b"(".to_vec(), xs.iter().flat_map(|&x| int(x)).collect(), b"t".to_vec()].concat();
    [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n".to_vec(),
        ty.as_bytes().to_vec(),
        b"Storage\nX\x01\0\0\x000X\x03\0\0\0cpu".to_vec(),
        int(len),
        b"tQ".to_vec(),
        int(offset),
        tuple(shape),
        tuple(strides),
        b"\x89ccollections\nOrderedDict\n)RtR.".to_vec(),
    ]
    .concat()
}

fn open(bytes: Vec<u8>) -> Result<TorchFile, Error> {
    TorchFile::from_bytes(bytes, "x.pt")
}

fn read(pickle: &[u8], data: &[u8]) -> Result<Vec<f32>, String> {
    let file = open(archive(CompressionMethod::Stored, &[("data.pkl", pickle), ("data/0", data)]));
    let file = file.map_err(|e| e.to_string())?;
    file.read(file.tensor("").ok_or("no tensor")?).map_err(|e| e.to_string())
}

#[test]
fn the_files_of_both_generations_of_pytorch_are_read() {
    let Some(samples) = test_data("powerinfer-samples/small") else { return };
    let predictors = PredictorDir::open(samples.join("predictor"), 4, 256, 1280).unwrap();
    assert_eq!((predictors.layers(), predictors.rank(0), predictors.threshold()), (4, 128, None));
    let model = pi_gguf::File::open(samples.join("small.powerinfer.gguf")).unwrap();
    for (layer, name) in (0..4).flat_map(|layer| [(layer, "fc1"), (layer, "fc2")]) {
        let tensor = model.require_tensor(&format!("blk.{layer}.{name}.weight")).unwrap();
        let mut expected = vec![0.0; tensor.rows() * tensor.cols()];
        (tensor.quant().unwrap().info().decode)(tensor.data(), &mut expected);
        assert!(predictors.read(layer, name).unwrap() == expected, "{name} of layer {layer}");
    }
    assert_eq!(read_activations(samples.join("activation"), Some(4), Some(1280)).unwrap().len(), 4);
    let Some(demo) = test_data("demo-model/predictors-r64") else { return };
    assert_eq!(PredictorDir::open(demo, 6, 256, 1024).unwrap().rank(5), 64);
}

#[test]
fn activations_come_back_in_the_order_of_layers_not_of_names() {
    let dir = tempfile::tempdir().unwrap();
    let layers: Vec<_> = (0..12).map(|i| vec![i as f32; 5 + i]).collect();
    write_activations(dir.path(), &layers).unwrap();
    assert_eq!(read_activations(dir.path(), Some(12), None).unwrap(), layers);
    assert_eq!(read_activations(dir.path(), None, None).unwrap(), layers);
}

#[test]
fn missing_and_surplus_layers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write_activations(dir.path(), &vec![vec![1.0]; 12]).unwrap();
    fs::remove_file(dir.path().join("activation_2.pt")).unwrap();
    fs::write(dir.path().join("activation_07.pt"), "not a layer's name").unwrap();
    let said = read_activations(dir.path(), Some(11), None).unwrap_err().to_string();
    assert!(said.contains("layers 0 to 10, missing: 2; too many: 11"), "{said}");
    let said = read_activations(dir.path(), None, None).unwrap_err().to_string();
    assert!(said.ends_with("layers 0 to 11, missing: 2"), "{said}");
    fs::copy(dir.path().join("activation_1.pt"), dir.path().join("activation_18446744073709551614.pt")).unwrap();
    assert!(
        matches!(read_activations(dir.path(), None, None), Err(Error::Layers { missing, .. }) if missing.len() == 100)
    );
}

#[test]
fn an_activation_file_is_one_tensor_of_one_dimension_and_of_the_right_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("activation_0.pt");
    let refusal = |bytes: Vec<u8>| {
        fs::write(&path, bytes).unwrap();
        read_activations(dir.path(), Some(1), Some(6)).unwrap_err().to_string()
    };
    let data = counts(6);
    let said = refusal(torch_tensor("a", TorchTensor { shape: &[2, 3], data: &data }).unwrap());
    assert!(said.ends_with("activation_0.pt: tensor '': expected shape [6], got shape [2, 3]"), "{said}");
    let said = refusal(torch_tensor("a", TorchTensor { shape: &[5], data: &data[1..] }).unwrap());
    assert!(said.ends_with("expected shape [6], got shape [5]"), "{said}");
    let one = TorchTensor { shape: &[6], data: &data };
    let said = refusal(torch_dict("a", &[("x", one), ("y", one)]).unwrap());
    assert!(said.ends_with("expected one tensor, got 2"), "{said}");
}

#[test]
fn what_is_written_is_read_again() {
    let (a, b) = (counts(12), counts(7));
    let tensors =
        [("fc1.weight", TorchTensor { shape: &[3, 4], data: &a }), ("b", TorchTensor { shape: &[7], data: &b })];
    let file = open(torch_dict("model_0", &tensors).unwrap()).unwrap();
    assert_eq!(
        file.tensors().map(|(name, t)| (name, &t.shape[..])).collect::<Vec<_>>(),
        [("fc1.weight", &[3, 4][..]), ("b", &[7])]
    );
    assert_eq!(file.read(file.tensor("fc1.weight").unwrap()).unwrap(), a);
    assert_eq!(file.read(file.tensor("b").unwrap()).unwrap(), b);
    assert!(torch_tensor("a", TorchTensor { shape: &[5], data: &a }).is_err());
}

#[test]
fn every_number_type_and_any_strides_are_read() {
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes().to_vec();
    let types: [(&str, Vec<u8>); 10] = [
        ("Half", [half(1.5), half(-2.0)].concat()),
        ("BFloat16", [half::bf16::from_f32(1.5).to_le_bytes(), half::bf16::from_f32(-2.0).to_le_bytes()].concat()),
        ("Float", [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat()),
        ("Double", [1.5f64.to_le_bytes(), (-2.0f64).to_le_bytes()].concat()),
        ("Char", vec![1, 254]),
        ("Short", [1i16.to_le_bytes(), (-2i16).to_le_bytes()].concat()),
        ("Int", [1i32.to_le_bytes(), (-2i32).to_le_bytes()].concat()),
        ("Long", [1i64.to_le_bytes(), (-2i64).to_le_bytes()].concat()),
        ("Byte", vec![1, 2]),
        ("Bool", vec![1, 0]),
    ];
    for (ty, bytes) in types {
        let first = if ["Half", "BFloat16", "Float", "Double"].contains(&ty) { 1.5 } else { 1.0 };
        let second = match ty {
            "Byte" => 2.0,
            "Bool" => 0.0,
            _ => -2.0,
        };
        assert_eq!(read(&tensor(ty, 2, 0, &[2], &[1]), &bytes), Ok(vec![first, second]), "{ty}");
    }
    let bytes: Vec<u8> = (0..12).collect();
    // A transposed 3 × 4, a slice of it, and one number.
    let numbers = |list: &[u8]| Ok(list.iter().map(|&x| f32::from(x)).collect::<Vec<_>>());
    assert_eq!(
        read(&tensor("Byte", 12, 0, &[4, 3], &[1, 4]), &bytes),
        numbers(&[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11])
    );
    assert_eq!(read(&tensor("Byte", 12, 5, &[2, 2], &[4, 1]), &bytes), numbers(&[5, 6, 9, 10]));
    assert_eq!(read(&tensor("Byte", 12, 0, &[2, 1, 2], &[6, 9, 2]), &bytes), numbers(&[0, 2, 6, 8]));
    assert_eq!(read(&tensor("Byte", 12, 11, &[], &[]), &bytes), numbers(&[11]));
    assert_eq!(read(&tensor("Byte", 12, 0, &[0, 3], &[3, 1]), &bytes), numbers(&[]));
}

#[test]
fn tensors_that_do_not_fit_their_storage_are_refused() {
    let bytes = [0; 12];
    for (pickle, what) in [
        (tensor("Byte", 12, 9, &[4], &[1]), "leaves its storage"),
        (tensor("Byte", 12, 0, &[2, 2], &[11, 1]), "leaves its storage"),
        (tensor("Byte", 12, 0, &[1 << 30], &[0]), "in a storage of 12"),
        (tensor("Byte", 12, 0, &[i32::MAX as u32; 4], &[1; 4]), "in a storage of 12"),
        (tensor("Byte", 12, 0, &[4], &[1, 1]), "with 2 strides"),
        (tensor("Byte", 12, 0, &[1; 9], &[1; 9]), "9 dimensions"),
        (tensor("Byte", 12, u32::MAX, &[1], &[1]), "a size of -1"),
        (tensor("Byte", 11, 0, &[4], &[1]), "expected 11 bytes, got 12"),
        (tensor("Float", 12, 0, &[4], &[1]), "expected 48 bytes, got 12"),
        (tensor("Float", i32::MAX as u32, 0, &[1], &[1]), "bytes, got 12"),
        (tensor("QInt8", 12, 0, &[4], &[1]), "'torch.QInt8Storage', which is not allowed"),
    ] {
        let said = read(&pickle, &bytes).unwrap_err();
        assert!(said.contains(what), "{said}, expected {what}");
    }
}

#[test]
fn nothing_is_executed_and_the_refusal_names_what_was_asked_for() {
    let marker = tempfile::tempdir().unwrap().path().join("executed");
    let command = format!("touch {}", marker.display());
    let text =
        |text: &str| [b"X".to_vec(), (text.len() as u32).to_le_bytes().to_vec(), text.as_bytes().to_vec()].concat();
    let call = |global: &[u8]| [global, b"(", &text(&command), b"tR."].concat();
    for (pickle, what) in [
        (call(b"\x80\x02cos\nsystem\n"), "'os.system', which is not allowed"),
        (call(b"\x80\x02cposix\nsystem\n"), "'posix.system', which is not allowed"),
        (
            call(&[&b"\x80\x04"[..], &text("builtins"), &text("eval"), b"\x93"].concat()),
            "'builtins.eval', which is not",
        ),
        (call(b"\x80\x02ctorch\nload\n"), "'torch.load', which is not allowed"),
        (
            call(b"\x80\x02ctorch._utils\n_rebuild_parameter\n"),
            "'torch._utils._rebuild_parameter', which is not allowed",
        ),
        (call(b"\x80\x02ctorch\nFloatStorage\n"), "a call of a type or function, which is not allowed"),
        (call(b"\x80\x02ccollections\nOrderedDict\n"), "an ordered dict with arguments"),
        ([b"\x80\x02(ios\nsystem\n".to_vec(), b".".to_vec()].concat(), "INST makes objects"),
        (b"\x80\x02)\x81.".to_vec(), "NEWOBJ makes objects"),
        (b"\x80\x02(o.".to_vec(), "OBJ makes objects"),
        (b"\x80\x02\x82\x01.".to_vec(), "EXT makes objects"),
        (b"\x80\x02Pmodule\n.".to_vec(), "PERSID makes objects"),
        (b"\x80\x02ccollections\nOrderedDict\n}b.".to_vec(), "attributes of a type or function, which is not allowed"),
        (b"\x80\x06.".to_vec(), "protocol 6"),
        (b"\x80\x02)Q.".to_vec(), "a reference of 0 parts"),
        (b"\x80\x02\xff.".to_vec(), "instruction 0xff"),
    ] {
        let said = Pickle::parse(&pickle).unwrap_err().what;
        assert!(said.contains(what), "{said}, expected {what}");
        let said = read(&pickle, b"").unwrap_err();
        assert!(said.starts_with("x.pt: pickle, byte ") && said.contains(what), "{said}");
    }
    assert!(!marker.exists());
}

#[test]
fn damaged_stacks_marks_and_memos_are_refused() {
    for pickle in [
        &b""[..],
        b".",
        b"0",
        b"1",
        b"t.",
        b"\x85.",
        b"(\x85.",
        b"N(\x85.",
        b"a.",
        b"Na.",
        b"NNa.",
        b"]N(e",
        b"}Ns.",
        b"}(Nu.",
        b"(Nd.",
        b"h\0.",
        b"q\0",
        b"j\0\0\0\0.",
        b"R",
        b"NNR.",
        b")R",
        b"b",
        b"Q",
        b"NQ.",
        b"\x93",
        b"NN\x93",
        b"cos\nsystem",
        b"X\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"B\xff\xff\xff\xff",
        b"\x8a\x09123456789.",
        b"X\x01\0\0\0\xff.",
    ] {
        assert!(Pickle::parse(pickle).is_err(), "{}", pickle.escape_ascii());
    }
}

#[test]
fn deep_circular_and_multiplied_values_are_bounded() {
    let deep = [b"]".repeat(100_000), b"a".repeat(99_999), b".".to_vec()].concat();
    assert!(Pickle::parse(&deep).unwrap().tensors().unwrap_err().contains("nested more than"));
    assert!(Pickle::parse(b"]q\0h\0a.").unwrap().tensors().is_err());
    // Each list has the one before twenty times.
    let mut bomb = b"]q\0".to_vec();
    for level in 1..20u8 {
        bomb.extend(b"](");
        bomb.extend([b'h', level - 1].repeat(20));
        bomb.extend([b'e', b'q', level]);
    }
    bomb.push(b'.');
    assert!(Pickle::parse(&bomb).unwrap().tensors().unwrap_err().contains("too often"));
    // A memo of every number there is: its size is the pickle's, not the numbers'.
    let memo: Vec<u8> = (0..100_000u32).flat_map(|i| [&b"r"[..], &(u32::MAX - i).to_le_bytes()].concat()).collect();
    assert!(Pickle::parse(&[b"N", &memo[..], b"."].concat()).is_ok());
    let long = "k".repeat(100_000);
    let mut named = b"\x80\x02(X\x07\0\0\0storagectorch\nByteStorage\nX".to_vec();
    named.extend((long.len() as u32).to_le_bytes());
    named.extend(long.as_bytes());
    named.extend(b"X\x03\0\0\0cpuK\x01tQ.");
    assert!(Pickle::parse(&named).unwrap_err().what.contains("a storage's name of 100000 bytes"));
}

#[test]
fn compressed_records_are_read_up_to_a_bound() {
    let data: Vec<u8> = counts(4000).iter().flat_map(|x| x.to_le_bytes()).collect();
    let records: [(&str, &[u8]); 2] = [("data.pkl", &tensor("Float", 4000, 0, &[4000], &[1])), ("data/0", &data)];
    let small = archive(CompressionMethod::Deflated, &records);
    assert!(small.len() < data.len());
    let file = open(small).unwrap();
    assert_eq!(file.read(file.tensor("").unwrap()).unwrap(), counts(4000));

    let zeros = vec![0; 80 << 20];
    let pickle = tensor("Byte", zeros.len() as u32, 0, &[zeros.len() as u32], &[1]);
    let bomb = open(archive(CompressionMethod::Deflated, &[("data.pkl", &pickle), ("data/0", &zeros)])).unwrap();
    let said = bomb.read(bomb.tensor("").unwrap()).unwrap_err().to_string();
    assert!(said.contains("record 'x/data/0': expected at most 67108864 bytes, got 83886080"), "{said}");
    let said = open(archive(CompressionMethod::Deflated, &[("data.pkl", &zeros)])).unwrap_err().to_string();
    assert!(said.contains("record 'x/data.pkl': expected at most 4194304 bytes"), "{said}");
    let said = open(archive(CompressionMethod::Stored, &[("data.pkl", &zeros[..5 << 20])])).unwrap_err().to_string();
    assert!(said.contains("record 'x/data.pkl': expected at most 4194304 bytes"), "{said}");
}

#[test]
fn old_formats_and_other_files_are_refused_by_name() {
    let old = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let tar = [&[0; 257][..], b"ustar\x0000"].concat();
    for (bytes, what) in [
        (&old[..], "the format of PyTorch before 1.6"),
        (&tar, "the tar format of PyTorch 0.1"),
        (b"\x80\x02N.", "a bare pickle"),
        (b"GGUF", "no zip archive"),
        (b"", "no zip archive"),
        (b"PK\x03\x04", "not a PyTorch file"),
    ] {
        let said = open(bytes.to_vec()).unwrap_err().to_string();
        assert!(said.contains(what), "{said}");
    }
    let pickle = tensor("Byte", 1, 0, &[1], &[1]);
    for (records, what) in [
        (&[("code.py", &b""[..])][..], "0 records data.pkl"),
        (&[("data.pkl", &pickle[..]), ("y/data.pkl", &pickle)], "2 records data.pkl"),
        (&[("data.pkl", &pickle), ("byteorder", b"big")], "byte order 'big'"),
    ] {
        let said = open(archive(CompressionMethod::Stored, records)).unwrap_err().to_string();
        assert!(said.contains(what), "{said}");
    }
    let file = open(archive(CompressionMethod::Stored, &[("data.pkl", &pickle)])).unwrap();
    let said = file.read(file.tensor("").unwrap()).unwrap_err().to_string();
    assert!(said.contains("record 'x/data/0'"), "{said}");
}

#[test]
fn files_cut_off_at_any_byte_and_with_any_byte_changed_give_errors_or_numbers_and_never_panic() {
    let data = counts(6);
    let whole = torch_dict("m", &[("fc1.weight", TorchTensor { shape: &[2, 3], data: &data })]).unwrap();
    for len in 0..whole.len() {
        assert!(open(whole[..len].to_vec()).is_err(), "{len} bytes of {}", whole.len());
    }
    let pickle = tensor("Float", 6, 0, &[2, 3], &[3, 1]);
    for len in 0..pickle.len() {
        assert!(Pickle::parse(&pickle[..len]).is_err(), "{len} bytes of {}", pickle.len());
    }
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut spoilt = whole.clone();
            spoilt[at] ^= flip;
            if let Ok(file) = open(spoilt) {
                for (_, tensor) in file.tensors() {
                    assert!(file.read(tensor).is_ok_and(|x| x.len() == tensor.len()) || tensor.len() <= 6 * 256);
                }
            }
        }
    }
}

#[test]
fn predictors_that_do_not_fit_the_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |i: usize, fc1: [usize; 2], fc2: [usize; 2]| {
        let (a, b) = (counts(fc1[0] * fc1[1]), counts(fc2[0] * fc2[1]));
        let tensors = [
            ("fc1.weight", TorchTensor { shape: &fc1, data: &a }),
            ("fc2.weight", TorchTensor { shape: &fc2, data: &b }),
        ];
        fs::write(dir.path().join(format!("model_{i}.pt")), torch_dict("m", &tensors).unwrap()).unwrap();
    };
    let refusal = |layers| PredictorDir::open(dir.path(), layers, 8, 20).unwrap_err().to_string();
    assert!(refusal(1).contains("model_0.pt: predictors (model_N.pt) is missing"), "{}", refusal(1));
    write(0, [4, 8], [20, 4]);
    write(1, [5, 8], [20, 5]);
    assert_eq!(PredictorDir::open(dir.path(), 2, 8, 20).unwrap().rank(1), 5);
    assert!(refusal(3).ends_with("layers 0 to 2, missing: 2"), "{}", refusal(3));
    assert!(refusal(1).ends_with("layers 0 to 0, too many: 1"), "{}", refusal(1));
    write(1, [5, 9], [20, 5]);
    assert!(
        refusal(2).ends_with("model_1.pt: tensor 'fc1.weight': expected shape [5, 8], got shape [5, 9]"),
        "{}",
        refusal(2)
    );
    write(1, [5, 8], [20, 4]);
    assert!(refusal(2).ends_with("'fc2.weight': expected shape [20, 5], got shape [20, 4]"), "{}", refusal(2));
    write(1, [5, 8], [20, 5]);
    let config = |text: &str| fs::write(dir.path().join("config.json"), text).unwrap();
    config(r#"{"sparse_threshold": -0.5}"#);
    assert_eq!(PredictorDir::open(dir.path(), 2, 8, 20).unwrap().threshold(), Some(-0.5));
    config(r#"{"sparse_threshold": "low"}"#);
    assert!(refusal(2).contains("key 'sparse_threshold': expected a finite number, got \"low\""), "{}", refusal(2));
    config("{");
    assert!(refusal(2).contains("config.json: not JSON"), "{}", refusal(2));
    assert!(PredictorDir::open(Path::new("/nowhere"), 2, 8, 20).is_err());
}
