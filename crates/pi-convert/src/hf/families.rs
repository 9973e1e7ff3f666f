//! What each family's config and tensors are called, and what becomes of them.

use pi_core::Activation;
use pi_gguf::Kind;
use serde_json::Value as Json;

use super::config::{Config, Value, positive};
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::stream::Order;

/// What a checkpoint becomes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub architecture: &'static str,
    pub layers: usize,
    pub dim: usize,
    pub neurons: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Keys without the architecture in front, in the order in which they are written.
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<Wanted>,
    /// Vectors that are computed.
    pub values: Vec<(String, Vec<f32>)>,
    /// Endings of names of tensors that are known and not needed.
    pub ignored: Vec<&'static str>,
    pub notes: Vec<String>,
}

/// A tensor of the result.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub name: String,
    /// Its name in the checkpoint.
    pub source: String,
    /// Its shape there, slowest varying first.
    pub shape: Vec<usize>,
    pub order: Order,
    pub optional: bool,
}

type Family = fn(&Config, &Weights, Kind) -> Result<Plan>;

/// Names in `architectures` and `model_type`, and the family.
const FAMILIES: [(&[&str], Family); 4] = [
    (
        &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "SparseLlamaForCausalLM",
            "MistralForCausalLM",
            "llama",
            "sparsellama",
            "mistral",
        ],
        llama,
    ),
    (&["BambooForCausalLM", "bamboo"], bamboo),
    (&["FalconForCausalLM", "RWForCausalLM", "falcon", "RefinedWeb", "RefinedWebModel"], falcon),
    (&["OPTForCausalLM", "opt"], opt),
];

pub(super) fn plan(config: &Config, weights: &Weights, kind: Kind) -> Result<Plan> {
    let name = config.json["architectures"][0].as_str().or(config.json["model_type"].as_str());
    let known = || FAMILIES.iter().flat_map(|(names, _)| names.iter().filter(|n| n.ends_with("LM"))).copied();
    let Some(name) = name else {
        let expected = format!("one of {}", known().collect::<Vec<_>>().join(", "));
        return Err(config.error("architectures", expected, "nothing"));
    };
    let family = FAMILIES.iter().find(|(names, _)| names.contains(&name)).ok_or_else(|| Error::Architecture {
        path: config.path.clone(),
        name: name.into(),
        known: known().collect::<Vec<_>>().join(", "),
    })?;
    family.1(config, weights, kind)
}

impl Plan {
    fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.push((key.into(), value.into()));
    }

    fn add(&mut self, name: impl Into<String>, source: String, shape: &[usize]) -> &mut Wanted {
        let (name, shape) = (name.into(), shape.to_vec());
        self.tensors.push(Wanted { name, source, shape, order: Order::AsIs, optional: false });
        let last = self.tensors.len() - 1;
        &mut self.tensors[last]
    }

    /// A matrix with, perhaps, a bias; rows of both in this order.
    fn linear(&mut self, name: &str, source: &str, shape: [usize; 2], order: Order, bias: bool) {
        self.add(format!("{name}.weight"), format!("{source}.weight"), &shape).order = order.clone();
        let bias_of = self.add(format!("{name}.bias"), format!("{source}.bias"), &shape[..1]);
        (bias_of.order, bias_of.optional) = (order, !bias);
    }

    fn norm(&mut self, name: &str, source: &str, dim: usize, bias: bool) {
        self.add(format!("{name}.weight"), format!("{source}.weight"), &[dim]);
        if bias {
            self.add(format!("{name}.bias"), format!("{source}.bias"), &[dim]);
        }
    }

    /// The head, unless it is the embedding.
    fn head(&mut self, config: &Config, weights: &Weights, tied: bool) -> Result<()> {
        let tied = config.flag("tie_word_embeddings")?.unwrap_or(tied && weights.get("lm_head.weight").is_none());
        match tied {
            true => self.ignored.push("lm_head.weight"),
            false => drop(self.add("output.weight", "lm_head.weight".into(), &[self.vocab, self.dim])),
        }
        Ok(())
    }

    /// `hidden_act`, unless engines assume it of this family anyway.
    fn activation(&mut self, config: &Config, keys: &[&str], default: Activation, assumed: Activation) -> Result<()> {
        let mut act = default;
        if let Some((key, name)) = config.find(keys) {
            let known = "silu, gelu, gelu_new, relu, relu2 or fatrelu";
            let parsed = name.as_str().and_then(|name| name.parse().ok());
            act = parsed.ok_or_else(|| config.error(key, known, name))?;
        }
        let params = ["hidden_act_param", "hidden_act_threshold", "fatrelu_threshold"];
        if let (Activation::FatRelu(_), Some((key, value))) = (act, config.find(&params)) {
            let threshold = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x >= 0.0);
            act = Activation::FatRelu(threshold.ok_or_else(|| config.error(key, "a number from 0 on", value))?);
        }
        if act != assumed {
            let name = if let Activation::FatRelu(_) = act { "fatrelu".into() } else { act.to_string() };
            self.key("hidden_act", Value::Text(name));
        }
        if let Activation::FatRelu(threshold) = act {
            self.key("hidden_act_threshold", Value::F32(threshold));
        }
        Ok(())
    }
}

/// What engines assume of a file that does not say: PowerInfer's are all ReLU.
fn assumed(kind: Kind, gguf: Activation) -> Activation {
    if kind == Kind::PowerInfer { Activation::Relu } else { gguf }
}

/// The prefix that the checkpoint's names have: models that were saved without their head lack the outermost name.
fn prefix(weights: &Weights, outer: &'static str, rest: &'static str, probe: &str) -> String {
    let whole = format!("{outer}{rest}");
    if weights.get(&format!("{whole}{probe}")).is_none() && weights.get(&format!("{rest}{probe}")).is_some() {
        return rest.into();
    }
    whole
}

fn divisor(config: &Config, dim: usize, heads: usize, kv_heads: usize) -> Result<()> {
    if !heads.is_multiple_of(kv_heads) {
        return Err(config.error("num_key_value_heads", format!("a divisor of {heads} heads"), kv_heads));
    }
    if config.json["head_dim"].is_null() && !dim.is_multiple_of(heads) {
        return Err(config.error("num_attention_heads", format!("a divisor of the width {dim}"), heads));
    }
    Ok(())
}

fn llama(config: &Config, weights: &Weights, kind: Kind) -> Result<Plan> {
    let mut plan = llama_like(config, weights, "llama")?;
    plan.activation(config, &["hidden_act"], Activation::Silu, assumed(kind, Activation::Silu))?;
    Ok(plan)
}

/// Mistral's shape with ReLU on gate and up; what its config calls the activation varies and is not used by its code.
fn bamboo(config: &Config, weights: &Weights, _: Kind) -> Result<Plan> {
    llama_like(config, weights, "bamboo")
}

fn llama_like(config: &Config, weights: &Weights, architecture: &'static str) -> Result<Plan> {
    let (dim, neurons) = (config.size(&["hidden_size"])?, config.size(&["intermediate_size"])?);
    let (layers, heads) = (config.size(&["num_hidden_layers"])?, config.size(&["num_attention_heads"])?);
    let kv_heads = config.size_if_any(&["num_key_value_heads"])?.unwrap_or(heads);
    divisor(config, dim, heads, kv_heads)?;
    let stated = config.size_if_any(&["head_dim"])?;
    let head_dim = stated.unwrap_or(dim / heads);
    if !head_dim.is_multiple_of(2) {
        return Err(config.error("head_dim", "an even number", head_dim));
    }
    let vocab = config.size(&["vocab_size"])?;
    let context = config.size(&["max_position_embeddings"])?;
    let mut plan = Plan { architecture, layers, dim, neurons, vocab, ..Plan::default() };
    plan.ignored = vec!["rotary_emb.inv_freq"];
    plan.key("context_length", context);
    plan.key("embedding_length", dim);
    plan.key("block_count", layers);
    plan.key("feed_forward_length", neurons);
    plan.key("rope.dimension_count", head_dim);
    plan.key("attention.head_count", heads);
    plan.key("attention.head_count_kv", kv_heads);
    let eps = config.positive(&["rms_norm_eps"])?;
    let eps = eps.ok_or_else(|| config.error("rms_norm_eps", "a number", "nothing"))?;
    plan.key("attention.layer_norm_rms_epsilon", Value::F32(eps));
    if let Some(head_dim) = stated {
        plan.key("attention.key_length", head_dim);
        plan.key("attention.value_length", head_dim);
    }
    rope(&mut plan, config, head_dim, context)?;
    if let Some(window) = config.size_if_any(&["sliding_window"])?.filter(|&window| window < context) {
        plan.notes.push(format!("attention to the last {window} tokens only is not kept: longer texts see all"));
    }

    let base = prefix(weights, "model.", "", "embed_tokens.weight");
    plan.add("token_embd.weight", format!("{base}embed_tokens.weight"), &[vocab, dim]);
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    for i in 0..layers {
        let (to, from) = (format!("blk.{i}"), format!("{base}layers.{i}"));
        plan.norm(&format!("{to}.attn_norm"), &format!("{from}.input_layernorm"), dim, false);
        plan.norm(&format!("{to}.ffn_norm"), &format!("{from}.post_attention_layernorm"), dim, false);
        for (name, source, shape, order) in [
            ("attn_q", "self_attn.q_proj", [q, dim], interleaved(heads, head_dim)),
            ("attn_k", "self_attn.k_proj", [kv, dim], interleaved(kv_heads, head_dim)),
            ("attn_v", "self_attn.v_proj", [kv, dim], Order::AsIs),
            ("attn_output", "self_attn.o_proj", [dim, q], Order::AsIs),
            ("ffn_gate", "mlp.gate_proj", [neurons, dim], Order::AsIs),
            ("ffn_up", "mlp.up_proj", [neurons, dim], Order::AsIs),
            ("ffn_down", "mlp.down_proj", [dim, neurons], Order::AsIs),
        ] {
            plan.linear(&format!("{to}.{name}"), &format!("{from}.{source}"), shape, order, false);
        }
    }
    plan.norm("output_norm", &format!("{base}norm"), dim, false);
    plan.head(config, weights, false)?;
    Ok(plan)
}

/// Rotary embedding turns pairs of numbers: checkpoints have a pair's halves half a head apart, files side by side.
fn interleaved(heads: usize, head_dim: usize) -> Order {
    let row = |i: usize| {
        let (head, within) = (i / head_dim, i % head_dim);
        head * head_dim + within % 2 * (head_dim / 2) + within / 2
    };
    Order::Rows((0..heads * head_dim).map(row).collect())
}

/// Base and stretching of rotary embedding, from the keys of old configs and of new ones.
fn rope(plan: &mut Plan, config: &Config, head_dim: usize, context: usize) -> Result<()> {
    let (key, scaling) = config.find(&["rope_scaling", "rope_parameters"]).unwrap_or(("rope_scaling", &Json::Null));
    let inner = |name: &str| format!("{key}.{name}");
    let number = |name: &str, required: bool| match (&scaling[name], required) {
        (Json::Null, false) => Ok(None),
        (value, _) => {
            positive(value).map(Some).ok_or_else(|| config.error(&inner(name), "a finite number above 0", value))
        }
    };
    let base = config.positive(&["rope_theta"])?.or(number("rope_theta", false)?);
    if let Some(base) = base {
        plan.key("rope.freq_base", Value::F32(base));
    }
    let ty = ["rope_type", "type"].into_iter().find_map(|name| scaling[name].as_str()).unwrap_or("default");
    match ty {
        "default" => {}
        "linear" | "yarn" => {
            plan.key("rope.scaling.type", Value::Text(ty.into()));
            plan.key("rope.scaling.factor", Value::F32(number("factor", true)?.unwrap_or(1.0)));
            if ty == "yarn" {
                let original = number("original_max_position_embeddings", false)?;
                plan.key("rope.scaling.original_context_length", original.map_or(context, |x| x as usize));
            }
        }
        "llama3" => {
            let of = |name: &str| -> Result<f64> { Ok(f64::from(number(name, true)?.unwrap_or(1.0))) };
            let (factor, low, high) = (of("factor")?, of("low_freq_factor")?, of("high_freq_factor")?);
            let original = of("original_max_position_embeddings")?;
            let base = f64::from(base.unwrap_or(10_000.0));
            // Long waves are stretched, short ones are not, and those between partly.
            let divisor = |i: usize| {
                let wave = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / head_dim as f64);
                match original / wave {
                    turns if turns > high => 1.0,
                    turns if turns < low => factor,
                    turns => {
                        let share = (turns - low) / (high - low);
                        1.0 / ((1.0 - share) / factor + share)
                    }
                }
            };
            plan.values.push(("rope_freqs.weight".into(), (0..head_dim / 2).map(|i| divisor(i) as f32).collect()));
        }
        other => return Err(config.error(&inner("rope_type"), "default, linear, yarn or llama3", other)),
    }
    Ok(())
}

fn falcon(config: &Config, weights: &Weights, kind: Kind) -> Result<Plan> {
    config.only("alibi", false, "positions by ALiBi are not supported")?;
    config.only("parallel_attn", true, "an FFN behind the attention is not supported")?;
    config.only("bias", false, "biases are not supported")?;
    let dim = config.size(&["hidden_size"])?;
    let layers = config.size(&["num_hidden_layers", "n_layer"])?;
    let heads = config.size(&["num_attention_heads", "n_head"])?;
    let grouped = config.flag("new_decoder_architecture")?.unwrap_or(false);
    let kv_heads = match config.size_if_any(&["num_kv_heads", "n_head_kv", "num_key_value_heads"])? {
        Some(kv_heads) if grouped => kv_heads,
        // The older shape has one head for all, or one for each; its config may still state a number.
        stated => match config.flag("multi_query")? {
            Some(true) => 1,
            Some(false) => heads,
            None => stated.unwrap_or(1),
        },
    };
    divisor(config, dim, heads, kv_heads)?;
    let head_dim = dim / heads;
    let neurons = config.size_if_any(&["ffn_hidden_size", "intermediate_size"])?.unwrap_or(4 * dim);
    let vocab = config.size(&["vocab_size"])?;
    let mut plan = Plan { architecture: "falcon", layers, dim, neurons, vocab, ..Plan::default() };
    plan.ignored = vec!["rotary_emb.inv_freq"];
    plan.key("context_length", config.size_if_any(&["max_position_embeddings"])?.unwrap_or(2048));
    plan.key("embedding_length", dim);
    plan.key("block_count", layers);
    plan.key("feed_forward_length", neurons);
    plan.key("attention.head_count", heads);
    plan.key("attention.head_count_kv", kv_heads);
    let eps = config.positive(&["layer_norm_epsilon"])?.unwrap_or(1e-5);
    plan.key("attention.layer_norm_epsilon", Value::F32(eps));
    if let Some(base) = config.positive(&["rope_theta"])? {
        plan.key("rope.freq_base", Value::F32(base));
    }
    let names = ["activation", "hidden_act", "activation_function"];
    plan.activation(config, &names, Activation::Gelu, assumed(kind, Activation::Gelu))?;

    let base = prefix(weights, "transformer.", "", "word_embeddings.weight");
    plan.add("token_embd.weight", format!("{base}word_embeddings.weight"), &[vocab, dim]);
    plan.norm("output_norm", &format!("{base}ln_f"), dim, true);
    plan.head(config, weights, true)?;
    let two_norms = weights.get(&format!("{base}h.0.ln_attn.weight")).is_some();
    for i in 0..layers {
        let (to, from) = (format!("blk.{i}"), format!("{base}h.{i}"));
        if two_norms {
            plan.norm(&format!("{to}.attn_norm"), &format!("{from}.ln_mlp"), dim, true);
            plan.norm(&format!("{to}.attn_norm_2"), &format!("{from}.ln_attn"), dim, true);
        } else {
            plan.norm(&format!("{to}.attn_norm"), &format!("{from}.input_layernorm"), dim, true);
        }
        let qkv = (heads + 2 * kv_heads) * head_dim;
        for (name, source, shape, order) in [
            ("attn_qkv", "self_attention.query_key_value", [qkv, dim], grouped_qkv(heads, kv_heads, head_dim)),
            ("attn_output", "self_attention.dense", [dim, dim], Order::AsIs),
            ("ffn_up", "mlp.dense_h_to_4h", [neurons, dim], Order::AsIs),
            ("ffn_down", "mlp.dense_4h_to_h", [dim, neurons], Order::AsIs),
        ] {
            plan.add(format!("{to}.{name}.weight"), format!("{from}.{source}.weight"), &shape).order = order;
        }
    }
    Ok(plan)
}

/// Checkpoints have, for every key and value head, its query heads, then it; files have all queries, all keys, all values.
fn grouped_qkv(heads: usize, kv_heads: usize, head_dim: usize) -> Order {
    let group = heads / kv_heads;
    let head = |i: usize| match i {
        query if query < heads => query / group * (group + 2) + query % group,
        key if key < heads + kv_heads => (key - heads) * (group + 2) + group,
        value => (value - heads - kv_heads) * (group + 2) + group + 1,
    };
    let row = |i: usize| head(i / head_dim) * head_dim + i % head_dim;
    Order::Rows((0..(heads + 2 * kv_heads) * head_dim).map(row).collect())
}

fn opt(config: &Config, weights: &Weights, kind: Kind) -> Result<Plan> {
    config.only("do_layer_norm_before", true, "norms behind the branches, as in opt-350m, are not supported")?;
    config.only("_remove_final_layer_norm", false, "a model without its last norm is not supported")?;
    config.only("layer_norm_elementwise_affine", true, "norms without weights are not supported")?;
    let dim = config.size(&["hidden_size"])?;
    let (layers, heads) = (config.size(&["num_hidden_layers"])?, config.size(&["num_attention_heads"])?);
    let (neurons, vocab) = (config.size(&["ffn_dim"])?, config.size(&["vocab_size"])?);
    let context = config.size(&["max_position_embeddings"])?;
    divisor(config, dim, heads, heads)?;
    if let Some(inner) = config.size_if_any(&["word_embed_proj_dim"])?.filter(|&inner| inner != dim) {
        let expected = format!("the width {dim} (projected embeddings, as in opt-350m, are not supported)");
        return Err(config.error("word_embed_proj_dim", expected, inner));
    }
    let mut plan = Plan { architecture: "opt", layers, dim, neurons, vocab, ..Plan::default() };
    plan.key("context_length", context);
    plan.key("embedding_length", dim);
    plan.key("block_count", layers);
    plan.key("feed_forward_length", neurons);
    plan.key("attention.head_count", heads);
    plan.key("attention.head_count_kv", heads);
    plan.key("attention.layer_norm_epsilon", Value::F32(1e-5));
    plan.activation(config, &["activation_function"], Activation::Relu, assumed(kind, Activation::Relu))?;

    let base = prefix(weights, "model.", "decoder.", "embed_tokens.weight");
    plan.add("token_embd.weight", format!("{base}embed_tokens.weight"), &[vocab, dim]);
    // The first two rows are never used: positions count from 2.
    plan.add("position_embd.weight", format!("{base}embed_positions.weight"), &[context + 2, dim]);
    plan.norm("output_norm", &format!("{base}final_layer_norm"), dim, true);
    plan.head(config, weights, true)?;
    let bias = config.flag("enable_bias")?.unwrap_or(true);
    for i in 0..layers {
        let (to, from) = (format!("blk.{i}"), format!("{base}layers.{i}"));
        plan.norm(&format!("{to}.attn_norm"), &format!("{from}.self_attn_layer_norm"), dim, true);
        plan.norm(&format!("{to}.ffn_norm"), &format!("{from}.final_layer_norm"), dim, true);
        for (name, source, shape) in [
            ("attn_q", "self_attn.q_proj", [dim, dim]),
            ("attn_k", "self_attn.k_proj", [dim, dim]),
            ("attn_v", "self_attn.v_proj", [dim, dim]),
            ("attn_output", "self_attn.out_proj", [dim, dim]),
            ("ffn_up", "fc1", [neurons, dim]),
            ("ffn_down", "fc2", [dim, neurons]),
        ] {
            plan.linear(&format!("{to}.{name}"), &format!("{from}.{source}"), shape, Order::AsIs, bias);
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(order: Order) -> Vec<usize> {
        let Order::Rows(rows) = order else { panic!("{order:?}") };
        rows
    }

    #[test]
    fn halves_of_heads_become_neighbours() {
        assert_eq!(rows(interleaved(2, 6)), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn groups_of_queries_keys_and_values_are_taken_apart() {
        // Two groups of two queries, one key, one value; two numbers per head.
        assert_eq!(rows(grouped_qkv(4, 2, 2)), [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]);
        // One group: nothing moves.
        assert_eq!(rows(grouped_qkv(3, 1, 2)), (0..10).collect::<Vec<_>>());
    }
}
