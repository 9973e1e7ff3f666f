//! What a step consists of, in the order in which it is run: operators, who computes them, what they need, and what moves
//! between the CPU and an accelerator for them (paper §5.2).
//!
//! A [`Schedule`] is made once, when a model is loaded, from the family's order of calls and from where the parts of each
//! layer are. It is what runs: a step of a session goes through its nodes from the first to the last. What is on the
//! accelerator is put into its queue as soon as it can be, so that the CPU finds it busy when it begins with its own part.

mod build;
mod file;
mod print;

pub use build::LayerOrder;
pub(crate) use build::{LayerShape, Marking, build};

use crate::plan::Side;
use std::fmt;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Tokens become rows of the residual stream.
    Embed,
    /// The norm before attention.
    AttentionNorm,
    /// Attention with its projections, added to the residual stream.
    Attention,
    /// The norm before the FFN.
    FfnNorm,
    /// The neurons that may fire are marked: by a predictor, or all of them where there is none.
    Mark,
    /// The accelerator begins to send the FFN's input and the marks to the CPU, before it gets more to do.
    Fetch,
    /// What the neurons of one side contribute.
    Ffn,
    /// What the neurons of the layer contribute is added to the residual stream, where the layer's other operators are.
    Merge,
    /// Rows whose logits are wanted are taken out of the residual stream. From here on only if there are any.
    Pick,
    /// The last norm.
    OutputNorm,
    /// The matrix that gives logits.
    Head,
}

impl Operation {
    /// A few words for graphs and lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::AttentionNorm => "norm before attention",
            Self::Attention => "attention",
            Self::FfnNorm => "norm before FFN",
            Self::Mark => "mark neurons",
            Self::Fetch => "send to the CPU",
            Self::Ffn => "FFN",
            Self::Merge => "merge",
            Self::Pick => "pick rows",
            Self::OutputNorm => "last norm",
            Self::Head => "head",
        }
    }
}

/// An array that operators read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// The residual stream.
    Stream,
    /// What a norm made of it.
    Input,
    /// Which neurons may fire.
    Marks,
    /// The gates that an oracle looks at.
    Gates,
    /// What the neurons on one side contribute.
    Part(Side),
    /// Rows whose logits are wanted.
    Picked,
    /// The same after the last norm.
    Normed,
    /// Logits.
    Logits,
}

impl Value {
    /// A word or two.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "residual stream",
            Self::Input => "input",
            Self::Marks => "marks",
            Self::Gates => "gates",
            Self::Part(Side::Cpu) => "cold part",
            Self::Part(Side::Accelerator) => "hot part",
            Self::Picked => "picked rows",
            Self::Normed => "normed rows",
            Self::Logits => "logits",
        }
    }
}

/// A copy between the CPU and the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// What is copied.
    pub value: Value,
    /// Who gets it.
    pub to: Side,
}

/// One operator of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// What it does.
    pub operation: Operation,
    /// Its layer, from 0; `None` before the first and after the last.
    pub layer: Option<usize>,
    /// Who computes it.
    pub side: Side,
    /// Neurons of an [FFN](Operation::Ffn) on this side; 0 for others.
    pub neurons: usize,
    /// The kind of a [marking](Operation::Mark) predictor; `None` for others, and where every neuron is marked.
    pub predictor: Option<String>,
    /// Earlier nodes that must have been computed, by their place in [`Schedule::nodes`], ascending. What these need in turn is not repeated.
    pub needs: Vec<usize>,
    /// What is copied when it is run, unless it is already there for another reason. (Logits are fetched when they are asked for.)
    pub moves: Vec<Move>,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    nodes: Vec<Node>,
    names: [String; 2],
    layers: usize,
}

impl Schedule {
    /// The nodes, in the order in which they are run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The name of a side's device.
    pub fn device(&self, side: Side) -> &str {
        &self.names[side as usize]
    }

    /// Copies to the accelerator and to the CPU in one step of any size, but for logits.
    pub fn moves(&self) -> (usize, usize) {
        let all = || self.nodes.iter().flat_map(|n| &n.moves);
        let up = all().filter(|m| m.to == Side::Accelerator).count();
        (up, all().count() - up)
    }

    /// The same devices and head with other layers.
    pub(crate) fn with_shapes(&self, shapes: &[LayerShape], order: impl Fn(&mut LayerOrder<'_>)) -> Self {
        let head = self.nodes.last().map_or(Side::Cpu, |n| n.side);
        build(shapes, head, self.names.clone(), order)
    }

    /// The graph for [Mermaid](https://mermaid.js.org): a box per layer, an arrow for each need, and what moves beside it.
    pub fn mermaid(&self) -> String {
        print::mermaid(self)
    }

    /// The graph for Graphviz's `dot`.
    pub fn dot(&self) -> String {
        print::dot(self)
    }
}

/// A line per node.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::text(self, f)
    }
}
