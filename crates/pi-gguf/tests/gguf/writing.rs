//! What is written can be read; what could not be read is not written.

use std::io::Write;

use crate::common::*;
use pi_core::QuantType;
use pi_gguf::{AtomicFile, Builder, File, Kind, LayerIndex, MAX_DIMS, NeuronIndex, TensorType, Value};
use proptest::prelude::*;

/// A value to be written, owned.
#[derive(Debug, Clone)]
enum Owned {
    Scalar(Value<'static>),
    Text(Vec<u8>),
    I16s(Vec<i16>),
    F64s(Vec<f64>),
    Bools(Vec<bool>),
    Texts(Vec<Vec<u8>>),
}

fn value() -> impl Strategy<Value = Owned> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        any::<u8>().prop_map(|x| Owned::Scalar(x.into())),
        any::<i8>().prop_map(|x| Owned::Scalar(x.into())),
        any::<u16>().prop_map(|x| Owned::Scalar(x.into())),
        any::<i16>().prop_map(|x| Owned::Scalar(x.into())),
        any::<u32>().prop_map(|x| Owned::Scalar(x.into())),
        any::<i32>().prop_map(|x| Owned::Scalar(x.into())),
        any::<f32>().prop_map(|x| Owned::Scalar(x.into())),
        any::<bool>().prop_map(|x| Owned::Scalar(x.into())),
        any::<u64>().prop_map(|x| Owned::Scalar(x.into())),
        any::<i64>().prop_map(|x| Owned::Scalar(x.into())),
        any::<f64>().prop_map(|x| Owned::Scalar(x.into())),
        bytes().prop_map(Owned::Text),
        proptest::collection::vec(any::<i16>(), 0..9).prop_map(Owned::I16s),
        proptest::collection::vec(any::<f64>(), 0..9).prop_map(Owned::F64s),
        proptest::collection::vec(any::<bool>(), 0..9).prop_map(Owned::Bools),
        proptest::collection::vec(bytes(), 0..9).prop_map(Owned::Texts),
    ]
}

fn set(builder: &mut Builder, key: &str, value: &Owned) {
    let done = match value {
        Owned::Scalar(value) => builder.set(key, *value),
        Owned::Text(text) => builder.set(key, pi_gguf::Text::new(text)),
        Owned::I16s(values) => builder.set_array(key, values),
        Owned::F64s(values) => builder.set_array(key, values),
        Owned::Bools(values) => builder.set_array(key, values),
        Owned::Texts(values) => builder.set_strings(key, values),
    };
    done.expect("key");
}

fn same(read: Value<'_>, written: &Owned) -> bool {
    match (read, written) {
        (Value::String(text), Owned::Text(bytes)) => text.as_bytes() == bytes,
        (Value::Array(array), Owned::I16s(values)) => array.to_vec::<i16>().as_ref() == Some(values),
        (Value::Array(array), Owned::F64s(values)) => array.to_vec::<f64>().as_ref() == Some(values),
        (Value::Array(array), Owned::Bools(values)) => array.to_vec::<bool>().as_ref() == Some(values),
        (Value::Array(array), Owned::Texts(values)) => {
            array.texts().is_some_and(|texts| texts.map(|text| text.as_bytes()).eq(values.iter().map(Vec::as_slice)))
        }
        (read, Owned::Scalar(value)) => read == *value,
        _ => false,
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_again(
        powerinfer in any::<bool>(),
        alignment in proptest::option::of(0u32..9),
        keys in proptest::collection::btree_map("[a-zé.]{1,12}", value(), 0..12),
        tensors in proptest::collection::btree_map(
            "[a-z_.]{1,30}",
            (0usize..32, proptest::collection::vec(0usize..4, 1..=MAX_DIMS)),
            0..8,
        ),
        piece in 1usize..100,
    ) {
        let kind = if powerinfer { Kind::PowerInfer } else { Kind::Gguf };
        let mut builder = Builder::new(kind);
        if let Some(shift) = alignment {
            builder.set("general.alignment", 1u32 << shift).expect("alignment");
        }
        keys.iter().for_each(|(key, value)| set(&mut builder, key, value));
        let types: Vec<TensorType> = TensorType::all().collect();
        let tensors: Vec<(String, TensorType, Vec<usize>)> = tensors.into_iter().map(|(name, (ty, mut dims))| {
            let ty = types[ty % types.len()];
            dims[0] *= ty.block_len();
            (name, ty, dims)
        }).collect();
        for (name, ty, dims) in &tensors {
            builder.tensor(name, *ty, dims).expect("tensor");
        }
        let data = |i: usize, ty: TensorType, dims: &[usize]| -> Vec<u8> {
            let numbers: usize = dims.iter().product();
            (0..numbers / ty.block_len() * ty.block_bytes()).map(|n| (n * 7 + i) as u8).collect()
        };
        let mut writer = builder.start(Vec::new()).expect("header");
        for (i, (name, ty, dims)) in tensors.iter().enumerate() {
            writer.begin(name).expect("begin");
            for bytes in data(i, *ty, dims).chunks(piece) {
                writer.append(bytes).expect("append");
            }
        }
        let bytes = writer.finish().expect("finish");

        let file = File::from_bytes(bytes, "x").expect("opens");
        prop_assert_eq!(file.kind(), kind);
        prop_assert_eq!(file.alignment(), alignment.map_or(32, |shift| 1 << shift));
        for (key, value) in &keys {
            prop_assert!(same(file.metadata().value(key).expect("key"), value), "{}", key);
        }
        prop_assert_eq!(file.metadata().len(), keys.len() + usize::from(alignment.is_some()));
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (i, ((name, ty, dims), tensor)) in tensors.iter().zip(file.tensors()).enumerate() {
            prop_assert_eq!((tensor.name(), tensor.ty(), tensor.dims()), (&**name, *ty, &**dims));
            prop_assert_eq!(tensor.data(), data(i, *ty, dims));
        }
    }
}

#[test]
fn every_type_has_one_number_and_one_layout() {
    let types: Vec<TensorType> = TensorType::all().collect();
    assert_eq!(types.len(), QuantType::ALL.len() + 16);
    for ty in types {
        assert_eq!(TensorType::from_id(ty.id()), Some(ty));
        assert!(ty.block_len() > 0 && ty.block_bytes() > 0);
    }
    assert_eq!(TensorType::NVFP4.to_string(), "NVFP4");
}

#[test]
fn keys_and_tensors_that_no_reader_accepts_are_refused() {
    let mut b = Builder::new(Kind::Gguf);
    b.set("k", 1u32).and_then(|b| b.tensor("t", QuantType::F32, &[1])).expect("good");
    for (result, words) in [
        (b.set("k", 2u32).map(|_| ()), "twice"),
        (b.set("", 2u32).map(|_| ()), "bytes, got 0"),
        (b.set_strings(&"k".repeat(70_000), ["x"]).map(|_| ()), "bytes, got 70000"),
        (b.set("general.alignment", 3u32).map(|_| ()), "power of two"),
        (b.set("general.alignment", 32i32).map(|_| ()), "a u32"),
        (b.tensor("t", QuantType::F32, &[1]).map(|_| ()), "twice"),
        (b.tensor("", QuantType::F32, &[1]).map(|_| ()), "got 0"),
        (b.tensor(&"t".repeat(64), QuantType::F32, &[1]).map(|_| ()), "got 64"),
        (b.tensor("u", QuantType::F32, &[]).map(|_| ()), "1 to 4 dimensions, got 0"),
        (b.tensor("u", QuantType::F32, &[1; 5]).map(|_| ()), "1 to 4 dimensions, got 5"),
        (b.tensor("u", QuantType::Q4_K, &[100]).map(|_| ()), "blocks of 256"),
        (b.tensor("u", QuantType::F32, &[usize::MAX, 2]).map(|_| ()), "can be counted"),
    ] {
        says(&result.expect_err("must be refused").to_string(), &["cannot write", words]);
    }
    let mut writer = b.start(Vec::new()).expect("what was refused left no trace");
    writer.write("t", &[0; 4]).expect("tensor");
    File::from_bytes(writer.finish().expect("end"), "x").expect("opens");
}

#[test]
fn tensors_are_written_in_order_and_whole() {
    let start = || {
        let mut b = Builder::new(Kind::Gguf);
        b.tensor("a", QuantType::F32, &[2]).and_then(|b| b.tensor("b", QuantType::F32, &[1])).expect("good");
        b.start(Vec::new()).expect("header")
    };
    let mut w = start();
    says(&w.write("b", &[0; 4]).expect_err("order").to_string(), &["'b'", "expected tensor 'a'"]);
    says(&w.append(&[0; 4]).expect_err("nothing begun").to_string(), &["at most 0 more bytes, got 4"]);
    says(&w.write("a", &[0; 4]).expect_err("length").to_string(), &["'a'", "expected 8 bytes, got 4"]);
    let mut w = start();
    w.begin("a").and_then(|()| w.append(&[0; 5])).expect("a piece");
    says(&w.append(&[0; 4]).expect_err("length").to_string(), &["'a'", "at most 3 more bytes, got 4"]);
    says(&w.begin("b").expect_err("incomplete").to_string(), &["'a'", "3 more bytes"]);
    says(&w.finish().expect_err("incomplete").to_string(), &["'a'", "3 more bytes"]);
    let mut w = start();
    w.write("a", &[0; 8]).expect("a");
    says(&w.finish().expect_err("incomplete").to_string(), &["tensor 'b'"]);
    let mut w = start();
    w.write("a", &[0; 8]).and_then(|()| w.write("b", &[0; 4])).expect("both");
    says(&w.write("c", &[]).expect_err("not announced").to_string(), &["'c'", "expected the end"]);
}

#[test]
fn a_new_file_replaces_the_old_one_only_when_it_is_complete() {
    let folder = tempfile::tempdir().expect("folder");
    let path = write(folder.path(), "模型.gguf", &good().bytes());
    let names = || std::fs::read_dir(folder.path()).expect("folder").count();

    let mut file = AtomicFile::create(&path).expect("create");
    file.write_all(b"half").expect("write");
    drop(file);
    assert_eq!((std::fs::read(&path).expect("old"), names()), (good().bytes(), 1));

    // Windows does not rename over a file that is mapped.
    let opened = cfg!(unix).then(|| File::open(&path).expect("opens"));
    let mut file = AtomicFile::create(&path).expect("create");
    file.write_all(b"whole").expect("write");
    file.commit().expect("commit");
    assert_eq!((std::fs::read(&path).expect("new"), names()), (b"whole".to_vec(), 1));
    if let Some(opened) = opened {
        assert_eq!(opened.require_tensor("blk.0.ffn_up.weight").expect("still mapped").data()[0], 64);
    }

    says(
        &AtomicFile::create(folder.path().join("no/such/file")).expect_err("no folder").to_string(),
        &["cannot create", "file"],
    );
}

#[test]
fn a_neuron_index_is_found_by_the_numbers_in_its_names() {
    let folder = tempfile::tempdir().expect("folder");
    let layer = |hot: &[u32]| LayerIndex::new(12, hot.to_vec()).expect("layer");
    let layers = vec![layer(&[0, 5, 11]), layer(&[]), layer(&(0..12).collect::<Vec<_>>()), LayerIndex::default()];
    let index = NeuronIndex { vram_capacity: 1 << 40, layers };
    let path = folder.path().join("model.gguf.generated.gpuidx");
    index.save(&path).expect("saves");
    assert_eq!(NeuronIndex::open(&path).expect("opens"), index);

    // Eleven layers in the order of their names as text, in which layer 10 comes before layer 2.
    let mut names: Vec<u32> = (0..11).collect();
    names.sort_by_key(u32::to_string);
    let mut raw = Raw { magic: *b"PWRI", ..Raw::new() };
    raw = raw.text("general.architecture", "generic.gpu_index").u32("generic.gpu_index.block_count", 11);
    raw = raw.key("split.vram_capacity", U64, &5u64.to_le_bytes());
    for (place, layer) in names.iter().enumerate() {
        raw = raw.tensor(&format!("blk.{layer}.gpu_idx"), &[11], 18, place as u64 * 64);
        let mut mask = vec![0; 64];
        mask[*layer as usize * 4] = 1;
        raw.data.extend(mask);
    }
    let index = NeuronIndex::from_file(&raw.open().expect("opens")).expect("reads");
    assert_eq!(index.layers.len(), 11);
    for (i, layer) in (0u32..).zip(&index.layers) {
        assert_eq!((layer.neurons(), layer.hot()), (11, &[i][..]));
    }
}

#[test]
fn a_neuron_index_that_contradicts_itself_is_refused() {
    let file = |mask: [i32; 4], list: &[i32]| {
        let mut raw = Raw { magic: *b"PWRI", ..Raw::new() };
        raw = raw.text("general.architecture", "generic.gpu_index").u32("generic.gpu_index.block_count", 1);
        raw = raw.key("split.vram_capacity", U64, &5u64.to_le_bytes());
        raw = raw.tensor("blk.0.gpu_idx", &[4], 18, 0).tensor("blk.0.gpu_bucket", &[list.len() as u64], 18, 32);
        raw.data = mask.iter().flat_map(|n| n.to_le_bytes()).collect();
        raw.data.resize(32, 0);
        raw.data.extend(list.iter().flat_map(|n| n.to_le_bytes()));
        raw.open().and_then(|file| NeuronIndex::from_file(&file))
    };
    assert_eq!(file([0, 1, 0, 1], &[1, 3]).expect("good").layers[0].hot(), [1, 3]);
    assert_eq!(file([1, 1, 1, 1], &[]).expect("all of them").layers[0].hot(), [0, 1, 2, 3]);
    for (mask, list) in [([0, 1, 0, 1], &[1][..]), ([0, 1, 0, 1], &[]), ([0; 4], &[-1]), ([1, 0, 0, 1], &[3, 0])] {
        says(
            &file(mask, list).expect_err("must be refused").to_string(),
            &["'blk.0.gpu_bucket'", "'blk.0.gpu_idx' marks"],
        );
    }
    says(&file([0, 2, 0, 0], &[]).expect_err("must be refused").to_string(), &["'blk.0.gpu_idx'", "got 2"]);
    says(
        &NeuronIndex::from_file(&good().open().expect("opens")).expect_err("must be refused").to_string(),
        &["general.architecture", "a neuron index", "got llama"],
    );
    assert_eq!(LayerIndex::new(4, vec![1, 1]), None);
    assert_eq!(LayerIndex::new(4, vec![4]), None);
}
