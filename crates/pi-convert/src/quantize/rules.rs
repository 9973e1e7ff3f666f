//! Which type each tensor of a file gets.
//!
//! For GGUF these are llama.cpp's rules of 2026 without an importance matrix: some tensors matter more and get more bits. For
//! PowerInfer's files they are PowerInfer's: predictors have types of their own, the head has six bits, all else is alike.

use std::collections::HashMap;

use pi_core::QuantType;
use pi_gguf::Kind;

use super::{FileType, QuantizeOptions};

/// What the rules look at beside the tensor: facts of the model.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub kind: Kind,
    pub architecture: String,
    pub layers: usize,
    /// Query heads by key and value heads.
    pub group: usize,
    pub experts: usize,
}

/// A tensor as it will be.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub name: String,
    pub dims: Vec<usize>,
}

/// What the rules make of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// It stays as it is.
    Keep,
    Type(QuantType),
    /// It would be the first type, but that does not divide its rows.
    Instead(QuantType, QuantType),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Embedding,
    Output,
    /// Values, alone or with queries and keys.
    Value,
    Key,
    AttentionOutput,
    Down,
    Predictor,
    Other,
}

fn part(name: &str) -> Part {
    let has = |text: &str| name.contains(text);
    match name {
        "output.weight" => Part::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Part::Embedding,
        _ if has(".fc1.weight") || has(".fc2.weight") => Part::Predictor,
        _ if has("attn_qkv.weight") || has("attn_kv_b.weight") || has("attn_v.weight") => Part::Value,
        _ if has("attn_k.weight") => Part::Key,
        _ if has("attn_output.weight") => Part::AttentionOutput,
        _ if has("ffn_down") => Part::Down,
        _ => Part::Other,
    }
}

/// Matrices that are small or sensitive, by parts of their names.
const NEVER: [&str; 8] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b.weight",
];

fn may_change(shape: &Shape, options: &QuantizeOptions) -> bool {
    let name = &*shape.name;
    // A matrix of one row is taken for a vector, as llama.cpp counts dimensions.
    let matrix = shape.dims.iter().skip(1).any(|&dim| dim != 1);
    let fixed =
        NEVER.iter().any(|part| name.contains(part)) || matches!(name, "position_embd.weight" | "token_types.weight");
    matrix && name.ends_with("weight") && !fixed && !(options.leave_output_tensor && name == "output.weight")
}

/// The layer in a name `blk.N.…`.
pub(super) fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The choice for each tensor.
pub(super) fn choose(shapes: &[Shape], model: &Model, ty: FileType, options: &QuantizeOptions) -> Vec<Choice> {
    // "The i-th value matrix" counts in the order of layers, wherever they are in the file.
    let mut values: Vec<_> = shapes.iter().filter(|s| part(&s.name) == Part::Value).map(|s| &*s.name).collect();
    values.sort_by_key(|name| (layer(name), *name));
    let ranks: HashMap<_, _> = values.iter().enumerate().map(|(i, &name)| (name, i)).collect();
    let tied = !shapes.iter().any(|s| s.name == "output.weight");
    let rules = Rules { model, ty, options, tied, values: values.len() };
    shapes.iter().map(|shape| rules.choice(shape, ranks.get(&*shape.name).copied().unwrap_or(0))).collect()
}

struct Rules<'a> {
    model: &'a Model,
    ty: FileType,
    options: &'a QuantizeOptions,
    tied: bool,
    values: usize,
}

impl Rules<'_> {
    fn choice(&self, shape: &Shape, rank: usize) -> Choice {
        if !may_change(shape, self.options) {
            return Choice::Keep;
        }
        let part = part(&shape.name);
        let asked = match part {
            Part::Embedding => self.options.token_embedding_type,
            Part::Output => self.options.output_tensor_type,
            Part::Predictor => self.options.predictor_type,
            _ => None,
        };
        let most = self.ty.most();
        let wanted = match asked {
            Some(ty) => ty,
            None if most.is_float() || self.options.pure => most,
            None if part == Part::Predictor => self.predictor(),
            None if self.model.kind == Kind::PowerInfer => self.powerinfer(part, shape.dims[0]),
            None => self.llama(part, shape, rank),
        };
        match fitting(wanted, shape.dims[0]) {
            ty if ty == wanted => Choice::Type(ty),
            ty => Choice::Instead(wanted, ty),
        }
    }

    fn predictor(&self) -> QuantType {
        if self.ty == FileType::Q4_0 { QuantType::Q4_0 } else { QuantType::Q5_0 }
    }

    fn is_falcon(&self) -> bool {
        self.model.architecture == "falcon"
    }

    fn powerinfer(&self, part: Part, cols: usize) -> QuantType {
        match part {
            Part::Output if self.is_falcon() || !cols.is_multiple_of(256) => QuantType::Q8_0,
            Part::Output if self.ty != FileType::Q8_0 => QuantType::Q6_K,
            _ => self.ty.most(),
        }
    }

    fn llama(&self, part: Part, shape: &Shape, rank: usize) -> QuantType {
        use FileType::*;
        let most = self.ty.most();
        let layers = self.model.layers;
        let i = layer(&shape.name).unwrap_or(0);
        let eight = self.model.experts == 8;
        match part {
            Part::Output => self.head(shape.dims[0]),
            // Where the head shares the embedding, the head's needs decide.
            Part::Embedding if self.tied => self.options.output_tensor_type.unwrap_or_else(|| self.head(shape.dims[0])),
            Part::Value => {
                let wide = self.model.group >= 4;
                let ty = match self.ty {
                    Q2_K => {
                        if wide {
                            QuantType::Q4_K
                        } else {
                            QuantType::Q3_K
                        }
                    }
                    Q3_K_M => {
                        if rank < 2 {
                            QuantType::Q5_K
                        } else {
                            QuantType::Q4_K
                        }
                    }
                    Q3_K_L => QuantType::Q5_K,
                    IQ4_NL | IQ4_XS if wide => QuantType::Q5_K,
                    Q4_K_M | Q5_K_M if more_bits(rank, self.values) => QuantType::Q6_K,
                    Q4_K_S if rank < 4 => QuantType::Q5_K,
                    _ => most,
                };
                // LLaMA 70B: eight query heads share these.
                let large = self.model.architecture == "llama" && layers == 80;
                match ty {
                    _ if eight => QuantType::Q8_0,
                    QuantType::Q3_K | QuantType::Q4_K if large => QuantType::Q5_K,
                    ty => ty,
                }
            }
            Part::Key if eight => QuantType::Q8_0,
            Part::Down => match self.ty {
                Q2_K => QuantType::Q3_K,
                Q3_K_M if i < layers / 16 => QuantType::Q5_K,
                Q3_K_M if !self.is_falcon() || more_bits(i, layers) => QuantType::Q4_K,
                Q3_K_L if self.is_falcon() => QuantType::Q4_K,
                Q3_K_L => QuantType::Q5_K,
                Q4_K_M if self.is_falcon() && i < layers / 16 => QuantType::Q6_K,
                Q4_K_M if self.is_falcon() && more_bits(i, layers) => QuantType::Q5_K,
                Q4_K_M if !self.is_falcon() && more_bits(i, layers) => QuantType::Q6_K,
                Q5_K_M if more_bits(i, layers) => QuantType::Q6_K,
                IQ4_NL | IQ4_XS if i < layers / 8 => QuantType::Q5_K,
                Q4_K_S if !self.is_falcon() && i < layers / 8 => QuantType::Q5_K,
                _ => most,
            },
            Part::AttentionOutput if self.is_falcon() => {
                if self.ty == Q3_K_L {
                    QuantType::Q4_K
                } else {
                    most
                }
            }
            Part::AttentionOutput if eight => match self.ty {
                Q2_K | Q3_K_S | Q3_K_M | Q4_K_S | Q4_K_M | IQ4_NL | IQ4_XS => QuantType::Q5_K,
                _ => most,
            },
            Part::AttentionOutput => match self.ty {
                Q2_K => QuantType::Q3_K,
                Q3_K_M => QuantType::Q4_K,
                Q3_K_L => QuantType::Q5_K,
                _ => most,
            },
            _ => most,
        }
    }

    fn head(&self, cols: usize) -> QuantType {
        let most = self.ty.most();
        match most {
            _ if self.is_falcon() || !cols.is_multiple_of(most.info().block_len) => QuantType::Q8_0,
            QuantType::Q8_0 => QuantType::Q8_0,
            _ => QuantType::Q6_K,
        }
    }
}

/// The first and the last eighth of the layers, and every third between.
fn more_bits(i: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    i < eighth || i >= 7 * layers / 8 || (i - eighth) % 3 == 2
}

/// The type itself if its blocks divide the row, else one with shorter blocks and at least as many bits.
fn fitting(ty: QuantType, cols: usize) -> QuantType {
    let fits = |ty: QuantType| cols.is_multiple_of(ty.info().block_len);
    if fits(ty) {
        return ty;
    }
    let shorter = match ty {
        QuantType::Q2_K | QuantType::Q3_K => QuantType::Q4_0,
        QuantType::Q4_K => QuantType::Q5_0,
        QuantType::Q5_K => QuantType::Q5_1,
        QuantType::Q6_K => QuantType::Q8_0,
        QuantType::IQ4_XS => QuantType::IQ4_NL,
        _ => QuantType::F16,
    };
    if fits(shorter) { shorter } else { QuantType::F16 }
}

/// For a matrix that keeps its type if that divides its rows.
pub(super) fn kept(ty: QuantType, cols: usize) -> Choice {
    match fitting(ty, cols) {
        new if new == ty => Choice::Type(ty),
        new => Choice::Instead(ty, new),
    }
}
